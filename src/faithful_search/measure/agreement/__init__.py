"""Can the judge be trusted? Judges against people's labels, and against each other.

`labelled` reads labelled pairs and splits them, `judges` names the judges, `run` asks them, `audits` compares what two
audits recorded, `statistics` compares verdicts, `table` shows it.
"""

from .audits import from_scores, is_scores
from .judges import parse_judge, parse_judges
from .labelled import Labelled, load, sample
from .run import run
from .table import Agreement

__all__ = [
    "Agreement",
    "Labelled",
    "from_scores",
    "is_scores",
    "load",
    "parse_judge",
    "parse_judges",
    "run",
    "sample",
]
