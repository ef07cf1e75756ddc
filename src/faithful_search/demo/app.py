"""The page: three tabs over one view of a trajectory.

Whatever a visitor typed, asked or uploaded lives in that visitor's session and is gone with it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, get_args
from urllib.parse import urlencode

from .. import dialects
from ..errors import ConfigError, DataError, FaithfulSearchError, needs
from ..measure.metrics import asks
from ..measure.report import interval
from ..measure.widget import EXAMPLE
from ..trajectory import Evidence, Trajectory, read_jsonl
from . import agents, auditing, view
from .agents import POLICIES, Served, agent

with needs("the demo", "demo"):
    import gradio

TITLE = "Faithfulness explorer"
ABOUT = f"""# {TITLE}
Does a search agent answer from what it found, or from memory? Ask one, audit your own agent's trajectories, or change
the evidence and watch. The agents here are tiny and know one small world; the measures work for agents of any size."""
NO_TORCH = "**No agent can run here**: PyTorch is missing (`pip install 'faithful-search[demo]'`). Audit works."
DETECT = "detect it"
UPLOADS = [".jsonl", ".json", ".txt"]
KINDS: tuple[agents.Kind, ...] = get_args(agents.Kind)
LONGEST = 300  # characters of a question
READS = next(iter(POLICIES))
ROWS = "A trajectory, a chat as JSON, rows as JSON lines, or hf://datasets/ORG/NAME/FILE.jsonl"
KEY = "Your key for the served model, where it needs one: it is sent there and kept nowhere else"
INSTEAD = "What both agents read in its place; nothing: it is missing"


@lru_cache
def examples() -> dict[str, Trajectory]:
    """Recorded trajectories by question: the page shows them before anything is computed."""
    return {
        one.question or "": one
        for one in read_jsonl(Path(str(files(__package__) / "examples.jsonl")))
    }


def link(question: str, policy: str) -> str:
    """The query of the address at which this page asks that question."""
    return "?" + urlencode({"question": question, "agent": policy})


def linked(request: gradio.Request) -> tuple[str, str, str]:
    """The question and the agent in the page's address, and the question again where it is not shown yet."""
    first = next(iter(examples()))
    question, policy = (
        request.query_params.get("question", first)[:LONGEST],
        request.query_params.get("agent"),
    )
    policy = policy if policy in POLICIES else READS
    return question, policy, "" if (question, policy) == (first, READS) else question


def ask(
    question: str, policy: str, key: str = "", served: Served | None = None
) -> Iterator[tuple[str, Trajectory]]:
    """The agent's trajectory as it grows: its view, and itself. Only a served model is given the key."""
    with _shown():
        here = served is None or policy in POLICIES
        grown = (
            agent(POLICIES[policy]).ask(question)
            if served is None or here
            else served.ask(question, key)
        )
        for found in grown:
            shown = view.trajectory_view if found.stop_reason is None else view.answered_view
            yield shown(found, "ask", link(question, policy) if here else ""), found


def show_audit(text: str, upload: str | None = None, dialect: str = DETECT) -> tuple[Any, ...]:
    """Audit a pasted text or an uploaded file: summary, downloads, result, the worst row, and no row beside it."""
    with _shown():
        if upload:
            if Path(upload).suffix not in UPLOADS:
                raise DataError(
                    f"this page reads {', '.join(UPLOADS)}; `faithful-search audit` reads more"
                )
            text = Path(upload).read_text(encoding="utf-8", errors="replace")
        found = auditing.audited(text, None if dialect == DETECT else dialect)
        worst = view.trajectory_view(found.rows[0].trajectory, "left")
        return (
            view.audit_view(found),
            gradio.Row(visible=True),
            found,
            worst,
            gradio.HTML(visible=False),
        )


def audit(trajectories: str, dialect: str = "") -> dict[str, Any]:
    """Audit what search agents wrote: do thoughts follow the evidence, do citations hold, is the answer supported?

    Args:
        trajectories: a trajectory as text, a chat as JSON, rows as JSON lines, or hf://datasets/ORG/NAME/FILE.jsonl
        dialect: how they are written, for example pou, search_r1 or openai; empty to detect it

    Returns:
        Findings in words, the mean of each metric with its 95 % interval, and the rows from the worst on.
    """
    with _shown():
        found = auditing.audited(trajectories, dialect or None)
    metrics = {
        name: {"mean": interval(row), "n": row.n, "asks": asks(name)}
        for name, row in found.table.items()
    }
    worst = [
        {"row": number, "value": value, "question": one.question, "answer": one.answer}
        for number, value, one in found.rows[:20]
    ]
    return {"findings": found.words, "metrics": metrics, "worst rows": worst}


def show_row(found: auditing.Audited, event: gradio.EventData) -> tuple[Any, Any]:
    """The view of a chosen row, in the left or the right place."""
    places = {"left": gradio.skip(), "right": gradio.skip()}
    for row in found.rows:  # it has no such row where the audit has been replaced since
        if row.number == event.row:
            places[event.side] = gradio.HTML(
                view.trajectory_view(row.trajectory, event.side), visible=True
            )
    return places["left"], places["right"]


def take(trajectory: Trajectory) -> tuple[Trajectory, Any, str, str]:
    """A trajectory to break: itself, the choice of its evidence, its view, and no outcome yet."""
    return trajectory, _choice(trajectory), view.trajectory_view(trajectory, "before"), ""


def _choice(trajectory: Trajectory) -> gradio.Dropdown:
    """The evidence that can be changed; chosen is the one cited last, since the answer rests on that."""
    found = trajectory.evidence
    cited = [ref for step in trajectory.steps for ref in step.refs if ref in found]
    names = [
        (f"{id}{' (cited)' if id in cited else ''} {item.title}: {item.text}"[:110], id)
        for id, item in found.items()
    ]
    return gradio.Dropdown(names, value=[*found, *cited][-1] if found else None, label="Evidence")


def replace(trajectory: Trajectory, id: str | None, kind: agents.Kind) -> str:
    """A proposal for what replaces a piece of evidence; the visitor may change it."""
    with _shown():
        return agents.replacement(_item(trajectory, id), kind)


def run_on(trajectory: Trajectory, id: str | None, text: str) -> Iterator[str]:
    """What both agents answer with the changed evidence, one after the other."""
    with _shown():
        outcomes: list[agents.Outcome] = []
        for outcome in agents.run_on(trajectory.question or "", _item(trajectory, id), text):
            outcomes.append(outcome)
            yield view.outcome_view(outcomes)


def build(served: Served | None = None) -> gradio.Blocks:
    """The page, ready for `launch`; a served model can be asked beside the bundled agents."""
    first = next(iter(examples().values()))
    # One visitor at a time asks an agent: they share its model
    waits: Any = {"concurrency_id": "agents", "concurrency_limit": 1, "api_visibility": "private"}
    private: Any = {"api_visibility": "private", "show_progress": "hidden"}
    with gradio.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 600)) as page:
        gradio.api(audit)
        gradio.Markdown(ABOUT if find_spec("torch") else f"{ABOUT}\n\n{NO_TORCH}")
        with gradio.Tabs() as tabs:
            with gradio.Tab("Ask", id="ask"):
                question = gradio.Textbox(
                    first.question, label="Question", max_length=LONGEST, submit_btn="Ask"
                )
                gradio.Examples(
                    [[one] for one in examples()], question, label="Questions about its world"
                )
                offered = [*POLICIES, *([served.model] if served else [])]
                policy = gradio.Radio(offered, value=READS, label="The agent that …")
                key = gradio.Textbox(type="password", label=KEY, visible=served is not None)
                seen = _html(view.answered_view(first, "ask", link(first.question or "", READS)))
                onward = gradio.Button("Change its evidence →")
            with gradio.Tab("Audit", id="audit"):
                most = auditing.MOST_CHARACTERS
                text = gradio.Textbox(EXAMPLE, label=ROWS, lines=6, max_lines=16, max_length=most)
                with gradio.Row():
                    upload = gradio.File(
                        label="or a file, at most 5 MB", file_types=UPLOADS, height=120
                    )
                    dialect = gradio.Dropdown(
                        [DETECT, *dialects.names()], value=DETECT, label="How it is written"
                    )
                start = gradio.Button("Audit", variant="primary")
                found, fetched = gradio.State(), gradio.Textbox(visible="hidden")
                with gradio.Row(visible=False) as downloads:
                    makers = {
                        "report.html": auditing.Audited.report,
                        "scores.jsonl": lambda one: one.scores,
                    }
                    for file, make in makers.items():
                        made = gradio.Button(f"Download {file}", size="sm").click(
                            make, found, fetched, **private
                        )
                        made.then(
                            None, fetched, None, js=f"(text) => explorer.download(text, '{file}')"
                        )
                summary = _html(js_on_load="explorer.chooses(element, trigger)")
                with gradio.Row():
                    left, right = _html(min_width=300), _html(visible=False, min_width=300)
            with gradio.Tab("Break it", id="break"):
                example = gradio.Dropdown(
                    list(examples()), label="Trajectory", value=first.question
                )
                item = _choice(first)
                kind = gradio.Radio(KINDS, value=KINDS[0], label="What happens to it")
                proposal = replace(first, item.value, KINDS[0])
                text_now = gradio.Textbox(proposal, label=INSTEAD, lines=2, max_length=1000)
                go = gradio.Button("Let both agents answer again", variant="primary")
                outcome, broken_seen = _html(), _html(view.trajectory_view(first, "before"))
        asked, broken, wanted = (
            gradio.State(first),
            gradio.State(first),
            gradio.Textbox(visible="hidden"),
        )
        page.load(linked, None, [question, policy, wanted], queue=False, **private)
        asking, given = partial(ask, served=served), [question, policy, key]
        gradio.on(
            [question.submit, wanted.change], asking, given, [seen, asked], api_name="ask", **waits
        )
        audited = [summary, downloads, found, left, right]
        start.click(show_audit, [text, upload, dialect], audited, api_visibility="private")
        summary.select(show_row, found, [left, right], **private)
        taken = [broken, item, broken_seen, outcome]
        took = onward.click(take, asked, taken, **private)
        took.then(lambda: (gradio.Tabs(selected="break"), None), None, [tabs, example], **private)
        example.input(lambda name: take(examples()[name]), example, taken, **private)
        gradio.on([item.change, kind.change], replace, [broken, item, kind], text_now, **private)
        go.click(run_on, [broken, item, text_now], outcome, **waits)
    return page.queue(max_size=40, default_concurrency_limit=2)


def launch(
    host: str | None = None, port: int | None = None, served: Served | None = None, **settings: Any
) -> gradio.Blocks:
    """Serve the page until interrupted; `settings` are those of Gradio's `launch`, whose variables say where."""

    def open_agents() -> None:
        with suppress(ConfigError):  # without PyTorch the page says so
            for name in POLICIES.values():
                agent(name)

    page = build(served)
    Thread(
        target=open_agents, daemon=True
    ).start()  # so that the first visitor need not wait for them
    page.launch(
        server_name=host,
        server_port=port,
        head=view.head(),
        theme=gradio.themes.Default(primary_hue="blue", font=["system-ui", "sans-serif"]),
        max_file_size="5mb",  # as `auditing.MOST_CHARACTERS`
        state_session_capacity=200,
        run_history=False,  # would keep what visitors typed
        footer_links=["gradio", "settings"],
        ssr_mode=False,
        share=False,
        **settings,
    )
    return page


def _html(value: str = "", **settings: Any) -> gradio.HTML:
    """HTML that `view` made, in which everything from outside is escaped; without Gradio's styles for prose."""
    return gradio.HTML(value, apply_default_css=False, **settings)


def _item(trajectory: Trajectory, id: str | None) -> Evidence:
    if id not in trajectory.evidence:
        raise DataError("this trajectory has no evidence to change: take another one")
    return trajectory.evidence[id]


@contextmanager
def _shown() -> Iterator[None]:
    """Errors are shown in the page, as text."""
    try:
        yield
    except FaithfulSearchError as error:
        raise gradio.Error(
            escape(str(error)), title="That did not work", print_exception=False
        ) from error
