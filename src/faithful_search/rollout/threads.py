"""Research threads synthesis: the same question researched several times at once, summarised, and
answered once.

PokeeResearch, section 3.4: n independent threads, each summarised by the model, and one synthesis
of the summaries.

```
threads (one engine run) ─> a summary each ─> synthesis ─> the answer, and the thread that it rests on
```

A model need not do as it is told: a summary that fails is replaced by an outline of the thread, a
synthesis that fails by a vote. Both are deterministic.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal

import msgspec

from ..answer_forms import said
from ..errors import ConfigError, FaithfulSearchError
from ..inference.base import Completion, Generator, Sampling
from ..judges.base import Request, Writer
from ..text import normalize, shortened
from ..trajectory import Step, Trajectory

_SUMMARY = re.compile(r"<research_trace_summary>(.*?)(?:</research_trace_summary>|\Z)", re.DOTALL)
# One that is not closed takes the rest of the text: looking for the next one's end again and again
# would take quadratic time.
_ANSWER = re.compile(r"<answer>(.*?)(</answer>|\Z)", re.DOTALL)
_THINK = re.compile(r"<think>(.*?)(</think>|\Z)", re.DOTALL)
_LONGEST_THREAD = 60_000  # characters; some 15,000 tokens, half of the paper's context
_LONGEST_OUTLINE = 4_000
_NO_ANSWER = ("", "none", "unknown")


class Research(msgspec.Struct, frozen=True):
    """The result of researching a question.

    Attributes:
        threads: each as it ended.
        trajectory: the thread that gave the answer; all calls of all threads together where none
            gave it; the first thread where there is no answer. `meta["research"]` says which of how
            many threads it is and how the answer was chosen.
        by: "thread" where there was one, "synthesis", or "vote" where no synthesis was written.
        replaced: what could not be written and was replaced: "summary of thread 2", "synthesis".
    """

    threads: tuple[Trajectory, ...]
    trajectory: Trajectory
    by: Literal["thread", "synthesis", "vote"]
    replaced: tuple[str, ...] = ()


def synthesise(threads: Sequence[Trajectory], writer: Writer | None = None) -> Research:
    """One answer from threads on the same question.

    Args:
        threads: episodes of an agent that sampled: `agent.run([task] * n)`.
        writer: writes the summaries and the synthesis (in the paper, the policy itself); `None`, or
            one that fails: the threads vote.

    Raises:
        ConfigError: without any thread.
    """
    if not threads:
        raise ConfigError("a question is researched in at least 1 thread, got 0")
    if len(threads) == 1:
        return Research(tuple(threads), threads[0], "thread")
    question = threads[0].question or ""
    summaries, replaced = _summaries(threads, question, writer)
    pairs = []
    for number, (thread, summary) in enumerate(zip(threads, summaries, strict=True), start=1):
        # The answer is the thread's own: a summary must not improve on it.
        answer = _answer(thread) or "NONE"
        pairs.append(f"Pair {number}:\n<answer>{answer}</answer>\n{summary}")
    request = Request("thread_synthesis", {"question": question, "threads": "\n\n".join(pairs)})
    [synthesis] = _texts(writer, [request])
    answer, thought = _read_synthesis(synthesis or "")
    if not answer:
        chosen = _rests_on(threads, vote(threads), "the answer that most threads gave", "vote")
        return Research(tuple(threads), chosen, "vote", (*replaced, "synthesis"))
    chosen = _rests_on(threads, answer, thought, "synthesis")
    return Research(tuple(threads), chosen, "synthesis", tuple(replaced))


def _summaries(
    threads: Sequence[Trajectory], question: str, writer: Writer | None
) -> tuple[list[str], list[str]]:
    """A summary of each thread, and which ones could not be written and are outlines instead."""
    requests = []
    for thread in threads:
        fields = {"question": question, "thread": described(thread)}
        requests.append(Request("thread_summary", fields))
    summaries = []
    replaced = []
    texts = _texts(writer, requests)
    for number, (thread, text) in enumerate(zip(threads, texts, strict=True), start=1):
        match = _SUMMARY.search(text or "")
        summary = match[1].strip() if match else ""
        if not summary:
            replaced.append(f"summary of thread {number}")
            summary = described(thread, _LONGEST_OUTLINE)
        summaries.append(summary)
    return summaries, replaced


def _read_synthesis(text: str) -> tuple[str, str]:
    """The last answer in a synthesis and the thought before it; each empty where there is none."""
    answer = ""
    for content, end in _ANSWER.findall(text):
        if end and _compared(content) not in _NO_ANSWER:
            answer = content.strip()
    thought = ""
    match = _THINK.search(text)
    if match is not None and match[2]:
        thought = match[1].strip()
    return answer, thought


def vote(threads: Sequence[Trajectory]) -> str | None:
    """The answer that most threads gave, as the first of them wrote it; `None`: none gave any.

    What the answers say is compared, without typography; a sign or a decimal point makes another
    number. "unknown" wins only where no thread gave another
    answer. Of answers given equally often, one that its agent checked and upheld wins, then the
    earliest.

    Example:
        >>> vote([Trajectory(answer="Rome"), Trajectory(answer="Oslo"), Trajectory(), Trajectory(answer="the Oslo")])
        'Oslo'
    """
    votes: Counter[str] = Counter()  # by normalised answer
    as_written: dict[str, str] = {}  # the answers as they were first written
    upheld: set[str] = set()
    for thread in threads:
        answer = _answer(thread)
        if not answer:
            continue
        key = _compared(answer)
        votes[key] += 1
        as_written.setdefault(key, answer)
        if thread.steps and thread.steps[-1].verified:
            upheld.add(key)
    candidates = [key for key in as_written if key not in _NO_ANSWER] or list(as_written)
    if not candidates:
        return None

    def rank(key: str) -> tuple[int, bool]:
        return votes[key], key in upheld

    return as_written[max(candidates, key=rank)]


def _answer(thread: Trajectory) -> str:
    """A thread's answer as it is written; empty where it says nothing, as an empty box does."""
    answer = thread.answer or ""
    return answer if said(answer) else ""


def _compared(answer: str) -> str:
    """What answers are compared by: what they say without a form around it (a box, JSON), as the
    normaliser "unicode" writes it, or "squad" where that leaves nothing, as of a picture.
    """
    content = said(answer)
    return normalize(content, "unicode") or normalize(content)


def described(thread: Trajectory, longest: int = _LONGEST_THREAD) -> str:
    """A thread in plain words, whatever its dialect: the thought, the call and the results of each
    step.

    If that has more than `longest` characters, all texts in it are shortened alike.
    """
    texts = sum(1 + len(step.evidence) for step in thread.steps) or 1
    # Less and less room for each text, until all of them fit.
    for room in (longest, longest // texts, longest // (2 * texts), 80):
        lines: list[str] = []
        for number, step in enumerate(thread.steps, start=1):
            lines += _lines(number, step, room)
        text = "\n".join(lines)
        if len(text) <= longest:
            break
    end = f"no answer ({thread.stop_reason or 'not ended'})"
    if thread.answer:
        end = f"answer: {thread.answer}"
    return f"{shortened(text, longest)}\n{end}".strip()


def _lines(number: int, step: Step, room: int) -> list[str]:
    """One step in lines, each text in at most `room` characters."""
    lines = [f"STEP {number} {shortened((step.think or '').strip(), room)}".rstrip()]
    if step.call is not None:
        lines.append(f"call: {step.call.name} {shortened(str(step.call.arguments), room)}")
    for passage in step.evidence:
        where = " ".join(filter(None, (passage.id, passage.title, passage.url)))
        lines.append(f"- {where}: {shortened(passage.text, room)}")
    if step.note:
        lines.append(f"- {shortened(step.note, room)}")
    if step.answer is not None:
        lines.append(f"answered: {step.answer}")
    if step.verified is not None:
        lines.append(f"own check: {'correct' if step.verified else 'incorrect'}")
    return lines


class Metered:
    """A generator that counts its rows (as `calls`) and tokens, under the names of
    `wire.llm.Stats`.
    """

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.calls = self.prompt_tokens = self.completion_tokens = 0

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        completions = self.generator.generate(prompts, sampling, max_new_tokens)
        self.calls += len(prompts)
        self.prompt_tokens += sum(map(len, prompts))
        self.completion_tokens += sum(len(completion.ids) for completion in completions)
        return completions

    def keeping(self) -> AbstractContextManager[None]:
        return self.generator.keeping()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)


def _texts(writer: Writer | None, requests: Sequence[Request]) -> Sequence[str | None]:
    """What the writer writes; `None` for each request if it fails: the threads alone can give an
    answer.
    """
    with suppress(FaithfulSearchError, RuntimeError):  # torch raises the latter, without memory
        if writer is not None:
            return writer.write_batch(requests)
    return [None] * len(requests)


def _pooled(threads: Sequence[Trajectory], answer: str, why: str) -> Trajectory:
    """A trajectory with all calls of all threads and the answer.

    It has no dialect and no verdicts, which would refer to the threads' own order of calls.
    """
    first = threads[0]
    steps: list[Step] = []
    for number, thread in enumerate(threads, start=1):
        for step in thread.steps:
            if step.call is None:
                continue
            passages = [
                msgspec.structs.replace(passage, id=f"{number}.{passage.id}")
                for passage in step.evidence
            ]
            steps.append(Step(step.think, step.call, tuple(passages), step.note))
    return Trajectory(
        steps=(*steps, Step(why, answer=answer)),
        question=first.question,
        answer=answer,
        stop_reason="answered",
        id=f"{first.id}#pooled",
        answers=first.answers,
        evidence_from=first.evidence_from,
    )


def _rests_on(threads: Sequence[Trajectory], answer: str | None, why: str, by: str) -> Trajectory:
    """The first thread with this answer, or all calls of all threads with it as the last step."""
    if answer is None:
        return threads[0]
    compared = _compared(answer)
    agreeing: int | None = None  # the number of the first such thread
    for number, thread in enumerate(threads, start=1):
        answer_of_thread = _answer(thread)
        if answer_of_thread and _compared(answer_of_thread) == compared:
            agreeing = number
            break
    chosen = _pooled(threads, answer, why) if agreeing is None else threads[agreeing - 1]
    research = {"by": by, "thread": agreeing, "of": len(threads), "analysis": why}
    return msgspec.structs.replace(chosen, meta={**chosen.meta, "research": research})
