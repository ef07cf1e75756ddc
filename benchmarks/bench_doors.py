"""How many rollouts a second each door scores on one core, beside the search rewards that trainers
ship: exact match on the last `<answer>`.

The rollouts are made up, in the Search-R1 dialect, with two searches each. `correctness` looks for
the answer as those rewards do; `veritas` also compares every thought with its evidence, by words.
Speeds are by CPU time, the best of several runs that take turns. SkyRL-gym's and verl's own rewards
are measured where their packages lie (`pip install --no-deps skyrl-gym verl`). Last: the seconds by
the clock that eight rollouts wait for a judge of one second through each awaited door.

Run: `python benchmarks/bench_doors.py`
"""

import asyncio
import importlib.util
import io
import itertools
import random
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

from faithful_search.adapters import agent_lightning, nemo_gym, verl
from faithful_search.adapters.openrlhf import reward_function
from faithful_search.judges import Pair, Verdict
from faithful_search.scoring import Scoring

COUNT, WORDS, REPEATS, SEED = 400, 60, 5, 7
VOCABULARY = [
    "river",
    "treaty",
    "museum",
    "station",
    "village",
    "album",
    "season",
    "council",
    "bridge",
    "castle",
]
SETTINGS = {"dialect": "search_r1", "responses": "anywhere", "abstained": 0.0}
Run = Callable[[Sequence[str]], object]


class SlowJudge:
    """Takes a second for each batch."""

    name = "slow"
    lexical = False
    reads_queries = False

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Says yes, later."""
        time.sleep(1.0)
        return [Verdict(1.0, True, "", self.name) for _ in pairs]


def main() -> None:
    """Print the figures and their ratios."""
    texts = made_up()
    runs = {**peers(), **doors("correctness"), **doors("veritas")}
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(REPEATS):
        for name, run in runs.items():
            begun = time.process_time()
            run(texts)
            seconds[name] = min(seconds[name], time.process_time() - begun)
    slowest_peer = max((seconds[name] for name in peers()), default=None)
    for name, spent in seconds.items():
        ratio = f"{spent / slowest_peer:8.1f} x" if slowest_peer else ""
        print(f"{name:32} {COUNT / spent:10,.0f} rollouts/s {ratio}")
    for name, (waited, pause) in waiting().items():
        print(f"{name:32} {waited:10.2f} s for eight rollouts with a judge of 1 s", end="")
        print(f", heartbeats at most {1000 * pause:.0f} ms apart")


def made_up() -> list[str]:
    """Texts with two searches and an answer."""
    draw = random.Random(SEED)

    def words(count: int) -> str:
        return " ".join(draw.choices(VOCABULARY, k=count))

    turn = "<think>{}</think><search>{}</search><information>Doc 1(Title: {}) {}</information>"
    texts = []
    for _ in range(COUNT):
        turns = [turn.format(words(20), words(4), words(2), words(WORDS)) for _ in range(2)]
        texts.append(f"{''.join(turns)}<think>{words(20)}</think><answer>{words(2)}</answer>")
    return texts


def peers() -> dict[str, Run]:
    """The rewards that trainers ship for search, where they are installed."""
    places = {
        "SkyRL-gym's own": ("skyrl_gym", "envs/search/utils.py"),
        "verl's own": ("verl", "utils/reward_score/search_r1_like_qa_em.py"),
    }
    found: dict[str, Run] = {}
    for name, (package, file) in places.items():
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        path = Path(spec.origin).parent / file
        # by itself, since the package would load what it trains with
        alone = importlib.util.spec_from_file_location(package + "_reward", path)
        assert alone is not None and alone.loader is not None
        module = importlib.util.module_from_spec(alone)
        alone.loader.exec_module(module)
        found[name] = partial(scored_by, module.compute_score)
    return found


def scored_by(compute_score: Callable[..., object], texts: Sequence[str]) -> None:
    """Each text by a function of the host's kind."""
    with redirect_stdout(io.StringIO()):  # verl's prints some of what it scores
        for text in texts:
            compute_score(text, {"target": ["river treaty"]})


def doors(mix: str) -> dict[str, Run]:
    """Our doors with this reward."""
    scoring = Scoring(mix, "search_r1", "anywhere")
    openrlhf = reward_function(mix, **SETTINGS)

    def batch(texts: Sequence[str]) -> object:
        return scoring.score(texts, answers=[["river treaty"]] * len(texts))

    def sync(texts: Sequence[str]) -> object:
        compute = partial(verl.compute_score_sync, mix=mix, **SETTINGS)
        return [compute("", text, ["river treaty"]) for text in texts]

    async def together(texts: Sequence[str]) -> object:
        compute = partial(verl.compute_score, mix=mix, **SETTINGS)
        return await asyncio.gather(*(compute("", text, ["river treaty"]) for text in texts))

    def function(texts: Sequence[str]) -> object:
        return openrlhf(texts, [""] * len(texts), [["river treaty"]] * len(texts))

    return {
        f"Scoring.score, {mix}": batch,
        f"verl, {mix}": sync,
        f"verl awaited, {mix}": lambda texts: asyncio.run(together(texts)),
        f"OpenRLHF, {mix}": function,
    }


def span_of(text: str) -> dict[str, object]:
    """A model's call, as Agent-Lightning keeps it, that answered a question with this text."""
    asked = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Which?"}
    return {"attributes": {**asked, "gen_ai.completion.0.content": text}}


def waiting() -> dict[str, tuple[float, float]]:
    """Seconds until eight rollouts are scored that ask a judge of one second, and the longest time
    for which the event loop stood still meanwhile.
    """
    scoring = Scoring("answer_support", "search_r1", "anywhere", SlowJudge())
    for module in (verl, nemo_gym, agent_lightning):
        module.scoring_of = lambda *names, **settings: scoring
    texts = made_up()[:8]
    awaited = {
        "Scoring.ascore": lambda text: scoring.ascore(text, answers=["river treaty"]),
        "verl awaited": lambda text: verl.compute_score("", text, ["river treaty"]),
        "NeMo Gym": lambda text: nemo_gym.verify({"text": text, "answers": ["river treaty"]}),
        "Agent-Lightning 0.x": lambda text: agent_lightning.reward_of_spans(
            [span_of(text)], ["river treaty"]
        ),
    }

    async def all_of(door: Callable[[str], object]) -> float:
        beats = [time.monotonic()]

        async def heart() -> None:
            while True:
                await asyncio.sleep(0.01)
                beats.append(time.monotonic())

        beating = asyncio.create_task(heart())
        await asyncio.gather(*map(door, texts))  # type: ignore[arg-type]
        beating.cancel()
        return max(later - earlier for earlier, later in itertools.pairwise(beats))

    figures = {}
    for name, door in awaited.items():
        begun = time.monotonic()
        pause = asyncio.run(all_of(door))
        figures[name] = time.monotonic() - begun, pause
    return figures


if __name__ == "__main__":
    main()
