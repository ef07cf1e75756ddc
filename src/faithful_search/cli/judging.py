"""`faithful-search serve-judge`: a judge for training and evaluation runs that must not hold its model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .address import Address, address_options
from .options import config, debug, trust_remote_code

if TYPE_CHECKING:
    from ..wire.cache import Cache

_AT_LEAST_1 = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0.1)


@click.command("serve-judge")
@click.argument("spec")
@address_options(8001)
@click.option(
    "--cache",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A SQLite file that keeps the verdicts for the next start; without it they last as long as the server.",
)
@click.option("--batch", type=_AT_LEAST_1, default=256, show_default=True, help="Pairs judged at once.")
@click.option("--pairs-limit", type=_AT_LEAST_1, default=4096, show_default=True, help="Most pairs in a request.")
@click.option("--body-limit", type=_AT_LEAST_1, default=16_000_000, show_default=True, help="Most bytes of a request.")
@click.option("--timeout", type=_SECONDS, default=600.0, show_default=True, help="Seconds an answer may take.")
@trust_remote_code
@config
@debug
def serve_judge(
    spec: str,
    cache: Path | None,
    batch: int,
    pairs_limit: int,
    body_limit: int,
    timeout: float,
    trust_remote_code: bool,
    **where: Any,
) -> None:
    """Serve the judge SPEC (KIND, KIND:MODEL or endpoint:MODEL@URL, such as generator:DIR) to runs that ask it with
    `--judge remote --judge_url URL`.

    Identical pairs of all clients are judged once. Speaks JSON at POST /judge, and has GET /health and /metrics. Where
    the environment has FAITHFUL_SEARCH_SERVE_TOKEN, clients must send it as a bearer token; an address that other
    machines reach needs one.
    """
    from ..measure.agreement import parse_judge
    from ..serving.app import application
    from ..serving.judging import Judging
    from ..serving.server import url_of
    from ..serving.wire import Limits
    from ..wire.cache import Cache

    address = Address(**where)
    bound = address.bind()  # before the model, which may take long to open
    limits = Limits(body_limit, seconds=timeout, pairs=pairs_limit)
    name, judge = parse_judge(spec, trust_remote_code)
    judging = Judging(judge, None if cache is None else _opened(Cache(cache)), limits, batch=batch)
    about = judging.about | _origin(spec)
    app = application(judging.answers, limits=limits, metrics=judging.metrics, about=about)
    address.serve(app, bound, f"{name} at {url_of(bound)}, use: --judge remote --judge_url {url_of(bound)}")


def _opened(cache: Cache) -> Cache:
    """A file that cannot be used is told now, not when the first verdict is to be kept."""
    len(cache)
    return cache


def _origin(spec: str) -> dict[str, Any]:
    """The model, and the task that it was distilled for where it was."""
    from ..judges import distilled
    from ..wire.redact import redact

    kind, _, model = spec.partition(":")
    own = distilled.read(model) if kind in ("nli", "generator") else None
    return {"model": redact(model) or None, "task": own.task if own else None}
