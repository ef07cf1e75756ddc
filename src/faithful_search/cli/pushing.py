"""`faithful-search push`: policies, judges, datasets, metrics and the demo as repositories of the Hub; `merge`: a
trained adapter as a full model.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from .options import ANY_PATH, FOLDER, SHOWN, echo, together, trust_remote_code

if TYPE_CHECKING:
    from ..hub.pushing import Files, Repository


@click.command()
@click.argument("adapter")
@click.argument("out", type=FOLDER)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="By default the base model's.",
)
@trust_remote_code
def merge(adapter: str, out: Path, dtype: str | None, trust_remote_code: bool) -> None:
    """Write the full model of the LoRA adapter in ADAPTER, a folder or Hub id, to the folder OUT.

    What lies at OUT is replaced when all is written. It is done on the CPU and takes the memory of the full model.
    """
    from ..hub.cards import merged_card
    from ..training.policies import merge_adapter

    merge_adapter(adapter, out, dtype, trust_remote_code)
    if Path(adapter).is_dir():
        merged_card(adapter, out)
    echo(f"the merged model is in {out}")


@click.group()
def push() -> None:
    """Publish on the Hub, each repository in one commit.

    Log in with `hf auth login`, or set HF_TOKEN. `--dry-run` shows every file and the card, and needs neither.
    """


_options = together(
    click.argument("repository"),
    click.option(
        "--private",
        is_flag=True,
        help="Make it for those who may see the owner's private repositories.",
    ),
    click.option("--revision", metavar="BRANCH", help="Push to this branch; by default main."),
    click.option("--tag", help="Put this tag on the commit."),
    click.option("--collection", metavar="TITLE", help="Add it to this collection of the owner's."),
    click.option("--dry-run", is_flag=True, help="Push nothing; show the files and the card."),
)


@push.command("policy")
@click.argument("folder", type=FOLDER)
@click.option(
    "--merged",
    is_flag=True,
    help="Push the full model in FOLDER/merged, too, as REPOSITORY-merged.",
)
@click.option(
    "--benchmark",
    metavar="DATASET",
    help="Dataset of the Hub, OWNER/NAME, with the held-out questions.",
)
@_options
def push_policy(folder: Path, merged: bool, benchmark: str | None, **given: Any) -> None:
    """Push the policy in FOLDER.

    REPOSITORY is a model of the Hub, OWNER/NAME. Weights, tokenizer, configuration, card, metrics and plots are
    uploaded, and nothing else that lies there. An adapter is of use to others only where its base model is: when that
    is a folder here, push it --merged. With --benchmark its results are also written to .eval_results, where the Hub
    shows those on known benchmarks.
    """
    from ..hub.cards import eval_results
    from ..hub.pushing import policy_folders

    folders = policy_folders(folder, _repository("model", given), merged)
    results = eval_results(folder, benchmark) if benchmark else {}
    for to, of in folders.items():
        _push_model(of, to, ("config.json", "adapter_config.json"), given, results)


@push.command("judge")
@click.argument("folder", type=FOLDER)
@_options
def push_judge(folder: Path, **given: Any) -> None:
    """Push the distilled judge in FOLDER to the model REPOSITORY."""
    _push_model(folder, _repository("model", given), ("judge.json",), given)


@push.command("metrics")
@_options
def push_metrics(**given: Any) -> None:
    """Push every metric as a Space; REPOSITORY is the owner alone.

    evaluate.load("OWNER/name") takes it from there.
    """
    from ..hub.pushing import metric_folders, staged

    for space, folder in metric_folders(_repository("space", given)).items():
        _publish(staged(folder, space), space, "Upload metric", given)


@push.command("trajectories")
@click.argument("file", type=ANY_PATH)
@click.option("--dialect", help="How the rows are written; by default each as it says or looks.")
@_options
def push_trajectories(file: Path, dialect: str | None, **given: Any) -> None:
    """Push a file of trajectories as a dataset.

    FILE is whatever `audit` reads; it becomes parquet with a column for each score and its reason. Keys of yours
    (environment variables, the shapes of tokens) are taken out of all texts.
    """
    from ..hub.datasets import stage_trajectories

    with TemporaryDirectory() as folder:
        files = stage_trajectories(file, folder, given["repository"], dialect)
        _publish(files, _repository("dataset", given), "Upload trajectories", given)


@push.command("world")
@_options
def push_world(**given: Any) -> None:
    """Push the bundled world as a dataset."""
    from ..hub.datasets import stage_world

    with TemporaryDirectory() as folder:
        files = stage_world(folder, given["repository"])
        _publish(files, _repository("dataset", given), "Upload the world", given)


@push.command("space")
@click.option(
    "--wheel", type=ANY_PATH, help="Wheel of the package to install there instead of PyPI's."
)
@_options
def push_space(wheel: Path | None, **given: Any) -> None:
    """Push the page of `demo` as a Space."""
    from ..hub.pushing import staged_space

    space = _repository("space", given)
    _publish(staged_space(space, wheel), space, "Upload the faithfulness explorer", given)


def _push_model(
    folder: Path,
    model: "Repository",
    marks: tuple[str, ...],
    given: dict[str, Any],
    results: "Files | None" = None,
) -> None:
    from ..hub.pushing import staged, stays

    if folder.is_dir() and not any((folder / mark).exists() for mark in marks):
        raise click.UsageError(f"in {folder} there is no {' nor '.join(marks)}")
    _publish({**staged(folder, model), **(results or {})}, model, "Upload search agent", given)
    if left := stays(folder):
        echo(
            f"not uploaded: {', '.join(left[:SHOWN])}{' …' if len(left) > SHOWN else ''}", err=True
        )


def _repository(kind: str, given: dict[str, Any]) -> "Repository":
    from ..hub.pushing import Repository

    how = {name: given[name] for name in ("private", "revision", "tag", "collection")}
    return Repository(given["repository"], kind, **how)


def _publish(files: "Files", repository: "Repository", message: str, given: dict[str, Any]) -> None:
    if not given["dry_run"]:
        echo(repository.commit(files, message))
        return
    echo(f"{repository.type} {repository.id}{' (private)' if repository.private else ''}:")
    for path, content in sorted(files.items()):
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        echo(f"{size:12,} bytes  {path}")
    if (card := files.get("README.md")) is not None:
        echo(f"\n{(card if isinstance(card, bytes) else card.read_bytes()).decode()}")
