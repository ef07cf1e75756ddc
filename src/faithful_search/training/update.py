"""An update from scored rollouts: their advantages, and TRL's loss, to which the `terms` and PPO's
loss of the value may be added.

Two private methods of TRL are overridden:

- `_generate_and_score_completions` replaces TRL's advantages.
- `_get_per_token_logps_and_entropies` runs in several passes (`passes`) and scores only the tokens
  that the policy sampled. The terms use its results again, and the verdict term continues from its
  keys and values. Where the engine keeps only the last tool responses in the context
  (`Limits.kept_responses`), each turn of a rollout is a row of its own: what the policy saw then,
  and what it wrote.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

import torch
from trl import GRPOTrainer

from ..inference.kv_cache import States
from ..rewards import Mix
from ..rollout import Engine
from .advantages import ESTIMATORS, TURN_ESTIMATORS, informative, spread, turn_numbers, turn_returns
from .arguments import SearchGRPOConfig
from .callbacks import LIKELIHOOD, MOVED
from .own_tokens import OwnTokens, remembers, scores_own
from .passes import FEWEST, PASSES, Values, by_length, by_view, passes_over, turn_views
from .processes import largest_over
from .rollout_batch import RolloutBatch
from .terms import llds, verdict_moves

WATCHED = 8
"""The largest number of rollouts of a batch that are read again after the update."""


@dataclass
class TokenPass:
    """A pass of the model over the tokens of a batch: what is asked, and the results.

    Args:
        turn_numbers: which tokens the policy wrote, see `advantages.turn_numbers`.
        remember: keep the keys and values of each row in `states`, with gradient.
        values: TRL's columns (log-probabilities, entropies), and those that a trainer adds.
        states: the keys and values of the rows, from which the verdict term continues.
    """

    turn_numbers: torch.Tensor
    remember: bool = False
    values: tuple[Values, ...] = ()
    states: list[States] = field(default_factory=list)

    @property
    def logps(self) -> torch.Tensor:
        return cast(torch.Tensor, self.values[0])


class UpdateTrainer(GRPOTrainer):
    """TRL's trainer with estimators of advantages and terms of the loss.

    `rollouts` is the batch that was sampled last; `SearchGRPOTrainer` samples and scores it within
    `_generate_and_score_completions`.
    """

    args: SearchGRPOConfig
    engine: Engine
    mix: Mix
    rollouts: RolloutBatch
    _token_pass: TokenPass | None = None  # the running one, which TRL's methods do not pass on
    _waiting_for_update: deque[dict[str, Any]]
    _watched: dict[str, torch.Tensor] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._waiting_for_update = deque()
        super().__init__(*args, **kwargs)

    @cached_property
    def _remembers(self) -> bool:
        return remembers(self.accelerator.unwrap_model(self.model))

    @property
    def _training(self) -> bool:
        return bool(self.model is not None and self.model.training)

    @property
    def _generations(self) -> int:
        return int((self.num_generations if self._training else self.num_generations_eval) or 1)

    # From rollouts to advantages

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # Kept here, since TRL passes only prompts to the rollout, not the questions
        self.rollouts = RolloutBatch([row["task"] for row in inputs])
        output = super()._generate_and_score_completions(inputs)
        rollouts = self.rollouts
        device = output["advantages"].device
        width = output["completion_ids"].shape[1]
        are_right = [rollout.is_right(self.mix.outcome_name) for rollout in rollouts.local]
        output["turn_numbers"] = turn_numbers(rollouts.tokens, width).to(device)
        output["right"] = torch.tensor(are_right, device=device)
        output |= self._estimated(rollouts, output)
        if self._training and self.args.verdict_weight:
            output["probes"] = rollouts.probes  # TRL shuffles and splits lists like columns
        return output

    def _estimated(self, rollouts: RolloutBatch, output: dict[str, Any]) -> dict[str, Any]:
        """The columns that the estimator makes of the scores: `advantages`, and others that the
        loss reads.
        """
        name = self.args.advantages
        estimator = ESTIMATORS.get(name)
        advantages = output["advantages"]  # TRL's, which stay where there is no estimator
        if name in TURN_ESTIMATORS:
            returns = [
                turn_returns(rollout.score, rollout.turns, self.args.turn_gamma)
                for rollout in rollouts.gathered
            ]
            by_turn = TURN_ESTIMATORS[name](returns, self._generations)
            advantages = spread(self._local_rows(by_turn, advantages), output["turn_numbers"])
        elif estimator is not None:
            rewards = _tensor([rollout.score.value for rollout in rollouts.gathered])
            by_rollout = estimator(rewards, self._generations)
            advantages = self._local_rows(by_rollout, advantages)
        if self._training and self.args.uniform_groups == "drop":
            used = self._local_rows(self._informative(rollouts), advantages)
            if advantages.dim() == 2:  # (rows, columns)
                used = used[:, None]
            advantages = advantages * used
        return {"advantages": advantages}

    def _informative(self, rollouts: RolloutBatch) -> torch.Tensor:
        """1 for each rollout of the global batch whose group is informative, else 0, see
        `advantages.informative`.
        """
        outcome = cast(str, self.mix.outcome_name)
        gate = self.mix.gate
        outcomes = _tensor([rollout.components[outcome].value for rollout in rollouts.gathered])
        passes_gate = torch.ones(len(outcomes), dtype=torch.bool)
        if gate is not None:
            gate_values = [rollout.components[gate.name].value for rollout in rollouts.gathered]
            # A gate whose judge abstained excludes no rollout
            passes_gate = torch.tensor([value is None or value >= 1 for value in gate_values])
        return informative(outcomes, passes_gate, self._generations)

    def _local_rows(self, gathered: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        """This process's rows of a tensor over the global batch; `local` gives their number and
        device.
        """
        first = self.accelerator.process_index * len(local)
        return gathered[first : first + len(local)].to(local)

    # Passes over rollouts

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """As TRL's method, but in passes over rollouts of similar length, and for tokens that the
        policy sampled only. Else more than half of a batch would be padding, and most of the rest
        tool responses.
        """
        rows, columns = input_ids.shape
        pass_count = passes_over(rows, input_ids.device.type, batch_size)
        token_pass = self._token_pass
        if token_pass is None:  # TRL asks about the rollouts that were sampled last
            token_pass = TokenPass(turn_numbers(self.rollouts.tokens, logits_to_keep))
        numbers = token_pass.turn_numbers.to(input_ids.device)
        trl_forward = super()._get_per_token_logps_and_entropies
        forward = partial(self._forward, token_pass, trl_forward, model)
        kept_responses = self.engine.limits.kept_responses
        if kept_responses:
            views = turn_views(attention_mask, numbers, kept_responses)
            # No pass is larger than one over whole rollouts. All processes make as many passes as
            # the one that needs most, since sharded models need every process in every pass.
            largest = math.ceil(rows / pass_count) * columns
            tokens = views.columns.numel()
            needed = max(pass_count, math.ceil(tokens / largest))
            pass_count = largest_over(self.accelerator)(needed)
            read = partial(by_length, forward, passes=pass_count)
            token_pass.values = by_view(read, views, input_ids, logits_to_keep, **kwargs)
        else:
            token_pass.values = by_length(
                forward,
                input_ids,
                attention_mask,
                logits_to_keep,
                numbers > 0,
                passes=pass_count,
                **kwargs,
            )
        # TRL's columns: log-probabilities, entropies, auxiliary loss. A subclass adds others.
        return token_pass.values[:3]

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
    ) -> tuple[Values, ...]:
        """One call of TRL's method, for the tokens of the mask `written` only, which has the shape
        (rows, logits_to_keep). A subclass may append further values of each token, as PPO does.
        """
        policy = self.accelerator.unwrap_model(model)
        if not scores_own(policy):
            return cast(tuple[Values, ...], trl_forward(model, ids, mask, logits_to_keep, **kwargs))
        scored = OwnTokens(model, policy, written, token_pass.remember)
        values = cast(tuple[Values, ...], trl_forward(scored, ids, mask, logits_to_keep, **kwargs))
        token_pass.states += scored.states
        return values

    @contextmanager
    def _passing(self, turn_numbers: torch.Tensor, remember: bool = False) -> Iterator[TokenPass]:
        """Within the block, the model is asked about the rollouts with these turns, not about those
        that were sampled last. Blocks cannot be nested: the inner one would end the outer one.
        """
        self._token_pass = TokenPass(turn_numbers, remember)
        try:
            yield self._token_pass
        finally:
            self._token_pass = None  # a kept graph would hold the activations of the step

    def _read(self, model: Any, inputs: dict[str, Any], **kwargs: Any) -> TokenPass:
        """A pass of the present model over these rollouts."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].shape[1]
        with self._passing(inputs["turn_numbers"]) as token_pass:
            self._get_per_token_logps_and_entropies(model, ids, mask, width, **kwargs)
        return token_pass

    # The loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        remember = bool(self._training and self.args.verdict_weight and self._remembers)
        with self._passing(inputs["turn_numbers"], remember) as token_pass:
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss = cast(torch.Tensor, loss)
        if not self._training:
            return loss
        further = self._further_terms(model, inputs, token_pass)
        # Gradients are averaged over processes and summed over the equal batches of an optimizer
        # step.
        return loss + further / self.current_gradient_accumulation_steps

    def _further_terms(
        self, model: Any, inputs: dict[str, Any], token_pass: TokenPass
    ) -> torch.Tensor | float:
        """The terms that are added to TRL's loss; `token_pass` is the pass that TRL's loss made."""
        logps = token_pass.logps
        chosen = (inputs["turn_numbers"] > 0) & inputs["right"][:, None]
        self._log_mean(LIKELIHOOD, logps, chosen)
        self._watch(inputs | {"logps": logps.detach(), "chosen": chosen})
        total: torch.Tensor | float = 0.0
        if self.args.verdict_weight:
            # A pass has as many probes as one over rollouts has rows; a probe has two contexts
            at_once = max(2 * len(logps) // PASSES, FEWEST)
            agree = largest_over(self.accelerator)
            with self.accelerator.autocast():
                moves = verdict_moves(model, inputs["probes"], at_once, agree, token_pass.states)
            mean_move = moves.mean()
            self._log_mean("verdict_term", mean_move)
            total = total - self.args.verdict_weight * mean_move
        if self.args.llds:
            total = total + self.args.llds * self._preserved(model, inputs, logps)
        return total

    def _preserved(self, model: Any, inputs: dict[str, Any], logps: torch.Tensor) -> torch.Tensor:
        """The likelihood-preserving term (LLDS) of these rows, or of rows from the update before.

        It compares the present log-probabilities with those at sampling. With one update for each
        batch both are equal, so the rows are kept and read again in the next update; in the first
        one the term is 0.
        """
        args = self.args
        one_pass = cast(int, args.steps_per_generation) <= args.gradient_accumulation_steps
        one_update = args.num_iterations == 1 and one_pass
        if one_update or "old_per_token_logps" not in inputs:
            self._waiting_for_update.append(inputs | {"old_per_token_logps": logps.detach()})
            if len(self._waiting_for_update) <= self.current_gradient_accumulation_steps:
                return 0.0 * logps.sum()  # a 0 with a graph: every process must go backward
            inputs = self._waiting_for_update.popleft()
            logps = self._read(model, inputs).logps
        term, share = llds(
            logps, inputs["old_per_token_logps"], inputs["turn_numbers"], inputs["advantages"]
        )
        self._log_mean("llds", term)
        self._log_mean("likelihood/falling", share)
        return term

    # What is logged

    def _watch(self, batch: dict[str, torch.Tensor]) -> None:
        """Keep some rows, first those with a right answer, to read them again after the update."""
        # Every process keeps as many, right or not: sharded models need every process in the pass
        is_right = batch["chosen"].any(1).to(torch.int8)
        order = is_right.argsort(descending=True, stable=True)[:WATCHED]
        names = (
            "prompt_ids",
            "completion_ids",
            "prompt_mask",
            "completion_mask",
            "turn_numbers",
            "logps",
            "chosen",
        )
        self._watched = {name: batch[name][order] for name in names}

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's method. Also logs, once for each update, how far it moved the log-probability of
        the tokens of right answers.
        """
        if self._training and self._watched:
            watched, self._watched = self._watched, None
            with torch.no_grad(), self.accelerator.autocast():
                logps = self._read(self.model_wrapped, watched).logps
            self._log_mean(MOVED, logps - watched["logps"], watched["chosen"])
        super().log(logs, *args, **kwargs)

    def _log_mean(
        self, name: str, values: torch.Tensor, chosen: torch.Tensor | None = None
    ) -> None:
        """Log the mean over all processes of these values, or of those that are chosen."""
        values = values.detach()
        counted = values.reshape(-1) if chosen is None else values[chosen]
        sums = torch.stack([counted.sum(), counted.new_tensor(len(counted))])
        total, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        if count:
            self._metrics["train"][name].append(total / count)


def _tensor(values: Sequence[float | None]) -> torch.Tensor:
    return torch.tensor([float("nan") if value is None else value for value in values])
