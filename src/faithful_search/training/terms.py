"""Terms that may be added to TRL's loss: verdicts that move with their evidence, and good answers that stay likely.

The verdict term is ours: the probes of the perturbation reward in the loss. A policy-gradient step treats R_pt as a
number: it reinforces the tokens sampled before the probe, never the verdict that the probe asks for. What is missing is
the gradient of s(q' - q) itself. A verdict has two values, so this is the exact expectation of sampling it after
perturbed evidence and rewarding the right one.

```
loss = loss_GRPO - λ · mean over rollouts i of the global batch of Δ_i
Δ_i  = mean over the probes of rollout i of s(q' - q), 0 where it has none
```

q is the raw probability of "yes" where the reward probes it, as its first choice says: the product over its tokens, by
a softmax in float32 at temperature 1.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ..rewards.evidence_sensitivity import Probe

NO_TOKEN = -1


def verdict_moves(
    model: Any,
    probes: Sequence[Sequence[Probe]],
    at_once: int,
    agree: Callable[[int], int] = int,
    device: Any = None,
) -> torch.Tensor:
    """Δ of each rollout, given its probes; shape (rows,), with gradient. `at_once` contexts are read in a forward pass.
    `agree` makes of the passes this process needs those that every process makes; extra ones are of one token and count
    nothing."""
    asked = [
        (context + probe.choices[0][:-1], probe.choices[0], row, sign * probe.sign / len(own))
        for row, own in enumerate(probes)
        for probe in own
        for context, sign in ((probe.real, -1), (probe.perturbed, 1))
    ]
    # those of like length together: what pads them is computed, too
    order = torch.tensor([len(context) for context, *_ in asked]).argsort()
    count = math.ceil(len(asked) / at_once)
    idle = agree(count) - count  # before the first pass, in which processes already meet
    moves = torch.zeros(len(probes), device=device)
    for chosen in order.chunk(count) if count else ():
        contexts, choices, rows, weights = zip(
            *(asked[number] for number in chosen.tolist()), strict=True
        )
        found = choice_probability(model, contexts, choices, device)
        moves = moves.index_add(
            0, torch.tensor(rows, device=device), torch.tensor(weights, device=device) * found
        )
    for _ in range(idle):
        moves = moves + 0.0 * choice_probability(model, [[0]], [[0]], device)
    return moves


def choice_probability(
    model: Any, contexts: Sequence[list[int]], choices: Sequence[list[int]], device: Any = None
) -> torch.Tensor:
    """p(choice) at the end of each context, which ends with all but the choice's last token; shape (rows,), with
    gradient."""
    ids, choice = _padded(contexts, 0, device), _padded(choices, NO_TOKEN, device)
    mask = _padded([[1] * len(context) for context in contexts], 0, device)
    logits = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        logits_to_keep=choice.shape[1],
        use_cache=False,
    ).logits
    logprobs = logits.float().log_softmax(-1).gather(2, choice.clamp(min=0)[..., None]).squeeze(-1)
    # Padding of shorter choices counts as probability 1.
    return logprobs.masked_fill(choice == NO_TOKEN, 0.0).sum(-1).exp()


def llds(
    logps: torch.Tensor, old: torch.Tensor, numbers: torch.Tensor, advantages: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likelihood-preserving term: how far the tokens of actions that have lost likelihood fell.

    ```
    LLDS = Σ_actions [Σ_t (log π_old - log π) > 0] · Σ_t max(0, log π_old - log π)  /  own tokens of the batch
    ```

    An action is the policy's own tokens of one turn. Preserved are those whose advantage is not negative and that have
    become less likely as a whole, and of these the tokens that did (arXiv 2512.04220, with its gate by action). `old`
    are the log-probabilities when the tokens were sampled, `numbers` their `advantages.turn_numbers`; advantages are
    `(rows,)` or `(rows, columns)`. The second result is the share of the actions that have lost likelihood.
    """
    own = numbers > 0
    fallen = torch.where(own, old - logps, 0.0)
    many = int(numbers.max()) + 1
    by_action = fallen.new_zeros(len(fallen), many).scatter_add(1, numbers, fallen.detach())
    there = by_action.new_zeros(by_action.shape).scatter(1, numbers, 1.0)[:, 1:].sum().clamp(min=1)
    kept = (advantages if advantages.dim() == 2 else advantages[:, None]) >= 0
    falling = own & kept & (by_action > 0).gather(1, numbers)
    term = torch.where(falling, fallen.clamp(min=0), 0.0).sum() / own.sum().clamp(min=1)
    return term, (by_action[:, 1:] > 0).sum() / there


def _padded(rows: Sequence[list[int]], empty: int, device: Any) -> torch.Tensor:
    tensors = list(map(torch.tensor, rows))
    return pad_sequence(tensors, batch_first=True, padding_value=empty, padding_side="left").to(
        device
    )
