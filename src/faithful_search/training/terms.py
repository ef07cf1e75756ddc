"""Terms that may be added to TRL's loss: `verdict_moves` (verdicts should move with their evidence)
and `llds` (good answers should stay likely).

The verdict term puts the probes of the perturbation reward R_pt into the loss (ours). A policy
gradient takes R_pt as a number: it reinforces the tokens that were sampled before a probe, but not
the verdict that the probe asks for, since the gradient of s(q' - q) is missing. This term adds it.
A verdict has two values, so the term is the exact expectation of sampling a verdict after perturbed
evidence and rewarding the right one.

```
loss = loss_GRPO - λ · mean over rollouts i of the global batch of Δ_i
Δ_i  = mean over the probes of rollout i of s(q' - q), 0 where it has none
```

q is the probability of "yes" with the real evidence, and q' that with the perturbed evidence: the
product over the tokens of "yes", by a softmax in float32 at temperature 1. s is +1 where p(yes)
should rise, and -1 where it should fall.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..inference.batching import CALLS, passes
from ..inference.kv_cache import Batch, States, beginnings, by_row
from ..rewards.evidence_sensitivity import Probe

NO_TOKEN = -1
"""The padding of choices with fewer tokens than the longest one."""


def verdict_moves(
    model: Any,
    probes: Sequence[Sequence[Probe]],
    at_once: int,
    agree: Callable[[int], int] = int,
    remembered: Sequence[States] = (),
) -> torch.Tensor:
    """Δ of each rollout, given its probes; shape (rollouts,), with gradient.

    Args:
        model: the policy, as the trainer has wrapped it.
        probes: the probes of each rollout.
        at_once: the largest number of contexts in a forward pass.
        agree: takes the number of forward passes that this process needs and returns the number
            that every process makes. The extra passes read one token and add nothing.
        remembered: the keys and values, with gradient, of rows that the policy has read in this
            step. Of a context that begins like one of them only the remaining tokens are read.
    """
    queries = _queries(probes)
    # At most what stands before a choice is taken as remembered: the logits after it are needed
    starts = [query.context[: len(query.context) - len(query.choice) + 1] for query in queries]
    states = beginnings(remembered, starts)
    groups = _groups(queries, states, at_once)
    # Agreed before the first forward pass, in which processes wait for one another
    extra_passes = agree(len(groups)) - len(groups)
    device = next(model.parameters()).device
    moves = torch.zeros(len(probes), device=device)
    for group in groups:
        probability = choice_probability(
            model,
            contexts=[queries[number].context for number in group],
            choices=[queries[number].choice for number in group],
            states=[states[number] for number in group],
        )
        weights = torch.tensor([queries[number].weight for number in group], device=device)
        rows = torch.tensor([queries[number].row for number in group], device=device)
        moves = moves.index_add(0, rows, weights * probability)
    for _ in range(extra_passes):
        moves = moves + 0.0 * choice_probability(model, [[0]], [[0]])
    return moves


class _ChoiceQuery(NamedTuple):
    """A question to the model: how probable is `choice` in this context?

    The context ends with all but the last token of the choice. `row` is the rollout, and `weight`
    the factor of the probability in the rollout's Δ.
    """

    context: list[int]
    choice: list[int]
    row: int
    weight: float


def _queries(probes: Sequence[Sequence[Probe]]) -> list[_ChoiceQuery]:
    """Two queries for each probe: with the real evidence (q) and the perturbed one (q')."""
    queries = []
    for row, row_probes in enumerate(probes):
        for probe in row_probes:
            choice = probe.yes_ids
            weight = probe.sign / len(row_probes)
            for evidence, sign in ((probe.real_context, -1), (probe.perturbed_context, 1)):
                query = _ChoiceQuery(
                    context=evidence + choice[:-1], choice=choice, row=row, weight=sign * weight
                )
                queries.append(query)
    return queries


def _groups(
    queries: Sequence[_ChoiceQuery], states: Sequence[States], at_once: int
) -> list[list[int]]:
    """The numbers of the queries of each forward pass, at most `at_once`. Queries with about as
    many unread tokens go together, since padding is computed, too.
    """
    unread = [
        len(query.context) - len(state.ids) for query, state in zip(queries, states, strict=True)
    ]
    groups: list[list[int]] = []
    for group in passes(unread, CALLS["cpu"]):
        for start in range(0, len(group), at_once):
            groups.append(group[start : start + at_once])
    return groups


def choice_probability(
    model: Any,
    contexts: Sequence[list[int]],
    choices: Sequence[list[int]],
    states: Sequence[States] = (),
) -> torch.Tensor:
    """p(choice) after each context; shape (contexts,), with gradient.

    A context includes all but the last token of its choice. `states` are the model's keys and
    values of the contexts' beginnings.
    """
    longest = max(map(len, choices))
    is_continued = any(state.ids for state in states)
    make_cache = _cache if is_continued else None
    logits = Batch(model, make_cache, contexts, states, keep=longest).logits
    padded = [[NO_TOKEN] * (longest - len(choice)) + list(choice) for choice in choices]
    tokens = torch.tensor(padded, device=logits.device)  # (contexts, longest)
    vocabulary_logprobs = logits.float().log_softmax(-1)  # (contexts, longest, vocabulary)
    # `gather` needs a token in the padding, too; any will do, since it is masked below
    indices = tokens.clamp(min=0)[..., None]
    logprobs = vocabulary_logprobs.gather(2, indices).squeeze(-1)
    # The padding of shorter choices counts as probability 1
    return logprobs.masked_fill(tokens == NO_TOKEN, 0.0).sum(-1).exp()


def llds(
    logps: torch.Tensor, old: torch.Tensor, numbers: torch.Tensor, advantages: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likelihood-preserving term (LLDS): how much log-probability the tokens of actions have
    lost.

    ```
    LLDS = Σ_actions [Σ_t (log π_old - log π) > 0] · Σ_t max(0, log π_old - log π)  /  sampled tokens
    ```

    An action is the tokens that the policy sampled in one turn. The sum is over actions whose
    advantage is not negative and that have become less likely as a whole; within them, it is over
    the tokens that have become less likely (arXiv 2512.04220, with its gate by action).

    Args:
        logps: log-probabilities of the tokens now, shape (rows, columns).
        old: log-probabilities when the tokens were sampled, of the same shape.
        numbers: `advantages.turn_numbers`, of the same shape: the number of each token's turn, 0
            for a token that the policy did not sample.
        advantages: of shape (rows,) or (rows, columns).

    Returns the term, and the share of all actions that have become less likely.
    """
    is_sampled = numbers > 0
    token_drop = torch.where(is_sampled, old - logps, 0.0)  # in nats
    # One column for each turn; column 0 belongs to tokens of no action
    zeros = token_drop.new_zeros(len(token_drop), int(numbers.max()) + 1)
    action_drop = zeros.scatter_add(1, numbers, token_drop.detach())
    is_action = zeros.scatter(1, numbers, 1.0)
    has_fallen = action_drop > 0
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    is_preserved = is_sampled & (advantages >= 0) & has_fallen.gather(1, numbers)
    preserved_drop = torch.where(is_preserved, token_drop.clamp(min=0), 0.0)
    term = preserved_drop.sum() / is_sampled.sum().clamp(min=1)
    fallen_share = has_fallen[:, 1:].sum() / is_action[:, 1:].sum().clamp(min=1)
    return term, fallen_share


def _cache(model: Any) -> Any:
    # A wrapped model hides its configuration
    return by_row(getattr(model, "module", model), once=True)
