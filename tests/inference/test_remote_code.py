"""Python code that lies beside a model is run only where that is asked for, and the standard input
is not asked.
"""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from trl import GRPOConfig, ModelConfig

from faithful_search.bundled import tiny_policy
from faithful_search.cli import cli
from faithful_search.distil.heads import open_classifier
from faithful_search.errors import ConfigError
from faithful_search.inference.encoder import Encoder
from faithful_search.inference.loading import open_generator, read_tokenizer
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.judges.generator import GeneratorJudge
from faithful_search.judges.nli import NLIJudge
from faithful_search.training.dry_run import config_of
from faithful_search.training.policies import open_policy

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
Path({mark!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = "own_policy"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def policy(tmp_path, monkeypatch) -> Path:
    """A model with code of its own, which leaves the file `ran`; who is asked whether to run it
    says yes.
    """
    folder = tmp_path / "policy"
    shutil.copytree(tiny_policy(), folder)
    auto = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    config = json.loads((folder / "config.json").read_text()) | {
        "model_type": "own_policy",
        "auto_map": auto,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(CODE.format(mark=str(tmp_path / "ran")))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    return folder


def adapted(name: str) -> None:
    settings = GRPOConfig(name, use_cpu=True, bf16=False)
    open_policy(name, ModelConfig(use_peft=True, lora_target_modules=["q_proj"]), settings)


OPENERS = {
    "policy": open_generator,
    "new adapter": adapted,
    "classifier": NLIJudge.from_pretrained,
    "generator": GeneratorJudge.from_pretrained,
    "encoder": Encoder.from_pretrained,
    "architecture": config_of,
    "judge to train": open_classifier,
}


@pytest.mark.parametrize("name", OPENERS)
def test_code_beside_a_model_is_refused_without_a_question(policy, name):
    with pytest.raises(ConfigError, match="trust_remote_code"):
        OPENERS[name](str(policy))
    assert not (policy.parent / "ran").exists()


def test_it_is_run_where_that_is_asked_for(policy):
    assert type(open_generator(str(policy), trust_remote_code=True).model).__name__ == "OwnModel"
    assert GeneratorJudge.from_pretrained(str(policy), trust_remote_code=True).judge_batch([]) == []
    own = JudgeArguments(
        judge="generator", judge_model=str(policy), judge_trust_remote_code=True
    ).load_judge()
    assert own is not None
    assert (policy.parent / "ran").exists()
    assert read_tokenizer(str(policy), trust_remote_code=True).chat_template


def test_rows_on_the_standard_input_are_no_answer_to_a_question(policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        cli, ["audit", "-", "--policy", str(policy), "--no-report"], input="y\n"
    )
    assert done.exit_code == 1
    assert "trust_remote_code" in done.stderr
    assert not (tmp_path / "ran").exists()
