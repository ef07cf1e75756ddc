"""Distils a judge: from labelled (information, thought) pairs to a small model that judges as the
labeller would.

VERITAS, section 4: a language model tuned with LoRA whose p("1") at the answer's position is the
score. Ours besides: an encoder (or a small decoder) as classifier, for machines without a GPU.
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
from ..judges.span import SpanJudge
from ..judges.span_inputs import SpanReader
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
from .span_calibration import calibrate
from .span_export import TorchNetwork, export
from .span_model import collate, is_saved, open_saved, open_span_model, save, span_rows

AFTER, BEFORE, SECOND = "distilled", "untrained", "second run"


class Distilled(NamedTuple):
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
    calibration: Sequence[Labelled] = (),
    model_kwargs: Mapping[str, Any] | None = None,
    base_name: str | None = None,
    resume: bool = False,
) -> Distilled:
    """Train a judge on the training rows, calibrate it, save it to `args.output_dir`, and measure
    it.

    The held-out rows are judged once, at the end, by the judge as it was saved.

    Args:
        rows: of `labelled.load`; their split says what each is for.
        model: Hub id or directory to start from; `base_name` is what the judge's file and the
            results call it.
        args: TRL's `SFTConfig`. The state with the best κ on the validation pairs is kept.
        settings: what is trained, and how; `peft_config` is of the generator's adapter, `model_kwargs`
            for `from_pretrained`.
        beside: other judges to measure on the same held-out rows, by their names in the table.
        second: the same pairs labelled once more: how far the labeller agrees with itself.
        calibration: pairs of the training side by which the judge is calibrated; those that it was
            trained on are left out. By default the validation pairs.
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
    unseen = _calibration_rows(parts, calibration)
    file = _save(trainer, parts, unseen, base_name, args, settings)
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
    # or a resumed run would forget how long it has been patient
    args.restore_callback_states_from_checkpoint = True
    args.save_only_model = False
    trains_a_part = peft_config is not None or "quantization_config" in kwargs
    if trains_a_part and settings.head != "generator":
        raise ConfigError(
            f"the {settings.head} head is trained whole (or with layers frozen): leave use_peft "
            "and quantised weights to the generator"
        )
    rows: Sequence[Labelled] = parts.train
    if settings.balance == "resample":
        rows = resampled(parts.train, args.seed)
    model, tokenizer = _open(name, args, settings, kwargs)
    make_judge = partial(_judge, tokenizer=tokenizer, name=name, args=args, settings=settings)
    kind: Any = heads.LabelTrainer
    if settings.head == "spans":
        kind = partial(heads.SpanTrainer, head_learning_rate=settings.head_learning_rate)
        heads.freeze(model, settings.freeze_embeddings, settings.freeze_layers)
        trainer_kwargs: dict[str, Any] = {
            "data_collator": partial(collate, pad_to_multiple_of=args.pad_to_multiple_of)
        }
        args.remove_unused_columns = False
        examples = span_rows(make_judge(model).reader, rows)
        # It is not of Transformers, so the trainer cannot save it: `save` does.
        tokenizer = None
    elif settings.head == "encoder":
        kind = heads.ClassifierTrainer
        heads.freeze(model, settings.freeze_embeddings, settings.freeze_layers)
        entails = heads.entailment_index(model)
        weights = [1.0, 1.0]  # by the number of the label
        if settings.balance == "weights":
            false_weight, true_weight = class_weights(parts.train)
            weights[entails] = true_weight
            weights[1 - entails] = false_weight
        loss = partial(heads.weighted_loss, weights=weights)
        trainer_kwargs = {
            "compute_loss_func": loss,
            "data_collator": DataCollatorWithPadding(
                tokenizer, pad_to_multiple_of=args.pad_to_multiple_of
            ),
        }
        examples = classifier_rows(make_judge(model), rows, entails)
    else:
        trainer_kwargs = {"peft_config": peft_config}
        examples = generator_rows(make_judge(model), rows)
    if not examples:
        raise DataError(
            "no pair is left to train on: every hypothesis is empty, or no prompt fits into "
            "max_length"
        )
    dataset = Dataset.from_list(examples)
    return kind(
        model,
        args,
        make_judge=make_judge,
        pairs=parts.validation,
        train_dataset=dataset,
        eval_dataset=dataset.select([0]),  # not read, but without one the trainer does not evaluate
        processing_class=tokenizer,
        callbacks=[EarlyStoppingCallback(settings.patience)] if settings.patience else [],
        **trainer_kwargs,
    )


def _open(name: str, args: Any, settings: Distillation, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    if settings.head == "encoder":
        return heads.open_classifier(name, args.seed, **kwargs)
    if settings.head == "spans":
        if not is_saved(name):
            return open_span_model(name, settings.token_weight, args.seed, **kwargs)
        # A directory has no revisions
        kwargs = {key: value for key, value in kwargs.items() if key != "revision"}
        return open_saved(name, settings.token_weight, **kwargs)
    device = "cpu" if args.use_cpu else None
    return open_model(AutoModelForCausalLM, name, device=device, **kwargs)


def _judge(model: Any, tokenizer: Any, name: str, args: Any, settings: Distillation) -> Any:
    if settings.head == "encoder":
        return NLIJudge(model, tokenizer, name, window=settings.window, stride=settings.stride)
    if settings.head == "spans":
        reader = SpanReader(tokenizer, settings.window, settings.hypothesis_window)
        return SpanJudge(TorchNetwork(model), reader, name)
    window = GeneratorJudge.window
    limits = [size for size in (args.max_length, max_tokens(model, tokenizer)) if size]
    if limits:
        window = min(limits) - 1  # the label is a token, too
    return GeneratorJudge(TransformersGenerator(model, tokenizer), name, window=window)


def _calibration_rows(parts: Parts, calibration: Sequence[Labelled]) -> Sequence[Labelled]:
    """The pairs to calibrate by: of those that were given, the ones that are neither trained on nor
    held out.
    """
    if not calibration:
        return parts.validation
    trained = {row.pair for row in parts.train}
    unseen = [row for row in calibration if row.split == "train" and row.pair not in trained]
    if not unseen:
        raise DataError("no pair is left to calibrate by: all are held out or trained on")
    return unseen


def _save(
    trainer: Any,
    parts: Parts,
    calibration: Sequence[Labelled],
    base_name: str,
    args: Any,
    settings: Distillation,
) -> JudgeFile:
    """Save the model, and `judge.json` with the temperature fitted to the saved model's own p."""
    if settings.save_dtype:  # before the temperature is fitted: rounding moves p
        trainer.model.to(getattr(torch, settings.save_dtype))
    trainer.save_model()
    tasks = sorted({row.task for row in parts.train})
    sources = tuple(dict.fromkeys(row.source for row in parts.train))
    judge = trainer.make_judge(trainer.model)
    if settings.head == "spans":
        file = JudgeFile(
            "span",
            _single_or_all(tasks),
            base_model=base_name,
            trained_on=sources,
            window=judge.reader.evidence,
            hypothesis_window=judge.reader.hypothesis,
            question_window=judge.reader.question,
        )
    elif settings.head == "encoder":
        file = JudgeFile(
            "nli",
            _single_or_all(tasks),
            base_model=base_name,
            trained_on=sources,
            window=judge.window,
            stride=settings.stride,
        )
    else:
        prompts = [prompting.load(task).id for task in tasks]
        file = JudgeFile(
            "generator",
            _single_or_all(tasks),
            _single_or_all(prompts),
            base_model=base_name,
            trained_on=sources,
            window=judge.window,
        )
    if not trainer.is_world_process_zero():
        return file
    # Written before it is calibrated, since the judge is calibrated as it opens from here.
    file.write(args.output_dir)
    if settings.head == "spans":
        save(trainer.model, judge.reader.tokenizer, Path(args.output_dir))
        # as it was saved: the trainer's own may be wrapped for another precision
        saved = open_saved(args.output_dir, trust_remote_code=args.trust_remote_code)
        export(*saved, Path(args.output_dir))
        file = calibrate(_load(args, settings), file, calibration)
    else:
        file = _with_temperature(_load(args, settings), file, calibration)
    file.write(args.output_dir)
    return file


def _single_or_all(names: Sequence[str]) -> str | tuple[str, ...]:
    """The only name as it is, several as a tuple: how `JudgeFile` has tasks and prompts."""
    return names[0] if len(names) == 1 else tuple(names)


def _with_temperature(judge: Judge, file: JudgeFile, rows: Sequence[Labelled]) -> JudgeFile:
    verdicts = judge.judge_batch([row.pair for row in rows])
    p: list[float] = []
    labels: list[bool] = []
    for verdict, row in zip(verdicts, rows, strict=True):
        if verdict.p is not None:
            p.append(verdict.p)
            labels.append(row.label)
    temperature = heads.fit_temperature(p, labels)
    return msgspec.structs.replace(file, temperature=temperature)


def _measured(
    model: str, base_name: str, args: Any, settings: Distillation, kwargs: dict[str, Any]
) -> dict[str, Judge]:
    """The judges after and before training; their names tell weights and dtype, by which kept
    verdicts are found.
    """
    precision = f" in {settings.measure_dtype}" if settings.measure_dtype else ""
    judge = _load(args, settings, settings.measure_dtype)
    # Of the saved judge, so that verdicts kept beside it are not taken for those of one that was
    # there before.
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
    if settings.head == "spans":
        return SpanJudge.open(args.output_dir)
    kind: Any = NLIJudge if settings.head == "encoder" else GeneratorJudge
    trusted = {"trust_remote_code": args.trust_remote_code}
    return kind.from_pretrained(args.output_dir, device=str(args.device), dtype=dtype, **trusted)
