"""PPO for search agents: the baseline is a learnt value of each state instead of a group's mean.

`SearchPPOTrainer` adds three things to `SearchGRPOTrainer`: the value, generalised advantage
estimation over the tokens that the policy wrote, and the clipped loss of the value.

```
δ_t = r_t + gamma V_{t+1} - V_t          t: the policy's own tokens, or its turns, without tools' tokens
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
from ..rewards import Score
from .arguments import PPO
from .grpo import SearchGRPOTrainer
from .rollout_batch import RolloutBatch
from .update import TokenPass

NAME = "value"
"""The name under which the value is a submodule of the policy during training."""
WEIGHTS = "value.pt"
VALUES = 3
"""The index of the values in what a pass returns. TRL's log-probabilities, entropies and losses
come before.
"""


class Value(nn.Module):
    """V of each state: a linear map of the last hidden state.

    Without a `trunk`, it reads the policy's hidden states and gives them no gradient. A trunk is a
    copy of the policy's body, whose hidden states it reads instead.
    """

    def __init__(self, hidden: int, dtype: torch.dtype, trunk: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk = trunk
        self.out = nn.Linear(hidden, 1, dtype=dtype)
        # V = 0 at first, so that the first advantages are the returns
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, hidden: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
        if self.trunk is None:
            states = hidden.detach()
        else:
            names = ("input_ids", "attention_mask")
            tokens = {name: inputs[name] for name in names if name in inputs}
            states = self.trunk(**tokens, use_cache=False).last_hidden_state
        return self.out(states).squeeze(-1).float()


class SearchPPOTrainer(SearchGRPOTrainer):
    """Trains a search agent by PPO.

    The arguments are those of `SearchGRPOTrainer`. The setting `advantages` must be "ppo". During
    training the value is a submodule of the policy, so that it is sharded, saved and synchronised
    as the policy is. `train` removes it at the end.
    """

    estimators: ClassVar[Sequence[str]] = (PPO,)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        policy = self.accelerator.unwrap_model(self.model)
        self._base_model = policy.get_base_model() if is_peft_model(policy) else policy
        config = self._base_model.config
        trunk = None
        if self.args.value_trunk:
            source = config.name_or_path
            if not source:
                raise ConfigError(
                    "--value_trunk true: a policy that was not loaded by name cannot be read again"
                )
            trunk = cast(nn.Module, AutoModel.from_pretrained(source, dtype=self._base_model.dtype))
        self.value = Value(config.hidden_size, self._base_model.dtype, trunk)
        self._base_model.add_module(NAME, self.value)
        # The values that the running pass of the update has recorded; `None` outside of one
        self._values: list[torch.Tensor] | None = None
        self._hook = self._base_model.get_decoder().register_forward_hook(
            self._record_values, with_kwargs=True
        )
        self.add_callback(ValueWeights(self))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)
        finally:
            self._hook.remove()
            delattr(self._base_model, NAME)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super().create_optimizer(*args, **kwargs)
        value_ids = {id(parameter) for parameter in self.value.parameters()}
        # The value's parameters move into groups of their own, for their learning rate. There are
        # several groups, which differ in weight decay.
        for group in list(optimizer.param_groups):
            of_value = [parameter for parameter in group["params"] if id(parameter) in value_ids]
            if not of_value:
                continue
            group["params"] = [
                parameter for parameter in group["params"] if id(parameter) not in value_ids
            ]
            optimizer.add_param_group(
                {**group, "params": of_value, "lr": self.args.value_learning_rate}
            )
        return optimizer

    def _record_values(self, decoder: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Hook of the decoder: adds the values to `_values` during a pass of the update."""
        if self._values is None:  # sampling and probes need no values
            return
        values = self.value(output.last_hidden_state, kwargs)
        self._values.append(values)
        # DDP treats parameters as unused if no output depends on them
        output.last_hidden_state = output.last_hidden_state + 0.0 * values.sum()

    def _forward(
        self,
        token_pass: TokenPass,
        trl_forward: Any,
        model: Any,
        ids: torch.Tensor,
        mask: torch.Tensor,
        logits_to_keep: int,
        written: torch.Tensor,
        **kwargs: Any,
    ) -> Any:
        """TRL's columns, and as a further one the value of the state before each token; `None` for
        a reference model, which has none.
        """
        self._values = []
        columns = super()._forward(
            token_pass, trl_forward, model, ids, mask, logits_to_keep, written, **kwargs
        )
        recorded = self._values
        self._values = None
        values: torch.Tensor | None = None
        if recorded:
            # The state before a token is that at the column before it
            values = torch.cat(recorded)[:, -logits_to_keep - 1 : -1]
        return *columns, values

    def _estimated(self, rollouts: RolloutBatch, output: dict[str, Any]) -> dict[str, Any]:
        """PPO's columns of the batch; none in an evaluation.

        They are `advantages`, `returns`, `old_values`, the mask `valued` of the tokens that have a
        value, and `valued_a_batch`, their number in an average batch.
        """
        if not self._training:
            return {}
        args = self.args
        numbers = output["turn_numbers"]
        scores = [rollout.score for rollout in rollouts.local]
        with torch.no_grad():
            token_pass = self._read(self.model, output, batch_size=args.per_device_train_batch_size)
        values = cast(torch.Tensor, token_pass.values[VALUES])
        is_judged = torch.tensor(
            [score.value is not None for score in scores], device=numbers.device
        )
        trained = (numbers > 0) & is_judged[:, None]
        rewards = token_rewards(scores, numbers, args.step_rewards)
        if self.beta and args.kl_in_reward:
            gap = torch.where(trained, token_pass.logps - output["ref_per_token_logps"], 0.0)
            rewards -= self.beta * gap
            self._log_mean("kl", gap.sum() / trained.sum().clamp(min=1))
        valued = trained
        if args.gae_over_turns:  # only the first token of a turn has a value, and the turn's reward
            is_first, first_place = turn_starts(numbers)
            valued = is_first & trained
            rewards = torch.zeros_like(rewards).scatter_add(1, first_place, rewards)
        advantages = gae(rewards, values, valued, args.gamma, args.lam)
        returns = advantages + values
        variance = _variance(returns, valued).clamp(min=1e-8)
        unexplained = _variance(returns - values, valued) / variance
        self._log_mean("value/explained", 1 - unexplained)
        if args.gae_over_turns:  # all tokens of a turn have the advantage of its first
            advantages = advantages.gather(1, first_place)
        if args.whiten:
            advantages = self._whitened(advantages, trained)
        # The value's loss is divided by the number of tokens in an average batch, so that each
        # token counts alike whichever batch it is in.
        count = self.accelerator.reduce(valued.sum().float(), reduction="sum").clamp(min=1)
        batches = self.accelerator.num_processes * cast(int, args.steps_per_generation)
        return {
            "advantages": advantages * trained,
            "returns": returns,
            "old_values": values,
            "valued": valued,
            "valued_a_batch": count / batches,
        }

    def _whitened(self, advantages: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
        """Advantages with mean 0 and deviation 1 over the trained tokens of all processes."""
        chosen = torch.where(trained, advantages, 0.0)
        sums = torch.stack([chosen.sum(), chosen.square().sum(), trained.sum().to(chosen)])
        total, squares, tokens = self.accelerator.reduce(sums, reduction="sum").unbind()
        mean = total / tokens.clamp(min=1)
        deviation = (squares / tokens.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
        return (advantages - mean) / (deviation + 1e-8)

    def compute_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        # The reference's columns were made with beta. The loss must not add the KL once more where
        # the rewards already hold it.
        beta = self.beta
        self.beta = 0.0 if self.args.kl_in_reward else beta
        try:
            return super().compute_loss(*args, **kwargs)
        finally:
            self.beta = beta

    def _further_terms(
        self, model: Any, inputs: dict[str, Any], token_pass: TokenPass
    ) -> torch.Tensor | float:
        values = cast(torch.Tensor, token_pass.values[VALUES])
        old = inputs["old_values"]
        returns = inputs["returns"]
        largest_move = self.args.value_clip
        clipped = old + (values - old).clamp(-largest_move, largest_move)
        # The larger error counts, so that a value gains nothing by moving too far
        errors = torch.maximum((values - returns).square(), (clipped - returns).square())
        total = torch.where(inputs["valued"], errors, 0.0).sum()
        loss = 0.5 * total / inputs["valued_a_batch"]
        self._log_mean("value/loss", loss)
        further = super()._further_terms(model, inputs, token_pass)
        return further + self.args.value_weight * loss


@dataclass(eq=False)
class ValueWeights(TrainerCallback):
    """Saves the value in checkpoints of adapters; in others it is a part of the policy."""

    trainer: SearchPPOTrainer

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        file = self._file(args, state)
        if file is None:
            return
        weights = get_model_state_dict(
            self.trainer.value, options=StateDictOptions(full_state_dict=True)
        )
        if state.is_world_process_zero:
            torch.save(weights, file)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        file = self._file(args, state)
        if file is None or not state.global_step:
            return
        if not file.exists():
            raise ConfigError(f"{file} is missing: this checkpoint was not made by PPO")
        weights = torch.load(file, map_location="cpu", weights_only=True)
        set_model_state_dict(
            self.trainer.value, weights, options=StateDictOptions(full_state_dict=True)
        )

    def _file(self, args: Any, state: Any) -> Path | None:
        """The file in the checkpoint of this step; `None` where the whole policy is saved."""
        policy = self.trainer.accelerator.unwrap_model(self.trainer.model)
        # DeepSpeed saves all that is trained, also with adapters
        if not is_peft_model(policy) or self.trainer.is_deepspeed_enabled:
            return None
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / WEIGHTS


def gae(
    rewards: torch.Tensor, values: torch.Tensor, valued: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    """Generalised advantage estimates (GAE), of shape `(rows, columns)`.

    Columns that are not `valued` are skipped: their advantage is 0, and the valued columns before
    and after them count as neighbours.

    Example:
        >>> rewards, values = torch.tensor([[0.0, 9.0, 1.0]]), torch.tensor([[0.5, 9.0, 0.0]])
        >>> gae(rewards, values, torch.tensor([[True, False, True]]), 1.0, 0.5).tolist()
        [[0.0, 0.0, 1.0]]
    """
    advantages = torch.zeros_like(rewards)
    # For each row those of the next valued column
    next_advantage = rewards.new_zeros(len(rewards))
    next_value = rewards.new_zeros(len(rewards))
    for column in reversed(range(rewards.shape[1])):
        is_valued = valued[:, column]
        value = values[:, column]
        advantage = rewards[:, column] + gamma * (next_value + lam * next_advantage) - value
        next_advantage = torch.where(is_valued, advantage, next_advantage)
        next_value = torch.where(is_valued, value, next_value)
        advantages[:, column] = torch.where(is_valued, advantage, 0.0)
    return advantages


def token_rewards(scores: Iterable[Score], numbers: torch.Tensor, by_step: bool) -> torch.Tensor:
    """The reward of each token, of the shape of `numbers` (`advantages.turn_numbers`).

    The last token that the policy wrote gets the score of the rollout, or 0 where it has none. With
    `by_step`, the last token of each turn gets what its step earned, and the last token of all the
    remainder (`Score.credit`).
    """
    rewards = torch.zeros(numbers.shape, device=numbers.device)
    for row, row_numbers, score in zip(rewards, numbers, scores, strict=True):
        earned, outcome = score.credit if by_step else ((), score.value or 0.0)
        last_place: dict[int, int] = {}  # by turn: later tokens replace earlier ones
        for place, turn in enumerate(row_numbers.tolist()):
            if turn:
                last_place[turn] = place
        if earned:
            for turn, place in last_place.items():
                row[place] += earned[turn - 1]
        if last_place:
            row[max(last_place.values())] += outcome
    return rewards


def turn_starts(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A mask of the tokens that begin a turn, and for each token the column where its turn begins.

    Both have the shape of `numbers`, `(rows, columns)`. A token outside all turns gets the
    beginning of the turn before it.
    """
    before = nn.functional.pad(numbers, (1, 0))[:, :-1].cummax(dim=1).values
    first = numbers > before
    places = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
    return first, torch.where(first, places, 0).cummax(dim=1).values


def _variance(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    numbers = values[chosen]
    return numbers.var(correction=0) if len(numbers) else values.new_zeros(())
