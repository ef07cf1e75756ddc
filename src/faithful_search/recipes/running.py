"""How every recipe that trains with rewards runs: check its flags, parse them, train, and leave the
results.

The recipe itself says what is its own: its settings, and the reward that they describe.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..hub.pushing import takes_over
from ..judges import Judge
from ..measure.evaluation import Record
from ..rewards import Reward
from ..tools.base import Condenser
from ..training.refusing import GRPO, check_early
from ..training.starting import Flags, RunArguments, parse_run

if TYPE_CHECKING:
    from ..training.arguments import SearchGRPOConfig


@dataclass(frozen=True)
class TrainingRecipe:
    """A recipe that trains a policy with rewards. Its `main` is the program.

    Attributes:
        file: the recipe's file in a checkout, for the model card.
        settings: the dataclass of the recipe's own flags.
        config: the YAML file of settings that is read where `--config` names no other.
        reward: makes the reward from these settings, the trainer's settings and the judge.
        trainer: the class of the trainer's settings, by name: importing it brings torch.
        metrics: makes rewards that the evaluations measure beside `measure.evaluating.default_rewards`.
        condenser: makes what shortens the responses of tools, where something does.
        report: writes what the recipe leaves beside the usual files. Only the main process calls
            it.
    """

    file: str
    settings: type[RunArguments]
    config: Path
    reward: "Callable[[Any, SearchGRPOConfig, Judge | None], Reward]"
    trainer: str = GRPO
    metrics: Callable[[Any], Mapping[str, Reward]] = lambda script: {}
    condenser: Callable[[Any], Condenser | None] = lambda script: None
    report: Callable[[Record], None] = lambda record: None

    def main(self, argv: Sequence[str] | None = None, recipe: str = "") -> dict[str, Any]:
        """Train and evaluate, and write the results.

        Args:
            argv: the command line without the program's name; by default that of this process.
            recipe: how the recipe was called, for the model card; by default its file.

        Returns:
            What `metrics.json` holds.

        Raises:
            ConfigError: for flags that are unknown or contradict each other.
        """
        arguments = list(sys.argv[1:] if argv is None else argv)
        # before torch is imported, which takes half a minute
        check_early(self.settings, arguments, self.config, self.trainer)
        from ..analysis.results import leave
        from ..coldstart.scripted import Scripted
        from ..training.runs import trained

        flags = self.parse(arguments)
        script, args, _ = flags
        # From here on the trainer pushes nothing itself: `leave` pushes the results at the end
        repository = takes_over(args)
        run = trained(
            flags,
            reward=lambda judge: self.reward(script, args, judge),
            metrics=self.metrics(script),
            condenser=lambda: self.condenser(script),
            play=Scripted,  # in a dry run episodes are written by a script, not by the policy
        )
        with run as record:
            if record is not None:  # only the main process has the record
                self.report(record)
            return leave(record, recipe or self.file, arguments, repository)

    def parse(self, argv: Sequence[str] | None = None) -> Flags:
        """The values of the flags: the recipe's own, the trainer's and the model's, in this order.

        Raises `ConfigError` for values that contradict each other.
        """
        return parse_run(self.settings, argv, self.config, self.trainer)
