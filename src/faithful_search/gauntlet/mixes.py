"""What runs the gauntlet: mixes by name, single rewards, and reward functions of others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from .. import dialects, rewards, scoring
from ..errors import ConfigError
from ..judges import Judge
from ..registry import make
from ..rewards import (
    Adaptive,
    AnswerSupport,
    EvidenceSensitivity,
    Mix,
    MixState,
    Reward,
    SourceGated,
)
from ..world import bundled_world
from ..world.facts import FactsJudge
from . import published
from .functions import FunctionReward, Signature


def _proof_of_use(judge: Judge | None) -> Mix:
    if judge is None:
        return rewards.pou_mix()
    support = AnswerSupport(judge)
    correctness = SourceGated(support=support, looked_up=False)
    return rewards.pou_mix(support=support, correctness=correctness)


def _pou_recipe(judge: Judge | None) -> Mix:
    return rewards.pou_mix(
        sensitivity=EvidenceSensitivity(
            draws="question", centre=True, foils=bundled_world(("train",)), hard=0.5
        ),
        answer=Adaptive(
            AnswerSupport(judge or FactsJudge()),
            SourceGated(support=AnswerSupport()),
            beta=0.8,
        ),
        process_on_right=False,
    )


MIXES: Mapping[str, Callable[[Judge | None], Reward]] = {
    "pou": _proof_of_use,
    "pou_recipe": _pou_recipe,
    "pou_static": scoring.MIXES["pou"].make,
    "answer_only": scoring.MIXES["answer_only"].make,
}
"""The mixes that this package ships as its own. `pou` is `pou_mix()`, `pou_recipe` what
`recipes/pou.py` trains with by default, `pou_static` and `answer_only` what `trl_reward` takes by
the names "pou" and "answer_only".
"""


LITERATURE = "literature"
"""The name that stands for all `published` rewards."""


@dataclass(frozen=True)
class Contender:
    """A reward that runs the gauntlet: what it is called, and the dialect of the rollouts."""

    name: str
    reward: Reward
    dialect: str


def contender(
    name: str,
    judge: Judge | None = None,
    signature: Signature | None = None,
    dialect: str | None = None,
) -> Contender:
    """The mix, reward or reward function of that name.

    Args:
        name: one of `MIXES`, one of `published`, a reward that `rewards.load` takes (a file with a
            class of it, too), or with a `signature` the file of a function, `FILE.py` or
            `FILE.py:FUNCTION`.
        judge: of a mix or reward that asks one; by default words are compared.
        signature: how the trainer calls a function: "trl" or "verl".
        dialect: how the rollouts are written; by default that of a reward of the literature, else
            the first of `pou`, `search_r1` and the others that the reward says something about.

    Raises `ConfigError` for an unknown name, naming those known; `DialectError` for an unknown
    dialect.
    """
    if dialect is not None:
        dialects.load(dialect)
    if signature is not None:
        if judge is not None:
            raise ConfigError(
                f"{name}: a reward function has its own judge; leave --judge and "
                "--held-out-judge out"
            )
        function = FunctionReward.in_file(name, signature)
        return Contender(Path(name).name, function, dialect or "pou")
    reward = _named(name, judge)
    if dialect is None and name in published.names():
        dialect = published.dialect_of(name)
    return Contender(Path(name).stem, reward, dialect or _covered(reward))


def each_name(names: Iterable[str]) -> list[str]:
    """The names, each once, with those of all published rewards in the place of "literature".

    Example:
        >>> each_name(["literature", "pou"])[-2:]
        ['veritas', 'pou']
    """
    every: list[str] = []
    for name in names:
        if name == LITERATURE:
            every += published.names()
        else:
            every.append(name)
    return list(dict.fromkeys(every))


def _named(name: str, judge: Judge | None) -> Reward:
    if name in MIXES:
        return MIXES[name](judge)
    if name in published.names():
        return published.mix_of(name, judge)
    try:
        kind: Any = rewards.load(name)
    except ConfigError as error:
        if name.endswith(".py"):
            raise ConfigError(f"{error}. For a function give --signature trl or verl") from error
        names = ", ".join([*MIXES, *published.names()])
        raise ConfigError(f"{error}. In the gauntlet also: {names}") from error
    if judge is None:
        return make(kind)
    if "judge" not in {setting.name for setting in fields(kind)}:
        raise ConfigError(f"{name} asks no judge: leave --judge out")
    return make(kind, judge=judge)


def _covered(reward: Reward) -> str:
    """The first dialect that the reward says something about, `pou` before others."""
    names = ["pou", "search_r1", *dialects.names()]
    return next((name for name in names if reward.covers(name)), names[0])


def adaptive_parts(reward: Reward) -> dict[str, Adaptive]:
    """The parts of a mix whose weight follows a schedule, by name; other rewards have none."""
    parts = reward.parts if isinstance(reward, Mix) else {}
    return {name: part for name, part in parts.items() if isinstance(part, Adaptive)}


class Setting(NamedTuple):
    """What a schedule can make of a mix: what it is called, the mix with it, and the state."""

    label: str
    mix: Mix
    state: MixState


def with_open_weights(mix: Mix) -> Mix:
    """The mix with no adaptive part held at a constant weight, so that both sides of it are scored,
    whatever their weights will be.
    """
    parts = {name: replace(part, fixed=None) for name, part in adaptive_parts(mix).items()}
    return replace(mix, parts={**mix.parts, **parts})


def reachable_settings(mix: Mix, alphas: Sequence[float] = ()) -> list[Setting]:
    """The settings of a mix that its schedule can reach: the weights of its process, by default at
    both ends and in the middle, with its curriculum at the beginning and at the end.

    Example:
        >>> [setting.label for setting in reachable_settings(rewards.pou_mix())]
        ['α 0.99', 'α 0.50', 'α 0.01']
        >>> [setting.label for setting in reachable_settings(rewards.pokee_mix(metric="em"))]
        ['']
    """
    variants = {"": mix}
    for name, part in adaptive_parts(mix).items():
        if part.fixed is not None and not alphas:
            continue
        reached: dict[str, float] = {}
        if alphas:
            for alpha in alphas:
                # At full length, so that no two weights have one label
                reached[max(f"{alpha:.2f}", str(alpha), key=len)] = alpha
        else:
            for ema in (0.0, part.tau, 1.0):
                alpha = part.alpha(ema)
                reached[f"{alpha:.2f}"] = alpha
        variants = {}
        for label, alpha in reached.items():
            parts = {**mix.parts, name: replace(part, fixed=alpha)}
            variants[f"α {label}"] = replace(mix, parts=parts)
    if mix.warmup is None:
        return [Setting(label, variant, mix.state0) for label, variant in variants.items()]
    settings = []
    for label, variant in variants.items():
        for step in dict.fromkeys((1, mix.warmup.end)):
            state = MixState(mix.state0.ema, step)
            settings.append(Setting(f"{label} step {step}".strip(), variant, state))
    return settings
