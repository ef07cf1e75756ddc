"""What is pushed to a Hub on loopback is there, whole or not at all, and is loaded from there as it
was.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from agent_rows import file_of
from hub_server import READER, TOKEN, HubServer
from paths import ROOT
from pyarrow import parquet
from served import invoked
from tiny_bert import bert, saved

from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError
from faithful_search.hub.cards import model_card
from faithful_search.hub.datasets import stage_trajectories
from faithful_search.hub.models import trained_with
from faithful_search.judges import Pair, load
from faithful_search.judges.distilled import JudgeFile
from faithful_search.measure.evaluation import Evaluation, Record
from faithful_search.measure.metrics import names
from faithful_search.measure.stats import mean_ci
from faithful_search.measure.writing import write_metrics
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, write_jsonl

PUSHES = """
import json, os, shutil, sys
from faithful_search.cli import cli
for words in json.loads(sys.argv[1]):
    if words[0] == "token":
        os.environ["HF_TOKEN"] = words[1]
        continue
    if words[0] == "move":
        shutil.move(*words[1:])
        continue
    try:
        cli(words, prog_name="faithful-search")
    except SystemExit as stop:
        print("exit", stop.code)
"""
ROWS = """
import json
from datasets import load_dataset

import faithful_search as fs
from faithful_search.hub.models import license_of, trained_with

rows = load_dataset("me/rollouts", split="train")
print(json.dumps({
    "dialect": trained_with("me/policy")["dialect"],
    "licences": [license_of("me/policy"), license_of("me/nothing")],
    "rows": [row for row in rows.remove_columns("trajectory")],
    "trajectories": [fs.Trajectory.from_json(line).to_json() for line in rows["trajectory"]],
    "questions": load_dataset("me/world", "questions", split="test")[0],
    "passages": load_dataset("me/world", "passages", split="train").num_rows,
}))
"""
MODELS = """
import json
import evaluate
from transformers import AutoModelForCausalLM

from faithful_search.inference.loading import open_generator
from faithful_search.judges import Pair, load

open_generator("me/policy")
AutoModelForCausalLM.from_pretrained("me/policy", revision="v1")
judge = load("nli", "me/judge")
text = "<think>S</think><search>a</search><information>b</information><think>S</think><answer>c</answer>"
print(json.dumps({
    "verdict": judge.judge_batch([Pair("w1 w2.", "w3.", task="support")])[0].p,
    "format": evaluate.load("team/protocol_format").compute(predictions=[text])["protocol_format"],
}))
"""
ROLLOUT = Trajectory(
    steps=(
        Step(
            "S", ToolCall("local_search", {"query": "q", "top_k": 2}), (Evidence("T", "t", "E1"),)
        ),
        Step(answer="Paris", helpful=True, refs=("E1",)),
    ),
    question="Where?",
    answer="Paris",
    dialect="pou",
    answers=("Paris", "paris"),
    text="the text with hf_" + "a" * 30,
    meta={
        "step": 3,
        "reward": 0.5,
        "scores": {"format": 1.0, "answer": None},
        "reasons": {"answer": "no judge"},
    },
)


def run(hub: HubServer, home: Path, *commands: list, code: str = PUSHES):
    """Commands, or code, in a process of its own, which takes `hub` for the Hub; each one's exit
    code is printed.
    """
    words = [json.dumps([[str(word) for word in words] for words in commands])]
    own = {"PYTHONPATH": str(ROOT / "src"), "HF_MODULES_CACHE": str(home / "modules")}
    environment = {**os.environ, **hub.environment(home), **own}
    asked = [sys.executable, "-c", code, *words]
    return subprocess.run(
        asked, capture_output=True, text=True, env=environment, check=False, timeout=240
    )


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """A policy with a recipe's card and metrics, a judge, and rollouts with a broken row among
    them.
    """
    folder = tmp_path_factory.mktemp("made")
    policy = shutil.copytree(tiny_policy(), folder / "policy")
    settings = {"corpus": "world", "search_top_k": 3, "turns": 4, "dialect": "search_r1"}
    how = {
        "folder": str(policy),
        "model": "tiny",
        "dialect": "search_r1",
        "tools": ["search"],
        "questions": "world",
    }
    record = Record(**how, settings=settings, steps=5, history=[])
    model_card(record, "recipes/pou.py", ["--output_dir", str(policy)], ("rewards.png",))
    after = Evaluation({"exact_match": mean_ci([0.5])}, ["q"], {"exact_match": [0.5]}, {})
    write_metrics(policy / "metrics.json", {"after": after, "settings": settings, "steps": 5})
    (policy / "rewards.png").write_bytes(b"png")
    (policy / "trajectories.jsonl").write_text("stays")
    file_of(policy / "merged" / "config.json", ["{}"])
    JudgeFile("nli", "support").write(Path(saved(folder / "judge", bert())))
    file_of(folder / "rollouts.jsonl", [ROLLOUT.to_json(), '{"text": '])
    return folder


@pytest.fixture(scope="module")
def hub():
    with HubServer() as server:
        yield server


@pytest.fixture(scope="module")
def pushed(hub, staged, tmp_path_factory):
    """Everything there is to push, pushed by its command."""
    more = ["--collection", "Faithful search"]
    done = run(
        hub,
        tmp_path_factory.mktemp("home"),
        [
            "push",
            "policy",
            staged / "policy",
            "me/policy",
            "--merged",
            "--tag",
            "v1",
            "--benchmark",
            "me/world",
            *more,
        ],
        ["push", "judge", staged / "judge", "me/judge", "--private", *more],
        ["push", "trajectories", staged / "rollouts.jsonl", "me/rollouts", *more],
        ["push", "world", "me/world", *more],
        ["push", "metrics", "team"],
        ["push", "space", "me/explorer", *more],
    )
    assert done.stdout.count("exit 0") == 6, done.stdout + done.stderr
    return done


def test_a_push_is_one_commit_byte_for_byte(hub, staged, pushed):
    kinds = {"model": 3, "dataset": 2, "space": 1 + len(names())}
    assert {kind: sum(1 for found, _ in hub.repos if found == kind) for kind in kinds} == kinds
    assert all(len(repo.commits) == 2 for repo in hub.repos.values()), "what the Hub made, and one"
    assert [repo for (_, repo), found in hub.repos.items() if found.private] == ["me/judge"]
    assert [
        (item["id"], item["type"]) for item in hub.collections["me/faithful-search"]["items"]
    ] == [
        *(("me/policy", "model"), ("me/policy-merged", "model"), ("me/judge", "model")),
        *(("me/rollouts", "dataset"), ("me/world", "dataset"), ("me/explorer", "space")),
    ]
    assert "not uploaded: merged/config.json, trajectories.jsonl" in pushed.stderr
    assert "row 2" in pushed.stderr
    files = hub.files("me/policy")
    for path in tiny_policy().iterdir():
        assert (
            path.name in ("README.md", "metrics.json") or files[path.name] == path.read_bytes()
        )  # the run's own
    text = files["README.md"].decode()
    assert 'open_generator("me/policy")' in text
    assert "--model me/policy" in text
    assert "# policy" in text
    assert f"--output_dir {staged / 'policy'}" in text, "the command is the one that was run"
    assert "license: apache-2.0" in text
    assert "![rewards, over training](rewards.png)" in text
    measured = files[".eval_results/faithful-search.yaml"]
    assert b"- dataset:\n    id: me/world\n    task_id: exact_match\n  value: 0.5\n" in measured


def loaded(hub: HubServer, home: Path, code: str) -> dict:
    done = run(hub, home, code=code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_pushed_rows_load_as_they_were(hub, pushed, tmp_path):
    found = loaded(hub, tmp_path, ROWS)
    assert (found["dialect"], found["licences"]) == ("search_r1", ["apache-2.0", None])
    assert found["trajectories"] == [ROLLOUT.to_json().replace("hf_" + "a" * 30, "[secret]")]
    [row] = found["rows"]
    assert row["gold"] == ["Paris", "paris"]
    assert row["tools"] == ["local_search"]
    assert row["cited"] == ["E1"]
    assert (row["score_format"], row["score_answer"], row["why_answer"], row["step"]) == (
        1.0,
        None,
        "no judge",
        3,
    )
    assert found["questions"]["answers"] == ["Stockholm"]
    assert len(found["questions"]["chain"]) == 3
    assert found["passages"] > 1000


@pytest.mark.slow
def test_pushed_policy_judge_and_metric_load(hub, staged, pushed, tmp_path):
    found = loaded(hub, tmp_path, MODELS)
    local = load("nli", str(staged / "judge")).judge_batch([Pair("w1 w2.", "w3.", task="support")])[
        0
    ]
    assert (found["verdict"], found["format"]) == (local.p, 1.0)


def test_an_interrupted_upload_is_taken_up_where_it_was(hub, tmp_path):
    folder = file_of(tmp_path / "policy" / "config.json", ["{}"]).parent
    first, second = (folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    for path in (first, second):
        path.write_bytes(path.name.encode() * 100)
    push_it = ["push", "policy", folder, "me/interrupted"]
    moves = [["move", first, folder / "model.safetensors"], ["move", second, tmp_path / "away"]]
    hub.fail("POST", "/commit/", 400)
    before = len(hub.log)
    done = run(hub, tmp_path, push_it, push_it, *moves, push_it)
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == [
        "exit 1",
        "exit 0",
        "exit 0",
    ]
    assert "cannot push to 'me/interrupted' on the Hub: 400, fault 400" in done.stderr
    uploads = [path for method, path in hub.log[before:] if method == "PUT"]
    assert len(uploads) == len(set(uploads)) == 2, "what was uploaded is not sent again"
    made, whole, last = (
        sorted(files) for files in hub.repos["model", "me/interrupted"].commits.values()
    )
    assert made == [".gitattributes"], "nothing was half published"
    assert len(whole) == 4, "nothing was half published"
    assert last == [".gitattributes", "config.json", "model.safetensors"]


def test_refusals_are_one_line_that_says_what_to_do(hub, pushed, tmp_path):
    policy, expired = tiny_policy(), "hf_expired-Secret9"
    hub.fail("POST", "/api/datasets/me/world/commit", 409)
    hub.fail("POST", "/api/collections", 500)
    before = hub.files("me/policy")
    refused = {
        ("push", "policy", policy, "stranger/policy"): "it needs write access to this owner",
        (
            "push",
            "policy",
            policy,
            "me/policy",
            "--tag",
            "v1",
        ): "there is a tag 'v1' already: choose another",
        ("push", "world", "me/world"): "409, fault 409; somebody else changes it at the same time",
        (
            "push",
            "space",
            "me/explorer",
            "--collection",
            "Faithful search",
        ): "but not tagged or collected: 500",
        ("push", "policy", policy, "me/no name"): "cannot push to 'me/no name' on the Hub",
        (
            "push",
            "policy",
            policy,
            "me/policy",
            "--private",
        ): "is a public repository already: make it private",
    }
    others = [["token", READER], ["push", "policy", policy, "me/other"]]
    others += [["token", expired], ["push", "policy", policy, "me/another"]]
    done = run(hub, tmp_path, *refused, *others)
    lines = done.stderr.splitlines()
    assert done.stdout.count("exit 1") == len(lines) == len(refused) + 2, done.stderr
    for said, line in zip(
        (*refused.values(), "403", "401, User access token is expired"), lines, strict=True
    ):
        assert said in line
        assert not any(token in line for token in (TOKEN, READER, expired))
    assert hub.files("me/policy") == before


def test_a_dry_run_shows_every_file_and_the_card_and_asks_nobody(staged, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)

    def push(*words):
        done = invoked("push", *words)
        return done.exit_code, done.output

    asked = ["policy", staged / "policy", "me/policy", "--private"]
    code, said = push(*asked, "--dry-run")
    assert code == 0
    assert said.startswith("model me/policy (private):\n")
    assert "not uploaded: merged/config.json, trajectories.jsonl" in said
    assert "3 bytes  rewards.png" in said
    assert 'open_generator("me/policy")' in said
    wheel = tmp_path / "faithful_search-9-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    assert (
        f"5 bytes  {wheel.name}" in push("space", "me/explorer", "--dry-run", "--wheel", wheel)[1]
    )
    file_of(tmp_path / "base" / "config.json", ["{}"])
    for words, message in (
        (asked, "no Hugging Face token to push to 'me/policy'"),
        (["space", "me/explorer", "--wheel", tmp_path / "none.whl"], "no wheel"),
        (
            ["policy", tmp_path / "base", "me/policy", "--merged"],
            "there is no merged model: faithful-search merge",
        ),
        (
            ["policy", tmp_path, "me/policy", "--dry-run"],
            "there is no config.json nor adapter_config.json",
        ),
    ):
        code, said = push(*words)
        assert code
        assert message in said


def test_settings_that_cannot_be_read_are_not_taken_for_none(tmp_path):
    assert trained_with(str(tmp_path)) == {}
    (tmp_path / "metrics.json").write_text('{"settings": {"dia')
    with pytest.raises(ConfigError, match=r"cannot read metrics\.json of "):
        trained_with(str(tmp_path))


def test_what_others_put_into_meta_is_pushed_and_no_key_is(tmp_path):
    key = "-----BEGIN PRIVATE KEY-----\nMIIE+/=\n-----END PRIVATE KEY-----"
    foreign = [
        {"step": "final", "reward": {"a": 1}},
        {"step": 2**70, "scores": {"c": "n/a"}, "reasons": ["x"]},
        {
            "step": 3,
            "reward": 1,
            "scores": {"c": 0.5, "d": True},
            "reasons": {"c": 3, "d": "why"},
            "key": key,
        },
    ]
    write_jsonl(
        tmp_path / "rollouts.jsonl",
        [msgspec.structs.replace(ROLLOUT, meta=meta) for meta in foreign],
    )
    stage_trajectories(tmp_path / "rollouts.jsonl", tmp_path, "me/x")
    rows = parquet.read_table(tmp_path / "train-00000.parquet").to_pylist()
    columns = [
        [row[name] for name in ("step", "reward", "score_c", "score_d", "why_c", "why_d")]
        for row in rows
    ]
    assert columns == [[None] * 6, [None] * 6, [3, 1.0, 0.5, None, None, "why"]]
    metas = [Trajectory.from_json(row["trajectory"]).meta for row in rows]
    assert metas == [*foreign[:2], foreign[2] | {"key": "[secret]"}]
