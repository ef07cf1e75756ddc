"""What a new user meets first: flags, folders, names and launchers that are not as they should be,
each in a line.
"""

import os
import re
import shlex
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe, get_context
from pathlib import Path
from socket import socket
from types import SimpleNamespace

import httpx2
import psutil
import pytest
import torch
from agent_rows import file_of
from checkpoints import checkpoint
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError
from paths import ROOT
from recipe_runs import CPU
from transformers import AutoModelForCausalLM

from faithful_search.bundled import bundled_policy, tiny_policy
from faithful_search.errors import ConfigError, DataError
from faithful_search.inference import loading
from faithful_search.judges import distilled
from faithful_search.recipes import pou
from faithful_search.tasks import Task
from faithful_search.training import arguments, starting
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.starting import (
    RunArguments,
    StartArguments,
    owned,
    parse_recipe,
    warn_of_missing_gold,
)


def one_line(error) -> str:
    assert "\n" not in str(error.value)
    assert "usage:" not in str(error.value)
    return str(error.value)


# --- folders


def test_another_process_keeps_its_folder_until_killed(tmp_path):
    ours, theirs = Pipe()

    def hold() -> None:
        with owned(tmp_path):
            theirs.send("mine")
            theirs.recv()

    other = get_context("fork").Process(target=hold)
    other.start()
    assert ours.recv() == "mine"
    with pytest.raises(DataError, match="another run is writing"), owned(tmp_path):
        pass
    with owned(tmp_path / "beside"):
        pass
    other.kill()
    other.join()
    with owned(tmp_path):
        pass


def test_an_earlier_run_is_overwritten_only_when_told(tmp_path):
    def refused(said: str) -> None:
        with pytest.raises(ConfigError, match=said) as error, owned(tmp_path, resume=False):
            pass
        one_line(error)

    (tmp_path / "checkpoint-100").mkdir()  # half of one: there is nothing to resume from
    with owned(tmp_path, resume=False):
        pass
    for step in (20, 9):
        checkpoint(tmp_path, step)
    refused("a run that ended before its time: --resume goes on from checkpoint-20;")
    (
        tmp_path / "model.safetensors"
    ).touch()  # it may have been killed in the evaluation after training
    refused("a finished run: --resume goes on from checkpoint-20; --overwrite starts anew")
    for told in ({"resume": True}, {"overwrite": True}):
        with owned(tmp_path, **{"resume": False, **told}):
            pass


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"seed": -1}, "--seed must be 0 or more"),
        ({"learning_rate": float("nan")}, "--learning_rate must be 0 or more"),
        ({}, "--threads must be 0 or more"),
        ({"report_to": "wandb"}, r"pip install 'faithful-search\[wandb\]'"),
    ],
)
def test_what_cannot_begin_is_refused_before_anything_is_written(
    given, says, tmp_path, monkeypatch
):
    monkeypatch.setattr(starting, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=says) as error:
        args = SearchGRPOConfig(str(tmp_path / "out"), **{"report_to": "none", **given})
        with starting.started(StartArguments(threads=0 if given else -3), args):
            pass
    one_line(error)
    assert not (tmp_path / "out").exists()


# --- threads


@pytest.mark.parametrize(
    ("busy", "processes", "threads"),
    [
        ([0] * 16, 1, 16),
        ([100] * 16, 1, 1),
        ([100, 60, 0, 0], 1, 2),
        ([3, 2], 1, 2),
        ([0] * 16, 4, 4),
        ([0] * 13 + [100] * 3, 4, 4),  # the other three processes are still importing
        ([100, 100], 2, 1),
    ],
)
def test_threads_are_as_many_as_cores_are_idle(busy, processes, threads, monkeypatch):
    cores = set(range(len(busy)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores, raising=False)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percpu: busy)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert loading.idle_cores() == threads


def test_cores_of_others_do_not_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3}, raising=False)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percpu: [0, 0, 100, 0])
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert loading.idle_cores() == 1


@pytest.mark.skipif(not hasattr(os, "getloadavg"), reason="no load average here")
def test_a_load_that_has_passed_does_not_count(monkeypatch):
    """As a `pip install` that has just ended, or this program's own imports."""
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percpu: [4.0, 0.0])
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert loading.idle_cores() == 2


# --- models


def test_an_unknown_model_is_asked_for_once_and_a_folder_never(tmp_path, monkeypatch):
    asked = []  # the names that the Hub was asked for, which has none

    def answer(self, name, **settings):
        asked.append(name)
        response = httpx2.Response(404, request=httpx2.Request("GET", "https://hub.example"))
        raise RepositoryNotFoundError("404", response=response)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", answer)
    monkeypatch.setattr(
        loading, "find_adapter_config_file", lambda *_, **__: pytest.fail("it was looked for again")
    )
    loading.check_there.cache_clear()
    said = r"no model '.*neither a folder here nor on the Hub"
    for name, why in {
        "some/body": said,
        "outputs/to/typo": said,
        str(tmp_path): "cannot open the tokenizer",
    }.items():
        with pytest.raises(ConfigError, match=why) as error:
            loading.read_tokenizer(name)
        one_line(error)
    assert loading.read_tokenizer(str(tiny_policy())) is not None
    assert asked == ["some/body"]
    with pytest.raises(ConfigError, match=said):
        loading.open_model(AutoModelForCausalLM, "an/other")
    assert asked == ["some/body", "an/other"]


def test_a_hub_that_cannot_be_reached_is_said_in_a_line_at_once(monkeypatch):
    with socket() as nobody:  # bound, and not listening
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        for opened in (
            loading.read_tokenizer,
            loading.read_config,
            partial(distilled.settings, kind="nli"),
        ):
            loading.check_there.cache_clear()
            with pytest.raises(
                ConfigError, match=r"no model 'some/body'.* the Hub cannot be reached"
            ) as error:
                opened("some/body")
            one_line(error)


def test_a_missing_cold_start_comes_with_its_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = str(ROOT / "recipes" / "configs" / "pou_smollm2-135m.yaml")
    _, _, model = pou.parse(
        ["--config", config, "--questions", "q", "--eval_questions", "q", "--corpus", "c", *CPU]
    )
    with (
        owned(Path(model.model_name_or_path)),
        pytest.raises(ConfigError, match="there is no") as error,
    ):
        bundled_policy(
            model.model_name_or_path, "pou"
        )  # a run that did not get as far leaves its lock
    command = re.search(r"recipes/sft\.py --config (recipes/configs/\S+)", one_line(error))
    assert (ROOT / command[1]).exists()
    (Path(model.model_name_or_path) / "config.json").touch()
    assert bundled_policy(model.model_name_or_path, "pou") == model.model_name_or_path


# --- bf16 on a CPU: off, but where it is asked for and the processor is faster in it

FASTER = {torch.float32: 0.004, torch.bfloat16: 0.001}
"""Seconds for a product."""
SLOWER = {torch.float32: 0.004, torch.bfloat16: 0.005}


@pytest.fixture
def processor(monkeypatch):
    """Puts the tests on a processor that takes so long for a product, without accelerator, in a
    clean environment.
    """
    for name in ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU"):
        # set, then removed: so that what the code under test leaves there is taken away afterwards
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)

    def takes(seconds):
        monkeypatch.setattr(arguments, "seconds_to_multiply", seconds.get)
        arguments.faster_in_bf16.cache_clear()

    yield takes
    arguments.faster_in_bf16.cache_clear()


@pytest.mark.parametrize(
    "seconds, faster",
    [
        (FASTER, True),
        (SLOWER, False),
        ({torch.float32: 0.004, torch.bfloat16: 0.003}, False),  # autocast costs more than that
    ],
)
def test_which_processors_are_faster_in_bf16(processor, seconds, faster):
    processor(seconds)
    assert arguments.faster_in_bf16() is faster


def test_timing_products_leaves_the_number_of_threads(processor):
    processor(FASTER)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    arguments.faster_in_bf16()
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_takes_some_time(dtype):
    assert 0 < arguments.seconds_to_multiply(dtype) < 60


@pytest.fixture
def on_cpu(processor, monkeypatch, tmp_path):
    """The settings of a run on a processor, where bf16 is `asked` for in one of four ways."""

    def settings(seconds, asked):
        processor(seconds)
        flags = ["--report_to", "none", "--output_dir", str(tmp_path)]
        if asked == "flag":
            flags += ["--bf16", "true"]
        if asked == "file":
            (tmp_path / "own.yaml").write_text("bf16: true")
            flags += ["--config", str(tmp_path / "own.yaml")]
        if asked == "launch":
            monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        [args] = parse_recipe((SearchGRPOConfig,), flags)
        return args

    return settings


@pytest.mark.parametrize(
    "seconds, asked, line",
    [
        (FASTER, "nowhere", "cpu, no autocast"),
        (FASTER, "flag", "cpu, bf16 autocast"),
        (FASTER, "file", "cpu, bf16 autocast"),
        (FASTER, "launch", "cpu, bf16 autocast"),
        (SLOWER, "nowhere", "cpu, no autocast"),
        (SLOWER, "flag", "cpu, no autocast"),
        (SLOWER, "file", "cpu, no autocast"),
        (SLOWER, "launch", "cpu, no autocast"),
    ],
)
def test_a_cpu_uses_bf16_where_asked_and_faster(on_cpu, seconds, asked, line):
    assert arguments.precision_line(on_cpu(seconds, asked)) == line


def test_a_run_says_that_bf16_is_switched_off(on_cpu, caplog):
    on_cpu(SLOWER, "flag")
    assert "bf16 is switched off: this processor does not multiply bfloat16" in caplog.text


def test_a_run_that_asks_for_no_bf16_warns_of_nothing(on_cpu, caplog):
    on_cpu(SLOWER, "nowhere")
    assert not caplog.text


def test_a_refused_bf16_is_not_launched_either(on_cpu):
    on_cpu(SLOWER, "launch")
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "no"


def test_an_accelerator_keeps_its_bf16(processor, monkeypatch):
    processor(SLOWER)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    told = SimpleNamespace(seed=0, learning_rate=0.1, use_cpu=False, bf16=True, ddp_backend=None)
    arguments.prepare(told)
    assert told.bf16
    assert not told.use_cpu
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    arguments.prepare(told)
    assert told.use_cpu
    assert not told.bf16


# --- questions that the corpus does not answer


@pytest.mark.parametrize(("rows", "warnings"), [(2, 0), (1, 1)])
def test_a_corpus_without_the_gold_passages_is_told(rows, warnings, tmp_path, caplog):
    corpus = [{"id": title, "title": title, "text": "x"} for title in ("Arvon", "Belt")]
    file = file_of(tmp_path / "corpus.jsonl", corpus[:rows])
    script = RunArguments(questions="q.jsonl", corpus=str(file), triples="none")
    tasks = [Task(title, "Who?", supporting_titles=(title,)) for title in ("Arvon", "Belt")]
    warn_of_missing_gold(script, tasks)
    assert len(caplog.records) == warnings


def test_the_command_that_names_unanswerable_questions_can_be_copied(tmp_path, caplog):
    corpus = file_of(tmp_path / "my corpus.jsonl", [{"title": "Belt", "text": "x"}])
    script = RunArguments(questions="my questions.jsonl", corpus=str(corpus), triples="none")
    warn_of_missing_gold(script, [Task("q", "Who?", supporting_titles=("Arvon",))])
    command = caplog.text.strip().partition("which these are: ")[2]
    expected = ["faithful-search", "answerable", script.questions, "--corpus", script.corpus]
    assert shlex.split(command) == expected


def test_no_corpus_is_read_where_there_are_other_tools(tmp_path):
    with_the_web = RunArguments(
        questions="q.jsonl", corpus="missing.jsonl", triples="none", web_search="serper"
    )
    tasks = [Task("q", "Who?", supporting_titles=("Arvon",))]
    warn_of_missing_gold(with_the_web, tasks)
    with pytest.raises(DataError, match=r"missing\.jsonl"):
        warn_of_missing_gold(replace(with_the_web, web_search="none"), tasks)
