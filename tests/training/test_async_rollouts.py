"""Our engine behind TRL's `AsyncGRPOTrainer`: the trainer itself, on a CPU, with the worker's
policy in the place of vLLM's, and what the trainer asks of any worker.

The trainer's attention is a kernel for GPUs; `attention` here is the same in plain torch.
"""

import math
import time
from types import SimpleNamespace

import lab
import numpy as np
import pytest
import tiny_trainer
import torch
from datasets import Dataset
from tiny_trainer import TASKS, Luck, Shy

from faithful_search import pou_mix
from faithful_search.errors import ConfigError, GeneratorError
from faithful_search.inference.base import Sampling
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.rewards import Correctness, Mix, Warmup
from faithful_search.rollout import Engine, Limits
from faithful_search.tools import Toolbox
from faithful_search.training.async_rollouts import EngineRolloutWorker
from faithful_search.trajectory import Evidence

LIMITS = Limits(turns=2, turn_tokens=12, total_tokens=300)


def engine(generator, limits=LIMITS, **sampling):
    toolbox = Toolbox([lab.Shelf(Evidence("It is in Rome.", "Place"))])
    settings = Sampling(**{"logprobs": True, **sampling})
    return Engine(generator, toolbox, "pou", limits, settings)


def worker(reward=None, generator=None, **settings):
    generator = generator or lab.Scripted(tiny_trainer.TURNS, own=tiny_trainer.tokenizer())
    limits = settings.pop("limits", Limits(turns=3, turn_tokens=200, total_tokens=400))
    numbers = {"num_generations": 2, "questions": 2, **settings}
    tasks = numbers.pop("tasks", TASKS)
    return EngineRolloutWorker(engine(generator, limits), tasks, reward or Luck(), **numbers)


def taken(made, number):
    """So many samples, as the trainer takes them."""
    made.start()
    try:
        return [made.rollout_buffer.get(timeout=30) for _ in range(number)]
    finally:
        made.stop()


# The trainer itself


def attention(query, key, value, cu_q, cu_k, *lengths, softmax_scale, causal, window_size):
    """FlashAttention's `flash_attn_varlen_func`, of segments whose queries end where keys end."""
    outputs = []
    for number in range(len(cu_q) - 1):
        q = query[cu_q[number] : cu_q[number + 1]].transpose(0, 1)
        k = key[cu_k[number] : cu_k[number + 1]].transpose(0, 1)
        v = value[cu_k[number] : cu_k[number + 1]].transpose(0, 1)
        seen = torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).bool()
        out = torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=seen, scale=softmax_scale
        )
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


class Copying:
    """Sends the trainer's weights to the worker's policy, as TRL's sends them to vLLM."""

    def __init__(self, policy):
        self.policy, self.sent = policy, 0

    def init_weight_transfer(self):
        pass

    pause = resume = destroy = init_weight_transfer

    def send_weights(self, iterator):
        weights = self.policy.state_dict()
        for name, tensor in iterator:
            weights[name].copy_(tensor)
        self.sent += 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three steps of the real trainer."""
    from trl.experimental import async_grpo
    from trl.experimental.async_grpo import packing

    path = tmp_path_factory.mktemp("async")
    policy, tokenizer = tiny_trainer.model(), tiny_trainer.tokenizer()
    policy.save_pretrained(path / "model")
    tokenizer.save_pretrained(path / "model")
    generator = TransformersGenerator(policy, tokenizer)
    made = EngineRolloutWorker(engine(generator), TASKS, Luck(), num_generations=2, questions=2)
    transfer = Copying(policy)
    args = async_grpo.AsyncGRPOConfig(
        str(path / "out"),
        learning_rate=1e-2,
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        token_budget=0,
        num_generations=2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
    )
    kernel = SimpleNamespace(flash_attn_varlen_func=attention)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_flash_attn", lambda: kernel)
        patch.setattr(torch.cuda, "get_device_name", lambda device: "a CPU")
        trainer = async_grpo.AsyncGRPOTrainer(
            str(path / "model"),
            args=args,
            train_dataset=Dataset.from_list([{"prompt": task.question} for task in TASKS]),
            processing_class=tokenizer,
            rollout_worker=made,
            weight_transfer=transfer,
        )
        trainer.train()
    return SimpleNamespace(trainer=trainer, worker=made, transfer=transfer)


def logged(trained, name):
    return [row[name] for row in trained.trainer.state.log_history if name in row]


def test_the_trainer_trains_on_the_engines_rollouts(trained):
    assert trained.trainer.state.global_step == 3


def test_the_trainer_finds_the_log_probs_of_sampling(trained):
    """Of the first batch, which the first weights sampled."""
    assert logged(trained, "ratio")[0] == pytest.approx(1.0, abs=1e-4)


def test_weights_reach_the_policy_that_samples(trained):
    assert trained.transfer.sent == 4  # one before training, one after each step


def test_the_trainer_logs_reward_and_turns(trained):
    assert len(logged(trained, "reward")) == 3
    assert logged(trained, "rollout/turns_mean")


def test_the_worker_has_ended_with_the_trainer(trained):
    assert trained.worker._thread is None


# What a sample says


def test_a_sample_is_the_engines_tokens_and_nothing_else():
    made = worker()
    [sample] = taken(made, 1)
    [trajectory] = made.engine.run([TASKS[0]])
    tokens = trajectory.tokens
    assert sample.input_ids.tolist() == tokens.prompt_ids + tokens.completion_ids
    assert sample.completion_mask.tolist() == [0] * len(tokens.prompt_ids) + tokens.mask


def test_only_sampled_tokens_have_log_probs():
    [sample] = taken(worker(), 1)
    assert set(sample.old_log_probs[sample.completion_mask == 1]) == {np.float32(-0.5)}
    assert set(sample.old_log_probs[sample.completion_mask == 0]) == {np.float32(0.0)}


def test_groups_are_numbered_over_batches():
    samples = taken(worker(), 8)
    assert [sample.group_id for sample in samples] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_questions_come_in_order_and_again():
    samples = taken(worker(questions=5), 20)
    asked = [sample.prompt[-1]["content"] for sample in samples[::2]]
    assert asked == [task.question for task in [*TASKS, *TASKS[:2]]]


def test_rollouts_are_of_the_version_that_began_them():
    made = worker()
    made.update_model_version(7)
    assert {sample.model_version for sample in taken(made, 4)} == {7}


class Alternating(Luck):
    """Right, wrong, right, …"""

    def score_batch(self, trajectories):
        scores = super().score_batch(trajectories)
        return [type(score)(float(number % 2)) for number, score in enumerate(scores)]


def test_advantages_compare_the_rollouts_of_a_question():
    samples = taken(worker(Alternating()), 4)
    assert [round(sample.advantage, 2) for sample in samples] == [-0.71, 0.71, -0.71, 0.71]


def test_a_rollout_without_a_value_has_no_advantage():
    class Silent(Shy):
        def score(self, trajectory):
            return type(super().score(trajectory))(None, "down", {"abstained": True})

    [sample] = taken(worker(Silent()), 1)
    assert sample.advantage == 0.0
    assert math.isnan(sample.metrics["reward"])


# What the trainer asks of it


class Failing(lab.Scripted):
    def generate(self, *args, **kwargs):
        raise GeneratorError("vLLM is down")


def test_a_failure_reaches_the_trainer():
    made = worker(generator=Failing([], own=tiny_trainer.tokenizer()))
    made.start()
    made._thread.join(30)
    with pytest.raises(GeneratorError, match="the rollouts failed: vLLM is down"):
        made.check_health(300)


def test_silence_is_a_failure():
    made = worker()
    made._alive_at = time.monotonic() - 10
    with pytest.raises(GeneratorError, match="no turn has ended for 10 s"):
        made.check_health(5)


def test_waiting_for_the_trainer_is_no_silence():
    made = worker()
    made.start()
    time.sleep(1)
    assert made.rollout_buffer.full()
    try:
        made.check_health(0.9)
    finally:
        made.stop()


def test_a_full_buffer_does_not_keep_it_from_stopping():
    made = worker()
    made.start()
    thread = made._thread
    time.sleep(0.5)
    made.stop()
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"reward": pou_mix(alpha=0.5)}, "asks the policy itself"),
        (
            {"reward": Mix({"right": Correctness()}, gate=None, warmup=Warmup(("right",), 0, 4))},
            "warm-up",
        ),
        ({"num_generations": 1}, "2 or more generations"),
        ({"tasks": []}, "needs tasks"),
    ],
)
def test_what_cannot_work_is_refused(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        worker(**settings)


def test_an_engine_without_log_probs_is_refused():
    generator = lab.Scripted(tiny_trainer.TURNS)
    with pytest.raises(ConfigError, match="logprobs=True"):
        EngineRolloutWorker(engine(generator, logprobs=False), TASKS, Luck())
