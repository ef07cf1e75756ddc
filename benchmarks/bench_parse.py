"""How many trajectories a second are parsed and scored without a judge, every field read, on one
core; and audited.

Parsed is by `faithful_search.parse` with the dialect's name, as anyone does it; what that costs
beyond the dialect's own `parse` is told for each dialect.

Beside it, on the same texts in the Search-R1 dialect, what Search-R1 scores with: a scorer of its
kind, exact match and a state machine for the format; verl's port of it, where the package lies
(`pip install --no-deps verl` is enough: the module is loaded by itself), without the format; and
the plainest scorer there is, regexes for the answer and the order of the tags. All of them look for
the answer only; none says what a step thought or was given.

The audit takes all metrics that need no model over a file of rows: these, or your own. Speeds are
by CPU time, the best of several runs that take turns; the audit's also by the clock, with one
process and with two. Run: `python benchmarks/bench_parse.py [--rows rollouts.jsonl]`
"""

import argparse
import importlib.util
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from faithful_search.dialects import load, names, parse
from faithful_search.measure.audit import audit
from faithful_search.rewards.citation import Citation
from faithful_search.rewards.correctness import Correctness
from faithful_search.rewards.format import Format
from faithful_search.text import exact_match, normalize
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

COUNT, LENGTH, REPEATS, SEED = 2000, 8000, 5, 7
VOCABULARY = """
river treaty museum station village engine album season council bridge castle election company novel island player
general theatre market harbour symphony mountain railway professor painting district language station empire garden
"""
WORDS = VOCABULARY.split()
PEER = "utils/reward_score/search_r1_like_qa_em.py"

Golds = Sequence[tuple[str, ...]]
Scorer = Callable[[Sequence[str], Golds], float]


def main() -> None:
    """Print the figures and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=Path, help="a file of trajectories to audit instead of the made-up ones"
    )
    options = parser.parse_args()
    rng = random.Random(SEED)
    episodes = [make_trajectory(rng) for _ in range(COUNT)]
    compare(episodes)
    door(episodes[: COUNT // 10])
    if options.rows is not None:
        return audit_speed(options.rows)
    with tempfile.TemporaryDirectory() as folder:
        audit_speed(write_rows(Path(folder, "rows.jsonl"), episodes))


def compare(episodes: Sequence[Trajectory]) -> None:
    """Our scorers and theirs on the same episodes."""
    golds = [episode.answers for episode in episodes]
    ours, plain = texts(episodes, "pou"), texts(episodes, "search_r1")
    lengths = [round(sum(map(len, some)) / COUNT) for some in (ours, plain)]
    print(
        f"{COUNT} distinct trajectories, mean lengths {lengths[0]} (pou) and {lengths[1]} (search_r1); per CPU second"
    )
    runs: dict[str, tuple[Scorer, Sequence[str]]] = {
        "pou: parse + format + citation + EM, every field read": (score_pou, ours),
        "search_r1: parse + format + EM + sub-EM, every field read": (score_search_r1, plain),
        "Search-R1's kind: state machine for the format + EM": (score_by_states, plain),
        "plain regexes: answer + order of tags + EM": (score_plainly, plain),
    }
    peer = verl_scorer()
    if peer is None:
        print("verl is not installed here; nothing to compare with but plain regexes")
    else:
        runs["verl's search_r1_like_qa_em: EM + sub-EM"] = (peer, plain)
    speeds = best_speeds(runs, golds)
    base = speeds["search_r1: parse + format + EM + sub-EM, every field read"]
    for name, speed in speeds.items():
        print(f"  {name:<58} {speed:>9,.0f}   search_r1 here is {base / speed:.2f} of it")


def door(episodes: Sequence[Trajectory]) -> None:
    """What the public `parse` costs, as a multiple of each dialect's own."""
    print(
        "faithful_search.parse(text, dialect) takes so many times as long as the dialect's own parse:"
    )
    for name in names():
        some = texts(episodes, name)
        own, public = load(name).parse, partial(parse, dialect=name)
        best = dict.fromkeys((own, public), float("inf"))
        for _ in range(4 * REPEATS):
            for read in best:
                start = time.process_time()
                for text in some:
                    read(text)
                best[read] = min(best[read], time.process_time() - start)
        print(
            f"  {name:<16} {best[public] / best[own]:.2f}   {1e6 * best[public] / len(some):.0f} µs a trajectory"
        )


def audit_speed(path: Path) -> None:
    """Rows a second of an audit with all metrics that need no model, by one process and by two."""
    print(f"audit of {path.name}, all metrics without a model:")
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as out:
            start, cpu = time.perf_counter(), cpu_time()
            found = audit(path, out, workers=workers)
            seconds, cpu = time.perf_counter() - start, cpu_time() - cpu
        each = f"{found.n / cpu:,.0f} rows per CPU second, {found.n / seconds:,.0f} by the clock"
        print(
            f"  {workers} process{'es' * (workers > 1):<2}  {found.n} rows, {cpu:.2f} s of CPU: {each}"
        )


def cpu_time() -> float:
    """CPU seconds of this process and those it has waited for."""
    return sum(os.times()[:4])


def write_rows(path: Path, episodes: Sequence[Trajectory]) -> Path:
    """The episodes as rows of question, answers and text."""
    rows = zip(episodes, texts(episodes, "search_r1"), strict=True)
    lines = (
        json.dumps({"question": one.question, "answers": one.answers, "text": text})
        for one, text in rows
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def make_trajectory(rng: random.Random) -> Trajectory:
    """Four turns; three responses of three passages; about `LENGTH` characters."""
    steps = []
    for number in range(3):
        evidence = tuple(
            Evidence(prose(rng, 92), prose(rng, 3), f"E{3 * number + k}") for k in range(1, 4)
        )
        call = ToolCall("local_search", {"query": prose(rng, 7)})
        helpful, refs = (True, (f"E{3 * number - 1}",)) if number else (None, ())
        steps.append(
            Step(think=prose(rng, 30), call=call, evidence=evidence, helpful=helpful, refs=refs)
        )
    answer = prose(rng, 2)
    steps.append(Step(think=prose(rng, 30), helpful=True, refs=("E7", "E9"), answer=answer))
    return Trajectory(
        steps=tuple(steps), question=prose(rng, 9), answer=answer, answers=(answer, prose(rng, 2))
    )


def prose(rng: random.Random, words: int) -> str:
    """So many random words."""
    return " ".join(rng.choices(WORDS, k=words))


def texts(episodes: Sequence[Trajectory], dialect: str) -> list[str]:
    """The episodes as a dialect writes them; all distinct."""
    written = [load(dialect).render(episode) for episode in episodes]
    assert len(set(written)) == len(written)
    return written


def best_speeds(runs: dict[str, tuple[Scorer, Sequence[str]]], golds: Golds) -> dict[str, float]:
    """Trajectories a CPU second, the best of several rounds in which each has its turn."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(REPEATS):
        for name, (score, some) in runs.items():
            start = time.process_time()
            total = score(some, golds)
            best[name] = min(best[name], time.process_time() - start)
            assert total == len(some)
    return {name: len(golds) / seconds for name, seconds in best.items()}


def score_pou(texts: Sequence[str], golds: Golds) -> float:
    """Exact matches of the valid, well-cited trajectories; reads every field of every step."""
    form, citation = Format(), Citation()
    total, read = 0.0, 0
    for text, gold in zip(texts, golds, strict=True):
        trajectory = parse(text, dialect="pou")
        read += read_fields(trajectory)
        fine = form.score(trajectory).value == 1.0 and citation.score(trajectory).value == 1.0
        total += fine and exact_match(trajectory.answer, gold)
    assert read > 0
    return total


def score_search_r1(texts: Sequence[str], golds: Golds) -> float:
    """Valid trajectories that match exactly and in part; reads every field of every step."""
    form, exact, part = Format(), Correctness("em"), Correctness("sub_em")
    total, read = 0.0, 0
    for text, gold in zip(texts, golds, strict=True):
        trajectory = msgspec.structs.replace(parse(text, dialect="search_r1"), answers=gold)
        read += read_fields(trajectory)
        total += all(reward.score(trajectory).value == 1.0 for reward in (form, exact, part))
    assert read > 0
    return total


def read_fields(trajectory: Trajectory) -> int:
    """Touch all there is; the sum is of no use."""
    read = 0
    for step in trajectory.steps:
        read += (
            len(step.think or "")
            + len(step.refs)
            + len(step.issues)
            + len(step.spans)
            + bool(step.helpful)
        )
        read += len(step.note) + (len(step.call.arguments) if step.call else 0)
        for item in step.evidence:
            read += len(item.text) + len(item.title) + len(item.id)
    return read


def verl_scorer() -> Scorer | None:
    """verl's port of Search-R1's scorer, loaded without the package around it, which needs Ray and
    more.
    """
    package = importlib.util.find_spec("verl")
    if package is None or not package.submodule_search_locations:
        return None
    spec = importlib.util.spec_from_file_location(
        "peer", Path(package.submodule_search_locations[0], PEER)
    )
    if spec is None or spec.loader is None:
        return None
    peer: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)

    def score(texts: Sequence[str], golds: Golds) -> float:
        total = 0.0
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # it prints one text in 64
            for text, gold in zip(texts, golds, strict=True):
                truth = {"target": list(gold)}
                total += (
                    peer.compute_score(text, truth) == 1.0
                    and peer.compute_score_subem(text, truth) == 1.0
                )
        return total

    return score


TAG = re.compile(r"</?(?:think|search|information|answer)>")
PIECES = re.compile(f"({TAG.pattern})")
NEXT = {
    ("start", "<think>"): "in think",
    ("in think", "</think>"): "after think",
    ("after think", "<search>"): "in search",
    ("in search", "</search>"): "after search",
    ("after search", "<information>"): "in information",
    ("in information", "</information>"): "after information",
    ("after information", "<think>"): "in think",
    ("after think", "<answer>"): "in answer",
    ("in answer", "</answer>"): "end",
}
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
ORDER = re.compile(r"(?:think/thinksearch/searchinformation/information)*think/thinkanswer/answer")


def score_by_states(texts: Sequence[str], golds: Golds) -> float:
    """Exact matches by the last answer, of texts in the form that Search-R1's reward asks for."""
    total = 0.0
    for text, gold in zip(texts, golds, strict=True):
        answers = ANSWER.findall(text)
        said = normalize(answers[-1].strip()) if answers else ""
        total += in_form(text) and any(normalize(one) == said for one in gold)
    return total


def in_form(text: str) -> bool:
    """From the assistant's marker on: as many closing tags as opening, each where it may stand,
    blanks between.
    """
    _, marker, said = text.partition("<|im_start|>assistant")
    said = said if marker else text
    names = ("think", "search", "information", "answer")
    if any(said.count(f"<{name}>") != said.count(f"</{name}>") for name in names):
        return False
    state = "start"
    for piece in PIECES.split(said):
        if TAG.fullmatch(piece):
            if (state, piece) not in NEXT:
                return False
            state = NEXT[state, piece]
        elif piece.strip() and not state.startswith("in "):
            return False
    return state == "end"


def score_plainly(texts: Sequence[str], golds: Golds) -> float:
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
