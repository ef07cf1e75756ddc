"""The supervised start: episodes as token rows, and TRL's trainer on them, with a loss of its own for reading.

A verdict is one token after a whole response. From that token's loss alone, a small policy does not learn to compare
what it reads with what it asked for. So the reading loss puts the question where the answer arises: at the end of each
piece of evidence, and of the response, the hidden state of a layer is read as if it were the last layer's (the logit
lens) and has to say "yes" or "no". Nothing is sampled there, and no weights are added. Ours; not in the papers.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from datasets import Dataset
from torch.nn.functional import binary_cross_entropy_with_logits, rms_norm
from torch.nn.utils.rnn import pad_sequence
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from ..errors import ConfigError, DataError
from ..inference.chat import ChatFormat
from ..rewards import Citation
from ..rewards.contexts import VERDICT_TAG, choice_ids, locate_verdict, turn_ids
from ..rollout.episode import seen
from ..trajectory import Evidence, Tokens, Trajectory
from .decorators import DECORATED

IGNORED = -100
logger = logging.getLogger(__name__)


def reading_labels(trajectory: Trajectory, tokens: Tokens, chat: ChatFormat) -> list[int]:
    """For each token of a transcript: does the piece of evidence that ends there state the fact? 1, 0, elsewhere -100.

    A piece states it if the next step cites it. All tokens between the last piece and the agent's next turn are asked
    whether any piece does, so that this question is not outnumbered. The dialect is one whose steps judge the evidence
    before them; `tokens` are the trajectory's `ChatFormat.transcript`.
    """
    labels = [IGNORED] * (len(tokens.prompt_ids) + len(tokens.completion_ids))
    for (step, judged_by), (_, start, end) in zip(
        pairwise(trajectory.steps), tokens.turns, strict=False
    ):
        if judged_by.helpful is None or not step.evidence:
            continue
        first, ends = len(tokens.prompt_ids) + start, piece_ends(step.evidence, chat)
        for item, place in zip(step.evidence, ends, strict=True):
            labels[first + place] = int(item.id in judged_by.refs)
        rest = range(first + ends[-1] + 1, len(tokens.prompt_ids) + end)
        labels[rest.start : rest.stop] = [int(judged_by.helpful)] * len(rest)
    return labels


def piece_ends(evidence: Sequence[Evidence], chat: ChatFormat) -> list[int]:
    """Where in the ids of a tool response each piece of evidence ends: at the last token it has in common with the
    response that holds one piece less, or one more."""
    pieces = [*evidence, evidence[0]]
    shown = (chat.render_observation(pieces[:count]) for count in range(1, len(pieces) + 1))
    written = pairwise(chat.observation_ids(text, ended=True) for text in shown)
    return [
        next(place for place, (a, b) in enumerate(zip(*pair, strict=False)) if a != b) - 1
        for pair in written
    ]


class Reading:
    """The reading loss of a model, all of whose weights are on this device.

    Args:
        chat: of the policy: a verdict begins with its tokens of "yes" and "no".
        weight: of this loss beside that of the tokens.
        layers: whose hidden states are read (1 is the first block; a verdict can use what earlier layers have found).
    """

    def __init__(self, chat: ChatFormat, weight: float, layers: Sequence[int]) -> None:
        self.weight, self.layers = weight, layers
        self.yes, self.no = (choice_ids(chat, VERDICT_TAG, word)[-1] for word in ("yes", "no"))
        self.states: dict[int, torch.Tensor] = {}

    def watch(self, model: Any) -> None:
        """Keep the hidden states of this model's forward passes. Raises `ConfigError` when it has fewer layers."""
        self.model, blocks = model, model.get_decoder().layers
        if not self.layers or not all(1 <= layer <= len(blocks) for layer in self.layers):
            raise ConfigError(
                f"reading_layers {[*self.layers]}: name some of the model's layers, 1 to {len(blocks)}"
            )

        def keep(layer: int, block: Any, given: Any, output: Any) -> None:
            self.states[layer] = output[0] if isinstance(output, tuple) else output

        for layer in self.layers:
            blocks[layer - 1].register_forward_hook(partial(keep, layer))

    def loss(self, labels: torch.Tensor) -> torch.Tensor:
        """The weight times the mean cross-entropy of "yes" where `labels` (rows, tokens) ask, in the last forward pass.
        With h a hidden state divided by its root mean square and U the output embedding, the logit of "yes" against
        "no" is (U_yes - U_no)·h."""
        asked = labels != IGNORED
        weight = self.model.get_output_embeddings().weight
        states = torch.cat([self.states.pop(layer)[asked] for layer in self.layers]).float()
        logits = rms_norm(states, states.shape[-1:]) @ (weight[self.yes] - weight[self.no]).float()
        wanted = labels[asked].float().repeat(len(self.layers))
        loss = binary_cross_entropy_with_logits(logits, wanted) if len(wanted) else logits.sum()
        return self.weight * loss


def build_dataset(
    trajectories: Iterable[Trajectory],
    chat: ChatFormat,
    tools: Sequence[dict[str, Any]] = (),
    loss_on: Literal["agent", "all"] = "agent",
    max_length: int | None = None,
    verdict_weight: float = 1.0,
    copied_weight: float = 1.0,
    reading: bool = False,
    kept_responses: int = 0,
) -> Dataset:
    """Rows `input_ids`, `labels`, `loss_weights`, `length` that `sft_trainer` takes, in the trajectories' order.

    Labels are the ids where there is a loss and -100 elsewhere: with `loss_on="agent"` on what the agent writes,
    end-of-turn tokens included; with `"all"` also on prompt and tool responses; of a twin only on its last turn. A
    verdict's token counts `verdict_weight` times, one that the agent takes from evidence just found at least
    `copied_weight` times (see `weigh_copied`), all others once: only a few of an episode's hundreds of tokens show
    whether its evidence was read. With `reading` rows also hold `reading_labels`, see there. With `kept_responses` (see
    `rollout.Limits`) each turn is a row of its own: what the agent sees then, and what it learns to write. Rows longer
    than `max_length` are left out with a warning: half an episode would teach to stop in the middle. Raises `DataError`
    if no episode is left.
    """
    # Tokenised first and filtered then: how often a token is copied is counted over all rows.
    how = chat, tools, loss_on, verdict_weight, reading, kept_responses
    rows = [row for trajectory in trajectories for row in _rows(trajectory, *how)]
    if copied_weight != 1.0:
        weigh_copied(rows, copied_weight)
    kept = [row for row in rows if max_length is None or row["length"] <= max_length]
    if not kept:
        longest = max((row["length"] for row in rows), default=0)
        raise DataError(
            f"none of {len(rows)} rows has at most {max_length} tokens (longest: {longest})"
        )
    if len(kept) < len(rows):
        logger.warning(
            "%d of %d rows left out: over %d tokens", len(rows) - len(kept), len(rows), max_length
        )
    return Dataset.from_list(kept).remove_columns("copied")  # of no use to the trainer


def weigh_copied(rows: Sequence[dict[str, Any]], weight: float, most: float = 5.0) -> None:
    """Set `loss_weights` at the places `copied` of the rows: to `weight`, and up to `most` times that for rare tokens.
    A name is copied only after it was met often, and capitals are asked for ten times as often as rivers. So a token
    that is copied less often than the average counts more, until all names count alike."""
    count = Counter(row["input_ids"][place] for row in rows for place in row["copied"])
    usual = count.total() / max(1, len(count))
    for row in rows:
        for place in row["copied"]:
            rarity = usual / count[row["input_ids"][place]]
            row["loss_weights"][place] = weight * min(most, max(1.0, rarity))


def sft_trainer(
    model: Any,
    args: SFTConfig,
    dataset: Dataset,
    tokenizer: Any,
    peft_config: Any = None,
    reading: Reading | None = None,
) -> SFTTrainer:
    """TRL's `SFTTrainer` on rows of `build_dataset`, each token weighted as the row says; with `reading` its loss is
    added. Raises `ConfigError` if the settings would cut or join rows; for a reading loss of a model that is sharded.
    """
    longest, most = max(dataset["length"]), args.max_length
    if most is not None and longest > most:
        raise ConfigError(
            f"rows of up to {longest} tokens for max_length={most}: pass it to build_dataset too"
        )
    if args.packing:
        raise ConfigError(
            "packing=True joins episodes and may cut them; group them by length instead"
        )
    args.remove_unused_columns = False  # the model's forward does not take the weights
    trainer = WeightedSFTTrainer(
        model,
        args,
        data_collator=WeightedCollator(pad_token_id=tokenizer.pad_token_id),
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
        for name, padding in (("loss_weights", 0.0), ("reading_labels", IGNORED)):
            if any(example.get(name) is not None for example in examples):
                # scored trajectories are asked nothing about what is read
                rows = [
                    example.get(name) or [padding] * len(example["input_ids"])
                    for example in examples
                ]
                columns = [torch.tensor(row) for row in rows]
                batch[name] = pad_sequence(columns, batch_first=True, padding_value=padding)
        return batch


class WeightedSFTTrainer(SFTTrainer):
    """TRL's trainer with a weight for each token's loss, whose mean is over tokens, and a reading loss."""

    reading: Reading | None = None

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes none: TRL's, made with each checkpoint, knows neither the base model nor the data."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        weights = inputs.pop("loss_weights")[:, 1:]
        asked = inputs.pop("reading_labels", None)

        def weighted(**given: Any) -> Any:
            outputs = model(**given)
            outputs.log_probs = outputs.log_probs * weights
            return outputs

        result = super().compute_loss(weighted, inputs, *args, **kwargs)
        if self.reading is None or asked is None:
            return result
        reading = self.reading.loss(asked) / self.current_gradient_accumulation_steps
        return (result[0] + reading, *result[1:]) if isinstance(result, tuple) else result + reading


def _rows(
    trajectory: Trajectory,
    chat: ChatFormat,
    tools: Sequence[dict[str, Any]],
    loss_on: str,
    verdict_weight: float,
    reading: bool,
    kept_responses: int,
) -> Iterator[dict[str, Any]]:
    tokens = chat.transcript(trajectory, tools)
    ids, first = tokens.prompt_ids + tokens.completion_ids, len(tokens.prompt_ids)
    learnt = [loss_on == "all"] * first + [loss_on == "all" or bool(own) for own in tokens.mask]
    if "twin" in trajectory.meta:
        before = first + tokens.turns[-1][0]  # the turns before are learnt from the episode itself
        learnt[:before] = [False] * before
    weights = [1.0] * len(ids)
    reads = (
        DECORATED not in trajectory.meta
    )  # what a decorator says about evidence must not be learnt as a verdict
    if verdict_weight != 1.0 and reads and Citation().covers(trajectory.dialect):
        for number, step in enumerate(trajectory.steps):
            if number and step.helpful is not None:
                place, _ = locate_verdict(chat.tokenizer, turn_ids(tokens, number))
                weights[first + tokens.turns[number][0] + place] = verdict_weight
    labels = [token if learn else IGNORED for token, learn in zip(ids, learnt, strict=True)]
    columns: dict[str, list[Any]] = {"input_ids": ids, "labels": labels, "loss_weights": weights}
    if reading:
        columns["reading_labels"] = (
            reading_labels(trajectory, tokens, chat) if reads else [IGNORED] * len(ids)
        )
    copied = _copied(trajectory, tokens, chat)
    if not kept_responses:
        yield {**columns, "length": len(ids), "copied": copied}
        return
    for number, (start, middle, _) in enumerate(tokens.turns):
        context = [
            *range(first),
            *(first + place for place in seen(tokens.turns[:number], start, kept_responses)),
        ]
        shown = [*context, *range(first + start, first + middle)]
        row = {name: [column[place] for place in shown] for name, column in columns.items()}
        row["labels"][: len(context)] = [IGNORED] * len(context)
        own = [
            place - first - start + len(context)
            for place in copied
            if start <= place - first < middle
        ]
        if row["labels"].count(IGNORED) < len(shown):
            yield {**row, "length": len(shown), "copied": own}


def _copied(trajectory: Trajectory, tokens: Tokens, chat: ChatFormat) -> list[int]:
    """The places in the row that count more: where the agent writes what it has just found (in a turn after helpful
    evidence, tokens of it that did not occur before), and where a decorator first states what it is to remember."""
    ids, first = tokens.prompt_ids + tokens.completion_ids, len(tokens.prompt_ids)
    if DECORATED in trajectory.meta:
        recited = trajectory.meta[DECORATED] == "recited"
        answer = {*chat.encode(trajectory.answer or "")} if recited else set()
        start, end, _ = tokens.turns[0]
        return [place for place in range(first + start, first + end) if ids[place] in answer]
    places: list[int] = []
    for number, step in enumerate(trajectory.steps):
        if number and step.helpful:
            _, came, start = (first + place for place in tokens.turns[number - 1])
            new = {*ids[came:start]} - {*ids[:came]}
            places += [
                place
                for place in range(start, first + tokens.turns[number][1])
                if ids[place] in new
            ]
    return places
