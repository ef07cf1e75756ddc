"""Retrieval-augmented generation (Lewis et al. 2020): one search with the question itself, then the
answer from what it returned.
"""

from .base import Attempt, ChatAgent
from .replies import answer_of, thought_of


class Rag(ChatAgent):
    async def attempt(self, episode: Attempt) -> None:
        returned = await episode.call(None, [self.search_call(episode.question)])
        reply = await episode.ask(
            "rag", question=episode.question, passages=episode.shown(returned)
        )
        think, text = thought_of(reply.text)
        episode.answer(think, answer_of(text), reply)
