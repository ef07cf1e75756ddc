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
        note = self.trajectory.steps[index].note or ("" if evidence else NO_RESULTS.note)
        text = self.chat.render_observation(evidence, note)
        return self.chat.observation_ids(text, ended)

    def yes_at(self, index: int) -> tuple[int, list[int]]:
        """Which of the tokens of step `index` its verdict begins in, and the ids that begin a yes
        there.

        Raises `DataError` when the step's token ids hold no verdict.
        """
        turn = turn_ids(self.tokens, index)
        place, lead = locate_verdict(
            self.chat.tokenizer, turn, f"trajectory {self.trajectory.id!r}, step {index + 1}"
        )
        # a yes that was sampled is asked for as the token that was sampled: a word may be tokenised
        # in several ways
        said_yes = self.trajectory.steps[index].helpful
        return place, [turn[place]] if said_yes else choice_ids(self.chat, lead, "yes")


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
        tokens = trajectory.tokens or chat.transcript(trajectory, trajectory.meta.get("tools", []))
        if len(tokens.turns) != len(trajectory.steps):
            counts = f"{len(tokens.turns)} turns in its tokens, but {len(trajectory.steps)} steps"
            raise DataError(f"trajectory {trajectory.id!r} has {counts}")
        return Transcript(trajectory, tokens, chat)


def turn_ids(tokens: Tokens, index: int) -> list[int]:
    """The ids that the policy sampled in step `index`."""
    start, middle, _ = tokens.turns[index]
    return tokens.completion_ids[start:middle]


def context_of(
    tokens: Tokens, index: int, k: int, responses: Mapping[int, list[int]] | None = None
) -> list[int]:
    """Everything up to token `k` of step `index`, as it was or with other tool `responses`, by
    their step's index.
    """
    ids = list(tokens.prompt_ids)
    for earlier, (_, middle, end) in enumerate(tokens.turns[:index]):
        ids += turn_ids(tokens, earlier) + (responses or {}).get(
            earlier, tokens.completion_ids[middle:end]
        )
    return ids + turn_ids(tokens, index)[:k]


def decode(tokenizer: Any, ids: list[int]) -> str:
    """The ids' text, control tokens included."""
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def token_at(tokenizer: Any, ids: list[int], position: int) -> int:
    """The index of the token that holds the character at `position` of the decoded ids."""
    # a search by halves: a long turn is decoded a few times, and not once for each of its tokens
    return bisect_right(
        range(1, len(ids) + 1), position, key=lambda k: len(decode(tokenizer, ids[:k]))
    )


def locate_verdict(tokenizer: Any, turn: list[int], where: str = "turn") -> tuple[int, str]:
    """The index of the token that holds the first character of a turn's verdict, and the characters
    that it holds before the verdict. Raises `DataError` when the ids hold none.
    """
    text = decode(tokenizer, turn)
    tag = text.find(VERDICT_TAG, max(0, text.find("<think>")))
    after_tag = text[tag + len(VERDICT_TAG) :]
    if tag < 0 or not after_tag.strip():
        raise DataError(
            f"{where}: its token ids hold no {VERDICT_TAG}, the parsed step does; are they of one "
            "rollout?"
        )
    position = len(text) - len(after_tag.lstrip())
    index = token_at(tokenizer, turn, position)
    return index, text[len(decode(tokenizer, turn[:index])) : position]


def choice_ids(chat: ChatFormat, lead: str, word: str) -> list[int]:
    """The ids that begin `word` where `lead` may merge with it: up to the first token that reaches
    into the word.
    """
    ids = chat.encode(lead + word)
    return ids[: token_at(chat.tokenizer, ids, len(lead)) + 1]
