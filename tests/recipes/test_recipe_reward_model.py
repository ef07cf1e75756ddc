"""The recipe that distils judges, as a user would start it: what it prints, writes, and how the judge is used then."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import reward_model
import yaml
from paths import ROOT

from faithful_search.judges import Pair, load

CONFIG = ROOT / "recipes" / "configs" / "rm_tiny.yaml"
SMALL = ["--max_steps", "1", "--eval_steps", "1", "--per_device_train_batch_size", "2", "--validation", "0.3"]
CPU = ["--threads", "1", "--bf16", "false", "--disable_tqdm", "true"]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = [
        {
            "question": f"Where is tower {number}?",
            "premise": f"Tower {number} stands in Riga.",
            "hypothesis": f"Tower {number} is in {'Riga' if number % 2 else 'Oslo'}.",
            "label": bool(number % 2),
            "task": "info_think",
            "source": "towers",
        }
        for number in range(24)
    ]
    path = tmp_path / "towers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def flags(pairs: Path, out: Path, *more: str) -> list[str]:
    return ["--config", str(CONFIG), "--pairs", str(pairs), "--output_dir", str(out), *SMALL, *CPU, *more]


@pytest.mark.parametrize("kind", ["nli", "generator"])
def test_a_judge_its_card_and_its_agreement_come_out(kind, pairs, tmp_path, capsys):
    out = tmp_path / "out"
    head = ["--head", "generator", "--use_peft", "--lora_target_modules", "all-linear", "--untrained", "false"]
    own = flags(pairs, out, *(head if kind == "generator" else ()))
    reward_model.main(own)
    printed = capsys.readouterr().out
    assert f"--judge {kind} --judge_model {out}" in printed and "distilled" in printed and "containment" in printed
    text = (out / "README.md").read_text()
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["license"] == "apache-2.0" and "base_model" not in front
    assert front["library_name"] == ("transformers" if kind == "nli" else "peft")
    assert front["pipeline_tag"] == ("text-classification" if kind == "nli" else "text-generation")
    assert "towers: terms not known" in text and '"max_steps": 1' in text and " ".join(own[:4]) in text
    found = json.loads((out / "agreement.json").read_text())
    assert {row["source"] for row in found["against"]} == {"towers"}
    settings = json.loads((out / "judge.json").read_text())
    assert (settings["kind"], settings["task"], settings["base_model"]) == (kind, "info_think", "tiny")
    assert str(ROOT) not in json.dumps([settings, found]), "where the package lies is nobody's business"
    [shown] = re.findall(r"```python\n(.*?)```", text, re.S)
    said: dict = {}
    exec(shown, said)
    pair = Pair("The tower is in Paris.", "It is in Paris.", task="info_think")
    assert said["verdict"].p == load(kind, str(out)).judge_batch([pair])[0].p


@pytest.mark.slow
def test_two_processes_make_one_judge(pairs, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(ROOT / "recipes" / "reward_model.py"), *flags(pairs, out, "--untrained", "false")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("the judge is in") == 1
    assert load("nli", str(out)).temperature == json.loads((out / "judge.json").read_text())["temperature"]
