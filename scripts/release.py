"""Make, measure and stage everything that is published: policies, a judge, datasets, metrics, the
Space, and the wheel.

```
python scripts/release.py --out outputs/release                    # resumes: what is there is not made again
python scripts/release.py --out outputs/release --remake           # the bundled policies from nothing, too: some hours
python scripts/release.py --out outputs/release --push my-org      # and publish what was staged, as one collection
```

What would be published lies in `staged/KIND/NAME`, just as it would be; `manifest.json` has every
file's size and SHA-256, and how long each part took to make.
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

from tqdm.auto import tqdm

from faithful_search import __version__
from faithful_search.bundled import TINY, tiny_policy
from faithful_search.hub.cards import eval_results
from faithful_search.hub.datasets import stage_trajectories, stage_world
from faithful_search.hub.pushing import Files, Repository, metric_folders, staged, staged_space

ROOT = Path(__file__).parent.parent
OWNER = "OWNER"
"""In cards, until somebody publishes them."""
COLLECTION = "faithful-search"
SEARCH_ALONE = ("search_r1", "self_eval")
"""Dialects of bundled policies without a knowledge graph; they are asked what passages alone
answer.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/release"))
    parser.add_argument(
        "--remake", action="store_true", help="make the bundled policies from nothing first"
    )
    parser.add_argument(
        "--limit", type=int, default=200, help="test questions that each policy is measured on"
    )
    parser.add_argument("--push", metavar="OWNER", help="publish on the Hub, as this owner's")
    args = parser.parse_args()
    out, owner = args.out.resolve(), args.push or OWNER
    out.mkdir(parents=True, exist_ok=True)
    took = {
        name: make(out / name, command)
        for name, command in tqdm(list(commands(out, args)), desc="made")
    }
    shutil.rmtree(out / "staged", ignore_errors=True)
    parts = {repository: stage(out, repository, files) for repository, files in staging(out, owner)}
    manifest = {
        "version": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": took,
        "repositories": {
            f"{repository.type}s/{repository.id}": listed(folder)
            for repository, folder in parts.items()
        },
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for name, files in manifest["repositories"].items():
        print(f"{name}: {len(files)} files, {sum(one['bytes'] for one in files.values()):,} bytes")
    if args.push:
        for repository, folder in tqdm(parts.items(), desc="pushed"):
            content = {str(path.relative_to(folder)): path for path in walk(folder)}
            print(
                replace(repository, collection=COLLECTION).commit(content, f"Release {__version__}")
            )


def commands(out: Path, args: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """What makes each part, by the folder that it leaves in `out`."""
    yield "wheel", ["-m", "pip", "wheel", "--no-deps", "--quiet", ".", "-w", str(out / "wheel")]
    if args.remake:
        for name in TINY:
            yield f"remade_{name}", ["scripts/tiny_policies.py", name, "--install"]
    for name in TINY:
        own = ["--config", "recipes/configs/eval_veritas_tiny.yaml"] if name in SEARCH_ALONE else []
        own += [
            "--dialect",
            "pou" if name == "memory" else name,
            "--verify",
            str(name == "pokee").lower(),
        ]
        told = [
            "--model",
            str(tiny_policy(name)),
            "--split",
            "test",
            "--limit",
            str(args.limit),
            *own,
        ]
        yield (
            f"tiny_{name}",
            ["recipes/evaluate.py", *told, "--out", str(out / f"tiny_{name}")],
        )
    for name, recipe in (("pou", "recipes/pou.py"), ("judge", "recipes/reward_model.py")):
        yield name, [recipe, "--output_dir", str(out / name), "--overwrite"]


def make(folder: Path, command: list[str]) -> float:
    """Run one of the commands unless it has ended well before; returns the seconds that it took."""
    done = folder.with_suffix(".done")
    if done.exists():
        return float(done.read_text())
    if "evaluate" in command[0]:
        shutil.rmtree(folder, ignore_errors=True)  # it goes on with nothing that was broken off
    began = time.monotonic()
    with folder.with_suffix(".log").open("w") as log:
        made = subprocess.run(
            [sys.executable, *command], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if made.returncode:
        sys.exit(f"{' '.join(command)} failed; see {log.name}")
    done.write_text(f"{time.monotonic() - began:.0f}")
    return float(done.read_text())


def staging(out: Path, owner: str) -> Iterator[tuple[Repository, Files]]:
    """The files of each repository; a bundled policy goes with what was measured just now."""
    for name in TINY:
        model = Repository(f"{owner}/tiny-{name.replace('_', '-')}")
        yield (
            model,
            {
                **staged(tiny_policy(name), model),
                **eval_results(out / f"tiny_{name}", f"{owner}/world"),
            },
        )
    for name, folder in (("pou-tiny", "pou"), ("judge-tiny", "judge")):
        model = Repository(f"{owner}/{name}")
        yield model, staged(out / folder, model)
    for space, metric in metric_folders(Repository(owner)).items():
        yield space, staged(metric, space)
    explorer = Repository(f"{owner}/faithfulness-explorer", "space")
    yield explorer, staged_space(explorer, next((out / "wheel").glob("*.whl")))
    with TemporaryDirectory() as scratch:
        world, rollouts = (
            Repository(f"{owner}/{name}", "dataset") for name in ("world", "pou-rollouts")
        )
        yield world, stage_world(scratch, world.id)
        yield rollouts, stage_trajectories(out / "pou" / "trajectories.jsonl", scratch, rollouts.id)


def stage(out: Path, repository: Repository, files: Files) -> Path:
    """Write a repository's files to their folder."""
    folder = out / "staged" / f"{repository.type}s" / repository.id.partition("/")[2]
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return folder


def listed(folder: Path) -> dict[str, dict[str, str | int]]:
    """Of every file in a folder its size and digest."""
    return {
        str(path.relative_to(folder)): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in walk(folder)
    }


def walk(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
