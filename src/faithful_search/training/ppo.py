"""PPO for search agents: a value of every state instead of a group of rollouts as the baseline.

Beside what `SearchGRPOTrainer` has there are the value, generalised advantage estimation over the tokens that the
policy wrote, and the value's clipped loss.

```
δ_t = r_t + gamma V_{t+1} - V_t          t: the policy's own tokens, or its turns; what tools returned lies in between
A_t = δ_t + gamma lam A_{t+1}            R_t = A_t + V_t
loss = loss_policy(A) + value_weight · mean_t ½ max((V - R)², (clip(V, V_old ± value_clip) - R)²)
```

Schulman et al., arXiv 1506.02438 and 1707.06347; Search-R1 and VERITAS train with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from accelerate.utils import is_peft_model
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from transformers import AutoModel, TrainerCallback

from ..errors import ConfigError
from ..flags import refuse
from ..rewards import Score
from .arguments import PPO
from .grpo import SearchGRPOTrainer
from .update import Read

NAME = "value"  # the policy's submodule that is the value while it is trained
WEIGHTS = "value.pt"


class Value(nn.Module):
    """V of each state: a linear map of the policy's last hidden state, which it leaves as it is, or of its trunk's."""

    def __init__(self, hidden: int, dtype: torch.dtype, trunk: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk = trunk
        self.out = nn.Linear(hidden, 1, dtype=dtype)
        nn.init.zeros_(self.out.weight)  # V = 0 at first: the first advantages are the returns
        nn.init.zeros_(self.out.bias)

    def forward(self, hidden: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        if self.trunk is None:
            return self.out(hidden.detach()).squeeze(-1).float()
        read = {name: given[name] for name in ("input_ids", "attention_mask") if name in given}
        return self.out(self.trunk(**read, use_cache=False).last_hidden_state).squeeze(-1).float()


class SearchPPOTrainer(SearchGRPOTrainer):
    """Trains a search agent by PPO; arguments as for `SearchGRPOTrainer`, of whose settings `advantages` are "ppo". The
    value is a part of the policy while it is trained, so that several processes, sharding and checkpoints treat it as
    they treat the policy, and is gone when `train` returns."""

    estimators: ClassVar[Sequence[str]] = (PPO,)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        policy = self.accelerator.unwrap_model(self.model)
        self._bearer = policy.get_base_model() if is_peft_model(policy) else policy
        trunk = None
        if self.args.value_trunk:
            source = self._bearer.config.name_or_path
            refuse(
                [
                    (
                        not source,
                        "--value_trunk true: a policy that was not loaded by name cannot be read again",
                    )
                ]
            )
            trunk = cast(nn.Module, AutoModel.from_pretrained(source, dtype=self._bearer.dtype))
        self.value = Value(self._bearer.config.hidden_size, self._bearer.dtype, trunk)
        self._bearer.add_module(NAME, self.value)
        self._heard: list[torch.Tensor] | None = None
        self._hook = self._bearer.get_decoder().register_forward_hook(self._hear, with_kwargs=True)
        self.add_callback(ValueWeights(self))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)
        finally:
            self._hook.remove()
            delattr(self._bearer, NAME)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        made = super().create_optimizer(*args, **kwargs)
        own = set(map(id, self.value.parameters()))  # in groups with a learning rate of their own
        for group in list(made.param_groups):  # with and without weight decay
            mine = [part for part in group["params"] if id(part) in own]
            if mine:
                group["params"] = [part for part in group["params"] if id(part) not in own]
                made.add_param_group({**group, "params": mine, "lr": self.args.value_learning_rate})
        return made

    def _hear(self, decoder: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if self._heard is not None:  # a pass of the update; nobody asks for values while sampling
            self._heard.append(self.value(output.last_hidden_state, kwargs))
            # DDP takes what no output depends on for unused
            output.last_hidden_state = output.last_hidden_state + 0.0 * self._heard[-1].sum()

    def _pass(
        self,
        forward: Any,
        model: Any,
        ids: torch.Tensor,
        mask: torch.Tensor,
        kept: int,
        **given: Any,
    ) -> Any:
        """TRL's columns, and the value of the state in front of each token; none of a reference model."""
        self._heard = []
        found = super()._pass(forward, model, ids, mask, kept, **given)
        heard, self._heard = self._heard, None
        return *found, torch.cat(heard)[:, -kept - 1 : -1] if heard else None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if not self._training:
            return output
        numbers, args, scores = output["turn_numbers"], self.args, [row.score for row in self.own]
        with torch.no_grad():
            logps = self._logps(self.model, output, batch_size=args.per_device_train_batch_size)
        values = cast(torch.Tensor, self._passed[3])
        judged = torch.tensor([score.value is not None for score in scores], device=numbers.device)
        own = (numbers > 0) & judged[:, None]
        rewards = token_rewards(scores, numbers, args.step_rewards)
        if self.beta and args.kl_in_reward:
            gap = torch.where(own, logps - output["ref_per_token_logps"], 0.0)
            rewards -= self.beta * gap
            self._note("kl", gap.sum() / own.sum().clamp(min=1))
        valued = own
        if args.gae_over_turns:  # a turn is valued, and has its rewards, where it begins
            first, place = turn_starts(numbers)
            valued, rewards = first & own, torch.zeros_like(rewards).scatter_add(1, place, rewards)
        advantages = gae(rewards, values, valued, args.gamma, args.lam)
        returns = advantages + values
        left, whole = _variance(returns - values, valued), _variance(returns, valued)
        self._note("value/explained", 1 - left / whole.clamp(min=1e-8))
        if args.gae_over_turns:
            advantages = advantages.gather(1, place)
        if args.whiten:  # mean 0 and deviation 1 over the tokens of all processes
            chosen = torch.where(own, advantages, 0.0)
            sums = torch.stack([chosen.sum(), chosen.square().sum(), own.sum().to(chosen)])
            total, squares, tokens = self.accelerator.reduce(sums, reduction="sum").unbind()
            mean = total / tokens.clamp(min=1)
            deviation = (squares / tokens.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
            advantages = (advantages - mean) / (deviation + 1e-8)
        # The value's loss is divided by what an average batch holds, so that each token counts alike in any of them.
        many = self.accelerator.reduce(valued.sum().float(), reduction="sum").clamp(min=1)
        share = many / self.accelerator.num_processes / cast(int, args.steps_per_generation)
        kept = {
            "advantages": advantages * own,
            "returns": returns,
            "old_values": values,
            "valued": valued,
        }
        return output | kept | {"valued_a_batch": share}

    def compute_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        beta = (
            self.beta
        )  # which made the reference's columns; the loss must not add the KL that the rewards have
        self.beta = 0.0 if self.args.kl_in_reward else beta
        try:
            return super().compute_loss(*args, **kwargs)
        finally:
            self.beta = beta

    def _further(
        self, model: Any, inputs: dict[str, Any], passed: Sequence[Read]
    ) -> torch.Tensor | float:
        values, old, returns = (
            cast(torch.Tensor, passed[3]),
            inputs["old_values"],
            inputs["returns"],
        )
        clipped = old + (values - old).clamp(-self.args.value_clip, self.args.value_clip)
        errors = torch.maximum((values - returns).square(), (clipped - returns).square())
        loss = 0.5 * torch.where(inputs["valued"], errors, 0.0).sum() / inputs["valued_a_batch"]
        self._note("value/loss", loss)
        return super()._further(model, inputs, passed) + self.args.value_weight * loss


@dataclass(eq=False)
class ValueWeights(TrainerCallback):
    """Keeps the value in checkpoints that hold an adapter only; in all others the policy has it."""

    trainer: SearchPPOTrainer

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if file := self._file(args, state):
            weights = get_model_state_dict(
                self.trainer.value, options=StateDictOptions(full_state_dict=True)
            )
            if state.is_world_process_zero:
                torch.save(weights, file)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step and (file := self._file(args, state)):
            if not file.exists():
                raise ConfigError(f"{file} is missing: this checkpoint was not made by PPO")
            weights = torch.load(file, map_location="cpu", weights_only=True)
            set_model_state_dict(
                self.trainer.value, weights, options=StateDictOptions(full_state_dict=True)
            )

    def _file(self, args: Any, state: Any) -> Path | None:
        policy = self.trainer.accelerator.unwrap_model(self.trainer.model)
        if (
            not is_peft_model(policy) or self.trainer.is_deepspeed_enabled
        ):  # DeepSpeed keeps whatever is trained
            return None
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / WEIGHTS


def gae(
    rewards: torch.Tensor, values: torch.Tensor, own: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    """Generalised advantages, of shape `(rows, columns)`; those of columns that are not `own` are 0 and passed over.

    Example:
        >>> rewards, values = torch.tensor([[0.0, 9.0, 1.0]]), torch.tensor([[0.5, 9.0, 0.0]])
        >>> gae(rewards, values, torch.tensor([[True, False, True]]), 1.0, 0.5).tolist()
        [[0.0, 0.0, 1.0]]
    """
    found = torch.zeros_like(rewards)
    carried, following = rewards.new_zeros(len(rewards)), rewards.new_zeros(len(rewards))
    for column in reversed(range(rewards.shape[1])):
        here, value = own[:, column], values[:, column]
        carried = torch.where(
            here, rewards[:, column] + gamma * (following + lam * carried) - value, carried
        )
        following = torch.where(here, value, following)
        found[:, column] = torch.where(here, carried, 0.0)
    return found


def token_rewards(scores: Iterable[Score], numbers: torch.Tensor, by_step: bool) -> torch.Tensor:
    """The score (0 where there is none) at each rollout's last own token, by its `turn_numbers`; with `by_step` what a
    step earned at the last own token of its turn."""
    rewards = torch.zeros(numbers.shape, device=numbers.device)
    for row, own, score in zip(rewards, numbers, scores, strict=True):
        earned, outcome = score.credit if by_step else ((), score.value or 0.0)
        last = {int(turn): place for place, turn in enumerate(own.tolist()) if turn}
        for turn, place in last.items():
            row[place] += earned[turn - 1] if earned else 0.0
        if last:
            row[max(last.values())] += outcome
    return rewards


def turn_starts(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens begin a turn, and for each token where its turn begins."""
    before = nn.functional.pad(numbers, (1, 0))[:, :-1].cummax(dim=1).values
    first = numbers > before
    places = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
    return first, torch.where(first, places, 0).cummax(dim=1).values


def _variance(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    found = values[chosen]
    return found.var(correction=0) if len(found) else values.new_zeros(())
