"""Would the verdict change if the evidence did? Proof-of-Use's perturbation reward."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple

from ..errors import ConfigError, JudgeError
from ..judges import Request, Writer
from ..tasks import world_context
from ..trajectory import Evidence, Trajectory
from .base import Column, PolicyReward, Result, Score
from .citation import step_validity
from .contexts import Transcript, Transcripts, context_of
from .form import mention
from .lures import with_lure
from .perturbation import (
    Donor,
    Foils,
    Passage,
    asked_for,
    degrade,
    donors_of,
    exchanged_before,
    known_texts,
    lure,
)

PROBES = "probes"  # the part of a score that has what the policy was asked, see `keep_probes`


@dataclass(frozen=True)
class EvidenceSensitivity(PolicyReward):
    """R_pt: how far p(yes) moves, in the right direction, when the evidence of a verdict is
    replaced.

    ```
    R_pt^t = s_t (q' - q)        q = p(yes | real response), q' = p(yes | perturbed response)
    yes:  s = -1, the cited passages' texts become unrelated ones
    no:   s = +1, in one passage's text stands a lure that seems to answer the query
    R_pt   = mean over B = min(T - 1, B_max, #eligible) sampled steps; 0 when B = 0
    ```

    Proof-of-Use, section 3.3.2, equations 3 and 4. Steps are sampled among those with R_cite^t =
    +1, seeded by the trajectory's id. A step without evidence to replace, or for whose evidence no
    replacement is found, is not eligible (ours). q is the probability of the token with which the
    verdict begins. The context is the rollout's sampled token ids; a trajectory without ids is
    rendered and tokenized first. All probes of a batch are one call of the policy's `choice_probs`.

    A policy that recognised replaced evidence by its form would be paid without reading. So only
    texts are replaced (ours): id, title, address, order and number of the passages stay. A new text
    is about as long as the old one, ends alike, and names its title where the old one did.

    Unrelated texts come from `snippets`, or else from the evidence that other questions of the
    batch returned. Texts that share a content word with this question or query are not used. With
    few questions in a batch, give `snippets` (`corpus_snippets`). Lures are written by `writer` (an
    LLM in the paper). Without one, a lure is a sentence that gives a name from the passages, or
    from the batch, as the answer to the query.

    At B = 0 the value is 0.0 with `parts["applies"]` False. `parts["raw"]` is the value before it
    was centred. `parts["steps"]` has q and q' of each probe, and where the new text comes from:
    `replaced` of a yes-step is "foil" or "unrelated", and `lure` of a no-step "foil", "written" or
    "template".

    Args:
        budget: B_max; 1 in the paper's main experiments, 2 in an ablation, `None` for all eligible
            steps.
        snippets: texts, or pairs of title and text, to draw from instead of the batch's evidence.
        seed: of the step choice and of what replaces the evidence.
        writer: invents the lures of no-steps, all of a batch in one call; an `EndpointJudge` is
            one.
        draws: "rollout" draws anew for every trajectory. "question" gives the rollouts of a
            question the same replacements (ours): draws are seeded by the question, the number of
            yes-verdicts before the step, and the case (yes or no), and the same steps are
            preferred.
        centre: subtract from each move the mean move of its case over the batch of all processes
            (ours), since a "no" earns more than a "yes" whatever the policy does. Values are then
            in [-2, 2]. Not for measurements.
        foils: a source of look-alike passages (ours). Cited evidence is replaced by passages that
            look like what was asked for, and lures are the corpus's own sentences. In a yes-case
            uncited passages that state the fact are replaced, too: with them the verdict would
            rightly stay. Where `foils` has no passage, the replacement is made as without `foils`.
        hard: share of the probes whose evidence is replaced by `foils`.
        policy: the Generator to probe, usually given by `bind(policy=…)`.
        gather: collects a list from every process of a training (`gather_object`); its trainer
            binds it, the default returns the list itself. It is a collective operation: every
            process must call it equally often.
        keep_probes: put the probes of a trajectory into `parts["probes"]`, where a training's
            verdict term reads them; its trainer binds this.

    Raises:
        ConfigError: when no policy is bound, or for a budget, draws or a share out of range.
        DataError: when a trajectory's token ids are not those of its steps.

    How to hack it: say yes where the passages hold words of the query (not with `foils`, which hold
    them, too). Where `snippets` are few, learn them by heart.
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
    keep_probes: bool = field(default=False, repr=False)

    name: ClassVar[str] = "evidence_sensitivity"
    results: ClassVar[Mapping[str, Result]] = {
        "evidence_sensitivity": Result(
            asks="how far does the policy's verdict move when the evidence is replaced?",
            clean="the verdict moves this far when the evidence is replaced",
        ),
        # made by `measure.evaluating`, with snippets that no training uses
        "evidence_sensitivity_unseen": Result(
            asks=(
                "how far does the policy's verdict move when the evidence is replaced by "
                "passages that no training shows?"
            ),
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "evidence_sensitivity": "Evidence sensitivity (R_pt)",
        "evidence_sensitivity_unseen": "Evidence sensitivity, unseen replacements",
    }
    columns: ClassVar[Mapping[str, Column]] = {
        "evidence_sensitivity": Column("pt", "evidence sensitivity"),
    }
    label: ClassVar[str] = "evidence sensitivity, R_pt"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # not centred; centred values reach ±2

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise ConfigError(
                f"EvidenceSensitivity: budget must be at least 1, not {self.budget}; or leave it "
                "out"
            )
        if self.draws not in ("question", "rollout"):
            raise ConfigError(
                f"EvidenceSensitivity: unknown draws {self.draws!r}; there are: question, rollout"
            )
        if not 0 <= self.hard <= 1:
            raise ConfigError(f"EvidenceSensitivity: hard must be in [0, 1], not {self.hard}")

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        answers_by_trajectory = self._ask(self.probes(trajectories))
        mean_moves = self._mean_moves(answers_by_trajectory) if self.centre else {}
        return [
            self._score(trajectory, answers, mean_moves)
            for trajectory, answers in zip(trajectories, answers_by_trajectory, strict=True)
        ]

    def _ask(self, probes_by_trajectory: "Sequence[Sequence[Probe]]") -> "list[list[_Answered]]":
        """Ask the policy about all probes in one call; the answers, trajectory by trajectory."""
        prompts: list[list[int]] = []
        choices: list[list[list[int]]] = []
        for probe in chain.from_iterable(probes_by_trajectory):
            prompts += [probe.real_context, probe.perturbed_context]
            choices += [[probe.yes_ids], [probe.yes_ids]]
        # Called even without prompts: where weights are sharded, other processes need this one's
        # forward passes.
        probabilities = iter(self.bound_policy.choice_probs(prompts, choices))
        answers_by_trajectory = []
        for probes in probes_by_trajectory:
            answers = []
            for probe in probes:
                [q] = next(probabilities)
                [q_perturbed] = next(probabilities)
                answers.append(_Answered(probe, q, q_perturbed))
            answers_by_trajectory.append(answers)
        return answers_by_trajectory

    def _mean_moves(
        self, answers_by_trajectory: "Sequence[Sequence[_Answered]]"
    ) -> dict[bool, float]:
        """The mean move of yes-cases (`True`) and of no-cases over the batch of all processes."""
        moves_here: list[tuple[bool, float]] = []
        for answer in chain.from_iterable(answers_by_trajectory):
            moves_here.append((answer.probe.yes_case, answer.move))
        moves: defaultdict[bool, list[float]] = defaultdict(list)
        for yes_case, move in self.gather(moves_here):
            moves[yes_case].append(move)
        # `fsum` is exact, so that the order in which processes are gathered does not matter
        return {yes_case: math.fsum(group) / len(group) for yes_case, group in moves.items()}

    def _score(
        self,
        trajectory: Trajectory,
        answers: "Sequence[_Answered]",
        mean_moves: Mapping[bool, float],
    ) -> Score:
        if not answers:
            return Score(0.0, "no step whose verdict can be probed", {"applies": False})
        earned = {}  # by the number of the step
        for answer in answers:
            mean_move = mean_moves.get(answer.probe.yes_case, 0.0)
            earned[answer.probe.step] = answer.move - mean_move
        worst = min(answers, key=lambda answer: answer.move)
        why = ""
        if worst.move <= 0:
            why = f"step {worst.probe.step}: p(yes) did not follow the evidence ({worst.move:+.3f})"
        parts: dict[str, Any] = {
            "applies": True,
            "raw": sum(answer.move for answer in answers) / len(answers),
            "steps": [answer.record for answer in answers],
        }
        if self.keep_probes:
            parts[PROBES] = [answer.probe for answer in answers]
        steps = tuple(earned.get(number) for number in range(1, len(trajectory.steps) + 1))
        return Score(sum(earned.values()) / len(earned), why, parts, steps)

    def probes(self, trajectories: Sequence[Trajectory]) -> "list[list[Probe]]":
        """What the policy is asked about each trajectory, step by step.

        It gathers the batch's evidence, so in a training every process must call it. Raises
        `DataError` when a trajectory's token ids are not those of its steps.
        """
        transcripts = Transcripts(self.bound_policy.tokenizer)
        pool = donors_of(trajectories, self.snippets, self.gather)
        drafts_by_trajectory = []
        for trajectory in trajectories:
            drafts = []
            for index, rng in self._chosen(trajectory):
                draft = self._draft(trajectory, index, rng, pool)
                if draft is not None:
                    drafts.append(draft)
            drafts_by_trajectory.append(drafts)
        self._write_lures(list(chain.from_iterable(drafts_by_trajectory)))
        probes_by_trajectory = []
        for trajectory, drafts in zip(trajectories, drafts_by_trajectory, strict=True):
            probes = _probes(transcripts.of(trajectory), drafts) if drafts else []
            probes_by_trajectory.append(probes)
        return probes_by_trajectory

    def _chosen(self, trajectory: Trajectory) -> list[tuple[int, random.Random]]:
        """The indices of the steps that are probed, in order, each with the random numbers that its
        other draws use.
        """
        eligible = []
        remembered = known_texts(trajectory.steps)
        # Validity begins with the second step: a verdict is on what the step before it returned.
        for index, is_valid in enumerate(step_validity(trajectory), start=1):
            if is_valid and _is_testable(trajectory, index, remembered[index - 1]):
                eligible.append(index)
        count = len(eligible)
        if self.budget is not None:
            count = min(self.budget, count)
        if self.draws == "rollout":
            rng = random.Random(f"{self.seed}:{trajectory.id}")
            chosen = rng.sample(eligible, count)
            return [(index, rng) for index in sorted(chosen)]
        rngs = {index: self._shared_rng(trajectory, index) for index in eligible}
        # The first number that a step draws is its rank, so that the rollouts of a question prefer
        # the same steps.
        ranks = {index: rngs[index].random() for index in eligible}
        chosen = sorted(eligible, key=ranks.__getitem__)[:count]
        return [(index, rngs[index]) for index in sorted(chosen)]

    def _shared_rng(self, trajectory: Trajectory, index: int) -> random.Random:
        """The random numbers of a step. They are the same in all rollouts of the question with as
        many yes-verdicts before the step and the same verdict at it.
        """
        yes_before = sum(bool(step.helpful) for step in trajectory.steps[:index])
        verdict = "yes" if trajectory.steps[index].helpful else "no"
        question = trajectory.question or trajectory.id
        return random.Random(f"{self.seed}:{question}:{yes_before}:{verdict}")

    def _draft(
        self, trajectory: Trajectory, index: int, rng: random.Random, pool: Sequence[Donor]
    ) -> "_Draft | None":
        """The evidence that the step at `index` is probed with, in which lures are still those of
        the templates. `None` where no replacement is found.
        """
        foils = self.foils
        if foils is not None:
            # In the changed world of a counterfactual task other facts hold.
            foils = foils.in_context(world_context(trajectory.meta))
        # Drawn only with foils, so that a setting without them draws the same numbers as ever
        is_hard = foils is not None and rng.random() < self.hard
        if trajectory.steps[index].helpful:
            return _yes_draft(trajectory, index, rng, pool, foils, is_hard)
        return _no_draft(trajectory, index, rng, pool, foils if is_hard else None)

    def _write_lures(self, drafts: "Sequence[_Draft]") -> None:
        """Replace the templates' lures by the writer's, as far as it writes usable ones."""
        if self.writer is None:
            return
        with_template = []
        requests = []
        for draft in drafts:
            if draft.request is not None:
                with_template.append(draft)
                requests.append(draft.request)
        if not requests:
            return
        try:
            texts = self.writer.write_batch(requests)
        except JudgeError:
            return
        for draft, text in zip(with_template, texts, strict=True):
            original = draft.original
            if not text or not text.strip() or original is None:
                continue
            rng = random.Random(f"{self.seed}:{text}")
            passage = with_lure(original, text.strip(), rng)
            original_names_title = bool(mention(original.title, original.text))
            if original_names_title and not mention(passage.title, passage.text):
                continue  # a text that does not name its title would be recognised by that
            draft.evidence[draft.passage_index] = passage
            draft.made_by = "written"


def _is_testable(trajectory: Trajectory, index: int, remembered: Collection[str]) -> bool:
    """Whether the response before the step holds evidence to replace that the agent did not know
    before. `remembered` are the texts of that response which it knew.
    """
    previous = trajectory.steps[index - 1]
    step = trajectory.steps[index]
    if step.helpful:
        cited = {passage.text for passage in previous.evidence if passage.id in step.refs}
        return bool(cited) and cited.isdisjoint(remembered)
    return any(passage.text not in remembered for passage in previous.evidence)


def _yes_draft(
    trajectory: Trajectory,
    index: int,
    rng: random.Random,
    pool: Sequence[Donor],
    foils: Foils | None,
    is_hard: bool,
) -> "_Draft | None":
    """A probe of a yes: the cited passages are replaced by others that do not state what was
    asked.
    """
    previous = trajectory.steps[index - 1]
    replaced_ids = set(trajectory.steps[index].refs)
    if foils is not None:
        # In every probe, hard or not: with an uncited passage that states the fact the verdict
        # would rightly stay.
        query = asked_for(previous, trajectory.question)
        stating = [passage for passage in previous.evidence if foils.states(query, passage)]
        remembered = known_texts(trajectory.steps[:index])[-1]
        if any(passage.text in remembered for passage in stating):
            return None
        replaced_ids |= {passage.id for passage in stating}
    degraded = degrade(
        previous, replaced_ids, trajectory.question, pool, rng, foils if is_hard else None
    )
    if degraded is None:
        return None
    made_by = "foil" if degraded.by_foils else "unrelated"
    return _Draft(index=index, evidence=degraded.evidence, made_by=made_by)


def _no_draft(
    trajectory: Trajectory,
    index: int,
    rng: random.Random,
    pool: Sequence[Donor],
    foils: Foils | None,
) -> "_Draft | None":
    """A probe of a no: one passage holds a lure, which seems to answer the query."""
    previous = trajectory.steps[index - 1]
    question = trajectory.question
    query = asked_for(previous, question)
    foil = None
    if foils is not None:
        foil = foils.lure(query, rng)
    remembered = known_texts(trajectory.steps[:index])[-1]
    lured = lure(previous, question, pool, rng, foil, remembered)
    if lured is None:
        return None
    if lured.by_foils:
        return _Draft(
            index=index, evidence=lured.evidence, made_by="foil", passage_index=lured.place
        )
    original = previous.evidence[lured.place]
    return _Draft(
        index=index,
        evidence=lured.evidence,
        made_by="template",
        passage_index=lured.place,
        original=original,
        request=_request(original, question, query),
    )


def _request(passage: Evidence, question: str | None, query: str) -> Request:
    """What a writer is asked for a lure in this passage."""
    fields = {"question": question or "", "query": query}
    title_as_written = mention(passage.title, passage.text)
    if title_as_written:
        fields["title"] = title_as_written
    return Request("lure", fields)


@dataclass
class _Draft:
    """A step (its index) and the evidence that it is probed with.

    Where a writer may still make a better lure, `request` is what it is asked and `original` the
    passage at `passage_index` as it was returned.
    """

    index: int
    evidence: list[Evidence]
    made_by: str
    passage_index: int = 0
    original: Evidence | None = None
    request: Request | None = None


def _probes(transcript: Transcript, drafts: Sequence[_Draft]) -> "list[Probe]":
    """The drafts of one trajectory as token ids: the context of each verdict, as it was and with
    the response replaced.
    """
    tokens = transcript.tokens
    steps = transcript.trajectory.steps
    probes = []
    for draft in drafts:
        index = draft.index
        verdict_token, yes_ids = transcript.yes_at(index)
        # A text that is replaced in the last response is replaced in earlier ones, too
        responses = {}
        for earlier, evidence in exchanged_before(steps[:index], draft.evidence).items():
            responses[earlier] = transcript.response(earlier, evidence)
        responses[index - 1] = transcript.response(index - 1, draft.evidence)
        probe = Probe(
            step=index + 1,
            yes_case=bool(steps[index].helpful),
            real_context=context_of(tokens, index, verdict_token),
            perturbed_context=context_of(tokens, index, verdict_token, responses),
            yes_ids=yes_ids,
            made_by=draft.made_by,
        )
        probes.append(probe)
    return probes


@dataclass(frozen=True)
class Probe:
    """One step's question to the policy: the probability of `yes_ids` after the real context, and
    after the perturbed one. All three are token ids.

    `step` counts from 1. `yes_case`: the policy said yes. `made_by` says where the new text comes
    from: "foil", "unrelated", "written" or "template".
    """

    step: int
    yes_case: bool
    real_context: list[int]
    perturbed_context: list[int]
    yes_ids: list[int]
    made_by: str

    @property
    def sign(self) -> int:
        """s: which way p(yes) should move."""
        return -1 if self.yes_case else 1


class _Answered(NamedTuple):
    """A probe with q and q'; its move is s(q' - q)."""

    probe: Probe
    q: float
    q_perturbed: float

    @property
    def move(self) -> float:
        return self.probe.sign * (self.q_perturbed - self.q)

    @property
    def record(self) -> dict[str, Any]:
        """What `Score.parts` keeps of it."""
        replacement = "replaced" if self.probe.yes_case else "lure"
        return {
            "step": self.probe.step,
            "case": "yes" if self.probe.yes_case else "no",
            "q": self.q,
            "q_perturbed": self.q_perturbed,
            replacement: self.probe.made_by,
        }
