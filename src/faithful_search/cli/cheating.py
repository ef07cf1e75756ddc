"""`faithful-search gauntlet`: which cheats does a reward pay?"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from .. import __version__, registry
from ..errors import ConfigError
from ..judges.arguments import JudgeArguments
from .options import (
    AT_LEAST_1,
    FOLDER,
    NumberRange,
    config,
    echo,
    exit_unfinished,
    judge_flags,
    say,
    settings_from,
    trust_remote_code,
)

QUESTIONS, PICTURE = 60, "gauntlet.png"


@click.command()
@click.option(
    "--mix",
    "mixes",
    multiple=True,
    default=("pou",),
    help="A mix or reward by name, or a file that defines a reward class; with --signature a "
    "function, FILE.py or FILE.py:FUNCTION. Give it several times for several; 'literature' is "
    "every published reward.",
)
@click.option(
    "--signature",
    type=click.Choice(["trl", "verl"]),
    help="How the trainer calls the function in --mix FILE.py.",
)
@click.option(
    "--cheat",
    "names",
    multiple=True,
    help="A cheat by name, or a file that defines one; by default every cheat there is.",
)
@click.option("--questions", "count", type=AT_LEAST_1, default=QUESTIONS, help="How many.")
@click.option(
    "--policy",
    help="A trained policy as the honest reader, by directory, Hub id, 'tiny' or 'tiny_memory'; by "
    "default the expert reads.",
)
@trust_remote_code
@click.option("--dialect", help="Dialect of the rollouts; by default the mix's own.")
@click.option(
    "--alpha",
    "alphas",
    type=NumberRange(0, 1),
    multiple=True,
    help="Weight of an adaptive process; by default both ends of its schedule, and the middle.",
)
@judge_flags
@click.option("--held-out-judge", help="A second judge, which the rewards are also scored with.")
@click.option("--held-out-model", help="Model of the held-out judge.")
@click.option("--held-out-url", help="Base URL of the held-out judge.")
@click.option("--out", type=FOLDER, default="outputs/gauntlet", help="Folder of the results.")
@click.option("--overwrite", is_flag=True, help="Start over and replace what the folder holds.")
@config
def gauntlet(
    mixes: tuple[str, ...],
    names: tuple[str, ...],
    alphas: tuple[float, ...],
    out: Path,
    overwrite: bool,
    **options: Any,
) -> None:
    """Try to cheat a reward, and show which cheats pay.

    Scripted cheats and an honest reader answer questions of the bundled world with its tools, and
    the reward scores them in one batch. Exploitability is what the best cheat earns, divided by
    what the honest reader earns: at 1 cheating pays as well as reading. Run the same command again
    to go on after an interruption.
    """
    from ..analysis.figures import heat_map
    from ..bundled import bundled_policy
    from ..gauntlet import cheats
    from ..gauntlet.mixes import Contender, adaptive_parts, contender, each_name
    from ..gauntlet.running import PAGE, RESULTS, ROLLOUTS, TABLE, questions, run_gauntlet
    from ..hub.models import settings_to_run, weights_of
    from ..measure.report import aligned
    from ..measure.scores import open_policy
    from ..measure.writing import make_folder
    from ..wire.cache import key_of

    arguments = settings_from(JudgeArguments, options)
    signature, dialect, policy = options["signature"], options["dialect"], options["policy"]
    generator = None
    if policy:
        source = bundled_policy(policy, dialect or "pou")
        dialect = str(settings_to_run(source, dialect)["dialect"])
        generator = open_policy(source, "a policy of your own", options["trust_remote_code"])
    mixes = tuple(each_name(mixes))
    judge = arguments.load_judge()
    contenders = [contender(name, judge, signature, dialect) for name in mixes]
    second = None
    if held_out := options["held_out_judge"]:
        second = replace(
            arguments,
            judge=held_out,
            judge_model=options["held_out_model"],
            judge_url=options["held_out_url"],
        ).load_judge()
        for name in mixes:
            judged = contender(name, second, signature, dialect)
            label = f"{judged.name}, judged by {held_out}"
            contenders.append(Contender(label, judged.reward, judged.dialect))
    elif options["held_out_model"] or options["held_out_url"]:
        raise ConfigError("--held-out-model and --held-out-url go with --held-out-judge")
    if alphas and not any(adaptive_parts(entrant.reward) for entrant in contenders):
        raise ConfigError("--alpha: no mix here has an adaptive process; leave --alpha out")
    names = names or tuple(cheats.names())
    chosen = {Path(name).stem: registry.make(cheats.load(name)) for name in names}
    if len(chosen) < len(names):
        raise ConfigError("two cheats have one name: rename a file")
    tasks = questions(options["count"])
    if len(tasks) < options["count"]:
        say(f"there are {len(tasks)} such questions: these are asked", err=True)
    settings = {
        "mixes": [_known(name) for name in mixes],
        "cheats": [_known(name) for name in names],
        "questions": key_of(tasks=[task.id for task in tasks])[:16],
        "judges": [arguments.judge, arguments.judge_model, held_out, options["held_out_model"]],
        "policy": [policy, weights_of(policy) if policy else None],
        "signature": signature,
        "dialect": dialect,
        "alphas": list(alphas),
        "version": __version__,
    }
    make_folder(out)
    with ExitStack() as stack:
        for number, scoring_judge in enumerate(filter(None, (judge, second)), start=1):
            stack.enter_context(scoring_judge.keeping(out / f"answers-{number}.sqlite"))
        result = run_gauntlet(
            contenders, chosen, tasks, out, settings, generator, alphas, anew=overwrite, say=say
        )
    files = [PAGE, TABLE, RESULTS, ROLLOUTS, PICTURE]
    try:
        rows_and_columns = result.cheats, result.rows
        title = "What cheats earn, beside reading"
        heat_map(result.grid(), rows_and_columns, out / PICTURE, title, "exploitability")
    except ConfigError as error:
        say(f"no {files.pop()}: {error}", err=True)
    echo(f"{aligned(result.table())}\n")
    say(f"{', '.join(files)} in {out}")
    if result.unjudged:
        exit_unfinished(
            [f"{result.unjudged} values are missing: a judge gave no verdict; run again to ask it"]
        )


def _known(name: str) -> str:
    """A name, with the text's hash where it is a file, which may change."""
    from ..wire.cache import key_of

    path = Path(name.partition(".py:")[0] + ".py" if ".py:" in name else name).expanduser()
    if not path.is_file():
        return name
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    return f"{name} {key_of(text=text)[:16]}"
