"""What is wrong with a recipe's flags is said before torch is imported; `--help` begins with the
recipe's own.
"""

import json
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
from paths import ROOT
from trl import ModelConfig

from faithful_search.errors import ConfigError, DataError
from faithful_search.measure.ledger import lock
from faithful_search.recipes import evaluate, pou, veritas
from faithful_search.recipes.running import TrainingRecipe
from faithful_search.training.arguments import PokeeConfig, SearchGRPOConfig, SearchSFTConfig
from faithful_search.training.outline import settings_in
from faithful_search.training.refusing import (
    GRPO,
    MODEL,
    check_early,
    checked,
    read_call,
    read_config,
)
from faithful_search.training.run_folder import LOCK

TRY = """
import json, sys
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
said = {}
for recipe, flags in json.loads(sys.argv[1]):
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            import_module(f"faithful_search.recipes.{recipe}").main(flags.split())
    except BaseException as error:
        said[f"{recipe} {flags}"] = str(error) or printed.getvalue()
print(json.dumps([said, "torch" in sys.modules]))
"""
REFUSED = {
    ("pou", "--learning_rte 1"): "no such flag: --learning_rte; did you mean --learning_rate?",
    ("pou", "--learning-rte=1"): "did you mean --learning-rate?",
    ("pou", "outputs/mine --seed 1"): "'outputs/mine' stands without its flag",
    ("pou", "--learning_rate much"): "--learning_rate is a number, not 'much'",
    ("pou", "--max_steps 1.5"): "--max_steps is a whole number, not '1.5'",
    ("pou", "--use_cpu maybe"): "--use_cpu is true or false, not 'maybe'",
    ("pou", "--eval_limit many"): "argument --eval_limit",
    ("pou", "--config nosuch.yaml"): "cannot read nosuch.yaml",
    ("pou", "--config"): "--config needs the name of a file",
    ("pou", "--questions nosuch.jsonl"): "--questions nosuch.jsonl: there is no such file",
    ("pou", "--eval_questions nosuch.csv"): "--eval_questions nosuch.csv: there is no such file",
    ("pou", "--corpus nosuch.jsonl.gz"): "--corpus nosuch.jsonl.gz: there is no such file",
    ("pou", "--questions org/name"): "are mixed; give all three",
    ("pou", "--source_gated false --source_gated_by support"): "there is no gate",
    ("pou", "--model_name_or_path ./nosuch"): "./nosuch: there is no such folder",
    ("pou", "--model_name_or_path outputs/sft_x"): "Make it first",
    ("pou", "--counterfactual 0.5 --browse fetch"): "would still say what was",
    ("pou", "--rollouts trl --force_answer true"): "force_answer: only our engine can do this",
    ("veritas", "--rollouts trl"): "'search_r1' writes its calls into its text",
    ("veritas", "--w_exact_match -1"): "weights are 0",
    ("ppo", "--gama 1"): "did you mean --gamma?",
    ("self_eval", "--reward none"): "invalid choice: 'none'",
    ("pokee", "--format_wait 1"): "did you mean --format_weight?",
    ("sft", "--learning_rte 1"): "no such flag: --learning_rte; did you mean --learning_rate?",
    ("sft", "--min_episode_steps few"): "argument --min_episode_steps",
    ("sft", "--trajectories nosuch.jsonl"): "--trajectories nosuch.jsonl: there is no such file",
    ("sft", "--corpus a b c"): "--corpus: 3 entries for 1 question files",
    ("sft", "--reading_layers 1"): "read with --reading_weight above 0 only",
    ("sft", "--save_dtype float33"): "'float33' is not a dtype of torch",
    ("reward_model", "--window wide"): "argument --window",
    ("reward_model", "--pairs nosuch.jsonl.gz"): "--pairs nosuch.jsonl.gz: there is no such file",
    ("reward_model", "--head generator --balance weights"): "balance by 'resample'",
    ("evaluate", "--modle tiny"): "did you mean --model?",
    ("evaluate", "--questions nosuch.jsonl"): "--questions nosuch.jsonl: there is no such file",
    ("evaluate", "--model ./nosuch"): "--model ./nosuch: there is no such folder",
    ("evaluate", "--model tiny --compare_with tiny"): "is the policy itself",
    ("pou", "--help"): "--source_gated",
    ("sft", "--help"): "--min_episode_steps",
    ("reward_model", "--help"): "--second_labels",
    ("evaluate", "--help"): "--compare_with",
}


@pytest.fixture(scope="module")
def told():
    """What each command says, all in one process that nothing else was imported in."""
    command = [sys.executable, "-c", TRY, json.dumps([*REFUSED])]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(("recipe", "flags"), REFUSED)
def test_the_line_says_what_is_wrong(told, recipe, flags):
    assert REFUSED[recipe, flags] in told[0][f"{recipe} {flags}"]


def test_torch_was_not_imported(told):
    assert told[1] is False


def early(folder: Path, *flags: str) -> None:
    check_early(pou.PoUArguments, ["--output_dir", str(folder), *flags], pou.DEFAULT_CONFIG)


def refusal(folder: Path, *flags: str) -> str:
    """Why these flags are refused; empty where they are not."""
    try:
        early(folder, *flags)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_folder_that_cannot_be_made_is_refused_before_torch_is_loaded(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written: Not a directory" in refusal(tmp_path / "file" / "run")


@pytest.mark.parametrize("folder", ["link", "link/run"])
def test_so_is_a_link_to_nothing(folder, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "cannot be written: Not a directory" in refusal(tmp_path / folder)


def test_a_setting_that_a_file_misspells_is_named(tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("learning_rte: 1\n")
    with pytest.raises(
        ConfigError,
        match=r"mine\.yaml: no such settings: learning_rte; did you mean learning_rate\?",
    ):
        early(tmp_path, "--config", str(config))


WRONG = [
    ("pou", "output_dir: 5", "output_dir is text, not 5; if it is text, put it between quotes"),
    ("pou", "model: 5", "model is text, not 5"),
    ("pou", "model_name_or_path: [a]", "model_name_or_path is text, not ['a']"),
    ("pou", "max_steps: many", "max_steps is a whole number, not 'many'"),
    ("pou", "max_steps: 1.5", "max_steps is a whole number, not 1.5"),
    ("pou", "threads: two", "threads is a whole number, not 'two'"),
    ("pou", "questions: 3", "questions is text, not 3"),
    ("pou", "questions:", "questions is text, not empty"),
    ("pou", "dialect: [x]", "dialect is text, not ['x']"),
    ("pou", "report_to: 5", "report_to is text or a list, not 5"),
    ("pou", "env: [a]", "env is a mapping, not ['a']"),
    ("pou", "env: []", "env is a mapping, not []"),
    ("pou", "extends: [a]", "extends is text, not ['a']"),
    ("veritas", "resume: 3", "resume is true or false, not 3"),
    ("ppo", "bf16: x", "bf16 is true or false, not 'x'"),
    ("self_eval", "bf16: 0.5", "bf16 is true or false, not 0.5"),
    ("pokee", "learning_rate: no", "learning_rate is a number, not false"),
    ("sft", "trajectories: abc", "trajectories is a list of texts, not 'abc'"),
    ("sft", "reading_layers: [a]", "reading_layers is a list of whole numbers, not ['a']"),
    ("sft", "habits: 3", "habits is a mapping or text, not 3"),
    ("reward_model", "pairs: 4", "pairs is a list of texts, not 4"),
    ("evaluate", "out: 5", "out is text, not 5"),
    ("evaluate", "limit: many", "limit is a whole number, not 'many'"),
    ("rejection", "questions: 3", "questions is text, not 3"),
]


def check_of(recipe: str, *flags: str) -> None:
    """What a recipe refuses before torch is imported."""
    module = import_module(f"faithful_search.recipes.{recipe}")
    if isinstance(getattr(module, "RECIPE", None), TrainingRecipe):
        check_early(module.RECIPE.settings, flags, module.DEFAULT_CONFIG, module.RECIPE.trainer)
    else:
        module.check(flags)


@pytest.mark.parametrize(("recipe", "line", "why"), WRONG)
def test_a_value_of_a_wrong_type_is_refused_by_its_file_and_key(recipe, line, why, tmp_path):
    (tmp_path / "mine.yaml").write_text(line)
    with pytest.raises(ConfigError, match=re.escape(f"mine.yaml: {why}")):
        check_of(recipe, "--config", str(tmp_path / "mine.yaml"))


def test_an_empty_env_sets_nothing(tmp_path):
    (tmp_path / "mine.yaml").write_text("env:\n")
    assert read_call([], tmp_path / "mine.yaml").environment == {}


@pytest.mark.parametrize("text", ["[]", "0", "false"])
def test_a_file_that_is_no_mapping_is_refused(text, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml must hold a YAML mapping"):
        check_of("pou", "--config", str(tmp_path / "mine.yaml"))


def test_the_file_that_says_it_is_named_where_another_one_extends_it(tmp_path):
    (tmp_path / "base.yaml").write_text("max_steps: many\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nseed: 1\n")
    with pytest.raises(ConfigError, match=r"base\.yaml: max_steps"):
        check_of("pou", "--config", str(tmp_path / "mine.yaml"))


RIGHT = {
    "learning_rate: 1e-5": "1e-5",  # which YAML reads as text
    "gradient_checkpointing: 1": 1,  # as on the command line
    "lora_target_modules: all-linear": "all-linear",  # one name where PEFT takes several
    "eval_sample_seed:": None,  # left open
}


@pytest.mark.parametrize(("line", "value"), RIGHT.items())
def test_a_value_that_says_what_its_setting_takes_is_kept(line, value, tmp_path):
    (tmp_path / "mine.yaml").write_text(line)
    name, _, _ = line.partition(":")
    assert settings("--config", str(tmp_path / "mine.yaml"))[name] == value


@pytest.mark.parametrize("step", [15, "1.0ep"])
def test_a_step_may_be_a_number_or_an_epoch(step, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"curriculum_start: {step}")
    flags = ["--config", str(tmp_path / "mine.yaml")]
    script, _ = checked(veritas.VeritasArguments, flags, veritas.DEFAULT_CONFIG, (GRPO, MODEL))
    assert script.curriculum_start == step


HOME = [
    ("rejection", "questions", "~/mine.jsonl"),
    ("evaluate", "questions", "~/mine.jsonl"),
    ("pou", "questions", "~/mine.jsonl"),
    ("sft", "trajectories", "[~/mine.jsonl]"),
    ("reward_model", "pairs", "[~/mine.jsonl]"),
]


@pytest.mark.parametrize(("recipe", "name", "value"), HOME)
def test_a_path_of_a_file_may_begin_at_home(recipe, name, value, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yaml").write_text(f"{name}: {value}")
    with pytest.raises(ConfigError, match=f"--{name} {tmp_path}/mine.jsonl: there is no such"):
        check_of(recipe, "--config=~/mine.yaml")


@pytest.mark.parametrize("words", [["--out=~/there"], ["--out", "~/there"]])
def test_so_may_one_of_a_flag(words, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert evaluate.parse(words).out == str(tmp_path / "there")


def settings(*flags: str) -> dict[str, object]:
    """What these flags set, of the recipe's own and the trainer's."""
    script, values = checked(pou.PoUArguments, flags, pou.DEFAULT_CONFIG, (GRPO, MODEL))
    return {**values, **vars(script)}


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--max-steps", "2"], "max_steps", "2"),
        (["--max_steps=2"], "max_steps", "2"),
        (["--source_gated"], "source_gated", True),
        (["--source-gated", "false"], "source_gated", False),
    ],
)
def test_every_spelling_of_a_flag_is_taken(flags, name, value):
    assert settings(*flags)[name] == value


@pytest.mark.parametrize("value", ["-1", "None", "1e-5"])
def test_values_that_look_like_others_are_taken(value):
    assert settings("--learning_rate", value)["learning_rate"] == value


def test_a_finished_run_is_not_overwritten(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match="holds a finished run"):
        early(tmp_path)


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_it_is_where_one_says_so(tmp_path, flag):
    (tmp_path / "model.safetensors").touch()
    assert refusal(tmp_path, flag, "true") == ""


def test_the_folder_of_a_running_run_is_not_called_an_ended_one(tmp_path):
    with (tmp_path / LOCK).open("ab") as file:
        lock(file, tmp_path, "run")
        with pytest.raises(DataError, match="another run is writing"):
            early(tmp_path)


def test_other_processes_do_not_ask_for_the_folder(tmp_path, monkeypatch):
    """The first one may own it by then."""
    (tmp_path / "model.safetensors").touch()
    assert "holds a finished run" in refusal(tmp_path)
    monkeypatch.setenv("RANK", "1")
    assert refusal(tmp_path) == ""


def test_a_dry_run_replaces_what_is_not_there(tmp_path):
    flags = ("--questions", "nosuch.jsonl")
    assert "nosuch.jsonl" in refusal(tmp_path, *flags)
    assert refusal(tmp_path, "--dry_run", "true", *flags) == ""


@pytest.mark.parametrize(
    "kind",
    [SearchGRPOConfig, PokeeConfig, SearchSFTConfig, ModelConfig],
    ids=lambda kind: kind.__name__,
)
def test_settings_read_from_source_are_those_of_the_class(kind):
    place = "trl.ModelConfig" if kind is ModelConfig else f"{kind.__module__}.{kind.__name__}"
    assert {*settings_in(place)} == {field.name for field in fields(kind)}


def test_what_settings_say_is_read_as_well():
    found = settings_in("faithful_search.training.arguments.SearchGRPOConfig")
    assert found["llds"].help.startswith("Weight of the likelihood")
    assert found["learning_rate"].help.startswith("The initial learning rate")


def test_a_class_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="has no class Nothing"):
        settings_in("faithful_search.training.arguments.Nothing")


OWN = {"sft": "--habits", "reward_model": "--head"}
"""A flag of a recipe's own; of the others `--eval_limit`."""


@pytest.mark.parametrize(
    "recipe", ["pou", "veritas", "ppo", "self_eval", "pokee", "sft", "reward_model"]
)
def test_help_is_of_the_recipes_own_flags(recipe, capsys):
    with pytest.raises(SystemExit):
        import_module(f"faithful_search.recipes.{recipe}").main(["--help"])
    printed = capsys.readouterr().out
    assert OWN.get(recipe, "--eval_limit") in printed
    assert "--weight_decay" not in printed
    assert "--help-all" in printed


def test_help_says_what_a_flag_does_and_names_defaults_that_say_something(capsys):
    with pytest.raises(SystemExit):
        pou.main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "Settings come from FILE (by default pou_tiny.yaml) and from flags, which win." in printed
    )
    assert "--no-judge-together Switch --judge_together off. --" in printed
    assert "(default: None)" not in printed
    assert "(default: 30.0)" in printed


def test_help_all_lists_the_trainers_settings(capsys):
    with pytest.raises(SystemExit):
        pou.main(["--help-all"])
    assert "--weight_decay (float)" in capsys.readouterr().out


MOVED = {"pou_tiny_b2": "scripts/studies", "sft_tiny_pairs": "scripts/policies"}


@pytest.mark.parametrize("name", MOVED)
def test_a_configuration_that_moved_is_found_where_it_was(name):
    was = Path("recipes/configs") / f"{name}.yaml"
    assert read_config(was) == read_config(ROOT / MOVED[name] / f"{name}.yaml")


@pytest.mark.parametrize("name", MOVED)
def test_a_configuration_that_moved_is_named_by_its_new_place(name, capsys):
    was = f"recipes/configs/{name}.yaml"
    read_config(was)
    assert capsys.readouterr().err == f"{was} is {MOVED[name]}/{name}.yaml now: give that\n"


OLD = [
    ("evaluate", "--policy=tiny", "--model"),
    ("evaluate", "--output-dir=x", "--out"),
    ("evaluate", "--eval_limit=3", "--limit"),
    ("evaluate", "--overwrite_output_dir=true", "--overwrite"),
    ("pou", "--overwrite_output_dir=true", "--overwrite"),
    ("sft", "--top_k=2", "--search_top_k"),
    ("sft", "--verdict_weight=3", "--verdict_token_weight"),
    ("pokee", "--answer_reward=em", "--correctness"),
    ("self_eval", "--judge_temperature=0", "--self_temperature"),
]


@pytest.mark.parametrize(("recipe", "flag", "name"), OLD)
def test_an_old_name_works_and_says_the_new_one(recipe, flag, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check_of(recipe, flag)
    assert f"is called {name} now" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--model=tiny", "--out=x", "--top_k=5", "--resume=false"])
def test_a_name_of_today_says_nothing(flag, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check_early(pou.PoUArguments, [flag], pou.DEFAULT_CONFIG)
    assert capsys.readouterr().err == ""


def test_an_old_name_in_a_file_gives_the_setting(tmp_path):
    (tmp_path / "old.yaml").write_text("policy: tiny_memory\noutput_dir: there\n")
    script = evaluate.parse(["--config", str(tmp_path / "old.yaml")])
    assert (script.model, script.out) == ("tiny_memory", "there")


def test_our_names_give_the_trainers_settings(tmp_path):
    _, args, model_args = pou.parse([f"--out={tmp_path}", "--model=tiny", "--use_cpu=true"])
    assert (args.output_dir, model_args.model_name_or_path) == (str(tmp_path), "tiny")
