"""The metrics by name: the rewards of each (`load`), what is known of its results (`about`), and
how `evaluate` finds it (`install_metrics`).

The name of a result says what made it. `info_think_lexical` counts words, `info_think_faithfulness`
asked a judge that reads, and `f1_unicode` names its normaliser. `answer_support_lexical` counts
words (`GroundingJudge`). `answer_support_containment`, training's default, looks for the claim word
by word (`ContainmentJudge`): that finds short answers as well, but hardly any sentence (balanced
accuracy on the train side of AttributionBench 0.53 against 0.66).
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

from .. import rewards
from ..bundled import shipped
from ..errors import ConfigError, needs
from ..judges import GroundingJudge, Judge, made_by
from ..rewards import Result, Reward, Score
from . import unscored
from .gold_citations import CitesGold
from .origins import SOURCES, Decorated, QueryProvenance
from .settings import How

Rewards = dict[str, Reward]
SHORT = 20
"""The largest number of words of an answer that `think_answer_sub_em` looks for in the last
thought. Recorded short answers have at most 17.
"""
LEXICAL = "words are compared, not meaning"
COUNTED = f"{LEXICAL}, and weighed as labels taught"
CONTAINMENT = "it is looked for as it stands, word for word"
WARNINGS = {
    "lexical": f"{LEXICAL}; docs/judges.md measures how far that can be trusted",
    "counted": f"{COUNTED}; docs/judges.md measures how far that can be trusted",
    "containment": f"{CONTAINMENT}; a paraphrase or a whole sentence is rarely found",
}
"""The warnings beside results that rest on the comparison of words, by the ending of their
names.
"""
MADE_BY = {
    "lexical": LEXICAL,
    "counted": COUNTED,
    "containment": CONTAINMENT,
    "faithfulness": "",
    "facts": "by the bundled world's facts",
    "unicode": "as people read them",
    "squad": "SQuAD's normaliser",
    "pokee": "PokeeResearch's normaliser",
}
"""What made a result, in words, by the ending of its name. It is empty for a judge that reads."""
_FIXED_FIELDS = {"judge", "how", "metric", "what", "source"}
"""The fields of rewards that follow from the metric, its judge and its normaliser."""


def names() -> list[str]:
    """The names of all metrics. Each has a folder of its name in `evaluate_metrics/`."""
    return sorted(_all(GroundingJudge(), "unicode"))


UNKNOWN = Result("", 0)
"""What is known of a result of another program: nothing, so that no direction is better."""
RESULTS: dict[str, Result] = {
    **rewards.results(),
    **Decorated.results,
    **CitesGold.results,
    **QueryProvenance.results,
    **unscored.RESULTS,
}
"""What rewards say of their results, and what is known of rows that no reward scores. By the rows'
names, most of them without the ending that says what made them (`MADE_BY`).
"""
TITLES: dict[str, str] = {**rewards.titles(), **Decorated.titles, **unscored.TITLES}
"""The rows that stand in a model card, with their titles there."""


def about(name: str) -> Result:
    """What is known of a result. It is `UNKNOWN` for a name that this package does not write."""
    return RESULTS.get(name) or RESULTS.get(without_ending(name), UNKNOWN)


def reason(name: str, score: Score) -> str:
    """The reason for a result, also if the reward has nothing to object to.

    Example:
        >>> reason("repeated_calls", Score(0.0))
        'no call was made before'
    """
    return score.why or about(name).clean


def without_ending(name: str) -> str:
    """The name of a result without the ending that says what made it.

    Example:
        >>> without_ending("answer_support_lexical"), without_ending("citation_returned")
        ('answer_support', 'citation_returned')
    """
    stem, _, ending = name.rpartition("_")
    return stem if ending in MADE_BY else name


def arrow(name: str) -> str:
    """The direction that is better, ↑ or ↓; empty for a result that is neither good nor bad."""
    return {1: "↑", -1: "↓", 0: ""}[about(name).direction]


def asks(name: str) -> str:
    """The question that a result answers, and how; empty for a name that this package does not
    write.

    Example:
        >>> asks("think_search_lexical")
        'does each call follow from its thought? (words are compared, not meaning)'
        >>> asks("repeated_calls")
        'which share of the calls was made before? (lower is better)'
    """
    result = about(name)
    made_by = MADE_BY.get(name.rpartition("_")[2], "")
    notes = [made_by] if made_by else []
    if result.direction < 0:
        notes.append("lower is better")
    if not result.asks or not notes:
        return result.asks
    return f"{result.asks} ({'; '.join(notes)})"


def warning(name: str) -> str:
    """The warning beside this result; empty if it does not rest on the comparison of words."""
    return WARNINGS.get(name.rpartition("_")[2], "")


def load(name: str, judge: Judge | None = None, how: How = "unicode", **knobs: Any) -> Rewards:
    """The rewards behind a metric, by the names of their results.

    Args:
        name: one of `names()`.
        judge: who judges; by default `GroundingJudge()`, which compares words.
        how: the normaliser that compares answers as strings: "unicode", "squad" or "pokee".
        knobs: fields of the rewards, such as `soft=True`, `evidence="retrieved"`, `words=5`. Each
            is set in those rewards that have it.

    Raises `ConfigError` for an unknown metric or knob, naming the known ones.

    Example:
        >>> list(load("answer_correctness"))
        ['exact_match_unicode', 'f1_unicode', 'sub_em_unicode']
    """
    metrics = _all(GroundingJudge() if judge is None else judge, how)
    if name not in metrics:
        makers = [metric for metric, rewards in metrics.items() if name in rewards]
        made_by = f", but a result of {makers[0]}" if makers else ""
        raise ConfigError(
            f"unknown metric {name!r}{made_by}; there are: {', '.join(sorted(metrics))}"
        )
    rewards_of_metric = metrics[name]
    knobs_there: set[str] = set()
    for reward in rewards_of_metric.values():
        knobs_there.update(field.name for field in dataclasses.fields(reward))
    knobs_there -= _FIXED_FIELDS
    unknown = sorted(set(knobs) - knobs_there)
    if unknown:
        has = ", ".join(sorted(knobs_there)) or "none"
        raise ConfigError(f"the metric {name!r} has no knob {', '.join(unknown)}; it has: {has}")
    return {result: reward.bind(**knobs) for result, reward in rewards_of_metric.items()}


def _all(judge: Judge, how: How) -> dict[str, Rewards]:
    """The rewards of all metrics, with this judge and normaliser."""
    judged = made_by(judge)
    answer: Rewards = {"think_answer_sub_em": rewards.ThinkAnswer(how=how, most_words=SHORT)}
    correct: Rewards = {
        f"exact_match_{how}": rewards.Correctness("em", how),
        f"f1_{how}": rewards.Correctness("f1", how),
        f"sub_em_{how}": rewards.Correctness("sub_em", how),
    }
    # Strings are compared in any case, which costs nothing
    if not judge.lexical:
        answer[f"think_answer_{judged}"] = rewards.ThinkAnswer(judge, how=how)
    if judged == "faithfulness":
        correct["answer_correctness"] = rewards.Correctness("judge", how, judge)
    return {
        "info_think_faithfulness": {f"info_think_{judged}": rewards.InfoThink(judge)},
        "think_search_faithfulness": {f"think_search_{judged}": rewards.ThinkSearch(judge)},
        "think_answer_faithfulness": answer,
        "citation_validity": {"citation_validity": rewards.Citation()},
        "citations": {
            "citation_returned": rewards.CitationReturned(),
            support_row(judge, "citation_support"): rewards.CitationSupport(judge),
            "citation_coverage": rewards.CitationCoverage(),
        },
        "answer_support": {
            support_row(judge): rewards.AnswerSupport(judge),
            "declined": rewards.Declined(),
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


def support_row(judge: Judge, name: str = "answer_support") -> str:
    """The name of a result about support, of the answer or of its citations, by this judge."""
    judged = made_by(judge)
    return name if judged == "faithfulness" else f"{name}_{judged}"


def install_metrics(cache_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Copy the modules of all metrics into the modules cache of `evaluate`.

    Then `evaluate.load("info_think_faithfulness")` works. It asks the Hub first, and takes this
    copy if the Hub has no module of that name or cannot be reached. That takes no time with
    `HF_EVALUATE_OFFLINE=1`, one or two seconds if connections are refused, and much longer if they
    time out. `evaluate` does not read `HF_HUB_OFFLINE`.

    Args:
        cache_dir: the modules cache; by default that of `evaluate` (`HF_MODULES_CACHE`), which
            reads another one only when that variable names it.

    Returns the files, one for each metric. Raises `ConfigError` when `evaluate` is not installed,
    or the cache cannot be written.
    """
    source = shipped("evaluate_metrics")
    with needs("installing the metrics", "evaluate"):
        from evaluate import config
        from evaluate.loading import DownloadMode, _create_importable_file
    cache = Path(config.HF_MODULES_CACHE if cache_dir is None else cache_dir)
    paths: list[Path] = []
    # Made here: evaluate's own function would also let this process import from the folder
    modules = cache / config.MODULE_NAME_FOR_DYNAMIC_MODULES
    try:
        modules.mkdir(parents=True, exist_ok=True)
        (modules / "__init__.py").touch()
        for name in names():
            # Stored as a module from the Hub is. Other versions are removed, since evaluate would
            # load the one that was written last.
            module, _ = _create_importable_file(
                local_path=str(source / name / f"{name}.py"),
                local_imports=[],
                additional_files=[],
                dynamic_modules_path=str(modules),
                module_namespace="metrics",
                name=f"evaluate-metric/{name}",
                download_mode=DownloadMode.FORCE_REDOWNLOAD,
            )
            paths.append(cache.joinpath(*module.split(".")).with_suffix(".py"))
    except OSError as error:
        raise ConfigError(
            f"cannot put the metrics into {cache}: {error}; give another cache_dir, or set "
            "HF_MODULES_CACHE"
        ) from error
    return paths
