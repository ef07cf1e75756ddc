"""The trainer: exact gradients, resumed runs that equal whole ones, estimators that equal TRL's,
clear refusals.
"""

import inspect
import json
import logging
import math
import os
import re
import subprocess
import sys
import warnings
import zlib
from importlib.util import find_spec
from types import SimpleNamespace

import lab
import pytest
import tiny_trainer
import torch
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from tiny_trainer import TASKS, Luck, Numbered, Shy, StopAt, batch_of, gradient_by_token, trainer
from torch.utils.data import BatchSampler
from transformers import modeling_utils
from trl import GRPOConfig, RLOOConfig, RLOOTrainer
from trl.trainer import grpo_trainer
from trl.trainer.utils import RepeatSampler

from faithful_search.errors import ConfigError, DataError, TemplateError
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.stats import Estimate
from faithful_search.rewards import (
    Adaptive,
    AnswerLikelihoodGap,
    Citation,
    Format,
    Mix,
    Score,
    Shuffled,
    Warmup,
)
from faithful_search.training.advantages import (
    ESTIMATORS,
    TURN_ESTIMATORS,
    group_relative,
    leave_one_out,
)
from faithful_search.training.callbacks import (
    COMPARED_STEPS,
    JUDGED_STEPS,
    LIKELIHOOD,
    MOVED,
    QuestionOrder,
    StepLine,
    Watching,
    collapse,
    columns_of,
)
from faithful_search.training.grpo import SearchGRPOTrainer
from faithful_search.training.ppo import SearchPPOTrainer
from faithful_search.training.quiet import NOT_FOR_USERS, hush
from faithful_search.training.rollout_batch import ScoredRollout
from faithful_search.training.runs import never_valid
from faithful_search.training.step_metrics import reward_metrics, tool_metrics
from faithful_search.trajectory import ToolCall, Trajectory, read_jsonl


@pytest.mark.parametrize("how", [*ESTIMATORS, *TURN_ESTIMATORS, "llds"])
def test_environment_tokens_have_no_gradient_and_sampled_ones_do(tmp_path, how):
    """Exactly zero, at every position whose target the environment wrote."""
    given = {"llds": 1.0} if how == "llds" else {"advantages": how}
    made = trainer(tmp_path, Numbered(), scripted=True, **given)
    inputs = batch_of(made)
    if how == "llds":  # the batch before, all of which was more likely
        made.compute_loss(made.model, inputs | {"advantages": torch.zeros(8)})
        made._waiting_for_update[0]["old_per_token_logps"] += 1.0
        inputs["advantages"] = torch.zeros(8)
    gradient, trained = gradient_by_token(made, inputs), inputs["turn_numbers"][0] > 0
    assert torch.equal(trained, (inputs["tool_mask"] * inputs["completion_mask"])[0].bool())
    assert 0 < trained.sum() < len(trained)
    assert (gradient[~trained] == 0).all()
    assert (gradient[trained] > 0).all()


def answer_mix(**more):
    return Mix(parts={"answer": Adaptive(Shy(), Luck(), kappa=3.0)}, gate=None, **more)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    """α, the curriculum, the reward's state, the questions asked, every rollout and the weights; a
    pass over the questions is two steps. Whether the trainer restores its callbacks or not.
    """

    def run(name: str, **more):
        log, mix = (
            tmp_path / name / "trajectories.jsonl",
            answer_mix(warmup=Warmup(("answer",), 0, 4)),
        )
        return trainer(
            tmp_path / name, mix, trajectory_file=log, tasks=TASKS[:4], save_steps=1, **more
        ), log

    whole, log = run("whole")
    whole.train()
    rows = list(read_jsonl(log))
    assert len(rows) == 32
    assert len({row.meta["alpha"] for row in rows}) == 4
    assert whole.reward_state.step == 4
    assert 0 < whole.reward_state.ema < 1
    run("parts", callbacks=[StopAt(3)])[0].train()
    for step, rebuild in ((3, True), (2, False)):
        resumed, log = run("parts", restore_callback_states_from_checkpoint=rebuild)
        resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / f"checkpoint-{step}"))
        assert resumed.reward_state == whole.reward_state
        assert list(read_jsonl(log)) == rows
        for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
            assert torch.equal(one, other)


def test_processes_resume_in_the_order_of_their_pass():
    whole, resumed = (RepeatSampler(range(9), mini_repeat_count=2, seed=3) for _ in range(2))
    batches = BatchSamplerShard(
        BatchSampler(resumed, 3, drop_last=False), num_processes=2, process_index=1
    )
    loader = SimpleNamespace(batch_sampler=batches)
    QuestionOrder().on_train_begin(None, SimpleNamespace(epoch=2.5), None, train_dataloader=loader)
    assert [list(whole) for _ in range(3)][2] == list(resumed)


def test_rollouts_are_logged_with_scores_and_reasons(tmp_path):
    made = trainer(
        tmp_path, answer_mix(), scripted=True, trajectory_file=tmp_path / "t.jsonl", max_steps=1
    )
    made.toolbox.run_batch(
        [ToolCall("shelf", {})] * 5, [made.toolbox.session()] * 5
    )  # before training
    made.train()
    rows = list(read_jsonl(tmp_path / "t.jsonl"))
    assert len({row.id for row in rows}) == len(rows) == 8
    for row in rows:
        assert row.answers == ("Rome",)
        assert row.question
        assert row.tokens is None
        assert row.meta["scores"] == {
            "shy": Shy().score(row).value,
            "luck": Luck().score(row).value,
        }
        assert row.meta["reasons"] == (
            {} if row.meta["scores"]["shy"] else {"shy": "the judge is down"}
        )
    logged = json.loads((tmp_path / "checkpoint-1" / "trainer_state.json").read_text())[
        "log_history"
    ][0]
    for key in (
        "parts/luck",
        "parts/alpha",
        "parts/outcome_ema",
        "tools/ratio/shelf",
        "tools/calls",
        "ended/answered",
    ):
        assert key in logged
    assert logged["tools/calls"] == logged["tools/shelf/calls"] == 1.0
    assert (logged["tools/shelf/hits"], logged["tools/shelf/errors"], logged["tools/errors"]) == (
        0,
        0,
        0,
    )
    assert 0 < logged["tools/shelf/p50"] <= logged["tools/shelf/p95"] < 1
    assert logged["parts/outcome_ema"] == pytest.approx(logged["parts/luck"])  # the first batch's
    box = made.toolbox
    before = box.stats()
    box.run_batch([ToolCall("shelf", own) for own in ({"query": "x"}, {}) * 2], [box.session()] * 4)
    for used, errors in (
        (box.stats()["shelf"] - before["shelf"], 0.5),
        (before["shelf"] - before["shelf"], None),
    ):
        found = tool_metrics({"shelf": used}, 2)
        assert found["tools/errors"] == found["tools/shelf/errors"] == errors


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_gets_rollouts_with_their_scores(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name, module in list(
        sys.modules.items()
    ):  # TRL has imported it, which read the folder then
        if name.partition(".")[0] == "trackio" and hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    log = tmp_path / "all.jsonl"
    trainer(
        tmp_path, Format(), max_steps=2, report_to="trackio", project="p", trajectory_file=log
    ).train()
    asked = [sys.executable, "-m", "trackio.cli", "list", "traces", "--project", "p", "--json"]
    listed = subprocess.run(
        asked, env=dict(os.environ), check=True, capture_output=True, text=True
    ).stdout
    traces = json.loads(listed)["traces"]
    written = {(rollout.meta["step"], rollout.id): rollout for rollout in read_jsonl(log)}
    logged = {(trace["metadata"]["step"], trace["metadata"]["id"]): trace for trace in traces}
    assert len(logged) == 8, "four rollouts of each of two steps"
    assert logged.keys() <= written.keys(), "four rollouts of each of two steps"
    for key, trace in logged.items():
        rollout, told = written[key], trace["metadata"]
        assert trace["messages"][0] == {"role": "user", "content": rollout.question}
        assert trace["step"] == key[0]
        assert (told["reward"], told["scores"]) == (rollout.meta["reward"], rollout.meta["scores"])
        assert told["step_scores"]["format"] == rollout.meta["steps"]["format"] != []


def test_the_warning_that_is_left_out_is_still_trls():
    assert "All reward functions returned None" in inspect.getsource(grpo_trainer)


def test_the_first_step_explains_its_columns_and_no_other():
    written: list[str] = []
    line = StepLine()
    state = SimpleNamespace(is_world_process_zero=True, global_step=1, max_steps=2)
    line.training_bar, line.step_began = SimpleNamespace(write=written.append), 0.0
    line.has_legend = False
    for _ in range(2):
        line.on_log(None, state, None, {"reward": 0.5, "parts/alpha": 0.25})
    legends = [text for text in written if text.startswith("columns: ")]
    assert legends == [
        "columns: reward (mean of the rollouts), α (weight of ans); recipes/README.md#the-step-line"
    ]
    assert written[0] == legends[0]


@pytest.mark.parametrize(
    ("text", "source"),
    [*((text, grpo_trainer) for text in NOT_FOR_USERS[:2]), (NOT_FOR_USERS[2], modeling_utils)],
)
def test_warnings_that_are_left_out_are_still_theirs(text, source):
    assert text in re.sub(r'"\s+f?"', "", inspect.getsource(source))


def test_what_users_can_act_on_is_still_shown():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        hush()
        warnings.warn(f"{NOT_FOR_USERS[0]} This API may change", UserWarning, stacklevel=1)
        warnings.warn(f"{NOT_FOR_USERS[1]} and will be removed", FutureWarning, stacklevel=1)
        warnings.warn("your learning rate is huge", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["your learning rate is huge"]


@pytest.mark.parametrize(("value", "told"), [(0.0, True), (0.01, False), (None, False)])
def test_an_evaluation_without_a_valid_format_says_what_to_do(value, told):
    rows = {"valid_format": Estimate(value, None, None, 5, None)}
    warning = never_valid(Evaluation(rows, [], {}, {}), "pou")
    assert ("recipes/sft.py" in warning) is told


def test_a_step_is_one_line_that_says_what_went_wrong():
    written: list[str] = []
    line, state = (
        StepLine(),
        SimpleNamespace(is_world_process_zero=True, global_step=3, max_steps=10),
    )
    line.training_bar, line.step_began = SimpleNamespace(write=written.append), 0.0
    line.has_legend = True
    wrong = {"tools/errors": 0.25, "parts/citation/abstained": 0.5, "judge/abstained": 0.25}
    for logs in (
        {"reward": 0.5, "tools/calls": 1.25, "tools/errors": 0.0},
        {"reward": 0.5, **wrong},
    ):
        line.on_log(None, state, None, logs)
    assert written[0].startswith("step    3/10  reward 0.500  calls 1.250  ")
    assert "errors" not in written[0]
    assert written[1].startswith(
        "step    3/10  reward 0.500  cite abstained 50%  tool errors 25%  no reward 25%  "
    )


def test_columns_follow_the_mix_between_the_reward_and_what_training_measures():
    logs = {"loss": 1.0, "parts/citation": 1.0, "parts/format": 1.0, "reward": 1.0}
    heads = [column.head for column in columns_of(logs).values()]
    assert heads == ["reward", "cite", "format", "loss"]


@pytest.mark.parametrize(
    ("reward", "how", "expected"),
    [
        (Luck(), "trl", group_relative),
        (Shy(), "trl", group_relative),
        (Luck(), "leave_one_out", leave_one_out),
    ],
)
def test_estimators_equal_trls_and_are_trained_with(tmp_path, reward, how, expected):
    """The contract with TRL: rows in order, rewards as given, abstentions out of the baseline."""
    made = trainer(tmp_path, reward, advantages=how)
    own = batch_of(made)["advantages"]
    values = torch.tensor(
        [
            float("nan") if row.score.value is None else row.score.value
            for row in made.rollouts.local
        ]
    )
    assert values.nan_to_num().std() > 0
    torch.testing.assert_close(expected(values, 4), own, atol=1e-5, rtol=1e-4)


def test_leave_one_out_by_hand():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0, float("nan"), 4.0, 0.0])
    assert leave_one_out(rewards, 4).tolist() == pytest.approx(
        [1.0, -1 / 3, -1 / 3, -1 / 3, 0.0, 0.0, 3.0, -3.0]
    )


def test_leave_one_out_is_trls_rloo_on_single_turns(tmp_path):
    """Advantages equal RLOOTrainer's; so does the gradient, but for the constant that `dr_grpo`
    divides by.
    """
    rewarded: list[float] = []

    def luck(completions, **columns):
        rewarded[:] = [zlib.crc32(text.encode()) % 1000 / 1000 for text in completions]
        return rewarded

    length = 12
    settings = {
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": length,
        "beta": 0.0,
    }
    plain = {"use_cpu": True, "bf16": False, "report_to": "none", "activation_checkpointing": False}
    rloo = RLOOTrainer(
        model=tiny_trainer.model(),
        reward_funcs=[luck],
        args=RLOOConfig(str(tmp_path / "rloo"), **settings, **plain),
        train_dataset=Dataset.from_list([{"prompt": task.question} for task in TASKS]),
        processing_class=tiny_trainer.tokenizer(),
    )
    rloo.model.train()
    batch = rloo._generate_and_score_completions(
        [{"prompt": f"Question {row // 4}?"} for row in range(8)]
    )
    advantages = leave_one_out(torch.tensor(rewarded), 4)
    assert len(set(rewarded)) > 4
    assert advantages.abs().max() > 0.1
    torch.testing.assert_close(advantages, batch["advantages"])
    rloo.compute_loss(rloo.model, batch).backward()

    ours = trainer(tmp_path / "ours", advantages="leave_one_out", loss_type="dr_grpo", **settings)
    ours.model.load_state_dict(rloo.model.state_dict())
    ours.model.train()
    ours.current_gradient_accumulation_steps = 1  # as within a step
    single = {
        name: batch[name]
        for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    }
    told = {"turn_numbers": batch["completion_mask"], "right": torch.zeros(8, dtype=torch.bool)}
    ours.compute_loss(ours.model, {**single, **told, "advantages": advantages}).backward()
    pairs = zip(ours.model.parameters(), rloo.model.parameters(), strict=True)
    gradients = [(own.grad, trls.grad) for own, trls in pairs]
    assert any(trls.abs().max() > 1e-4 for _, trls in gradients)
    for own, trls in gradients:
        torch.testing.assert_close(own * length, trls, atol=1e-5, rtol=1e-3)


PPO = {"kind": SearchPPOTrainer, "advantages": "ppo"}
ONE_RESPONSE, GAIN = {"kept_responses": 1}, AnswerLikelihoodGap()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"generation_kwargs": {"num_beams": 2}}, "generation_kwargs"),
        ({"steps_per_generation": 2, "save_steps": 1}, "multiple of 2"),
        ({"save_steps": 0.5}, "a whole number of steps, 1 or more, not 0.5"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"advantages": "best"}, "leave_one_out"),
        (
            {"advantages": "turns", "scale_rewards": "none"},
            "--scale_rewards none is for --advantages trl",
        ),
        (
            {"advantages": "ppo"},
            "SearchGRPOTrainer takes a SearchGRPOConfig whose advantages are one of trl",
        ),
        (
            PPO | {"advantages": "turns"},
            "SearchPPOTrainer takes a SearchGRPOConfig whose advantages are one of ppo",
        ),
        (PPO | {"uniform_groups": "drop"}, "own advantages"),
        (PPO | {"value_trunk": True}, "not loaded by name"),
        (PPO | {"lam": 1.5}, "lam must be"),
        (PPO | {"value_clip": -1.0}, "value_clip must be 0 or more, not -1"),
        ({"counterfactual": 0.3}, "0.3 of num_generations=4 rollouts is 1.2"),
        ({"counterfactual": 1.5}, r"counterfactual must be in \[0, 1\]"),
        (
            {"counterfactual_groups": "mixed"},
            "unknown counterfactual_groups 'mixed'; there are: paired, own",
        ),
        ({"llds": -1.0}, "llds must be 0 or more"),
        ({"verdict_weight": 1.0}, "EvidenceSensitivity"),
        ({"uniform_groups": "some"}, "uniform_groups 'some'"),
        ({"uniform_groups": "drop"}, "whether an answer is right"),
        ({"reward": Citation(), "dialect": "search_r1"}, "does not cover dialect 'search_r1'"),
        ({"rollouts": "vllm"}, "unknown rollouts 'vllm'; there are: engine, trl"),
        ({"max_tool_calling_iterations": 2}, "give --turns"),
        ({"limits": ONE_RESPONSE}, "writes each tool response as a message"),
        ({"reward": GAIN, "dialect": "search_r1", "limits": ONE_RESPONSE}, "likelihood"),
        ({"reward": Shuffled(GAIN), "dialect": "search_r1", "limits": ONE_RESPONSE}, "likelihood"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, settings, named):
    with pytest.raises(ConfigError, match=named):
        trainer(tmp_path, **settings)


def test_what_cannot_be_trained_is_refused(
    tmp_path,
):
    for rows, said in (
        ([{"question": "Where?"}], r"no column answers.*it has: question"),
        ([], "no rows"),
    ):
        with pytest.raises(DataError, match=said):
            trainer(tmp_path, tasks=rows)
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    bare = type(lab.tokenizer())(tokenizer_object=lab.tokenizer()._tokenizer, **ends)
    with pytest.raises(TemplateError, match="chat template"):
        trainer(tmp_path, processing_class=bare)
    plain = GRPOConfig(str(tmp_path), use_cpu=True, report_to="none", bf16=False)
    with pytest.raises(ConfigError, match="takes a SearchGRPOConfig"):
        SearchGRPOTrainer(lab.model(), plain, TASKS, toolbox=None, reward=Luck())


def said(rows, caplog, rollouts=8):
    """What is said of a log, a row a step with so many rollouts; each row is told as it comes."""
    watching, log = Watching(), []
    args = SimpleNamespace(rollouts_after=lambda step: rollouts * step)
    with caplog.at_level(logging.WARNING):
        for row in rows:
            log.append({"loss": 0.1, "reward": float(len(log)), **row})
            state = SimpleNamespace(
                is_world_process_zero=True, global_step=len(log), log_history=log
            )
            watching.on_log(args, state, None, log[-1])
    return [record.getMessage() for record in caplog.records]


def test_a_run_without_a_valid_rollout_is_told_why(tmp_path, caplog):
    """And its checkpoints leave no card that says nothing."""
    with caplog.at_level(logging.WARNING, "faithful_search"):
        trainer(tmp_path, Mix(parts={"luck": Luck()})).train()
    [line] = [
        record.getMessage() for record in caplog.records if "valid format" in record.getMessage()
    ]
    assert line.startswith("step 4: 0 of 32 rollouts have a valid format, so every reward is -1")
    assert "cold-started" in line
    assert "recipes/sft.py" in line
    assert (tmp_path / "checkpoint-2").is_dir()
    assert not (tmp_path / "README.md").exists()


def test_an_update_that_ruins_right_answers_is_told_by_its_size():
    assert not collapse([{MOVED: -0.03}], 0)
    assert collapse([{MOVED: -0.031}], 0)


def self_scored(pairs):
    """What a step logs whose rollouts have these scores, by the policy and by the rule."""
    parts = [{"self_rubric": Score(own), "world_rubric": Score(rule)} for own, rule in pairs]
    mix = Mix(parts={"self_rubric": Luck(), "world_rubric": Luck()}, gate=None)
    batch = [ScoredRollout(Trajectory(), 1, Score(0.0), row) for row in parts]
    return {
        name: value
        for name, value in reward_metrics(mix, mix.state0, batch, 1).items()
        if "/" not in name
    }


def test_a_step_is_compared_over_the_rollouts_that_both_scored():
    row = self_scored([(1.0, 0.4), (0.2, 0.2), (None, 1.0), (1.0, None)])
    expected = {
        "self_score": 0.6,
        "rule_score": 0.3,
        "self_gap": 0.3,
        "self_rmse": (0.36 / 2) ** 0.5,
    }
    assert row == pytest.approx(expected)
    assert self_scored([(None, 1.0)]) == {}


def judged(*steps):
    return [self_scored(pairs) for pairs in steps]


def falling(*steps):
    """How likely right answers are and how long the gradient is, each for `COMPARED_STEPS`
    steps.
    """
    pairs = [pair for pair in steps for _ in range(COMPARED_STEPS)]
    return [{"grad_norm": norm} | ({LIKELIHOOD: own} if own else {}) for own, norm in pairs]


EQUAL = {"reward": -1.0, "reward_std": 0.0, "behaviour/valid_format": 0.0}
RUINED = [{MOVED: value} for value in (0.001, 0.002, -0.016, -0.207)]
"""As the bundled policy at thirty times its learning rate: right answers are still there when it
warns.
"""
GAP = "step 10: the policy's own scores have moved"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([EQUAL] * 3 + [EQUAL | {"reward": 0.5}], None),
        ([EQUAL] * 3 + [EQUAL | {"reward_std": 0.1}], None),
        ([EQUAL | {"reward": None}] * 5, None),
        (
            [EQUAL | {"behaviour/valid_format": 0.1}, *[EQUAL] * 3],
            "step 4: all 32 rollouts so far have the reward -1",
        ),
        (
            falling((-0.1, 1), (-0.2, 2)),
            f"step {2 * COMPARED_STEPS}: right answers become less likely.*--llds 0.1",
        ),
        # a step without right answers says nothing
        (
            falling((-0.1, 1), (None, 9), (-0.2, 2), (-0.3, 2)),
            f"step {3 * COMPARED_STEPS}: right answers become less likely",
        ),
        (falling((-0.1, 1), (-0.2, 1)), None),  # gradients are as they were
        (falling((-0.1, 1), (-0.1, 2)), None),
        ([*RUINED, {}], "step 4: one update took 0.207 from.*--llds 0.1"),
        (judged(*[[(0.6, 0.5)]] * 8, *[[(0.9, 0.5)]] * 6), f"{GAP} 0.12 above the rule's"),
        (judged(*[[(0.6, 0.5)]] * 5, *[[(0.2, 0.5)]] * 5), f"{GAP} 0.40 below the rule's"),
        (
            judged(*[[(1.0, 0.0), (1.0, 1.0)]] * 6),
            f"step {JUDGED_STEPS}: the policy's own scores are wrong by 0.71",
        ),
        (judged(*[[(0.7, 0.4)]] * 10), None),
        (judged([(0.6, 0.5)], [(0.9, 0.5)]), None),  # too little to say anything
    ],
)
def test_what_goes_wrong_is_said_once(rows, told, caplog):
    found = said(rows, caplog)
    assert len(found) == bool(told)
    assert all(re.match(told, line) for line in found)


# What is logged for it


def test_the_likelihood_of_right_answers_is_logged(tmp_path):
    """By hand: the weights before and after one step, on the rows that were kept."""
    made = trainer(tmp_path, Numbered(), scripted=True, max_steps=1, learning_rate=0.1)
    kept, watch = {}, made._watch
    made._watch = lambda batch: (watch(batch), kept.update(made._watched))
    made.train()
    assert len(kept["chosen"]) == 8
    assert kept["chosen"].any()
    with torch.no_grad():
        gained = (made._read(made.model, kept).logps - kept["logps"])[kept["chosen"]]
    [moved] = [line for line in made.state.log_history if MOVED in line]
    assert moved[MOVED] == pytest.approx(float(gained.mean()), abs=1e-5) != 0.0
    line = made.state.log_history[0]
    assert line[LIKELIHOOD] == pytest.approx(
        -math.log(len(made.processing_class)), abs=0.5
    )  # an untrained model's
    assert (line["groups/one_outcome"], line["behaviour/valid_format"]) == (1.0, 1.0)


def test_questions_of_one_outcome_are_counted():
    mix = Mix(parts={"luck": Luck()}, gate=None)
    rows = [
        Trajectory(answer="Rome", answers=("Rome" if right else "Oslo",))
        for right in (1, 1, 1, 0, 0, 0)
    ]
    batch = [ScoredRollout(row, 1, Score(0.0), {"luck": Score(0.0)}) for row in rows]
    assert reward_metrics(mix, mix.state0, batch, 2)["groups/one_outcome"] == pytest.approx(2 / 3)
