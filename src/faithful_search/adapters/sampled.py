"""A rollout's token ids as chat messages: what the policy sampled is an assistant's message, what
stands between is read by the markup of chat templates.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from ..formats.base import Messages
from ..formats.chat_templates import between_turns

_THOUGHT = "<think>"


def messages_of(tokenizer: Any, ids: Sequence[int], sampled: Sequence[int]) -> Messages:
    """The messages of a rollout.

    Args:
        tokenizer: one of Transformers.
        ids: the tokens after the prompt.
        sampled: 1 for each token that the policy sampled, 0 for each that was put in.

    A run of sampled tokens is one message of the assistant, also where the policy wrote the markup of
    other messages in it.
    """
    messages: Messages = []
    for own_tokens, pairs in groupby(
        zip(sampled, ids, strict=True), key=lambda pair: bool(pair[0])
    ):
        run = [token for _, token in pairs]
        if not own_tokens:
            messages += between_turns(tokenizer.decode(run, skip_special_tokens=False))
            continue
        while run and run[-1] == tokenizer.eos_token_id:  # other tokens that ended it are its words
            run.pop()
        content = tokenizer.decode(run, skip_special_tokens=False)
        messages.append({"role": "assistant", "content": content})
    return messages


def sampled_of(ids: Sequence[int], ends: Iterable[int], opening: Sequence[int]) -> list[int]:
    """1 for each token that the policy sampled, else 0, as far as the tokens themselves can tell.

    After a token of `ends` everything was put in, up to and with the next `opening`, the tokens with
    which the chat template begins an assistant's message. What was put in may hold an `opening` of
    its own, so count the turns where that is possible.

    Example:
        >>> sampled_of([5, 2, 7, 8, 1, 3, 6], ends=[2], opening=[1, 3])
        [1, 1, 0, 0, 0, 0, 1]
    """
    ends, opening = set(ends), list(opening)
    if not opening:
        return [1] * len(ids)  # it cannot be told where the policy goes on
    mask: list[int] = []
    samples = True
    while len(mask) < len(ids):
        at = len(mask)
        if samples:
            mask.append(1)
            samples = ids[at] not in ends
        elif list(ids[at : at + len(opening)]) == opening:
            mask += [0] * len(opening)
            samples = True
        else:
            mask.append(0)
    return mask


def opening_of(tokenizer: Any, **settings: Any) -> list[int]:
    """The tokens with which the tokenizer's template begins an assistant's message, up to a
    `<think>` that it may open: that is read with the policy's turn. None where it has no template.

    `settings` are what `apply_chat_template` is given.
    """
    if not tokenizer.chat_template:
        return []
    asked = [{"role": "user", "content": "?"}]
    settings = {**settings, "tokenize": True, "return_dict": False}
    before = tokenizer.apply_chat_template(asked, add_generation_prompt=False, **settings)
    whole = tokenizer.apply_chat_template(asked, add_generation_prompt=True, **settings)
    opening = list(whole[len(before) :])
    thought = tokenizer.convert_tokens_to_ids(_THOUGHT)
    if thought in opening:
        return opening[: opening.index(thought)]
    return opening
