"""The metrics by name: which rewards each consists of, what its results are called, and how `evaluate` finds it.

A result is named by what made it: `info_think_lexical` compares words, `info_think_faithfulness` asked a judge that
reads; `f1_squad` names its normaliser. `answer_support_lexical` counts words (`GroundingJudge`), where training's
default looks for the claim as it is (`LexicalJudge`): that finds short answers as well but hardly any sentence
(balanced accuracy on the train side of AttributionBench 0.53 against 0.66).
"""

import dataclasses
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from .. import rewards
from ..bundled import shipped
from ..errors import ConfigError, needs
from ..judges import GroundingJudge, Judge, is_lexical
from ..rewards import Reward
from .origins import SOURCES, QueryProvenance
from .settings import How

Rewards = dict[str, Reward]
SHORT = 20
"""Words of an answer that is still looked for in the last thought as it is: recorded short answers have 17 at most."""
LEXICAL = "words are compared, which is no judge"
WARNING = f"{LEXICAL}: on 23 thoughts, info_think_lexical agreed with a reader on 14 (κ −0.21)"
"""What must stand where a number stands that rests on the comparison of words."""
_HOW = {"lexical": LEXICAL, "squad": "SQuAD's normaliser", "pokee": "PokeeResearch's normaliser"}
_SET_HERE = {"judge", "how", "metric", "what", "source"}
"""Fields that the metric's name, its judge and its normaliser decide."""


def names() -> list[str]:
    """The metrics there are; each has a folder of that name in `evaluate_metrics/`."""
    return sorted(_all(GroundingJudge(), "squad"))


class Result(msgspec.Struct, frozen=True):
    """What a result asks; what is so where it is good, for the sentences of an audit (nothing: they do not name it).

    `direction` is 1 where more of it is better, -1 where less is, 0 where it is neither good nor bad.
    """

    asks: str = ""
    good: str = ""
    direction: int = 1


RESULTS = msgspec.json.decode(
    (files(__package__) / "results.json").read_bytes(), type=dict[str, Result]
)
"""By the results' names, most of them without the ending that says how it is found out."""


def about(name: str) -> Result:
    """What is known of a result; an empty `Result` for a name that no metric gives."""
    return RESULTS.get(name) or RESULTS.get(name.rpartition("_")[0], Result())


def asks(name: str) -> str:
    """What the result asks and how it is found out; empty for a name that no metric gives.

    Example:
        >>> asks("think_search_lexical")
        'does each call follow from its thought? (words are compared, which is no judge)'
        >>> asks("repeated_calls")
        'which share of the calls was made before? (lower is better)'
    """
    result, how = about(name), _HOW.get(name.rpartition("_")[2], "")
    said = "; ".join(filter(None, [how, "lower is better" if result.direction < 0 else ""]))
    return f"{result.asks} ({said})" if result.asks and said else result.asks


def load(name: str, judge: Judge | None = None, how: How = "squad", **knobs: Any) -> Rewards:
    """The rewards behind a metric, by the names of their results.

    Args:
        name: one of `names()`.
        judge: who judges; default `GroundingJudge()`, which compares words.
        how: the normaliser where answers are compared as strings, "squad" or "pokee".
        knobs: fields of the rewards (`soft=True`, `evidence="retrieved"`, `words=5`), for those that have them.

    Raises `ConfigError` when there is no such metric, or knob, naming those there are.

    Example:
        >>> list(load("answer_correctness"))
        ['exact_match_squad', 'f1_squad', 'sub_em_squad']
    """
    metrics = _all(GroundingJudge() if judge is None else judge, how)
    if name not in metrics:
        raise ConfigError(f"unknown metric {name!r}; there are: {', '.join(sorted(metrics))}")
    found = metrics[name]
    own = {
        field.name for reward in found.values() for field in dataclasses.fields(reward)
    } - _SET_HERE
    if unknown := sorted(set(knobs) - own):
        has = ", ".join(sorted(own)) or "none"
        raise ConfigError(f"the metric {name!r} has no knob {', '.join(unknown)}; it has: {has}")
    return {result: reward.bind(**knobs) for result, reward in found.items()}


def _all(judge: Judge, how: How) -> dict[str, Rewards]:
    reads = not is_lexical(judge)
    judged = "faithfulness" if reads else "lexical"
    answer: Rewards = {"think_answer_sub_em": rewards.ThinkAnswer(how=how, most_words=SHORT)}
    correct: Rewards = {
        f"exact_match_{how}": rewards.Correctness("em", how),
        f"f1_{how}": rewards.Correctness("f1", how),
        f"sub_em_{how}": rewards.Correctness("sub_em", how),
    }
    if reads:  # beside the comparison of strings, which costs nothing
        answer["think_answer_faithfulness"] = rewards.ThinkAnswer(judge, how=how)
        correct["answer_correctness"] = rewards.Correctness("judge", how, judge)
    return {
        "info_think_faithfulness": {f"info_think_{judged}": rewards.InfoThink(judge)},
        "think_search_faithfulness": {f"think_search_{judged}": rewards.ThinkSearch(judge)},
        "think_answer_faithfulness": answer,
        "citation_validity": {"citation_validity": rewards.Citation()},
        "answer_support": {
            "answer_support" if reads else "answer_support_lexical": rewards.AnswerSupport(judge)
        },
        "evidence_sensitivity": {"evidence_sensitivity": rewards.EvidenceSensitivity()},
        "answer_correctness": correct,
        "protocol_format": {"protocol_format": rewards.Format()},
        "query_provenance": {
            f"query_from_{source}_lexical": QueryProvenance(source) for source in SOURCES
        },
        "tool_use": {
            "repeated_calls": rewards.ToolUse("repeated"),
            "unused_evidence_lexical": rewards.ToolUse("unused"),
            "uncited_evidence": rewards.ToolUse("uncited"),
        },
    }


def install_metrics(cache_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Copy every metric's module into evaluate's modules cache; returns the files, one for each metric.

    `evaluate.load("info_think_faithfulness")` then works. It asks the Hub first and takes this copy where the Hub has
    no module of that name or cannot be reached: at once with `HF_EVALUATE_OFFLINE=1`, after one or two seconds where
    connections are refused, and much later where they are swallowed. (evaluate does not heed `HF_HUB_OFFLINE`.)

    `cache_dir` is the modules cache; default evaluate's own (`HF_MODULES_CACHE`). Another one is only looked into when
    that variable names it. Raises `ConfigError` when evaluate is not installed, or the cache cannot be written to.
    """
    source = shipped("evaluate_metrics")
    with needs("installing the metrics", "evaluate"):
        from evaluate import config
        from evaluate.loading import DownloadMode, _create_importable_file
    cache, found = Path(config.HF_MODULES_CACHE if cache_dir is None else cache_dir), []
    # Not by evaluate's own function, which would have this process import from there
    modules = cache / config.MODULE_NAME_FOR_DYNAMIC_MODULES
    try:
        modules.mkdir(parents=True, exist_ok=True)
        (modules / "__init__.py").touch()
        for name in names():
            # As a module of the Hub is kept; other versions go, of which evaluate would take the one last written
            module, _ = _create_importable_file(
                local_path=str(source / name / f"{name}.py"),
                local_imports=[],
                additional_files=[],
                dynamic_modules_path=str(modules),
                module_namespace="metrics",
                name=f"evaluate-metric/{name}",
                download_mode=DownloadMode.FORCE_REDOWNLOAD,
            )
            found.append(cache.joinpath(*module.split(".")).with_suffix(".py"))
    except OSError as error:
        told = "give another cache_dir, or set HF_MODULES_CACHE"
        raise ConfigError(f"cannot put the metrics into {cache}: {error}; {told}") from error
    return found
