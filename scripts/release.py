"""Make, measure and stage everything that is published: policies, a judge, datasets, metrics, the
Space, and the wheel.

```
python scripts/release.py --out outputs/release                    # make and stage everything
python scripts/release.py --out outputs/release --remake           # train the bundled policies first: some hours
python scripts/release.py --out outputs/release --push my-org      # publish it, too, as one collection
```

A part that is in --out is not made again. `staged/KIND/NAME` has the files of each repository as
they are published. `manifest.json` has the size and SHA-256 of every file, and the seconds that
each part took.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm.auto import tqdm

from faithful_search import __version__
from faithful_search.bundled import TINY, tiny_policy
from faithful_search.hub.cards import eval_results
from faithful_search.hub.datasets import stage_trajectories, stage_world
from faithful_search.hub.pushing import Files, Repository, metric_folders, staged, staged_space

ROOT = Path(__file__).parent.parent
OWNER = "OWNER"
"""The owner in cards that are not published."""
COLLECTION = "faithful-search"
SEARCH_ALONE = ("search_r1", "self_eval")
"""The bundled policies without a knowledge graph. They are measured on questions that passages
alone answer.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/release"))
    parser.add_argument(
        "--remake", action="store_true", help="train the bundled policies anew first"
    )
    parser.add_argument(
        "--limit", type=int, default=200, help="test questions that each policy is measured on"
    )
    parser.add_argument("--push", metavar="OWNER", help="publish on the Hub under this owner")
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    seconds = {}
    for name, command in tqdm(list(commands(out, args)), desc="made"):
        seconds[name] = make(out / name, command)
    shutil.rmtree(out / "staged", ignore_errors=True)
    folders = {}
    for repository, files in repositories(out, args.push or OWNER):
        folders[repository] = stage(out, repository, files)
    contents = {}
    for repository, folder in folders.items():
        contents[f"{repository.type}s/{repository.id}"] = listed(folder)
    manifest = {
        "version": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "repositories": contents,
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for name, entries in contents.items():
        total = sum(entry["bytes"] for entry in entries.values())
        print(f"{name}: {len(entries)} files, {total:,} bytes")
    if args.push:
        for repository, folder in tqdm(folders.items(), desc="pushed"):
            content = {str(path.relative_to(folder)): path for path in walk(folder)}
            in_collection = replace(repository, collection=COLLECTION)
            print(in_collection.commit(content, f"Release {__version__}"))


def commands(out: Path, args: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """The commands that make the parts, by the folder that each leaves in `out`."""
    yield "wheel", ["-m", "pip", "wheel", "--no-deps", "--quiet", ".", "-w", str(out / "wheel")]
    if args.remake:
        for name in TINY:
            yield f"remade_{name}", ["scripts/tiny_policies.py", name, "--install"]
    for name in TINY:
        yield f"tiny_{name}", evaluation_of(name, out / f"tiny_{name}", args.limit)
    for name, recipe in (("pou", "recipes/pou.py"), ("judge", "recipes/reward_model.py")):
        yield name, [recipe, "--output_dir", str(out / name), "--overwrite"]


def evaluation_of(name: str, folder: Path, limit: int) -> list[str]:
    """The command that measures a bundled policy."""
    dialect = "pou" if name == "memory" else name
    flags = ["--model", str(tiny_policy(name)), "--split", "test", "--limit", str(limit)]
    if name in SEARCH_ALONE:
        flags += ["--config", "recipes/configs/eval_veritas_tiny.yaml"]
    flags += ["--dialect", dialect, "--verify", str(name == "pokee").lower()]
    return ["recipes/evaluate.py", *flags, "--out", str(folder)]


def make(folder: Path, command: list[str]) -> float:
    """Run a command, unless it has succeeded before. Returns the seconds that it took."""
    done = folder.with_suffix(".done")
    if done.exists():
        return float(done.read_text())
    if "evaluate" in command[0]:
        shutil.rmtree(folder, ignore_errors=True)  # an unfinished evaluation is begun anew
    began = time.monotonic()
    with folder.with_suffix(".log").open("w") as log:
        process = subprocess.run(
            [sys.executable, *command], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed; see {log.name}")
    done.write_text(f"{time.monotonic() - began:.0f}")
    return float(done.read_text())


def repositories(out: Path, owner: str) -> Iterator[tuple[Repository, Files]]:
    """The repositories with their files. A bundled policy has the results of its evaluation."""
    for name in TINY:
        model = Repository(f"{owner}/tiny-{name.replace('_', '-')}")
        results = eval_results(out / f"tiny_{name}", f"{owner}/world")
        yield model, {**staged(tiny_policy(name), model), **results}
    for name, folder in (("pou-tiny", "pou"), ("judge-tiny", "judge")):
        model = Repository(f"{owner}/{name}")
        yield model, staged(out / folder, model)
    for space, metric in metric_folders(Repository(owner)).items():
        yield space, staged(metric, space)
    explorer = Repository(f"{owner}/faithfulness-explorer", "space")
    yield explorer, staged_space(explorer, next((out / "wheel").glob("*.whl")))
    world = Repository(f"{owner}/world", "dataset")
    rollouts = Repository(f"{owner}/pou-rollouts", "dataset")
    with TemporaryDirectory() as scratch:
        yield world, stage_world(scratch, world.id)
        yield rollouts, stage_trajectories(out / "pou" / "trajectories.jsonl", scratch, rollouts.id)


def stage(out: Path, repository: Repository, files: Files) -> Path:
    """Write the files of a repository to its folder in `out`/staged; returns the folder."""
    folder = out / "staged" / f"{repository.type}s" / repository.id.partition("/")[2]
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return folder


def listed(folder: Path) -> dict[str, Any]:
    """The size and the digest of every file in a folder, by its path in the folder."""
    entries: dict[str, Any] = {}
    for path in walk(folder):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        entries[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "sha256": digest}
    return entries


def walk(folder: Path) -> list[Path]:
    """All files in a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
