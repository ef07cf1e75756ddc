"""A page for one metric: paste a trajectory, see its score and the reason for it."""

from functools import partial
from typing import TYPE_CHECKING, Any

from ..bundled import bundled_json
from ..errors import FaithfulSearchError

if TYPE_CHECKING:
    import gradio

    from .metric import TrajectoryMetric

EXAMPLE, QUESTION, REFERENCE = bundled_json("example_trajectory.json")


def explain(
    metric: "TrajectoryMetric", text: str, question: str = "", reference: str = "", **settings: Any
) -> tuple[str, list[list[str]]]:
    """What is said about one trajectory, and a row for each result: its name, its value, the
    reason.

    `reference` has gold answers, one a line; `settings` are those of `compute`.
    """
    golds = [line.strip() for line in reference.splitlines() if line.strip()]
    columns: dict[str, Any] = {"predictions": [text], "references": [golds or None]}
    try:
        result = metric.compute(
            **columns, questions=[question.strip() or None], details=True, **settings
        )
    except FaithfulSearchError as error:
        return str(error), []  # the page shows what is wrong in place of the summary
    details = result["details"][0]
    rows = []
    for name, score in details["scores"].items():
        value = "does not apply"
        if score["value"] is not None:
            value = f"{score['value']:.3f}"
        rows.append([name, value, score["why"]])
    issues = ", ".join(f"{kind} ({count})" for kind, count in details["issues"].items()) or "none"
    judge = result["judge"] or "none needed"
    return (
        f"dialect: {details['dialect']}; answer: {details['answer']}; issues: {issues}; judge: "
        f"{judge}",
        rows,
    )


def build(metric: "TrajectoryMetric", **settings: Any) -> "gradio.Blocks":
    """The page, ready to `launch`. What is shown of a trajectory is plain text: nothing in it is
    rendered.
    """
    import gradio

    inputs = [
        gradio.Textbox(EXAMPLE, label="Trajectory", lines=12, max_lines=30),
        gradio.Textbox(QUESTION, label="Question"),
        gradio.Textbox(
            REFERENCE, label="Gold answers, one a line", visible=metric.needs_references
        ),
    ]
    table = gradio.Dataframe(
        headers=["result", "value", "why"], datatype="str", label="Results", wrap=True
    )
    outputs = [gradio.Textbox(label="Read as"), table]
    scored = partial(explain, metric, **settings)
    texts = {"title": metric.name, "description": metric.description}
    return gradio.Interface(
        scored, inputs, outputs, **texts, api_name="score", flagging_mode="never"
    )
