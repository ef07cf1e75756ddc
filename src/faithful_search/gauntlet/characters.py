"""A tokenizer whose tokens are characters: any text comes back as it went in, without a model."""

from collections.abc import Mapping, Sequence
from typing import Any

OPENING, END = "<|im_start|>", "<|im_end|>"


class Characters:
    """What a `ChatFormat` asks of a tokenizer, with a chat template in the style of ChatML.

    Example:
        >>> Characters().decode(Characters()("né<|im_end|>")["input_ids"])
        'né<|im_end|>'
    """

    name_or_path = "characters"
    eos_token, eos_token_id, bos_token_id = END, 0x10FFFF, None
    chat_template = "ChatML"
    all_special_tokens = (OPENING, END)
    added_tokens_decoder: Mapping[int, Any] = {}
    _by_token: Mapping[str, int] = {OPENING: 0x10FFFE, END: 0x10FFFF}

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        for token, number in self._by_token.items():
            text = text.replace(token, chr(number))
        return {"input_ids": [ord(character) for character in text]}

    def decode(self, ids: Sequence[int], **settings: Any) -> str:
        text = "".join(map(chr, ids))
        for token, number in self._by_token.items():
            text = text.replace(chr(number), token)
        return text

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._by_token.get(token)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **settings: Any) -> str:
        turns = [f"{OPENING}{turn['role']}\n{turn['content']}{END}\n" for turn in messages]
        return "".join(turns) + f"{OPENING}assistant\n"
