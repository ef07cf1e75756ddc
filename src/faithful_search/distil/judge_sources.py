"""Where labelled pairs come from and under which terms: what a distilled judge's card says of its training data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..measure.labelling import provenance

KNOWN = {
    "world": "made from the bundled world, labels by construction; Apache-2.0",
    "halueval": "HaluEval-QA; MIT",
    "begin": "BEGIN (google/BEGIN-dataset), labelled by people; CC BY 4.0",
    "anli": "ANLI (facebookresearch/anli), labelled by people; CC BY-NC 4.0, not for commercial use",
    "attributionbench": "AttributionBench (OSU-NLP-Group), labelled by people; states no licence",
}
"""By the source that `labelled.load` gives a row."""


def described(sources: Iterable[str], places: Sequence[str] = ()) -> dict[str, str]:
    """What is known of each source of pairs, and of each folder of labels with a `provenance.json`.

    Example:
        >>> described(["halueval", "mine"])
        {'halueval': 'HaluEval-QA; MIT', 'mine': 'terms not known'}
    """
    read = ((place, provenance.read(Path(place))) for place in places)
    labelled = {
        place: f"{made.pairs} pairs labelled by {made.judge}; licence: {made.license or 'not stated'}"
        for place, made in read
        if made is not None
    }
    return {source: KNOWN.get(source, "terms not known") for source in sources} | labelled
