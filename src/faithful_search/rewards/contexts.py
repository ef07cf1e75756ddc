"""A rollout as the policy's token ids: what stood before a token, as it was and with other tool
responses.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import dialects
from ..errors import DataError
from ..inference.chat import ChatFormat
from ..tools.base import NO_RESULTS
from ..trajectory import Evidence, Tokens, Trajectory

VERDICT_TAG = "<helpful>"


@dataclass(frozen=True)
class Transcript:
    """A trajectory in the ids that were sampled, or rendered again where it has none."""

    trajectory: Trajectory
    tokens: Tokens
    chat: ChatFormat

    def response(self, index: int, evidence: Sequence[Evidence]) -> list[int]:
        """The ids of the tool response to step `index`, had it returned this evidence."""
        # where the model did not close its turn, the environment does, in front of the response
        ended = self.chat.ended(turn_ids(self.tokens, index))
        note = self.trajectory.steps[index].note
        if not note and not evidence:
            note = NO_RESULTS.note
        text = self.chat.render_observation(evidence, note)
        return self.chat.observation_ids(text, ended)

    def yes_at(self, index: int) -> tuple[int, list[int]]:
        """The index of the token in which the verdict of step `index` begins, and the ids that
        start a yes there.

        Raises `DataError` when the step's token ids hold no verdict.
        """
        turn = turn_ids(self.tokens, index)
        where = f"trajectory {self.trajectory.id!r}, step {index + 1}"
        place, lead = locate_verdict(self.chat.tokenizer, turn, where)
        if self.trajectory.steps[index].helpful:
            # A word may be tokenised in several ways: that of this yes is the one that was sampled.
            return place, [turn[place]]
        return place, choice_ids(self.chat, lead, "yes")


@dataclass(frozen=True)
class Transcripts:
    """Makes transcripts with one policy's tokenizer."""

    tokenizer: Any
    chats: dict[str, ChatFormat] = field(default_factory=dict, init=False)  # by the dialect's name

    def of(self, trajectory: Trajectory) -> Transcript:
        """Raises `DataError` when the trajectory's token ids are not those of its steps."""
        dialect = trajectory.dialect or "pou"
        if dialect not in self.chats:
            self.chats[dialect] = ChatFormat.of(self.tokenizer, dialects.load(dialect))
        chat = self.chats[dialect]
        tokens = trajectory.tokens
        if tokens is None:
            tokens = chat.transcript(trajectory, trajectory.meta.get("tools", []))
        if len(tokens.turns) != len(trajectory.steps):
            counts = f"{len(tokens.turns)} turns in its tokens, but {len(trajectory.steps)} steps"
            raise DataError(f"trajectory {trajectory.id!r} has {counts}")
        return Transcript(trajectory, tokens, chat)


def turn_ids(tokens: Tokens, index: int) -> list[int]:
    """The ids that the policy sampled in step `index`."""
    start, response_start, _ = tokens.turns[index]
    return tokens.completion_ids[start:response_start]


def context_of(
    tokens: Tokens, index: int, k: int, responses: Mapping[int, list[int]] | None = None
) -> list[int]:
    """Everything before token `k` of step `index`. `responses` has other tool responses, by the
    index of the step whose response they take the place of.
    """
    responses = responses or {}
    ids = list(tokens.prompt_ids)
    for earlier, (_, response_start, response_end) in enumerate(tokens.turns[:index]):
        response = tokens.completion_ids[response_start:response_end]
        ids += turn_ids(tokens, earlier)
        ids += responses.get(earlier, response)
    return ids + turn_ids(tokens, index)[:k]


def decode(tokenizer: Any, ids: list[int]) -> str:
    """The ids' text, control tokens included."""
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def token_at(tokenizer: Any, ids: list[int], position: int) -> int:
    """The index of the token that holds the character at `position` of the decoded ids."""

    def length_of_first(count: int) -> int:
        return len(decode(tokenizer, ids[:count]))

    # A search by halves: a long turn is decoded a few times, and not once for each of its tokens.
    return bisect_right(range(1, len(ids) + 1), position, key=length_of_first)


def locate_verdict(tokenizer: Any, turn: list[int], where: str = "turn") -> tuple[int, str]:
    """The index of the token that holds the first character of a turn's verdict, and the characters
    that it holds before the verdict. Raises `DataError` when the ids hold none.
    """
    text = decode(tokenizer, turn)
    # The parser reads a verdict in the thought; what stands before it is none.
    thought = max(0, text.find("<think>"))
    tag = text.find(VERDICT_TAG, thought)
    after_tag = text[tag + len(VERDICT_TAG) :]
    if tag < 0 or not after_tag.strip():
        raise DataError(
            f"{where}: its token ids hold no {VERDICT_TAG}, the parsed step does; are they of one "
            "rollout?"
        )
    verdict_start = len(text) - len(after_tag.lstrip())
    index = token_at(tokenizer, turn, verdict_start)
    token_start = len(decode(tokenizer, turn[:index]))
    return index, text[token_start:verdict_start]


def choice_ids(chat: ChatFormat, lead: str, word: str) -> list[int]:
    """The ids that begin `word` where `lead` may merge with it: up to the first token that reaches
    into the word.
    """
    ids = chat.encode(lead + word)
    first_of_word = token_at(chat.tokenizer, ids, len(lead))
    return ids[: first_of_word + 1]
