"""Research threads synthesis: the same question researched several times at once, summarised, and answered once.

PokeeResearch, section 3.4: n independent threads, each summarised by the model, and one synthesis of the summaries.

```
threads (one engine run) ─> a summary each ─> synthesis ─> the answer, and the thread that it rests on
```

A model need not do as it is told: a summary that fails is replaced by an outline of the thread, a synthesis that fails
by a vote. Both are deterministic.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec

from ..errors import ConfigError, FaithfulSearchError
from ..inference.base import Completion, Generator, Sampling
from ..judges.base import Request, Writer
from ..text import normalize, shortened
from ..trajectory import Step, Trajectory

_SUMMARY = re.compile(r"<research_trace_summary>(.*?)(?:</research_trace_summary>|\Z)", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_LONGEST_THREAD = 60_000  # characters; some 15,000 tokens, half of the paper's context
_LONGEST_OUTLINE = 4_000
_NO_ANSWER = ("", "none", "unknown")


class Research(msgspec.Struct, frozen=True):
    """The result of researching a question.

    Attributes:
        threads: each as it ended.
        trajectory: the thread that gave the answer; all calls of all threads together where none gave it; the first
            thread where there is no answer. `meta["research"]` says which of how many threads it is and how the answer
            was chosen.
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
        writer: writes the summaries and the synthesis (in the paper, the policy itself); `None`, or one that fails:
            the threads vote.

    Raises:
        ConfigError: without any thread.
    """
    if not threads:
        raise ConfigError("a question is researched in at least 1 thread, got 0")
    if len(threads) == 1:
        return Research(tuple(threads), threads[0], "thread")
    question = threads[0].question or ""
    asked = [
        Request("thread_summary", {"question": question, "thread": described(one)})
        for one in threads
    ]
    pairs: list[str] = []
    replaced: list[str] = []
    for number, (thread, text) in enumerate(
        zip(threads, _texts(writer, asked), strict=True), start=1
    ):
        found = _SUMMARY.search(text or "")
        summary = found[1].strip() if found else ""
        if not summary:
            replaced.append(f"summary of thread {number}")
            summary = described(thread, _LONGEST_OUTLINE)
        # The answer is the thread's own: a summary must not improve on it.
        pairs.append(f"Pair {number}:\n<answer>{thread.answer or 'NONE'}</answer>\n{summary}")
    synthesis = Request("thread_synthesis", {"question": question, "threads": "\n\n".join(pairs)})
    text = _texts(writer, [synthesis])[0] or ""
    said = [
        answer.strip() for answer in _ANSWER.findall(text) if normalize(answer) not in _NO_ANSWER
    ]
    if not said:
        chosen = _rests_on(threads, vote(threads), "the answer that most threads gave", "vote")
        return Research(tuple(threads), chosen, "vote", (*replaced, "synthesis"))
    thought = _THINK.search(text)
    chosen = _rests_on(threads, said[-1], thought[1].strip() if thought else "", "synthesis")
    return Research(tuple(threads), chosen, "synthesis", tuple(replaced))


def vote(threads: Sequence[Trajectory]) -> str | None:
    """The answer of most threads as the first of them wrote it; `None` where none gave any.

    Answers are compared normalised; "unknown" wins only where no thread knew. Of answers given equally often one that
    its agent checked and upheld wins, then the earliest.

    Example:
        >>> vote([Trajectory(answer="Rome"), Trajectory(answer="Oslo"), Trajectory(), Trajectory(answer="the Oslo")])
        'Oslo'
    """
    named = [(normalize(one.answer), one) for one in threads if one.answer and one.answer.strip()]
    given = [(key, one) for key, one in named if key not in _NO_ANSWER] or named
    count = Counter(key for key, _ in given)
    upheld = {key for key, one in given if one.steps and one.steps[-1].verified}
    best = max(given, key=lambda pair: (count[pair[0]], pair[0] in upheld), default=None)
    return best[1].answer if best else None


def described(thread: Trajectory, longest: int = _LONGEST_THREAD) -> str:
    """A thread in plain words, whatever its dialect: what was thought, asked and found in each step.

    Where that has more than `longest` characters, all texts in it are shortened alike, those of the last step too.
    """
    texts = sum(1 + len(step.evidence) for step in thread.steps) or 1
    # Less and less room for each text, until all of them fit.
    for room in (longest, longest // texts, longest // (2 * texts), 80):
        text = "\n".join(
            line
            for number, step in enumerate(thread.steps, 1)
            for line in _lines(number, step, room)
        )
        if len(text) <= longest:
            break
    ended = (
        f"answer: {thread.answer}"
        if thread.answer
        else f"no answer ({thread.stop_reason or 'not ended'})"
    )
    return f"{shortened(text, longest)}\n{ended}".strip()


def _lines(number: int, step: Step, room: int) -> list[str]:
    lines = [f"STEP {number} {shortened((step.think or '').strip(), room)}".rstrip()]
    if step.call is not None:
        lines.append(f"call: {step.call.name} {shortened(str(step.call.arguments), room)}")
    for item in step.evidence:
        where = " ".join(filter(None, (item.id, item.title, item.url)))
        lines.append(f"- {where}: {shortened(item.text, room)}")
    if step.note:
        lines.append(f"- {shortened(step.note, room)}")
    if step.answer is not None:
        lines.append(f"answered: {step.answer}")
    if step.verified is not None:
        lines.append(f"own check: {'correct' if step.verified else 'incorrect'}")
    return lines


class Metered:
    """A generator that counts its rows (`calls`) and tokens, under the names of `wire.llm.Stats` for served models."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.calls = self.prompt_tokens = self.completion_tokens = 0

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        found = self.generator.generate(prompts, sampling, max_new_tokens)
        self.calls += len(prompts)
        self.prompt_tokens += sum(map(len, prompts))
        self.completion_tokens += sum(len(completion.ids) for completion in found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)


def _texts(writer: Writer | None, requests: Sequence[Request]) -> Sequence[str | None]:
    """The texts; `None` for each where the writer fails, since the threads alone can give an answer."""
    with suppress(FaithfulSearchError, RuntimeError):  # the latter: torch is out of memory, say
        if writer is not None:
            return writer.write_batch(requests)
    return [None] * len(requests)


def _rests_on(threads: Sequence[Trajectory], answer: str | None, why: str, by: str) -> Trajectory:
    """The first thread with this answer, or all calls of all threads with it as the last step."""
    if answer is None:
        return threads[0]
    key = normalize(answer)
    own = [
        number
        for number, one in enumerate(threads, start=1)
        if one.answer and normalize(one.answer) == key
    ]
    if own:
        chosen = threads[own[0] - 1]
    else:  # dialects and verdicts are left out, since the order of the calls is not the threads' own
        first, steps = threads[0], []
        for number, thread in enumerate(threads, start=1):
            for step in (step for step in thread.steps if step.call is not None):
                found = (
                    msgspec.structs.replace(item, id=f"{number}.{item.id}")
                    for item in step.evidence
                )
                steps.append(Step(step.think, step.call, tuple(found), step.note))
        whole = (*steps, Step(why, answer=answer))
        chosen = Trajectory(
            whole,
            first.question,
            answer,
            "answered",
            id=f"{first.id}#pooled",
            answers=first.answers,
        )
    told = {"by": by, "thread": own[0] if own else None, "of": len(threads), "analysis": why}
    return msgspec.structs.replace(chosen, meta={**chosen.meta, "research": told})
