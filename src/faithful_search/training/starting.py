"""How a recipe is started: settings from a YAML file and flags, its output directory locked,
threads and seed set.
"""

import ctypes
import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import suites
from ..errors import ConfigError, FaithfulSearchError
from ..flags import check_least, check_literals, check_shares, flag
from ..judges import Judge
from ..judges.arguments import JudgeArguments
from ..measure.answerable import gold_warning
from ..measure.controls import QUESTIONS
from ..measure.ledger import lock
from ..rollout.arguments import EnvironmentArguments
from ..tasks import Task, load_tasks
from .endings import heeding_signals, leave
from .quiet import hush
from .refusing import GRPO, MODEL, check_data, check_known, parser_of, read_call, respelled
from .run_folder import LOCK, check_unowned

if TYPE_CHECKING:
    from trl import ModelConfig

    from .arguments import SearchGRPOConfig

REPORTERS = frozenset(
    ("tensorboard", "trackio", "wandb")
)  # packages to log to that are extras of the same name
logger = logging.getLogger(__name__)
Flags = tuple[Any, "SearchGRPOConfig", "ModelConfig"]
"""A recipe's own, its trainer's and its model's."""


@dataclass
class StartArguments:
    resume: bool = flag(False, "Go on from the last complete checkpoint in output_dir.")
    overwrite: bool = flag(False, "Begin anew where output_dir holds an earlier run.")
    threads: int = flag(0, "CPU threads of this process. 0: as many as there are idle cores.")
    dry_run: bool = flag(
        False, "Check all settings by two steps on a CPU with a random model of the same kind."
    )


@dataclass
class RunArguments(EnvironmentArguments, JudgeArguments, StartArguments):
    """The flags of every training recipe beside its trainer's: questions, tools and judge."""

    questions: str = flag(
        "world",
        "Training questions: 'world' or 'world_passages' (bundled), a file or a Hub dataset.",
    )
    eval_questions: str = flag("world", "Held-out questions, likewise.")
    eval_split: str = flag("validation", "Split of the held-out questions.")
    eval_limit: int = flag(200, "Number of held-out questions. 0 skips the evaluations.")
    eval_sample_seed: int | None = flag(
        None, "Seed that draws the eval_limit questions. By default the first ones."
    )
    eval_controls: int = flag(
        QUESTIONS, "Number of them that are asked again without evidence and in changed worlds."
    )
    stale: float = flag(
        0.0, "Share of the training questions that are always asked in a changed world."
    )
    save_merged: bool = flag(
        False, "With --use_peft, also save the merged full model, in output_dir/merged."
    )

    def __post_init__(self) -> None:
        check_literals(self)
        check_least(self, eval_limit=0, eval_controls=0, generation_batch=1)
        check_shares(self, "stale")

    def adjust(self, args: "SearchGRPOConfig") -> None:
        """Adjust the trainer's settings to these.

        Raises `ConfigError` for data that do not go together, see `refusing.check_data`, and for
        settings of one that contradict those of the other.
        """
        check_data(self, args.counterfactual)

    def load_judge(self) -> Judge | None:
        """As of `JudgeArguments`; in a dry run one that writes what can be read."""
        judge = super().load_judge()
        if self.dry_run and judge is not None and judge.name.startswith("generator:"):
            from .dry_run import ScriptedJudge

            return ScriptedJudge.of(judge)  # type: ignore[arg-type]
        return judge

    def held_out(self) -> list[Task]:
        """The questions of the evaluations; none without `eval_limit`."""
        if not self.eval_limit:
            return []
        return load_tasks(
            self.eval_questions, self.eval_split, self.eval_limit, seed=self.eval_sample_seed
        )


def parse_recipe(
    types: Sequence[Any], argv: Sequence[str] | None = None, default: Path | None = None
) -> tuple[Any, ...]:
    """Instances of `types`, dataclasses whose fields are the flags, from `--config FILE` and
    `argv`; flags win.

    A file's `extends: other.yaml` (relative to it) gives the settings it does not set itself. A
    file that does not exist is looked for among the package's own; `default` is read without
    `--config`. `env:` sets environment variables, as in TRL. With `--dry_run true` the settings are
    checked as they are, and then made small (`dry_run.rehearse`). Raises `ConfigError` for a file
    that cannot be read, settings that no dataclass has, or that one refuses.
    """
    call = read_call(argv, default)
    call.set_environment()
    setting_names = {field.name for kind in types for field in fields(kind)}
    call = respelled(call, setting_names)
    parser = parser_of(types)
    check_known(call, setting_names, parser._option_string_actions)
    parser.set_defaults(**call.settings)
    values = vars(parser.parse_args(call.flags))
    try:
        if values.get("dry_run"):
            from .dry_run import MACHINE, before_its_start, rehearse
            from .policies import check_flags

            values = before_its_start(values)
            # The real run's instances are made first, so that every setting is checked.
            machine = {key: MACHINE[key] for key in MACHINE if key in values}
            _, args, model_args = parser.parse_dict({**values, **machine})
            source = str(model_args.model_name_or_path)
            is_adapter = (Path(source) / "adapter_config.json").exists()
            check_flags(source, model_args, args, is_adapter, bool(values.get("save_merged")))
            values = rehearse(values)
        return parser.parse_dict(values)
    except FaithfulSearchError:  # many are a ValueError, too, but say already what is wrong
        raise
    except ValueError as error:
        raise ConfigError(f"{call.path or 'the flags'}: {error}") from error


def parse_run(
    kind: type[RunArguments], argv: Sequence[str] | None, default: Path, config: str = GRPO
) -> Flags:
    """The flags of a training recipe, see `parse_recipe`; `config` names the trainer's settings. A
    `ConfigError` also for settings that do not go together, see `RunArguments.adjust`.
    """
    trainers = []
    for place in (config, MODEL):
        module, _, name = place.rpartition(".")
        trainers.append(getattr(import_module(module), name))
    script, args, model_args = parse_recipe((kind, *trainers), argv, default)
    script.adjust(args)
    return script, args, model_args


def run_recipe(main: Callable[[], Any]) -> None:
    """Run a recipe as a program that ends early, by SIGTERM too, with a line on standard error: see
    `endings.leave`.
    """
    hush()
    try:
        with heeding_signals():
            main()
    except (Exception, KeyboardInterrupt) as error:
        leave(error)


@contextmanager
def started(script: StartArguments, args: Any) -> Iterator[None]:
    """Within the block the run owns its output directory; threads and seed are set before anything
    random happens.

    `script.threads` becomes the number that was taken, so that it is kept with the run.

    Raises:
        ConfigError: for a `--report_to` that is not installed; if the folder cannot be written, or
            holds a run that is neither to be resumed nor overwritten.
        DataError: if another run is writing to it.
    """
    from accelerate import PartialState
    from transformers import set_seed

    from ..inference.loading import choose_threads
    from .arguments import precision_line

    check_least(script, threads=0)
    for name in REPORTERS.intersection(args.report_to):
        if find_spec(name) is None:
            raise ConfigError(
                f"--report_to {name} needs {name}: pip install 'faithful-search[{name}]', or say "
                "none"
            )
    with owned(Path(args.output_dir or "."), script.resume, script.overwrite):
        script.threads = choose_threads(script.threads)
        if args.device.type == "cpu":
            _keep_freed_memory()
        set_seed(args.seed)
        PartialState().print(f"{precision_line(args)}; CPU threads: {script.threads}")
        yield


def _keep_freed_memory() -> None:
    """Have glibc keep freed memory: returning large blocks to the system and asking for them again,
    page by page and zeroed, takes up to half of a training step on a CPU. The price is that the
    process never shrinks.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt and mallopt(-4, 0):  # M_MMAP_MAX
        mallopt(-1, 2_000_000_000)  # M_TRIM_THRESHOLD


@contextmanager
def owned(out: Path, resume: bool = True, overwrite: bool = False) -> Iterator[None]:
    """Within the block no other run can own the folder; errors as of `started`. Only the main
    process locks it.
    """
    from accelerate import PartialState

    if not PartialState().is_main_process:
        yield
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("ab")
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from error
    with file:  # the lock goes with the open file, so a killed run frees its folder
        lock(file, out, "run")
        check_unowned(out, resume, overwrite)
        yield


def warn_of_missing_gold(script: RunArguments, tasks: Sequence[Task]) -> None:
    """Log a warning where the corpus lacks the gold passages of many questions, and the policy has
    no other tool to find them with; see `measure.answerable.gold_warning`.
    """
    from accelerate import PartialState

    is_only_tool = script.given_tools == ["corpus"]
    if suites.facts_are_known(script.questions) or not is_only_tool:
        return
    if not PartialState().is_main_process:
        return
    try:
        warning = gold_warning(tasks, script.corpus_passages())
    except ConfigError:  # a server's passages, which cannot be read
        return
    if warning:
        parts = ["faithful-search", "answerable", script.questions, "--corpus", script.corpus]
        logger.warning("%s; which these are: %s", warning, shlex.join(parts))
