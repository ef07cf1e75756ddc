"""Chain of thought (Wei et al. 2022): the model thinks in words before it answers. No tool is
called.
"""

from typing import ClassVar

from .base import Attempt, ChatAgent
from .replies import conclusion_of, thought_of


class ChainOfThought(ChatAgent):
    needs_tools: ClassVar[bool] = False

    async def attempt(self, episode: Attempt) -> None:
        reply = await episode.ask("cot", question=episode.question)
        reasoning, text = thought_of(reply.text)
        chain, answer = conclusion_of(text)
        think = "\n".join(filter(None, (reasoning, chain)))
        episode.answer(think, answer, reply)
