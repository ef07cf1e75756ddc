"""Real vLLM, its engine and its server, against Transformers on the same weights.

Slow. `FAITHFUL_SEARCH_VLLM_PYTHON` names the python of an environment that has vLLM and this
package's own dependencies (CONTRIBUTING.md says how to make one); without it these tests are
skipped. Both run the bundled tiny policy in float32, so that they may differ by rounding only.
"""

import json
import os
import re
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import lab
import msgspec
import pytest
import torch
import transformers
from paths import SUPPORT
from served import environment, free_port

from faithful_search import errors
from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError, GeneratorError
from faithful_search.inference.base import Completion, Sampling
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.inference.vllm import VLLMServer
from faithful_search.rollout import Engine, Limits
from faithful_search.tasks import load_tasks
from faithful_search.tools import LocalSearch, Toolbox
from faithful_search.training.vllm import check_sync
from faithful_search.trajectory import read_jsonl

PYTHON = os.environ.get("FAITHFUL_SEARCH_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="FAITHFUL_SEARCH_VLLM_PYTHON names no python with vLLM"),
]
ROUNDING = 2e-3  # nats; both compute in float32
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}


class RealEngine:
    """A `VLLMGenerator` in a process of its own, as a generator."""

    def __init__(self, process, tokenizer):
        self.process, self.tokenizer = process, tokenizer

    def ask(self, verb, *arguments):
        self.process.stdin.write(json.dumps({"verb": verb, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        if "error" in reply:
            name, message = reply["error"]
            raise getattr(errors, name)(message)
        return reply["value"]

    def generate(self, prompts, sampling, max_new_tokens=None):
        rows = self.ask("generate", list(prompts), msgspec.to_builtins(sampling), max_new_tokens)
        return [Completion(*row) for row in rows]

    def choice_probs(self, prompts, choices):
        return self.ask("choice_probs", list(prompts), list(choices))

    def load(self, model, directory, head):
        """Its weights into the engine; without `head` the tied output layer stays on old ones."""
        model.save_pretrained(directory)
        self.ask("load", str(directory), head)


@contextmanager
def engine(tokenizer):
    process = subprocess.Popen(
        [PYTHON, str(SUPPORT / "vllm_engine.py"), str(tiny_policy())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(**SETTINGS),
    )
    try:
        assert process.stdout.readline() == '"ready"\n', "the engine did not start"
        yield RealEngine(process, tokenizer)
    finally:
        process.stdin.close()
        process.wait(60)


@contextmanager
def server(log, *more):
    """The server's process, and its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        PYTHON,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(tiny_policy()),
        "--dtype",
        "float32",
    ]
    command += ["--enforce-eager", "--max-model-len", "1024", "--gpu-memory-utilization", "0.2"]
    command += ["--host", "127.0.0.1", "--port", str(port), *more]
    with open(log, "w") as output:
        how = {"env": environment(**SETTINGS), "start_new_session": True}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **how)
    try:
        deadline = time.monotonic() + 600
        while not up(url):
            assert process.poll() is None, Path(log).read_text()[-3000:]
            assert time.monotonic() < deadline, Path(log).read_text()[-3000:]
            time.sleep(0.5)
        yield process, url
    finally:
        kill(process)


def kill(process):
    """The server and its engine, at once."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def up(url):
    try:
        return httpx2.get(url + "/health", trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


def transformers_policy():
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_policy(), dtype=torch.float32)
    return TransformersGenerator(model, transformers.AutoTokenizer.from_pretrained(tiny_policy()))


@pytest.fixture(scope="module")
def peer():
    return transformers_policy()


@pytest.fixture(scope="module", params=["engine", "server"])
def real(request, peer, tmp_path_factory):
    if request.param == "engine":
        with engine(peer.tokenizer) as generator:
            yield generator
    else:
        log = tmp_path_factory.mktemp("vllm") / "server.log"
        with server(log, "--logprobs-mode", "processed_logprobs") as (_, url):
            yield VLLMServer(url, peer.tokenizer, timeout=300)


@pytest.fixture(scope="module")
def prompts(peer):
    """The openings of episodes about the bundled world, and some of ragged lengths."""
    openings = [
        episode.context
        for episode in rollouts(peer)._episodes(load_tasks("world", "validation", limit=6))
    ]
    return [*openings, openings[0][:40], openings[1][:7], openings[2] + openings[3]]


def rollouts(generator, **more):
    toolbox = Toolbox([LocalSearch.from_corpus("world")])
    sampling = Sampling(temperature=0.7, logprobs=True)
    return Engine(
        generator,
        toolbox,
        "pou",
        Limits(turns=5, total_tokens=700, turn_tokens=96),
        sampling,
        **more,
    )


def test_greedy_rows_are_those_of_transformers(real, peer, prompts):
    sampling = Sampling(
        temperature=0.0, max_new_tokens=48, stop=("</tool_call>", "</answer>"), logprobs=True
    )
    ours, theirs = (generator.generate(prompts, sampling) for generator in (real, peer))
    for prompt, one, other in zip(prompts, ours, theirs, strict=True):
        assert one.logprobs == pytest.approx(
            lab.recomputed(peer.model, prompt, one.ids), abs=ROUNDING
        )
        if one.ids != other.ids:  # both may be the best within rounding
            place = next(
                n for n, (a, b) in enumerate(zip(one.ids, other.ids, strict=False)) if a != b
            )
            [[a, b]] = peer.choice_probs(
                [prompt + one.ids[:place]], [[[one.ids[place]], [other.ids[place]]]]
            )
            assert a == pytest.approx(b, rel=1e-3)
        else:
            assert one.finish == other.finish
    assert (
        sum(one.ids == other.ids for one, other in zip(ours, theirs, strict=True))
        >= len(prompts) - 1
    )


def test_sampled_rows_bring_the_log_probs_they_were_sampled_with(real, peer, prompts):
    sampling = Sampling(temperature=0.7, max_new_tokens=32, logprobs=True)
    for prompt, row in zip(prompts, real.generate(prompts, sampling), strict=True):
        assert len(row.logprobs) == len(row.ids)
        assert row.logprobs == pytest.approx(
            lab.recomputed(peer.model, prompt, row.ids, 0.7), abs=ROUNDING
        )
    hot = real.generate([prompts[0]] * 16, Sampling(temperature=2.0, max_new_tokens=8))
    assert len({tuple(row.ids) for row in hot}) > 8
    assert {row.logprobs for row in hot} == {None}


def test_choice_probs_are_those_of_transformers(real, peer, prompts):
    encode = peer.tokenizer.encode
    own = [
        encode(text, add_special_tokens=False)
        for text in ("<think>", "yes", "</helpful><ref>null</ref>", " Paris")
    ]
    choices = [own[: 1 + number % 4] for number in range(len(prompts))]
    assert any(len(choice) > 1 for choice in own)
    for ours, theirs in zip(
        real.choice_probs(prompts, choices), peer.choice_probs(prompts, choices), strict=True
    ):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-12)
    assert real.choice_probs([], []) == []


def test_rows_end_where_those_of_transformers_end(real, peer, prompts):
    tokenizer = peer.tokenizer
    [free] = peer.generate(prompts[:1], Sampling(temperature=0.0, max_new_tokens=48))
    texts = [tokenizer.decode([token]) for token in free.ids]
    merged = next(text for text in texts if len(text.strip()) > 3).strip()[
        :2
    ]  # ends inside a token
    stops = [
        ("</think>",),
        (merged,),
        (tokenizer.eos_token,),
        ("never said",),
        ("</tool_call>", merged),
    ]
    seen = set()
    for stop in stops:
        for limit in (1, 5, 300):
            sampling = Sampling(temperature=0.0, max_new_tokens=limit, stop=stop)
            [one], [other] = (
                generator.generate(prompts[:1], sampling) for generator in (real, peer)
            )
            assert (one.ids, one.finish) == (other.ids, other.finish), stop
            seen.add(one.finish)
    assert seen == {"stop", "eos", "length"}


def test_a_row_ends_at_the_last_position(real, prompts):
    with pytest.raises(ConfigError, match=r"refuses.*out of vocabulary"):
        real.generate([[10**6]], Sampling(max_new_tokens=1))
    [row] = real.generate([[prompts[0][0]] * 1020], Sampling(max_new_tokens=50))
    assert len(row.ids) <= 4


def test_ragged_episodes_are_whole_and_their_log_probs_line_up(real, peer):
    tasks = [task for task in load_tasks("world", "validation", limit=6) for _ in range(2)]
    ended = rollouts(real, concurrency=5).run(tasks)
    assert len({len(item.steps) for item in ended}) > 1
    assert sum(item.answer is not None for item in ended) > len(ended) / 2
    for item in ended:
        tokens = item.tokens
        assert item.stop_reason
        assert len(tokens.completion_ids) == len(tokens.mask) == len(tokens.logprobs)
        own = lab.recomputed(peer.model, tokens.prompt_ids, tokens.completion_ids, 0.7)
        sampled = [
            (value, other)
            for value, other, mask in zip(tokens.logprobs, own, tokens.mask, strict=True)
            if mask
        ]
        assert [value for value, _ in sampled] == pytest.approx(
            [other for _, other in sampled], abs=ROUNDING
        )
        assert {
            value for value, mask in zip(tokens.logprobs, tokens.mask, strict=True) if not mask
        } <= {0.0}


@pytest.mark.parametrize("real", ["engine"], indirect=True)
def test_an_engine_whose_tied_output_layer_stays_old_is_refused(real, tmp_path):
    scorer = transformers_policy()
    model, ids = scorer.model, scorer.tokenizer("<|user|>Which city", add_special_tokens=False)
    found = check_sync(
        model, lambda: real.load(model, tmp_path, True), real, scorer, ids["input_ids"]
    )
    assert max(found.changed, found.restored) < ROUNDING
    assert found.moved > 1
    with pytest.raises(ConfigError, match="does not follow the training model"):
        check_sync(model, lambda: real.load(model, tmp_path, False), real, scorer, ids["input_ids"])


def test_a_killed_server_ends_the_rollout_in_an_error(peer, tmp_path):
    with server(tmp_path / "server.log", "--logprobs-mode", "raw_logprobs") as (process, url):
        generator = VLLMServer(url, peer.tokenizer, timeout=60)
        with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
            generator.generate([[1]], Sampling(logprobs=True))
        search, tasks = rollouts(generator), load_tasks("world", "validation", limit=40)
        search.sampling = msgspec.structs.replace(search.sampling, logprobs=False)
        search.run(tasks[:1])  # it works
        threading.Timer(0.5, kill, (process,)).start()
        with pytest.raises(
            GeneratorError, match=re.escape(url) + r" (cannot be reached|failed).*start it again"
        ):
            search.run(tasks * 25)
        assert process.poll() is not None


def trained(out: Path, mode: str) -> subprocess.CompletedProcess:
    """Two steps of training in that environment; see `vllm_training.py`."""
    command = [PYTHON, str(SUPPORT / "vllm_training.py"), str(out), mode]
    return subprocess.run(
        command, env=environment(**SETTINGS), capture_output=True, text=True, timeout=600
    )


def test_training_samples_what_it_trains(tmp_path):
    """Episodes of different lengths; after a step, vLLM's log-probs are those of the weights that
    the step has made.
    """
    found = trained(tmp_path, "true")
    assert found.returncode == 0, found.stderr[-3000:]
    history = json.loads((tmp_path / "state.json").read_text())["log_history"][:2]
    for row in history:
        assert 0 < row["sampling/sampling_logp_difference/mean"] < ROUNDING
        assert row["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=0.1)
    assert history[0]["grad_norm"] > 0
    rollouts = list(read_jsonl(tmp_path / "trajectories.jsonl"))
    assert len(rollouts) == 16
    assert len({len(item.steps) for item in rollouts}) > 1


def test_training_does_not_start_where_weights_do_not_arrive(tmp_path):
    found = trained(tmp_path, "stale")
    assert found.returncode != 0
    assert "vLLM does not follow the training model" in found.stderr
    assert not (tmp_path / "state.json").exists()
