"""The probes of the perturbation reward as a part of the loss, so that the gradient reaches the verdict.

R_pt is a function of the policy's weights, but a policy-gradient step treats it as a number: it reinforces the tokens
sampled before the probe, never the verdict that the probe asks for. The missing part is the gradient of s(q' - q)
itself. A verdict has two values, so this is the exact expectation of sampling it after perturbed evidence and rewarding
the right one. The term is ours, not the paper's.

```
loss = loss_GRPO - λ · mean over rollouts i of the global batch of Δ_i
Δ_i  = mean over the probes of rollout i of s(q' - q), 0 where it has none
```

q is the raw probability of "yes" where the reward probes it, as its first choice says: a choice of one token, or the
product over the tokens of a longer one. It is a softmax in float32 at temperature 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..rewards.evidence_sensitivity import Probe

Batch = dict[str, torch.Tensor]
IDS, LENGTH, CHOICE, WEIGHT = "probe_ids", "probe_length", "probe_choice", "probe_weight"
NO_TOKEN = -1


def probe_columns(probes: Sequence[Sequence[Probe]], device: Any = None) -> Batch:
    """The probes of a batch, a row for each rollout, so that they are reordered and split with the rollouts.

    With at most P contexts a rollout, L tokens a context and C tokens a choice:

    - `probe_ids` (rows, P, L): contexts, real and perturbed in turn, padded on the left
    - `probe_length` (rows, P): their tokens; at least 1
    - `probe_choice` (rows, P, C): what is asked for, padded on the left with -1; but for its last token it is also the
      end of the context
    - `probe_weight` (rows, P): what q counts in Δ: -s/B at the real context, s/B at the perturbed one, 0 for padding

    Example:
        >>> probe = Probe(2, True, real=[5, 6], perturbed=[5, 7, 8], choices=[[9]], made_by="unrelated")
        >>> columns = probe_columns([[probe], []])
        >>> columns["probe_ids"][0].tolist(), columns["probe_weight"].tolist()
        ([[0, 5, 6], [5, 7, 8]], [[1.0, -1.0], [0.0, 0.0]])
    """
    rows = [
        [
            (context + probe.choices[0][:-1], sign * probe.sign / len(own), probe.choices[0])
            for probe in own
            for context, sign in ((probe.real, -1), (probe.perturbed, 1))
        ]
        for own in probes
    ]
    deep = max(map(len, rows), default=0) or 1
    long = max((len(ids) for row in rows for ids, _, _ in row), default=1)
    most = max((len(choice) for row in rows for _, _, choice in row), default=1)
    columns = {
        IDS: torch.zeros(len(rows), deep, long, dtype=torch.long),
        LENGTH: torch.ones(len(rows), deep, dtype=torch.long),
        CHOICE: torch.full((len(rows), deep, most), NO_TOKEN, dtype=torch.long),
        WEIGHT: torch.zeros(len(rows), deep),
    }
    for i, row in enumerate(rows):
        for j, (ids, weight, choice) in enumerate(row):
            columns[IDS][i, j, long - len(ids) :] = torch.tensor(ids)
            columns[LENGTH][i, j] = len(ids)
            columns[CHOICE][i, j, most - len(choice) :] = torch.tensor(choice)
            columns[WEIGHT][i, j] = weight
    return {name: column.to(device) for name, column in columns.items()}


def verdict_moves(model: Any, inputs: Batch, at_once: int, agree: Callable[[int], int] = int) -> torch.Tensor:
    """Δ of each rollout of a batch with the columns of `probe_columns`, shape (rows,), with gradient.

    `at_once` contexts are read in a forward pass. `agree` makes of the passes this process needs those that every
    process makes, since a pass of a sharded model needs all of them; extra ones are of one token and count nothing.
    """
    weight = inputs[WEIGHT]
    moves = weight.new_zeros(len(weight))
    rows, places = weight.nonzero(as_tuple=True)
    order = inputs[LENGTH][rows, places].argsort()  # those of like length together: what pads them is computed, too
    count = math.ceil(len(rows) / at_once)
    idle = agree(count) - count  # before the first pass, in which processes already meet
    for chosen in order.chunk(count) if count else ():
        row, place = rows[chosen], places[chosen]
        ids, length, choice = (inputs[name][row, place] for name in (IDS, LENGTH, CHOICE))
        moves = moves.index_add(0, row, weight[row, place] * choice_probability(model, ids, length, choice))
    one = inputs[LENGTH].new_zeros(1, 1)
    for _ in range(idle):
        moves = moves + 0.0 * choice_probability(model, one, one[0] + 1, one)
    return moves


def choice_probability(model: Any, ids: torch.Tensor, length: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
    """p(choice) after each context, shape (rows,): the product of its tokens' probabilities, with gradient.

    Contexts are padded on the left, have `length` tokens and end with all but the last token of their choice; choices
    are padded on the left with -1.
    """
    width = int(length.max())
    choice = choice[:, -width:]  # a context is no shorter than its choice
    mask = (torch.arange(width, device=ids.device) >= width - length[:, None]).long()
    logits = model(
        input_ids=ids[:, -width:],
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        logits_to_keep=choice.shape[1],
        use_cache=False,
    ).logits
    logprobs = logits.float().log_softmax(-1).gather(2, choice.clamp(min=0)[..., None]).squeeze(-1)
    # Padding of shorter choices counts as probability 1.
    return logprobs.masked_fill(choice == NO_TOKEN, 0.0).sum(-1).exp()
