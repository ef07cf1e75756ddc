"""What a distilled judge's directory says about it: `judge.json`, and the temperature that
calibrates its p.
"""

import math
import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import ConfigError, reason_of
from ..wire.files import replacing

FILE = "judge.json"
Kind = Literal["nli", "generator", "span"]


class JudgeFile(msgspec.Struct, frozen=True):
    """What a directory or Hub repository holds beside a distilled judge's model and tokenizer.

    Attributes:
        kind: how it judges, as `--judge` takes it.
        task: what it was trained to be asked; a tuple where its pairs have several tasks.
        prompt: `name@version` of the prompt that it was trained on, a tuple for several tasks;
            `None` for a classifier, which has none.
        temperature, threshold: see `calibrated`, and the smallest p that counts as support.
        base_model, trained_on: what training started from, and the sources of the labelled pairs.
        window: the most tokens that are read at once: of a premise by a classifier, of the chosen
            parts of a premise by a judge of spans, and of the whole prompt by a generator.
        stride: the most tokens that neighbouring windows of a classifier share; other kinds have
            none.
        hypothesis_window, question_window: tokens of these that a judge of spans reads at once.
        words: the weight of the shared words in the p of a judge of spans.
        unsure: a judge of spans abstains where p is nearer to the threshold than this.
    """

    kind: Kind
    task: str | tuple[str, ...] = "support"
    prompt: str | tuple[str, ...] | None = None
    temperature: float = 1.0
    threshold: float = 0.5
    base_model: str = ""
    trained_on: tuple[str, ...] = ()
    window: int | None = None
    stride: int | None = None
    hypothesis_window: int | None = None
    question_window: int | None = None
    words: float = 0.0
    unsure: float = 0.0
    version: int = 1

    def __post_init__(self) -> None:
        check(self.threshold, self.temperature)
        check_span(self.words, self.unsure)
        for name in ("window", "hypothesis_window", "question_window"):
            tokens = getattr(self, name)
            if tokens is not None and tokens < 1:
                raise ConfigError(f"{name} must be at least 1 token, got {tokens}")
        if self.kind != "nli" and self.stride is not None:
            raise ConfigError(
                "only a judge of the kind 'nli' reads overlapping windows and has a stride, one of "
                f"the kind {self.kind!r} has none: remove it"
            )

    @property
    def tasks(self) -> tuple[str, ...]:
        """What it was trained to be asked, one or several.

        Example:
            >>> JudgeFile("nli", "info_think").tasks, JudgeFile("nli", ("support", "states")).tasks
            (('info_think',), ('support', 'states'))
        """
        return (self.task,) if isinstance(self.task, str) else self.task

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write `judge.json` into `folder`."""
        path = Path(folder) / FILE
        with replacing(path) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        return path


def read(model: str, revision: str | None = None) -> JudgeFile | None:
    """The `judge.json` of a directory or Hub repository; `None` where there is none. Raises
    `ConfigError` when it cannot be read, or the Hub, which cannot be reached, might hold one.
    """
    from ..inference.hub_files import file_beside

    path = file_beside(model, FILE, revision)
    return None if path is None else _read_file(path, model)


def settings(model: str, kind: Kind, revision: str | None = None) -> dict[str, Any]:
    """What `judge.json` sets of a judge of this kind; empty without one. Raises `ConfigError` as
    `read`, or where it is that of a judge of another kind.
    """
    judge_file = read(model, revision)
    if judge_file is None:
        return {}
    _check_kind(judge_file, model, kind)
    knobs = {
        name: getattr(judge_file, name) for name in ("temperature", "threshold", "window", "stride")
    }
    return {name: value for name, value in knobs.items() if value is not None}


def read_file(path: Path, kind: Kind) -> JudgeFile:
    """A file `judge.json` of a judge of this kind. Raises `ConfigError` as `settings`."""
    file = _read_file(path, str(path.parent))
    _check_kind(file, str(path.parent), kind)
    return file


def _read_file(path: Path, model: str) -> JudgeFile:
    try:
        return msgspec.json.decode(path.read_bytes(), type=JudgeFile)
    except (OSError, msgspec.MsgspecError, ConfigError, RecursionError) as error:
        raise ConfigError(
            f"cannot read {FILE} of the judge {model!r}: {reason_of(error)}; mend it, or copy it "
            "again"
        ) from error


def _check_kind(file: JudgeFile, model: str, kind: Kind) -> None:
    if file.kind != kind:
        raise ConfigError(
            f"{model!r} is a distilled judge of the kind {file.kind!r}: use --judge {file.kind}"
        )


def check(threshold: float, temperature: float = 1.0, window: int = 1, stride: int = 0) -> None:
    """Raises `ConfigError` for knobs of a judge that are out of range."""
    if not 0 <= stride < window:
        raise ConfigError(
            f"window must be at least 1 token, and stride from 0 to below it; got {window} and "
            f"{stride}"
        )
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold must be in [0, 1], got {threshold}")
    if not 0 < temperature < math.inf:
        raise ConfigError(f"temperature must be above 0, got {temperature}")


def check_span(words: float, unsure: float) -> None:
    """Raises `ConfigError` for knobs of a judge of spans that are out of range."""
    if not math.isfinite(words):
        raise ConfigError(f"words must be a number, got {words}")
    if not 0 <= unsure < 1:
        raise ConfigError(f"unsure must be at least 0 and below 1, got {unsure}")


def calibrated(p: float, temperature: float) -> float:
    """sigmoid(logit(p) / temperature): nearer to 0.5 for a temperature above 1, and on the same
    side of it always.
    """
    if temperature == 1.0 or not 0 < p < 1:
        return p
    logit = math.log(p / (1 - p)) / temperature
    logit = max(-700.0, logit)  # math.exp overflows for numbers above 709
    tempered = 1 / (1 + math.exp(-logit))
    # Rounding must not move a p that is next to 0.5 to its other side
    if p < 0.5:
        return min(tempered, math.nextafter(0.5, 0))
    return max(tempered, 0.5)
