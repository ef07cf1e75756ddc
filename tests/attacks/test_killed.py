"""Commands killed at random moments: started again, they end with the files of one that was never
killed.

All files are compared, so that nothing is lost, made otherwise or left lying about. The process
alone is killed, as by a system that is out of memory: what it started has to end by itself. A
thirtieth of `--attack`'s rounds are kills, at least one and at most twenty of each command:
`--attack 600` is the most. `tests/measure/test_audit.py` and `tests/tools/test_index.py` kill an
audit and an index at chosen moments, `tests/training/test_survival.py` training.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from checkpoints import SMALL, assert_equal_runs
from paths import ROOT
from served import COMMAND, environment
from stub_server import StubServer

from faithful_search.errors import ConfigError
from faithful_search.training.starting import owned

pytestmark = pytest.mark.slow
BATCH = 64
"""Pairs whose verdicts `label` and `agreement` write down together: as many may be asked about
again.
"""
DATE = re.compile(rb"\d{4}-\d\d-\d\d(T[\d:+-]+)?")
JUDGE = (
    "--judge endpoint --judge-model stub --judge-url URL --judge-cache none --judge-concurrency 8"
)
COMMANDS = {
    "audit": (
        200,
        "audit ROWS --out out --workers 2 --metrics info_think_faithfulness,answer_correctness",
    ),
    "index": (4_000, "index ROWS out"),
    "label": (150, f"label ROWS --out out {JUDGE}"),
    "agreement": (150, "agreement ROWS --out out --judge lexical --judge endpoint:stub@URL"),
}
"""How many rows each is given, and what a user types."""


def row(number: int) -> dict[str, Any]:
    """A transcript with its question for `audit`, `label` and `index`, a labelled claim for
    `agreement`.
    """
    place, said = (("Orvik", "Tarn", "Selby")[number % many] for many in (2, 3))
    text = (
        f"<think>Look up lighthouse {number}.</think><search>where is lighthouse {number}</search>"
        f'<information>Doc 1(Title: "Lighthouse {number}") It stands in {place}.</information>'
        f"<think>Lighthouse {number} stands in {said}.</think><answer>{said}</answer>"
    )
    asked = {"question": f"Where is lighthouse {number}?", "answers": [place], "text": text}
    return {
        **asked,
        "evidence": f"Lighthouse {number}: {place}.",
        "claim": said,
        "label": place == said,
    }


def run(command: Sequence[str], place: Path, moment: float | None = None) -> float | None:
    """Run it in a folder, killed that long after its first file: the seconds from there to its end,
    none if killed.
    """
    place.mkdir(exist_ok=True)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=place,
        env=environment(HF_HOME=f"{place}.hub"),
        start_new_session=True,
    )
    try:
        while process.poll() is None and not any(place.iterdir()):
            time.sleep(0.002)
        begun = time.monotonic()
        try:
            said, _ = process.communicate(timeout=moment)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate(
                timeout=60
            )  # until nothing that it started holds the pipe
        if moment is not None and process.returncode == -signal.SIGKILL:
            return None
        assert process.returncode == 0, said
        return time.monotonic() - begun
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def attacked(
    command: Sequence[str],
    at: Path,
    rounds: int,
    again: Callable[[Path], Sequence[str]] = lambda _: (),
) -> Iterator[Path]:
    """The folder of a run that nobody killed, then those of others, that went on with the flags
    which `again` gives.
    """
    usual, random, kills = run(command, at / "whole"), Random(0), min(20, max(1, rounds // 30))
    assert usual is not None
    yield at / "whole"
    place = at / "killed"
    while kills:
        if run(command, place, random.uniform(0, usual)) is None:
            kills -= 1
            run([*command, *again(place)], place)
        yield place
        shutil.rmtree(place)
        shutil.rmtree(f"{place}.hub", ignore_errors=True)


def files(place: Path) -> dict[str, bytes]:
    """All that lies there, without dates."""
    found = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): DATE.sub(b"", path.read_bytes()) for path in found}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_command_goes_on_to_the_same_files_and_asks_nothing_twice(
    name: str, rounds: int, tmp_path: Path
) -> None:
    count, typed = COMMANDS[name]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row(number)) + "\n" for number in range(count)))
    with StubServer(latency=0.01) as server:
        command = [*COMMAND, *typed.replace("ROWS", str(rows)).replace("URL", server.url).split()]
        folders = attacked(command, tmp_path, rounds)
        whole, once = files(next(folders)), server.calls
        assert whole
        server.requests.clear()
        for place in folders:
            assert files(place) == whole
            assert server.calls <= once + BATCH
            server.requests.clear()


def advised(place: Path) -> list[str]:
    """The flags that the recipe would ask for, if it was just started again."""
    try:
        with owned(place / "out", resume=False):
            return []
    except ConfigError as said:
        assert "--resume goes on from checkpoint-" in str(said)
        return ["--resume=true"]


def test_training_goes_on_as_if_nothing_had_happened(rounds: int, tmp_path: Path) -> None:
    """The same weights, rollouts with their rewards, and evaluations."""
    command = [sys.executable, str(ROOT / "recipes" / "pou.py"), "--output_dir=out", *SMALL]
    folders = attacked([*command, "--max_steps=3", "--save_steps=1"], tmp_path, rounds, advised)
    whole = next(folders)
    for place in folders:
        assert_equal_runs(place / "out", whole / "out")
