"""Small real things for tests.

A tokenizer with a chat template, an untrained model, and a generator that follows a script.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from faithful_search.errors import ToolError
from faithful_search.inference.base import Completion, Generator, Sampling
from faithful_search.trajectory import Evidence

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def tokenizer() -> Any:
    """A byte-level tokenizer in the style of ChatML, without merges: any text, one token a byte."""
    return byte_tokenizer(
        ("<|im_start|>", "<|im_end|>", "<|pad|>"),
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template=TEMPLATE,
    )


def byte_tokenizer(
    special: Sequence[str],
    ordinary: Sequence[str] = (),
    merges: Sequence[tuple[str, str]] = (),
    **named: Any,
) -> Any:
    """A byte-level tokenizer with these added tokens and merges; `named`: `eos_token`,
    `chat_template`, …
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not merges)
    backend.decoder = decoders.ByteLevel()
    # as in Phi-3, a special token may swallow the blanks behind it
    backend.add_special_tokens(
        [AddedToken(text, special=True, rstrip=text == "<|end|>") for text in special]
    )
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in ordinary])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **named)


_HEADED = (
    "{{ bos_token or '' }}{% for m in messages %}OPEN{{ m.content TRIM}}CLOSE{% endfor %}"
    "{% if add_generation_prompt %}START{% endif %}"
)
_BRACKETED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %}BLANK{{ m.content }}BLANK{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles') }}{% endif %}{% endfor %}"
)
_NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
_ROLE = "{{ 'model' if m.role == 'assistant' else m.role }}"


def _headed(opening: str, closing: str, start: str, trim: str = "") -> str:
    return (
        _HEADED.replace("OPEN", opening)
        .replace("CLOSE", closing)
        .replace("START", start)
        .replace("TRIM", trim)
    )


FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {
        "special": ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": _BRACKETED.replace("BLANK", ""),
    },
    "llama2": {
        "special": ("<s>", "</s>"),
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": _BRACKETED.replace("BLANK", " "),
    },
    "gemma": {
        "special": ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unused7>"),
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "chat_template": _NO_SYSTEM
        + _headed(
            f"<start_of_turn>{_ROLE}\n", "<end_of_turn>\n", "<start_of_turn>model\n", "| trim"
        ),
    },
    "phi3": {
        "special": ("<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"),
        "eos_token": "<|endoftext|>",
        "chat_template": _headed("<|{{ m.role }}|>\n", "<|end|>\n", "<|assistant|>\n"),
    },
    "llama3": {
        "special": (
            "<|begin_of_text|>",
            "<|eot_id|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|python_tag|>",
        ),
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
        "chat_template": _headed(
            "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n",
            "<|eot_id|>",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    },
    "qwen3_thinking": {
        "special": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "ordinary": ("<tool_call>", "</tool_call>", "<think>", "</think>", "name of a place"),
        "eos_token": "<|im_end|>",
        "chat_template": _headed(
            "<|im_start|>{{ m.role }}\n", "<|im_end|>\n", "<|im_start|>assistant\n<think>\n"
        ),
    },
    "qwen3_base": {
        "special": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "eos_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    },
}


@cache
def family(name: str) -> Any:
    """A byte-level tokenizer with the control tokens and the chat template of a family of
    models.
    """
    return byte_tokenizer(**FAMILIES[name])


def model(seed: int = 0, hidden: int = 32, vocabulary: int = 0) -> Any:
    """An untrained two-layer Llama over `tokenizer()`'s vocabulary, or a larger one."""
    own = tokenizer()
    shape = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_attention_heads": 2}
    ids = {"eos_token_id": own.eos_token_id, "pad_token_id": own.pad_token_id, "bos_token_id": None}
    size = {"vocab_size": vocabulary or len(own), "max_position_embeddings": 4096}
    return small("llama", seed, **shape, **ids, **size)


def sharp(model: Any) -> Any:
    """The model with larger weights: attention of an untrained one is so even that hardly anything
    depends on where a token stands.
    """
    import torch

    with torch.no_grad():
        for part in model.parameters():
            if part.dim() > 1:
                part.mul_(4)
    return model


def recomputed(
    model: Any, prompt: list[int], ids: list[int], temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of ids behind a prompt, from one pass over everything."""
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, -len(ids) - 1 : -1].float()
    return (
        (logits / temperature).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    )


class Writing(Generator):
    """A policy that writes `turn(prompt)` and says yes with `p_yes(prompt)`, of the decoded
    prompt.
    """

    def __init__(self) -> None:
        self.tokenizer = tokenizer()

    def generate(
        self, prompts: Any, sampling: Sampling, max_new_tokens: Any = None
    ) -> list[Completion]:
        turns = [self.turn(self.tokenizer.decode(prompt)) for prompt in prompts]
        return [
            Completion(self.tokenizer(turn, add_special_tokens=False)["input_ids"], "stop")
            for turn in turns
        ]

    def choice_probs(self, prompts: Any, choices: Any) -> list[list[float]]:
        texts = [self.tokenizer.decode(prompt) for prompt in prompts]
        return [[self.p_yes(text)] * len(own) for text, own in zip(texts, choices, strict=True)]


def searching(thought: str, tool: str, query: str) -> str:
    """A turn of dialect pou that calls a tool."""
    call = json.dumps({"name": tool, "arguments": {"query": query}})
    return f"<think>{thought}</think><tool_call>{call}</tool_call>"


def answering(helpful: str, ref: str, thought: str, answer: str) -> str:
    """A turn of dialect pou with a verdict and an answer."""
    return f"<think><helpful>{helpful}</helpful><ref>{ref}</ref>{thought}</think><answer>{answer}</answer>"


class Scripted(Generator):
    """A generator that writes given turns.

    It writes `turns[k]` for an episode whose context holds k tool responses of its own.
    """

    def __init__(
        self, turns: Sequence[str], marker: str = "<tool_response>", own: Any = None
    ) -> None:
        self.tokenizer = tokenizer() if own is None else own
        self.turns, self.marker = list(turns), marker
        self.seen: list[list[int]] = []

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        limits = max_new_tokens or [sampling.max_new_tokens] * len(prompts)
        self.seen += [list(prompt) for prompt in prompts]
        self.stop = sampling.stop
        return [self._turn(prompt, limit) for prompt, limit in zip(prompts, limits, strict=True)]

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        return [[1 / len(own)] * len(own) for own in choices]

    def _turn(self, prompt: list[int], limit: int) -> Completion:
        before = self.tokenizer.decode(prompt).rsplit("<|im_start|>user\n?", 1)[-1]
        text = self.turns[min(before.count(self.marker), len(self.turns) - 1)]
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return Completion(
            ids[:limit], "stop" if len(ids) <= limit else "length", [-0.5] * min(len(ids), limit)
        )


class InTurn(Scripted):
    """Writes its turns one after the other, each up to its first stop string, and keeps them in
    `made`.

    A turn without a stop string is cut, or closed by `closes`; with `whole` every turn is written
    to its end.
    """

    def __init__(
        self, turns: Sequence[str], own: Any = None, closes: str = "", whole: bool = False
    ) -> None:
        super().__init__(turns, own=own)
        self.closes, self.whole = closes, whole
        self.made: list[Completion] = []

    def _turn(self, prompt: list[int], limit: int) -> Completion:
        text = self.turns[min(len(self.made), len(self.turns) - 1)]
        ends = (
            [len(text)]
            if self.whole
            else [text.find(stop) + len(stop) for stop in self.stop if stop in text]
        )
        text = text[: min(ends, default=len(text))] + (self.closes if not ends else "")
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        finish = (
            "length" if len(ids) > limit else "stop" if ends else "eos" if self.closes else "length"
        )
        self.made.append(
            Completion(ids[:limit], finish, [-0.5 - k for k in range(len(ids[:limit]))])
        )
        return self.made[-1]


class Shelf:
    """A tool that always returns the same evidence, or fails with the same words."""

    def __init__(self, *evidence: Evidence, name: str = "shelf", error: str = "") -> None:
        self.evidence, self.name, self.error = list(evidence), name, error

    async def shelf(self, query: str) -> list[Evidence]:
        """Search the shelf.

        Args:
            query: What to look for.
        """
        if self.error:
            raise ToolError(self.error)
        return self.evidence


class Counting:
    """Counts the tokens that go through a model, padding included, and its passes."""

    def __init__(self, model: Any) -> None:
        self.tokens = self.passes = 0
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model: Any, args: Any, given: dict[str, Any]) -> None:
        self.tokens += given["input_ids"].numel()
        self.passes += 1

    def taken(self) -> int:
        """Tokens since this was asked last."""
        tokens, self.tokens = self.tokens, 0
        return tokens


def small(kind: str, seed: int = 0, **more: Any) -> Any:
    """An untrained model of any architecture."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": len(tokenizer()), **more}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()


def lora(model: Any) -> Any:
    """The model with an adapter that changes what it says."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    how = LoraConfig(
        r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], init_lora_weights=False
    )
    return get_peft_model(model, how).eval()


_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
_STATES = {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4}
_LOCAL = {"num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 16}
READS_ON: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped heads": ("qwen2", _HEADS),
    "learned positions": ("gpt2", {"n_embd": 32, "n_head": 2}),
    "padding that counts": ("mpt", {"d_model": 32, "n_heads": 2, "n_layers": 2}),
    "local attention": ("gpt_neo", _LOCAL),
}
"""Architectures, for `small`, that remember every token of a row."""
FORGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "a sliding window": ("mistral", {"sliding_window": 16, **_HEADS}),
    "some sliding windows": ("gemma3_text", {"sliding_window": 16, "head_dim": 16, **_HEADS}),
    "recurrent states": ("mamba", {"state_size": 4}),
    "some recurrent states": ("lfm2", {"layer_types": ["conv", "full_attention"], **_HEADS}),
    "recurrent states beside keys": ("falcon_h1", _STATES | _HEADS),
}
"""Those that forget tokens behind a window, or sum up what they have read."""
