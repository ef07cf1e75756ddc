"""Rows of published question sets, written by hand in the shapes that their publishers give them,
and a stand-in for the Hub that has them as local files.
"""

import base64
import csv
import gzip
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CANARY = "BROWSECOMP:canary"
ASKED = "Which sea does the Veldt flow into?"
PQAREF = """Instruction: Does honey ease coughs?

Abstracts:
abstract_id: PUBMED:1
It eased coughs of 30 children.

Answer: It eased coughs in children (PUBMED:1)."""
FACTS = {"title": ["Veldt", "Mir", "Veldt"], "sent_id": [0, 1, 2]}
SENTENCES = {"title": ["Veldt", "Mir"], "sentences": [["A river.", " It is long."], ["A sea."]]}


def encrypted(text: str) -> str:
    key = hashlib.sha256(CANARY.encode()).digest()
    cipher = bytes(byte ^ key[place % 32] for place, byte in enumerate(text.encode()))
    return base64.b64encode(cipher).decode()


def flashrag(number: int, **metadata: Any) -> dict[str, Any]:
    row = {"id": f"dev_{number}", "question": ASKED, "golden_answers": ["the Mir", "Mir"]}
    return row | ({"metadata": metadata} if metadata else {})


ROWS: dict[str, list[dict[str, Any]]] = {
    "nq": [flashrag(0), flashrag(1)],
    "triviaqa": [flashrag(0)],
    "popqa": [flashrag(0, prop="mouth", s_pop=142)],
    "bamboogle": [flashrag(0)],
    "hotpotqa": [
        flashrag(0, type="bridge", level="hard", supporting_facts=FACTS, context=SENTENCES)
    ],
    "2wikimultihopqa": [
        flashrag(
            0,
            type="compositional",
            supporting_facts={"title": ["Veldt", "Mir"], "sent_id": [0, 1]},
            context={"title": ["Veldt", "Mir"], "content": [["A river."], ["A sea."]]},
            evidences=[["Veldt", "mouth", "the Mir"]],
        )
    ],
    "musique": [
        {
            "id": "2hop__1_2",
            "paragraphs": [
                {"idx": 0, "title": "Oslo", "paragraph_text": "A city.", "is_supporting": False},
                {"idx": 1, "title": "Veldt", "paragraph_text": "A river.", "is_supporting": True},
            ],
            "question": ASKED,
            "question_decomposition": [
                {
                    "id": 1,
                    "question": "Veldt >> mouth",
                    "answer": "the Mir",
                    "paragraph_support_idx": 1,
                }
            ],
            "answer": "the Mir",
            "answer_aliases": ["Mir"],
            "answerable": True,
        }
    ],
    "bioasq": [
        {
            "id": 1,
            "question": ASKED,
            "answer": "the Mir",
            "relevant_passage_ids": "[101, 102]",
        }
    ],
    "pqarefeval": [{"input": PQAREF}],
    "morehopqa": [
        {
            "_id": "m1",
            "question": "How many letters has the sea of the Veldt?",
            "answer": 3,
            "previous_question": ASKED,
            "previous_answer": "Mir",
            "context": [["Veldt", ["A river.", " It is long."]], ["Mir", ["A sea."]]],
            "answer_type": "number",
            "no_of_hops": 2,
        }
    ],
    "pira": [
        {
            "id_qa": "A12",
            "corpus": 1,
            "question_en_origin": ASKED,
            "question_pt_origin": "Em que mar deságua o Veldt?",
            "answer_en_origin": "the Mir",
            "answer_pt_origin": "o Mir",
            "answer_en_validate": "The Mir sea.",
            "answer_pt_validate": "O mar Mir.",
            "abstract": "The Veldt ends in the Mir.",
        }
    ],
    "gaia": [
        {
            "task_id": "t1",
            "Question": ASKED,
            "Level": "1",
            "Final answer": "the Mir",
            "file_name": "",
            "file_path": "",
        },
        {
            "task_id": "t2",
            "Question": "What does the sheet sum to?",
            "Level": "2",
            "Final answer": "17",
            "file_name": "t2.xlsx",
            "file_path": "2023/validation/t2.xlsx",
        },
    ],
    "hle": [
        {
            "id": "h1",
            "question": ASKED,
            "image": "",
            "answer": "the Mir",
            "answer_type": "exactMatch",
            "category": "Other",
            "canary": "hle",
        },
        {
            "id": "h2",
            "question": "What is shown?",
            "image": "data:image/jpeg;base64,AAAA",
            "answer": "A",
            "answer_type": "multipleChoice",
            "category": "Other",
            "canary": "hle",
        },
    ],
    "browsecomp": [
        {
            "problem": encrypted(ASKED),
            "answer": encrypted("the Mir"),
            "problem_topic": "Geography",
            "canary": CANARY,
        }
    ],
    "mirorl_genqa": [
        {
            "data_source": "genqa",
            "prompt": [{"role": "user", "content": ASKED}],
            "reward_model": {"style": "rule", "ground_truth": "the Mir"},
        }
    ],
}
"""By the name of the set."""
PASSAGES = [{"id": 101, "passage": "The Veldt ends in the Mir."}, {"id": 102, "passage": "nan"}]
"""The corpus of BioASQ."""


class StandInHub:
    """What the Hub gives, from files in a folder; `calls` are what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.newest = "a1b2c3"
        self.tags: dict[str | None, str] = {}
        self.calls: list[tuple[str, str | None]] = []
        self.lines: dict[str, list[str]] = {}

    def dataset_info(self, repository: str, revision: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(sha=self.tags.get(revision, self.newest))

    def hf_hub_download(self, repository: str, file: str, repo_type: str, revision: str) -> str:
        assert repo_type == "dataset"
        self.calls.append((f"{repository}/{file}", revision))
        name = "morehopqa" if "morehopqa" in repository else file.split("/")[0]
        rows = ROWS[name]
        path = self.folder / f"{name}{Path(file).suffix}"
        if path.suffix == ".json":
            path.write_text(json.dumps(rows))
        else:
            lines = [json.dumps(row) for row in rows] + self.lines.get(name, [])
            path.write_text("\n".join(lines))
        return str(path)

    def load_dataset(
        self,
        repository: str,
        name: str | None = None,
        split: str = "",
        data_files: str | None = None,
        revision: str | None = None,
    ) -> Any:
        self.calls.append((f"{repository}/{split}", revision))
        if repository == "csv":
            return self._csv()
        if name == "text-corpus":
            return self._parquet("passages", PASSAGES)
        named = {"dgslibisey/MuSiQue": "musique", "rag-datasets/rag-mini-bioasq": "bioasq"}
        named |= {"BojanaBas/PQAref": "pqarefeval", "miromind-ai/MiroRL-GenQA": "mirorl_genqa"}
        named |= {"paulopirozelli/pira": "pira", "cais/hle": "hle"}
        named |= {"gaia-benchmark/GAIA": "gaia"}
        return self._parquet(named[repository], ROWS[named[repository]])

    def _parquet(self, name: str, rows: list[dict[str, Any]]) -> Any:
        import pyarrow
        from datasets import Dataset
        from pyarrow import parquet

        path = self.folder / f"{name}.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return Dataset.from_parquet(str(path), cache_dir=str(self.folder / "cache"))

    def _csv(self) -> Any:
        from datasets import Dataset

        path = self.folder / "browsecomp.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS["browsecomp"][0]))
            writer.writeheader()
            writer.writerows(ROWS["browsecomp"])
        return Dataset.from_csv(str(path), cache_dir=str(self.folder / "cache"))


def in_place_of_the_hub(monkeypatch: Any, folder: Path) -> StandInHub:
    import datasets
    import huggingface_hub

    hub = StandInHub(folder)
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub.hf_hub_download)
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    return hub


def rows_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
