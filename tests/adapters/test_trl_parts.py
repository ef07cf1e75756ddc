"""TRL's own trainer with one reward function for each part."""

import lab
import pytest
from datasets import Dataset

from faithful_search.adapters.trl import trl_reward_parts
from faithful_search.rewards import Correctness, Format, Mix

trl = pytest.importorskip("trl")


class Counted(Correctness):
    """Notes how many rollouts it was asked about."""

    batches: list[int] = []  # noqa: RUF012

    def score_batch(self, trajectories):
        self.batches.append(len(trajectories))
        return super().score_batch(trajectories)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """After one step with an untrained model."""
    from trl.chat_template_utils import qwen3_chat_template

    model = lab.small("qwen2", num_attention_heads=2, num_key_value_heads=2, intermediate_size=32)
    tokenizer = lab.byte_tokenizer(
        ("<|im_start|>", "<|im_end|>", "<|pad|>"),
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template=qwen3_chat_template,
    )
    config = trl.GRPOConfig(
        str(tmp_path_factory.mktemp("trl")),
        max_completion_length=8,
        max_steps=1,
        per_device_train_batch_size=2,
        num_generations=2,
        multi_objective_aggregation="normalize_then_sum",
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
    )
    rows = [{"prompt": [{"role": "user", "content": "Capital of Peru?"}], "answers": ["Lima"]}] * 2
    parts = trl_reward_parts(Mix({"right": Counted(), "format": Format()}, gate=None))
    trainer = trl.GRPOTrainer(
        model, parts, config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_trl_trains_with_one_function_for_each_part(trainer):
    assert trainer.reward_func_names == ["mix/right", "mix/format"]


@pytest.mark.filterwarnings("ignore")
def test_trl_has_the_rollouts_scored_once(trainer):
    assert Counted.batches == [2]
