"""`README.md` of a folder of labels: a dataset card that says what a label means and where it comes from."""

from __future__ import annotations

import shlex
from pathlib import Path

from ...errors import DataError
from ...text import as_markdown, printable
from ...wire.redact import redact
from .pair_file import PAIRS
from .provenance import PROVENANCE, File, Provenance

MEANINGS = {
    "info_think": (
        "what the calls of a turn returned",
        "the agent's thought right after it",
        "the thought takes what was returned into account",
    ),
    "think_search": ("a thought", "the words of the call right after it", "the call follows from the thought"),
    "think_answer": ("the last thought", "the answer", "the answer follows from the thought"),
    "answer_support": (
        "the evidence that the answer cites (all that was retrieved, where the dialect has no citations)",
        "a claim of the answer",
        "the evidence supports the claim",
    ),
}
"""Of each metric: premise, hypothesis, and when the label is true."""
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
LARGER = "n>1M"

_BODY = """# {title}

{pairs:,} pairs of texts cut from trajectories of search agents, each labelled by {judge} for the metric `{metric}`:
{positives:,} true ({share:.1%}). Made with faithful-search {version}, {date}.

## What a label means

| column | what it holds |
|---|---|
| `premise` | {premise} |
| `hypothesis` | {hypothesis} |
| `question` | what the agent was asked; empty where the trajectory does not say |
| `task` | what the judge was asked: `{task}` |
| `label` | true when, as the judge says, {meaning} |
| `p` | the probability that the judge gave; 1 or 0, or nothing, where it gives none |
| `judge` | what labelled the row, with the version of its prompt |
| `source`, `trajectory`, `step` | the file, FILE:ROW, and the step in it where the pair was first met |
| `id` | a digest of question, premise, hypothesis and task: equal pairs are one row |

The labels are a judge's opinion, not people's. Before you train on them, see how far they agree with labels of people
and with a second run of the judge.

## Who labelled

{judges}

{prompts}

## Where the pairs come from

{files}

{left_out}

`{provenance}` has the files' SHA-256, what was skipped and why, and the settings.

## How to use

```python
from datasets import load_dataset

pairs = load_dataset({load!r}, split="train")
```

```bash
faithful-search agreement {pairs_file} --judge labels:SECOND_RUN   # how consistent is the judge?
```

## Licence and terms

{license} The texts are those of the trajectories: the licence of each file above, and of the documents that the agents
retrieved, applies to them. The terms of the judge's model or service apply to its labels; some forbid training other
models on them. Retrieved documents may hold personal data.
"""


def write(folder: Path, found: Provenance) -> Path:
    """Write the card; it is made anew by each run. Raises `DataError` when it cannot be written."""
    from huggingface_hub import DatasetCard

    path = folder / "README.md"
    partial = folder / ".README.md.partial"
    try:
        DatasetCard(redact(text(found, folder.resolve().name))).save(partial)
        partial.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def text(found: Provenance, title: str) -> str:
    """The card's text, front matter included."""
    premise, hypothesis, meaning = MEANINGS[found.metric]
    body = _BODY.format(
        title=as_markdown(title),
        pairs=found.pairs,
        judge=_code(found.judge),
        metric=found.metric,
        positives=found.positives,
        share=found.positives / max(found.pairs, 1),
        version=found.version,
        date=found.date[:10],
        premise=premise,
        hypothesis=hypothesis,
        meaning=meaning,
        task="support" if found.metric == "answer_support" else found.metric,
        judges=_table(("judge", "rows"), [(_code(name), f"{rows:,}") for name, rows in found.judges.items()]),
        prompts=_prompts(found),
        files=_table(("file", "trajectories", "dialects", "pairs", "skipped rows"), list(map(_file, found.files))),
        left_out=_left_out(found),
        provenance=PROVENANCE,
        load=title,
        pairs_file=printable(shlex.quote(f"{' '.join(title.split())}/{PAIRS}")),
        license=f"The labels are under {_code(found.license)}."
        if found.license
        else "No licence was chosen for the labels.",
    )
    return f"---\n{_front_matter(found)}\n---\n\n{body}"


def _front_matter(found: Provenance) -> str:
    from huggingface_hub import DatasetCardData

    data = DatasetCardData(
        license=found.license or None,
        task_categories=["text-classification"],
        task_ids=["natural-language-inference"],
        annotations_creators=["machine-generated"],
        size_categories=[next((name for most, name in SIZES if found.pairs < most), LARGER)],
        tags=["faithful-search", "faithfulness", "search-agent", found.metric],
        configs=[{"config_name": "default", "data_files": [{"split": "train", "path": PAIRS}]}],
    )
    return data.to_yaml()


def _prompts(found: Provenance) -> str:
    if not found.prompts:
        return "The judge reads no prompt of this package."
    named = ", ".join(f"{_code(name)} (SHA-256 `{digest[:12]}…`)" for name, digest in found.prompts.items())
    return f"Prompts: {named}."


def _file(file: File) -> tuple[str, ...]:
    dialects = ", ".join(f"{name} {count:,}" for name, count in file.dialects.items())
    read = file.rows - file.skipped
    return _code(file.name), f"{read:,}", as_markdown(dialects) or "-", f"{file.pairs:,}", f"{file.skipped:,}"


def _left_out(found: Provenance) -> str:
    cut, settled = sum(file.pairs for file in found.files), sum(file.settled for file in found.files)
    parts = [f"{cut:,} pairs were met; those met more than once are one row."]
    if settled:
        parts.append(f"{settled:,} need no judge (the agent acts on a response without a thought) and are left out.")
    if found.settings.get("sample"):
        parts.append(f"A sample of {found.settings['sample']:,} pairs, seed {found.settings['seed']}, was labelled.")
    if found.abstained:
        parts.append(f"The judge gave no label to {found.abstained:,} pairs, which are missing.")
    return " ".join(parts)


def _code(text: str) -> str:
    """A name as code, which nothing in it can end; `provenance.json` has it as it is."""
    return f"`{printable(' '.join(text.split())).replace('`', chr(39)).replace('|', '¦')}`"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
