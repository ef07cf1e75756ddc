"""vLLM without vLLM: what its server is asked and what becomes of its faults; settings; the test of
the weight sync.
"""

import asyncio
import math
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import lab
import msgspec
import pytest
import requests
import torch
import transformers
import trl
from trl.generation.vllm_client import VLLMClient
from vllm_stub import StubVLLM, five

from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError, GeneratorError
from faithful_search.inference import vllm
from faithful_search.inference.base import Sampling
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.inference.vllm import VLLMGenerator, VLLMServer, open_vllm
from faithful_search.training import arguments, endings, vllm as with_vllm
from faithful_search.training.vllm import check_sync, policy_generator


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(tiny_policy())


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(vllm, "_BACKOFF", 0.01)
    with StubVLLM() as server:
        yield server


@pytest.fixture
def generator(stub, tokenizer):
    """Asks `stub`, which has forgotten what it was asked at the beginning."""
    made = VLLMServer(stub.url + "/v1/", tokenizer)
    stub.requests.clear()
    return made


def answering(ids, finish="stop", stop=None):
    """A sampler that says this to every row, and what the check at the beginning wants to hear."""

    def sample(body):
        names = [f"token_id:{token}" for token in ids]
        values = [0.0 if body.get("top_k") == 1 else -0.25] * len(ids)
        logprobs = {"tokens": names, "token_logprobs": values, "top_logprobs": None}
        return {
            "token_ids": ids,
            "finish_reason": finish,
            "stop_reason": stop,
            "logprobs": logprobs,
        }

    return sample


def test_every_row_has_its_own_token_limit(stub, generator):
    sampling = Sampling(
        temperature=0.7, top_p=0.9, top_k=3, max_new_tokens=9, stop=("</answer>",), logprobs=True
    )
    rows = generator.generate([[1, 2], [3], list(range(60))], sampling, [2, 7, 9])
    assert [len(row.ids) for row in rows] == [2, 7, 4]  # the last has no more positions
    assert [row.logprobs for row in rows] == [[-0.5] * 2, [-0.5] * 7, [-0.5] * 4]
    assert {row.finish for row in rows} == {"length"}
    body, eos = (
        next(item for item in stub.requests if item["prompt"] == [3]),
        generator.tokenizer.eos_token_id,
    )
    assert body == {
        **{
            "model": "stub",
            "prompt": [3],
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        },
        **{
            "max_tokens": 7,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 3,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        },
        **{"presence_penalty": 0.0, "frequency_penalty": 0.0, "skip_special_tokens": False},
        **{"stop": ["</answer>"], "stop_token_ids": [eos], "include_stop_str_in_output": True},
        "logprobs": 0,
    }


def test_choices_are_read_token_by_token_at_temperature_one(stub, generator):
    probs = generator.choice_probs([[1, 2], [1, 2], [9]], [[[3], [3, 4]], [[7]], []])
    assert probs == [
        [pytest.approx(math.exp(-3)), pytest.approx(math.exp(-7))],
        [pytest.approx(math.exp(-7))],
        [],
    ]
    asked = {tuple(body["prompt"]): body for body in stub.requests}
    assert len(stub.requests) == 2  # [1, 2] once for all its choices
    assert asked[1, 2]["logprob_token_ids"] == [3, 7]
    assert asked[1, 2, 3]["logprob_token_ids"] == [4]
    for body, logprobs in ((asked[1, 2], 2), (asked[1, 2, 3], 1)):
        assert (body["temperature"], body["max_tokens"], body["logprobs"]) == (1.0, 1, logprobs)


def test_empty_choices_and_old_servers_are_refused(stub, generator):
    with pytest.raises(ConfigError, match="choice 1 of prompt 0 is empty"):
        generator.choice_probs([[1]], [[[2], []]])
    stub.sample = lambda body: five({**body, "logprob_token_ids": ()})
    with pytest.raises(ConfigError, match="take a newer one"):
        generator.choice_probs([[1]], [[[2]]])


def test_how_a_row_ended(stub, generator, tokenizer):
    eos, [word] = tokenizer.eos_token_id, tokenizer.encode(" the", add_special_tokens=False)
    sampling = Sampling(stop=("the",))
    for ids, finish, stop, wanted in (
        ([7, word], "stop", "the", ([7, word], "stop")),
        (
            [7, word, 8, 9],
            "stop",
            "the",
            ([7, word], "stop"),
        ),  # an engine that samples several tokens at once
        ([7, eos], "stop", None, ([7, eos], "eos")),
        ([7, eos], "stop", eos, ([7, eos], "eos")),
        (
            [7, eos],
            "stop",
            tokenizer.eos_token,
            ([7, eos], "eos"),
        ),  # the EOS is a stop string of the dialect, too
        ([7, 8], "length", None, ([7, 8], "length")),
    ):
        stub.sample = answering(ids, finish, stop)
        [row] = generator.generate([[1]], msgspec.structs.replace(sampling, logprobs=True))
        assert (row.ids, row.finish) == wanted
        assert row.logprobs == [-0.25] * len(row.ids)
    stub.sample = answering([7], "abort")
    with pytest.raises(GeneratorError, match=r"gave up on a row \(abort\)"):
        generator.generate([[1]], sampling)


def test_refusals_come_before_the_server_or_in_its_words(stub, generator):
    with pytest.raises(
        ConfigError,
        match=r"a prompt of 64 tokens leaves no room in the 64 positions.*max-model-len",
    ):
        generator.generate([[1], [1] * 64], Sampling())
    with pytest.raises(ConfigError, match="a prompt of 64 tokens"):
        generator.choice_probs([[1] * 63], [[[1, 2]]])
    with pytest.raises(ConfigError, match=r"temperatures up to 2, not 2\.5"):
        generator.generate([[1]], Sampling(temperature=2.5))
    assert generator.generate([], Sampling()) == []
    assert generator.choice_probs([], []) == []
    assert generator.choice_probs([[1]], [[]]) == [[]]
    assert stub.requests == []
    stub.mode = (400, "This model's maximum context length is 8 tokens")
    with pytest.raises(
        ConfigError, match="refuses: the endpoint answered 400: This model's maximum context"
    ):
        generator.generate([[1]], Sampling())
    assert len(stub.requests) == 1


def test_rows_are_asked_for_concurrently_up_to_the_bound(stub, tokenizer, monkeypatch):
    monkeypatch.setattr(vllm, "_CONCURRENCY", 4)

    async def notebook():
        return VLLMServer(stub.url, tokenizer).generate([[1]] * 20, Sampling(max_new_tokens=2))

    assert [row.ids for row in asyncio.run(notebook())] == [[5, 5]] * 20
    assert 2 <= stub.busiest <= 4


def test_waiting_for_a_turn_of_ones_own_is_not_the_servers_time(stub, tokenizer, monkeypatch):
    monkeypatch.setattr(vllm, "_CONCURRENCY", 1)
    generator = VLLMServer(stub.url, tokenizer, timeout=0.6)
    stub.sample = lambda body: (time.sleep(0.15), five(body))[1]
    assert len(generator.generate([[1]] * 5, Sampling(max_new_tokens=1))) == 5


@pytest.mark.parametrize("fault", ["closed", "cut", (503, "engine is starting")])
def test_what_passes_is_asked_for_again(stub, generator, fault):
    stub.mode, stub.faults = fault, 2
    assert [row.ids for row in generator.generate([[1]] * 3, Sampling(max_new_tokens=2))] == [
        [5, 5]
    ] * 3


@pytest.mark.parametrize(
    "fault, timeout, told",
    [
        ("closed", 600.0, "cannot talk to"),
        ("cut", 600.0, "it is not JSON"),
        (
            (500, "EngineCore encountered an issue"),
            600.0,
            "answered 500: EngineCore encountered an issue",
        ),
        ("hang", 0.5, r"no complete answer within 0\.5 s"),
        ("dies", 600.0, "cannot reach"),
    ],
)
def test_a_lasting_failure_says_what_to_do(stub, tokenizer, fault, timeout, told):
    generator = VLLMServer(stub.url, tokenizer, timeout=timeout)
    stub.mode = "hang" if fault == "dies" else fault
    if fault == "dies":
        threading.Timer(0.3, stub.stop).start()
    with pytest.raises(GeneratorError, match=told) as caught:
        generator.generate([[1]] * 5, Sampling())
    assert stub.url in str(caught.value)
    assert "resume from the last checkpoint" in str(caught.value)


def test_a_server_that_is_not_there_or_is_another(stub, tokenizer):
    with StubVLLM() as gone:
        url = gone.url
    with pytest.raises(GeneratorError, match="cannot reach"):
        VLLMServer(url, tokenizer)
    stub.positions = None
    with pytest.raises(ConfigError, match="is no vLLM server"):
        VLLMServer(stub.url, tokenizer)


def test_a_server_without_token_ids_is_refused(stub, tokenizer):
    stub.sample = lambda body: {"finish_reason": "length", "stop_reason": None, "logprobs": None}
    with pytest.raises(GeneratorError, match="too old, or answers amiss"):
        VLLMServer(stub.url, tokenizer)


def test_log_probs_of_another_distribution_are_refused(stub, tokenizer):
    stub.sample = lambda body: five(
        {**body, "top_k": 0}
    )  # as without --logprobs-mode processed_logprobs
    generator = VLLMServer(stub.url, tokenizer)
    assert generator.generate([[1]], Sampling(max_new_tokens=1))[0].logprobs is None
    with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
        generator.generate([[1]], Sampling(max_new_tokens=1, logprobs=True))


def test_log_probs_are_asked_for_only_as_sampled(tokenizer, monkeypatch):
    settings = SimpleNamespace(max_model_len=64, logprobs_mode="raw_logprobs")
    raw = SimpleNamespace(llm_engine=SimpleNamespace(model_config=settings))
    with pytest.raises(ConfigError, match="this engine reports raw_logprobs"):
        VLLMGenerator(raw, tokenizer).generate([[1]], Sampling(logprobs=True))
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"pip install 'faithful-search\[vllm\]'"):
        open_vllm("somewhere")


# --- settings
# -------------------------------------------------------------------------------------------------------


def settings(tmp_path, **given):
    return trl.GRPOConfig(str(tmp_path), use_vllm=True, report_to=[], use_cpu=True, **given)


@pytest.mark.parametrize(
    "given, told",
    [
        (
            {
                "vllm_mode": "colocate",
                "vllm_gpu_memory_utilization": 0.2,
                "vllm_max_model_length": 4096,
            },
            "",
        ),
        (
            {
                "vllm_mode": "server",
                "vllm_importance_sampling_mode": "token_truncate",
                "vllm_server_timeout": 60.0,
            },
            "",
        ),
        (
            {"vllm_mode": "colocate", "vllm_tensor_parallel_size": 2},
            "start a server over several GPUs",
        ),
        (
            {"vllm_mode": "colocate", "vllm_enable_sleep_mode": True},
            "lower vllm_gpu_memory_utilization",
        ),
        (
            {"vllm_mode": "colocate", "vllm_server_base_url": "http://a:1"},
            "vllm_server_base_url: ignored",
        ),
        (
            {"vllm_mode": "server", "vllm_gpu_memory_utilization": 0.5},
            "give it to the server's command",
        ),
        ({"vllm_mode": "elsewhere"}, "unknown vllm_mode 'elsewhere'"),
        ({"vllm_mode": "server", "temperature": 2.5}, "temperatures up to 2"),
    ],
)
def test_vllm_settings_are_used_or_refused(tmp_path, monkeypatch, given, told):
    monkeypatch.setattr(arguments, "find_spec", lambda name: name)
    with pytest.raises(ConfigError, match=told) if told else nullcontext():
        arguments.check_vllm(settings(tmp_path, **given), "cuda")


def test_vllm_needs_to_be_installed_and_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'faithful-search\[vllm\]'"):
        arguments.check_vllm(settings(tmp_path), "cuda")
    monkeypatch.setattr(arguments, "find_spec", lambda name: name)
    with pytest.raises(ConfigError, match="would train on 'cpu'"):
        arguments.check_vllm(settings(tmp_path), "cpu")


def test_in_server_mode_every_process_asks_for_itself(stub, tokenizer, tmp_path):
    class Trainer:  # a process that is not the main one: TRL gives it no client
        processing_class = tokenizer
        args = settings(
            tmp_path, vllm_mode="server", vllm_server_base_url=stub.url, vllm_server_timeout=7.0
        )

    generator = policy_generator(Trainer())
    assert generator.timeout == 7.0
    assert generator.generate([[1]], Sampling(max_new_tokens=2))[0].ids == [5, 5]
    host, port = stub.url.removeprefix("http://").split(":")
    Trainer.args = settings(
        tmp_path, vllm_mode="server", vllm_server_host=host, vllm_server_port=int(port)
    )
    assert policy_generator(Trainer()).url == stub.url


# --- the weight sync
# ------------------------------------------------------------------------------------------------


def trainer_of(url):
    """Of a trainer what is asked: TRL's own client, whose requests have no time-out, and its
    settings.
    """
    client = object.__new__(VLLMClient)  # it is only made where vLLM is installed
    client.base_url, client.session, client.group_port = url, requests.Session(), 1
    args = SimpleNamespace(
        use_vllm=True, vllm_mode="server", vllm_server_base_url=url, vllm_server_timeout=0.5
    )
    accelerator = SimpleNamespace(is_main_process=True)
    generation = SimpleNamespace(vllm_client=client, sync_weights=client.reset_prefix_cache)
    return SimpleNamespace(args=args, accelerator=accelerator, vllm_generation=generation)


def synced(trainer):
    with_vllm.bound_sync(trainer)
    trainer.vllm_generation.sync_weights()


def joined(trainer):
    with with_vllm.joining_server(trainer.args):
        trainer.vllm_generation.vllm_client.init_communicator("cuda")


@pytest.mark.parametrize(
    "wait, path, told",
    [
        (synced, "/reset_prefix_cache", "did not take the weights"),
        (joined, "/server_info", "did not let this run join"),
    ],
)
def test_a_server_that_hangs_is_not_waited_for_for_ever(stub, monkeypatch, wait, path, told):
    lines = []
    monkeypatch.setattr(
        endings, "_end", lambda line: (lines.append(line), stub.stop())
    )  # which lets go of the wait
    stub.silent = {path}
    with pytest.raises(GeneratorError):
        wait(trainer_of(stub.url))
    [line] = lines
    assert line.startswith(f"the vLLM server at {stub.url} {told}")
    assert "within 0.5 s (vllm_server_timeout); see its log" in line
    assert line.endswith("with --resume")


def test_a_server_that_is_down_is_named_with_what_to_do(stub, monkeypatch):
    monkeypatch.setattr(endings, "_end", lambda line: pytest.fail(line))
    join, trainer = VLLMClient.init_communicator, trainer_of(stub.url)
    synced(trainer)
    stub.mode = (500, "EngineCore is dead")
    with pytest.raises(
        GeneratorError,
        match=r"did not take the weights \(.*EngineCore is dead.*goes on from it with",
    ):
        synced(trainer)
    with pytest.raises(KeyError):  # an error of the program stays what it is
        joined(trainer)
    assert VLLMClient.init_communicator is join
    stub.silent = {"/health"}
    with pytest.raises(GeneratorError, match=r"no vLLM server was up at .* within 0\.5 s"):
        joined(trainer)
    stub.stop()
    with pytest.raises(GeneratorError, match=r"no vLLM server was up at .* within 0\.5 s"):
        joined(trainer)
    with pytest.raises(GeneratorError, match="did not take the weights"):
        synced(trainer_of(stub.url))
    trainer.args.vllm_mode = "colocate"
    with with_vllm.joining_server(trainer.args):
        assert VLLMClient.init_communicator is join


def tiny():
    return transformers.AutoModelForCausalLM.from_pretrained(
        tiny_policy(), dtype=torch.float32
    ).eval()


class Engine:
    """An engine at the edge: a copy of the model, loaded as `how` says."""

    def __init__(self, model, tokenizer, how):
        self.model, self.how, self.syncs = model, how, 0
        self.copy = tiny().to(torch.bfloat16 if how == "rounds" else torch.float32)
        if how == "stale head":
            self.copy.config.tie_word_embeddings = False
            self.copy.lm_head.weight = torch.nn.Parameter(self.copy.lm_head.weight.detach().clone())
        self.generator = TransformersGenerator(self.copy, tokenizer)

    def sync(self):
        self.syncs += 1
        if self.how == "ignores":
            return
        weights = dict(self._weights())
        if self.how == "stale head":
            weights["lm_head.weight"] = self.copy.lm_head.weight.detach().clone()
        self.copy.load_state_dict(weights)

    def _weights(self):
        """As TRL does it: adapters are merged while the weights are read."""
        peft_model = hasattr(self.model, "merge_adapter")
        if peft_model:
            self.model.merge_adapter()
        for name, value in self.model.state_dict().items():
            name = name.removeprefix("base_model.model.").replace(".base_layer", "")
            if "lora_" not in name:
                yield name, value.detach().clone()
        if peft_model:
            self.model.unmerge_adapter()


def same(some, other):
    """Bit for bit: the sign of a zero counts."""
    return torch.equal(some.view(torch.int32), other.view(torch.int32))


def prompt(tokenizer):
    return tokenizer("<|user|>Which city is the capital of", add_special_tokens=False)["input_ids"]


def checked(model, engine, tokenizer):
    return check_sync(
        model,
        engine.sync,
        engine.generator,
        TransformersGenerator(model, tokenizer),
        prompt(tokenizer),
    )


@pytest.mark.parametrize("how", ["right", "rounds", "ignores", "stale head"])
@pytest.mark.parametrize("lora", [False, True])
def test_a_sync_that_does_not_arrive_is_refused(tokenizer, monkeypatch, how, lora):
    monkeypatch.setattr(with_vllm, "_TOKENS", 6)
    model = lab.lora(tiny()) if lora else tiny()
    engine = Engine(model, tokenizer, how)
    embedding = model.get_input_embeddings().weight
    before = embedding.clone()
    if how in ("right", "rounds"):
        found = checked(model, engine, tokenizer)
        assert engine.syncs == 2
        assert found.moved > 1
        # rounding to bfloat16 is not taken for old weights
        assert max(found.changed, found.restored) < (1e-4 if how == "right" else 0.2)
        assert how == "rounds" or same(engine.copy.get_input_embeddings().weight, embedding)
    else:
        with pytest.raises(
            ConfigError,
            match=r"does not follow the training model.* off by [1-9][\d.]* nats a token",
        ):
            checked(model, engine, tokenizer)
    assert same(embedding, before)


def test_a_failed_check_restores_weights_and_raises(tokenizer):
    model = tiny()
    before = model.get_input_embeddings().weight.clone()
    scorer, scored = TransformersGenerator(model, tokenizer), []

    def fail(*asked):
        raise GeneratorError("the server is down")

    def score(prompts, choices):
        scored.append(len(prompts))
        return TransformersGenerator.choice_probs(scorer, prompts, choices)

    scorer.choice_probs = score
    with pytest.raises(GeneratorError, match="the server is down"):
        check_sync(model, lambda: None, SimpleNamespace(generate=fail), scorer, prompt(tokenizer))
    assert scored == [0, 0, 0]  # as often as in a process whose sampling went well
    assert same(model.get_input_embeddings().weight, before)
