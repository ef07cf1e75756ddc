"""Measure a file of trajectories, however they were written down.

`files` reads rows, `sources` makes trajectories of them, `scoring` scores these, `score_log` keeps the scores,
`summary` sums them up, and `run` does it all.
"""

from .run import SCORES, SPOOLED, SUMMARY, audit, pick
from .sources import read_trajectories
from .summary import Audit, choose_rows, summarize

__all__ = ["SCORES", "SPOOLED", "SUMMARY", "Audit", "audit", "choose_rows", "pick", "read_trajectories", "summarize"]
