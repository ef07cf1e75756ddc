"""Rollouts a second: our engine, TRL's own tool loop doing the same episodes, and the limit of
both, pure decoding.

The bundled tiny policy, its tools and the limits of `recipes/configs/pou_tiny.yaml`. Both loops get
the same weights, questions and tools, and one batch; each token is the most probable one
(`top_k=1`), so that they sample the same turns. TRL's loop
(`GRPOTrainer(environment_factory=SearchEnvironment.factory(toolbox))`) is given a tokenizer that
writes and reads what our dialect does (`ToolTemplate`). How many episodes came out token for token
the same is counted. The limit is one `generate` over the same prompts for as many tokens as the
policy sampled in its turns, the same number for each row: no tools, no responses to read, no row
that waits for a longer one.

What is timed is `_generate` of both trainers, from the questions to ids and masks, without rewards;
ways take turns. Seconds are CPU time of the process, so that other load counts little; the shares
are by the clock.

    python benchmarks/bench_rollouts.py [--questions 32] [--repeats 5] [--threads 1]
"""

import argparse
import math
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from faithful_search import dialects
from faithful_search.bundled import tiny_policy
from faithful_search.inference.tool_template import ToolTemplate
from faithful_search.rewards import answer_only_mix
from faithful_search.rollout import Episode, SearchEnvironment
from faithful_search.tasks import Task, load_tasks
from faithful_search.tools import Toolbox
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.grpo import SearchGRPOTrainer
from faithful_search.training.starting import RunArguments

TURNS, TURN_TOKENS, TOTAL_TOKENS = 6, 96, 768
PARTS = ("reading", "decoding", "sampling", "text", "tools and rest")
Way = Callable[[], Any]


class Clock:
    """Wall seconds by part; what runs within another part counts for the inner one only."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._running = ["tools and rest"]
        self._since = time.perf_counter()

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """While the block runs, time counts for `part`."""
        self._charge()
        self._running.append(part)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    @contextmanager
    def watching(self, watched: Sequence[tuple[Any, str, str]]) -> Iterator[None]:
        """While the block runs, calls of each (owner, attribute) count for the part named third."""
        with ExitStack() as undo:
            for owner, name, part in watched:
                undo.enter_context(replaced(owner, name, self._timed(getattr(owner, name), part)))
            self._since = time.perf_counter()
            yield
            self._charge()

    def _timed(self, work: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            kind = self._kind(kwargs["input_ids"]) if part == "forward" else part
            with self.within(kind):
                return work(*args, **kwargs)

        return timed

    def _kind(self, ids: torch.Tensor) -> str:
        kind = "decoding" if ids.shape[1] == 1 else "reading"
        self.passes[kind] += 1
        self.tokens[kind] += ids.numel()
        return kind

    def _charge(self) -> None:
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` while the block runs."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def settings(kind: type[GRPOConfig], folder: str, rows: int, **more: Any) -> Any:
    """As both trainers get them."""
    return kind(
        folder,
        per_device_train_batch_size=rows,
        num_generations=2,
        max_steps=1,
        max_completion_length=TOTAL_TOKENS,
        top_k=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        **more,
    )


def our_trainer(
    folder: str, tasks: Sequence[Task], toolbox: Toolbox, limits: Any
) -> SearchGRPOTrainer:
    """The recipe's, without its rewards that ask the policy."""
    model, tokenizer = policy()
    return SearchGRPOTrainer(
        model,
        settings(SearchGRPOConfig, folder, len(tasks)),
        tasks,
        toolbox=toolbox,
        reward=answer_only_mix(),
        limits=limits,
        processing_class=tokenizer,
    )


def trl_trainer(folder: str, tasks: Sequence[Task], toolbox: Toolbox) -> GRPOTrainer:
    """TRL's, whose episodes read and write the same text."""
    model, tokenizer = policy()
    dialect = dialects.load("pou")
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=settings(GRPOConfig, folder, len(tasks), max_tool_calling_iterations=TURNS - 1),
        train_dataset=Dataset.from_list(
            [{"prompt": dialect.prompt(task.question, toolbox.schemas)} for task in tasks]
        ),
        processing_class=ToolTemplate.of(tokenizer, dialect, toolbox.names).dressed(tokenizer),
        environment_factory=SearchEnvironment.factory(toolbox, dialect, tokenizer),
    )


def policy() -> tuple[Any, Any]:
    """The bundled tiny policy in float32, and its tokenizer."""
    path = tiny_policy("pou")
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32
    ), AutoTokenizer.from_pretrained(path)


class Rollouts:
    """One trainer's rollouts of its whole dataset, timed from questions to ids and masks."""

    def __init__(
        self, trainer: GRPOTrainer, sampling: tuple[Any, str], text: Sequence[tuple[Any, str]]
    ) -> None:
        self.trainer, self.rows = (
            trainer,
            [trainer.train_dataset[row] for row in range(len(trainer.train_dataset))],
        )
        self.watched = [(trainer.model, "forward", "forward"), (*sampling, "sampling")]
        self.watched += [(owner, name, "text") for owner, name in text]
        self.cpu: list[float] = []
        self.clock = Clock()
        self.prompts: list[list[int]] = []
        self.ids: list[list[int]] = []
        self.sampled = 0

    def __call__(self) -> None:
        with replaced(self.trainer, "_generate", self._timed(self.trainer._generate)):
            self.trainer._generate_and_score_completions(self.rows)

    def _timed(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        def timed(prompts: list[Any]) -> Any:
            self.clock = Clock()
            with self.clock.watching(self.watched):
                start = time.process_time()
                out = generate(prompts)
                self.cpu.append(time.process_time() - start)
            self.prompts, self.ids, self.sampled = out[0], out[1], sum(map(sum, out[2]))
            return out

        return timed


class Decoding:
    """The limit: so many tokens behind each prompt, in one go."""

    def __init__(self, model: Any, prompts: list[list[int]], tokens: int) -> None:
        pad = model.config.pad_token_id
        width = max(map(len, prompts))
        self.ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        self.mask = torch.tensor(
            [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        )
        self.model, self.tokens = model, tokens
        self.watched = [(model, "generate", "sampling"), (model, "forward", "forward")]
        self.cpu: list[float] = []
        self.clock = Clock()

    def __call__(self) -> None:
        # no row ends before the others: -1 is no token
        config = GenerationConfig(
            **{"max_new_tokens": self.tokens, "do_sample": True, "top_k": 1},
            **{"eos_token_id": -1, "pad_token_id": self.model.config.pad_token_id},
        )
        self.clock = Clock()
        self.model.eval()
        with self.clock.watching(self.watched), torch.no_grad():
            start = time.process_time()
            out = self.model.generate(
                input_ids=self.ids, attention_mask=self.mask, generation_config=config
            )
            self.cpu.append(time.process_time() - start)
        self.model.train()
        assert out.shape[1] == self.ids.shape[1] + self.tokens


def main() -> None:
    """Read the command line, run all ways in turn, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    quiet()
    tasks = load_tasks("world", "validation", limit=given.questions)
    script = RunArguments(turns=TURNS, turn_tokens=TURN_TOKENS, search_top_k=3)
    with script.toolbox() as toolbox, tempfile.TemporaryDirectory() as folder:
        own, trl = (
            our_trainer(folder, tasks, toolbox, script.limits(TOTAL_TOKENS)),
            trl_trainer(folder, tasks, toolbox),
        )
        text = [
            (Episode, name) for name in ("__init__", "take_turn", "take_observation", "trajectory")
        ]
        ours = Rollouts(own, (own.generator, "generate"), text)
        text = [
            (trl, "_tokenize_prompts"),
            (trl, "_get_tool_suffix_ids"),
            (grpo_trainer, "parse_response"),
        ]
        ways: dict[str, Any] = {
            "our engine": ours,
            "TRL's tool loop": Rollouts(trl, (trl, "_generate_single_turn"), text),
        }
        for way in ways.values():
            way()  # tools, threads and caches are up
        ways["pure decoding"] = Decoding(
            own.model, ours.prompts, math.ceil(ours.sampled / len(tasks))
        )
        for way in ways.values():
            way.cpu.clear()
        for _ in range(given.repeats):
            for way in ways.values():
                way()
    report(ways, len(tasks), given)


def quiet() -> None:
    """TRL's environments are experimental, -1 is no token, and both are said to each run."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def report(ways: dict[str, Any], rollouts: int, given: argparse.Namespace) -> None:
    """How fast each was, and where its time went."""
    ours, theirs = list(ways.values())[:2]
    same = sum(one == two for one, two in zip(ours.ids, theirs.ids, strict=True))
    print(
        f"{rollouts} rollouts, {given.threads} threads, median of {given.repeats} runs; {same} of them are the same"
    )
    print(
        f"token for token; the policy sampled {ours.sampled} tokens, in TRL's loop {theirs.sampled}"
    )
    assert same >= 0.9 * rollouts, "the loops did different work"
    seconds = {name: statistics.median(way.cpu) for name, way in ways.items()}
    first = seconds["our engine"]
    print(
        "\n| | rollouts a CPU second | CPU time, ours = 1 | passes reading / decoding | tokens read / decoded |"
    )
    print("|---|---|---|---|---|")
    for name, way in ways.items():
        passes, tokens = way.clock.passes, way.clock.tokens
        print(
            f"| {name} | {rollouts / seconds[name]:.1f} | {seconds[name] / first:.2f} "
            f"| {passes['reading']} / {passes['decoding']} | {tokens['reading']:,} / {tokens['decoding']:,} |"
        )
    print(f"\nours is at {100 * seconds['pure decoding'] / first:.0f} % of the limit")
    print(
        "\n| share of the last run's time | "
        + " | ".join(PARTS)
        + " |\n|---|"
        + "---|" * len(PARTS)
    )
    for name, way in ways.items():
        whole = sum(way.clock.seconds.values())
        print(
            f"| {name} | "
            + " | ".join(f"{100 * way.clock.seconds[part] / whole:.1f} %" for part in PARTS)
            + " |"
        )


if __name__ == "__main__":
    main()
