"""Would the verdict change if the evidence did? Proof-of-Use's perturbation reward."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from ..errors import ConfigError, JudgeError
from ..judges import Request, Writer
from ..trajectory import Trajectory
from ..world import Change
from .base import PolicyReward, Score
from .citation import step_validity
from .contexts import Transcripts, context_of
from .perturbation import Foils, Passage, asked_for, degrade, lure, query_of, sources

Chosen = list[tuple[int, random.Random]]
"""Indices of the steps that are probed, in order, each with what its other draws come from."""
Lures = dict[tuple[int, int], tuple[str, Passage]]
"""By a trajectory's number and a step's index: who made the lure ("foil" or "written"), and its title and text."""


@dataclass(frozen=True)
class EvidenceSensitivity(PolicyReward):
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
    them; otherwise the trajectory is rendered again. All probes of a batch are one call of the policy's `choice_probs`.

    What replaces evidence (title and text; ids stay) shares no content word with this question and query. It comes from
    the batch's other questions' evidence, or from `snippets` alone where they are given, and from a short built-in list
    when nothing there is unrelated enough. A policy can learn that list by heart: with few questions in a batch, give
    `snippets` (`corpus_snippets`). The lure is written by `writer` (the paper's way: an LLM); without one, or where it
    could not write, it is a template that restates the query with a made-up answer.

    `draws`, `budget=None`, `centre` and `foils`, all ours and off by default, make the reward easier to learn from:
    most of its variance among a question's rollouts is luck of the draw, a "no" earns more than a "yes" whatever the
    policy does, and unrelated passages can be told by their topic.

    At B = 0 the value is 0.0 with `parts["applies"]` False. `parts["raw"]` is the value before it was centred,
    `parts["steps"]` has q and q' of each probe and who made what replaced the evidence: `replaced` of a yes-step is
    "foil" or "unrelated", `lure` of a no-step "foil", "written" or "template".

    Args:
        budget: B_max; 1 in the paper's main experiments, 2 in an ablation, `None` for all eligible steps.
        snippets: texts, or pairs of title and text, to draw from instead of the batch's evidence.
        seed: of the step choice and of what replaces the evidence.
        writer: invents the lures of no-steps, all of a batch in one call; an `EndpointJudge` is one.
        draws: "rollout" draws anew for every trajectory. "question" lets the rollouts of a question meet the same
            replacements: it seeds by the question, the number of yes-verdicts before the step, and the case (yes or
            no), and prefers the same steps. A question that is asked again later meets the same draw.
        centre: subtract from each move the mean move of its case over the batch, in a training over the batches of all
            processes; values are then in [-2, 2]. Leave it out of measurements.
        foils: exchange evidence for passages that look like what was asked for, and take lures from the corpus's own
            sentences. In a yes-case whatever else of the response states the fact is exchanged, too, as the verdict
            would otherwise rightly stay. What they have nothing for is made as without them.
        hard: the share of probes that `foils` replace evidence in; the others are made as without them.
        policy: the Generator to probe, usually given by `bind(policy=…)`.
        gather: given a list of this process, that of all processes of a training, which its trainer binds: what a
            rollout is probed with, and what is subtracted, is then the same whichever process it is in.
        sink: is given the probes of each batch, a list a trajectory; a training's verdict term gets them here.

    Raises:
        ConfigError: when no policy is bound, or for a budget, draws or a share out of range.
        DataError: when a trajectory's token ids are not those of its steps.

    How to hack it: find the snippets out. Sources that repeat teach the policy their style instead of their relevance,
    so draw from many questions, or from many `snippets`.
    """

    budget: int | None = 1
    snippets: tuple[str | Passage, ...] = field(default=(), repr=False)
    seed: int = 0
    writer: Writer | None = None
    draws: Literal["question", "rollout"] = "rollout"
    centre: bool = False
    foils: Foils | None = field(default=None, repr=False)
    hard: float = 1.0
    gather: Callable[[list[Any]], list[Any]] = field(default=list, repr=False)
    sink: "Callable[[list[list[Probe]]], None] | None" = field(default=None, repr=False)

    name: ClassVar[str] = "evidence_sensitivity"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise ConfigError(f"EvidenceSensitivity: budget must be at least 1, not {self.budget}; or leave it out")
        if self.draws not in ("question", "rollout"):
            raise ConfigError(f"EvidenceSensitivity: unknown draws {self.draws!r}; there are: question, rollout")
        if not 0 <= self.hard <= 1:
            raise ConfigError(f"EvidenceSensitivity: hard must be in [0, 1], not {self.hard}")

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        probes = self.probes(trajectories)
        if self.sink is not None:
            self.sink(probes)
        every = [probe for own in probes for probe in own]
        prompts = [context for probe in every for context in (probe.real, probe.perturbed)]
        choices = [probe.choices for probe in every for _ in range(2)]
        # asked even when there is nothing to ask: where weights are shared out, others need this process's passes
        yes = iter([row[0] for row in self.bound_policy.choice_probs(prompts, choices)])
        answers = [[_Answered(probe, next(yes), next(yes)) for probe in own] for own in probes]
        moves: dict[bool, list[float]] = {}
        own_moves = [(one.probe.yes_case, one.move) for own in answers for one in own]
        for case, move in self.gather(own_moves) if self.centre else ():
            moves.setdefault(case, []).append(move)
        # exact, in whatever order they come
        premiums = {case: math.fsum(own) / len(own) for case, own in moves.items()}
        return [self._score(row, own, premiums) for row, own in zip(trajectories, answers, strict=True)]

    def _score(self, trajectory: Trajectory, answers: "Sequence[_Answered]", premiums: Mapping[bool, float]) -> Score:
        if not answers:
            return Score(0.0, "no step whose verdict can be probed", {"applies": False})
        earned, told = {}, []
        for one in answers:
            earned[one.probe.step] = one.move - premiums.get(one.probe.yes_case, 0.0)
            case, replaced = ("yes", "replaced") if one.probe.yes_case else ("no", "lure")
            step = {"step": one.probe.step, "case": case, "q": one.q, "q_perturbed": one.perturbed}
            told.append({**step, replaced: one.probe.made_by})
        worst = min(answers, key=lambda one: one.move)
        why = f"step {worst.probe.step}: p(yes) did not follow the evidence ({worst.move:+.3f})"
        parts = {"applies": True, "raw": sum(one.move for one in answers) / len(answers), "steps": told}
        steps = tuple(earned.get(number) for number in range(1, len(trajectory.steps) + 1))
        return Score(sum(earned.values()) / len(earned), "" if worst.move > 0 else why, parts, steps)

    def probes(self, trajectories: Sequence[Trajectory]) -> "list[list[Probe]]":
        """What the policy is asked about each trajectory, step by step.

        Raises:
            ConfigError: when no policy is bound.
            DataError: when a trajectory's token ids are not those of its steps.
        """
        transcripts = Transcripts(self.bound_policy.tokenizer)
        pool = sources(trajectories, self.snippets, self.gather)
        chosen = [self._chosen(trajectory) for trajectory in trajectories]
        lures = self._lures(trajectories, chosen)
        found: list[list[Probe]] = [[] for _ in trajectories]
        for row, (trajectory, steps) in enumerate(zip(trajectories, chosen, strict=True)):
            if not steps:
                continue
            transcript = transcripts.of(trajectory)
            for index, rng in steps:
                previous, step, question = trajectory.steps[index - 1], trajectory.steps[index], trajectory.question
                if step.helpful:
                    foils, drawn = self._foils_for(trajectory, rng)
                    # what else states the fact goes in every probe, also in one that gets unrelated passages
                    query = asked_for(previous, question)
                    stating = {item.id for item in previous.evidence if foils and foils.states(query, item)}
                    given, gone = foils if drawn else None, {*step.refs, *stating}
                    evidence, by_foils = degrade(previous, gone, question, pool, rng, given)
                    made_by = "foil" if by_foils else "unrelated"
                else:
                    made_by, passage = lures.get((row, index), ("template", None))
                    evidence = lure(previous, question, rng, passage)
                place, yes = transcript.yes_at(index)
                responses = {index - 1: transcript.response(index - 1, evidence)}
                real = context_of(transcript.tokens, index, place)
                perturbed = context_of(transcript.tokens, index, place, responses)
                found[row].append(Probe(index + 1, bool(step.helpful), real, perturbed, [yes], made_by))
        return found

    def _chosen(self, trajectory: Trajectory) -> Chosen:
        validity = enumerate(step_validity(trajectory), start=1)
        steps = [index for index, valid in validity if valid and trajectory.steps[index - 1].evidence]
        count = len(steps) if self.budget is None else min(self.budget, len(steps))
        if self.draws == "question":
            # by what rollouts that reach the same point have in common: the facts found, and whether this finds another
            said = [bool(step.helpful) for step in trajectory.steps]
            states = {index: f"{sum(said[:index])}:{'yes' if said[index] else 'no'}" for index in steps}
            asked = trajectory.question or trajectory.id
            own = {index: random.Random(f"{self.seed}:{asked}:{states[index]}") for index in steps}
            first = sorted(steps, key=lambda index: own[index].random())[:count]
            return [(index, own[index]) for index in sorted(first)]
        rng = random.Random(f"{self.seed}:{trajectory.id}")
        return [(index, rng) for index in sorted(rng.sample(steps, count))]

    def _lures(self, trajectories: Sequence[Trajectory], chosen: Sequence[Chosen]) -> Lures:
        """What the foils have, or else the writer made up, for no-steps; the template stands in for the others."""
        lures: Lures = {}
        requests: dict[tuple[int, int], Request] = {}
        for row, (trajectory, steps) in enumerate(zip(trajectories, chosen, strict=True)):
            for index, rng in steps:
                previous, question = trajectory.steps[index - 1], trajectory.question
                if trajectory.steps[index].helpful:
                    continue
                foils, drawn = self._foils_for(trajectory, rng)
                found = foils.lure(asked_for(previous, question), rng) if foils and drawn else None
                if found:
                    lures[row, index] = "foil", found
                else:
                    fields = {"question": question or "", "query": query_of(previous) or question or ""}
                    requests[row, index] = Request("lure", fields)
        if self.writer is None or not requests:
            return lures
        try:
            texts = self.writer.write_batch(list(requests.values()))
        except JudgeError:
            return lures
        for (row, index), text in zip(requests, texts, strict=True):
            if text and text.strip():
                title = asked_for(trajectories[row].steps[index - 1], trajectories[row].question)
                lures[row, index] = "written", (title, text.strip())
        return lures

    def _foils_for(self, trajectory: Trajectory, rng: random.Random) -> tuple[Foils | None, bool]:
        """The foils of the world that the rollout was in, and whether this probe is made of them."""
        change = Change.of(trajectory.meta)
        known = self.foils.changed(change) if self.foils and change else self.foils
        return known, known is not None and rng.random() < self.hard


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


class _Answered(NamedTuple):
    """A probe with q and q'."""

    probe: Probe
    q: float
    perturbed: float

    @property
    def move(self) -> float:
        """s(q' - q)."""
        return self.probe.sign * (self.perturbed - self.q)
