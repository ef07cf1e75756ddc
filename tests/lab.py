"""Small real things for tests.

A tokenizer with a chat template, an untrained model, and a generator that follows a script.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from faithful_search.inference.base import Completion, Sampling
from faithful_search.trajectory import Evidence

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def tokenizer() -> Any:
    """A byte-level tokenizer in the style of ChatML, without merges: any text, one token a byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>", "<|pad|>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>", chat_template=TEMPLATE
    )


def model(seed: int = 0, hidden: int = 32) -> Any:
    """An untrained two-layer Llama over `tokenizer()`'s vocabulary."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    own = tokenizer()
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(own),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=4096,
            eos_token_id=own.eos_token_id,
            pad_token_id=own.pad_token_id,
            bos_token_id=None,
        )
    ).eval()


class Scripted:
    """A generator that writes given turns.

    It writes `turns[k]` for an episode whose context holds k tool responses of its own.
    """

    def __init__(self, turns: Sequence[str], marker: str = "<tool_response>") -> None:
        self.tokenizer = tokenizer()
        self.turns, self.marker = list(turns), marker
        self.seen: list[list[int]] = []

    def generate(
        self, prompts: Sequence[list[int]], sampling: Sampling, max_new_tokens: Sequence[int] | None = None
    ) -> list[Completion]:
        limits = max_new_tokens or [sampling.max_new_tokens] * len(prompts)
        self.seen += [list(prompt) for prompt in prompts]
        return [self._turn(prompt, limit) for prompt, limit in zip(prompts, limits, strict=True)]

    def choice_probs(self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]) -> list[list[float]]:
        return [[1 / len(own)] * len(own) for own in choices]

    def _turn(self, prompt: list[int], limit: int) -> Completion:
        before = self.tokenizer.decode(prompt).rsplit("<|im_start|>user\n?", 1)[-1]
        text = self.turns[min(before.count(self.marker), len(self.turns) - 1)]
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return Completion(ids[:limit], "stop" if len(ids) <= limit else "length", [-0.5] * min(len(ids), limit))


class Shelf:
    """A tool that always returns the same evidence."""

    name = "shelf"

    def __init__(self, *evidence: Evidence) -> None:
        self.evidence = list(evidence)

    async def shelf(self, query: str) -> list[Evidence]:
        """Search the shelf.

        Args:
            query: What to look for.
        """
        return self.evidence
