"""What a judge says by a word in the hypothesis, a judge that also writes, and one that cannot be
asked at all.
"""

from collections.abc import Sequence

from agent_rows import CountingJudge

from faithful_search.errors import JudgeError
from faithful_search.judges import Judge, Pair, Request, Verdict, Writer, prompting


def render(pair: Pair) -> prompting.Messages:
    """The messages by which a judge that is prompted is asked about a pair."""
    return prompting.load(pair.task).fill(prompting.fields_of(pair))


def by_word(pair: Pair) -> bool | None:
    """Yes to what holds "good", nothing to what holds "hard", and no to all else."""
    return None if "hard" in pair.hypothesis else "good" in pair.hypothesis


class Author(CountingJudge, Writer):
    """Judges by a word, and writes `texts` in turn (`None`: nothing); without any it cannot be
    asked to write.
    """

    def __init__(self, *texts: str | None) -> None:
        super().__init__(by_word)
        self.texts = texts
        self.requests: list[list[Request]] = []

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        self.requests.append(list(requests))
        if not self.texts:
            raise JudgeError("no route to the writer")
        return [self.texts[n % len(self.texts)] for n in range(len(requests))]


class Down(Judge):
    name = "down"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        raise JudgeError("no route to the judge")
