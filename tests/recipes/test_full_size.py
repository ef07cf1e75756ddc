"""The paper's sizes: large configurations run dry on a CPU; the estimates in their headers are the script's."""

import importlib.util
import json
import re
import sys
from dataclasses import dataclass

import pou
import pytest
import torch
from paths import RECIPES, ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError
from faithful_search.measure.evaluation import MERGED
from faithful_search.training.dry_run import build_shrunk, config_of
from faithful_search.training.starting import parse_recipe, read_config

torch.set_num_threads(1)


JUDGE = ("--judge_url", "http://127.0.0.1:9/v1", "--judge_model", "NAME")
DATA = ("--questions", "train.jsonl.gz", "--eval_questions", "test.jsonl.gz", "--corpus", "corpus.jsonl.gz")
LARGE = {
    "pou_qwen2.5-7b": ("pou", JUDGE, (14, 2, False)),
    "pou_qwen2.5-7b_lora": ("pou", JUDGE, (14, 2, False)),
    "pou_qwen2.5-0.5b": ("pou", (), (14, 2, True)),
    "pou_four_tools": ("pou", JUDGE, (14, 2, False)),
    "veritas_qwen2.5-7b": ("veritas", JUDGE, (14, 2, False)),
    "ppo_qwen2.5-7b": ("ppo", JUDGE, (14, 2, False)),
    "pokee_qwen2.5-7b": ("pokee", JUDGE, (14, 2, False)),
}
FAST = "pou_qwen2.5-7b"


@pytest.mark.parametrize(
    "name", [name if name == FAST else pytest.param(name, marks=pytest.mark.slow) for name in LARGE]
)
def test_a_large_configuration_runs_dry(tmp_path, monkeypatch, capsys, undrawn, name):
    """The command of its header, shrunk: what a CPU has not is replaced and said, all else reaches the real classes."""
    recipe, given, shape = LARGE[name]
    monkeypatch.chdir(tmp_path)
    path = RECIPES / "configs" / f"{name}.yaml"
    main, settings = importlib.import_module(recipe).main, read_config(path)
    if name == FAST:
        given = (*given, "--eval_limit", "0", "--max_completion_length", "128", "--num_generations", "2")
        del settings["eval_limit"], settings["max_completion_length"], settings["num_generations"]
    found = main(["--config", str(path), *DATA, *given, "--dry_run", "true", "--threads", "1"])
    out = tmp_path / "outputs" / f"{name}_dry_run"
    said = dict(re.findall(r"^  (\w+) +(.* -> .*)$", capsys.readouterr().out, re.MULTILINE))
    assert said["questions"].startswith("train.jsonl.gz -> world") and said["max_steps"].endswith(" -> 2")
    assert found["steps"] == 2 and not (tmp_path / "outputs" / name).exists()
    kept = {key: value for key, value in found["settings"].items() if key in settings and key not in said}
    assert kept and all(kept[key] == settings[key] for key in kept)
    config = json.loads((out / "random_model" / "config.json").read_text())
    assert config["model_type"] == "qwen2" and config["num_hidden_layers"] == 2
    heads = (config["num_attention_heads"], config["num_key_value_heads"], config["tie_word_embeddings"])
    assert heads == shape
    assert (out / "adapter_config.json").exists() == (out / MERGED).exists() == name.endswith("_lora")
    touched = "output_dir use_vllm judge tool_cache web_search browse triples eval_split corpus model_name_or_path"
    small = "eval_limit turn_tokens max_steps max_completion_length gradient_accumulation_steps"
    assert said.keys() & settings.keys() <= {*f"{touched} {small}".split()}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--num_generations", "5"), "generation_batch_size"),  # 5 rows a group would be made whole by the replacements
        (("--max_stepz", "3"), "no such flag: --max_stepz"),
        (("--load_in_4bit", "true"), "--load_in_4bit true with --use_vllm true"),
        (("--lora_r", "8"), "without --use_peft true these have no effect: lora_r"),
        (("--model_name_or_path", "someone/unheard-of"), "architecture of 'someone/unheard-of' is not known"),
        (("--vllm_tensor_parallel_size", "2"), "vllm_tensor_parallel_size"),  # though vLLM is left out
    ],
)
def test_a_dry_run_hides_nothing_that_the_real_run_would_refuse(tmp_path, monkeypatch, flags, said):
    monkeypatch.chdir(tmp_path)
    given = ["--config", str(RECIPES / "configs" / "pou_qwen2.5-7b.yaml"), "--dry_run", "true", *flags]
    with pytest.raises(ConfigError, match=said):
        pou.parse(given)


def test_the_estimate_in_each_header_is_what_the_script_says():
    spec = importlib.util.spec_from_file_location("estimate", ROOT / "scripts" / "estimate.py")
    sys.modules[spec.name] = estimate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(estimate)
    for name in ("pou_qwen2.5-7b", "pou_qwen2.5-7b_lora", "pou_qwen2.5-0.5b", "ppo_qwen2.5-7b"):
        header = (RECIPES / "configs" / f"{name}.yaml").read_text(encoding="utf-8").replace(" \\\n#    ", "")
        flags = re.search(r"python scripts/estimate\.py recipes/(\S+)(.*)", header)
        lines = estimate.main([str(RECIPES / flags[1]), *flags[2].split()])
        assert "".join(f"#   {line}\n" for line in lines) in header
        total, room = map(float, re.search(r"memory: ([\d.]+) GB of (\d+)", header).groups())
        assert total < 0.9 * room


def test_the_sizes_are_those_that_were_published():
    for name, published in {"Qwen2.5-7B-Instruct": 7_615_616_512, "Qwen2.5-0.5B-Instruct": 494_032_768}.items():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config_of(f"Qwen/{name}"))
        assert model.num_parameters() == published, name


def test_a_model_here_is_shrunk_with_its_own_tokenizer(tmp_path):
    path = build_shrunk(str(tiny_policy()), tmp_path / "small")
    config = AutoModelForCausalLM.from_pretrained(path).config
    assert (config.model_type, config.num_hidden_layers, config.vocab_size) == ("llama", 2, 3031)
    own = AutoTokenizer.from_pretrained(tiny_policy())
    assert AutoTokenizer.from_pretrained(path).chat_template == own.chat_template


def test_settings_that_were_renamed_go_by_the_older_name_where_that_is_installed(tmp_path):
    @dataclass
    class Older:
        gradient_checkpointing: bool = True

    file = tmp_path / "a.yaml"
    file.write_text("activation_checkpointing: false")
    assert parse_recipe((Older,), [], file)[0].gradient_checkpointing is False
    [newer] = parse_recipe((GRPOConfig,), ["--use_cpu", "true", "--bf16", "false"], file)
    assert newer.activation_checkpointing is False
