"""Tokenizers of every family: what models are trained with, those that read other characters than
they are given, and chat templates that write roles as plain text.
"""

import struct
from functools import cache
from typing import Any

import lab
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CAPITALS = "<|STOP|>"
BEGIN, END = (f"<\uff5c{which}\u2581of\u2581sentence\uff5c>" for which in ("begin", "end"))
DEEPSEEK = {
    "special": (
        *(BEGIN, END, "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"),
        "<\uff5ctool\u2581outputs\u2581end\uff5c>",
    ),
    "ordinary": ("<think>", "</think>"),
    "bos_token": BEGIN,
    "eos_token": END,
    "chat_template": "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}<\uff5cAssistant\uff5c>"
    "{{ m.content }}{{ eos_token }}{% else %}<\uff5cUser\uff5c>{{ m.content }}{% endif %}{% endfor "
    "%}"
    "{% if add_generation_prompt %}<\uff5cAssistant\uff5c>{% endif %}",
}


def precompiled() -> normalizers.Normalizer:
    """As SentencePiece writes its table of characters: to this one a fullwidth `<`, or a cluster
    with it, is `<`.
    """
    units = [0] * 2048
    place, base = 0, 256
    units[place] = base << 10
    for byte, following in zip("\uff1c".encode(), (512, 768, 1024), strict=True):
        place = base ^ byte
        base = following
        units[place] = (place ^ base) << 10 | (following == 1024) << 8 | byte
    table = struct.pack(f"<{len(units)}I", *units)
    return normalizers.Precompiled(struct.pack("<I", len(table)) + table + b"<\0")


NORMALIZERS: dict[str, list[normalizers.Normalizer]] = {
    "nfc": [normalizers.NFC()],
    "nfd": [normalizers.NFD()],
    "nfkc": [normalizers.NFKC()],
    "lower": [normalizers.Lowercase()],
    "folded": [normalizers.NFKC(), normalizers.Lowercase()],
    "bare": [normalizers.NFKD(), normalizers.StripAccents()],
    "precompiled": [precompiled()],
    "replacing": [
        normalizers.Replace("{{", "<"),
        normalizers.Replace("~~", ""),
        normalizers.Replace("lz:", "<|"),
    ],
    "blanks": [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")],
}
ROLES = {
    "vicuna": (
        "{% for m in messages %}{% if m.role == 'assistant' %}ASSISTANT: {{ m.content }}</s>"
        "{% else %}{{ m.role | upper if m.role == 'system' else 'USER' }}: {{ m.content }} {% "
        "endif %}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    ),
    "alpaca": (
        "{% for m in messages %}{% if m.role == 'assistant' %}### Response:\n{{ m.content "
        "}}</s>\n\n"
        "{% else %}### Instruction:\n{{ m.content }}\n\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}### Response:\n{% endif %}"
    ),
    "llama2_system": (
        "{% if messages[0].role == 'system' %}<<SYS>>\n{{ messages[0].content }}\n<</SYS>>\n\n{% "
        "endif %}"
        "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} </s>"
        "{% elif m.role != 'system' %}<s>[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
    ),
}
ROLES["french"] = (
    ROLES["vicuna"].replace("ASSISTANT:", "\nR\u00e9ponse :").replace("USER", "\nMoi ")
)
PHRASES = {
    "vicuna": ["ASSISTANT:", "USER:"],
    "alpaca": ["### Instruction:", "### Response:"],
    "llama2_system": ["<<SYS>>", "<</SYS>>", "[INST]", "[/INST]"],
    "french": ["R\u00e9ponse :", "Reponse :"],
}
FAMILIES = ["chatml", "deepseek", *lab.FAMILIES, *NORMALIZERS, *ROLES, "bytes"]


@cache
def tokenizer(family: str) -> Any:
    if family in lab.FAMILIES:
        return lab.family(family)
    if family == "chatml":
        return lab.tokenizer()
    if family == "deepseek":
        return lab.byte_tokenizer(**DEEPSEEK)
    if family == "bytes":
        return unigram(pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    if family == "french":
        return reading(
            normalizers.Sequence([*NORMALIZERS["bare"], *NORMALIZERS["blanks"]]), ROLES[family]
        )
    if family in ROLES:
        return lab.byte_tokenizer(("<s>", "</s>"), eos_token="</s>", chat_template=ROLES[family])
    return reading(normalizers.Sequence(NORMALIZERS[family]))


def reading(normalizer: normalizers.Normalizer, template: str = lab.TEMPLATE) -> Any:
    own = lab.byte_tokenizer(
        ("<|im_start|>", "<|im_end|>"), eos_token="<|im_end|>", chat_template=template
    )
    own.backend_tokenizer.normalizer = normalizer
    words = ("think", "answer", "tool_response", "information", "search", "result")
    read = not normalizer.normalize_str("a").startswith(
        "\u2581"
    )  # else a token is read only behind a blank
    own.add_tokens(
        [AddedToken(f"<{slash}{word}>", normalized=read) for word in words for slash in ("", "/")]
    )
    own.add_special_tokens(
        {"additional_special_tokens": [AddedToken(CAPITALS, normalized=True), "</s>"]}
    )
    return own


def unigram(words: pre_tokenizers.PreTokenizer) -> Any:
    """Of pieces with a score each, those of single bytes among them: written out in a text, they
    are found there.
    """
    signs = [f"<0x{byte:02X}>" for byte in range(256)] + ["\u2581", *map(chr, range(33, 127))]
    backend = Tokenizer(
        models.Unigram([("<unk>", 0.0), *((sign, -1.0) for sign in signs)], 0, byte_fallback=True)
    )
    return spoken(backend, words)


def spoken(backend: Tokenizer, words: pre_tokenizers.PreTokenizer) -> Any:
    """This model of a language as a ChatML tokenizer."""
    backend.pre_tokenizer = words
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", chat_template=lab.TEMPLATE
    )
