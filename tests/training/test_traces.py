"""`--report_to trackio`: some rollouts of each step can be read there, with their scores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

pytest.importorskip("trackio")
CODE = """
import sys
from tiny_trainer import trainer
trainer(sys.argv[1], max_steps=2, report_to="trackio", project="p", trajectory_file=sys.argv[1] + "/all.jsonl").train()
"""


def test_each_step_has_rollouts_with_their_scores(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "support")])
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], env=environment, check=True)
    listed = subprocess.run(
        [sys.executable, "-m", "trackio.cli", "list", "traces", "--project", "p", "--json"],
        env=environment, check=True, capture_output=True, text=True,
    )
    print(listed.stdout)
