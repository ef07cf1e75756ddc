"""Can the judge be trusted? Judges against people's labels, and against each other.

`labelled` reads labelled pairs and splits them, `comparison` asks the judges, `statistics` compares, `table` shows it.
"""

from .comparison import from_scores, is_scores, parse_judge, run
from .labelled import Labelled, load, sample
from .statistics import agreement_rate, auroc, brier, calibration_error, cohen_kappa, fleiss_kappa, reliability
from .table import Agreement

__all__ = [
    "Agreement",
    "Labelled",
    "agreement_rate",
    "auroc",
    "brier",
    "calibration_error",
    "cohen_kappa",
    "fleiss_kappa",
    "from_scores",
    "is_scores",
    "load",
    "parse_judge",
    "reliability",
    "run",
    "sample",
]
