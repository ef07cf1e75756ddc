"""A page that scores one trajectory by `answer_support` and says why."""

from pathlib import Path

import evaluate

from faithful_search.measure import widget

metric = evaluate.load(str(Path(__file__).with_name("answer_support.py")))
page = widget.build(metric)

if __name__ == "__main__":
    page.launch()
