"""How many trajectories a second are parsed and scored (format, citation, exact match), every field read, on one core.

Beside it the plainest scorer there is: regexes over a text of the same length in the Search-R1 dialect, which look at
the answer and the order of the tags only.
Run: `python benchmarks/bench_parse.py`
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence

from faithful_search.dialects import load
from faithful_search.rewards.citation import Citation
from faithful_search.rewards.format import Format
from faithful_search.text import exact_match, normalize
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

COUNT, LENGTH, REPEATS, SEED = 2000, 8000, 5, 7
VOCABULARY = """
river treaty museum station village engine album season council bridge castle election company novel island player
general theatre market harbour symphony mountain railway professor painting district language station empire garden
"""
WORDS = VOCABULARY.split()


def main() -> None:
    """Print both figures and their ratio."""
    rng = random.Random(SEED)
    episodes = [make_trajectory(rng) for _ in range(COUNT)]
    ours = texts(episodes, "pou")
    plain = texts(episodes, "search_r1")
    golds = [episode.answers for episode in episodes]
    ours_speed = best_speed(score_pou, ours, golds)
    plain_speed = best_speed(score_plainly, plain, golds)
    lengths = [round(sum(map(len, texts)) / COUNT) for texts in (ours, plain)]
    print(f"{COUNT} distinct trajectories, mean lengths {lengths[0]} (pou) and {lengths[1]} (search_r1)")
    print(f"pou: parse + format + citation + EM, every field read   {ours_speed:>9,.0f} per second")
    print(f"plain regexes: answer + order of tags + EM              {plain_speed:>9,.0f} per second")
    print(f"ratio                                                   {ours_speed / plain_speed:>9.2f}")


def make_trajectory(rng: random.Random) -> Trajectory:
    """Four turns; three responses of three passages; about `LENGTH` characters."""
    steps = []
    for number in range(3):
        evidence = tuple(Evidence(prose(rng, 92), prose(rng, 3), f"E{3 * number + k}") for k in range(1, 4))
        call = ToolCall("local_search", {"query": prose(rng, 7)})
        helpful, refs = (True, (f"E{3 * number - 1}",)) if number else (None, ())
        steps.append(Step(think=prose(rng, 30), call=call, evidence=evidence, helpful=helpful, refs=refs))
    answer = prose(rng, 2)
    steps.append(Step(think=prose(rng, 30), helpful=True, refs=("E7", "E9"), answer=answer))
    return Trajectory(steps=tuple(steps), question=prose(rng, 9), answer=answer, answers=(answer, prose(rng, 2)))


def prose(rng: random.Random, words: int) -> str:
    """So many random words."""
    return " ".join(rng.choices(WORDS, k=words))


def texts(episodes: Sequence[Trajectory], dialect: str) -> list[str]:
    """The episodes as a dialect writes them; all distinct."""
    written = [load(dialect).render(episode) for episode in episodes]
    assert len(set(written)) == len(written)
    return written


def best_speed(
    score: Callable[[Sequence[str], Sequence[tuple[str, ...]]], float],
    texts: Sequence[str],
    golds: Sequence[tuple[str, ...]],
) -> float:
    """Trajectories a second, the best of several runs."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        total = score(texts, golds)
        best = min(best, time.perf_counter() - start)
        assert total == len(texts)
    return len(texts) / best


def score_pou(texts: Sequence[str], golds: Sequence[tuple[str, ...]]) -> float:
    """Exact matches of the valid, well-cited trajectories; reads every field of every step."""
    parse, form, citation = load("pou").parse, Format(), Citation()
    total, read = 0.0, 0
    for text, gold in zip(texts, golds, strict=True):
        trajectory = parse(text)
        for step in trajectory.steps:
            read += len(step.think or "") + len(step.refs) + len(step.issues) + len(step.spans) + bool(step.helpful)
            read += len(step.note) + (len(step.call.arguments) if step.call else 0)
            for item in step.evidence:
                read += len(item.text) + len(item.title) + len(item.id)
        fine = form.score(trajectory).value == 1.0 and citation.score(trajectory).value == 1.0
        total += fine and exact_match(trajectory.answer, gold)
    assert read > 0
    return total


TAG = re.compile(r"</?(?:think|search|information|answer)>")
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
ORDER = re.compile(r"(?:think/thinksearch/searchinformation/information)*think/thinkanswer/answer")


def score_plainly(texts: Sequence[str], golds: Sequence[tuple[str, ...]]) -> float:
    """Last answer by regex, tags in order, exact match."""
    total = 0.0
    for text, gold in zip(texts, golds, strict=True):
        answers = ANSWER.findall(text)
        order = "".join(tag[1:-1] for tag in TAG.findall(text))
        said = normalize(answers[-1].strip()) if answers else ""
        total += bool(ORDER.fullmatch(order)) and any(normalize(one) == said for one in gold)
    return total


if __name__ == "__main__":
    main()
