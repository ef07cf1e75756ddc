"""The script that makes pairs to train judges on: which thoughts it takes."""

import json

import judge_data
import pytest


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_labelled_thoughts_without_their_pool_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        judge_data.main(["qa", "--labels", "l", "--out", str(tmp_path), "--thoughts", "read.jsonl"])
    assert "--thoughts needs the --pool" in capsys.readouterr().err


def test_labelled_thoughts_that_the_pool_lacks_are_counted(tmp_path, capsys):
    read = write(tmp_path / "read.jsonl", {"id": "a"}, {"id": "b"})
    pool = write(tmp_path / "pool.jsonl")
    judge_data._of_thoughts([read], pool, times=1, seed=0)
    assert "2 labelled thoughts are not in" in capsys.readouterr().out
