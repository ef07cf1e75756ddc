# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Train a search agent that scores itself: trajectory-level self-evaluation, evaluated before and after.

```
accelerate launch recipes/self_eval.py              # the embedded default: a tiny policy that can score, bundled world
accelerate launch recipes/self_eval.py --config recipes/configs/self_eval_tiny_answer_only.yaml   # the paper's baseline
accelerate launch recipes/self_eval.py --config recipes/configs/self_eval_qwen2.5-7b.yaml \\
    --questions train.jsonl.gz --eval_questions test.jsonl.gz --corpus http://127.0.0.1:8000    # QLoRA, as in the paper
```

The policy is its own judge: it must have learnt to score first, see `recipes/configs/sft_self_eval_tiny.yaml`. Every
flag of `SelfEvalArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML file or on the command
line, which wins.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl import ModelConfig

from faithful_search.analysis.figures import self_preference
from faithful_search.analysis.results import leave
from faithful_search.flags import check_choices, flag
from faithful_search.hub.pushing import takes_over
from faithful_search.measure.behaviour import error_counts, error_table
from faithful_search.measure.evaluation import Record
from faithful_search.rewards import (
    Correctness,
    Mix,
    Reward,
    SelfCorrectness,
    SelfRubric,
    WorldRubric,
    self_eval_mix,
)
from faithful_search.tasks import WORLD
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.runs import trained
from faithful_search.training.starting import RunArguments, parse_run, run_recipe

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "self_eval_tiny.yaml"


@dataclass
class SelfEvalArguments(RunArguments):
    """What is asked, how it is rewarded, and how the policy judges."""

    dialect: str = flag("self_eval", "how the agent writes")
    triples: str = flag("none", "as for the other recipes; the dialect has search only")
    observation_tokens: int = flag(500, "tokens of a search's result; 0: no limit")
    reward: str = flag(
        "trajectory", "'trajectory' (equation 3), or 'answer_only' (equation 2, the baseline)"
    )
    correctness: str = flag(
        "self", "R_a by 'self' (the policy's verdict, paper), or 'em', 'f1' by words"
    )
    judge_temperature: float = flag(0.1, "of the policy when it judges itself")
    rubric_tokens: int = flag(256, "tokens an explained score may have")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(
            self, {"reward": ("trajectory", "answer_only"), "correctness": ("self", "em", "f1")}
        )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = list(sys.argv[1:] if argv is None else argv)
    flags = script, args, _ = parse(given)
    repository = takes_over(args)
    with trained(flags, lambda judge: build_reward(script), build_metrics(script)) as record:
        if record is not None:
            show_failures(record)
        return leave(record, "recipes/self_eval.py", given, repository)


def show_failures(record: Record) -> None:
    """Why episodes failed, as a table and in `errors.json`; `self_preference.png` where the rule's scores are known."""
    out = Path(record.folder)
    runs = {"before": record.before, "after": record.after}
    counts = {
        when: error_counts(run.trajectories)
        for when, run in runs.items()
        if run and run.trajectories
    }
    (out / "errors.json").write_text(json.dumps(counts, indent=1), encoding="utf-8")
    print(f"\nwhy episodes failed:\n{error_table(counts)}")
    if any("self_gap" in row for row in record.history):
        self_preference(record.history, out / "self_preference.png")


def parse(
    argv: Sequence[str] | None = None,
) -> tuple[SelfEvalArguments, SearchGRPOConfig, ModelConfig]:
    """The three dataclasses, with settings that contradict each other refused (`ConfigError`)."""
    return parse_run(SelfEvalArguments, argv, DEFAULT_CONFIG)


def build_reward(script: SelfEvalArguments) -> Mix:
    """Equation 3 of the paper, or equation 2; on the bundled world with its rubric beside the policy's own scores."""
    by_words = None if script.correctness == "self" else Correctness(script.correctness)  # type: ignore[arg-type]
    trajectory = script.reward == "trajectory"
    return self_eval_mix(
        trajectory,
        correctness=by_words,
        temperature=script.judge_temperature,
        rubric_tokens=script.rubric_tokens,
        watched_by=WorldRubric() if trajectory and script.questions in WORLD else None,
    )


def build_metrics(script: SelfEvalArguments) -> dict[str, Reward]:
    """The policy's own verdicts, and on the bundled world those of its facts."""
    own: dict[str, Reward] = {
        "self_rubric": SelfRubric(script.judge_temperature, script.rubric_tokens),
        "self_correctness": SelfCorrectness(script.judge_temperature),
    }
    return {**own, **({"world_rubric": WorldRubric()} if script.eval_questions in WORLD else {})}


if __name__ == "__main__":
    run_recipe(main)
