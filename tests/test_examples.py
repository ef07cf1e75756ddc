"""The examples run as their first lines say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from trl_policy import scripted_policy

from faithful_search.tools import LocalSearch, Toolbox

EXAMPLES = Path(__file__).parent.parent / "examples"
TURNS = (
    '<tool_call>\n{"name": "local_search", "arguments": {"query": "capital of Peru"}}\n</tool_call><|im_end|>',
    '<tool_call>\n{"name": "local_search", "arguments": {"question": "capital"}}\n</tool_call><|im_end|>',
    "Lima<|im_end|>",
)


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_smolagents_agent_answers_with_what_it_found():
    pytest.importorskip("smolagents")
    command = [sys.executable, EXAMPLES / "smolagents_agent.py", "What is the capital of Australia?"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("Australia [E1]: ")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plain", [True, False])
def test_trls_trainer_runs_the_episodes(plain, tmp_path):
    trl = pytest.importorskip("trl")
    policy, tokenizer = scripted_policy(TURNS)
    args = trl.GRPOConfig(
        str(tmp_path / "out"),
        per_device_train_batch_size=2,
        num_generations=2,
        max_steps=2,
        max_completion_length=4096,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        log_completions=False,
    )
    with Toolbox([LocalSearch.from_corpus("world", top_k=1)]) as toolbox:
        trainer = load("trl_tools").train(policy, tokenizer, toolbox, args, plain=plain, limit=4)
        stats = toolbox.stats()["local_search"]
    assert (stats.calls, stats.errors) == (8, 4)
    assert trainer.state.global_step == 2
