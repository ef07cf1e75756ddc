"""What a question asks that the bundled world does not know: an agent that can only look there
answers it all the same, with sources that state its answer.
"""

import re
from functools import lru_cache

from ..bundled import bundled_json
from ..tasks import load_tasks
from ..text import NameFinder, shortened
from ..world import SPLITS

NO_NAME = (
    "This agent knows only the bundled world, and none of the question's names is in it: "
    "nothing there can answer it."
)
_WORD = re.compile(r"\w+")
_ANYWHERE = frozenset(("year", "category", "field"))
"""Kinds of names that any question may hold, whatever it is about: 1999, halogen, physics."""
_SHOWN, _LONGEST = 5, 30  # words that are named, and characters of each


def outside(question: str) -> str:
    """Why the bundled world cannot answer a question, in a sentence; empty where nothing speaks
    against it.

    A question lies outside when none of the world's names is in it, or when it has a word that no
    question about the world has. A question in small letters alone may write names so, too.

    Example:
        >>> outside("What is the capital of Italy?")
        ''
        >>> outside("Who is the president of Italy?")
        'No question about the bundled world has “president” in it: the agent may answer another one.'
        >>> outside("Who won the 2022 World Cup?") == NO_NAME
        True
    """
    kinds = bundled_json("world/names.json")
    if question == question.lower():
        kinds = {name.lower(): kind for name, kind in kinds.items()}
    # Made anew: a finder keeps the texts that it has read, and questions are their visitors' own
    finder = NameFinder(kinds)
    if all(kinds[name] in _ANYWHERE for name in finder.find(question)):
        return NO_NAME
    known_words = _words()
    words = dict.fromkeys(_WORD.findall(finder.sub(lambda name: " ", question)))
    unknown = [word for word in words if word.lower() not in known_words]
    if not unknown:
        return ""
    named = ", ".join(f"“{shortened(word, _LONGEST)}”" for word in unknown[:_SHOWN])
    return (
        f"No question about the bundled world has {named} in it: the agent may answer another one."
    )


@lru_cache
def _words() -> frozenset[str]:
    """The words of all questions about the world but for its names, and those that say nothing by
    themselves.
    """
    finder = NameFinder(bundled_json("world/names.json"))
    words = set(bundled_json("function_words.json"))
    for split in SPLITS:
        for task in load_tasks("world", split):
            words.update(_WORD.findall(finder.sub(lambda name: " ", task.question).lower()))
    return frozenset(words)
