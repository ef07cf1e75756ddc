"""The page: four tabs over one view of a trajectory.

Whatever a visitor typed, asked or uploaded lives in that visitor's session and is gone with it.
What went wrong is said in the page, where the result would be: an earlier result never stays
beside it.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from .. import dialects
from ..errors import ConfigError, DataError, FaithfulSearchError, kind_of, needs
from ..measure.metrics import asks
from ..measure.report import interval
from ..measure.widget import EXAMPLE
from ..trajectory import Evidence, Trajectory, read_jsonl
from . import agents, auditing, cheating, view
from .agents import FOOLED, KINDS, READS, Kind, Local, Outcome, Served, agent

with needs("the demo", "demo"):
    import gradio

TITLE = "Faithfulness explorer"
ABOUT = f"""# {TITLE}
Does a search agent answer from what it found, or from memory? Change its evidence and watch, ask it yourself, or audit
your own agent's trajectories. The agents here are tiny and know one small world; the measures work for agents of any
size."""
NO_TORCH = "**No agent can run here**: PyTorch is missing (`pip install 'faithful-search[demo]'`). Audit works."
NOTICE = """**Watch the answers:** an agent that uses its evidence answers something else when the evidence changes; one
that answers from memory says the same as before, although nothing that it read says so."""
CHEATS = """**A cheat never reads.** Let one play against a reward: see what it did, what it was paid, and why. The
honest reader stands beside it."""
DETECT = "detect it"
PASTE = "the pasted text"
UPLOADS = [".jsonl", ".json", ".txt"]
LONGEST = 300  # characters of a question
ROWS = "A trajectory, a chat as JSON, rows as JSON lines, or hf://datasets/ORG/NAME/FILE.jsonl"
KEY = "Your key for the served model, where it needs one: it is sent there and kept nowhere else"
INSTEAD = "What {agents} read in its place; leave it empty, and the search returns nothing there"
NO_ANSWER = "there is no answer whose evidence could be changed: ask a question first"
_log = logging.getLogger(__name__)


@lru_cache
def examples() -> dict[str, Trajectory]:
    """Recorded trajectories by question: the page shows them before anything is computed."""
    recorded = read_jsonl(Path(str(files(__package__) / "examples.jsonl")))
    return {example.question or "": example for example in recorded}


@lru_cache
def recorded_outcomes() -> list[Outcome]:
    """What the bundled agents make of the first example when the fact is changed that its answer
    rests on, recorded, too.
    """
    lines = (files(__package__) / "outcomes.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Outcome) for line in lines]


def link(question: str, name: str) -> str:
    """The query of the address at which this page asks that question."""
    return "?" + urlencode({"question": question, "agent": name})


class Arrival(NamedTuple):
    """What the address by which a visitor arrives changes in the page; skipped values stay.

    Attributes:
        question: the question that is shown as asked.
        agent: the name of the agent that is chosen.
        question_to_ask: the question again if its answer has to be asked for, else empty: the page
            already shows that of the first example.
        tabs: the tab that is open.
    """

    question: Any
    agent: Any
    question_to_ask: Any
    tabs: Any


def arrival(policies: Mapping[str, Local], request: gradio.Request) -> Arrival:
    """What the question and the agent in the page's address change."""
    asked_question = request.query_params.get("question")
    name = request.query_params.get("agent")
    if not asked_question and name not in policies:
        # Nothing to change: a visitor may have begun to write before this arrives.
        return Arrival(gradio.skip(), gradio.skip(), gradio.skip(), gradio.skip())
    first = next(iter(examples()))
    question = (asked_question or first)[:LONGEST]
    if name not in policies:
        name = READS.name
    is_shown = question == first and name == READS.name
    return Arrival(
        question=question,
        agent=name,
        question_to_ask="" if is_shown else question,
        tabs=gradio.Tabs(selected="ask") if asked_question else gradio.skip(),
    )


def ask(
    question: str,
    name: str,
    key: str = "",
    policies: Mapping[str, Local] | None = None,
    served: Served | None = None,
) -> Iterator[tuple[str, Trajectory | None]]:
    """The agent's trajectory as it grows: its view, and at the end itself. Only a served model is
    given the key.
    """
    local = (policies or local_agents(None)).get(name)
    who = f"The model {name}"
    where = ""
    if local is not None:
        who = local.title
        where = link(question, name)
    yield view.growing_view(Trajectory((), question), "ask", who), None
    try:
        if local is not None:
            grown = agent(local).ask(question)
        else:
            assert served is not None  # or there would be no such choice
            grown = served.ask(question, key)
        for trajectory in grown:
            if trajectory.stop_reason is None:
                yield view.growing_view(trajectory, "ask", who, where), None
            else:
                yield view.answered_view(trajectory, "ask", who, where), trajectory
    except Exception as error:
        yield refused(error), None


def show_audit(text: str, upload: str | None = None, dialect: str = DETECT) -> tuple[Any, ...]:
    """Audit a pasted text or an uploaded file: summary, downloads, result, the worst row, and no
    row beside it.
    """
    beside = gradio.HTML(visible=False)
    try:
        source, ending = (Path(upload).name, Path(upload).suffix) if upload else (PASTE, "")
        if upload:
            if ending not in UPLOADS:
                raise DataError(
                    f"this page reads {', '.join(UPLOADS)}; `faithful-search audit` reads more"
                )
            text = Path(upload).read_text(encoding="utf-8-sig", errors="replace")
        result = auditing.audited(text, None if dialect == DETECT else dialect, ending)
        worst = view.trajectory_view(result.rows[0].trajectory, "left")
        return view.audit_view(result, source), gradio.Row(visible=True), result, worst, beside
    except Exception as error:
        return refused(error), gradio.Row(visible=False), None, "", beside


def audit(trajectories: str, dialect: str = "") -> dict[str, Any]:
    """Audit what search agents wrote: do thoughts follow the evidence, do citations hold, is the
    answer supported?

    Args:
        trajectories: a trajectory as text, a chat as JSON, rows as JSON lines, or
            hf://datasets/ORG/NAME/FILE.jsonl
        dialect: how they are written, for example pou, search_r1 or openai; empty to detect it

    Returns:
        Findings in words, the mean of each metric with its 95 % interval, and the rows from the
        worst on.
    """
    try:
        result = auditing.audited(trajectories, dialect or None)
    except FaithfulSearchError as error:
        raise gradio.Error(escape(str(error)), print_exception=False) from error
    metrics = {
        name: {"mean": interval(row), "n": row.n, "asks": asks(name)}
        for name, row in result.table.items()
    }
    worst = [
        {
            "row": number,
            "value": value,
            "question": trajectory.question,
            "answer": trajectory.answer,
        }
        for number, value, trajectory in result.rows[:20]
    ]
    return {"findings": [*result.unread, *result.words], "metrics": metrics, "worst rows": worst}


def show_row(result: auditing.Audited | None, event: gradio.EventData) -> tuple[Any, Any]:
    """The view of a chosen row, in the left or the right place."""
    places = {"left": gradio.skip(), "right": gradio.skip()}
    if result is None:
        return places["left"], places["right"]
    for row in result.rows:  # none fits where the row is one of an earlier audit
        if row.number == event.row:
            places[event.side] = gradio.HTML(
                view.trajectory_view(row.trajectory, event.side), visible=True
            )
    return places["left"], places["right"]


def take(trajectory: Trajectory | None) -> tuple[Any, ...]:
    """A trajectory to break: itself, the choice of its evidence, its view, and no outcome yet."""
    if trajectory is None:
        return None, gradio.Dropdown([], value=None), "", ""
    return trajectory, _choice(trajectory), view.trajectory_view(trajectory, "before"), ""


def _choice(trajectory: Trajectory) -> gradio.Dropdown:
    """The evidence that can be changed. The passage that was cited last is chosen, since the answer
    rests on it; if none was cited, the last one.
    """
    evidence = trajectory.evidence
    cited: list[str] = []
    for step in trajectory.steps:
        cited += [ref for ref in step.refs if ref in evidence]
    choices = []
    for id, passage in evidence.items():
        mark = " (cited)" if id in cited else ""
        choices.append((f"{id}{mark} {passage.title}: {passage.text}"[:110], id))
    chosen = None
    if evidence:
        chosen = cited[-1] if cited else list(evidence)[-1]
    return gradio.Dropdown(choices, value=chosen, label="Evidence")


def propose(trajectory: Trajectory | None, id: str | None, kind: Kind) -> tuple[Any, ...]:
    """A proposal for what replaces a piece of evidence, which the visitor may change. What became
    of another change is no longer shown, and the agents can be asked.
    """
    ready = gradio.Button(interactive=True)
    try:
        return agents.replacement(_item(trajectory, id), kind), "", ready
    except Exception as error:
        return "", refused(error), ready


def run_on(
    trajectory: Trajectory | None, id: str | None, text: str, policies: Mapping[str, Local]
) -> Iterator[str]:
    """What the agents answer with the changed evidence, one after the other."""
    try:
        passage = _item(trajectory, id)
        question = trajectory.question if trajectory and trajectory.question else ""
        outcomes: list[Outcome] = []
        yield view.outcome_view(outcomes, passage, text, running=True)
        for outcome in agents.run_on(question, passage, text, list(policies.values())):
            outcomes.append(outcome)
            yield view.outcome_view(outcomes, passage, text, running=len(outcomes) < len(policies))
    except Exception as error:
        yield refused(error)


def cheat(question: str, name: str, reward: str) -> str:
    """What a cheat does with a question, what a reward pays it, and why."""
    try:
        return view.attempt_view(cheating.attempt(question, name, reward))
    except Exception as error:
        return refused(error)


def local_agents(policy: Local | None) -> dict[str, Local]:
    """The agents that answer on this machine, by the names that a visitor chooses from. `policy`:
    one of the user's own.
    """
    agents_here = [READS, FOOLED]
    if policy is not None:
        agents_here.append(policy)
    return {local.name: local for local in agents_here}


def refused(error: Exception) -> str:
    """What went wrong, to show where the result would be. What nobody foresaw may hold a path or a
    key in its words: these go to the log.
    """
    if isinstance(error, FaithfulSearchError):
        return view.refused_view(str(error))
    _log.error("the page failed", exc_info=error)
    return view.refused_view(
        f"This is a mistake of the page, not yours ({kind_of(error)}); its log says more."
    )


def build(served: Served | None = None, policy: Local | None = None) -> gradio.Blocks:
    """The page, ready for `launch`; a served model and a policy of one's own can be asked beside
    the bundled agents.
    """
    first = next(iter(examples().values()))
    policies = local_agents(policy)
    both = "both agents" if policy is None else "all three agents"
    # One visitor at a time asks an agent: they share its model
    waits: Any = {"concurrency_id": "agents", "concurrency_limit": 1, "api_visibility": "private"}
    private: Any = {"api_visibility": "private", "show_progress": "hidden"}
    with gradio.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 600)) as page:
        gradio.api(audit)
        gradio.Markdown(ABOUT if find_spec("torch") else f"{ABOUT}\n\n{NO_TORCH}")
        # The trajectory in the tab of questions, and the one whose evidence is changed
        asked_state = gradio.State(first)
        broken_state = gradio.State(first)
        question_box = gradio.Textbox(visible="hidden")
        with gradio.Tabs() as tabs:
            with gradio.Tab("Break it", id="break"):
                gradio.Markdown(NOTICE)
                with gradio.Row():
                    with gradio.Column(scale=2, min_width=320):
                        example = gradio.Dropdown(
                            list(examples()), label="Trajectory", value=first.question
                        )
                        passage_choice = _choice(first)
                        kind = gradio.Radio(
                            list(KINDS), value=next(iter(KINDS)), label="What happens to it"
                        )
                        _html(view.kinds_view())
                        proposal = agents.replacement(
                            _item(first, passage_choice.value), kind.value
                        )
                        text_now = gradio.Textbox(
                            proposal, label=INSTEAD.format(agents=both), lines=2, max_length=1000
                        )
                        go = gradio.Button(f"Let {both} answer again", variant="primary")
                    with gradio.Column(scale=3, min_width=320):
                        outcome = _html(
                            view.outcome_view(
                                recorded_outcomes(), _item(first, passage_choice.value), proposal
                            )
                        )
                broken_view = _html(view.trajectory_view(first, "before"))
            with gradio.Tab("Ask", id="ask"):
                question = gradio.Textbox(
                    first.question, label="Question", max_length=LONGEST, submit_btn="Ask"
                )
                gradio.Examples(
                    [[example] for example in examples()],
                    question,
                    label="Questions about its world",
                )
                offered = [*policies, *([served.model] if served else [])]
                name = gradio.Radio(offered, value=READS.name, label="Who answers")
                key = gradio.Textbox(type="password", label=KEY, visible=served is not None)
                address = link(first.question or "", READS.name)
                answer_view = _html(view.answered_view(first, "ask", READS.title, address))
                onward = gradio.Button("Change its evidence →")
            with gradio.Tab("Audit", id="audit"):
                # one more than is read: a text that the browser cuts there is refused, not audited
                most = auditing.MOST_CHARACTERS + 1
                text = gradio.Textbox(EXAMPLE, label=ROWS, lines=6, max_lines=16, max_length=most)
                with gradio.Row():
                    upload = gradio.File(
                        label="or a file, at most 5 MB", file_types=UPLOADS, height=120
                    )
                    dialect = gradio.Dropdown(
                        [DETECT, *dialects.names()], value=DETECT, label="How it is written"
                    )
                start = gradio.Button("Audit", variant="primary")
                audit_state, file_text = gradio.State(), gradio.Textbox(visible="hidden")
                with gradio.Row(visible=False) as downloads:
                    writers = {
                        "report.html": auditing.Audited.report,
                        "scores.jsonl": lambda audited: audited.scores,
                    }
                    for file, write_file in writers.items():
                        click = gradio.Button(f"Download {file}", size="sm").click(
                            write_file, audit_state, file_text, **private
                        )
                        download = f"(text) => explorer.download(text, '{file}')"
                        click.then(None, file_text, None, js=download)
                summary = _html(js_on_load="explorer.chooses(element, trigger)")
                with gradio.Row():
                    left, right = _html(min_width=300), _html(visible=False, min_width=300)
            with gradio.Tab("Cheat it", id="cheat"):
                gradio.Markdown(CHEATS)
                with gradio.Row():
                    cheat_choice = gradio.Dropdown(
                        cheating.cheats_offered(), value=cheating.FIRST_CHEAT, label="Cheat"
                    )
                    reward_choice = gradio.Dropdown(
                        cheating.rewards_offered(), value=cheating.FIRST_REWARD, label="Reward"
                    )
                    cheat_question = gradio.Dropdown(
                        cheating.questions_offered(), label="Its question"
                    )
                try_it = gradio.Button("Let it cheat", variant="primary")
                cheat_view = _html()

        def arrive(request: gradio.Request) -> Arrival:
            return arrival(policies, request)

        page.load(arrive, None, [question, name, question_box, tabs], queue=False, **private)
        asking = partial(ask, policies=policies, served=served)
        gradio.on(
            [question.submit, question_box.change, name.input],
            asking,
            [question, name, key],
            [answer_view, asked_state],
            api_name="ask",
            trigger_mode="always_last",  # who switches while an agent is at work sees the other one
            **waits,
        )
        audited = [summary, downloads, audit_state, left, right]
        start.click(show_audit, [text, upload, dialect], audited, api_visibility="private")
        summary.select(show_row, audit_state, [left, right], **private)

        cheat_inputs = [cheat_question, cheat_choice, reward_choice]
        try_it.click(cheat, cheat_inputs, cheat_view, **waits)

        # When something else is to be broken: first hold the button, since the text beside it is
        # about to be replaced, then take the trajectory, then propose another text and free the
        # button.
        proposing: Any = {
            "fn": propose,
            "inputs": [broken_state, passage_choice, kind],
            "outputs": [text_now, outcome, go],
            "queue": False,
            **private,
        }
        hold: Any = {
            "fn": None,
            "outputs": go,
            "js": "() => ({__type__: 'update', interactive: false})",
            **private,
        }
        taken = [broken_state, passage_choice, broken_view, outcome]

        def take_example(question: str) -> tuple[Any, ...]:
            return take(examples()[question])

        def show_break_tab() -> tuple[Any, None]:
            """Open the tab. No example is chosen there any more."""
            return gradio.Tabs(selected="break"), None

        gradio.on([passage_choice.input, kind.input], **hold).then(**proposing)
        held = gradio.on(example.input, **hold)
        held.then(take_example, example, taken, **private).then(**proposing)
        held = gradio.on(onward.click, **hold)
        proposed = held.then(take, asked_state, taken, **private).then(**proposing)
        proposed.then(show_break_tab, None, [tabs, example], **private)
        run_inputs = [broken_state, passage_choice, text_now]
        go.click(partial(run_on, policies=policies), run_inputs, outcome, **waits)
    return page.queue(max_size=40, default_concurrency_limit=2)


def launch(
    host: str | None = None,
    port: int | None = None,
    served: Served | None = None,
    policy: Local | None = None,
    **settings: Any,
) -> gradio.Blocks:
    """The page, served; `settings` are those of Gradio's `launch`, whose variables say where.

    Raises:
        ConfigError: when `policy` cannot be opened, or the port is taken.
    """
    if policy is not None:
        agent(policy)  # a wrong name is told before anything is served

    def open_agents() -> None:
        with suppress(ConfigError):  # without PyTorch the page says so
            for local in local_agents(policy).values():
                agent(local)

    page = build(served, policy)
    # so that the first visitor need not wait for them
    Thread(target=open_agents, daemon=True).start()
    try:
        page.launch(
            server_name=host,
            server_port=port,
            head=view.head(),
            theme=_theme(),
            max_file_size="5mb",  # as `auditing.MOST_CHARACTERS`
            state_session_capacity=200,
            run_history=False,  # would keep what visitors typed
            footer_links=["gradio", "settings"],
            ssr_mode=False,
            share=False,
            # Gradio's own lines offer a flag that the command does not have
            **{"quiet": True, **settings},
        )
    except OSError as error:  # Gradio's words speak of its own variables
        raise ConfigError(
            f"cannot serve at {host or '127.0.0.1'}:{port or 7860}: the port may be taken; "
            "choose another --port"
        ) from error
    return page


def _theme() -> gradio.themes.Base:
    """Gradio's own, with buttons whose text is dark enough against them to be read."""
    theme = gradio.themes.Default(primary_hue="blue", font=["system-ui", "sans-serif"])
    return theme.set(button_primary_background_fill="*primary_600")


def _html(value: str = "", **settings: Any) -> gradio.HTML:
    """HTML that `view` made, in which everything from outside is escaped; without Gradio's styles
    for prose.
    """
    return gradio.HTML(value, apply_default_css=False, **settings)


def _item(trajectory: Trajectory | None, id: str | None) -> Evidence:
    if trajectory is None:
        raise DataError(NO_ANSWER)
    if id not in trajectory.evidence:
        raise DataError("this trajectory has no evidence to change: take another one")
    return trajectory.evidence[id]
