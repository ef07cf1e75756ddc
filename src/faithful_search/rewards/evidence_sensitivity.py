"""Would the verdict change if the evidence did? Proof-of-Use's perturbation reward."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from ..errors import ConfigError, JudgeError
from ..judges import Request, Writer
from ..trajectory import Evidence, Trajectory
from ..world import Change
from .base import PolicyReward, Score
from .citation import step_validity
from .contexts import Transcripts, choice_ids, context_with, locate_verdict, real_context, turn_ids
from .perturbation import Foils, Passage, Source, asked_for, degrade, foil_passages, lure, query_of, sources, stating

Chosen = list[tuple[int, random.Random]]
"""Indices of the steps that are probed, in order, each with what its other draws come from."""
Lure = tuple[str, Passage]
"""Who made it ("foil" or "written"), and its title and text."""


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
    them; otherwise the trajectory is rendered again. All probes of a batch are one call of the policy's `choice_probs`,
    real and perturbed in turn.

    What replaces evidence shares no content word with this question and query. It comes from the batch's other
    questions' evidence, or from `snippets` alone where they are given, and from a short built-in list when nothing
    there is unrelated enough. A policy can learn that list by heart: with few questions in a batch, give `snippets`
    (`corpus_snippets`). The lure is written by `writer` (the paper's way: an LLM); without one, or where it could not
    write, it is a template that restates the query with a made-up answer.

    `draws`, `budget=None`, `centre` and `foils`, all ours and off by default, make the reward easier to learn from:
    most of its variance among a question's rollouts is luck of the draw, a "no" earns more than a "yes" whatever the
    policy does, and unrelated passages can be told by their topic.

    At B = 0 the value is 0.0 with `parts["applies"]` False. `parts["raw"]` is the value before it was centred,
    `parts["steps"]` has q and q' of each probe and who made what replaced the evidence: `replaced` of a yes-step is
    "foil" or "unrelated", `lure` of a no-step "foil", "written" or "template".

    Args:
        budget: B_max; 1 in the paper's main experiments, 2 in an ablation, `None` for all eligible steps.
        normalize: p(yes)/(p(yes) + p(no)) instead of the raw probability.
        replace_titles: exchange titles too, since a title that names the asked entity gives the topic away; ids stay.
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
        hard: the share of probes that `foils` replace evidence in; the others are made as without them, so that both
            kinds can be mixed.
        policy: the Generator to probe, usually given by `bind(policy=…)`.
        gather: given a list of this process, that of all processes of a training, which its trainer binds: what a
            rollout is probed with, and what is subtracted, is then the same whichever process it is in.
        sink: is given the probes of each batch, a list a trajectory; a training's verdict term gets them here.

    Raises:
        ConfigError: when no policy is bound, or for a budget, draws or a share out of range.
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
    gather: Callable[[list[Any]], list[Any]] = field(default=list, repr=False)
    sink: Callable[[list[list[Probe]]], None] | None = field(default=None, repr=False)

    name: ClassVar[str] = "evidence_sensitivity"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise ConfigError(
                f"EvidenceSensitivity: budget must be at least 1, not {self.budget}; leave the reward out instead"
            )
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
        rows = self.bound_policy.choice_probs(prompts, choices)
        # both words may be so improbable that their probabilities are 0
        yes = [row[0] if len(row) == 1 else row[0] / sum(row) if sum(row) else 0.0 for row in rows]
        answered = iter(map(_Answered, every, yes[::2], yes[1::2]))
        answers = [[next(answered) for _ in own] for own in probes]
        premiums: dict[bool, float] = {}
        if self.centre:  # by case, the mean move over all processes
            moves = self.gather([(one.probe.yes_case, one.move) for own in answers for one in own])
            for case in {case for case, _ in moves}:
                own_moves = [move for kind, move in moves if kind == case]
                premiums[case] = math.fsum(own_moves) / len(own_moves)  # exact, in whatever order they come
        scores = []
        for row, own in zip(trajectories, answers, strict=True):
            if not own:
                scores.append(Score(0.0, "no step whose verdict can be probed", {"applies": False}))
                continue
            earned, told = {}, []
            for one in own:
                earned[one.probe.step] = one.move - premiums.get(one.probe.yes_case, 0.0)
                kind, replaced = ("yes", "replaced") if one.probe.yes_case else ("no", "lure")
                step = {"step": one.probe.step, "case": kind, "q": one.q, "q_perturbed": one.perturbed}
                told.append({**step, replaced: one.probe.made_by})
            worst = min(own, key=lambda one: one.move)
            why = f"step {worst.probe.step}: p(yes) did not follow the evidence ({worst.move:+.3f})"
            parts = {"applies": True, "raw": sum(one.move for one in own) / len(own), "steps": told}
            steps = tuple(earned.get(number) for number in range(1, len(row.steps) + 1))
            value = sum(earned.values()) / len(earned)
            scores.append(Score(value, "" if worst.move > 0 else why, parts, steps))
        return scores

    def probes(self, trajectories: Sequence[Trajectory]) -> list[list[Probe]]:
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
        for probes, trajectory, steps, own in zip(found, trajectories, chosen, lures, strict=True):
            if steps:
                transcript = transcripts.of(trajectory)
                tokens, chat = transcript.tokens, transcript.chat
                for index, rng in steps:
                    evidence, made_by = self._perturbed(trajectory, index, pool, rng, own.get(index))
                    turn, said_yes = turn_ids(tokens, index), bool(trajectory.steps[index].helpful)
                    verdict = locate_verdict(chat.tokenizer, turn, f"trajectory {trajectory.id!r}, step {index + 1}")
                    # the word that was sampled is asked for as the token that was sampled
                    choices = [
                        [turn[verdict.index]] if (word == "yes") is said_yes else choice_ids(chat, verdict.lead, word)
                        for word in (("yes", "no") if self.normalize else ("yes",))
                    ]
                    real = real_context(tokens, index, verdict.index)
                    responses = {index - 1: transcript.response(index - 1, evidence)}
                    perturbed = context_with(tokens, index, verdict.index, responses)
                    probes.append(Probe(index + 1, said_yes, real, perturbed, choices, made_by))
        return found

    def _chosen(self, trajectory: Trajectory) -> Chosen:
        steps = eligible_steps(trajectory)
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

    def _lures(self, trajectories: Sequence[Trajectory], chosen: Sequence[Chosen]) -> list[dict[int, Lure]]:
        """What the foils have, or else the writer made up, for each trajectory's no-steps, by index."""
        lures: list[dict[int, Lure]] = [{} for _ in trajectories]
        requests: dict[tuple[int, int], Request] = {}
        for row, (trajectory, steps) in enumerate(zip(trajectories, chosen, strict=True)):
            for index, rng in steps:
                previous, question = trajectory.steps[index - 1], trajectory.question
                if trajectory.steps[index].helpful:
                    continue
                foils = self._drawn(self._foils_of(trajectory), rng)
                found = foils and foils.lure(asked_for(previous, question), rng)
                if found:
                    lures[row][index] = "foil", found
                else:
                    fields = {"question": question or "", "query": query_of(previous) or question or ""}
                    requests[row, index] = Request("lure", fields)
        if self.writer is None or not requests:
            return lures
        try:
            texts = self.writer.write_batch(list(requests.values()))
        except JudgeError:  # the template stands in
            texts = [None] * len(requests)
        for (row, index), text in zip(requests, texts, strict=True):
            if text and text.strip():
                title = asked_for(trajectories[row].steps[index - 1], trajectories[row].question)
                lures[row][index] = "written", (title, text.strip())
        return lures

    def _perturbed(
        self, trajectory: Trajectory, index: int, pool: list[Source], rng: random.Random, given: Lure | None
    ) -> tuple[tuple[Evidence, ...], str]:
        """The evidence that replaces what the verdict of step `index` is about, and who made it."""
        previous, step, question = trajectory.steps[index - 1], trajectory.steps[index], trajectory.question
        if not step.helpful:
            made_by, passage = given or ("template", None)
            return lure(previous, question, rng, self.replace_titles, passage), made_by
        known = self._foils_of(trajectory)
        foils = self._drawn(known, rng)
        # what else states the fact goes in every probe, also in one that gets unrelated passages
        gone = {*step.refs, *(stating(previous, question, known) if known else ())}
        found = foil_passages(previous, gone, question, foils, rng) if foils else {}
        evidence = degrade(previous, gone, question, pool, rng, self.replace_titles, found)
        return evidence, "foil" if found else "unrelated"

    def _foils_of(self, trajectory: Trajectory) -> Foils | None:
        """The foils of the world that the rollout was in."""
        change = Change.of(trajectory.meta)
        return self.foils.changed(change) if self.foils and change else self.foils

    def _drawn(self, known: Foils | None, rng: random.Random) -> Foils | None:
        """Whose passages a probe gets: those of the foils, in the share `hard` of probes."""
        return known if known is not None and rng.random() < self.hard else None


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


def eligible_steps(trajectory: Trajectory) -> list[int]:
    """Indices (0-based) of steps with R_cite^t = +1 whose previous response holds evidence."""
    validity = enumerate(step_validity(trajectory), start=1)
    return [index for index, valid in validity if valid and trajectory.steps[index - 1].evidence]
