"""A judge that does what a word in the hypothesis tells it to, and one that cannot be asked at all."""

from collections.abc import Sequence

from faithful_search.errors import JudgeError
from faithful_search.judges import Pair, Verdict, prompting


def render(pair: Pair) -> prompting.Messages:
    """The messages by which a judge that is prompted is asked about a pair."""
    return prompting.load(pair.task).fill(prompting.fields_of(pair))


class Recorder:
    """Says yes to what holds "good", nothing to what holds "hard", and no to all else; keeps what it was asked."""

    name = "recorder"

    def __init__(self) -> None:
        self.asked: list[list[Pair]] = []

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked.append(list(pairs))
        return [self._say(pair.hypothesis) for pair in pairs]

    def _say(self, text: str) -> Verdict:
        if "hard" in text:
            return Verdict(None, None, "cannot tell", self.name)
        return Verdict(0.75 if "good" in text else 0.25, "good" in text, "", self.name)


class Down:
    name = "down"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        raise JudgeError("no route to the judge")
