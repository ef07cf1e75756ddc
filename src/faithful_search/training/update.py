"""An update from scored rollouts: their advantages, and TRL's loss with the terms that may be added to it.

The terms are the verdict term (`verdict_term`), preserved likelihood (`likelihood`) and PPO's value (`ppo`). Two of
TRL's methods here are not public: what `_generate_and_score_completions` returns gets other advantages and the terms'
columns; `_get_per_token_logps_and_entropies` is called in passes by length, and what it gave is kept for the terms, so
that they need no pass of their own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch.nn.functional import pad
from trl import GRPOConfig, GRPOTrainer

from ..errors import ConfigError
from ..rewards import Mix, Score
from ..rewards.evidence_sensitivity import Probe
from ..trajectory import Tokens
from .advantages import ESTIMATORS, TURN_ESTIMATORS, informative, spread, turn_numbers, turn_returns
from .likelihood import LIKELIHOOD, MOVED, WATCHED, llds
from .outage import without_dump
from .processes import most
from .verdict_term import probe_columns, verdict_moves
from .views import Read, by_view, turn_views

PASSES = 4
"""Passes over a batch. The number is fixed, since sharded models need as many passes in every process."""
FEWEST = 8
"""Rollouts from which passes are worth it: with fewer, as for models of billions of parameters, a batch is one pass."""


class UpdateTrainer(GRPOTrainer):
    """TRL's trainer with estimators of advantages and terms of the loss; arguments as for `SearchGRPOTrainer`.

    That trainer notes what it knows of the batch that it has scored last in the attributes declared here.
    """

    mix: Mix
    last_components: list[dict[str, Score]]
    last_scores: list[Score]
    last_rewards: list[float | None]
    _tokens: list[Tokens]
    _right: list[bool]

    def __init__(
        self,
        *args: Any,
        advantages: str,
        turn_gamma: float,
        llds: float,
        verdict_weight: float,
        uniform_groups: str,
        kept_responses: int,
        **kwargs: Any,
    ) -> None:
        names = {**ESTIMATORS, **TURN_ESTIMATORS}
        if advantages not in names:
            raise ConfigError(f"unknown advantages {advantages!r}; there are: {', '.join(names)}, ppo")
        if not 0 <= turn_gamma <= 1 or llds < 0:
            raise ConfigError(f"turn_gamma is in [0, 1] and llds 0 or more, not {turn_gamma:g} and {llds:g}")
        self.estimator, self.turn_estimator = ESTIMATORS.get(advantages), TURN_ESTIMATORS.get(advantages)
        self.turn_gamma, self.uniform_groups = turn_gamma, uniform_groups
        self.verdict_weight, self.llds, self.kept_responses = verdict_weight, llds, kept_responses
        self._rows: list[dict[str, Any]] = []
        self._probes: list[list[Probe]] = []
        self._terms: dict[str, list[float]] = defaultdict(list)
        self._likelihood: list[torch.Tensor] = []
        self._watched: dict[str, torch.Tensor] = {}
        self._passed: tuple[Read, ...] = ()
        self._numbers: torch.Tensor | None = None
        self._earlier: deque[dict[str, Any]] = deque()
        super().__init__(*args, **kwargs)
        if advantages != "trl" and self.scale_rewards != "group":
            raise ConfigError(f"--scale_rewards {self.scale_rewards} is for --advantages trl, not {advantages}")

    @property
    def _training(self) -> bool:
        return bool(self.model is not None and self.model.training)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._rows = inputs  # for the rollout, which TRL gives the prompts only
        with without_dump():
            output = super()._generate_and_score_completions(inputs)
        own = output["advantages"]
        output["turn_numbers"] = turn_numbers(self._tokens, output["completion_ids"].shape[1]).to(own.device)
        output["right"] = torch.tensor(self._right, device=own.device)
        output["advantages"] = self._advantages(own, output["turn_numbers"])
        if self._training and self.uniform_groups == "drop":
            outcome, gate = cast(str, self.mix.outcome), self.mix.gate
            rows = [(row[outcome].value, gate is None or row[gate.name].value) for row in self.last_components]
            every = [(_nan(value), valid is None or valid >= 1) for value, valid in gather_object(rows)]
            outcomes, passed = (torch.tensor(column, device=own.device) for column in zip(*every, strict=True))
            told = self._share(informative(outcomes, passed, self._generations), own)
            output["advantages"] = output["advantages"] * (told if output["advantages"].dim() == 1 else told[:, None])
        if self._training and self.verdict_weight:
            output |= probe_columns(self._probes, own.device)
        return output

    def _advantages(self, own: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """The estimator's advantages of this process's rollouts; TRL's `own` where none is named."""
        if self.estimator is not None:
            rewards = torch.tensor([_nan(value) for value in gather_object(self.last_rewards)], device=own.device)
            return self._share(self.estimator(rewards, self._generations), own)
        if self.turn_estimator is not None:
            pairs = zip(self.last_scores, self._tokens, strict=True)
            returns = [turn_returns(score, len(tokens.turns), self.turn_gamma) for score, tokens in pairs]
            by_turn = self._share(self.turn_estimator(gather_object(returns), self._generations), own)
            return spread(by_turn, numbers)
        return own

    @property
    def _generations(self) -> int:
        """Rollouts of a question."""
        return int((self.num_generations if self._training else self.num_generations_eval) or 1)

    def _share(self, every: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """This process's rows of a global batch."""
        first = self.accelerator.process_index * len(own)
        return every[first : first + len(own)].to(own)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **given: Any
    ) -> Any:
        """TRL's, in passes over rollouts of like length: more than half of a batch of rollouts would be padding."""
        forward = partial(self._pass, super()._get_per_token_logps_and_entropies, model)
        rows, columns = input_ids.shape
        passes = PASSES if rows >= FEWEST else 1
        if self.kept_responses:
            numbers = turn_numbers(self._tokens, logits_to_keep) if self._numbers is None else self._numbers
            views = turn_views(attention_mask, numbers.to(input_ids.device), self.kept_responses)
            # No pass larger than one over whole rollouts, and as many in every process: shards need them all
            at_once = min(-(-rows // passes), given.pop("batch_size", None) or rows)
            passes = most(self.accelerator)(max(passes, -(-views.places.numel() // (at_once * columns))))
            read = partial(by_length, forward, passes=passes)
            self._passed = by_view(read, views, input_ids, logits_to_keep, **given)
        else:
            self._passed = by_length(forward, input_ids, attention_mask, logits_to_keep, passes=passes, **given)
        return self._passed[:3]

    @contextmanager
    def _reading(self, batch: dict[str, Any]) -> Iterator[None]:
        """Within the block log-probabilities are of these rollouts, not of those that were sampled last."""
        before, self._numbers = self._numbers, batch["turn_numbers"]
        try:
            yield
        finally:
            self._numbers = before

    def _pass(self, forward: Any, *args: Any, **given: Any) -> tuple[Read, ...]:
        """One pass of TRL's `forward`; a trainer that needs more of each token than its log-probability adds it."""
        return cast(tuple[Read, ...], forward(*args, **given))

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """TRL's loss, and the terms that have a weight."""
        with self._reading(inputs):
            loss = cast(torch.Tensor, super().compute_loss(model, inputs, return_outputs, num_items_in_batch))
        if not self._training:
            return loss
        passed, self._passed = self._passed, ()  # a kept graph would hold the activations of the step
        # Gradients are averaged over processes and summed over the equal batches of an optimizer step.
        return loss + self._further(model, inputs, passed) / self.current_gradient_accumulation_steps

    def _further(self, model: Any, inputs: dict[str, Any], passed: Sequence[Read]) -> torch.Tensor | float:
        """What a batch adds to TRL's loss, given what `_pass` returned for it."""
        logps = cast(torch.Tensor, passed[0])
        chosen = (inputs["turn_numbers"] > 0) & inputs["right"][:, None]
        self._likelihood.append(_sums(logps.detach(), chosen))
        self._watch(inputs | {"logps": logps.detach(), "chosen": chosen})
        total: torch.Tensor | float = 0.0
        if self.verdict_weight:
            at_once = max(2 * len(logps) // PASSES, FEWEST)  # two contexts a probe: no larger than other passes
            with self.accelerator.autocast():
                moves = verdict_moves(model, inputs, at_once, most(self.accelerator))
            self._note("verdict_term", moves.mean())
            total = total - self.verdict_weight * moves.mean()
        return total + self.llds * self._preserved(model, inputs, logps) if self.llds else total

    def _preserved(self, model: Any, inputs: dict[str, Any], logps: torch.Tensor) -> torch.Tensor:
        args = cast(GRPOConfig, self.args)
        fresh = args.num_iterations == 1 and cast(int, args.steps_per_generation) <= args.gradient_accumulation_steps
        if fresh or "old_per_token_logps" not in inputs:
            # Nothing has fallen yet since this batch was sampled: what the last update did is seen on the one before.
            self._earlier.append(inputs | {"old_per_token_logps": logps.detach()})
            if len(self._earlier) <= self.current_gradient_accumulation_steps:
                return 0.0 * logps.sum()
            inputs = self._earlier.popleft()
            logps = self._logps(model, inputs)
        term, share = llds(logps, inputs["old_per_token_logps"], inputs["turn_numbers"], inputs["advantages"])
        self._note("llds", term)
        self._note("likelihood/falling", share)
        return term

    def _logps(self, model: Any, inputs: dict[str, Any], **given: Any) -> torch.Tensor:
        """Log-probabilities of a batch's completions."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].shape[1]
        with self._reading(inputs):
            found = self._get_per_token_logps_and_entropies(model, ids, mask, width, **given)
        return cast(torch.Tensor, found[0])

    def _watch(self, batch: dict[str, torch.Tensor]) -> None:
        """Keep some rows, first those with a right answer, to ask about them again after the update."""
        # Every process keeps as many, right or not: a pass through shards needs them all.
        order = batch["chosen"].any(1).to(torch.int8).argsort(descending=True, stable=True)[:WATCHED]
        names = ("prompt_ids", "completion_ids", "prompt_mask", "completion_mask", "turn_numbers", "logps", "chosen")
        self._watched = {name: batch[name][order] for name in names}

    def _moved(self) -> dict[str, float]:
        """How far the update moved the log-probability of right answers' tokens, before anything new is sampled."""
        kept, self._watched = self._watched, {}
        with torch.no_grad(), self.accelerator.autocast():
            moved = self._logps(self.model_wrapped, kept) - kept["logps"]
        total, many = self.accelerator.reduce(_sums(moved, kept["chosen"]), reduction="sum").tolist()
        return {MOVED: total / many} if many else {}

    def _note(self, name: str, value: torch.Tensor) -> None:
        """Keep the processes' mean of a term for the log."""
        self._terms[name].append(float(self.accelerator.gather(value.detach()).mean()))

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's, with the means of the terms since the last call, and how likely right answers' tokens were."""
        if self._training:
            logs |= {name: sum(values) / len(values) for name, values in self._terms.items()}
            self._terms.clear()
            if self._likelihood:
                total, many = self.accelerator.reduce(torch.stack(self._likelihood).sum(0), reduction="sum").tolist()
                logs |= {LIKELIHOOD: total / many} if many else {}
                self._likelihood.clear()
            logs |= self._moved() if self._watched else {}
        super().log(logs, *args, **kwargs)


def by_length(
    forward: Callable[..., tuple[Read, ...]],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    kept: int,
    *,
    passes: int,
    **given: Any,
) -> tuple[Read, ...]:
    """What TRL's `_get_per_token_logps_and_entropies` computes, in so many passes over rows of like length.

    Rollouts differ in length several times over; what only pads them is not computed. Prompts are padded on the left,
    completions, the last `kept` columns, on the right. Processes that share a model must make as many passes, even
    those that have fewer rows.

    Returns:
        As `forward`: where it gives a value a token, those are `(rows, kept)`, 0 where a pass left padding out; of
        single numbers (an auxiliary loss) the mean of the passes; `None` stays.
    """
    columns = input_ids.shape[1]
    found = []
    order = attention_mask.sum(dim=1).argsort()
    for own in order.tensor_split(passes):
        chosen = own if len(own) else order[:1]  # a pass for the sake of the other processes
        used = attention_mask[chosen].any(dim=0).nonzero()
        # A completion without a token would leave nothing to keep, so one column of it always stays; and so do the
        # kept columns and one in front of them where a row is shorter, as a turn may be than another's longest.
        start, end = min(int(used[0]), max(0, columns - kept - 1)), max(int(used[-1]) + 1, columns - kept + 1)
        missing = columns - end
        one = forward(input_ids[chosen, start:end], attention_mask[chosen, start:end], kept - missing, **given)
        found.append([pad(part[: len(own)], (0, missing)) if part is not None and part.dim() else part for part in one])
    back = order.argsort()  # TRL's columns are in the rows' own order

    def joined(parts: Sequence[Any]) -> Read:
        if parts[0] is None:
            return None
        return torch.cat(list(parts))[back] if parts[0].dim() else torch.stack(list(parts)).mean()

    return tuple(map(joined, zip(*found, strict=True)))


def _sums(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The sum of the chosen values, and their number."""
    return torch.stack([values[chosen].sum(), chosen.sum().to(values)])


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value
