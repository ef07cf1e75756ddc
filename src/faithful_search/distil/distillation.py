"""Distils a judge: trains a small model on labelled (information, thought) pairs to judge as their
labeller would.

In VERITAS, section 4, it is a language model tuned with LoRA, whose p("1") in the place of the
answer is the score. An encoder (or a small decoder) as classifier is ours, for machines without a
GPU.
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, DataCollatorWithPadding, EarlyStoppingCallback

from ..errors import ConfigError, DataError
from ..inference.loading import max_tokens, open_model
from ..inference.transformers import TransformersGenerator
from ..judges import Judge, prompting
from ..judges.distilled import FILE, JudgeFile
from ..judges.generator import GeneratorJudge
from ..judges.nli import NLIJudge
from ..measure.agreement import Agreement, Labelled, run as compare
from ..measure.agreement.labelled import RecordedJudge
from ..training import checkpoints
from . import heads
from .pairs import (
    Parts,
    class_weights,
    classifier_rows,
    divided,
    generator_rows,
    resampled,
)
from .settings import Distillation

# The judges in the table of the measurement: after training, before it, and the labeller once more
AFTER = "distilled"
BEFORE = "untrained"
SECOND = "second run"


class Distilled(NamedTuple):
    """A trained judge: its directory, its `judge.json`, and how it agrees with the held-out labels;
    `None` in processes other than the first, which do not measure.
    """

    folder: Path
    file: JudgeFile
    agreement: Agreement | None


def train_judge(
    rows: Sequence[Labelled],
    model: str,
    args: Any,
    settings: Distillation | None = None,
    *,
    peft_config: Any = None,
    beside: Mapping[str, Judge] | None = None,
    second: Sequence[Labelled] = (),
    model_kwargs: Mapping[str, Any] | None = None,
    base_name: str | None = None,
    resume: bool = False,
) -> Distilled:
    """Train a judge on the training rows, calibrate it, save it to `args.output_dir`, and measure
    it.

    The held-out rows are judged once, at the end, by the judge as it was saved.

    Args:
        rows: of `labelled.load`; their split says what each is for.
        model: Hub id or directory to start from.
        args: TRL's `SFTConfig`. The state with the best κ on the validation pairs is kept.
        settings: what is trained, and how.
        peft_config: of the generator's adapter.
        beside: other judges to measure on the same held-out rows, by their names in the table.
        second: the same pairs labelled once more: how far the labeller agrees with itself.
        model_kwargs: for `from_pretrained`.
        base_name: what the judge's file and the results call the model to start from.
        resume: resume from the last complete checkpoint in `args.output_dir`.

    Raises:
        ConfigError: for settings that do not fit together, or a model that cannot be opened.
        DataError: if there are too few rows.
    """
    settings = settings or Distillation()
    kwargs = dict(model_kwargs or {})
    base_name = base_name or model
    parts = divided(rows, settings.validation)
    trainer = _trainer(parts, model, args, settings, peft_config, kwargs)
    checkpoints.train(trainer, resume)
    file = _save(trainer, parts, base_name, args, settings)
    trainer.accelerator.wait_for_everyone()
    measures = trainer.is_world_process_zero()
    del trainer  # its model and optimizer make room for the judges that are measured
    if not measures:
        return Distilled(Path(args.output_dir), file, None)
    judges = {**_measured(model, base_name, args, settings, kwargs), **(beside or {})}
    if second:
        judges[SECOND] = RecordedJudge.of(second)
    agreement = compare(
        parts.heldout, judges, args.output_dir, seed=args.seed, progress=not args.disable_tqdm
    )
    return Distilled(Path(args.output_dir), file, agreement)


def _trainer(
    parts: Parts,
    name: str,
    args: Any,
    settings: Distillation,
    peft_config: Any,
    kwargs: dict[str, Any],
) -> Any:
    """The trainer of a head; see `train_judge`."""
    args = copy.copy(args)
    if str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "no":
        raise ConfigError(
            "set eval_strategy to 'steps' or 'epoch': the judge with the best κ is kept"
        )
    # The state with the best κ can only be loaded if every evaluation has a checkpoint.
    args.save_strategy = type(args.save_strategy)(args.eval_strategy.value)
    args.save_steps = args.eval_steps or 500
    args.load_best_model_at_end = True
    args.metric_for_best_model = "kappa"
    args.greater_is_better = True
    # Else a resumed run would forget for how long the judge has not become better.
    args.restore_callback_states_from_checkpoint = True
    args.save_only_model = False
    if settings.head == "encoder" and peft_config is not None:
        raise ConfigError(
            "the encoder head is trained whole (or with layers frozen): leave use_peft to the "
            "generator"
        )
    rows: Sequence[Labelled] = parts.train
    if settings.balance == "resample":
        rows = resampled(parts.train, args.seed)
    model, tokenizer = _open(name, args, settings, kwargs)
    judging = partial(_judge, tokenizer=tokenizer, name=name, args=args, settings=settings)
    kind: Any = heads.ClassifierTrainer if settings.head == "encoder" else heads.LabelTrainer
    if settings.head == "encoder":
        heads.freeze(model, settings.freeze_embeddings, settings.freeze_layers)
        entails = heads.entailment_index(model)
        false_weight, true_weight = 1.0, 1.0
        if settings.balance == "weights":
            false_weight, true_weight = class_weights(parts.train)
        # In the order of the model's labels
        weights = (false_weight, true_weight) if entails else (true_weight, false_weight)
        loss = partial(heads.weighted_loss, weights=weights)
        trainer_kwargs = {
            "compute_loss_func": loss,
            "data_collator": DataCollatorWithPadding(tokenizer),
        }
        examples = classifier_rows(judging(model), rows, entails)
    else:
        trainer_kwargs = {"peft_config": peft_config}
        examples = generator_rows(judging(model), rows)
    if not examples:
        raise DataError(
            "no pair is left to train on: every hypothesis is empty, or no prompt fits into "
            "max_length"
        )
    dataset = Dataset.from_list(examples)
    return kind(
        model,
        args,
        judging=judging,
        pairs=parts.validation,
        train_dataset=dataset,
        eval_dataset=dataset.select([0]),  # not read, but without one the trainer does not evaluate
        processing_class=tokenizer,
        callbacks=[EarlyStoppingCallback(settings.patience)] if settings.patience else [],
        **trainer_kwargs,
    )


def _open(name: str, args: Any, settings: Distillation, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The model to start from, and its tokenizer."""
    if settings.head == "encoder":
        return heads.open_classifier(name, args.seed, **kwargs)
    return open_model(AutoModelForCausalLM, name, device="cpu" if args.use_cpu else None, **kwargs)


def _judge(model: Any, tokenizer: Any, name: str, args: Any, settings: Distillation) -> Any:
    """A judge with this model."""
    if settings.head == "encoder":
        return NLIJudge(model, tokenizer, name, window=settings.window, stride=settings.stride)
    limits = [size for size in (args.max_length, max_tokens(model, tokenizer)) if size]
    # One token of the limit is the label's.
    window = min(limits, default=GeneratorJudge.window + 1) - 1
    return GeneratorJudge(TransformersGenerator(model, tokenizer), name, window=window)


def _save(
    trainer: Any, parts: Parts, base_name: str, args: Any, settings: Distillation
) -> JudgeFile:
    """Save the model, and `judge.json` with the temperature fitted to the saved model's own p."""
    if settings.save_dtype:  # before the temperature is fitted: rounding moves p
        trainer.model.to(getattr(torch, settings.save_dtype))
    trainer.save_model()
    tasks = {row.task for row in parts.train}
    task = tasks.pop() if len(tasks) == 1 else "support"
    is_encoder = settings.head == "encoder"
    file = JudgeFile(
        kind="nli" if is_encoder else "generator",
        task=task,
        prompt=None if is_encoder else prompting.load(task).id,
        base_model=base_name,
        trained_on=tuple(dict.fromkeys(row.source for row in parts.train)),
        window=trainer.judging(trainer.model).window,
        stride=settings.stride if is_encoder else None,
    )
    if trainer.is_world_process_zero():
        # Written twice: the temperature is fitted to the judge as it is opened from this directory.
        file.write(args.output_dir)
        verdicts = _load(args, settings).judge_batch([row.pair for row in parts.validation])
        probabilities: list[float] = []
        labels: list[bool] = []
        for verdict, row in zip(verdicts, parts.validation, strict=True):
            if verdict.p is not None:
                probabilities.append(verdict.p)
                labels.append(row.label)
        temperature = heads.fit_temperature(probabilities, labels)
        file = msgspec.structs.replace(file, temperature=temperature)
        file.write(args.output_dir)
    return file


def _measured(
    model: str, base_name: str, args: Any, settings: Distillation, kwargs: dict[str, Any]
) -> dict[str, Judge]:
    """The judges after and before training, by their names in the table.

    Their own names say which weights and which dtype they have, since verdicts are kept by them.
    """
    precision = f" in {settings.measure_dtype}" if settings.measure_dtype else ""
    judge = _load(args, settings, settings.measure_dtype)
    # A digest of the saved files: the verdicts of a judge that was in the directory before must not
    # be taken for this one's.
    digest = hashlib.sha256()
    weights = Path(args.output_dir).glob("*.safetensors")
    for path in sorted([*weights, Path(args.output_dir) / FILE]):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    source = f"{judge.source}#{digest.hexdigest()[:8]}{precision}"
    judges: dict[str, Judge] = {AFTER: replace(judge, source=source)}
    if settings.untrained:
        where: dict[str, Any] = {
            key: kwargs[key] for key in ("revision", "trust_remote_code") if key in kwargs
        }
        opening = dict(kwargs) if settings.head == "encoder" else where
        if settings.measure_dtype:
            opening["dtype"] = settings.measure_dtype
        untrained, tokenizer = _open(model, args, settings, opening)
        untrained = untrained.to(args.device).eval()
        name = f"{base_name} (untrained){precision}"
        judges[BEFORE] = _judge(untrained, tokenizer, name, args, settings)
    return judges


def _load(args: Any, settings: Distillation, dtype: str | None = None) -> Any:
    """The judge as it was saved."""
    kind: Any = NLIJudge if settings.head == "encoder" else GeneratorJudge
    return kind.from_pretrained(
        args.output_dir,
        device=str(args.device),
        dtype=dtype,
        trust_remote_code=args.trust_remote_code,
    )
