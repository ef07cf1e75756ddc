"""`faithful-search push`: policies, judges, datasets, metrics and the demo as repositories of the
Hub, and an audit's scores where traces are looked at; `merge`: a trained adapter as a full model.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from ..reading.settings import ReadingSettings
from .options import (
    ANY_PATH,
    FOLDER,
    SHOWN,
    echo,
    exit_unfinished,
    flags,
    say,
    settings_from,
    together,
    trust_remote_code,
)

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
    """Merge a LoRA adapter into its base model.

    ADAPTER is a folder or Hub id; the full model is written to the folder OUT, whose contents are
    replaced once everything is written. Merging runs on the CPU and needs memory for the full
    model.
    """
    from ..hub.cards import merged_card
    from ..training.policies import merge_adapter

    merge_adapter(adapter, out, dtype, trust_remote_code)
    if Path(adapter).is_dir():
        merged_card(adapter, out)
    say(f"the merged model is in {out}")


@click.group()
def push() -> None:
    """Publish on the Hub, or send scores to a tracker.

    Each repository of the Hub gets one commit; `scores` go to Langfuse or trackio. For the Hub log
    in with `hf auth login`, or set HF_TOKEN; `--dry-run` shows every file and the card, and needs
    neither.
    """


_options = together(
    click.argument("repository"),
    click.option(
        "--private",
        is_flag=True,
        help="Create a private repository.",
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
def push_policy(folder: Path, merged: bool, benchmark: str | None, **options: Any) -> None:
    """Push the policy in FOLDER.

    REPOSITORY is a model of the Hub, OWNER/NAME. Weights, tokenizer, configuration, card, metrics
    and plots are uploaded, and nothing else that lies there. An adapter is of use to others only
    where its base model is: when that is a folder here, push it --merged. With --benchmark its
    results are also written to .eval_results, where the Hub shows those on known benchmarks.
    """
    from ..hub.cards import eval_results
    from ..hub.pushing import policy_folders

    folders = policy_folders(folder, _repository("model", options), merged)
    results = eval_results(folder, benchmark) if benchmark else {}
    for to, of in folders.items():
        _push_model(of, to, ("config.json", "adapter_config.json"), options, results)


@push.command("judge")
@click.argument("folder", type=FOLDER)
@_options
def push_judge(folder: Path, **options: Any) -> None:
    """Push the distilled judge in FOLDER to the model REPOSITORY."""
    _push_model(folder, _repository("model", options), ("judge.json",), options)


@push.command("metrics")
@_options
def push_metrics(**options: Any) -> None:
    """Push every metric as a Space; REPOSITORY is the owner alone.

    evaluate.load("OWNER/name") takes it from there.
    """
    from ..hub.pushing import metric_folders, staged

    for space, folder in metric_folders(_repository("space", options)).items():
        _publish(staged(folder, space), space, "Upload metric", options)


@push.command("trajectories")
@click.argument("file", type=ANY_PATH)
@click.option("--dialect", help="Dialect of all rows. Detected per row by default.")
@_options
def push_trajectories(file: Path, dialect: str | None, **options: Any) -> None:
    """Push a file of trajectories as a dataset.

    FILE is whatever `audit` reads; it becomes parquet with a column for each score and its reason.
    Keys of yours (environment variables, the shapes of tokens) are taken out of all texts.
    """
    from ..hub.datasets import stage_trajectories

    with TemporaryDirectory() as folder:
        files = stage_trajectories(file, folder, options["repository"], dialect)
        _publish(files, _repository("dataset", options), "Upload trajectories", options)


@push.command("scores")
@click.argument("file", type=ANY_PATH)
@click.option("--scores", required=True, type=ANY_PATH, help="The audit of FILE.")
@click.option("--to", required=True, type=click.Choice(["langfuse", "trackio"]), help="Where to.")
@click.option("--project", default="faithful-search", show_default=True, help="Project in trackio.")
@click.option("--name", help="Name of the run in trackio; by default that of the audit's folder.")
@flags(ReadingSettings)
def push_scores(
    file: Path, scores: Path, to: str, project: str, name: str | None, **options: Any
) -> None:
    """Send an audit's scores where traces are looked at.

    FILE is what was audited. In Langfuse each score belongs to the trace with the row's id, and
    sending again replaces it; LANGFUSE_BASE_URL, LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY say
    where and as whom. In trackio the rows become a run with their conversations. The exit code is 3
    if rows could not be read or scores were refused.
    """
    from ..measure.documents import Converted, documents_of
    from ..reading.files import local_file
    from ..reading.rows import RowSource

    conversion = Converted()
    rows = RowSource(local_file(file), settings_from(ReadingSettings, options))
    documents = documents_of(rows, scores, conversion)
    refused: list[str] = []
    if to == "langfuse":
        from ..measure.langfuse import send

        sent = send(documents)
        refused = sent.refused
        say(f"{sent.accepted:,} scores of {conversion.scored:,} traces sent")
    else:
        from ..measure.tracking import log_scores

        count = log_scores(documents, project, name or scores.stem)
        say(f"{count:,} rows in the project {project}; `trackio show --project {project}`")
    if conversion.valueless:
        say(f"scores without a value, which were left out: {conversion.valueless:,}")
    if rows.error:
        conversion.unread.append(rows.error)
    remarks = conversion.messages(scrub=True)
    if refused:
        remarks += [f"scores that were refused: {len(refused):,}", *refused[:SHOWN]]
    if remarks:
        exit_unfinished(remarks)


@push.command("world")
@_options
def push_world(**options: Any) -> None:
    """Push the bundled world as a dataset."""
    from ..hub.datasets import stage_world

    with TemporaryDirectory() as folder:
        files = stage_world(folder, options["repository"])
        _publish(files, _repository("dataset", options), "Upload the world", options)


@push.command("space")
@click.option(
    "--wheel", type=ANY_PATH, help="Wheel of the package to install there instead of PyPI's."
)
@_options
def push_space(wheel: Path | None, **options: Any) -> None:
    """Push the page of `demo` as a Space."""
    from ..hub.pushing import staged_space

    space = _repository("space", options)
    _publish(staged_space(space, wheel), space, "Upload the faithfulness explorer", options)


def _push_model(
    folder: Path,
    model: "Repository",
    marks: tuple[str, ...],
    options: dict[str, Any],
    results: "Files | None" = None,
) -> None:
    from ..hub.pushing import staged, stays

    if folder.is_dir() and not any((folder / mark).exists() for mark in marks):
        raise click.UsageError(f"in {folder} there is no {' nor '.join(marks)}")
    _publish({**staged(folder, model), **(results or {})}, model, "Upload search agent", options)
    if left := stays(folder):
        say(f"not uploaded: {', '.join(left[:SHOWN])}{' …' if len(left) > SHOWN else ''}", err=True)


def _repository(kind: str, options: dict[str, Any]) -> "Repository":
    from ..hub.pushing import Repository

    settings = {name: options[name] for name in ("private", "revision", "tag", "collection")}
    return Repository(options["repository"], kind, **settings)


def _publish(
    files: "Files", repository: "Repository", message: str, options: dict[str, Any]
) -> None:
    if not options["dry_run"]:
        say(repository.commit(files, message))
        return
    say(f"{repository.type} {repository.id}{' (private)' if repository.private else ''}:")
    for path, content in sorted(files.items()):
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        say(f"{size:12,} bytes  {path}")
    if (card := files.get("README.md")) is not None:
        echo(f"\n{(card if isinstance(card, bytes) else card.read_bytes()).decode()}")
