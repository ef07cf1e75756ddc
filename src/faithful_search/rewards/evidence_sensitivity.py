"""Would the verdict change if the evidence did? Proof-of-Use's perturbation reward."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from .. import dialects
from ..errors import ConfigError, DataError, JudgeError
from ..inference.base import Generator
from ..inference.chat import ChatFormat
from ..judges import Request, Writer
from ..trajectory import Evidence, Step, Tokens, Trajectory
from ..world import Change
from .base import Reward, Score
from .citation import step_validity
from .perturbation import Foils, Passage, Source, asked_for, degrade, foil_passages, lure, query_of, sources, stating

VERDICT_TAG = "<helpful>"
Chosen = list[tuple[int, random.Random]]
"""Indices of the steps that are probed, in order, each with what its other draws come from."""
Lure = tuple[str, Passage]
"""Who made a lure ("foil" or "written"), and its title and text."""
Lures = dict[int, Lure]
"""Lures by the index of the step whose verdict they probe; where there is none, the template stands in."""
Premiums = dict[bool, float]
"""What is subtracted from the moves of yes-cases (`True`) and of no-cases."""


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
    write, it is a template that restates the query with a made-up answer. At B = 0 the value is 0.0 with
    `parts["applies"]` False.

    Four knobs, all ours and off by default, make the reward easier to learn from. Among the rollouts of a question most
    of its variance is luck of the draw: `draws="question"` lets them meet the same replacements, and `budget=None`
    probes every step. A "no" earns more than a "yes" whatever the policy does: `centre` takes that premium away. And
    unrelated passages can be told by their topic: `foils` differ from the evidence in the fact alone.

    `parts["raw"]` is the value before it was centred, `parts["steps"]` has q and q' of each probe, and who made what
    replaced the evidence: `replaced` of a yes-step is "foil" or "unrelated", `lure` of a no-step "foil", "written" or
    "template".

    Args:
        budget: B_max; 1 in the paper's main experiments, 2 in an ablation, `None` for all eligible steps.
        normalize: p(yes)/(p(yes) + p(no)) instead of the raw probability.
        replace_titles: exchange titles too, since a title that names the asked entity gives the topic away; ids stay.
        snippets: texts, or pairs of title and text, to draw from instead of the batch's evidence.
        seed: of the step choice and of what replaces the evidence.
        writer: invents the lures of no-steps, all of a batch in one call; an `EndpointJudge` is one.
        draws: "rollout" draws anew for every trajectory. "question" seeds by the question, the number of yes-verdicts
            before the step, and the case (yes or no); of a trajectory's steps it prefers the same of these as in the
            question's other rollouts. A question that is asked again later meets the same draw.
        centre: subtract from each move the mean move of its case over the batch, in a training over the batches of all
            processes; values are then in [-2, 2]. Leave it out of measurements.
        foils: exchange evidence for passages that look like what was asked for, and take lures from the corpus's own
            sentences. In a yes-case whatever else of the response states the fact is exchanged, too, as the verdict
            would otherwise rightly stay. What they have nothing for is made as without them.
        hard: the share of probes that `foils` replace evidence in; the others are made as without them, so that both
            kinds can be mixed.
        policy: the Generator to probe, usually given by `bind(policy=…)`.
        gather: given a list of this process, that of all processes of a training: its trainer binds it, so that what a
            rollout is probed with, and what is subtracted, does not depend on who else was asked in the same process.
        sink: is given the probes of each batch, a list a trajectory, as they are made. A training's verdict term gets
            them here.

    Raises:
        ConfigError: when no policy is bound, or for a budget, draws or a share that are none.
        DataError: when a trajectory's token ids are not those of its steps.

    Example:
        >>> from faithful_search.trajectory import Step, Trajectory
        >>> EvidenceSensitivity().score(Trajectory(steps=(Step(answer="Rome"),)))
        Traceback (most recent call last):
        faithful_search.errors.ConfigError: EvidenceSensitivity asks the policy itself: use .bind(policy=generator)

    How to hack it: find the snippets out. Sources that repeat teach the policy their style instead of their relevance,
    so draw from many questions, or from many `snippets`.
    """

    budget: int | None = 1
    normalize: bool = False
    replace_titles: bool = True
    snippets: tuple[str | Passage, ...] = field(default=(), repr=False)
    seed: int = 0
    writer: Writer | None = None
    draws: Literal["question", "rollout"] = "rollout"
    centre: bool = False
    foils: Foils | None = field(default=None, repr=False)
    hard: float = 1.0
    policy: Generator | None = field(default=None, repr=False)
    gather: Callable[[list[Any]], list[Any]] = field(default=list, repr=False)
    sink: Callable[[list[list[Probe]]], None] | None = field(default=None, repr=False)

    name: ClassVar[str] = "evidence_sensitivity"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    needs_policy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise ConfigError(
                f"EvidenceSensitivity: budget must be at least 1, not {self.budget}; leave the reward out instead"
            )
        if self.draws not in ("question", "rollout"):
            raise ConfigError(f"EvidenceSensitivity: unknown draws {self.draws!r}; there are: question, rollout")
        if not 0 <= self.hard <= 1:
            raise ConfigError(f"EvidenceSensitivity: hard must be in [0, 1], not {self.hard}")

    def score(self, trajectory: Trajectory) -> Score:
        return self.score_batch([trajectory])[0]

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        probes = self.probes(trajectories)
        if self.sink is not None:
            self.sink(probes)
        asked = iter(_ask(self._policy(), [probe for own in probes for probe in own]))
        answers = [[next(asked) for _ in own] for own in probes]
        premiums = self._premiums(probes, answers)
        counts = [len(trajectory.steps) for trajectory in trajectories]
        return [_mean(*row, premiums) for row in zip(counts, probes, answers, strict=True)]

    def probes(self, trajectories: Sequence[Trajectory]) -> list[list[Probe]]:
        """What the policy is asked about each trajectory, step by step.

        Raises:
            ConfigError: when no policy is bound.
            DataError: when a trajectory's token ids are not those of its steps.
        """
        prober = _Prober(self, self._policy().tokenizer, self._pool(trajectories))
        chosen = [self._chosen(trajectory) for trajectory in trajectories]
        lures = self._lures(trajectories, chosen)
        return [prober.probes(*row) for row in zip(trajectories, chosen, lures, strict=True)]

    def foils_of(self, trajectory: Trajectory) -> Foils | None:
        """The foils of the world that the rollout was in."""
        change = Change.of(trajectory.meta)
        return self.foils.changed(change) if self.foils and change else self.foils

    def draw_foils(self, known: Foils | None, rng: random.Random) -> Foils | None:
        """Whose passages a probe gets: those of the foils, in the share `hard` of probes."""
        return known if known is not None and rng.random() < self.hard else None

    def _policy(self) -> Generator:
        if self.policy is None:
            raise ConfigError("EvidenceSensitivity asks the policy itself: use .bind(policy=generator)")
        return self.policy

    def _pool(self, trajectories: Sequence[Trajectory]) -> list[Source]:
        own = sources(trajectories, self.snippets)
        return own if self.snippets else sorted(set(self.gather(own)))

    def _chosen(self, trajectory: Trajectory) -> Chosen:
        steps = eligible_steps(trajectory)
        count = len(steps) if self.budget is None else min(self.budget, len(steps))
        if self.draws == "question":
            own = {index: random.Random(f"{self.seed}:{_state(trajectory, index)}") for index in steps}
            first = sorted(steps, key=lambda index: own[index].random())[:count]
            return [(index, own[index]) for index in sorted(first)]
        rng = random.Random(f"{self.seed}:{trajectory.id}")
        return [(index, rng) for index in sorted(rng.sample(steps, count))]

    def _lures(self, trajectories: Sequence[Trajectory], chosen: Sequence[Chosen]) -> list[Lures]:
        """What the foils have, or else the writer made up, for each trajectory's no-steps, by step."""
        lures: list[Lures] = [{} for _ in trajectories]
        open_: list[tuple[int, int]] = []
        for row, (trajectory, steps) in enumerate(zip(trajectories, chosen, strict=True)):
            for index, rng in steps:
                if trajectory.steps[index].helpful:
                    continue
                foils = self.draw_foils(self.foils_of(trajectory), rng)
                found = foils and foils.lure(asked_for(trajectory.steps[index - 1], trajectory.question), rng)
                if found:
                    lures[row][index] = "foil", found
                else:
                    open_.append((row, index))
        if self.writer is None or not open_:
            return lures
        requests = [_lure_request(trajectories[row], index) for row, index in open_]
        for (row, index), text in zip(open_, _write(self.writer, requests), strict=True):
            if text and text.strip():
                title = asked_for(trajectories[row].steps[index - 1], trajectories[row].question)
                lures[row][index] = "written", (title, text.strip())
        return lures

    def _premiums(self, probes: Sequence[Sequence[Probe]], answers: Sequence[Sequence[Answer]]) -> Premiums:
        """The mean move of each case over the probes of all processes; nothing where moves are not centred."""
        if not self.centre:
            return {}
        own = [
            (probe.yes_case, probe.move(answer))
            for row, said in zip(probes, answers, strict=True)
            for probe, answer in zip(row, said, strict=True)
        ]
        every = self.gather(own)
        by_case = {case: [move for kind, move in every if kind == case] for case in (True, False)}
        return {case: math.fsum(moves) / len(moves) for case, moves in by_case.items() if moves}


@dataclass(frozen=True)
class Probe:
    """One step's question to the policy: p(choices[0]) after the real context, and after the perturbed one.

    `made_by` says who made what replaces the evidence: "foil", "unrelated", "written" or "template".
    """

    step: int
    yes_case: bool
    real: list[int]
    perturbed: list[int]
    choices: list[list[int]]
    made_by: str

    @property
    def sign(self) -> int:
        """s: which way p(yes) should move."""
        return -1 if self.yes_case else 1

    def move(self, answer: Answer) -> float:
        """s(q' - q)."""
        q, perturbed = answer
        return self.sign * (perturbed - q)


Answer = tuple[float, float]
"""q and q'."""


@dataclass(frozen=True)
class _Prober:
    """Makes the probes of one batch: the reward's knobs, the policy's tokenizer, and what may replace evidence."""

    reward: EvidenceSensitivity
    tokenizer: Any
    pool: list[Source]
    chats: dict[str, ChatFormat] = field(default_factory=dict)

    def probes(self, trajectory: Trajectory, chosen: Chosen, lures: Lures) -> list[Probe]:
        if not chosen:
            return []
        chat = self._chat(trajectory.dialect or "pou")
        tokens = trajectory.tokens or chat.transcript(trajectory, trajectory.meta.get("tools", []))
        if len(tokens.turns) != len(trajectory.steps):
            counts = f"{len(tokens.turns)} turns in its tokens, but {len(trajectory.steps)} steps"
            raise DataError(f"trajectory {trajectory.id!r} has {counts}")
        return [self._probe(trajectory, tokens, index, chat, rng, lures.get(index)) for index, rng in chosen]

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
        given: Lure | None,
    ) -> Probe:
        previous, step = trajectory.steps[index - 1], trajectory.steps[index]
        evidence, made_by = self._perturbed(previous, step, trajectory, rng, given)
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
            made_by=made_by,
        )

    def _perturbed(
        self, previous: Step, step: Step, trajectory: Trajectory, rng: random.Random, given: Lure | None
    ) -> tuple[tuple[Evidence, ...], str]:
        """The evidence that takes `previous`'s place, and who made it."""
        reward, question = self.reward, trajectory.question
        if step.helpful:
            known = reward.foils_of(trajectory)
            foils = reward.draw_foils(known, rng)
            gone = {*step.refs, *(stating(previous, question, known) if known else ())}
            found = foil_passages(previous, gone, question, foils, rng) if foils else {}
            evidence = degrade(previous, gone, question, self.pool, rng, reward.replace_titles, found)
            return evidence, "foil" if found else "unrelated"
        made_by, passage = given or ("template", None)
        return lure(previous, question, rng, reward.replace_titles, passage), made_by

    def _choices(self, chat: ChatFormat, lead: str, sampled: int, said_yes: bool) -> list[list[int]]:
        """What to ask for: yes alone, or yes and no; the word that was sampled, as the token that was sampled."""
        words = ("yes", "no") if self.reward.normalize else ("yes",)
        said = "yes" if said_yes else "no"
        return [[sampled] if word == said else choice_ids(chat, lead, word) for word in words]


def _ask(policy: Generator, probes: Sequence[Probe]) -> list[Answer]:
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


def _state(trajectory: Trajectory, index: int) -> str:
    """What rollouts of a question have in common that reach the same point: how many facts they found, and whether the
    step found another."""
    hop = sum(bool(step.helpful) for step in trajectory.steps[:index])
    case = "yes" if trajectory.steps[index].helpful else "no"
    return f"{trajectory.question or trajectory.id}:{hop}:{case}"


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


def _mean(count: int, probes: Sequence[Probe], answers: Sequence[Answer], premiums: Premiums) -> Score:
    if not probes:
        return Score(0.0, "no step whose verdict can be probed", {"applies": False})
    moves = [probe.move(answer) for probe, answer in zip(probes, answers, strict=True)]
    earned = {probe.step: move - premiums.get(probe.yes_case, 0.0) for probe, move in zip(probes, moves, strict=True)}
    steps = [_told(*row) for row in zip(probes, answers, strict=True)]
    worst = min(range(len(moves)), key=moves.__getitem__)
    step, move = probes[worst].step, moves[worst]
    why = "" if move > 0 else f"step {step}: p(yes) did not follow the evidence ({move:+.3f})"
    parts = {"applies": True, "raw": sum(moves) / len(moves), "steps": steps}
    return Score(sum(earned.values()) / len(earned), why, parts, tuple(earned.get(n) for n in range(1, count + 1)))


def _told(probe: Probe, answer: Answer) -> dict[str, Any]:
    case, replaced = ("yes", "replaced") if probe.yes_case else ("no", "lure")
    return {"step": probe.step, "case": case, "q": answer[0], "q_perturbed": answer[1], replaced: probe.made_by}
