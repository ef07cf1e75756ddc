"""Puts the metrics where `evaluate.load` finds them by bare name, with and without a network."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from ..bundled import shipped
from ..errors import ConfigError
from . import metrics


def install_metrics(cache_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Copy every metric's module into evaluate's modules cache; returns the files, one for each metric.

    `evaluate.load("info_think_faithfulness")` then works. It asks the Hub first and takes this copy where the Hub has
    no module of that name or cannot be reached: at once with `HF_EVALUATE_OFFLINE=1`, after one or two seconds where
    connections are refused, and much later where they are swallowed. (evaluate does not heed `HF_HUB_OFFLINE`.)

    Args:
        cache_dir: the modules cache. The default is evaluate's own (`HF_MODULES_CACHE`); another one is only looked
            into when that variable names it.

    Raises:
        ConfigError: when evaluate is not installed, or the cache cannot be written to.

    Example:
        ```python
        import evaluate
        import faithful_search as fs

        fs.install_metrics()
        evaluate.load("tool_use").compute(predictions=texts)
        ```
    """
    source = shipped("evaluate_metrics")
    try:
        from evaluate import config
    except ImportError as error:
        raise ConfigError("the metrics need evaluate: pip install 'faithful-search[evaluate]'") from error
    cache = Path(config.HF_MODULES_CACHE if cache_dir is None else cache_dir)
    try:
        return [_install(source / name / f"{name}.py", cache) for name in metrics.names()]
    except OSError as error:
        raise ConfigError(
            f"cannot put the metrics into {cache}: {error}; give another cache_dir, or set HF_MODULES_CACHE"
        ) from error


def _install(module: Path, cache: Path) -> Path:
    text = module.read_bytes()
    folder = cache / "evaluate_modules" / "metrics" / f"evaluate-metric--{module.stem}"
    folder.mkdir(parents=True, exist_ok=True)
    for level in (folder, *folder.parents[:3]):
        (level / "__init__.py").touch()
    # evaluate takes any folder named by 64 characters for a version: it must be complete when it appears
    target = folder / hashlib.sha256(text).hexdigest()
    partial = folder / f".partial-{os.getpid()}-{time.monotonic_ns()}"
    partial.mkdir()
    (partial / "__init__.py").touch()
    (partial / module.name).write_bytes(text)
    try:
        partial.rename(target)
    except OSError:  # the version is there already: its files are replaced one by one
        if not target.is_dir():
            raise
        for file in list(partial.iterdir()):
            file.replace(target / file.name)
        partial.rmdir()
    # Of several versions evaluate loads the one last modified: also after going back to an older one
    file = target / module.name
    others = [path.stat().st_mtime for path in folder.glob(f"*/{module.name}") if path != file]
    stamp = max([time.time(), *(other + 1 for other in others)])
    os.utime(file, (stamp, stamp))
    return file
