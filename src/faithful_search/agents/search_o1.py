"""Search-o1 (Li et al. 2025): the model searches in the middle of its reasoning, and what is found
is condensed before it reads on.

A query stands between `<|begin_search_query|>` and `<|end_search_query|>`. What the search returned
is put to the model in a request of its own, with the reasoning so far: it writes what in the
passages helps (reason-in-documents). Only this comes back into the reasoning. So a step's thought
after a search begins with the condensed text, which the model itself wrote; the step's evidence is
what the tool returned.
"""

import re
from typing import ClassVar

from ..wire.llm import Messages
from .base import Attempt, ChatAgent
from .prompts import filled
from .replies import answer_of, conclusion_of, thought_of

BEGIN_QUERY, END_QUERY = "<|begin_search_query|>", "<|end_search_query|>"
BEGIN_RESULT, END_RESULT = "<|begin_search_result|>", "<|end_search_result|>"
_MARKUP = re.compile(r"<\|(?:begin|end)_search_(?:query|result)\|>")
_NOTHING = "No helpful information was found."
_LAST_STEPS = 3  # of the reasoning that the condensing request repeats besides its first step


class SearchO1(ChatAgent):
    own_turns: ClassVar[int] = 10

    async def attempt(self, episode: Attempt) -> None:
        prompt = filled("search_o1", question=episode.question, turns=str(self.turns))
        messages: Messages = [{"role": "user", "content": prompt}]
        condensed = ""
        reasoning: list[str] = []
        for number in range(self.turns + 1):
            reply = await episode.reply(messages, (END_QUERY,))
            written, query = query_of(reply.text)
            if query is None or number == self.turns:
                break
            reasoning.append(written)
            think = "\n\n".join(filter(None, (condensed, written))) or None
            returned = await episode.call(think, [self.search_call(query)])
            reply_on_passages = await episode.ask(
                "search_o1_condense",
                question=episode.question,
                reasoning=_abridged(reasoning),
                query=query,
                passages=episode.shown(returned),
            )
            _, text = thought_of(reply_on_passages.text)
            condensed = _MARKUP.sub("", answer_of(text) or _NOTHING).strip()
            messages.append(
                {"role": "assistant", "content": f"{written}{BEGIN_QUERY}{query}{END_QUERY}"}
            )
            result = f"{BEGIN_RESULT}{condensed}{END_RESULT}"
            if number == self.turns - 1:
                result = f"{result}\n\n{filled('search_o1_last')}"
            messages.append({"role": "user", "content": result})
        inner, text = thought_of(written)
        chain, answer = conclusion_of(text)
        think = "\n\n".join(filter(None, (condensed, inner, chain))) or None
        episode.answer(think, answer, reply)


def query_of(reply: str) -> tuple[str, str | None]:
    """What is reasoned in a reply before its first query, and that query; `None` where there is
    none. What the model writes behind a query, such as results of its own, is left out.

    Example:
        >>> query_of("Who was she?<|begin_search_query|>Ada Lovelace<|end_search_query|> She was")
        ('Who was she?', 'Ada Lovelace')
    """
    before, _, behind = reply.partition(BEGIN_QUERY)
    reasoning = _MARKUP.split(before)[0].strip()
    query = " ".join(_MARKUP.split(behind)[0].split())
    return reasoning, query or None


def _abridged(reasoning: list[str]) -> str:
    """The first step of the reasoning and the last ones."""
    if len(reasoning) > _LAST_STEPS + 1:
        reasoning = [reasoning[0], "[…]", *reasoning[-_LAST_STEPS:]]
    return "\n\n".join(reasoning)
