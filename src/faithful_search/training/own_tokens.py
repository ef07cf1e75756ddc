"""A pass over rollouts that scores only the tokens that the policy sampled.

TRL asks for the log-probability of every token of a completion, and on a CPU its output layer
computes it for prompts and padding, too. Tool responses are most of a rollout, and no loss reads
their values. So here only the states before sampled tokens reach the output layer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch.nn.functional import pad
from transformers.cache_utils import DynamicCache

from ..inference.kv_cache import States, by_row, learns_prompt, reads_on


class OwnTokens:
    """A model as TRL calls it for log-probabilities. It gives those of sampled tokens, and 0 for
    all others.

    Args:
        model: the model that is called, as the trainer has wrapped it.
        policy: the same model without the wrapping.
        sampled: a mask of the tokens in the last columns that the policy sampled; shape (rows,
            columns of the completions).
        remember: keep keys and values of each row in `states`, with their gradient.
    """

    def __init__(
        self, model: Any, policy: Any, sampled: torch.Tensor, remember: bool = False
    ) -> None:
        self.model = model
        self.sampled = sampled
        self.remember = remember
        self.policy = policy.get_base_model() if is_peft_model(policy) else policy
        self.states: list[States] = []

    def __call__(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor,
        **inputs: Any,
    ) -> Any:
        rows, columns = input_ids.shape
        completion = self.sampled.shape[1]
        first = columns - completion
        scored = self.sampled & attention_mask[:, first:].bool()
        if self.remember:
            inputs["past_key_values"] = DynamicCache(config=self.policy.config)
        # A token is predicted from the state of the token before it
        with _only_states(self.policy.base_model, pad(scored, (first - 1, 1))):
            output = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                # As when it was sampled: the padding before a prompt is not counted
                position_ids=(attention_mask.cumsum(-1) - 1).clamp(min=0),
                shift_labels=labels[:, first:][scored][None],
                **inputs,
            )
        for name in ("log_probs", "entropy"):
            values = getattr(output, name)
            if values is not None:
                placed = values.new_zeros(rows, completion).masked_scatter(scored, values)
                setattr(output, name, placed)
        if self.remember:
            self.states = _states(inputs["past_key_values"], input_ids, attention_mask)
        return output


def scores_own(policy: Any) -> bool:
    """Whether `OwnTokens` can call this policy. It cannot if an adapter puts tokens before the
    rows, which the columns do not count.
    """
    return not learns_prompt(policy)


def remembers(policy: Any) -> bool:
    """Whether a pass with gradient can be continued from its keys and values. It can if the policy
    remembers nothing else, and its activations are kept rather than computed again.
    """
    checkpointed = any(getattr(part, "gradient_checkpointing", False) for part in policy.modules())
    if checkpointed or not scores_own(policy):
        return False
    with torch.no_grad():
        return reads_on(policy) is by_row


@contextmanager
def _only_states(decoder: torch.nn.Module, chosen: torch.Tensor) -> Iterator[None]:
    """Within the block the decoder returns only the states of the chosen tokens, as one row."""

    def choose(decoder: Any, args: Any, output: Any) -> None:
        output.last_hidden_state = output.last_hidden_state[chosen][None]

    hook = decoder.register_forward_hook(choose)
    try:
        yield
    finally:
        hook.remove()


def _states(cache: Any, ids: torch.Tensor, mask: torch.Tensor) -> list[States]:
    """The ids, keys and values of each row, without padding."""
    states = []
    for row, (row_ids, row_mask) in enumerate(zip(ids, mask, strict=True)):
        places = row_mask.nonzero()[:, 0]
        first, last = int(places[0]), int(places[-1])
        span = slice(first, last + 1)
        layers = []
        for layer in cache.layers:
            layers.append((layer.keys[row, :, span], layer.values[row, :, span]))
        states.append(States(row_ids[span].tolist(), layers))
    return states
