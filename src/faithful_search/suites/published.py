"""The published question sets that are known by name: where each is, what its rows look like, under
which licence, and how many of them the papers took.

Nothing here was downloaded to write it. `unverified` says what was not seen in a public repository
or on the set's page; what is not mentioned there was.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import DataError
from . import published_rows as shapes
from .published_rows import Row


@dataclass(frozen=True)
class PublishedSet:
    """A question set of somebody else's.

    Args:
        name: what it is called here, in `load_tasks` and in a suite.
        repository: its id on the Hub. A set that is published as CSV files elsewhere has `csv`, the
            name of the loader in `datasets`, and the addresses of its `files`.
        splits: its splits by their names here. The value is the split's name on the Hub, or, with
            `is_file`, the path of its file in the repository.
        evaluated: the split that the papers evaluate on.
        rows: how many questions that split has, as published; 0 where that is not known.
        licence: of the questions.
        columns: what its rows have, for people who look at it.
        papers: which took how many, and by which seed.
        reader: a row of theirs to one of ours, see `published_rows`.
        configuration: its name on the Hub, where a dataset has several.
        is_file: whether a split is one JSON or JSON-lines file, which is read line by line.
        files: for `csv`, the address of each split.
        has_passages: whether passages come with its questions.
        passages: the configuration that holds them, where that is another.
        corpus: where the passages are that its questions are answered from.
        access: what must be done before it can be downloaded.
        other_names: what the set is called in `data_source` columns of others.
        unverified: what could not be checked.
    """

    name: str
    repository: str
    splits: Mapping[str, str]
    evaluated: str
    rows: int
    licence: str
    columns: str
    papers: str
    reader: Callable[[Mapping[str, Any]], Row] = shapes.plain
    configuration: str | None = None
    is_file: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    has_passages: bool = False
    passages: str | None = None
    corpus: str = ""
    access: str = ""
    other_names: tuple[str, ...] = ()
    unverified: str = ""

    def split(self, name: str) -> str:
        """What the split is called where it comes from. Raises `DataError` for one that it has
        not.
        """
        if name not in self.splits:
            raise DataError(
                f"{self.name} has no split {name!r}; it has: {', '.join(self.splits)}. The papers "
                f"evaluate on {self.evaluated}"
            )
        return self.splits[name]


FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
WIKI18 = "Wikipedia of 2018: faithful-search data wiki18"
WEB = "the web"
_FLASHRAG_COLUMNS = "id, question, golden_answers, metadata"
_THREE_PAPERS = "PoU: 512; VERITAS: all; Pokee: 125. Their seeds are not printed"


def _flashrag(name: str, splits: tuple[str, ...], **fields: Any) -> PublishedSet:
    """A set as FlashRAG publishes it: a folder with a JSON-lines file for each split. `fields` are
    those of `PublishedSet`; they replace what is usual for these sets.
    """
    usual: dict[str, Any] = {
        "repository": FLASHRAG,
        "splits": {split: f"{name}/{split}.jsonl" for split in splits},
        "is_file": True,
        "columns": _FLASHRAG_COLUMNS,
        "reader": shapes.flashrag,
        "corpus": WIKI18,
        "papers": _THREE_PAPERS,
    }
    return PublishedSet(name, **(usual | fields))


_PUBLISHED = (
    _flashrag(
        "hotpotqa",
        ("train", "dev"),
        evaluated="dev",
        rows=7405,
        licence="CC BY-SA 4.0",
        papers=f"{_THREE_PAPERS}. VERITAS and PoU train on it",
        other_names=("hotpot", "hotpot_qa"),
        has_passages=True,
    ),
    _flashrag(
        "2wikimultihopqa",
        ("train", "dev"),
        evaluated="dev",
        rows=12576,
        licence="Apache-2.0",
        papers=f"{_THREE_PAPERS}. PoU trains on it",
        other_names=("2wiki",),
        has_passages=True,
        unverified="whether metadata has its evidence triples; VERITAS's table 8 has 1,986 and "
        "1,996 rows",
    ),
    PublishedSet(
        "musique",
        repository="dgslibisey/MuSiQue",
        splits={"train": "train", "dev": "validation"},
        evaluated="dev",
        rows=2417,
        licence="CC BY 4.0",
        columns="id, question, answer, answer_aliases, paragraphs, question_decomposition",
        reader=shapes.musique,
        has_passages=True,
        corpus=f"{WIKI18}; or its own paragraphs (--contexts)",
        papers=f"{_THREE_PAPERS}. Self-evaluation: trains on 4,000, evaluates on 1,000",
    ),
    _flashrag(
        "nq",
        ("train", "dev", "test"),
        evaluated="test",
        rows=3610,
        licence="CC BY-SA 3.0",
        papers=f"{_THREE_PAPERS}. VERITAS trains on it",
        other_names=("natural_questions",),
        unverified="the licence; VERITAS's table 8 says Apache 2.0",
    ),
    _flashrag(
        "triviaqa",
        ("train", "dev", "test"),
        evaluated="test",
        rows=11313,
        licence="Apache-2.0",
        other_names=("tq", "trivia_qa"),
    ),
    _flashrag("popqa", ("test",), evaluated="test", rows=14267, licence="MIT"),
    _flashrag(
        "bamboogle",
        ("test",),
        evaluated="test",
        rows=125,
        licence="MIT",
        papers="PoU, VERITAS, Pokee: all 125",
        unverified="the licence",
    ),
    PublishedSet(
        "bioasq",
        repository="rag-datasets/rag-mini-bioasq",
        configuration="question-answer-passages",
        splits={"test": "test"},
        evaluated="test",
        rows=0,
        licence="CC BY 2.5",
        columns="id, question, answer, relevant_passage_ids",
        reader=shapes.bioasq,
        has_passages=True,
        passages="text-corpus",
        corpus="its configuration text-corpus (--contexts)",
        papers="PoU, table 3: how many and which is not printed",
        unverified="the licence; that PoU's questions are among these. All of BioASQ needs an "
        "account at bioasq.org",
    ),
    PublishedSet(
        "pqarefeval",
        repository="BojanaBas/PQAref",
        splits={"train": "train", "dev": "val", "test": "test"},
        evaluated="test",
        rows=908,
        licence="AGPL-3.0",
        columns="input: a text of question, abstracts and referenced answer",
        reader=shapes.pqaref,
        corpus="PubMed abstracts",
        papers="PoU, table 3: how many is not printed",
        unverified="the headings within input; that PQArefEval is this test split",
    ),
    PublishedSet(
        "morehopqa",
        repository="alabnii/morehopqa",
        splits={
            "test": "data/with_human_verification.json",
            "unverified": "data/without_human_verification.json",
        },
        evaluated="test",
        rows=1118,
        licence="CC BY 4.0",
        columns="_id, question, answer, context, previous_question, no_of_hops",
        reader=shapes.morehopqa,
        has_passages=True,
        is_file=True,
        corpus="its own contexts (--contexts)",
        papers="self-evaluation: 1,000, how they were drawn is not printed",
        unverified="the name of the file without human verification",
    ),
    PublishedSet(
        "pira",
        repository="paulopirozelli/pira",
        configuration="default",
        splits={
            "train": "train",
            "dev": "validation",
            "test": "test",
            "all": "train+validation+test",
        },
        evaluated="all",
        rows=2258,
        licence="CC BY 4.0",
        has_passages=True,
        columns="id_qa, question_en_origin, answer_en_origin, answer_en_validate, abstract",
        corpus="its own abstracts (--contexts)",
        papers="self-evaluation: 1,000, of which split is not printed",
    ),
    PublishedSet(
        "gaia",
        repository="gaia-benchmark/GAIA",
        configuration="2023_all",
        splits={"validation": "validation"},
        evaluated="validation",
        rows=165,
        licence="none stated: not to be shared where crawlers find it",
        columns="task_id, Question, Level, Final answer, file_name",
        reader=shapes.gaia,
        corpus=WEB,
        papers="Pokee: 103 with text alone. Without those that come with a file there are more "
        "here; which 103 is not printed",
        access="accept its terms at https://huggingface.co/datasets/gaia-benchmark/GAIA, then "
        "`hf auth login` or HF_TOKEN",
    ),
    PublishedSet(
        "hle",
        repository="cais/hle",
        splits={"test": "test"},
        evaluated="test",
        rows=2500,
        licence="MIT, with the request not to publish it in plain text",
        columns="id, question, image, answer, answer_type, category",
        reader=shapes.hle,
        corpus=WEB,
        papers="Pokee: 125 with text alone, drawn at random",
        access="accept its terms at https://huggingface.co/datasets/cais/hle, then "
        "`hf auth login` or HF_TOKEN",
        unverified="the licence",
    ),
    PublishedSet(
        "browsecomp",
        repository="csv",
        splits={"test": "train"},  # `datasets` calls the rows of a CSV file so
        files={
            "test": "https://openaipublic.blob.core.windows.net/simple-evals/"
            "browse_comp_test_set.csv"
        },
        evaluated="test",
        rows=1266,
        licence="MIT, with the request not to publish it in plain text",
        columns="problem, answer, problem_topic, canary; encrypted",
        reader=shapes.browsecomp,
        corpus=WEB,
        papers="Pokee: 125, drawn at random. simple-evals draws with seed 0 what --seed 0 does here",
        unverified="the licence of the questions and their number",
    ),
    PublishedSet(
        "mirorl_genqa",
        repository="miromind-ai/MiroRL-GenQA",
        splits={"train": "train", "test": "test"},
        evaluated="train",
        rows=0,
        licence="CC BY-NC 4.0",
        columns="a question and an answer; see unverified",
        corpus=WEB,
        papers="Pokee: trains on it (about 13,100 rows)",
        unverified="its columns: any that faithful-search knows are read, and rows without are "
        "reported",
    ),
)

PUBLISHED: Mapping[str, PublishedSet] = {entry.name: entry for entry in _PUBLISHED}
"""The sets by their names."""


def published(name: str) -> PublishedSet:
    """The set of this name. Raises `DataError` for an unknown one."""
    if name not in PUBLISHED:
        raise DataError(f"unknown data set {name!r}; there are: {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def same_set(source: str, name: str) -> bool:
    """Whether `source`, as other projects write it into the column `data_source`, is the set that
    is called `name` here. Upper and lower case are the same.

    Example:
        >>> same_set("tq", "triviaqa"), same_set("Bamboogle", "bamboogle"), same_set("tq", "nq")
        (True, True, False)
    """
    source = source.lower()
    name = name.lower()
    if source == name:
        return True
    entry = PUBLISHED.get(name)
    return entry is not None and source in entry.other_names
