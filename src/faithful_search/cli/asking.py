"""`faithful-search ask`: one question, answered with its sources."""

import json
import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from ..bundled import BUNDLED
from ..errors import ConfigError
from ..escape import as_line
from ..text import shortened
from .agents import environment_of, episode_flags, open_agent, web_flags
from .options import AT_LEAST_1, FILE, NumberRange, config, judge_flags, judge_of, say
from .status_line import StatusLine, status_line

if TYPE_CHECKING:
    from ..judges import Writer
    from ..measure.claims import Claim
    from ..rollout import Agent
    from ..rollout.arguments import EnvironmentArguments
    from ..rollout.threads import Research
    from ..tasks import Task
    from ..trajectory import Evidence, Step, Trajectory

_LONGEST_TEXT = 300  # characters of a thought, a call, a passage or an answer in one line


@click.command()
@click.argument("question")
@click.option(
    "--model",
    "policy",
    default="tiny",
    help="Model that answers: a directory, a Hub id, a bundled policy, or with --endpoint its name "
    "there.",
)
@click.option(
    "--endpoint", "url", help="Base URL of an OpenAI-compatible server that serves --model."
)
@click.option(
    "--agent",
    help="Agent that puts the question to the model: all_in_one, cot, direct, ircot, rag, routing, "
    "search_o1, or the path of a file that defines one. By default the model is given the tools "
    "itself (untrained).",
)
@episode_flags(corpus=None, turn_tokens=512)
@web_flags
@click.option(
    "--threads",
    type=AT_LEAST_1,
    default=1,
    help="Number of times the question is researched in parallel. The model writes one answer from "
    "all threads, or they vote.",
)
@click.option("--verify", is_flag=True, help="Let the model check its answers (dialect pokee).")
@click.option(
    "--temperature",
    type=NumberRange(min=0),
    help="Sampling temperature. By default 0, and 0.7 with several threads.",
)
@click.option("--seed", type=int, default=0, help="Random seed of the sampling.")
@click.option(
    "--total-tokens",
    type=AT_LEAST_1,
    help="Maximum number of tokens in a local model's thread. By default what the model can take, "
    "up to 16,384.",
)
@click.option(
    "--transcript",
    type=FILE,
    default=Path("ask.jsonl"),
    help="File to append the transcript to. `audit` reads it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@judge_flags
@config
def ask(question: str, transcript: Path, as_json: bool, **options: Any) -> None:
    """Answer QUESTION with tools, and show the evidence.

    Without options the bundled tiny policy answers questions about the bundled world, such as "What
    is the capital of the country of Mount Bogong?". The steps of the model are shown as they come.
    `faithful-search audit` reads the transcript, which is written after Ctrl-C, too.
    """
    from ..measure.claims import claims_of
    from ..tasks import Task

    if not question.strip():
        raise click.UsageError("the question is empty")
    judge = judge_of(options)
    environment = environment_of(options)
    # Checked before anything is asked, which may cost money
    transcript_file = TranscriptFile(transcript)
    task = Task(f"ask-{datetime.now(UTC):%Y%m%d-%H%M%S}", question.strip())
    with environment.toolbox() as toolbox:
        agent, writer, stats = open_agent(task.question, environment, toolbox, options)
        start = time.monotonic()
        research = _run_research(
            agent,
            writer,
            tasks=[task] * options["threads"],
            dialect=environment.dialect,
            transcript=transcript_file,
            quiet=as_json,
            line=None if as_json else status_line(agent),
        )
    steps = [step for thread in research.threads for step in thread.steps]
    cost = {
        "requests": sum(stat.calls for stat in stats),  # one for each turn or text
        # A call returns evidence or a note; a step with neither is an answer
        "tool_calls": sum(bool(step.evidence or step.note) for step in steps),
        "tokens_read": sum(stat.prompt_tokens for stat in stats),
        "tokens_written": sum(stat.completion_tokens for stat in stats),
        "seconds": round(time.monotonic() - start, 2),
    }
    claims = claims_of(research.trajectory, judge)
    if as_json:
        details = {
            "model": options["policy"],
            "dialect": environment.dialect,
            "cost": cost,
            "transcript": str(transcript) if transcript_file.written else None,
        }
        result = {**_as_json(research, claims), **details}
        click.echo(json.dumps(result, ensure_ascii=False, indent=1))
    else:
        _print_answer(research, claims, cost)
        if doubt := _outside_the_world(task.question, environment, options):
            _print(doubt, fg="yellow")
        if transcript_file.written:
            command = f"faithful-search audit {shlex.quote(str(transcript))}"
            _print(f"transcript: {transcript} ({command})", dim=True)
    if research.trajectory.answer is None:
        say(f"no answer: {_why_unanswered(research.threads[0])}", err=True)
        raise click.exceptions.Exit(1)


def _outside_the_world(
    question: str, environment: "EnvironmentArguments", options: Mapping[str, Any]
) -> str:
    """Why a bundled policy that searches the bundled world cannot answer the question, in a
    sentence; empty where nothing speaks against it, and for all others.
    """
    from ..demo.outside import outside

    is_bundled = not options["url"] and options["policy"] in BUNDLED
    on_the_web = options["web_search"] or options["browse"]
    if is_bundled and environment.corpus == "world" and not on_the_web:
        return outside(question)
    return ""


def _why_unanswered(thread: "Trajectory") -> str | None:
    """Why a thread has no answer: what failed, where that is known, or how the thread ended."""
    from ..rollout.episode import END_REASONS

    if thread.meta.get("why"):
        return str(thread.meta["why"])
    return END_REASONS.get(thread.stop_reason or "", thread.stop_reason)


class TranscriptFile:
    """The file that threads are appended to. `written` says whether any were.

    Raises `ConfigError` when the file cannot be written. Until a thread is written, a file that did
    not exist does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = False
        is_new = not (path.exists() or path.is_symlink())
        try:
            path.open("a", encoding="utf-8").close()
            if is_new:
                path.unlink()
        except OSError as error:
            raise ConfigError(
                f"the transcript {path} cannot be written: {error.strerror}; name another file by "
                "--transcript"
            ) from error

    def add(self, threads: "Iterable[Trajectory]") -> None:
        """Append the threads that have a step. Prints a warning where they cannot be written."""
        lines = [f"{thread.to_json()}\n" for thread in threads if thread.steps]
        if not lines:
            return
        try:
            self._append(lines)
        except OSError as error:  # the answer is worth more than its transcript
            say(f"no transcript: {self.path} cannot be written: {error.strerror}", err=True)
        else:
            self.written = True

    def _append(self, lines: list[str]) -> None:
        end_of_line = "\n" if _ends_within_line(self.path) else ""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(end_of_line)  # else the first thread is part of a line that nobody can read
            file.writelines(lines)


def _ends_within_line(path: Path) -> bool:
    """Whether the file's last line has no end: it was cut off, or written so by another program."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _run_research(
    agent: "Agent",
    writer: "Writer | None",
    tasks: "list[Task]",
    dialect: str,
    transcript: TranscriptFile,
    quiet: bool,
    line: StatusLine | None = None,
) -> "Research":
    """Let the agent answer each task and put its threads together.

    Steps are shown as they come, unless `quiet`. The threads are appended to the transcript, after
    an interruption also the unfinished ones. The status `line` is hidden while a step is shown, and
    closed in the end.
    """
    from ..rollout.threads import synthesise
    from ..trajectory import Trajectory

    steps_by_thread: dict[str, list[Step]] = {}
    to_write: dict[str, Trajectory] = {}  # by the thread's id

    def show(thread_id: str, step: "Step") -> None:
        steps = steps_by_thread.setdefault(thread_id, [])
        steps.append(step)
        if quiet:
            return
        label = f"[{len(steps)}]"
        if len(tasks) > 1:
            # The ids of threads are ID, ID#1, ID#2, …; they are shown as 1, 2, 3, …
            _, _, repetition = thread_id.partition("#")
            label = f"[{int(repetition or 0) + 1}.{len(steps)}]"
        hidden = line.hidden() if line else nullcontext()
        with hidden:
            print_step(label, step)

    try:
        research = synthesise(agent.run(tasks, on_step=show), writer)
        # The trajectory of the answer comes last, and replaces the thread that it rests on: it says
        # in addition how the answer was chosen
        for thread in (*research.threads, research.trajectory):
            to_write[thread.id] = thread
        return research
    except BaseException as error:
        for thread_id, steps in steps_by_thread.items():
            answers = [step.answer for step in steps if step.answer is not None]
            to_write[thread_id] = Trajectory(
                steps=tuple(steps),
                question=tasks[0].question,
                answer=answers[-1] if answers else None,
                stop_reason="interrupted",
                dialect=dialect,
                id=thread_id,
            )
        if to_write and isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(
                f"interrupted; what was done until then is in {transcript.path}"
            ) from None
        raise
    finally:
        if line is not None:
            line.close()
        transcript.add(to_write.values())


def _as_json(research: "Research", claims: "Sequence[Claim]") -> dict[str, Any]:
    """What `--json` prints of the answer. `by` and `replaced` are those of `Research`."""
    sources = [
        {**to_builtins(passage), "cited": cited} for passage, cited in _sources(research, claims)
    ]
    return {
        **_thread_as_json(research.trajectory),
        "claims": to_builtins(claims),
        "sources": sources,
        "by": research.by,
        "replaced": list(research.replaced),
        "threads": [_thread_as_json(thread) for thread in research.threads],
    }


def _thread_as_json(thread: "Trajectory") -> dict[str, Any]:
    return {
        "id": thread.id,
        "question": thread.question,
        "answer": thread.answer,
        "stop_reason": thread.stop_reason,
        "steps": len(thread.steps),
        "verified": thread.steps[-1].verified if thread.steps else None,
    }


def _print(line: str, **style: Any) -> None:
    """Print a line in a style of `click`. What is printed here holds texts from files and servers,
    which are escaped: they can neither begin a line nor control the terminal.
    """
    click.secho(as_line(line), **style)


def print_step(label: str, step: "Step") -> None:
    """Print a turn: its thought, its call, and what the call returned."""
    thought = step.think or ""
    if step.verified is not None:
        verdict = "CORRECT" if step.verified else "INCORRECT"
        thought = f"checks: {thought} -> {verdict}"
    if step.helpful is not None:
        judged = f"uses {', '.join(step.refs)}" if step.helpful else "nothing there helps"
        thought = f"({judged}) {thought}"
    _print(f"{label} {_in_one_line(thought)}")
    if step.call is not None:
        arguments = ", ".join(f"{name}={value!r}" for name, value in step.call.arguments.items())
        _print(f"    {step.call.name}({_in_one_line(arguments)})", fg="cyan")
    for passage in step.evidence:
        _print(f"      {_source(passage)}", dim=True)
    if step.note:
        _print(f"      {_in_one_line(step.note)}", fg="yellow")


def _print_answer(
    research: "Research", claims: "Sequence[Claim]", cost: Mapping[str, float]
) -> None:
    """Print the answer, how it was chosen, the evidence for each of its claims, and the cost."""
    answer = research.trajectory.answer
    _print("")
    if research.by != "thread":
        answers = [thread.answer or f"none ({thread.stop_reason})" for thread in research.threads]
        _print(f"threads: {'; '.join(map(_in_one_line, answers))}", dim=True)
        if answer is not None:
            analysis = research.trajectory.meta["research"]["analysis"]
            _print(f"by {research.by}: {_in_one_line(analysis)}", dim=True)
    if answer is not None:
        first_line, *further_lines = answer.splitlines() or [""]
        _print(f"answer: {first_line}", fg="green", bold=True)
        for line in further_lines:
            _print(f"        {line}", fg="green", bold=True)
        _print_claims(research, claims)
        sources = _sources(research, claims)
        if sources:
            _print("sources:")
        for passage, cited in sources:
            _print(f"  {_source(passage)}{' (cited)' if cited else ''}")
    _print(
        f"{_counted(cost['requests'], 'request')}, {_counted(cost['tool_calls'], 'tool call')}, "
        f"{cost['tokens_read']:,} tokens read, {cost['tokens_written']:,} written, "
        f"{cost['seconds']:.1f} s",
        dim=True,
    )


def _print_claims(research: "Research", claims: "Sequence[Claim]") -> None:
    """Print for each claim of the answer which passages support it.

    A passage may support a claim that all evidence together does not, for example where another
    passage contradicts it: it is named, but the line is coloured like that of a claim without
    support.
    """
    from ..rewards.declined import declined

    for claim in claims:
        if claim.supported is None:
            verdict = f": no verdict of {claim.judge}: {claim.why}"
        elif claim.sources:
            verdict = f" is supported by {', '.join(claim.sources)}"
        elif claim.supported:
            verdict = " is supported by the evidence together"
        else:
            verdict = " is supported by nothing that was found"
        style: dict[str, Any] = {}
        if not claim.supported:
            style = {"fg": "yellow", "bold": True}
        _print(f'  "{claim.text}"{verdict}', **style)
    if not claims and declined(research.trajectory):
        _print("  it says that it has no answer, which claims nothing", fg="yellow")
    elif not claims:
        _print("  nothing was retrieved: it comes from memory", fg="yellow", bold=True)


def _counted(number: float, noun: str) -> str:
    """The number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def _sources(research: "Research", claims: "Sequence[Claim]") -> "list[tuple[Evidence, bool]]":
    """The passages that are cited or support a claim, each once, and whether it is cited."""
    from ..measure.claims import distinct
    from ..rewards import cited_evidence

    cited = {passage.id for passage in cited_evidence(research.trajectory)}
    used = cited | {source for claim in claims for source in claim.sources}
    return [
        (passage, passage.id in cited)
        for passage in distinct(research.trajectory)
        if passage.id in used
    ]


def _source(passage: "Evidence") -> str:
    """A passage in one line: its id, title, address and text."""
    names = [name for name in (passage.id, passage.title, passage.url) if name]
    return f"{' '.join(names)}: {_in_one_line(passage.text)}"


def _in_one_line(text: str) -> str:
    """A text without its line breaks, shortened."""
    return shortened(" ".join(text.split()), _LONGEST_TEXT)
