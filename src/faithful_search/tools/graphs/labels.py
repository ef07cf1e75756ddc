"""Names found in a text: which entities a query speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..words import words


class Labels:
    """Finds labels in a text, on word boundaries: a trie over their words, linear in the text for bounded labels.

    Args:
        labels: each with the key of what it names; one label may name several things.
        fold: whether case does not matter.

    Example:
        >>> Labels([("New York", "Q1384"), ("York", "Q42462")], fold=True).find("the new york of York")
        ['Q1384', 'Q42462']
    """

    def __init__(self, labels: Iterable[tuple[str, str]], fold: bool) -> None:
        self.fold = fold
        self.root: dict[str | None, Any] = {}
        for label, key in labels:
            node = self.root
            for word in words(label, fold):
                node = node.setdefault(word, {})
            # a label without a word in it would be found everywhere
            if node is not self.root:
                node.setdefault(None, []).append(key)

    def find(self, text: str) -> list[str]:
        """The keys of the labels in `text`, longest label first where they overlap, in its order without repeats."""
        tokens = words(text, self.fold)
        matches = [match for start in range(len(tokens)) for match in self._from(tokens, start)]
        taken: set[int] = set()
        kept: list[tuple[int, list[str]]] = []
        # the longest first, so that "York City" in "New York City" is not looked up as York
        for start, end, keys in sorted(matches, key=lambda match: (match[0] - match[1], match[0])):
            if taken.isdisjoint(range(start, end)):
                taken.update(range(start, end))
                kept.append((start, keys))
        return list(dict.fromkeys(key for _, keys in sorted(kept) for key in keys))

    def _from(self, tokens: list[str], start: int) -> Iterator[tuple[int, int, list[str]]]:
        node = self.root
        for end in range(start, len(tokens)):
            if tokens[end] not in node:
                return
            node = node[tokens[end]]
            if None in node:
                yield start, end + 1, node[None]
