"""`faithful-search push`: policies, judges, datasets, metrics and the demo as repositories of the Hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import FOLDER, Commands, debug, echo

if TYPE_CHECKING:
    from ..hub import Repository
    from ..hub.repository import Files

F = TypeVar("F", bound=Callable[..., Any])
_SHOWN = 10


class _Kinds(Commands):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(f"say what is pushed, one of {', '.join(self.commands)}: push policy {' '.join(args)}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Kinds)
def push() -> None:
    """Publish on the Hub, each repository in one commit.

    Log in with `hf auth login`, or set HF_TOKEN. `--dry-run` shows every file and the card, and needs neither.
    """


def _options(command: F) -> F:
    for option in (
        click.option("--private", is_flag=True, help="Make it for those who may see the owner's private repositories."),
        click.option("--revision", metavar="BRANCH", help="Push to this branch; by default main."),
        click.option("--tag", help="Put this tag on the commit."),
        click.option("--collection", metavar="TITLE", help="Add it to this collection of the owner's."),
        click.option("--dry-run", is_flag=True, help="Push nothing; show the files and the card."),
        debug,
    ):
        command = option(command)
    return command


@push.command("policy")
@click.argument("folder", type=FOLDER)
@click.argument("repository")
@click.option("--merged", is_flag=True, help="Push the full model in FOLDER/merged, too, as REPOSITORY-merged.")
@click.option("--benchmark", metavar="DATASET", help="Of the Hub, OWNER/NAME: where the held-out questions lie.")
@_options
def push_policy(folder: Path, repository: str, merged: bool, benchmark: str | None, **settings: Any) -> None:
    """Push the policy in FOLDER.

    REPOSITORY is a model of the Hub, OWNER/NAME. Weights, tokenizer, configuration, card, metrics and plots are
    uploaded, and nothing else that lies there. An adapter is of use to others only where its base model is: when that
    is a folder here, push it --merged. With --benchmark its results are also written to .eval_results, where the Hub
    shows those on known benchmarks.
    """
    from ..hub import eval_results, merged_model, merged_repository

    model = _repository(repository, "model", settings)
    folders = {model: folder} | ({merged_repository(model): merged_model(folder)} if merged else {})
    results = eval_results(folder, benchmark) if benchmark else {}
    for to, of in folders.items():
        _push_model(of, to, ("config.json", "adapter_config.json"), settings, results)


@push.command("judge")
@click.argument("folder", type=FOLDER)
@click.argument("repository")
@_options
def push_judge(folder: Path, repository: str, **settings: Any) -> None:
    """Push the distilled judge in FOLDER to the model REPOSITORY."""
    _push_model(folder, _repository(repository, "model", settings), ("judge.json",), settings)


@push.command("metrics")
@click.argument("owner")
@_options
def push_metrics(owner: str, **settings: Any) -> None:
    """Push every metric as a Space.

    evaluate.load("OWNER/name") takes it from there.
    """
    from ..hub import metric_folders, staged

    for space, folder in metric_folders(_repository(owner, "space", settings)).items():
        _publish(staged(folder, space), space, "Upload metric", settings)


@push.command("trajectories")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("repository")
@click.option("--dialect", help="How the rows are written; by default each as it says or looks.")
@_options
def push_trajectories(file: Path, repository: str, dialect: str | None, **settings: Any) -> None:
    """Push a file of trajectories as a dataset.

    FILE is whatever `audit` reads; it becomes parquet with a column for each score and its reason. Keys of yours
    (environment variables, the shapes of tokens) are taken out of all texts.
    """
    from ..hub import stage_trajectories

    with TemporaryDirectory() as folder:
        files = stage_trajectories(file, folder, repository, dialect)
        _publish(files, _repository(repository, "dataset", settings), "Upload trajectories", settings)


@push.command("world")
@click.argument("repository")
@_options
def push_world(repository: str, **settings: Any) -> None:
    """Push the bundled world as a dataset."""
    from ..hub import stage_world

    with TemporaryDirectory() as folder:
        files = stage_world(folder, repository)
        _publish(files, _repository(repository, "dataset", settings), "Upload the world", settings)


@push.command("space")
@click.argument("repository")
@click.option("--wheel", type=click.Path(path_type=Path), help="Of the package, installed there in place of PyPI's.")
@_options
def push_space(repository: str, wheel: Path | None, **settings: Any) -> None:
    """Push the page of `demo` as a Space."""
    from ..hub import staged_space

    space = _repository(repository, "space", settings)
    _publish(staged_space(space, wheel), space, "Upload the faithfulness explorer", settings)


def _push_model(
    folder: Path, model: Repository, marks: tuple[str, ...], settings: dict[str, Any], results: Files | None = None
) -> None:
    from ..hub import staged, stays

    if folder.is_dir() and not any((folder / mark).exists() for mark in marks):
        raise click.UsageError(f"in {folder} there is no {' nor '.join(marks)}")
    _publish({**staged(folder, model), **(results or {})}, model, "Upload search agent", settings)
    if left := stays(folder):
        echo(f"not uploaded: {', '.join(left[:_SHOWN])}{' …' if len(left) > _SHOWN else ''}", err=True)


def _repository(name: str, kind: str, settings: dict[str, Any]) -> Repository:
    from ..hub import Repository

    return Repository(name, kind, **{key: value for key, value in settings.items() if key != "dry_run"})


def _publish(files: Files, repository: Repository, message: str, settings: dict[str, Any]) -> None:
    if not settings["dry_run"]:
        echo(repository.commit(files, message))
        return
    echo(f"{repository.type} {repository.id}{' (private)' if repository.private else ''}:")
    for path, content in sorted(files.items()):
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        echo(f"{size:12,} bytes  {path}")
    if (card := files.get("README.md")) is not None:
        echo(f"\n{(card if isinstance(card, bytes) else card.read_bytes()).decode()}")
