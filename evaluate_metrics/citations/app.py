"""A page that scores one trajectory by `citations` and says why."""

from pathlib import Path

import evaluate

from faithful_search.measure import widget

metric = evaluate.load(str(Path(__file__).with_name("citations.py")))
page = widget.build(metric)

if __name__ == "__main__":
    page.launch()
