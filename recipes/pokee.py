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

Every flag of `PokeeArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML file or on the command
line, which wins.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trl import ModelConfig

from faithful_search.analysis.results import leave
from faithful_search.errors import ConfigError
from faithful_search.flags import check_choices, flag
from faithful_search.hub.pushing import takes_over
from faithful_search.judges import Judge
from faithful_search.rewards import Mix, pokee_mix
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.runs import trained
from faithful_search.training.starting import RunArguments, parse_run, run_recipe

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "pokee_tiny.yaml"


@dataclass
class PokeeConfig(SearchGRPOConfig):
    """The trainer's settings: RLOO by default."""

    advantages: str = flag("leave_one_out", "RLOO; or 'trl', 'group_relative'")


@dataclass
class PokeeArguments(RunArguments):
    """What is asked, how the answer is judged, and whether the agent checks it."""

    dialect: str = flag("pokee", "how the agent writes")
    verify: bool = flag(True, "the agent checks its answers and goes on after INCORRECT")
    answer_reward: str = flag("judge", "'judge' (AI feedback behind an exact match), 'em' or 'f1'")
    format_weight: float = flag(0.1, "what a valid format earns beside a right answer's 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, {"answer_reward": ("judge", "em", "f1")})
        if self.answer_reward == "judge" and self.judge == "lexical":
            raise ConfigError(
                "--answer_reward judge is feedback of a model that reads: give --judge endpoint, generator, nli or "
                "remote, or compare strings with --answer_reward em"
            )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = list(sys.argv[1:] if argv is None else argv)
    flags = script, args, _ = parse(given)
    repository = takes_over(args)
    with trained(flags, lambda judge: build_reward(script, judge)) as record:
        return leave(record, "recipes/pokee.py", given, repository)


def parse(
    argv: Sequence[str] | None = None,
) -> tuple[PokeeArguments, SearchGRPOConfig, ModelConfig]:
    """The three dataclasses, with settings that contradict each other refused (`ConfigError`)."""
    return parse_run(PokeeArguments, argv, DEFAULT_CONFIG, PokeeConfig)


def build_reward(script: PokeeArguments, judge: Judge | None = None) -> Mix:
    """AI feedback (or a comparison of strings) and the small format reward."""
    asked = judge if script.answer_reward == "judge" else None
    return pokee_mix(
        asked, metric=cast(Any, script.answer_reward), format_weight=script.format_weight
    )


if __name__ == "__main__":
    run_recipe(main)
