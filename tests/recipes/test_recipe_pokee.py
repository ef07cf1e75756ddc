"""PokeeResearch's recipe: its flags and the reward they make, and two steps of it."""

from __future__ import annotations

import pokee
import pytest
from paths import RECIPES

from faithful_search.coldstart.tiny import TinyConfig, build_tiny
from faithful_search.errors import ConfigError
from faithful_search.judges import Verdict
from faithful_search.trajectory import Step, Trajectory, read_jsonl


class Nodding:
    name = "nodding"

    def judge_batch(self, pairs):
        return [Verdict(1.0, True, "", self.name) for _ in pairs]


def parse(config: str, *flags: str):
    return pokee.parse(["--config", str(RECIPES / "configs" / f"{config}.yaml"), *flags])


def test_the_embedded_default_is_rloo_without_kl_and_checks_its_answers():
    script, args, _ = parse("pokee_tiny")
    assert script.verify and script.limits(100).verify and script.dialect == "pokee"
    assert (script.advantages, args.beta, args.loss_type) == ("leave_one_out", 0.0, "dr_grpo")
    mix = pokee.build_reward(script)
    assert mix.weights == {"correctness": 1.0, "format": 0.1} and mix.parts["correctness"].metric == "em"


def test_the_papers_setting_asks_a_judge_about_the_answer():
    data = ("--questions", "q.jsonl", "--eval_questions", "e.jsonl", "--judge_model", "m", "--bf16", "false")
    script, args, _ = parse("pokee_qwen2.5-7b", *data, "--use_cpu", "true", "--use_vllm", "false")
    assert (args.learning_rate, args.max_steps, args.num_generations, script.turns) == (3e-6, 140, 8, 100)
    mix = pokee.build_reward(script, Nodding())
    answered = Trajectory((Step("so", answer="a dozen"),), "How many?", "a dozen", dialect="pokee", answers=("12",))
    assert mix.score(answered).value == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--answer_reward", "rouge"), "unknown answer_reward 'rouge'; there are: judge, em, f1"),
        (("--answer_reward", "judge"), "feedback of a model that reads"),
        (("--format_weight", "-1"), "at least 0"),
    ],
)
def test_settings_that_contradict_each_other(flags, said):
    with pytest.raises(ConfigError, match=said):
        pokee.build_reward(parse("pokee_tiny", *flags)[0])


@pytest.mark.slow
def test_two_steps_leave_rollouts_in_which_answers_are_checked(tmp_path):
    tiny = build_tiny(tmp_path / "tiny", TinyConfig(dialect="pokee", start="pou"))
    small = ["--max_steps", "2", "--eval_limit", "2", "--eval_controls", "0", "--num_generations", "2"]
    small += ["--per_device_train_batch_size", "4", "--max_completion_length", "400", "--turns", "4"]
    found = pokee.main(["--model_name_or_path", str(tiny), "--output_dir", str(tmp_path / "out"), *small])
    assert found["steps"] == 2 and found["settings"]["dialect"] == "pokee"
    rollouts = list(read_jsonl(tmp_path / "out" / "trajectories.jsonl"))
    assert len(rollouts) == 8 and all(row.dialect == "pokee" and set(row.meta["scores"]) for row in rollouts)
