# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Train a search agent with VERITAS's rewards: exact match first, faithfulness warmed up; evaluated before and after.

```
accelerate launch recipes/veritas.py            # the embedded default: a tiny policy that sees one response at a time
accelerate launch recipes/veritas.py --config recipes/configs/veritas_tiny.yaml    # one that sees all, with curriculum
accelerate launch recipes/veritas.py --judge nli --judge_model outputs/rm_tiny    # from recipes/reward_model.py
accelerate launch recipes/veritas.py --config recipes/configs/veritas_qwen2.5-7b.yaml \\
    --questions train.jsonl.gz --eval_questions test.jsonl.gz --corpus http://127.0.0.1:8000 \\
    --judge_url http://127.0.0.1:8001           # passages and judge are served
```

Every flag of `VeritasArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML file or on the
command line, which wins.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl import ModelConfig

from faithful_search.analysis.results import leave
from faithful_search.errors import ConfigError
from faithful_search.flags import flag
from faithful_search.hub.pushing import takes_over
from faithful_search.judges import Judge
from faithful_search.rewards import FAITHFULNESS, Mix, Warmup, veritas_mix
from faithful_search.tasks import load_tasks
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.runs import trained
from faithful_search.training.starting import RunArguments, parse_run, run_recipe

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "veritas_pairs.yaml"


@dataclass
class VeritasArguments(RunArguments):
    """What is asked, how it is rewarded and when, and who judges."""

    dialect: str = flag("search_r1", "how the agent writes")
    triples: str = flag("none", "as for the other recipes; Search-R1 has search only")
    turns: int = flag(5, "reasoning steps an episode may have before the forced answer")
    turn_tokens: int = flag(500, "tokens a turn may have")
    observation_tokens: int = flag(500, "tokens of a search's result; 0: no limit")
    force_answer: bool = flag(
        True, "after the last turn without an answer the policy is made to give one"
    )
    w_exact_match: float = flag(1.0, "weight of the answer's exact match")
    w_info_think: float = flag(0.05, "weight of information-think faithfulness")
    w_think_search: float = flag(0.0, "weight of think-search faithfulness")
    w_think_answer: float = flag(0.02, "weight of think-answer faithfulness")
    curriculum_start: str = flag(
        "0", "T1: until here only the exact match counts; in steps (15) or epochs (1.0ep)"
    )
    curriculum_end: str = flag(
        "0", "T2: from here the faithfulness weights are full, likewise; both 0: always"
    )
    soft: bool = flag(False, "reward the judge's probabilities instead of its labels")

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = (self.w_exact_match, self.w_info_think, self.w_think_search, self.w_think_answer)
        if not all(0 <= weight < math.inf for weight in weights) or max(weights) == 0:
            raise ConfigError(
                f"weights are 0 (the part is left out) or more, and one must be more, not {weights}"
            )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = list(sys.argv[1:] if argv is None else argv)
    return run(parse(given), "recipes/veritas.py", given)


def run(
    flags: tuple[VeritasArguments, SearchGRPOConfig, ModelConfig], recipe: str, given: Sequence[str]
) -> dict[str, Any]:
    """The recipe of that file with its parsed flags, and as they were given."""
    script, args, _ = flags
    repository = takes_over(args)
    with trained(flags, lambda judge: build_reward(script, args, judge)) as record:
        return leave(record, recipe, given, repository)


def parse(
    argv: Sequence[str] | None = None, default: Path = DEFAULT_CONFIG
) -> tuple[VeritasArguments, SearchGRPOConfig, ModelConfig]:
    """The three dataclasses, with weights that reward nothing and settings that contradict each other refused."""
    return parse_run(VeritasArguments, argv, default)


def build_reward(
    script: VeritasArguments, args: SearchGRPOConfig, judge: Judge | None = None
) -> Mix:
    """VERITAS's objective with its curriculum, or one of its ablations.

    Raises:
        ConfigError: when the curriculum is neither in steps nor in epochs, or ends before it starts.
        DataError: for questions that cannot be read.
    """
    epoch = args.steps_per_epoch(len(load_tasks(script.questions)))
    warmup = Warmup.parse(FAITHFULNESS, script.curriculum_start, script.curriculum_end, epoch)
    return veritas_mix(
        judge,
        exact_match=script.w_exact_match,
        info_think=script.w_info_think,
        think_search=script.w_think_search,
        think_answer=script.w_think_answer,
        warmup=warmup if warmup.end else None,
        soft=script.soft,
    )


if __name__ == "__main__":
    run_recipe(main)
