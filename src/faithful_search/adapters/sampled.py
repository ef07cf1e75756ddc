"""A rollout's token ids as chat messages: tokens that the policy sampled are an assistant's
message; those between are split into messages by the markup of the chat template.
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
        sampled: 1 for each token that the policy sampled, 0 for each that the environment added.

    A run of sampled tokens is one message of the assistant, even if the policy wrote the markup of
    other messages in it.
    """
    messages: Messages = []
    pairs = zip(sampled, ids, strict=True)
    for is_sampled, group in groupby(pairs, key=lambda pair: bool(pair[0])):
        run = [token for _, token in group]
        if not is_sampled:
            messages += between_turns(tokenizer.decode(run, skip_special_tokens=False))
            continue
        # Any other token that ended the turn is a part of the message
        while run and run[-1] == tokenizer.eos_token_id:
            run.pop()
        content = tokenizer.decode(run, skip_special_tokens=False)
        messages.append({"role": "assistant", "content": content})
    return messages


def sampled_of(ids: Sequence[int], ends: Iterable[int], opening: Sequence[int]) -> list[int]:
    """1 for each token that the policy sampled, else 0, guessed from the tokens themselves.

    Args:
        ids: the tokens after the prompt.
        ends: tokens that end a turn of the policy.
        opening: the tokens with which the chat template begins an assistant's message. After a
            token of `ends` the environment wrote everything up to and with the next `opening`.

    A text of the environment that holds an `opening` itself is taken for a turn. Where that is
    possible, compare the number of turns with the real one.

    Example:
        >>> sampled_of([5, 2, 7, 8, 1, 3, 6], ends=[2], opening=[1, 3])
        [1, 1, 0, 0, 0, 0, 1]
    """
    ends, opening = set(ends), list(opening)
    if not opening:
        return [1] * len(ids)  # nothing shows where the next turn of the policy begins
    mask: list[int] = []
    in_turn = True
    while len(mask) < len(ids):
        place = len(mask)
        if in_turn:
            mask.append(1)
            in_turn = ids[place] not in ends
        elif list(ids[place : place + len(opening)]) == opening:
            mask += [0] * len(opening)
            in_turn = True
        else:
            mask.append(0)
    return mask


def opening_of(tokenizer: Any, **settings: Any) -> list[int]:
    """The tokens with which the tokenizer's template begins an assistant's message; an empty list
    without a template. A `<think>` that the template opens is not among them, since it is read as
    the beginning of the policy's turn.

    `settings` are further arguments of `apply_chat_template`.
    """
    if not tokenizer.chat_template:
        return []
    messages = [{"role": "user", "content": "?"}]
    settings = {**settings, "tokenize": True, "return_dict": False}
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=False, **settings)
    opened = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **settings)
    opening = list(opened[len(prompt) :])
    thought = tokenizer.convert_tokens_to_ids(_THOUGHT)
    if thought in opening:
        return opening[: opening.index(thought)]
    return opening
