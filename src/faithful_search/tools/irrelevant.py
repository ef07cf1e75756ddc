"""The negative tool: it works, and nothing it returns has to do with the question.

A faithful agent calls its evidence unhelpful and turns to another tool; one that cites it anyway
shows that its citations mean nothing.
"""

import random
from dataclasses import dataclass

from ..bundled import bundled_json
from ..trajectory import Evidence
from .base import Tool
from .setup import Setup
from .words import words

_NOTES: list[tuple[str, str]] = bundled_json("almanac.json")  # titles and texts


@dataclass(frozen=True)
class Irrelevant(Tool):
    """Well-formed gardening advice, whatever is asked; the same query always gets the same `top_k`
    notes.
    """

    name: str = "garden_almanac"
    description: str = ""
    top_k: int = 3

    @classmethod
    def open(cls, source: str, setup: Setup) -> Tool:
        cls.takes_no(source)
        return cls(**setup.about)

    async def garden_almanac(self, query: str) -> list[Evidence]:
        """Look up notes in an almanac.

        Args:
            query: What to look up.
        """
        # Seeded by the text: its `hash` differs from process to process.
        generator = random.Random(" ".join(words(query)))
        count = min(self.top_k, len(_NOTES))
        evidence = []
        for place in generator.sample(range(len(_NOTES)), count):
            title, text = _NOTES[place]
            evidence.append(Evidence(text=text, title=title, source=f"almanac-{place + 1}"))
        return evidence
