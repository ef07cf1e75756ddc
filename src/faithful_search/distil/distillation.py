"""Distils a judge: from labelled (information, thought) pairs to a small model that judges as the labeller would.

VERITAS, section 4: a language model tuned with LoRA whose p("1") at the answer's position is the score. Ours besides:
an encoder (or a small decoder) as classifier, for machines without a GPU.
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, DataCollatorWithPadding, EarlyStoppingCallback

from ..errors import ConfigError, DataError
from ..flags import check_choices, check_least, flag, refuse
from ..inference.loading import max_tokens, open_model
from ..inference.transformers import TransformersGenerator
from ..judges import Judge, prompting
from ..judges.distilled import FILE, JudgeFile
from ..judges.generator import GeneratorJudge
from ..judges.nli import NLIJudge
from ..measure.agreement import Agreement, Labelled, run as compare
from ..measure.agreement.labelled import RecordedJudge
from ..training import checkpoints
from ..training.policies import check_dtype
from . import heads
from .pairs import (
    Balance,
    Parts,
    class_weights,
    classifier_rows,
    divided,
    generator_rows,
    resampled,
)

Head = Literal["encoder", "generator"]
AFTER, BEFORE, SECOND = "distilled", "untrained", "second run"


@dataclass
class Distillation:
    """How a judge is distilled; learning rate, batches and steps are the trainer's own settings. The `encoder` head
    becomes an `nli` judge. `save_dtype` is by default that of training; the temperature is fitted to the judge as it
    loads, whatever `measure_dtype` is. Values that do not fit together are a `ConfigError`."""

    head: Head = flag("encoder", "'encoder' (a classifier) or 'generator' (p of 1 and 0)")
    balance: Balance = flag(
        "resample", "of the labels: 'resample' the rarer, 'weights' (encoder only) or 'none'"
    )
    validation: float = flag(0.1, "share of the groups set aside to stop and calibrate by")
    patience: int = flag(5, "evaluations without a better kappa before it stops; 0: never")
    freeze_embeddings: bool = flag(False, "freeze an encoder's embeddings")
    freeze_layers: int = flag(0, "how many of an encoder's lowest layers are frozen")
    window: int = flag(384, "tokens of a premise that an encoder reads at once")
    stride: int = flag(64, "tokens that neighbouring windows share")
    save_dtype: str | None = flag(None, "dtype of the saved weights, such as float16")
    measure_dtype: str | None = flag(
        None, "dtype in which the judges are measured, such as bfloat16; default as they load"
    )
    untrained: bool = flag(True, "measure the model before training too")

    def __post_init__(self) -> None:
        check_choices(self, {"head": get_args(Head), "balance": get_args(Balance)})
        generates, frozen = self.head == "generator", self.freeze_embeddings or self.freeze_layers
        own_loss = (
            "the generator head learns with the language model's own loss: balance by 'resample'"
        )
        share = f"validation is a share of the pairs, above 0 and below 1, got {self.validation}"
        refuse(
            [
                (generates and self.balance == "weights", own_loss),
                (
                    generates and frozen,
                    "freeze_… goes with the encoder head; a generator takes LoRA",
                ),
                (not 0 < self.validation < 1, share),
            ]
        )
        check_least(self, patience=0, freeze_layers=0)
        check_dtype(self.save_dtype)
        check_dtype(self.measure_dtype)


class Distilled(NamedTuple):
    folder: Path
    file: JudgeFile
    agreement: Agreement | None


def train_judge(
    rows: Sequence[Labelled],
    model: str,
    args: Any,
    how: Distillation | None = None,
    *,
    peft_config: Any = None,
    beside: Mapping[str, Judge] | None = None,
    second: Sequence[Labelled] = (),
    model_kwargs: Mapping[str, Any] | None = None,
    base_name: str | None = None,
    resume: bool = False,
) -> Distilled:
    """Train a judge on the training rows, calibrate it, save it to `args.output_dir`, and measure it.

    The held-out rows are judged once, at the end, by the judge as it was saved.

    Args:
        rows: of `labelled.load`; their split says what each is for.
        model: Hub id or directory to start from; `base_name` is what the judge's file and the results call it.
        args: TRL's `SFTConfig`. The state with the best κ on the validation pairs is kept.
        how: what is trained, and how; `peft_config` is of the generator's adapter, `model_kwargs` for
            `from_pretrained`.
        beside: other judges to measure on the same held-out rows, by their names in the table.
        second: the same pairs labelled once more: how far the labeller agrees with itself.
        resume: resume from the last complete checkpoint in `args.output_dir`.

    Raises:
        ConfigError: for settings that do not fit together, or a model that cannot be opened.
        DataError: if there are too few rows.
    """
    how, given, base_name = how or Distillation(), dict(model_kwargs or {}), base_name or model
    parts = divided(rows, how.validation)
    trainer = _trainer(parts, model, args, how, peft_config, given)
    checkpoints.train(trainer, resume)
    file = _save(trainer, parts, base_name, args, how)
    trainer.accelerator.wait_for_everyone()
    measures = trainer.is_world_process_zero()
    del trainer  # its model and optimizer make room for the judges that are measured
    if not measures:
        return Distilled(Path(args.output_dir), file, None)
    judges = {**_measured(model, base_name, args, how, given), **(beside or {})}
    if second:
        judges[SECOND] = RecordedJudge.of(second)
    found = compare(
        parts.heldout, judges, args.output_dir, seed=args.seed, progress=not args.disable_tqdm
    )
    return Distilled(Path(args.output_dir), file, found)


def _trainer(
    parts: Parts, name: str, args: Any, how: Distillation, peft_config: Any, kwargs: dict[str, Any]
) -> Any:
    args = copy.copy(args)
    if str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "no":
        raise ConfigError(
            "set eval_strategy to 'steps' or 'epoch': the judge with the best κ is kept"
        )
    # The state with the best κ can only be loaded if every evaluation has a checkpoint.
    args.save_strategy, args.save_steps = (
        type(args.save_strategy)(args.eval_strategy.value),
        args.eval_steps or 500,
    )
    args.load_best_model_at_end, args.metric_for_best_model, args.greater_is_better = (
        True,
        "kappa",
        True,
    )
    args.restore_callback_states_from_checkpoint = (
        True  # or a resumed run would forget how long it has been patient
    )
    args.save_only_model = False
    if how.head == "encoder" and peft_config is not None:
        raise ConfigError(
            "the encoder head is trained whole (or with layers frozen): leave use_peft to the generator"
        )
    rows: Sequence[Labelled] = (
        resampled(parts.train, args.seed) if how.balance == "resample" else parts.train
    )
    model, tokenizer = _opened(name, args, how, kwargs)
    judging = partial(_judge, tokenizer=tokenizer, name=name, args=args, how=how)
    kind: Any = heads.ClassifierTrainer if how.head == "encoder" else heads.LabelTrainer
    if how.head == "encoder":
        heads.freeze(model, how.freeze_embeddings, how.freeze_layers)
        entails = heads.entailment_index(model)
        false, true = class_weights(parts.train) if how.balance == "weights" else (1.0, 1.0)
        loss = partial(heads.weighted_loss, weights=(false, true) if entails else (true, false))
        more = {"compute_loss_func": loss, "data_collator": DataCollatorWithPadding(tokenizer)}
        made = classifier_rows(judging(model), rows, entails)
    else:
        more, made = {"peft_config": peft_config}, generator_rows(judging(model), rows)
    if not made:
        raise DataError(
            "no pair is left to train on: every hypothesis is empty, or no prompt fits into max_length"
        )
    dataset = Dataset.from_list(made)
    return kind(
        model,
        args,
        judging=judging,
        pairs=parts.validation,
        train_dataset=dataset,
        eval_dataset=dataset.select([0]),  # not read, but without one the trainer does not evaluate
        processing_class=tokenizer,
        callbacks=[EarlyStoppingCallback(how.patience)] if how.patience else [],
        **more,
    )


def _opened(name: str, args: Any, how: Distillation, given: dict[str, Any]) -> tuple[Any, Any]:
    if how.head == "encoder":
        return heads.open_classifier(name, args.seed, **given)
    return open_model(AutoModelForCausalLM, name, device="cpu" if args.use_cpu else None, **given)


def _judge(model: Any, tokenizer: Any, name: str, args: Any, how: Distillation) -> Any:
    if how.head == "encoder":
        return NLIJudge(model, tokenizer, name, window=how.window, stride=how.stride)
    # of the tokens of the longest prompt one is the label's
    known = [size for size in (args.max_length, max_tokens(model, tokenizer)) if size]
    window = min(known, default=GeneratorJudge.window + 1) - 1
    return GeneratorJudge(TransformersGenerator(model, tokenizer), name, window=window)


def _save(trainer: Any, parts: Parts, base_name: str, args: Any, how: Distillation) -> JudgeFile:
    """Save the model, and `judge.json` with the temperature fitted to the saved model's own p."""
    if how.save_dtype:  # before the temperature is fitted: rounding moves p
        trainer.model.to(getattr(torch, how.save_dtype))
    trainer.save_model()
    tasks, encodes = {row.task for row in parts.train}, how.head == "encoder"
    task = tasks.pop() if len(tasks) == 1 else "support"
    file = JudgeFile(
        kind="nli" if encodes else "generator",
        task=task,
        prompt=None if encodes else prompting.load(task).id,
        base_model=base_name,
        trained_on=tuple(dict.fromkeys(row.source for row in parts.train)),
        window=trainer.judging(trainer.model).window,
        stride=how.stride if encodes else None,
    )
    if trainer.is_world_process_zero():
        file.write(
            args.output_dir
        )  # written twice: the temperature is fitted to the judge as it opens from here
        verdicts = _load(args, how).judge_batch([row.pair for row in parts.validation])
        judged = [
            (own.p, row.label)
            for own, row in zip(verdicts, parts.validation, strict=True)
            if own.p is not None
        ]
        temperature = heads.fit_temperature([p for p, _ in judged], [label for _, label in judged])
        file = msgspec.structs.replace(file, temperature=temperature)
        file.write(args.output_dir)
    return file


def _measured(
    model: str, base_name: str, args: Any, how: Distillation, given: dict[str, Any]
) -> dict[str, Judge]:
    """The judges after and before training; their names tell weights and dtype, by which kept verdicts are found."""
    read = f" in {how.measure_dtype}" if how.measure_dtype else ""
    made, digest = _load(args, how, how.measure_dtype), hashlib.sha256()
    # Of the saved judge, so that verdicts kept beside it are not taken for those of one that was there before.
    for path in sorted(
        [*Path(args.output_dir).glob("*.safetensors"), Path(args.output_dir) / FILE]
    ):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    found: dict[str, Judge] = {
        AFTER: replace(made, source=f"{made.source}#{digest.hexdigest()[:8]}{read}")
    }
    if how.untrained:
        where: dict[str, Any] = {
            key: given[key] for key in ("revision", "trust_remote_code") if key in given
        }
        dtype = {"dtype": how.measure_dtype} if how.measure_dtype else {}
        opened, tokenizer = _opened(
            model, args, how, {**(given if how.head == "encoder" else where), **dtype}
        )
        name = f"{base_name} (untrained){read}"
        found[BEFORE] = _judge(opened.to(args.device).eval(), tokenizer, name, args, how)
    return found


def _load(args: Any, how: Distillation, dtype: str | None = None) -> Any:
    kind: Any = NLIJudge if how.head == "encoder" else GeneratorJudge
    trusted = {"trust_remote_code": args.trust_remote_code}
    return kind.from_pretrained(args.output_dir, device=str(args.device), dtype=dtype, **trusted)
