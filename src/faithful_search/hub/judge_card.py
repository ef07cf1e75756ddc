"""A distilled judge's model card: what it was taught, and how far it agrees with held-out labels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..measure import provenance
from ..text import printable
from .card import as_json, is_hub_id, render, write_card

_UNKNOWN = "terms not known"
_TERMS = {
    "world": "made from the bundled world, labels by construction; Apache-2.0",
    "halueval": "HaluEval-QA; MIT",
    "begin": "BEGIN (google/BEGIN-dataset), labelled by people; CC BY 4.0",
    "anli": "ANLI (facebookresearch/anli), labelled by people; CC BY-NC 4.0, not for commercial use",
    "attributionbench": "AttributionBench (OSU-NLP-Group), labelled by people; states no licence",
}
"""Terms of labelled pairs, by the source that `labelled.load` gives a row."""


def judge_card(
    output_dir: str | os.PathLike[str],
    *,
    file: Any,
    base_model: str,
    agreement: Any,
    recipe: str,
    command: str,
    config: Mapping[str, Any],
    license: str | None = None,
    sources: Mapping[str, str] | None = None,
    repo_id: str | None = None,
) -> Path:
    """Write `README.md`, a distilled judge's model card, into `output_dir`, without the secrets of `wire.redact`.

    Args:
        file: the judge's `judges.distilled.JudgeFile`.
        base_model: what training started from; a Hub id also goes into the front matter.
        agreement: the held-out measurement (`measure.agreement.Agreement`); `None` where there is none.
        license: of the weights, front matter; left out where it is not known.
        sources: provenance and terms of each source of pairs.
        repo_id: what the snippet loads; default the folder.
    """
    from huggingface_hub import ModelCardData

    folder = Path(output_dir)
    name = repo_id or str(folder)
    data = ModelCardData(
        base_model=base_model if is_hub_id(base_model) else None,
        library_name="peft" if (folder / "adapter_config.json").exists() else "transformers",
        pipeline_tag="text-classification" if file.kind == "nli" else "text-generation",
        license=license,
        tags=["faithful-search", "faithfulness", "judge"],
    )
    body = render(
        "judge_card.md",
        title=name.rstrip("/").rsplit("/", 1)[-1],
        name=name,
        file=file,
        base=base_model,
        recipe=recipe,
        # every source is named, also one whose terms nobody gave
        sources={**dict.fromkeys(file.trained_on, _UNKNOWN), **(sources or {})},
        command=command,
        config=as_json(config),
        # shown between fences, which nothing in a table may close
        agreement="Not measured." if agreement is None else printable(agreement.table()).replace("```", "'''"),
        license=license,
    )
    return write_card(folder, data, body)


def terms_of(sources: Iterable[str], places: Sequence[str] = ()) -> dict[str, str]:
    """Provenance and terms of each source of labelled pairs, and of each folder of labels with a `provenance.json`.

    Example:
        >>> terms_of(["halueval", "mine"])
        {'halueval': 'HaluEval-QA; MIT', 'mine': 'terms not known'}
    """
    read = ((place, provenance.read(Path(place))) for place in places)
    labelled = {
        place: f"{made.pairs} pairs labelled by {made.judge}; licence: {made.license or 'not stated'}"
        for place, made in read
        if made is not None
    }
    return {source: _TERMS.get(source, _UNKNOWN) for source in sources} | labelled
