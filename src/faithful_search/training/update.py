"""An update from scored rollouts: their advantages, and TRL's loss with the `terms` and PPO's value that may be added.

Two of TRL's methods here are not public: what `_generate_and_score_completions` returns gets other advantages, and
`_get_per_token_logps_and_entropies` is called in passes over rows of like length; the terms use what it gave. Where the
engine keeps only the last tool responses in the context (`Limits.kept_responses`), each turn of a rollout is a row of
its own: what the policy saw then, and what it wrote.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOTrainer

from ..rewards import Mix
from ..rewards.evidence_sensitivity import Probe
from ..rollout import Engine
from ..trajectory import Tokens
from .advantages import ESTIMATORS, TURN_ESTIMATORS, informative, spread, turn_numbers, turn_returns
from .arguments import SearchGRPOConfig
from .callbacks import LIKELIHOOD, MOVED
from .processes import most
from .step_metrics import Scored
from .terms import llds, verdict_moves

Read = torch.Tensor | None
"""What a pass computes of every token (`rows, columns`) or of all together; `None` where it was not asked for."""
Forward = Callable[..., tuple[Read, ...]]
"""TRL's `_get_per_token_logps_and_entropies` of a model: of ids, their mask and how many last columns are kept."""
PASSES = 4  # passes over a batch. The number is fixed, since sharded models need as many passes in every process
FEWEST = 8
"""Rollouts from which passes are worth it: with fewer, as for models of billions of parameters, a batch is one pass."""
WATCHED = 8  # how many rollouts of a batch are asked about once more after the update, at most


class UpdateTrainer(GRPOTrainer):
    """TRL's trainer with estimators of advantages and terms of the loss. `SearchGRPOTrainer` notes what it knows of the
    rollouts scored last: `batch` are those of all processes, `own` this one's."""

    args: SearchGRPOConfig
    engine: Engine
    mix: Mix
    batch: list[Scored]
    own: list[Scored]
    _tokens: list[Tokens]
    _probes: list[list[Probe]]
    _rows: list[dict[str, Any]]
    _earlier: deque[dict[str, Any]]
    _passed: tuple[Read, ...] = ()
    _numbers: torch.Tensor | None = None
    _watched: dict[str, torch.Tensor] | None = None

    @property
    def _training(self) -> bool:
        return bool(self.model is not None and self.model.training)

    @property
    def _generations(self) -> int:
        return int((self.num_generations if self._training else self.num_generations_eval) or 1)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._rows = inputs  # for the rollout, which TRL gives the prompts only
        self._numbers = None
        output = super()._generate_and_score_completions(inputs)
        own = output["advantages"]
        output["turn_numbers"] = turn_numbers(self._tokens, output["completion_ids"].shape[1]).to(
            own.device
        )
        output["right"] = torch.tensor(
            [row.right(self.mix.outcome) for row in self.own], device=own.device
        )
        name = self.args.advantages
        if name in TURN_ESTIMATORS:
            returns = [
                turn_returns(row.score, row.turns, self.args.turn_gamma) for row in self.batch
            ]
            shared = self._share(TURN_ESTIMATORS[name](returns, self._generations), own)
            output["advantages"] = spread(shared, output["turn_numbers"])
        elif estimator := ESTIMATORS.get(name):  # else TRL's own stay
            rewards = _tensor([row.score.value for row in self.batch])
            output["advantages"] = self._share(estimator(rewards, self._generations), own)
        if self._training and self.args.uniform_groups == "drop":
            outcome, gate = cast(str, self.mix.outcome), self.mix.gate
            outcomes = _tensor([row.components[outcome].value for row in self.batch])
            gates = [
                None if gate is None else row.components[gate.name].value for row in self.batch
            ]
            passed = torch.tensor([value is None or value >= 1 for value in gates])
            told = self._share(informative(outcomes, passed, self._generations), own)
            output["advantages"] = output["advantages"] * (
                told if output["advantages"].dim() == 1 else told[:, None]
            )
        if self._training and self.args.verdict_weight:
            output["probes"] = self._probes  # lists are reordered and split with the columns
        return output

    def _share(self, every: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        first = self.accelerator.process_index * len(own)
        return every[first : first + len(own)].to(own)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **given: Any,
    ) -> Any:
        """TRL's, in passes over rollouts of like length: more than half of a batch of rollouts would be padding."""
        forward = partial(self._pass, super()._get_per_token_logps_and_entropies, model)
        rows, columns = input_ids.shape
        passes = PASSES if rows >= FEWEST else 1
        kept = self.engine.limits.kept_responses
        if kept:
            numbers = (
                turn_numbers(self._tokens, logits_to_keep)
                if self._numbers is None
                else self._numbers
            )
            views = turn_views(attention_mask, numbers.to(input_ids.device), kept)
            # No pass larger than one over whole rollouts, and as many in every process: shards need them all
            at_once = min(-(-rows // passes), given.pop("batch_size", None) or rows)
            passes = most(self.accelerator)(
                max(passes, -(-views[1].numel() // (at_once * columns)))
            )
            read = partial(by_length, forward, passes=passes)
            self._passed = by_view(read, views, input_ids, logits_to_keep, **given)
        else:
            self._passed = by_length(
                forward, input_ids, attention_mask, logits_to_keep, passes=passes, **given
            )
        return self._passed[:3]

    def _pass(self, forward: Any, *args: Any, **given: Any) -> tuple[Read, ...]:
        """One pass of TRL's `forward`; a trainer that needs more of each token than its log-probability adds it."""
        return cast(tuple[Read, ...], forward(*args, **given))

    def _logps(self, model: Any, inputs: dict[str, Any], **given: Any) -> torch.Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        self._numbers = inputs[
            "turn_numbers"
        ]  # of these rollouts, not of those that were sampled last
        width = inputs["completion_ids"].shape[1]
        return cast(
            torch.Tensor,
            self._get_per_token_logps_and_entropies(model, ids, mask, width, **given)[0],
        )

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        self._numbers = inputs["turn_numbers"]
        loss = cast(
            torch.Tensor, super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        )
        if not self._training:
            return loss
        passed, self._passed = (
            self._passed,
            (),
        )  # a kept graph would hold the activations of the step
        # Gradients are averaged over processes and summed over the equal batches of an optimizer step.
        return (
            loss + self._further(model, inputs, passed) / self.current_gradient_accumulation_steps
        )

    def _further(
        self, model: Any, inputs: dict[str, Any], passed: Sequence[Read]
    ) -> torch.Tensor | float:
        logps = cast(torch.Tensor, passed[0])
        chosen = (inputs["turn_numbers"] > 0) & inputs["right"][:, None]
        self._note(LIKELIHOOD, logps, chosen)
        self._watch(inputs | {"logps": logps.detach(), "chosen": chosen})
        total: torch.Tensor | float = 0.0
        if self.args.verdict_weight:
            at_once = max(
                2 * len(logps) // PASSES, FEWEST
            )  # two contexts a probe: no larger than other passes
            with self.accelerator.autocast():
                moves = verdict_moves(
                    model, inputs["probes"], at_once, most(self.accelerator), logps.device
                )
            self._note("verdict_term", moves.mean())
            total = total - self.args.verdict_weight * moves.mean()
        return (
            total + self.args.llds * self._preserved(model, inputs, logps)
            if self.args.llds
            else total
        )

    def _preserved(self, model: Any, inputs: dict[str, Any], logps: torch.Tensor) -> torch.Tensor:
        args = self.args
        fresh = (
            args.num_iterations == 1
            and cast(int, args.steps_per_generation) <= args.gradient_accumulation_steps
        )
        if fresh or "old_per_token_logps" not in inputs:
            # Nothing has fallen yet since this batch was sampled: what the last update did is seen on the one before.
            self._earlier.append(inputs | {"old_per_token_logps": logps.detach()})
            if len(self._earlier) <= self.current_gradient_accumulation_steps:
                return 0.0 * logps.sum()
            inputs = self._earlier.popleft()
            logps = self._logps(model, inputs)
        term, share = llds(
            logps, inputs["old_per_token_logps"], inputs["turn_numbers"], inputs["advantages"]
        )
        self._note("llds", term)
        self._note("likelihood/falling", share)
        return term

    def _watch(self, batch: dict[str, torch.Tensor]) -> None:
        """Keep some rows, first those with a right answer, to ask about them again after the update."""
        # Every process keeps as many, right or not: a pass through shards needs them all.
        order = (
            batch["chosen"].any(1).to(torch.int8).argsort(descending=True, stable=True)[:WATCHED]
        )
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
        """As TRL's; with how far the update moved the log-probability of right answers' tokens, while none is newer."""
        if self._training and self._watched:
            kept, self._watched = self._watched, None
            with torch.no_grad(), self.accelerator.autocast():
                moved = self._logps(self.model_wrapped, kept) - kept["logps"]
            self._note(MOVED, moved, kept["chosen"])
        super().log(logs, *args, **kwargs)

    def _note(self, name: str, values: torch.Tensor, chosen: torch.Tensor | None = None) -> None:
        own = values.detach().reshape(-1) if chosen is None else values.detach()[chosen]
        sums = torch.stack([own.sum(), own.new_tensor(len(own))])
        total, many = self.accelerator.reduce(sums, reduction="sum").tolist()
        if many:
            self._metrics["train"][name].append(total / many)


def by_length(
    forward: Forward,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    kept: int,
    *,
    passes: int,
    **given: Any,
) -> tuple[Read, ...]:
    """What `forward` computes, in so many passes over rows of like length: what only pads them is not computed. Prompts
    are padded on the left, completions, the last `kept` columns, on the right. Values of tokens are `(rows, kept)`, 0
    where a pass left padding out; of single numbers (an auxiliary loss) the result is the mean of the passes."""
    columns = input_ids.shape[1]
    found = []
    order = attention_mask.sum(dim=1).argsort()
    for own in order.tensor_split(passes):
        chosen = own if len(own) else order[:1]  # a pass for the sake of the other processes
        used = attention_mask[chosen].any(dim=0).nonzero()
        # A completion without a token would leave nothing to keep, so one column of it always stays; and so do the
        # kept columns and one in front of them where a row is shorter, as a turn may be than another's longest.
        start, end = (
            min(int(used[0]), max(0, columns - kept - 1)),
            max(int(used[-1]) + 1, columns - kept + 1),
        )
        missing = columns - end
        one = forward(
            input_ids[chosen, start:end], attention_mask[chosen, start:end], kept - missing, **given
        )
        found.append(
            [
                pad(part[: len(own)], (0, missing)) if part is not None and part.dim() else part
                for part in one
            ]
        )
    back = order.argsort()  # TRL's columns are in the rows' own order

    def joined(parts: Sequence[Any]) -> Read:
        if parts[0] is None:
            return None
        return torch.cat(list(parts))[back] if parts[0].dim() else torch.stack(list(parts)).mean()

    return tuple(map(joined, zip(*found, strict=True)))


Views = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Turns of a batch, each as the policy saw it: each turn's row of the batch, the batch's columns that it shows, its own
tokens last, the mask of these, and how many of the last columns its own tokens take. Columns and mask have the shape
`(turns, columns)` and are padded on the left."""


def turn_views(attention_mask: torch.Tensor, numbers: torch.Tensor, kept: int) -> Views:
    """One view for each turn, given the mask of prompts and completions, the completions' `advantages.turn_numbers`,
    and how many responses a turn sees.

    >>> mask, numbers = torch.ones(1, 7, dtype=torch.long), torch.tensor([[1, 0, 2, 0, 3]])
    >>> turn_views(mask, numbers, kept=1)[1].tolist()  # turn 3 sees the second response, not the first
    [[0, 0, 0, 0, 1, 2], [0, 0, 1, 2, 3, 4], [0, 1, 2, 4, 5, 6]]
    """
    found = []
    for row, (mask, turns) in enumerate(zip(attention_mask, numbers, strict=True)):
        before = len(mask) - len(turns)
        every, latest = (pad(own, (before, 0)) for own in (turns, turns.cummax(dim=0).values))
        response = (every == 0) & (latest > 0)  # `latest` is the turn that came last
        written = turns.unique()
        for turn in written[written > 0].tolist():
            mine = every == turn
            seen = mask.bool() & (latest < turn) & ~(response & (latest < turn - kept)) | mine
            found.append((row, seen.nonzero()[:, 0], int(mine.sum())))
        if (
            not written.any()
        ):  # a row without a turn is a view all the same, so that every process has as many passes
            found.append((row, mask.nonzero()[:, 0][: before + 1], 1))
    rows, places, own = zip(*found, strict=True)
    shown = pad_sequence(
        [torch.ones_like(one) for one in places], batch_first=True, padding_side="left"
    )
    padded = pad_sequence(list(places), batch_first=True, padding_side="left")
    return padded.new_tensor(rows), padded, shown.to(attention_mask), padded.new_tensor(own)


def by_view(
    read: Forward, views: Views, input_ids: torch.Tensor, kept: int, **given: Any
) -> tuple[Read, ...]:
    """What `read` computes of a batch's last `kept` columns, each turn read as it was sampled; 0 where none wrote."""
    rows, places, mask, many = views
    width = int(many.max())
    ids = input_ids[rows[:, None], places]
    found = read(ids, mask, width, **given)
    own = torch.arange(width, 0, -1, device=ids.device) <= many[:, None]
    columns = places[:, -width:] - (input_ids.shape[1] - kept)
    row = rows[:, None].expand_as(columns)[own]

    def placed(part: Read) -> Read:
        if part is None or not part.dim():
            return part
        return part.new_zeros(len(input_ids), kept).index_put((row, columns[own]), part[own])

    return tuple(map(placed, found))


def _tensor(values: Sequence[float | None]) -> torch.Tensor:
    return torch.tensor([float("nan") if value is None else value for value in values])
