# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Train a research agent as PokeeResearch was: RLOO, research and verification in turns, AI feedback on the answer.

```
accelerate launch recipes/pokee.py              # the embedded default: tiny policy of Pokee's dialect, bundled world
accelerate launch recipes/pokee.py --config recipes/configs/pokee_qwen2.5-7b.yaml \\
    --questions train.jsonl.gz --eval_questions test.jsonl.gz --web_search serper --browse jina \\
    --judge_url http://127.0.0.1:8000/v1 --judge_model NAME
```

Every flag of `PokeeArguments`, TRL's `GRPOConfig` and `ModelConfig` may stand in the YAML file or on the command line,
which wins.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trl import GRPOConfig, ModelConfig

from faithful_search.analysis.results import leave
from faithful_search.errors import ConfigError
from faithful_search.hub import takes_over
from faithful_search.judges import Judge
from faithful_search.rewards import Mix, pokee_mix
from faithful_search.training.config import parse_recipe, run_recipe
from faithful_search.training.flags import RunArguments, check_choices, check_data
from faithful_search.training.runs import trained
from faithful_search.training.starting import flag

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "pokee_tiny.yaml"


@dataclass
class PokeeArguments(RunArguments):
    """What is asked, how the answer is judged, and whether the agent checks it."""

    dialect: str = flag("pokee", "how the agent writes")
    verify: bool = flag(True, "the agent checks its answers and goes on after INCORRECT")
    advantages: str = flag("leave_one_out", "RLOO; or 'trl', 'group_relative'")
    answer_reward: str = flag("judge", "'judge' (AI feedback behind an exact match), 'em' or 'f1'")
    format_weight: float = flag(0.1, "what a valid format earns beside a right answer's 1")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = list(sys.argv[1:] if argv is None else argv)
    flags = script, args, _ = parse(given)
    repository = takes_over(args)
    with trained(flags, lambda judge: build_reward(script, judge)) as record:
        return leave(record, "recipes/pokee.py", given, repository)


def parse(argv: Sequence[str] | None = None) -> tuple[PokeeArguments, GRPOConfig, ModelConfig]:
    """The three dataclasses, with settings that contradict each other refused (`ConfigError`)."""
    script, args, model_args = parse_recipe((PokeeArguments, GRPOConfig, ModelConfig), argv, DEFAULT_CONFIG)
    check_choices(script, {"answer_reward": ("judge", "em", "f1")})
    if script.answer_reward == "judge" and script.judge == "lexical":
        raise ConfigError(
            "--answer_reward judge is feedback of a model that reads: give --judge endpoint, generator, nli or remote, "
            "or compare strings with --answer_reward em"
        )
    check_data(script)
    return script, args, model_args


def build_reward(script: PokeeArguments, judge: Judge | None = None) -> Mix:
    """AI feedback (or a comparison of strings) and the small format reward."""
    asked = judge if script.answer_reward == "judge" else None
    return pokee_mix(asked, metric=cast(Any, script.answer_reward), format_weight=script.format_weight)


if __name__ == "__main__":
    run_recipe(main)
