"""What refuses a recipe's flags before torch is imported, which takes half a minute."""

import difflib
import errno
import os
import sys
from argparse import Action, ArgumentDefaultsHelpFormatter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, get_type_hints

from .. import dialects, suites
from ..bundled import bundled_policy, shipped
from ..errors import ConfigError, DataError, needs
from ..flags import at_home, old_name_line
from ..measure.ledger import lock
from ..rollout.outside import check_outside
from ..yaml_files import load_yaml
from ..yaml_kinds import check_kind
from .outline import FieldSource, settings_in
from .run_folder import LOCK, check_unowned

if TYPE_CHECKING:
    from transformers import HfArgumentParser

    from .starting import RunArguments

RENAMED = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}
"""Settings by their current names, and their names before Transformers 5.18, which vLLM needs."""
ALIASES = {"model": "model_name_or_path", "out": "output_dir"}
"""What our commands call a setting, and what TRL and Transformers call it."""
OLD_NAMES = {
    "policy": "model",
    "url": "endpoint",
    "output_dir": "out",
    "overwrite_output_dir": "overwrite",
    "eval_limit": "limit",
    "top_k": "search_top_k",
    "verdict_weight": "verdict_token_weight",
    "answer_reward": "correctness",
    "judge_temperature": "self_temperature",
}
"""Settings by the names of the last release, which work until the next one. A name means another
setting where a recipe has one of that name: `top_k` of training is the sampler's.
"""
GRPO = "faithful_search.training.arguments.SearchGRPOConfig"
SFT = "faithful_search.training.arguments.SearchSFTConfig"
MODEL = "trl.ModelConfig"
"""Settings of trainers and models by name: importing them brings torch."""
FILES = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet")
"""How the names of files of questions and passages end; other names may be datasets of the Hub."""
MOVED = ("scripts/studies", "scripts/policies")
"""Folders of a checkout whose configurations were in `recipes/configs` up to version 0.1."""
DTYPES = ("float32", "bfloat16", "float16", "float64", "float", "half", "double")
"""Of weights, as torch names them."""
HELP_ALL = "--help-all"


@dataclass(frozen=True)
class RecipeCall:
    """How a recipe was called: the settings of its file, its flags, the file, what it sets in the
    environment, and by setting the file that says it, which may be one that the file extends.
    """

    settings: dict[str, Any]
    flags: list[str]
    path: Path | None
    environment: dict[str, Any]
    places: dict[str, Path]

    def set_environment(self) -> None:
        for name, value in self.environment.items():
            os.environ[name] = str(value)


def read_call(argv: Sequence[str] | None, default: Path | None) -> RecipeCall:
    """The settings of the file that `--config` names, or of `default`, and the other flags.

    `env` is none of the settings; a file's own replaces that of a file which it extends.
    """
    flags = at_home(list(sys.argv[1:] if argv is None else argv))
    path, rest = default, []
    while flags:
        word = flags.pop(0)
        name, equals, value = word.partition("=")
        if name != "--config":
            rest.append(word)
            continue
        if not equals and not flags:
            raise ConfigError("--config needs the name of a file")
        path = Path(value if equals else flags.pop(0))
    settings: dict[str, Any] = {}
    places: dict[str, Path] = {}
    for file, settings_of_file in _files_of(path) if path else []:
        settings |= settings_of_file
        places |= dict.fromkeys(settings_of_file, file)
    environment = settings.pop("env", None)
    if environment is not None:
        check_kind(f"{places['env']}: env", environment, dict)
    return RecipeCall(settings, rest, path, environment or {}, places)


def spelled(name: str, setting_names: Collection[str]) -> str:
    """The setting that a name means: one of `setting_names`, or the name as it is.

    Example:
        >>> spelled("model", ["model_name_or_path"]), spelled("policy", ["model"])
        ('model_name_or_path', 'model')
        >>> spelled("top_k", ["top_k", "search_top_k"])
        'top_k'
    """
    for names in (ALIASES, OLD_NAMES, RENAMED):
        if name not in setting_names and names.get(name) in setting_names:
            return names[name]
    return name


def check_kinds(call: RecipeCall, kinds: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a setting of a file that is not of its type in `kinds`, by the file
    and the name that it has there.
    """
    for name, value in call.settings.items():
        setting = spelled(name, kinds.keys())
        if setting in kinds:
            check_kind(f"{call.places[name]}: {name}", value, kinds[setting])


def respelled(call: RecipeCall, setting_names: Collection[str]) -> RecipeCall:
    """The same settings and flags by their names in `setting_names`."""
    flags = []
    for word in call.flags:
        name, equals, value = word.removeprefix("--").partition("=")
        setting = spelled(name.replace("-", "_"), setting_names)
        if word.startswith("--") and setting != name.replace("-", "_"):
            word = f"--{setting}{equals}{value}"
        flags.append(word)
    settings = {spelled(name, setting_names): value for name, value in call.settings.items()}
    return replace(call, settings=settings, flags=flags)


def _warn_of_old_names(call: RecipeCall, setting_names: Collection[str]) -> None:
    words = [word.removeprefix("--").partition("=")[0] for word in call.flags if word[:2] == "--"]
    names = [*call.settings, *(word.replace("-", "_") for word in words)]
    for name in dict.fromkeys(names):
        setting = spelled(name, setting_names)
        if setting != name and name in OLD_NAMES:
            print(old_name_line(f"--{name}", f"--{setting}"), file=sys.stderr, flush=True)


def read_config(path: str | Path) -> dict[str, Any]:
    """The settings of a YAML file, on top of those of the file it extends; a `ConfigError` if one
    cannot be read.
    """
    settings: dict[str, Any] = {}
    for _, settings_of_file in _files_of(Path(path)):
        settings |= settings_of_file
    return settings


def _files_of(path: Path, *extending: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The files that a file extends, the first one first, and last the file itself; each with what
    it says itself. `extending` are the files that led here.
    """
    path = _find_config(path)
    if path.resolve() in [file.resolve() for file in extending]:
        raise ConfigError(f"{extending[-1]} extends {path}, and so itself: take one `extends:` out")
    try:
        settings = load_yaml(path)
    except DataError as error:
        raise ConfigError(str(error)) from error
    if settings is None:  # an empty file
        settings = {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} must hold a YAML mapping, not {type(settings).__name__}")
    settings = {name: at_home(value) for name, value in settings.items()}
    parent = settings.pop("extends", None)
    if parent is None:
        return [(path, settings)]
    check_kind(f"{path}: extends", parent, str)
    return [*_files_of(path.parent / parent, *extending, path), (path, settings)]


def _find_config(path: Path) -> Path:
    """The file, or where there is none the configuration of that name: a recipe may be run away
    from its folder, and the package has its configurations too.
    """
    if path.exists():
        return path
    configs = shipped("recipes/configs")
    if (configs / path.name).is_file():
        return configs / path.name
    for folder in MOVED:
        moved = configs.parent.parent / folder / path.name
        if moved.is_file():
            print(f"{path} is {folder}/{path.name} now: give that", file=sys.stderr)
            return moved
    return path


def cold_start_of(model: str) -> Path | None:
    """The package's configuration whose output directory is this model, which makes it; `None`
    where there is none.

    Example:
        >>> cold_start_of("outputs/sft_smollm2-135m").name
        'sft_smollm2-135m.yaml'
    """
    for path in sorted(shipped("recipes/configs").glob("*.yaml")):
        settings = load_yaml(path)
        if settings.get("output_dir") == model:
            return path
    return None


def parser_of(types: Sequence[Any]) -> "HfArgumentParser":
    """A parser of these dataclasses' fields, whose errors are a `ConfigError`."""
    with needs("a recipe", "train"):
        from transformers import HfArgumentParser

    class Parser(HfArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ConfigError(f"{message}; --help lists the flags")

    parser = Parser(types, allow_abbrev=False, formatter_class=_Help)
    for action in parser._actions:
        if action.nargs == 0 and action.const is False:  # made beside each flag that is on
            action.help = f"Switch --{action.dest} off."
        action.help = (action.help or "").replace("%", "%%")  # which argparse would format
    return parser


class _Help(ArgumentDefaultsHelpFormatter):
    """Help texts with the defaults that say something."""

    def _get_help_string(self, action: Action) -> str | None:
        if action.default in (None, "") or action.nargs == 0:
            return action.help
        return super()._get_help_string(action)


def check_known(call: RecipeCall, settings: Collection[str], flags: Iterable[str]) -> None:
    """Raise `ConfigError` for a setting of the file, or a flag, that there is not."""
    unknown = [key for key in call.settings if key not in settings]
    if unknown:
        names = ", ".join(map(str, unknown))
        near = difflib.get_close_matches(str(unknown[0]), settings, n=1)
        advice = f"did you mean {near[0]}?" if near else "`--help` lists those there are"
        raise ConfigError(f"{call.places[unknown[0]]}: no such settings: {names}; {advice}")
    if call.flags and not call.flags[0].startswith("-"):
        word = call.flags[0]
        raise ConfigError(
            f"{word!r} stands without its flag; name it, such as --model {word}; --help lists them"
        )
    options = {*flags}
    for word in call.flags:
        name = word.partition("=")[0]
        if name.startswith("--") and name not in options:
            near = difflib.get_close_matches(name, options, n=1)
            advice = f"did you mean {near[0]}?" if near else "--help lists them"
            raise ConfigError(f"no such flag: {name}; {advice}")


class Flags(NamedTuple):
    """A recipe's own settings, and those of trainer and model as they were written.

    `script` is an instance of the recipe's dataclass, `values` holds settings by name: from the
    YAML file and, where given, from the command line.
    """

    script: Any
    values: dict[str, Any]

    def announce(self) -> None:
        """Say that the flags are fine, and why nothing happens for a while."""
        if os.environ.get("RANK", "0") == "0":
            print("the flags are fine; loading PyTorch, Transformers and TRL", flush=True)


def checked(
    kind: type,
    argv: Sequence[str] | None,
    default: Path | None = None,
    places: Sequence[str] = (),
) -> Flags:
    """The flags of a recipe, as far as they can be read without torch.

    Args:
        kind: the recipe's own dataclass.
        default: the file of settings where `--config` names none.
        places: the settings of its trainer and model, see `outline.settings_in`.

    Raises `ConfigError` for files and flags that there are not, numbers that are none, and own
    flags that contradict each other. With `--help` the recipe's own flags are printed, with
    `--help-all` the trainer's, too.
    """
    call = read_call(argv, default)
    parser = parser_of((kind,))
    theirs: dict[str, FieldSource] = {}
    for place in places:
        theirs |= settings_in(place)
    recipes_own = {field.name for field in fields(kind)}
    setting_names = recipes_own | theirs.keys()
    kinds = {name: setting.kind for name, setting in theirs.items()}
    check_kinds(call, {**kinds, **get_type_hints(kind)})
    if os.environ.get("RANK", "0") == "0":
        _warn_of_old_names(call, setting_names)
    call = respelled(call, setting_names)
    parser.set_defaults(
        **{key: value for key, value in call.settings.items() if key in recipes_own}
    )
    if {"-h", "--help", HELP_ALL} & {*call.flags}:
        by_default = f" (by default {default.name})" if default else ""
        parser.usage = "[--config FILE] [--FLAG VALUE ...]"
        parser.description = f"Settings come from FILE{by_default} and from flags, which win."
        _print_help(parser, theirs, HELP_ALL in call.flags)
    options = [*parser._option_string_actions, *_options(theirs)]
    check_known(call, setting_names, options)
    values_of_flags = _values_of(call.flags, theirs)
    for name, value in values_of_flags.items():
        if value not in ("None", "null"):
            check_kind(f"--{name}", value, kinds[name])
    values = {**call.settings, **values_of_flags}
    script = parser.parse_args_into_dataclasses(
        call.flags, return_remaining_strings=True, look_for_args_file=False
    )[0]
    return Flags(script, values)


def check_early(
    kind: "type[RunArguments]", argv: Sequence[str], default: Path, config: str = GRPO
) -> None:
    """Raise `ConfigError` for what can be seen of a training recipe's flags without torch.

    These are what `checked` refuses, questions, models and folders that cannot be used, and data
    that do not go together. `config` names the trainer's settings (`outline.settings_in`).
    """
    flags = checked(kind, argv, default=default, places=[config, MODEL])
    script, values = flags
    if not script.dry_run:  # which replaces them
        check_files(**{name: [source] for name, source in _question_sources(script).items()})
        check_files(corpus=[script.corpus])
        check_data(script, float(values.get("counterfactual") or 0.0))
        check_model(values.get("model_name_or_path"), script.dialect)
        check_folder(values.get("output_dir"), script.resume, script.overwrite)
    if values.get("rollouts") == "trl":
        check_outside(dialects.load(script.dialect), script.limits(1))
    flags.announce()


def check_data(script: "RunArguments", counterfactual: float) -> None:
    """Raise `ConfigError` for data that do not go together: the bundled world with other questions
    or passages, or changed worlds with tools that do not know of them.
    """
    sources = [script.corpus, *_question_sources(script).values()]
    corpora = {suites.with_corpus(source) for source in sources if source != "none"}
    if len(corpora) > 1:
        raise ConfigError(
            f"questions {script.questions!r}, eval_questions {script.eval_questions!r}, corpus "
            f"{script.corpus!r}: the bundled world and other data are mixed; give all three"
        )
    if not (counterfactual or script.stale):
        return
    changed = {"corpus", "negative_tool"}
    if suites.with_corpus(script.corpus) is not None and script.triples == script.corpus:
        changed.add("triples")
    unchanged = [name for name in script.given_tools if name not in changed]
    if unchanged:
        flags = " and ".join(f"--{name} {getattr(script, name)}" for name in unchanged)
        raise ConfigError(
            f"--counterfactual and --stale change the corpus and the world's triples; {flags} "
            "would still say what was"
        )


def _question_sources(script: "RunArguments") -> dict[str, str]:
    """Where questions come from, by their flag."""
    sources = {"questions": script.questions}
    if script.eval_limit:
        sources["eval_questions"] = script.eval_questions
    return sources


def check_dtype(name: str | None) -> None:
    """Raise `ConfigError` for what is no dtype of weights; none and "auto" are left to whoever
    loads them.
    """
    if name not in (None, "auto", *DTYPES):
        raise ConfigError(f"{name!r} is not a dtype of torch, such as float32, bfloat16 or float16")


def check_files(**sources: Iterable[str]) -> None:
    """Raise `ConfigError` for a file that is not there, by the flag that names it. Other sources
    are bundled, on the Hub or served.
    """
    for name, places in sources.items():
        for place in places:
            is_file = place.endswith(FILES) and "://" not in place
            if is_file and not Path(place).exists():
                raise ConfigError(f"--{name} {place}: there is no such file")


def _options(settings: Mapping[str, FieldSource]) -> list[str]:
    """The flags that a parser makes of these fields."""
    options = ["-h", "--help", HELP_ALL]
    for name, setting in settings.items():
        spellings = {name, name.replace("_", "-")}
        options += [f"--{spelling}" for spelling in spellings]
        if setting.kind in (bool, bool | None):
            options += [f"--no_{name}", f"--no-{name.replace('_', '-')}"]
    return options


def _values_of(flags: Sequence[str], settings: Mapping[str, FieldSource]) -> dict[str, str]:
    """The values that flags give these settings, as they were written."""
    values = {}
    for place, word in enumerate(flags):
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--") or name not in settings:
            continue
        following = flags[place + 1] if place + 1 < len(flags) else "--"
        if equals:
            values[name] = value
        elif not following.startswith("--"):
            values[name] = following
    return values


def check_model(name: str | None, dialect: str | None, flag: str = "model") -> None:
    """Raise `ConfigError` for the path of a model at which there is none."""
    if name is None:
        return
    path = Path(bundled_policy(name, dialect or "pou"))
    looks_like_a_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_a_path and not path.exists():
        raise ConfigError(f"--{flag} {name}: there is no such folder")


def check_folder(output_dir: str | None, resume: bool, overwrite: bool) -> None:
    """Raise `ConfigError` for a folder that holds another run or cannot be made, `DataError` for
    one that a run is writing to.
    """
    if os.environ.get("RANK", "0") != "0":  # the first process may own it by now
        return
    out = Path(output_dir or ".")
    parents = out.absolute().parents
    nearest = next(path for path in (out, *parents) if path.exists() or path.is_symlink())
    if not nearest.is_dir():
        raise ConfigError(f"--out {out} cannot be written: {os.strerror(errno.ENOTDIR)}")
    if not os.access(nearest, os.W_OK):
        raise ConfigError(f"--out {out} cannot be written: {os.strerror(errno.EACCES)}")
    if (out / LOCK).exists():
        with (out / LOCK).open("ab") as file:
            lock(file, out, "run")
    check_unowned(out, resume, overwrite)


def _print_help(parser: Any, theirs: Mapping[str, FieldSource], everything: bool) -> NoReturn:
    """Print the recipe's own flags, and what there is besides, and end the program."""
    print(parser.format_help())
    if everything:
        print("settings of the trainer and the model:")
        for name, setting in theirs.items():
            help_text = " ".join(setting.help.split())
            print(f"  --{name} ({setting.annotation})  {help_text}".rstrip())
    elif theirs:
        print("--model and --out are short for --model_name_or_path and --output_dir.")
        print(f"{HELP_ALL} also lists the {len(theirs)} settings of the trainer and the model:")
        print("those of TRL's configuration of the trainer, TrainingArguments and ModelConfig")
    raise SystemExit
