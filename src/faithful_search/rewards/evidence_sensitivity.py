"""Would the verdict change if the evidence did? Proof-of-Use's perturbation reward."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .. import dialects
from ..errors import ConfigError, DataError, JudgeError
from ..inference.base import Generator
from ..inference.chat import ChatFormat
from ..judges import Request, Writer
from ..trajectory import Evidence, Step, Tokens, Trajectory
from .base import Reward, Score
from .citation import step_validity
from .perturbation import Passage, Source, degrade, lure, query_of, sources

VERDICT_TAG = "<helpful>"
Chosen = tuple[list[int], random.Random]
"""Indices of the steps that are probed, and what else is drawn for this trajectory is drawn from."""
Lures = dict[int, str]
"""Written lures by the index of the step whose verdict they probe."""


@dataclass(frozen=True)
class EvidenceSensitivity(Reward):
    """R_pt: how far p(yes) moves, in the right direction, when the evidence behind a verdict is exchanged.

    ```
    R_pt^t = s_t (q' - q)        q = p(yes | real response), q' = p(yes | perturbed response)
    yes:  s = -1, the cited passages become unrelated snippets
    no:   s = +1, one passage becomes a lure that seems to answer the query
    R_pt   = mean over B = min(T - 1, B_max, #eligible) sampled steps; 0 when B = 0
    ```

    Proof-of-Use, section 3.3.2, equations 3 and 4. Steps are sampled among those with R_cite^t = +1, seeded by the
    trajectory's id. A no-step after a response without evidence has nothing to replace and is not eligible (ours). q is
    the probability of the token that holds the verdict's beginning, in the rollout's own ids where the trajectory has
    them; otherwise the trajectory is rendered again. All probes of a batch are one call of the policy's `choice_probs`,
    real and perturbed in turn.

    What replaces evidence shares no content word with this question and query. It comes from the batch's other
    questions' evidence, or from `snippets` alone where they are given. When nothing there is unrelated enough it comes
    from a short built-in list, which a policy can learn by heart: with few questions in a batch, give `snippets`
    (`corpus_snippets`). The lure is written by `writer` (the paper's way: an LLM); without one, or where it could not
    write, it is a template that restates the query with a made-up answer. `parts["steps"]` says which: `lure` is
    "written" or "template". At B = 0 the value is 0.0 with `parts["applies"]` False.

    Args:
        budget: B_max; 1 in the paper's main experiments, 2 in an ablation.
        normalize: p(yes)/(p(yes) + p(no)) instead of the raw probability.
        replace_titles: exchange titles too, since a title that names the asked entity gives the topic away; ids stay.
        snippets: texts, or pairs of title and text, to draw from instead of the batch's evidence.
        seed: of the step choice and of what replaces the evidence.
        writer: invents the lures of no-steps, all of a batch in one call; an `EndpointJudge` is one.
        policy: the Generator to probe, usually given by `bind(policy=…)`.
        gather: given what may replace evidence here, what may in all processes of a training: its trainer binds it, so
            that what a rollout is probed with does not depend on who else was asked in the same process.

    Raises:
        ConfigError: when no policy is bound.
        DataError: when a trajectory's token ids are not those of its steps.

    Example:
        >>> from faithful_search.trajectory import Step, Trajectory
        >>> EvidenceSensitivity().score(Trajectory(steps=(Step(answer="Rome"),)))
        Traceback (most recent call last):
        faithful_search.errors.ConfigError: EvidenceSensitivity asks the policy itself: use .bind(policy=generator)

    How to hack it: find the snippets out. Sources that repeat teach the policy their style instead of their relevance,
    so draw from many questions, or from many `snippets`.
    """

    budget: int = 1
    normalize: bool = False
    replace_titles: bool = True
    snippets: tuple[str | Passage, ...] = field(default=(), repr=False)
    seed: int = 0
    writer: Writer | None = None
    policy: Generator | None = field(default=None, repr=False)
    gather: Callable[[list[Source]], list[Source]] = field(default=list, repr=False)

    name: ClassVar[str] = "evidence_sensitivity"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    needs_policy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ConfigError(
                f"EvidenceSensitivity: budget must be at least 1, not {self.budget}; leave the reward out instead"
            )

    def score(self, trajectory: Trajectory) -> Score:
        return self.score_batch([trajectory])[0]

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        if self.policy is None:
            raise ConfigError("EvidenceSensitivity asks the policy itself: use .bind(policy=generator)")
        chosen = [self._chosen(trajectory) for trajectory in trajectories]
        lures = self._written(trajectories, [steps for steps, _ in chosen])
        prober = _Prober(self, self.policy.tokenizer, self._pool(trajectories))
        probes = [prober.probes(*row) for row in zip(trajectories, chosen, lures, strict=True)]
        answers = iter(_ask(self.policy, [probe for own in probes for probe in own]))
        return [_mean(own, [next(answers) for _ in own]) for own in probes]

    def _pool(self, trajectories: Sequence[Trajectory]) -> list[Source]:
        own = sources(trajectories, self.snippets)
        return own if self.snippets else sorted(set(self.gather(own)))

    def _chosen(self, trajectory: Trajectory) -> Chosen:
        steps = eligible_steps(trajectory)
        rng = random.Random(f"{self.seed}:{trajectory.id}")
        return sorted(rng.sample(steps, min(self.budget, len(steps)))), rng

    def _written(self, trajectories: Sequence[Trajectory], chosen: Sequence[list[int]]) -> list[Lures]:
        """What the writer made up for each trajectory's no-steps, by step."""
        lures: list[Lures] = [{} for _ in trajectories]
        asked = [
            (row, index)
            for row, (trajectory, steps) in enumerate(zip(trajectories, chosen, strict=True))
            for index in steps
            if not trajectory.steps[index].helpful
        ]
        if self.writer is None or not asked:
            return lures
        requests = [_lure_request(trajectories[row], index) for row, index in asked]
        for (row, index), text in zip(asked, _write(self.writer, requests), strict=True):
            if text and text.strip():
                lures[row][index] = text.strip()
        return lures


@dataclass(frozen=True)
class Probe:
    """One step's question to the policy: p(choices[0]) after the real context, and after the perturbed one."""

    step: int
    yes_case: bool
    real: list[int]
    perturbed: list[int]
    choices: list[list[int]]
    lure: str = ""


@dataclass(frozen=True)
class _Prober:
    """Makes the probes of one batch: the reward's knobs, the policy's tokenizer, and what may replace evidence."""

    reward: EvidenceSensitivity
    tokenizer: Any
    pool: list[Source]
    chats: dict[str, ChatFormat] = field(default_factory=dict)

    def probes(self, trajectory: Trajectory, chosen: Chosen, lures: Lures) -> list[Probe]:
        steps, rng = chosen
        if not steps:
            return []
        chat = self._chat(trajectory.dialect or "pou")
        tokens = trajectory.tokens or chat.transcript(trajectory, trajectory.meta.get("tools", []))
        if len(tokens.turns) != len(trajectory.steps):
            counts = f"{len(tokens.turns)} turns in its tokens, but {len(trajectory.steps)} steps"
            raise DataError(f"trajectory {trajectory.id!r} has {counts}")
        return [self._probe(trajectory, tokens, index, chat, rng, lures.get(index)) for index in steps]

    def _chat(self, dialect: str) -> ChatFormat:
        if dialect not in self.chats:
            self.chats[dialect] = ChatFormat.of(self.tokenizer, dialects.load(dialect))
        return self.chats[dialect]

    def _probe(
        self,
        trajectory: Trajectory,
        tokens: Tokens,
        index: int,
        chat: ChatFormat,
        rng: random.Random,
        written: str | None,
    ) -> Probe:
        previous, step = trajectory.steps[index - 1], trajectory.steps[index]
        evidence = self._perturbed(previous, step, trajectory.question, rng, written)
        ended = chat.ended(turn_ids(tokens, index - 1))
        observation = chat.observation_ids(chat.render_observation(evidence, previous.note), ended)
        turn = turn_ids(tokens, index)
        verdict = locate_verdict(chat.tokenizer, turn, f"trajectory {trajectory.id!r}, step {index + 1}")
        return Probe(
            step=index + 1,
            yes_case=bool(step.helpful),
            real=real_context(tokens, index, verdict.index),
            perturbed=perturbed_context(tokens, index, verdict.index, observation),
            choices=self._choices(chat, verdict.lead, turn[verdict.index], bool(step.helpful)),
            lure="" if step.helpful else "written" if written else "template",
        )

    def _perturbed(
        self, previous: Step, step: Step, question: str | None, rng: random.Random, written: str | None
    ) -> tuple[Evidence, ...]:
        titles = self.reward.replace_titles
        if step.helpful:
            return degrade(previous, step.refs, question, self.pool, rng, titles)
        return lure(previous, question, rng, titles, written)

    def _choices(self, chat: ChatFormat, lead: str, sampled: int, said_yes: bool) -> list[list[int]]:
        """What to ask for: yes alone, or yes and no; the word that was sampled, as the token that was sampled."""
        words = ("yes", "no") if self.reward.normalize else ("yes",)
        said = "yes" if said_yes else "no"
        return [[sampled] if word == said else choice_ids(chat, lead, word) for word in words]


def _ask(policy: Generator, probes: Sequence[Probe]) -> list[tuple[float, float]]:
    """(q, q') of each probe, all in one call; the policy is asked even then when there is none, as other processes may
    need this one's forward passes."""
    prompts = [context for probe in probes for context in (probe.real, probe.perturbed)]
    choices = [probe.choices for probe in probes for _ in range(2)]
    yes = [_yes(row) for row in policy.choice_probs(prompts, choices)]
    return list(zip(yes[::2], yes[1::2], strict=True))


@dataclass(frozen=True)
class VerdictToken:
    """Where a turn's verdict begins: the token's index, and the characters that token holds before the verdict."""

    index: int
    lead: str


def eligible_steps(trajectory: Trajectory) -> list[int]:
    """Indices (0-based) of steps with R_cite^t = +1 whose previous response holds evidence."""
    validity = enumerate(step_validity(trajectory), start=1)
    return [index for index, valid in validity if valid and trajectory.steps[index - 1].evidence]


def turn_ids(tokens: Tokens, index: int) -> list[int]:
    """The ids that the policy sampled in step `index`."""
    start, middle, _ = tokens.turns[index]
    return tokens.completion_ids[start:middle]


def real_context(tokens: Tokens, index: int, k: int) -> list[int]:
    """Everything up to token `k` of step `index`, as it was."""
    return tokens.prompt_ids + tokens.completion_ids[: tokens.turns[index][0] + k]


def perturbed_context(tokens: Tokens, index: int, k: int, observation: list[int]) -> list[int]:
    """`real_context` with `observation` in place of the tool response just before step `index`."""
    before = tokens.completion_ids[: tokens.turns[index - 1][1]]
    return tokens.prompt_ids + before + observation + turn_ids(tokens, index)[:k]


def locate_verdict(tokenizer: Any, turn: list[int], where: str = "turn") -> VerdictToken:
    """The token that holds the first character of the verdict word.

    Raises:
        DataError: when the decoded ids hold no verdict, so that ids and parsed steps do not belong together.
    """
    text = _decode(tokenizer, turn)
    tag = text.find(VERDICT_TAG, max(0, text.find("<think>")))
    rest = text[tag + len(VERDICT_TAG) :]
    if tag < 0 or not rest.strip():
        raise DataError(
            f"{where}: the token ids hold no {VERDICT_TAG} verdict, the parsed step does; are they of one rollout?"
        )
    position = len(text) - len(rest.lstrip())
    index = bisect_right(range(1, len(turn) + 1), position, key=lambda k: len(_decode(tokenizer, turn[:k])))
    return VerdictToken(index, text[len(_decode(tokenizer, turn[:index])) : position])


def choice_ids(chat: ChatFormat, lead: str, word: str) -> list[int]:
    """The ids that begin `word` where `lead` may merge with it: up to the first token that reaches into the word."""
    ids = chat.encode(lead + word)
    reaches = bisect_right(range(1, len(ids) + 1), len(lead), key=lambda k: len(_decode(chat.tokenizer, ids[:k])))
    return ids[: reaches + 1]


def _lure_request(trajectory: Trajectory, index: int) -> Request:
    previous = trajectory.steps[index - 1]
    question = trajectory.question or ""
    return Request("lure", {"question": question, "query": query_of(previous) or question})


def _write(writer: Writer, requests: Sequence[Request]) -> list[str | None]:
    try:
        return writer.write_batch(requests)
    except JudgeError:
        return [None] * len(requests)


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _yes(row: Sequence[float]) -> float:
    if len(row) == 1:
        return row[0]
    return row[0] / sum(row) if sum(row) else 0.0


def _mean(probes: Sequence[Probe], answers: Sequence[tuple[float, float]]) -> Score:
    if not probes:
        return Score(0.0, "no step whose verdict can be probed", {"applies": False})
    moves = [q - after if probe.yes_case else after - q for probe, (q, after) in zip(probes, answers, strict=True)]
    steps = [
        {"step": probe.step, "case": "yes" if probe.yes_case else "no", "q": q, "q_perturbed": after}
        | ({"lure": probe.lure} if probe.lure else {})
        for probe, (q, after) in zip(probes, answers, strict=True)
    ]
    worst = min(range(len(moves)), key=moves.__getitem__)
    step, move = probes[worst].step, moves[worst]
    why = "" if move > 0 else f"step {step}: p(yes) did not follow the evidence ({move:+.3f})"
    return Score(sum(moves) / len(moves), why, {"applies": True, "steps": steps})
