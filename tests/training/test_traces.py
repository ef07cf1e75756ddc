"""`--report_to trackio`: some rollouts of each step can be read there, with their scores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from faithful_search.trajectory import Trajectory

pytest.importorskip("trackio")
CODE = """
import sys
from tiny_trainer import trainer
from faithful_search.rewards import Format
out = sys.argv[1]
trainer(out, Format(), max_steps=2, report_to="trackio", project="p", trajectory_file=out + "/all.jsonl").train()
"""


def test_each_step_has_rollouts_with_their_scores(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "support")])
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], env=environment, check=True)
    asked = [sys.executable, "-m", "trackio.cli", "list", "traces", "--project", "p", "--json"]
    listed = subprocess.run(asked, env=environment, check=True, capture_output=True, text=True).stdout
    traces = json.loads(listed)["traces"]
    rollouts = [Trajectory.from_json(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    written = {(rollout.meta["step"], rollout.id): rollout for rollout in rollouts}
    logged = {(trace["metadata"]["step"], trace["metadata"]["id"]): trace for trace in traces}
    assert len(logged) == 8 and logged.keys() <= written.keys(), "four rollouts of each of two steps"
    for key, trace in logged.items():
        rollout, told = written[key], trace["metadata"]
        assert trace["messages"][0] == {"role": "user", "content": rollout.question}
        assert (told["reward"], told["scores"]) == (rollout.meta["reward"], rollout.meta["scores"])
        assert told["step_scores"]["format"] == rollout.meta["steps"]["format"] != []
    assert {trace["step"] for trace in traces} == {0, 1}, "beside the figures of their step"
