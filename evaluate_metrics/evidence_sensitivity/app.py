"""A page that scores one trajectory by `evidence_sensitivity` and says why.

It asks the small policy that comes with faithful-search.
"""

from pathlib import Path

import evaluate

from faithful_search.bundled import tiny_policy
from faithful_search.measure import widget
from faithful_search.measure.probes import UNSEEN_SNIPPETS

metric = evaluate.load(str(Path(__file__).with_name("evidence_sensitivity.py")))
page = widget.build(metric, policy=tiny_policy(), snippets=UNSEEN_SNIPPETS)

if __name__ == "__main__":
    page.launch()
