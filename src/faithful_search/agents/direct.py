"""Direct inference: the question, and the answer from what the model knows. No tool is called."""

from typing import ClassVar

from .base import Attempt, ChatAgent
from .replies import answer_of, thought_of


class Direct(ChatAgent):
    needs_tools: ClassVar[bool] = False

    async def attempt(self, episode: Attempt) -> None:
        reply = await episode.ask("direct", question=episode.question)
        think, text = thought_of(reply.text)
        episode.answer(think, answer_of(text), reply)
