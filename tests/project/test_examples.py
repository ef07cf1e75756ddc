"""The examples run as their first lines say."""

import runpy
import subprocess
import sys
from types import SimpleNamespace

import lab
import pytest
import torch
from agent_rows import file_of, rollout
from paths import EXAMPLES

from faithful_search import SearchEnvironment, tool_functions
from faithful_search.tools import LocalSearch, Toolbox
from faithful_search.tools.arguments import ToolArguments

TURNS = (
    '<tool_call>\n{"name": "local_search", "arguments": {"query": "capital of '
    'Peru"}}\n</tool_call><|im_end|>',
    '<tool_call>\n{"name": "local_search", "arguments": {"question": '
    '"capital"}}\n</tool_call><|im_end|>',
    "Lima<|im_end|>",
)


def load(name: str):
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py")))


def test_a_smolagents_agent_answers_with_what_it_found():
    pytest.importorskip("smolagents")
    command = [
        sys.executable,
        EXAMPLES / "smolagents_agent.py",
        "What is the capital of Australia?",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("Australia [E1]: ")


@pytest.fixture
def every_tool(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "k")
    remote = {"web_search": "serper", "browse": "jina", "triples": "wikidata"}
    with ToolArguments(
        **remote, domain_corpus="world", negative_tool=True
    ).build_toolbox() as toolbox:
        yield toolbox


def without_list_lengths(schema):
    """Their makers know no length of a list; the description tells it."""
    if isinstance(schema, dict):
        kept = {key: value for key, value in schema.items() if key not in ("minItems", "maxItems")}
        return {key: without_list_lengths(value) for key, value in kept.items()}
    return schema


def test_trl_describes_every_tool_as_the_toolbox_does(every_tool):
    from transformers.utils import get_json_schema

    environment = SearchEnvironment.factory(every_tool)()
    schemas = [without_list_lengths(schema) for schema in every_tool.schemas]
    assert [get_json_schema(function) for function in tool_functions(every_tool)] == schemas
    assert [get_json_schema(getattr(environment, name)) for name in every_tool.names] == schemas


def test_smolagents_describes_every_tool_and_calls_it(every_tool):
    models = pytest.importorskip("smolagents.models")
    tools = load("smolagents_agent").smolagents_tools(every_tool)
    described = {
        tool.name: models.get_tool_json_schema(tool)["function"]["parameters"] for tool in tools
    }
    assert list(described) == every_tool.names
    for tool, name in (("web_search", "query_list"), ("browse", "url_list")):
        given = described[tool]["properties"][name]
        assert (given["type"], given["items"]["type"]) == ("array", "string")
    assert described["web_search"]["required"] == []
    assert described["local_search"]["required"] == ["query"]
    assert "not public" in tools[1](url_list=["http://127.0.0.1/"])
    assert "not both" in tools[0](query="a", query_list=["b"])


def scripted_policy():
    """An untrained Qwen2 whose generation follows a script: episodes go on by themselves,
    everything else is real.
    """
    from trl.chat_template_utils import qwen2_5_chat_template

    named = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "chat_template": qwen2_5_chat_template,
    }
    tokenizer = lab.byte_tokenizer(("<|im_start|>", "<|im_end|>", "<|pad|>"), **named)
    policy = lab.small("qwen2", num_attention_heads=2, num_key_value_heads=2, intermediate_size=32)

    def generate(input_ids, **kwargs):
        rows = [
            TURNS[text.count("<|im_start|>assistant") - 1]
            for text in tokenizer.batch_decode(input_ids)
        ]
        ids = tokenizer(rows, padding=True, padding_side="right", return_tensors="pt")["input_ids"]
        return torch.cat([input_ids, ids], dim=1)

    policy.generate = generate
    return policy, tokenizer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plain", [True, False])
def test_trls_trainer_runs_the_episodes(plain, tmp_path):
    import trl

    policy, tokenizer = scripted_policy()
    size = {
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "max_steps": 2,
        "max_completion_length": 4096,
    }
    quiet = {
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "log_completions": False,
    }
    args = trl.GRPOConfig(str(tmp_path / "out"), use_cpu=True, bf16=False, **size, **quiet)
    with Toolbox([LocalSearch.from_corpus("world", top_k=1)]) as toolbox:
        trainer = load("trl_tools").train(policy, tokenizer, toolbox, args, plain=plain, limit=4)
        stats = toolbox.stats()["local_search"]
    assert (stats.calls, stats.errors) == (8, 4)
    assert trainer.state.global_step == 2


@pytest.mark.slow
def test_ray_gives_each_row_its_scores(tmp_path):
    pytest.importorskip("ray.data")
    pandas = pytest.importorskip("pandas")
    file_of(tmp_path / "a.jsonl", [rollout(n) for n in range(6)])
    options = ["--metrics", "answer_correctness", "--workers", "1"]
    assert (
        load("score_with_ray").main([str(tmp_path / "a.jsonl"), str(tmp_path / "out"), *options])
        == 6
    )
    scored = pandas.read_parquet(tmp_path / "out").sort_values("id")
    assert scored["exact_match_unicode"].tolist() == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
