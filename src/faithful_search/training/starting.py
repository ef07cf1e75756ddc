"""How a recipe is started: settings from a YAML file and flags, its output directory locked, threads and seed set."""

import ctypes
import difflib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import yaml
from accelerate import PartialState
from transformers import set_seed
from trl import ModelConfig, TrlParser

from ..bundled import shipped
from ..errors import ConfigError, FaithfulSearchError
from ..flags import check_least, check_shares, flag, refuse
from ..inference.loading import choose_threads
from ..judges.arguments import JudgeArguments
from ..measure.controls import QUESTIONS
from ..measure.ledger import lock
from ..rollout.arguments import EnvironmentArguments
from ..tasks import WORLD, Task, load_tasks
from . import checkpoints
from .arguments import SearchGRPOConfig, precision_line
from .dry_run import MACHINE, rehearse
from .endings import heeding_signals, leave
from .policies import check_flags

LOCK = "_run.lock"
"""What begins with `_` is not pushed to the Hub. The file stays: another run may be waiting for the lock on it."""
REPORTERS = frozenset(
    ("tensorboard", "trackio", "wandb")
)  # packages to log to that are extras of the same name
RENAMED = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}
"""Settings by their current names, and their names before Transformers 5.18, which vLLM needs."""
Flags = tuple[Any, SearchGRPOConfig, ModelConfig]  # a recipe's own, its trainer's and its model's


@dataclass
class StartArguments:
    resume: bool = flag(False, "go on from the last complete checkpoint in output_dir")
    overwrite_output_dir: bool = flag(False, "begin anew where output_dir holds an earlier run")
    threads: int = flag(0, "CPU threads of this process; 0: as many as there are idle cores for it")


@dataclass
class RunArguments(EnvironmentArguments, JudgeArguments, StartArguments):
    """The flags of every training recipe beside its trainer's: questions, tools and judge."""

    questions: str = flag(
        "world", "'world' or 'world_passages' (bundled), a local file or a Hub dataset"
    )
    eval_questions: str = flag("world", "held-out questions, likewise")
    eval_split: str = flag("validation", "split of the held-out questions")
    eval_limit: int = flag(200, "how many held-out questions; 0 skips the evaluations")
    eval_sample_seed: int | None = flag(
        None, "draws the eval_limit questions by this seed; none: the first ones"
    )
    eval_controls: int = flag(
        QUESTIONS, "how many are asked again without evidence and in changed worlds; 0: none"
    )
    stale: float = flag(0.0, "share of the training questions always asked in a changed world")
    save_merged: bool = flag(
        False, "with --use_peft: also the full model, merged, in output_dir/merged"
    )
    dry_run: bool = flag(
        False, "two steps on a CPU with a random model of the same kind: are all settings accepted?"
    )

    def __post_init__(self) -> None:
        check_least(self, eval_limit=0, eval_controls=0, generation_batch=1)
        check_shares(self, "stale")

    def held_out(self) -> list[Task]:
        """The questions of the evaluations; none without `eval_limit`."""
        many, seed = self.eval_limit, self.eval_sample_seed
        return load_tasks(self.eval_questions, self.eval_split, many, seed=seed) if many else []


class _Parser(TrlParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the flags")


def parse_recipe(
    types: Sequence[Any], argv: Sequence[str] | None = None, default: Path | None = None
) -> tuple[Any, ...]:
    """Instances of `types`, dataclasses whose fields are the flags, from `--config FILE` and `argv`; flags win.

    A file's `extends: other.yaml` (relative to it) gives the settings it does not set itself. A file that does not
    exist is looked for among the package's own; `default` is read without `--config`. `env:` sets environment
    variables, as in TRL. With `--dry_run true` the settings are checked as they are, and then made small
    (`dry_run.rehearse`). Raises `ConfigError` for a file that cannot be read, settings that no dataclass has, or that
    one refuses.
    """
    early = _Parser(
        (), add_help=False, allow_abbrev=False
    )  # --help is for the parser below, which knows all flags
    early.add_argument("--config")
    named, flags = early.parse_known_args(sys.argv[1:] if argv is None else argv)
    path = Path(named.config) if named.config else default
    settings = read_config(path) if path else {}
    for name, value in settings.pop("env", {}).items():
        os.environ[name] = str(value)
    known = {field.name for kind in types for field in fields(kind)}
    parser = _Parser(types, allow_abbrev=False)
    unknown = parser.set_defaults_with_config(
        **{key if key in known else RENAMED.get(key, key): value for key, value in settings.items()}
    )
    if unknown:
        names = ", ".join(item.removeprefix("--") for item in unknown if str(item).startswith("--"))
        raise ConfigError(f"{path}: no such settings: {names}; `--help` lists those there are")
    given, wrong = parser.parse_known_args(flags)
    if wrong:
        word = wrong[0].partition("=")[0]
        near = difflib.get_close_matches(word, parser._option_string_actions, n=1)
        raise ConfigError(
            f"no such flag: {word}; {f'did you mean {near[0]}?' if near else '--help lists them'}"
        )
    values = vars(given)
    try:
        if values.get("dry_run"):
            # The real run's instances are made first, so that every setting is checked.
            machine = {key: MACHINE[key] for key in MACHINE if key in values}
            script, args, model_args = parser.parse_dict({**values, **machine})
            source = str(model_args.model_name_or_path)
            is_adapter = (Path(source) / "adapter_config.json").exists()
            check_flags(source, model_args, args, is_adapter, script.save_merged)
            values = rehearse(values)
        return parser.parse_dict(values)
    except FaithfulSearchError:  # many are a ValueError, too, but say already what is wrong
        raise
    except ValueError as error:
        raise ConfigError(f"{path or 'the flags'}: {error}") from error


def parse_run(
    kind: type[RunArguments],
    argv: Sequence[str] | None,
    default: Path,
    config: type[SearchGRPOConfig] = SearchGRPOConfig,
) -> Flags:
    """The flags of a training recipe, see `parse_recipe`; a `ConfigError` also for data that do not go together: the
    bundled world with other questions or passages, or changed worlds with tools that do not know of them."""
    script, args, model_args = parse_recipe((kind, config, ModelConfig), argv, default)
    asked = [script.questions, *([script.eval_questions] if script.eval_limit else [])]
    data = f"questions {script.questions!r}, eval_questions {script.eval_questions!r}, corpus {script.corpus!r}"
    mixed = f"{data}: the bundled world and other data are mixed; give all three"
    changed = {"corpus", "negative_tool"} | (
        {"triples"} if script.corpus == script.triples == "world" else set()
    )
    others = " and ".join(
        f"--{name} {getattr(script, name)}" for name in script.given_tools if name not in changed
    )
    still = f"--counterfactual and --stale change the corpus and the world's triples; {others} would still say what was"
    refuse(
        [
            (len({name in WORLD for name in (script.corpus, *asked)}) > 1, mixed),
            ((args.counterfactual or script.stale) and others, still),
        ]
    )
    return script, args, model_args


def read_config(path: str | Path, *extending: Path) -> dict[str, Any]:
    """The settings of a YAML file, on top of those of the file it extends; a `ConfigError` if one cannot be read."""
    path = Path(path)
    # A recipe may be run away from its folder: the package has its configurations too.
    shared = shipped("recipes/configs") / path.name
    path = shared if shared.is_file() and not path.exists() else path
    if path.resolve() in [one.resolve() for one in extending]:
        raise ConfigError(f"{extending[-1]} extends {path}, and so itself: take one `extends:` out")
    try:
        own = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the settings in {path}: {error}") from error
    if not isinstance(own, dict):
        raise ConfigError(f"{path} must hold a YAML mapping, not {type(own).__name__}")
    parent = own.pop("extends", None)
    return {**(read_config(path.parent / str(parent), *extending, path) if parent else {}), **own}


def run_recipe(main: Callable[[], Any]) -> None:
    """Run a recipe as a program that ends early, by SIGTERM too, with a line on standard error: see `endings.leave`."""
    try:
        with heeding_signals():
            main()
    except (Exception, KeyboardInterrupt) as error:
        leave(error)


@contextmanager
def started(script: StartArguments, args: Any) -> Iterator[None]:
    """Within the block the run owns its output directory; threads and seed are set before anything random happens.

    `script.threads` becomes the number that was taken, so that it is kept with the run.

    Raises:
        ConfigError: for a `--report_to` that is not installed; if the folder cannot be written, or holds a run that is
            neither to be resumed nor overwritten.
        DataError: if another run is writing to it.
    """
    check_least(script, threads=0)
    for name in REPORTERS.intersection(args.report_to):
        if find_spec(name) is None:
            raise ConfigError(
                f"--report_to {name} needs {name}: pip install 'faithful-search[{name}]', or say none"
            )
    with owned(Path(args.output_dir or "."), script.resume, script.overwrite_output_dir):
        script.threads = choose_threads(script.threads)
        if args.device.type == "cpu":
            # Have glibc keep freed memory: returning large blocks to the system and asking for them again, page by page
            # and zeroed, takes up to half of a training step on a CPU. The price is that the process never shrinks.
            mallopt = (
                getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
            )  # musl has none
            if mallopt and mallopt(-4, 0):  # M_MMAP_MAX
                mallopt(-1, 2_000_000_000)  # M_TRIM_THRESHOLD
        set_seed(args.seed)
        PartialState().print(f"{precision_line(args)}; CPU threads: {script.threads}")
        yield


@contextmanager
def owned(out: Path, resume: bool = True, overwrite: bool = False) -> Iterator[None]:
    """Within the block no other run can own the folder; errors as of `started`. Only the main process locks it."""
    if not PartialState().is_main_process:
        yield
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("ab")
    except OSError as error:
        raise ConfigError(f"--output_dir {out} cannot be written: {error.strerror}") from error
    with file:  # the lock goes with the open file, so a killed run frees its folder
        lock(file, out, "run")
        policy = any(out.glob("*.safetensors"))
        there = (
            "a finished run"
            if policy
            else "an evaluation"
            if (out / "metrics.json").exists()
            else ""
        )
        with suppress(ConfigError):  # nothing to resume from
            last = checkpoints.last_checkpoint(out).name
            there = (
                f"{there or 'a run that ended before its time'}: --resume true goes on from {last}"
            )
        if there and not (resume or overwrite):
            raise ConfigError(
                f"{out} holds {there}; --overwrite_output_dir true starts anew, or name another folder"
            )
        yield
