"""`README.md` of a folder of labels: a dataset card that says what a label means and where it comes from."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

from ...errors import DataError
from ...text import as_markdown, printable
from ...wire.redact import redact
from ..provenance import PAIRS, PROVENANCE, Provenance
from ..writing import replacing

SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}


def write(folder: Path, found: Provenance) -> Path:
    """Write the card; each run replaces it. Raises `DataError` when it cannot be written."""
    from huggingface_hub import DatasetCard, DatasetCardData
    from jinja2 import Environment, StrictUndefined

    title = folder.resolve().name
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"code": _code, "text": as_markdown}
    body = environment.from_string((files(__package__) / "label_card.md.j2").read_text("utf-8")).render(
        found=found,
        title=as_markdown(title),
        task="support" if found.metric == "answer_support" else found.metric,
        provenance=PROVENANCE,
        load=repr(title),
        pairs_file=printable(shlex.quote(f"{' '.join(title.split())}/{PAIRS}")),
    )
    data = DatasetCardData(
        license=found.license or None,
        task_categories=["text-classification"],
        task_ids=["natural-language-inference"],
        annotations_creators=["machine-generated"],
        size_categories=[next((name for most, name in SIZES.items() if found.pairs < most), "n>1M")],
        tags=["faithful-search", "faithfulness", "search-agent", found.metric],
        configs=[{"config_name": "default", "data_files": [{"split": "train", "path": PAIRS}]}],
    )
    card, path = DatasetCard(redact(f"---\n{data.to_yaml()}\n---\n\n{body}")), folder / "README.md"
    try:
        with replacing(path) as file:
            file.write(str(card).encode())
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error
    return path


def _code(name: str) -> str:
    """A name as code, which nothing in it can end; `provenance.json` has it as it is."""
    return f"`{printable(' '.join(name.split())).replace('`', chr(39)).replace('|', '¦')}`"
