"""Find out what the folder of a run holds: a finished run, or checkpoints to resume from."""

import re
from contextlib import suppress
from pathlib import Path

import msgspec

from ..errors import ConfigError

LOCK = "_run.lock"
"""The lock of a run. The file stays, since another run may be waiting for it. Names that begin with
`_` are not pushed to the Hub.
"""
FILES = "saved_files.json"
"""The file with the sizes of a checkpoint's files, which is written after them."""


class SavedFiles(msgspec.Struct, frozen=True):
    """What `saved_files.json` holds: the sizes of a checkpoint's files in bytes, by their names."""

    files: dict[str, int]


def check_unowned(out: Path, resume: bool, overwrite: bool) -> None:
    """Raise `ConfigError` if the folder holds a run or an evaluation, but is neither to be resumed
    nor overwritten.
    """
    contents = ""
    hint = ""
    if any(out.glob("*.safetensors")):
        contents = "a finished run"
    elif (out / "metrics.json").exists():
        contents = "an evaluation"
    with suppress(ConfigError):  # nothing to resume from
        hint = f": --resume goes on from {last_checkpoint(out).name}"
        contents = contents or "a run that ended before its time"
    if contents and not (resume or overwrite):
        raise ConfigError(
            f"{out} holds {contents}{hint}; --overwrite starts anew, or name another folder"
        )


def last_checkpoint(output_dir: str | Path) -> Path:
    """The newest complete checkpoint. Raises `ConfigError` that says what is wrong with the others
    if there is none.
    """
    faults = {folder: fault(folder) for folder in folders(output_dir)}
    usable = [folder for folder, why in faults.items() if not why]
    if usable:
        return usable[-1]
    unusable = "; ".join(f"{folder.name} ({why})" for folder, why in faults.items())
    raise ConfigError(
        f"--resume: nothing in {output_dir} can be resumed from, it holds "
        f"{unusable or 'no checkpoint at all'}; start again without --resume"
    )


def folders(output_dir: str | Path) -> list[Path]:
    """The folders of checkpoints, in the order of their steps."""
    by_step: dict[int, Path] = {}
    for path in Path(output_dir).glob("checkpoint-*"):
        number = re.fullmatch(r"checkpoint-(\d+)", path.name)
        if number and path.is_dir():
            by_step[int(number[1])] = path
    return [by_step[step] for step in sorted(by_step)]


def fault(folder: Path) -> str:
    """Why a run cannot resume from a checkpoint; empty if it can."""
    try:
        saved = msgspec.json.decode((folder / FILES).read_bytes(), type=SavedFiles)
    except (OSError, ValueError, msgspec.MsgspecError):
        return f"no readable {FILES}: it was not saved completely, or by an earlier version"
    for name, size in saved.files.items():
        file = folder / name
        if not file.exists():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has another size than when it was saved"
    if not any(folder.glob("rng_state*")):
        # Transformers writes the random states last, after the optimizer. Without the optimizer's
        # file it would silently start with a new optimizer.
        return "no optimizer: only the model was saved"
    return ""
