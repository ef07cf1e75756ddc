"""`--report_to trackio`: some rollouts of each step can be read there, with their scores."""

from __future__ import annotations

import json
import sqlite3

import pytest
from tiny_trainer import trainer

pytest.importorskip("trackio")


def test_each_step_has_rollouts_with_their_scores(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio", raising=False)
    asked = trainer(
        tmp_path / "run", max_steps=2, report_to="trackio", project="p", trajectory_file=tmp_path / "all.jsonl"
    )
    asked.train()
    import trackio

    trackio.finish()
    print(list((tmp_path).rglob("*")))
