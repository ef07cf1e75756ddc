"""Dry runs: what they replace, what their script says, and what is said of a start that is missing."""

import pytest
from lab import tokenizer

from faithful_search import dialects
from faithful_search.coldstart.scripted import Scripted
from faithful_search.inference.base import Generator
from faithful_search.judges import Request
from faithful_search.recipes import pokee, self_eval
from faithful_search.rollout import Engine, Limits
from faithful_search.tasks import load_tasks
from faithful_search.tools import LocalSearch, Toolbox
from faithful_search.training.dry_run import WRONG, ScriptedJudge, config_of

DATA = ("--questions", "train.jsonl.gz", "--eval_questions", "test.jsonl.gz", "--dry_run", "true")
TASKS = load_tasks("world_passages", "validation", limit=8)


class Silent(Generator):
    """A policy that is never sampled."""

    tokenizer = tokenizer()


@pytest.fixture
def toolbox(tmp_path, monkeypatch):
    def made(dialect):
        monkeypatch.setenv("FAITHFUL_SEARCH_CACHE", str(tmp_path))
        name = dialects.load(dialect).search_tool or "local_search"
        return Toolbox([LocalSearch.from_corpus("world", name=name)])

    return made


@pytest.mark.parametrize("dialect", ["pou", "search_r1", "self_eval", "pokee"])
def test_scripted_turns_are_valid_in_every_dialect(dialect, toolbox):
    with toolbox(dialect) as tools:
        script = Scripted(Silent(), TASKS, tools, dialects.load(dialect))
        limits = Limits(turn_tokens=10_000, total_tokens=100_000, verify=dialect == "pokee")
        rollouts = Engine(script, tools, dialect, limits).run(TASKS)
    steps = [step for rollout in rollouts for step in rollout.steps]
    assert [step.issues for step in steps if step.issues] == []
    assert any(step.evidence for step in steps)
    answers = [rollout.answer == WRONG for rollout in rollouts]
    assert answers.count(True) == 2
    assert script.turns == len(steps)


def test_a_scripted_judge_writes_what_can_be_read():
    judge = ScriptedJudge(Silent())
    requests = [
        Request("claims", {"answer": "Oslo"}),
        Request("lure", {"query": "capital of Norway"}),
        Request("condense", {"query": "Norway", "passages": "Oslo lies there."}),
    ]
    assert judge.write_batch(requests) == [
        "The answer is Oslo.",
        f"capital of Norway: {WRONG}.",
        "Oslo lies there.",
    ]


@pytest.mark.parametrize("browse", ["jina", "none"])
def test_the_world_stands_in_for_the_web(browse, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    judge = ("--judge_url", "http://127.0.0.1:9/v1", "--judge_model", "NAME")
    config = ("--config", "pokee_qwen2.5-7b.yaml", "--browse", browse)
    script, _, _ = pokee.parse([*config, *DATA, *judge])
    assert (script.corpus, script.web_search) == ("world", "none")


def test_a_start_that_is_missing_is_its_base_with_an_adapter(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--config", "self_eval_qwen2.5-7b.yaml", *DATA, "--corpus", "http://127.0.0.1:8000"]
    _, _, model = self_eval.parse(flags)
    assert model.use_peft
    assert model.lora_r == 32
    assert "starts from Qwen/Qwen2.5-7B-Instruct" in capsys.readouterr().out


def test_the_architecture_of_a_start_is_that_of_its_base():
    assert config_of("outputs/sft_smollm2-135m").hidden_size == 576
