"""The supervised start: episodes as token rows, and TRL's trainer on them, with a loss of its own
for reading.

A verdict is one token after a whole response. From that token's loss alone, a small policy does not
learn to compare what it reads with what it asked for. So the reading loss puts the question where
the answer arises: at the end of each piece of evidence, and of the response, the hidden state of a
layer is read as if it were the last layer's (the logit lens) and has to say "yes" or "no". Nothing
is sampled there, and no weights are added. Ours; not in the papers.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from datasets import Dataset
from torch.nn.functional import binary_cross_entropy_with_logits, rms_norm
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from ..errors import ConfigError, DataError
from ..inference.chat import ChatFormat
from ..rewards import Citation
from ..rewards.contexts import VERDICT_TAG, choice_ids, locate_verdict, turn_ids
from ..rollout.episode import visible_places
from ..trajectory import Step, Tokens, Trajectory
from .decorators import DECORATED

IGNORED = -100
RAREST = 5.0
"""How many times more than usual tokens the rarest of the copied tokens count."""
logger = logging.getLogger(__name__)


def reading_labels(trajectory: Trajectory, tokens: Tokens, chat: ChatFormat) -> list[int]:
    """For each token of a transcript: does the piece of evidence that ends there state the fact? 1,
    0, elsewhere -100.

    A piece states it if the next step cites it. All tokens between the last piece and the agent's
    next turn are asked whether any piece does, so that this question is not outnumbered. The
    dialect is one whose steps judge the evidence before them; `tokens` are the trajectory's
    `ChatFormat.transcript`.
    """
    labels = [IGNORED] * (len(tokens.prompt_ids) + len(tokens.completion_ids))
    for number, (step, next_step) in enumerate(pairwise(trajectory.steps)):
        if next_step.helpful is None or not step.evidence:
            continue
        response = _response_places(tokens, number)
        for passage, end in zip(step.evidence, piece_ends(step, chat), strict=True):
            last_place = response.start + end
            labels[last_place] = int(passage.id in next_step.refs)
        for place in range(last_place + 1, response.stop):
            labels[place] = int(next_step.helpful)
    return labels


def piece_ends(step: Step, chat: ChatFormat) -> list[int]:
    """Where in the ids of a step's tool response each piece of evidence ends: the place of its last
    token, which is the last that responses with and without the next piece have in common.
    """
    pieces = [*step.evidence, step.evidence[0]]  # the last piece needs a next one, too
    responses = []
    for count in range(1, len(pieces) + 1):
        text = chat.render_observation(pieces[:count], step.note)
        responses.append(chat.observation_ids(text, ended=True))
    return [_first_difference(shorter, longer) - 1 for shorter, longer in pairwise(responses)]


def _first_difference(first: Sequence[int], second: Sequence[int]) -> int:
    for place, (one_id, other_id) in enumerate(zip(first, second, strict=False)):
        if one_id != other_id:
            return place
    raise ValueError("one sequence begins with the other")


class ReadingLoss:
    """The reading loss of a model, all of whose weights are on this device.

    Args:
        chat: the policy's chat format: a verdict begins with its tokens of "yes" and "no".
        weight: the weight of this loss beside that of the tokens.
        layers: the layers whose hidden states are read; 1 is the first block. A verdict can use
            what earlier layers have found.
    """

    def __init__(self, chat: ChatFormat, weight: float, layers: Sequence[int]) -> None:
        self.weight = weight
        self.layers = layers
        self.yes = choice_ids(chat, VERDICT_TAG, "yes")[-1]
        self.no = choice_ids(chat, VERDICT_TAG, "no")[-1]
        self.states: dict[int, torch.Tensor] = {}

    def watch(self, model: Any) -> None:
        """Keep the hidden states of this model's forward passes. Raises `ConfigError` when it has
        fewer layers.
        """
        self.model = model
        blocks = model.get_decoder().layers
        if not self.layers or not all(1 <= layer <= len(blocks) for layer in self.layers):
            raise ConfigError(
                f"reading_layers {[*self.layers]}: name some of the model's layers, 1 to "
                f"{len(blocks)}"
            )

        def keep(layer: int, block: Any, args: Any, output: Any) -> None:
            self.states[layer] = output[0] if isinstance(output, tuple) else output

        for layer in self.layers:
            blocks[layer - 1].register_forward_hook(partial(keep, layer))

    def loss(self, labels: torch.Tensor) -> torch.Tensor:
        """The weight times the mean cross-entropy of "yes", in the last forward pass, at the tokens
        where `labels` (rows, tokens) are not -100.

        With h a hidden state divided by its root mean square and U the output embedding, the logit
        of "yes" against "no" is (U_yes - U_no)·h.
        """
        is_asked = labels != IGNORED
        asked_states = [self.states.pop(layer)[is_asked] for layer in self.layers]
        states = torch.cat(asked_states).float()  # (layers · asked tokens, size)
        embedding = self.model.get_output_embeddings().weight
        direction = (embedding[self.yes] - embedding[self.no]).float()
        logits = rms_norm(states, states.shape[-1:]) @ direction
        targets = labels[is_asked].float().repeat(len(self.layers))
        if not len(targets):
            return self.weight * logits.sum()  # 0, which the backward pass can go through
        return self.weight * binary_cross_entropy_with_logits(logits, targets)


def build_dataset(
    trajectories: Iterable[Trajectory],
    chat: ChatFormat,
    tools: Sequence[dict[str, Any]] = (),
    loss_on: Literal["agent", "all"] = "agent",
    max_length: int | None = None,
    verdict_token_weight: float = 1.0,
    copied_weight: float = 1.0,
    reading: bool = False,
    kept_responses: int = 0,
) -> Dataset:
    """Rows for `sft_trainer`, in the trajectories' order: `input_ids`, `labels`, `loss_weights` and
    `length`.

    Labels are the ids where there is a loss and -100 elsewhere.

    Args:
        trajectories: the episodes to learn from; of a twin only the last turn is learnt.
        chat: the policy's chat format.
        tools: the tools that the prompts describe.
        loss_on: "agent" puts the loss on what the agent writes, end-of-turn tokens included; "all"
            also on prompts and tool responses.
        max_length: longer rows are left out with a warning: half an episode would teach to stop in
            the middle.
        verdict_token_weight: how many times a verdict's token counts. Only a few of an episode's
            hundreds of tokens show whether its evidence was read.
        copied_weight: how many times a token counts, at least, that the agent takes from evidence
            just found; see `weigh_copied`.
        reading: add the column `reading_labels`, see the function of this name.
        kept_responses: see `rollout.Limits`. If it is not 0, each turn is a row of its own: what
            the agent sees then, and what it learns to write.

    Raises:
        DataError: if no episode is left.
    """
    # All rows are made before the long ones are left out: how often a token is copied is counted
    # over all.
    rows: list[dict[str, Any]] = []
    for trajectory in trajectories:
        rows += _rows(
            trajectory,
            chat,
            tools,
            loss_on=loss_on,
            verdict_token_weight=verdict_token_weight,
            reading=reading,
            kept_responses=kept_responses,
        )
    if copied_weight != 1.0:
        weigh_copied(rows, copied_weight)
    short = [row for row in rows if max_length is None or row["length"] <= max_length]
    if not short:
        longest = max((row["length"] for row in rows), default=0)
        raise DataError(
            f"none of {len(rows)} rows has at most {max_length} tokens (longest: {longest})"
        )
    if len(short) < len(rows):
        logger.warning(
            "%d of %d rows left out: over %d tokens", len(rows) - len(short), len(rows), max_length
        )
    return Dataset.from_list(short).remove_columns("copied")  # of no use to the trainer


def weigh_copied(rows: Sequence[dict[str, Any]], weight: float) -> None:
    """Set the `loss_weights` of the copied tokens, which stand at the places `copied` of the rows:
    `weight`, and up to `RAREST` times that for rare ones.

    A name is copied only after it was met often, and capitals are asked for ten times as often as
    rivers. So a token that is copied less often than the average counts more, until all names count
    alike.
    """
    times_copied: Counter[int] = Counter()  # by token
    for row in rows:
        times_copied.update(row["input_ids"][place] for place in row["copied"])
    average = times_copied.total() / max(1, len(times_copied))
    for row in rows:
        for place in row["copied"]:
            rarity = average / times_copied[row["input_ids"][place]]
            row["loss_weights"][place] = weight * min(RAREST, max(1.0, rarity))


def sft_trainer(
    model: Any,
    args: SFTConfig,
    dataset: Dataset,
    tokenizer: Any,
    peft_config: Any = None,
    reading: ReadingLoss | None = None,
) -> SFTTrainer:
    """TRL's `SFTTrainer` on rows of `build_dataset`, each token weighted as the row says; the loss
    of `reading` is added.

    Raises `ConfigError` if the settings would cut or join rows, and for a reading loss of a model
    that is sharded.
    """
    longest = max(dataset["length"])
    if args.max_length is not None and longest > args.max_length:
        raise ConfigError(
            f"rows of up to {longest} tokens for max_length={args.max_length}: pass it to "
            "build_dataset too"
        )
    if args.packing:
        raise ConfigError(
            "packing=True joins episodes and may cut them; group them by length instead"
        )
    args.remove_unused_columns = False  # the model's forward does not take the weights
    trainer = WeightedSFTTrainer(
        model,
        args,
        data_collator=WeightedCollator(
            pad_token_id=tokenizer.pad_token_id,
            # a number by now, whatever its type allows
            pad_to_multiple_of=cast(int | None, args.pad_to_multiple_of),
        ),
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=peft_config,
    )
    if reading:
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ConfigError(
                "the reading loss needs the whole model on each device: not under FSDP or DeepSpeed"
            )
        reading.watch(trainer.model)
        trainer.reading = reading
    return trainer


class WeightedCollator(DataCollatorForLanguageModeling):
    """TRL's collator, which also pads `loss_weights` and `reading_labels`."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().torch_call(examples)
        shape = batch["input_ids"].shape
        for name, padding in (("loss_weights", 0.0), ("reading_labels", IGNORED)):
            if all(example.get(name) is None for example in examples):
                continue
            padded = torch.full(shape, padding)
            for number, example in enumerate(examples):
                row = example.get(name)
                if row is not None:  # scored trajectories have no reading labels
                    padded[number, : len(row)] = torch.tensor(row)
            batch[name] = padded
        return batch


class WeightedSFTTrainer(SFTTrainer):
    """TRL's trainer with a weight for each token's loss, and with a reading loss. The mean is over
    tokens, whatever they weigh.
    """

    reading: ReadingLoss | None = None

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card: TRL's, made with each checkpoint, knows neither the base model nor the
        data.
        """

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        weights = inputs.pop("loss_weights")[:, 1:]  # the first token is never predicted
        labels = inputs.pop("reading_labels", None)

        def weighted(**model_inputs: Any) -> Any:
            # Rows are padded at their end, where no token before them looks. Without a mask,
            # attention skips what a token cannot see; with one it computes that and masks it.
            if not self.aux_loss_enabled:  # which leaves padding out by the mask
                model_inputs.pop("attention_mask", None)
            outputs = model(**model_inputs)
            outputs.log_probs = outputs.log_probs * weights
            return outputs

        result = super().compute_loss(weighted, inputs, *args, **kwargs)
        if self.reading is None or labels is None:
            return result
        reading = self.reading.loss(labels) / self.current_gradient_accumulation_steps
        if isinstance(result, tuple):
            return (result[0] + reading, *result[1:])
        return result + reading


def _rows(
    trajectory: Trajectory,
    chat: ChatFormat,
    tools: Sequence[dict[str, Any]],
    *,
    loss_on: str,
    verdict_token_weight: float,
    reading: bool,
    kept_responses: int,
) -> Iterator[dict[str, Any]]:
    """The rows of one trajectory: a single one, or one for each turn with `kept_responses`. Places
    of copied tokens stand in the column `copied`.
    """
    tokens = chat.transcript(trajectory, tools)
    ids = tokens.prompt_ids + tokens.completion_ids
    learnt = _learnt(trajectory, tokens, loss_on)
    # what a decorator says about evidence must not be learnt as a verdict
    judges_evidence = DECORATED not in trajectory.meta
    weights = [1.0] * len(ids)
    has_verdicts = judges_evidence and Citation().covers(trajectory.dialect)
    if has_verdicts and verdict_token_weight != 1.0:
        for place in _verdicts(trajectory, tokens, chat):
            weights[place] = verdict_token_weight
    labels = []
    for token, is_learnt in zip(ids, learnt, strict=True):
        labels.append(token if is_learnt else IGNORED)
    columns: dict[str, list[Any]] = {
        "input_ids": ids,
        "labels": labels,
        "loss_weights": weights,
    }
    if reading:
        columns["reading_labels"] = [IGNORED] * len(ids)
        if judges_evidence:
            columns["reading_labels"] = reading_labels(trajectory, tokens, chat)
    copied = _copied(trajectory, tokens) if judges_evidence else _recited(trajectory, tokens, chat)
    if not kept_responses:
        yield {**columns, "length": len(ids), "copied": copied}
        return
    prompt_length = len(tokens.prompt_ids)
    for number in range(len(tokens.turns)):
        turn = _turn_places(tokens, number)
        length_before = turn.start - prompt_length  # of the completion
        visible = visible_places(tokens.turns[:number], length_before, kept_responses)
        context = [*range(prompt_length), *(prompt_length + place for place in visible)]
        row = _row_of_turn(columns, context, turn, copied)
        if any(label != IGNORED for label in row["labels"]):
            yield row


def _turn_places(tokens: Tokens, number: int) -> range:
    """The places, in prompt and completion together, of what the agent wrote in a step."""
    start, middle, _ = tokens.turns[number]
    return range(len(tokens.prompt_ids) + start, len(tokens.prompt_ids) + middle)


def _response_places(tokens: Tokens, number: int) -> range:
    """The places, in prompt and completion together, of the tool response to a step."""
    _, middle, end = tokens.turns[number]
    return range(len(tokens.prompt_ids) + middle, len(tokens.prompt_ids) + end)


def _learnt(trajectory: Trajectory, tokens: Tokens, loss_on: str) -> list[bool]:
    """Whether there is a loss on each token of the transcript."""
    everything = loss_on == "all"
    learnt = [everything] * len(tokens.prompt_ids)
    learnt += [everything or bool(is_sampled) for is_sampled in tokens.mask]
    if "twin" in trajectory.meta:
        # the turns before the last are learnt from the episode itself
        before = _turn_places(tokens, -1).start
        learnt[:before] = [False] * before
    return learnt


def _verdicts(trajectory: Trajectory, tokens: Tokens, chat: ChatFormat) -> Iterator[int]:
    """The place of each verdict's token in the transcript."""
    for number, step in enumerate(trajectory.steps):
        if number and step.helpful is not None:
            place, _ = locate_verdict(chat.tokenizer, turn_ids(tokens, number))
            yield _turn_places(tokens, number).start + place


def _row_of_turn(
    columns: Mapping[str, list[Any]], context: Sequence[int], turn: range, copied: Sequence[int]
) -> dict[str, Any]:
    """The row of one turn: the places in `context`, of which nothing is learnt, and the turn."""
    places = [*context, *turn]
    row: dict[str, Any] = {}
    for name, column in columns.items():
        row[name] = [column[place] for place in places]
    row["labels"][: len(context)] = [IGNORED] * len(context)
    row["length"] = len(places)
    row["copied"] = [place - turn.start + len(context) for place in copied if place in turn]
    return row


def _copied(trajectory: Trajectory, tokens: Tokens) -> list[int]:
    """The places in the transcript where the agent writes what it has just found: in a turn after
    helpful evidence, the tokens of it that did not occur before.
    """
    ids = tokens.prompt_ids + tokens.completion_ids
    places: list[int] = []
    for number, step in enumerate(trajectory.steps):
        if number == 0 or not step.helpful:
            continue
        response = _response_places(tokens, number - 1)
        new = set(ids[response.start : response.stop]) - set(ids[: response.start])
        places += [place for place in _turn_places(tokens, number) if ids[place] in new]
    return places


def _recited(trajectory: Trajectory, tokens: Tokens, chat: ChatFormat) -> list[int]:
    """The places in a decorator's transcript where it first states what it is to remember."""
    if trajectory.meta[DECORATED] != "recited":
        return []
    ids = tokens.prompt_ids + tokens.completion_ids
    answer = set(chat.encode(trajectory.answer or ""))
    return [place for place in _turn_places(tokens, 0) if ids[place] in answer]
