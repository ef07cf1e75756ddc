"""The page: three tabs over one view of a trajectory.

Whatever a visitor typed, asked or uploaded lives in that visitor's session and is gone with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, get_args

from .. import dialects
from ..errors import ConfigError, DataError, FaithfulSearchError
from ..measure.widget import EXAMPLE
from ..trajectory import Evidence, Trajectory, read_jsonl
from . import auditing, breaking, view
from .agents import POLICIES, agent

try:
    import gradio
except ImportError as error:
    raise ConfigError("the demo needs gradio: pip install 'faithful-search[demo]'") from error

TITLE = "Faithfulness explorer"
ABOUT = f"""# {TITLE}
Does a search agent answer from what it found, or from memory? Ask one, audit your own agent's trajectories, or change
the evidence and watch. The agents here are tiny and know one small world; the measures are those for agents of any
size."""
NO_TORCH = "**No agent can run here**: PyTorch is missing (`pip install 'faithful-search[demo]'`). Audit works."
DETECT = "detect it"
UPLOADS = (".jsonl", ".json", ".txt")
KINDS: tuple[breaking.Kind, ...] = get_args(breaking.Kind)


@lru_cache
def examples() -> dict[str, Trajectory]:
    """Trajectories that were asked for beforehand, by question: what is seen before anything is computed."""
    path = Path(str(files(__package__) / "examples.jsonl"))
    return {one.question or "": one for one in read_jsonl(path)}


def ask(question: str, policy: str) -> Iterator[tuple[str, Trajectory]]:
    """The view of the agent's trajectory as it grows, and the trajectory."""
    with _shown():
        for found in agent(POLICIES[policy]).ask(question):
            whole = found.stop_reason is not None
            yield (view.answered_view if whole else view.trajectory_view)(found), found


def audit(text: str, upload: str | None = None, dialect: str = DETECT) -> tuple[str, Any, auditing.Audited, str]:
    """The summary of a pasted text or an uploaded file, the choice of its rows, all of it, and the first row."""
    with _shown():
        if upload:
            if Path(upload).suffix not in UPLOADS:
                raise DataError(f"this page reads {', '.join(UPLOADS)}; `faithful-search audit` reads more")
            text = Path(upload).read_text(encoding="utf-8", errors="replace")
        found = auditing.audited(text, None if dialect == DETECT else dialect)
        rows = [(f"row {number}: {(one.question or one.answer or '')[:80]}", number) for number, one in found.rows]
        choice = gradio.Dropdown(rows, value=rows[0][1], visible=len(rows) > 1)
        return view.audit_view(found), choice, found, view.trajectory_view(found.rows[0][1])


def show_row(number: int, found: auditing.Audited) -> str:
    """The view of one audited row."""
    return view.trajectory_view(dict(found.rows)[number])


def take(trajectory: Trajectory) -> tuple[Any, str, str]:
    """A trajectory to break: the choice of its evidence, the view of it, and nothing of what came of an earlier one."""
    names, chosen = evidence_of(trajectory)
    return gradio.Dropdown(names, value=chosen), view.trajectory_view(trajectory), ""


def evidence_of(trajectory: Trajectory) -> tuple[list[tuple[str, str]], str | None]:
    """What can be changed, as names with ids, and the id of what was cited last: that the answer rests on."""
    cited = [ref for step in trajectory.steps for ref in step.refs if ref in trajectory.evidence]
    names = [
        (f"{id}{' (cited)' if id in cited else ''} {item.title}: {item.text}"[:110], id)
        for id, item in trajectory.evidence.items()
    ]
    return names, [*trajectory.evidence, *cited][-1] if names else None


def replace(trajectory: Trajectory, id: str | None, kind: breaking.Kind) -> str:
    """What is proposed in the place of a piece of evidence; the visitor may change it."""
    with _shown():
        return breaking.replacement(_item(trajectory, id), kind)


def run_on(trajectory: Trajectory, id: str | None, text: str) -> Iterator[str]:
    """What both agents make of it, one after the other."""
    with _shown():
        outcomes: list[breaking.Outcome] = []
        for outcome in breaking.run_on(trajectory.question or "", _item(trajectory, id), text):
            outcomes.append(outcome)
            yield view.outcome_view(outcomes)


def build() -> gradio.Blocks:
    """The page, ready for `launch`."""
    first = next(iter(examples().values()))
    with gradio.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 600)) as page:
        gradio.Markdown(ABOUT if find_spec("torch") else f"{ABOUT}\n\n{NO_TORCH}")
        asked = gradio.State(first)
        with gradio.Tabs() as tabs:
            with gradio.Tab("Ask", id="ask"):
                question = gradio.Textbox(first.question, label="Question", max_length=300, submit_btn=True)
                gradio.Examples([[one] for one in examples()], question, label="Questions about its world")
                policy = gradio.Radio(list(POLICIES), value=next(iter(POLICIES)), label="The agent that …")
                seen = _html(view.answered_view(first))
                onward = gradio.Button("Change its evidence →")
            with gradio.Tab("Audit", id="audit"):
                text = gradio.Textbox(
                    EXAMPLE,
                    label="A trajectory, a chat as JSON, or rows as JSON lines",
                    lines=6,
                    max_lines=16,
                    max_length=auditing.MOST_CHARACTERS,
                )
                with gradio.Row():
                    upload = gradio.File(label="or a file, at most 5 MB", file_types=list(UPLOADS), height=120)
                    dialect = gradio.Dropdown([DETECT, *dialects.names()], value=DETECT, label="How it is written")
                start = gradio.Button("Audit", variant="primary")
                summary, found = _html(), gradio.State()
                row = gradio.Dropdown(label="Row", visible=False)
                row_seen = _html()
            with gradio.Tab("Break it", id="break"):
                example = gradio.Dropdown(list(examples()), label="Trajectory", value=first.question)
                broken = gradio.State(first)
                names, chosen = evidence_of(first)
                item = gradio.Dropdown(names, value=chosen, label="Evidence")
                kind = gradio.Radio(KINDS, value=KINDS[0], label="What happens to it")
                text_now = gradio.Textbox(
                    replace(first, chosen, KINDS[0]),
                    label="What both agents read in its place; nothing: it is missing",
                    lines=2,
                    max_length=1000,
                )
                go = gradio.Button("Let both agents answer again", variant="primary")
                outcome, broken_seen = _html(), _html(view.trajectory_view(first))
        waits: Any = {"concurrency_id": "agents", "concurrency_limit": 1, "api_visibility": "private"}
        private: Any = {"api_visibility": "private", "show_progress": "hidden"}
        question.submit(ask, [question, policy], [seen, asked], **waits)
        start.click(audit, [text, upload, dialect], [summary, row, found, row_seen], api_visibility="private")
        row.input(show_row, [row, found], row_seen, **private)
        taken = [item, broken_seen, outcome]
        onward.click(lambda one: (one, gradio.Tabs(selected="break"), None), asked, [broken, tabs, example], **private)
        example.input(lambda name: examples()[name], example, broken, **private)
        broken.change(take, broken, taken, **private)
        gradio.on([item.change, kind.change], replace, [broken, item, kind], text_now, **private)
        go.click(run_on, [broken, item, text_now], outcome, **waits)
    return page.queue(max_size=40, default_concurrency_limit=2)


def launch(host: str | None = None, port: int | None = None, **settings: Any) -> gradio.Blocks:
    """Serve the page until interrupted, by default where Gradio's variables say; `settings` are of its `launch`."""
    page = build()
    # The first visitor need not wait for the agents; without PyTorch the page says so
    Thread(target=_opened, daemon=True).start()
    page.launch(
        server_name=host,
        server_port=port,
        head=view.head(),
        theme=gradio.themes.Default(primary_hue="blue", font=["system-ui", "sans-serif"]),
        max_file_size="5mb",
        state_session_capacity=200,
        run_history=False,
        footer_links=["gradio", "settings"],
        ssr_mode=False,
        share=False,
        **settings,
    )
    return page


def _opened() -> None:
    with suppress(ConfigError):
        for name in POLICIES.values():
            agent(name)


def _html(value: str = "") -> gradio.HTML:
    """HTML that `view` made: everything from outside is escaped in it. Without the styles that Gradio has for prose."""
    return gradio.HTML(value, apply_default_css=False)


def _item(trajectory: Trajectory, id: str | None) -> Evidence:
    if id not in trajectory.evidence:
        raise DataError("this trajectory has no evidence to change: take another one")
    return trajectory.evidence[id]


@contextmanager
def _shown() -> Iterator[None]:
    """What went wrong is told in the page, as text."""
    try:
        yield
    except FaithfulSearchError as error:
        raise gradio.Error(escape(str(error)), title="That did not work", print_exception=False) from error
