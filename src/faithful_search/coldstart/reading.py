"""The reading loss: piece by piece of a tool response, does this piece state what was looked for?

A verdict is one token after a whole response. From that token's loss alone, a small policy does not learn to compare
what it reads with what it asked for. So the question is put where the answer arises: at the end of each piece of
evidence, and of the response, the hidden state of a layer is read as if it were the last layer's (the logit lens) and
has to say "yes" or "no". Nothing is sampled there, and no weights are added. Ours; not in the papers.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, rms_norm

from ..errors import ConfigError
from ..inference.chat import ChatFormat
from ..rewards.contexts import VERDICT_TAG, choice_ids
from ..trajectory import Evidence, Tokens, Trajectory

NOT_ASKED = -100


def reading_labels(trajectory: Trajectory, tokens: Tokens, chat: ChatFormat) -> list[int]:
    """For each token of a transcript: does the piece of evidence that ends there state the fact? 1, 0, elsewhere -100.

    A piece states it if the next step cites it. All tokens between the last piece and the agent's next turn are asked
    whether any piece does, so that this question is not outnumbered. The dialect is one whose steps judge the evidence
    before them; `tokens` are the trajectory's `ChatFormat.transcript`.
    """
    labels = [NOT_ASKED] * (len(tokens.prompt_ids) + len(tokens.completion_ids))
    for (step, judged_by), (_, start, end) in zip(pairwise(trajectory.steps), tokens.turns, strict=False):
        if judged_by.helpful is None or not step.evidence:
            continue
        first, ends = len(tokens.prompt_ids) + start, piece_ends(step.evidence, chat)
        for item, place in zip(step.evidence, ends, strict=True):
            labels[first + place] = int(item.id in judged_by.refs)
        rest = range(first + ends[-1] + 1, len(tokens.prompt_ids) + end)
        labels[rest.start : rest.stop] = [int(judged_by.helpful)] * len(rest)
    return labels


def piece_ends(evidence: Sequence[Evidence], chat: ChatFormat) -> list[int]:
    """Where in the ids of a tool response each piece of evidence ends: at the last token it has in common with the
    response that holds one piece less, or one more."""
    pieces = [*evidence, evidence[0]]
    shown = (chat.render_observation(pieces[:count]) for count in range(1, len(pieces) + 1))
    written = pairwise(chat.observation_ids(text, ended=True) for text in shown)
    return [next(place for place, (a, b) in enumerate(zip(*pair, strict=False)) if a != b) - 1 for pair in written]


class Reading:
    """The reading loss of a model, all of whose weights are on this device.

    Args:
        chat: of the policy: a verdict begins with its tokens of "yes" and "no".
        weight: of this loss beside that of the tokens.
        layers: whose hidden states are read (1 is the first block; a verdict can use what earlier layers have found).
    """

    def __init__(self, chat: ChatFormat, weight: float, layers: Sequence[int]) -> None:
        self.weight, self.layers = weight, layers
        self.yes, self.no = (choice_ids(chat, VERDICT_TAG, word)[-1] for word in ("yes", "no"))
        self.states: dict[int, torch.Tensor] = {}

    def watch(self, model: Any) -> None:
        """Keep the hidden states of this model's forward passes. Raises `ConfigError` when it has fewer layers."""
        self.model, blocks = model, model.get_decoder().layers
        if not self.layers or not all(1 <= layer <= len(blocks) for layer in self.layers):
            raise ConfigError(f"reading_layers {[*self.layers]}: name some of the model's layers, 1 to {len(blocks)}")
        for layer in self.layers:
            blocks[layer - 1].register_forward_hook(partial(self._keep, layer))

    def loss(self, labels: torch.Tensor) -> torch.Tensor:
        """The weight times the mean cross-entropy of "yes" where `labels` (rows, tokens) ask, in the last forward pass.

        With h a hidden state divided by its root mean square and U the output embedding, the logit of "yes" against
        "no" is (U_yes - U_no)·h.
        """
        asked = labels != NOT_ASKED
        weight = self.model.get_output_embeddings().weight
        states = torch.cat([self.states.pop(layer)[asked] for layer in self.layers]).float()
        logits = rms_norm(states, states.shape[-1:]) @ (weight[self.yes] - weight[self.no]).float()
        wanted = labels[asked].float().repeat(len(self.layers))
        loss = binary_cross_entropy_with_logits(logits, wanted) if len(wanted) else logits.sum()
        return self.weight * loss

    def _keep(self, layer: int, block: Any, given: Any, output: Any) -> None:
        self.states[layer] = output[0] if isinstance(output, tuple) else output
