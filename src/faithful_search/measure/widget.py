"""A page for one metric: paste a trajectory, see its score and the reason for it."""

from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import FaithfulSearchError

if TYPE_CHECKING:
    import gradio

    from .metric import TrajectoryMetric

QUESTION = "In which river does the bridge of Orlen stand?"
EXAMPLE = """<think>I need the river at the bridge of Orlen.</think>
<tool_call>{"name": "local_search", "arguments": {"query": "bridge of Orlen river"}}</tool_call>
<tool_response>
Bridge of Orlen [E1]: The bridge of Orlen stands in the river Teska since 1904.
</tool_response>
<think><helpful>yes</helpful><ref>E1</ref>The bridge of Orlen stands in the Teska.</think>
<answer>Teska</answer>"""
REFERENCE = "Teska"


def explain(
    metric: "TrajectoryMetric", text: str, question: str = "", reference: str = "", **settings: Any
) -> tuple[str, list[list[str]]]:
    """What is said about one trajectory, and a row for each result: its name, its value, the reason.

    `reference` has gold answers, one a line; `settings` are those of `compute`.
    """
    golds = [line.strip() for line in reference.splitlines() if line.strip()]
    try:
        columns: dict[str, Any] = {
            "predictions": [text],
            "references": [golds or None],
            "questions": [question.strip() or None],
        }
        result = metric.compute(**columns, details=True, **settings)
    except FaithfulSearchError as error:
        return str(error), []  # the page shows what is wrong in place of the summary
    found = result["details"][0]
    rows = [
        [name, "does not apply" if score["value"] is None else f"{score['value']:.3f}", score["why"]]
        for name, score in found["scores"].items()
    ]
    issues = ", ".join(f"{kind} ({count})" for kind, count in found["issues"].items()) or "none"
    judge = result["judge"] or "none needed"
    return f"dialect: {found['dialect']}; answer: {found['answer']}; issues: {issues}; judge: {judge}", rows


def build(metric: "TrajectoryMetric", **settings: Any) -> "gradio.Blocks":
    """The page, ready to `launch`. What is shown of a trajectory is plain text: nothing in it is rendered."""
    import gradio

    with gradio.Blocks(title=metric.name) as page:
        gradio.Markdown(f"# {metric.name}\n\n{metric.description}")
        text = gradio.Textbox(EXAMPLE, label="Trajectory", lines=12, max_lines=30)
        question = gradio.Textbox(QUESTION, label="Question")
        reference = gradio.Textbox(REFERENCE, label="Gold answers, one a line", visible=metric.needs_references)
        button = gradio.Button("Score", variant="primary")
        summary = gradio.Textbox(label="Read as")
        table = gradio.Dataframe(headers=["result", "value", "why"], datatype="str", label="Results", wrap=True)
        button.click(
            partial(explain, metric, **settings), [text, question, reference], [summary, table], api_name="score"
        )
    return page
