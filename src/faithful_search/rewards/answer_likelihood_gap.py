"""Would the policy still write its answer without the evidence? The contrastive likelihood reward
of CTRL-RAG.
"""

import math
import random
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from ..answer_forms import said
from ..errors import ConfigError
from ..inference.base import Scorer
from ..trajectory import Tokens, Trajectory
from .answer_support import AnswerSupport
from .base import Column, PolicyReward, Score
from .contexts import Transcripts, context_of, decode, token_at, turn_ids
from .perturbation import Donor, Passage, degrade, donors_of


@dataclass(frozen=True)
class AnswerLikelihoodGap(PolicyReward):
    """How much more probable the evidence makes the answer that the agent gave, in [-1, 1].

    ```
    g = (log p(answer | context) - log p(answer | context without the evidence)) / n      n: the answer's tokens
    R = tanh(g / 2) = (P - P') / (P + P')       P, P': the geometric means of the tokens' probabilities
    ```

    CTRL-RAG (arXiv 2603.04406) rewards the gap between a response's log-likelihoods with and
    without the supporting evidence; the answer's tokens alone, their mean, the squashing and what
    follows are ours. The probabilities are the policy's at temperature 1, of the very tokens that
    it sampled.

    The evidence is what valid yes-steps cite, in dialects without citations all that was retrieved.
    *Without* it, the texts of these passages are exchanged, wherever they are shown, for unrelated
    ones that do not hold the answer either, and so are titles and addresses that hold it. The
    agent's own words stay, so the tokens are those of the answer's *first* mention: a fact that is
    read aloud in a thought is probable there because of the passage, and an answer that was written
    before any of the evidence came has 0, also where a box or another form holds it later. A yes or
    no is taken where it is given as the answer, since verdicts are the same words.

    Rows without an answer, without such evidence or without anything to exchange it for are 0.0
    with `parts["applies"]` False. A row
    whose turns do not hold the answer as it was read, or whose calls share a response, has no
    value. `parts` has `gap` (g, in nats a token), `logprob` and `logprob_without` (means over the
    tokens), `tokens` and `step` (where they stand, from 1).

    Args:
        snippets: texts to draw from instead of the batch's evidence, see `EvidenceSensitivity`.
        seed: of what replaces the evidence.
        gather: collects the evidence of all processes, see `EvidenceSensitivity`.
        policy: the Generator to ask, usually given by `bind(policy=…)`; it needs `choice_logprobs`
            (`Scorer`), which `TransformersGenerator` has and vLLM has not.

    Raises:
        ConfigError: when no policy is bound, or one that gives no log-probabilities of given
            tokens.
        DataError: when a trajectory's token ids are not those of its steps.

    How to hack it: copy whatever is improbable without the passage, whether it answers the question
    or not; count the gap on right answers only (`Mix.only_right`).
    """

    snippets: tuple[str | Passage, ...] = field(default=(), repr=False)
    seed: int = 0
    gather: Callable[[list[Any]], list[Any]] = field(default=list, repr=False)

    name: ClassVar[str] = "answer_likelihood_gap"
    columns: ClassVar[Mapping[str, Column]] = {
        "answer_likelihood_gap": Column("gap", "what evidence adds to the answer's likelihood"),
    }
    label: ClassVar[str] = "likelihood gap of the answer"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        policy = self.bound_policy
        if not isinstance(policy, Scorer):
            raise ConfigError(
                "AnswerLikelihoodGap needs log-probabilities of given tokens: bind a "
                f"TransformersGenerator; {type(policy).__name__} does not give them"
            )
        transcripts = Transcripts(policy.tokenizer)
        pool = donors_of(trajectories, self.snippets, self.gather)
        drafts = [self._draft(trajectory, transcripts, pool) for trajectory in trajectories]
        prompts: list[list[int]] = []
        choices: list[list[list[int]]] = []
        for draft in drafts:
            if isinstance(draft, _AnswerContexts):
                prompts += [draft.context, draft.without]
                choices += [[draft.answer], [draft.answer]]
        # asked even when there is nothing to ask: where weights are shared out, others need this
        # process's passes
        logprobs = iter([row[0] for row in policy.choice_logprobs(prompts, choices)])
        scores = []
        for draft in drafts:
            if isinstance(draft, _AnswerContexts):
                logprob = next(logprobs)
                scores.append(draft.score(logprob, without=next(logprobs)))
            else:
                scores.append(draft)
        return scores

    def _draft(
        self, trajectory: Trajectory, transcripts: Transcripts, pool: Sequence[Donor]
    ) -> "_AnswerContexts | Score":
        """What the policy is asked about a trajectory, or its score where there is nothing to
        ask.
        """
        # as it was written: with citation marks, without the form around it (a box, JSON)
        answer = said(trajectory.answer or "")
        if not answer:
            return Score(0.0, "no answer given", {"applies": False})
        # by their words: the same passage may have been shown in several responses, under other ids
        evidence_words = {
            (passage.title, passage.text) for passage in AnswerSupport().evidence_for(trajectory)
        }
        if not evidence_words:
            return Score(0.0, "the answer rests on no evidence", {"applies": False})
        if any(step.same_turn for step in trajectory.steps):
            return Score(
                None, "calls made in one turn share a response, of which no part can be exchanged"
            )
        transcript = transcripts.of(trajectory)
        tokens = transcript.tokens
        mention = find_mention(transcript.chat.tokenizer, tokens, answer)
        if mention is None:
            return Score(None, f"no turn holds the answer as it was read: {answer!r}")
        step, start, end = mention
        # a passage that holds the answer cannot stand for its absence
        donors = []
        for donor in pool:
            text = f"{donor.title} {donor.url} {donor.text}"
            if answer.casefold() not in text.casefold():
                donors.append(donor)
        rng = random.Random(f"{self.seed}:{trajectory.id}")
        responses = {}  # those before the mention that show some of the evidence, without it
        for index, searched in enumerate(trajectory.steps[:step]):
            ids = {
                passage.id
                for passage in searched.evidence
                if (passage.title, passage.text) in evidence_words
            }
            if ids:
                degraded = degrade(searched, ids, trajectory.question, donors, rng, hidden=answer)
                if degraded is None:
                    why = "nothing to exchange the evidence for: give snippets"
                    return Score(0.0, why, {"applies": False})
                responses[index] = transcript.response(index, degraded.evidence)
        if not responses:
            why = f"step {step + 1}: the answer was written before the evidence came"
            return Score(0.0, why, {"applies": True, "gap": 0.0, "step": step + 1})
        return _AnswerContexts(
            step=step + 1,
            context=context_of(tokens, step, start),
            without=context_of(tokens, step, start, responses),
            answer=turn_ids(tokens, step)[start:end],
        )


class _AnswerContexts(NamedTuple):
    """The answer's tokens at a step (from 1), and what stands before them: as it was, and without
    the evidence.
    """

    step: int
    context: list[int]
    without: list[int]
    answer: list[int]

    def score(self, logprob: float, without: float) -> Score:
        n = len(self.answer)
        # a policy may rule the answer out in both: the difference of two infinities is none
        gap = 0.0 if logprob == without else (logprob - without) / n
        why = (
            f"step {self.step}: the answer is as probable without the evidence ({gap:+.3f} nats a "
            "token)"
        )
        parts = {
            "gap": gap,
            "logprob": logprob / n,
            "logprob_without": without / n,
            "tokens": n,
            "step": self.step,
        }
        return Score(math.tanh(gap / 2), "" if gap > 0 else why, {"applies": True, **parts})


def find_mention(tokenizer: Any, tokens: Tokens, answer: str) -> tuple[int, int, int] | None:
    """The agent's first mention of the answer as whole words: a step's index, and which of its own
    tokens hold the answer, `[start, end)`.
    """
    # not in the name of a tag: an answer may be "search"
    words = re.compile(rf"(?<![\w<])(?<!</){re.escape(answer)}(?![\w>])")
    # verdicts are the same words, so that the first of them need not be about the question
    order = -1 if answer.lower() in ("yes", "no") else 1
    for step in range(len(tokens.turns))[::order]:
        turn = turn_ids(tokens, step)
        text = decode(tokenizer, turn)
        if mentions := list(words.finditer(text))[::order]:
            begin, end = mentions[0].span()
            until = text[:end]
            # of a character that several tokens make, the first ones decode to a sign that stands
            # for it
            counts = range(1, len(turn) + 1)
            read = bisect_left(
                counts, True, key=lambda k: decode(tokenizer, turn[:k]).startswith(until)
            )
            return step, token_at(tokenizer, turn, begin), read + 1
    return None
