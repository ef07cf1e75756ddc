"""Would the verdict change if the evidence did? Proof-of-Use's perturbation reward."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from ..errors import ConfigError, JudgeError
from ..judges import Request, Writer
from ..trajectory import Evidence, Trajectory
from ..world import Change
from .base import PolicyReward, Score
from .citation import step_validity
from .contexts import Transcript, Transcripts, context_of
from .perturbation import Foils, Passage, Source, asked_for, degrade, lure, sources


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
    when nothing there is unrelated enough, which a policy can learn by heart: with few questions in a batch, give
    `snippets` (`corpus_snippets`). The lure is written by `writer` (the paper's way: an LLM), else it is a template
    that restates the query with a made-up answer.

    At B = 0 the value is 0.0 with `parts["applies"]` False. `parts["raw"]` is the value before it was centred,
    `parts["steps"]` has q and q' of each probe and who made what replaced the evidence: `replaced` of a yes-step is
    "foil" or "unrelated", `lure` of a no-step "foil", "written" or "template".

    Args:
        budget: B_max; 1 in the paper's main experiments, 2 in an ablation, `None` for all eligible steps.
        snippets: texts, or pairs of title and text, to draw from instead of the batch's evidence.
        seed: of the step choice and of what replaces the evidence.
        writer: invents the lures of no-steps, all of a batch in one call; an `EndpointJudge` is one.
        draws: "rollout" draws anew for every trajectory. "question" lets the rollouts of a question meet the same
            replacements (ours): it seeds by the question, the number of yes-verdicts before the step, and the case (yes
            or no), and prefers the same steps.
        centre: subtract from each move the mean move of its case over the batch of all processes, as a "no" earns more
            than a "yes" whatever the policy does (ours); values are then in [-2, 2]. Leave it out of measurements.
        foils: exchange evidence for passages that look like what was asked for, and take lures from the corpus's own
            sentences (ours). In a yes-case whatever else of the response states the fact is exchanged, too, as the
            verdict would otherwise rightly stay. What they have nothing for is made as without them.
        hard: the share of probes that `foils` replace evidence in.
        policy: the Generator to probe, usually given by `bind(policy=…)`.
        gather: given a list of this process, that of all processes of a training, which its trainer binds.
        sink: is given the probes of each batch, a list a trajectory; a training's verdict term gets them here.

    Raises:
        ConfigError: when no policy is bound, or for a budget, draws or a share out of range.
        DataError: when a trajectory's token ids are not those of its steps.

    How to hack it: find the snippets out. Sources that repeat teach the policy their style instead of their relevance.
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
            raise ConfigError(
                f"EvidenceSensitivity: budget must be at least 1, not {self.budget}; or leave it out"
            )
        if self.draws not in ("question", "rollout"):
            raise ConfigError(
                f"EvidenceSensitivity: unknown draws {self.draws!r}; there are: question, rollout"
            )
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
        return [
            self._score(row, own, premiums) for row, own in zip(trajectories, answers, strict=True)
        ]

    def _score(
        self, trajectory: Trajectory, answers: "Sequence[_Answered]", premiums: Mapping[bool, float]
    ) -> Score:
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
        parts = {
            "applies": True,
            "raw": sum(one.move for one in answers) / len(answers),
            "steps": told,
        }
        steps = tuple(earned.get(number) for number in range(1, len(trajectory.steps) + 1))
        return Score(
            sum(earned.values()) / len(earned), "" if worst.move > 0 else why, parts, steps
        )

    def probes(self, trajectories: Sequence[Trajectory]) -> "list[list[Probe]]":
        """What the policy is asked about each trajectory, step by step. Raises as `score_batch`."""
        transcripts = Transcripts(self.bound_policy.tokenizer)
        pool = sources(trajectories, self.snippets, self.gather)
        drafts = [
            [self._draft(row, index, rng, pool) for index, rng in self._chosen(row)]
            for row in trajectories
        ]
        self._write_lures([draft for own in drafts for draft in own])
        both = zip(trajectories, drafts, strict=True)
        return [_probes(transcripts.of(trajectory), own) if own else [] for trajectory, own in both]

    def _chosen(self, trajectory: Trajectory) -> list[tuple[int, random.Random]]:
        """Indices of the steps that are probed, in order, each with what its other draws come from."""
        validity = enumerate(step_validity(trajectory), start=1)
        steps = [
            index for index, valid in validity if valid and trajectory.steps[index - 1].evidence
        ]
        count = len(steps) if self.budget is None else min(self.budget, len(steps))
        if self.draws == "question":
            # by what rollouts that reach the same point have in common: the facts found, and whether this finds another
            said = [bool(step.helpful) for step in trajectory.steps]
            states = {
                index: f"{sum(said[:index])}:{'yes' if said[index] else 'no'}" for index in steps
            }
            asked = trajectory.question or trajectory.id
            own = {index: random.Random(f"{self.seed}:{asked}:{states[index]}") for index in steps}
            first = sorted(steps, key=lambda index: own[index].random())[:count]
            return [(index, own[index]) for index in sorted(first)]
        rng = random.Random(f"{self.seed}:{trajectory.id}")
        return [(index, rng) for index in sorted(rng.sample(steps, count))]

    def _draft(
        self, trajectory: Trajectory, index: int, rng: random.Random, pool: list[Source]
    ) -> "_Draft":
        """What step `index` is probed with; a lure that nobody has made yet is the template's."""
        previous, step, question = (
            trajectory.steps[index - 1],
            trajectory.steps[index],
            trajectory.question,
        )
        query, change = asked_for(previous, question), Change.of(trajectory.meta)
        # the foils of the world that the rollout was in, and whether this probe is made of them
        foils = self.foils.changed(change) if self.foils and change else self.foils
        drawn = foils if foils is not None and rng.random() < self.hard else None
        if step.helpful:
            # what else states the fact goes in every probe, also in one that gets unrelated passages
            stating = {item.id for item in previous.evidence if foils and foils.states(query, item)}
            changed, by_foils = degrade(
                previous, {*step.refs, *stating}, question, pool, rng, drawn
            )
            return _Draft(index, list(changed), "foil" if by_foils else "unrelated")
        passage = drawn.lure(query, rng) if drawn else None
        evidence, place = lure(previous, question, rng, passage)
        request = None if passage else Request("lure", {"question": question or "", "query": query})
        return _Draft(index, evidence, "foil" if passage else "template", place, request)

    def _write_lures(self, drafts: "Sequence[_Draft]") -> None:
        """Let the writer put its words into the templates' passages; where it cannot, the templates stay."""
        lures = [(draft, draft.request) for draft in drafts if draft.request is not None]
        if self.writer is None or not lures:
            return
        try:
            texts = self.writer.write_batch([request for _, request in lures])
        except JudgeError:
            return
        for (draft, _), text in zip(lures, texts, strict=True):
            if text and text.strip():
                item = draft.evidence[draft.place]
                draft.evidence[draft.place] = msgspec.structs.replace(item, text=text.strip())
                draft.made_by = "written"


@dataclass
class _Draft:
    """A step (its index) and the evidence that it is probed with; `request` may improve the lure at `place`."""

    index: int
    evidence: list[Evidence]
    made_by: str
    place: int = 0
    request: Request | None = None


def _probes(transcript: Transcript, drafts: Sequence[_Draft]) -> "list[Probe]":
    tokens, found = transcript.tokens, []
    for draft in drafts:
        index, (place, yes) = draft.index, transcript.yes_at(draft.index)
        responses = {index - 1: transcript.response(index - 1, draft.evidence)}
        real, perturbed = (
            context_of(tokens, index, place, changed) for changed in (None, responses)
        )
        said_yes = bool(transcript.trajectory.steps[index].helpful)
        found.append(Probe(index + 1, said_yes, real, perturbed, [yes], draft.made_by))
    return found


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
    """A probe with q and q'; its move is s(q' - q)."""

    probe: Probe
    q: float
    perturbed: float

    @property
    def move(self) -> float:
        return self.probe.sign * (self.perturbed - self.q)
