"""Model cards: what they share, and the card of a distilled judge."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..measure import provenance
from ..measure.writing import card_of, write_whole
from ..text import printable
from ..wire.redact import redact
from .models import is_hub_id

_TERMS = {
    "world": "made from the bundled world, labels by construction; Apache-2.0",
    "halueval": "HaluEval-QA; MIT",
    "begin": "BEGIN (google/BEGIN-dataset), labelled by people; CC BY 4.0",
    "anli": "ANLI (facebookresearch/anli), labelled by people; CC BY-NC 4.0, not for commercial use",
    "attributionbench": "AttributionBench (OSU-NLP-Group), labelled by people; states no licence",
}
"""Terms of labelled pairs, by the source that `labelled.load` gives a row."""


def command_line(recipe: str, argv: Sequence[str]) -> str:
    """How a recipe was called, to be pasted into a shell, without the secrets among its flags.

    Example:
        >>> command_line("recipes/pou.py", ["--seed", "1", "--hub_token", "x"])
        'accelerate launch recipes/pou.py --seed 1 --hub_token [secret]'
    """
    words = redact(["accelerate", "launch", recipe, *argv])  # before quoting, which would hide one with a quote in it
    return str(redact(shlex.join(words)))


def judge_card(
    folder: Path,
    *,
    file: Any,
    base_model: str,
    agreement: Any,
    argv: Sequence[str],
    config: Mapping[str, Any],
    pairs: Sequence[str] = (),
    license: str | None = None,
) -> Path:
    """Write `README.md`, a distilled judge's model card: what it was taught, and how far it agrees with labels.

    Args:
        file: the judge's `judges.distilled.JudgeFile`.
        base_model: what training started from; a Hub id also goes into the front matter.
        agreement: the held-out measurement (`measure.agreement.Agreement`); `None` where there is none.
        argv: the flags of `recipes/reward_model.py`.
        pairs: the files and folders of pairs that it was trained on, see `terms_of`.
        license: of the weights; left out where it is not known.
    """
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        base_model=base_model if is_hub_id(base_model) else None,
        library_name="peft" if (folder / "adapter_config.json").exists() else "transformers",
        pipeline_tag="text-classification" if file.kind == "nli" else "text-generation",
        license=license,
        tags=["faithful-search", "faithfulness", "judge"],
    )
    card = card_of(
        __package__,
        "judge_card.md.j2",
        data,
        title=folder.absolute().name,
        name=str(folder),
        file=file,
        base=base_model,
        sources=terms_of(file.trained_on, pairs),
        command=command_line("recipes/reward_model.py", argv),
        config=config,
        # shown between fences, which nothing in a table may close
        agreement="Not measured." if agreement is None else printable(agreement.table()).replace("```", "'''"),
        license=license,
    )
    return write_whole(folder / "README.md", card)


def terms_of(sources: Iterable[str], places: Sequence[str] = ()) -> dict[str, str]:
    """Provenance and terms of each source of labelled pairs, and of each folder of labels with a `provenance.json`.

    Example:
        >>> terms_of(["halueval", "mine"])
        {'halueval': 'HaluEval-QA; MIT', 'mine': 'terms not known'}
    """
    terms = {source: _TERMS.get(source, "terms not known") for source in sources}
    for place in places:
        if (made := provenance.read(Path(place))) is not None:
            licence = made.license or "not stated"
            terms[place] = f"{made.pairs} pairs labelled by {made.judge}; licence: {licence}"
    return terms
