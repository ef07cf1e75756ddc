"""A page that scores one trajectory by `protocol_format` and says why."""

from pathlib import Path

import evaluate

from faithful_search.measure import widget

metric = evaluate.load(str(Path(__file__).with_name("protocol_format.py")))
page = widget.build(metric)

if __name__ == "__main__":
    page.launch()
