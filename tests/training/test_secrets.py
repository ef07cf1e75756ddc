"""What is secret among flags and in the environment stays out of files, cards, messages and
uploads.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi
from recipe_runs import TINY
from served import invoked
from tiny_trainer import trainer

from faithful_search.errors import ConfigError
from faithful_search.hub.cards import command_line, model_card
from faithful_search.hub.pushing import Repository, push, stays, takes_over
from faithful_search.measure.evaluation import Record
from faithful_search.measure.writing import write_metrics
from faithful_search.recipes import sft
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.endings import leave
from faithful_search.training.starting import parse_recipe

TOKEN = "hf_planted-Secret9"


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "before")  # so that it is put back after a test that sets it


@pytest.fixture
def hub(monkeypatch):
    """What was asked of the Hub: the repositories made, and the files of each commit."""
    asked = SimpleNamespace(made=[], sent=[])

    def make(self, repo_id, **more):
        asked.made.append((self.token, repo_id))
        return SimpleNamespace(repo_id=f"me/{repo_id}" if "/" not in repo_id else repo_id)

    def commit(self, repo_id, operations, **more):
        asked.sent.append((repo_id, sorted(operation.path_in_repo for operation in operations)))
        return SimpleNamespace(commit_url="address", oid="0")

    monkeypatch.setattr(HfApi, "create_repo", make)
    monkeypatch.setattr(HfApi, "list_repo_files", lambda self, **more: [])
    monkeypatch.setattr(HfApi, "create_commit", commit)
    return asked


def holding(folder: Path, secret: str) -> list[str]:
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and secret.encode() in path.read_bytes()
    ]


def test_a_run_with_a_token_among_its_flags_leaves_it_nowhere(
    tmp_path, monkeypatch, hub, capfd, caplog
):
    monkeypatch.setenv("WANDB_API_KEY", "wandb-planted-7")
    out = tmp_path / "policy"
    own = [
        "--output_dir",
        str(out),
        "--episodes",
        "12",
        "--swaps_per_episode",
        "0",
        "--max_steps",
        "1",
    ]
    own += [
        "--per_device_train_batch_size",
        "2",
        "--tiny",
        json.dumps(TINY),
        "--save_steps",
        "1",
        "--bf16",
        "false",
    ]
    own += ["--threads", "1", "--push_to_hub", "true", "--hub_token", TOKEN, "--names", "world"]
    sft.main([*own, "--hub_model_id", "policy"])
    assert hub.made[0] == (TOKEN, "policy"), "it was made before anything was trained"
    assert (out / "checkpoint-1" / "training_args.bin").exists()
    assert "--push_to_hub true --hub_token" in (out / "README.md").read_text()
    assert not holding(tmp_path, TOKEN)
    assert not holding(tmp_path, "wandb-planted-7")
    said = capfd.readouterr()
    assert TOKEN not in said.out + said.err + caplog.text
    [(repository, sent)] = hub.sent
    assert repository == "me/policy"
    assert {
        "README.md",
        "model.safetensors",
        "tokenizer.json",
    } <= set(sent)
    assert not [
        name for name in sent if name.endswith((".bin", ".jsonl", ".pt", ".pth")) or "/" in name
    ]


@pytest.mark.parametrize(
    "given", [["--hub_token", TOKEN], ["--model_init_kwargs", json.dumps({"token": TOKEN})]]
)
def test_a_token_moves_from_settings_to_the_environment(given):
    (args,) = parse_recipe((SearchGRPOConfig,), ["--use_cpu", "true", "--bf16", "false", *given])
    assert args.hub_token is None
    assert TOKEN not in str(args.model_init_kwargs)
    assert os.environ["HF_TOKEN"] == TOKEN


def test_the_command_of_a_card_has_no_secret():
    shown = command_line("r.py", ["--seed", "1", "--hub_token", "x"])
    assert shown == "accelerate launch r.py --seed 1 --hub_token [secret]"
    assert "p w" not in command_line("r.py", ["--corpus", "http://me:p%20w@host/i"])
    assert "planted" not in command_line("r.py", [f"--hub_token={TOKEN}"])


def test_secrets_are_in_no_card_and_no_metrics(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCH_KEY_PROD", "planted-5-key")
    config = {"searxng_url": "http://me:hunter2@host/", "note": "planted-5-key"}
    run = {
        "folder": str(tmp_path),
        "model": "a/b",
        "dialect": "pou",
        "tools": [],
        "questions": "world",
    }
    model_card(Record(**run, settings=config, steps=1, history=[]), "r", ["--hub_token", "abc"])
    write_metrics(tmp_path / "metrics.json", {"settings": config, "of": {"planted-5-key": 1}})
    assert all(
        not holding(tmp_path, secret) for secret in ("hunter2", "planted-5-key", "hub_token abc")
    )
    assert json.loads((tmp_path / "metrics.json").read_text())["of"] == {"[secret]": 1}


def test_only_what_may_be_pushed_is(tmp_path, monkeypatch, hub):
    for name in (
        "README.md",
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "rewards.png",
        "metrics.json",
    ):
        (tmp_path / name).write_text("{}")
    left = (
        *(
            "training_args.bin",
            "trajectories.jsonl",
            "notes.txt",
            ".env",
            "untrained/model.safetensors",
        ),
        *(
            "checkpoint-2/model.safetensors",
            "merged/model.safetensors",
            "_earlier-checkpoint-1/config.json",
        ),
    )
    for name in left:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = invoked("push", "policy", tmp_path, "me/policy")
    assert done.exit_code == 0
    assert "not uploaded: .env, _earlier-checkpoint-1/config.json" in done.stderr
    there = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted([*hub.sent[0][1], *stays(tmp_path)]) == sorted(there)
    assert stays(tmp_path) == sorted(left)


def test_a_folder_whose_card_holds_the_token_is_not_pushed(tmp_path, monkeypatch, hub):
    (tmp_path / "README.md").write_text(f"--hub_token {TOKEN}")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match=r"README.md holds the Hub token") as caught:
        push(tmp_path, Repository("me/policy"))
    assert not hub.sent
    assert TOKEN not in str(caught.value)


def test_a_missing_token_is_noticed_before_training(tmp_path, monkeypatch, hub):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    for strategy, said in (
        ("checkpoint", "pushed once, at the end"),
        ("every_save", "no Hugging Face token"),
    ):
        args = SearchGRPOConfig(
            str(tmp_path), use_cpu=True, bf16=False, push_to_hub=True, hub_strategy=strategy
        )
        with pytest.raises(ConfigError, match=said):
            takes_over(args)
    assert not hub.made


def test_a_bare_trainer_uploads_nothing_and_pickles_no_token(tmp_path, hub, monkeypatch):
    """Transformers' own upload takes the whole folder. Its `Trainer` makes the repository in one
    place only.
    """
    monkeypatch.setattr("transformers.trainer.hf_api", lambda: HfApi(token=TOKEN))
    said = r"would upload everything in .*faithful-search push"
    with pytest.raises(ConfigError, match=said):
        trainer(tmp_path / "asked", push_to_hub=True)
    made = trainer(tmp_path, hub_token=TOKEN, max_steps=1, save_steps=1)
    with pytest.raises(ConfigError, match=said):
        made.push_to_hub()
    assert not hub.made
    assert not hub.sent
    made.train()
    assert (tmp_path / "checkpoint-1" / "training_args.bin").exists()
    assert os.environ["HF_TOKEN"] == TOKEN
    assert not holding(tmp_path, TOKEN)


def test_the_last_line_holds_no_secret_and_moves_no_cursor(monkeypatch, capsys):
    monkeypatch.setenv("JUDGE_PASS", "planted-6-pass")
    with pytest.raises(SystemExit):
        leave(ConfigError("row 3: \x1b]0;title\x07 planted-6-pass"))
    assert capsys.readouterr().err == "\nerror: row 3: \\x1b]0;title\\x07 [secret]\n"
