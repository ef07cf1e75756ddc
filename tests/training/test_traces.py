"""`--report_to trackio`: some rollouts of each step can be read there, with their scores."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny_trainer import trainer

from faithful_search.rewards import Format
from faithful_search.trajectory import read_jsonl


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_each_step_has_rollouts_with_their_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name, module in list(sys.modules.items()):  # TRL has imported it, which read the folder then
        if name.partition(".")[0] == "trackio" and hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    log = tmp_path / "all.jsonl"
    trainer(tmp_path, Format(), max_steps=2, report_to="trackio", project="p", trajectory_file=log).train()
    asked = [sys.executable, "-m", "trackio.cli", "list", "traces", "--project", "p", "--json"]
    listed = subprocess.run(asked, env=dict(os.environ), check=True, capture_output=True, text=True).stdout
    traces = json.loads(listed)["traces"]
    written = {(rollout.meta["step"], rollout.id): rollout for rollout in read_jsonl(log)}
    logged = {(trace["metadata"]["step"], trace["metadata"]["id"]): trace for trace in traces}
    assert len(logged) == 8 and logged.keys() <= written.keys(), "four rollouts of each of two steps"
    for key, trace in logged.items():
        rollout, told = written[key], trace["metadata"]
        assert trace["messages"][0] == {"role": "user", "content": rollout.question}
        assert (told["reward"], told["scores"]) == (rollout.meta["reward"], rollout.meta["scores"])
        assert told["step_scores"]["format"] == rollout.meta["steps"]["format"] != []
    assert {trace["step"] for trace in traces} == {0, 1}, "beside the figures of their step"
