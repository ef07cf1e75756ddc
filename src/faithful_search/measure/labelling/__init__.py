"""Collect a judge's verdicts over trajectories into a dataset of labelled pairs.

`cutting` cuts the pairs, `pair_file` keeps the labels, `provenance` says where they come from, `card` tells people, and
`run` does it all.
"""

from .cutting import METRICS
from .pair_file import PAIRS, LabelledPair
from .provenance import PROVENANCE, Provenance
from .run import label

__all__ = ["METRICS", "PAIRS", "PROVENANCE", "LabelledPair", "Provenance", "label"]
