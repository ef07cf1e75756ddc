"""IRCoT (Trivedi et al. 2023): retrieval and chain of thought by turns.

The first search has the question's words. Then the model writes the next sentence of its thought
from all passages so far, and that sentence is the next query, until one says "the answer is …" or
the turns are used up. In the latter case the passages are read once more, for the answer alone (the
paper's reader).
"""

import re
from typing import ClassVar

import msgspec

from ..tools.base import Observation
from ..trajectory import Evidence
from .base import Attempt, ChatAgent
from .replies import answer_of, conclusion_of, thought_of

_MOST_PASSAGES = 15
"""Passages that are shown at most, those that came first; as in the paper."""
_END = re.compile(r"[.!?](?=\s|\Z)")
_ABBREVIATED = re.compile(r"(?:\b[A-Z]|\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|No))\.\Z")


class IRCoT(ChatAgent):
    own_turns: ClassVar[int] = 8

    async def attempt(self, episode: Attempt) -> None:
        sentences: list[str] = []
        think: str | None = None
        query = episode.question
        shown = Observation()
        for _ in range(self.turns):
            [returned] = await episode.call(think, [self.search_call(query)])
            shown = _joined(shown, returned)
            reply = await episode.ask(
                "ircot",
                question=episode.question,
                passages=episode.shown([shown]),
                thoughts=" ".join(sentences) or "(none yet)",
            )
            _, text = thought_of(reply.text)
            sentence = first_sentence(text)
            _, answer = conclusion_of(sentence)
            if answer is not None or not sentence:
                episode.answer(sentence or None, answer, reply)
                return
            sentences.append(sentence)
            think = query = sentence
        reply = await episode.ask("rag", question=episode.question, passages=episode.shown([shown]))
        _, text = thought_of(reply.text)
        episode.answer(think, answer_of(text), reply)


def first_sentence(text: str) -> str:
    """The first sentence of a reply; models write on, though they are asked for one.

    Example:
        >>> first_sentence("J. Verne wrote it. He was French.")
        'J. Verne wrote it.'
    """
    line = text.strip().partition("\n")[0]
    for end in _END.finditer(line):
        sentence = line[: end.end()]
        if not _ABBREVIATED.search(sentence):
            return sentence.strip()
    return line


def _joined(shown: Observation, returned: Observation) -> Observation:
    """What is shown after a further search: each passage once, and the note of the last search where
    nothing else is there.
    """
    passages: dict[tuple[str, str], Evidence] = {}
    for passage in (*shown.evidence, *returned.evidence):
        passages.setdefault((passage.title, passage.text), passage)
    evidence = tuple(passages.values())[:_MOST_PASSAGES]
    return msgspec.structs.replace(
        returned, evidence=evidence, note="" if evidence else returned.note
    )
