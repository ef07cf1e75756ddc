"""A trainer of a tiny policy, and rewards that need no evidence."""

import copy
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import lab
import msgspec
import torch
from tokenizers import AddedToken
from transformers import TrainerCallback

from faithful_search import dialects
from faithful_search.rewards import Reward, Score
from faithful_search.rollout import Limits
from faithful_search.tasks import Task
from faithful_search.tools import Toolbox
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.grpo import SearchGRPOTrainer
from faithful_search.trajectory import Evidence, Trajectory

TASKS = [Task(f"q{number}", f"Question {number}?", ("Rome",)) for number in range(8)]
CALL = '<think>{}hm {}</think><tool_call>{{"name": "shelf", "arguments": {{"query": "x"}}}}</tool_call>'
TURNS = [
    CALL.format("", "first"),
    "<think><helpful>yes</helpful><ref>E1</ref>so</think><answer>Rome</answer>",
]


@dataclass(frozen=True)
class Luck(Reward):
    """A number in [0, 1) read off the rollout's text: different for different samples, the same for
    the same.
    """

    name: ClassVar[str] = "luck"

    def score(self, trajectory: Trajectory) -> Score:
        return Score(zlib.crc32(trajectory.text.encode()) % 1000 / 1000)


@dataclass(frozen=True)
class Numbered(Reward):
    """The rollout's number in its batch: different for rollouts that are all scripted alike."""

    name: ClassVar[str] = "numbered"

    def score(self, trajectory: Trajectory) -> Score:
        return Score(float(trajectory.id.rpartition("#")[2]))


@dataclass(frozen=True)
class Shy(Luck):
    """Abstains on some rollouts, as a judge that fails does."""

    name: ClassVar[str] = "shy"

    def score(self, trajectory: Trajectory) -> Score:
        score = super().score(trajectory)
        return Score(None, "the judge is down", {"abstained": True}) if score.value < 0.3 else score


@cache
def tokenizer() -> Any:
    """That of `lab`, for which each long line of the prompt is one token: passes are a tenth as
    long.
    """
    own, lines = copy.deepcopy(lab.tokenizer()), dialects.load("pou").system.splitlines()
    lines += [msgspec.json.encode(tool).decode() for tool in _toolbox().schemas]
    own.add_tokens([AddedToken(line, normalized=False) for line in lines if len(line) > 40])
    return own


def model() -> Any:
    return lab.model(vocabulary=len(tokenizer()))


def _toolbox() -> Toolbox:
    return Toolbox([lab.Shelf(Evidence("It is in Rome.", "Place"))])


SETTINGS = {
    "learning_rate": 1e-2,
    "num_generations": 4,
    "use_cpu": True,
    "report_to": "none",
    "activation_checkpointing": False,
    "bf16": False,
    "logging_steps": 1,
    "disable_tqdm": True,
    "seed": 3,
    "beta": 0.0,
    "max_abstained": 1.0,
    "per_device_train_batch_size": 8,
    "max_steps": 4,
    "max_completion_length": 400,
    "save_steps": 2,
    "lr_scheduler_type": "constant",
}
"""Of every trainer of a tiny policy."""


def trainer(
    path: Path,
    reward: Reward | None = None,
    scripted: bool = False,
    kind: type[SearchGRPOTrainer] = SearchGRPOTrainer,
    **settings,
) -> SearchGRPOTrainer:
    names = ("trajectory_file", "callbacks", "dialect", "peft_config", "counterfactual_world")
    own = {name: settings.pop(name) for name in names if name in settings}
    limits = {
        "turns": 3,
        "turn_tokens": 12 if not scripted else 200,
        "total_tokens": 400,
        **settings.pop("limits", {}),
    }
    made = kind(
        model=settings.pop("model", None) or model(),
        processing_class=settings.pop("processing_class", tokenizer()),
        train_dataset=settings.pop("tasks", TASKS),
        reward=reward or Luck(),
        toolbox=settings.pop("toolbox", None) or _toolbox(),
        limits=Limits(**limits),
        args=SearchGRPOConfig(str(path), **SETTINGS | settings),
        **own,
    )
    if scripted:
        made.engine.generator = lab.Scripted(TURNS)
    return made


def batch_of(made: SearchGRPOTrainer) -> dict:
    """A batch of four rollouts of two questions each, as the trainer makes it."""
    made.model.train()
    made.current_gradient_accumulation_steps = 1  # as within a step
    return made._generate_and_score_completions(
        [dict(made.train_dataset[number // 4]) for number in range(8)]
    )


def gradient_by_token(
    made: SearchGRPOTrainer, inputs: dict, *norms: torch.nn.Module
) -> torch.Tensor:
    """The largest gradient of the loss at the last hidden states that the completion's tokens were
    predicted from, and at those behind these other norms.

    Of rollouts that are all scripted alike, so that a column is the same token in each.
    """
    kept: list[torch.Tensor] = []

    def keep(module, args, output):
        output.retain_grad()
        kept.append(output)

    hooks = [norm.register_forward_hook(keep) for norm in (made.model.model.norm, *norms)]
    made.compute_loss(made.model, inputs).backward()
    for hook in hooks:
        hook.remove()
    width = inputs["completion_ids"].shape[1]
    return torch.cat([item.grad for item in kept])[:, -width - 1 : -1].abs().sum(-1).amax(0)


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step
