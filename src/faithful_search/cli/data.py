"""`faithful-search data`: published question sets and the large corpus, by name."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigError
from .options import AT_LEAST_1, FILE, FOLDER, SHOWN, exit_unfinished, say

if TYPE_CHECKING:
    from ..suites.downloading import Source


WIKI18 = "wiki18"
_OF_WIKI18 = ("kind", "half", "hnsw", "yes")
_OF_SETS = ("suite", "split", "limit", "seed", "revision", "merge", "contexts")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "listing", is_flag=True, help="Print what there is, and download nothing.")
@click.option(
    "--out",
    type=FOLDER,
    help="Folder for the files. By default FAITHFUL_SEARCH_DATA, else data.",
)
@click.option(
    "--suite", help="All published sets of this suite, in its splits: pou, veritas, or a YAML file."
)
@click.option("--split", help="Split. By default the one that the papers evaluate on.")
@click.option("--limit", type=AT_LEAST_1, help="Number of questions of each set. By default all.")
@click.option("--seed", type=int, help="Draw the questions by this seed, not the first ones.")
@click.option(
    "--revision", help="Revision of the repository. By default that of the lock, else the newest."
)
@click.option("--merge", type=FILE, help="Write all sets to this file (.jsonl.gz), too.")
@click.option(
    "--contexts",
    is_flag=True,
    help="Write the passages that come with the questions, too: NAME.SPLIT.corpus.jsonl.gz.",
)
@click.option(
    "--kind",
    type=click.Choice(["bm25", "dense", "search-r1-e5"]),
    help="Of wiki18: an index by words, by E5's vectors made here, or by those of Search-R1.",
)
@click.option("--half", is_flag=True, help="Of wiki18, dense: store vectors in half precision.")
@click.option("--hnsw", is_flag=True, help="Of wiki18: build a graph for approximate search.")
@click.option("--yes", is_flag=True, help="Of wiki18: begin without asking.")
def data(names: tuple[str, ...], out: Path | None, **options: Any) -> None:
    """Download published question sets, or the corpus wiki18.

    A set is written to OUT/NAME.SPLIT.jsonl.gz with the columns id, question, answers and
    data_source, and is from then on known to --questions NAME wherever FAITHFUL_SEARCH_DATA is OUT.
    OUT/sources.json has where it is from, its revision, licence, rows and SHA-256; the next
    download of the same repository takes the same revision. What is there already is not downloaded
    again. A row that cannot be read is reported and left out.

    wiki18 is Wikipedia of 2018, 21 million passages: data wiki18 --kind KIND --out FOLDER says what
    it takes, asks, downloads it and makes its index, which --corpus FOLDER then searches. To
    continue after an interruption, run the same command again.
    """
    from ..suites.downloading import data_folder
    from ..suites.published import PUBLISHED, published

    if options["listing"]:
        for line in listing_of(PUBLISHED.values()):
            say(line)
        return
    if not names and options["suite"] is None:
        raise click.UsageError("name at least one data set, or --suite; --list prints them")
    if options["suite"] is not None and (names or options["split"] is not None):
        raise click.UsageError("--suite says which sets and splits: leave out names and --split")
    if WIKI18 in names:
        _wiki18(names, out, options)
        return
    if any(options[name] for name in _OF_WIKI18):
        raise click.UsageError("--kind, --half, --hnsw and --yes are for wiki18")
    if options["seed"] is not None and options["limit"] is None:
        raise click.UsageError("--seed draws some of the questions: give --limit, too")
    splits = _splits(names, options["suite"], options["split"])
    for name, split in splits:  # what is wrong must not show after a long download
        published(name).split(split)
    merge = options["merge"]
    if merge is not None and not merge.name.endswith(".jsonl.gz"):
        raise click.UsageError(f"--merge writes gzipped JSON lines: {merge} must end in .jsonl.gz")
    files, broken = _download_all(splits, out or data_folder(), options)
    if merge is not None:
        count = merge_files(files, merge)
        first = splits[0][0]
        say(f"merged: {count:,} questions in {merge}; of one set: --questions '{merge}#{first}'")
    if out is not None and out != data_folder():
        say(f"to use these by name: export FAITHFUL_SEARCH_DATA={out}")
    if broken:
        exit_unfinished([f"rows that could not be read: {broken:,}"])


def _splits(names: Sequence[str], suite: str | None, split: str | None) -> list[tuple[str, str]]:
    """The sets to download, each with its split."""
    from ..suites import load_suite
    from ..suites.published import PUBLISHED, published

    if suite is None:
        return [(name, split or published(name).evaluated) for name in names]
    sets = load_suite(suite).sets
    of_suite = [(entry.source, entry.split) for entry in sets if entry.source in PUBLISHED]
    if not of_suite:
        raise ConfigError(
            f"the suite {suite} has no published sets to download, only files: name sets such as "
            "hotpotqa instead of --suite"
        )
    return of_suite


def _download_all(
    splits: Sequence[tuple[str, str]], folder: Path, options: dict[str, Any]
) -> tuple[list[Path], int]:
    """The sets' files, and how many rows could not be read."""
    from ..suites.downloading import download

    reported = 0

    def report(where: str, why: str) -> None:
        nonlocal reported
        reported += 1
        if reported <= SHOWN:
            say(f"left out: {where}: {why}", err=True)

    files: list[Path] = []
    broken = 0
    for name, split in splits:
        path, source, is_new = download(
            name,
            split,
            folder,
            limit=options["limit"],
            seed=options["seed"],
            revision=options["revision"],
            on_broken=report,
        )
        files.append(path)
        broken += source.broken
        say(*lines_about(path, source, is_new))
        if options["contexts"]:
            say(_write_contexts(source, folder, report))
    return files, broken


def lines_about(path: Path, source: "Source", is_new: bool) -> list[str]:
    """What is printed of a set that was downloaded, or was there."""
    there = "" if is_new else ", which was there already"
    lines = [
        f"{source.name}, {source.split}: {source.rows:,} questions in {path}{there}",
        f"  licence: {source.licence}",
        f"  from: {source.repository}, revision {source.revision}",
    ]
    for need, count in source.left_out.items():
        lines.append(f"  left out, since they need {need}: {count:,}")
    if source.broken:
        lines.append(f"  left out, since they could not be read: {source.broken:,}")
    return lines


def _write_contexts(source: "Source", folder: Path, report: Any) -> str:
    from ..suites.downloading import passages, write_rows
    from ..suites.published import published

    entry = published(source.name)
    path = folder / f"{source.name}.{source.split}.corpus.jsonl.gz"
    if not entry.has_passages:
        return "  passages: none come with its questions"
    if path.exists():
        return f"  passages: {path}, which was there already"
    count = write_rows(path, passages(entry, source.split, source.revision, report))
    return f"  passages: {count:,} in {path}"


def merge_files(files: Sequence[Path], target: Path) -> int:
    """Write the questions of several files into one, their ids behind the names of their sets; how
    many.
    """
    from ..json_lines import read_rows
    from ..suites.downloading import write_rows

    if target in files:
        raise ConfigError(f"--merge {target} is the file of one of the sets: name another")
    target.parent.mkdir(parents=True, exist_ok=True)
    rows = (
        row | {"id": f"{row['data_source']}/{row['id']}"}
        for file in files
        for row in read_rows(file)
    )
    return write_rows(target, rows)


def listing_of(entries: Any) -> list[str]:
    """A paragraph about each set."""
    lines: list[str] = []
    for entry in entries:
        rows = f"{entry.rows:,} questions" if entry.rows else "questions not counted"
        place = ", ".join(entry.files.values()) or entry.repository
        lines += [
            f"{entry.name}",
            f"  split {entry.evaluated}, {rows}; has: {', '.join(entry.splits)}",
            f"  from: {place}" + (f", {entry.configuration}" if entry.configuration else ""),
            f"  columns: {entry.columns}",
            f"  licence: {entry.licence}",
            f"  papers: {entry.papers}",
        ]
        for label in ("corpus", "access", "unverified"):
            if getattr(entry, label):
                lines.append(f"  {label}: {getattr(entry, label)}")
    return lines


def _wiki18(names: Sequence[str], out: Path | None, options: dict[str, Any]) -> None:
    """Say what the index takes, ask, download and build it."""
    from ..tools.retrieval import wiki18
    from ..tools.retrieval.index_folder import build_folder

    kind, half, hnsw = options["kind"], options["half"], options["hnsw"]
    if len(names) > 1 or any(options[name] is not None for name in _OF_SETS if name != "contexts"):
        raise click.UsageError("wiki18 is made by itself, with --kind, --half, --hnsw and --out")
    if kind is None or out is None:
        raise click.UsageError("wiki18 needs --kind and --out, the folder of the index")
    if (half and kind != "dense") or (hnsw and kind == "bm25"):
        raise click.UsageError("--half is for --kind dense, and --hnsw for vectors")
    dense = wiki18.plan(kind, out, half, hnsw)
    index = wiki18.finished(out, dense)
    if index is not None:
        say(f"{index.passages:,} passages in {out}, which was there already")
        return
    speed = None
    if kind == "dense":
        from ..tools.retrieval.dense import Embedder

        speed = wiki18.encoder_speed(Embedder(wiki18.MODEL))
    needs = wiki18.cost(kind, half=half, hnsw=hnsw, passages_a_second=speed)
    say(*wiki18.lines_about(kind, needs, half, hnsw))
    wiki18.refuse_short_disk(out, needs)
    if not options["yes"]:
        if not sys.stdin.isatty():
            raise click.UsageError("nothing was downloaded: give --yes to begin")
        click.confirm("Begin?", abort=True)
    corpus = wiki18.fetch(wiki18.CORPUS, out)
    if kind == "search-r1-e5":
        for file in wiki18.VECTORS:
            wiki18.fetch(file, out)

    def report(where: str, why: str) -> None:
        say(f"left out: {where}: {why}", err=True)

    folder = build_folder(
        str(corpus), out, kind="bm25" if dense is None else "dense", dense=dense, on_broken=report
    )
    say(f"{folder.passages:,} passages in {out}: {folder.bytes / 1e9:,.1f} GB")
    say(f"the downloads are no longer needed: {wiki18.downloads_of(out)}")
    name = shlex.quote(str(out))
    say(f"search it: --corpus {name}, or serve it: faithful-search serve {name}")
