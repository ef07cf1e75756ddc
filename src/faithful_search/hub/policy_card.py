"""A policy's model card: how it was made and measured, and code that runs it."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .. import dialects
from ..errors import ConfigError, DataError
from ..measure.report import Evaluated, as_evaluation, table
from ..measure.stats import Estimate
from ..tools.local_search import is_server
from ..tools.retrieval.engines import is_engine
from .card import TAGS, adapter_config, adapter_note, as_json, is_hub_id, license_of, render, write_card

RESULT_NAMES = {
    "exact_match": "Exact match",
    "f1": "F1",
    "lm_accuracy": "Answer right, by a judge",
    "exact_match_unremembered": "Exact match on facts never remembered",
    "exact_match_changed": "Exact match in changed worlds",
    "follow_rate": "Answers that change with the evidence",
    "memory_share": "Answers given without the evidence",
    "decorated": "Calls that nothing after depends on",
    "answer_first": "Answers stated before their evidence",
    "valid_format": "Valid format",
    "citation_validity": "Citation validity",
    "evidence_sensitivity": "Evidence sensitivity (R_pt)",
    "evidence_sensitivity_unseen": "Evidence sensitivity, unseen replacements",
    "answer_support_facts": "Answer support, by the world's facts",
    "answer_support": "Answer support, by a judge",
    "answer_support_lexical": "Answer occurs in the cited evidence",
    "citation_states_fact": "Citations that state what was asked for",
    "no_on_blank": "Share of no on blanked responses",
    "retry_on_blank": "Another tool after such a no",
    "verdict_gap": "p(yes) with the fact minus without",
    "verdict_auroc": "AUROC of p(yes) for the fact",
    "info_think_faithfulness": "Information-think faithfulness",
    "info_think_lexical": "Information-think overlap of words",
    "think_search_faithfulness": "Think-search faithfulness",
    "think_search_lexical": "Think-search overlap of words",
    "think_answer_faithfulness": "Think-answer faithfulness",
    "think_answer_sub_em": "Think-answer substring match",
    "tool_entropy": "Normalised tool entropy",
}
"""Rows of an evaluation that go into the card's front matter."""

_WORLD_QUESTION = "Which city is the capital of the country that Mount Olympus is in?"
_ANY_QUESTION = "Your question?"
_BOUNDS = ("turns", "turn_tokens", "total_tokens", "observation_tokens", "force_answer", "verify", "kept_responses")


def model_card(
    output_dir: str | os.PathLike[str],
    *,
    base_model: str,
    dialect: str,
    recipe: str,
    command: str,
    metrics: Mapping[str, Evaluated] | None,
    config: Mapping[str, Any],
    tools: Sequence[str],
    license: str | None = None,
    tags: Sequence[str] = (),
    repo_id: str | None = None,
    dataset: str | None = None,
    plots: Sequence[str] = (),
) -> Path:
    """Write `README.md`, the model card, into `output_dir`. Where an adapter lies there, the card is one of an adapter.

    No secret is written, wherever it stands: see `wire.redact`.

    Args:
        base_model: what training started from; a Hub id also goes into the front matter (an adapter's own base does).
        metrics: evaluations `before` and `after`, or `after` alone; `None` leaves the results out.
        config: the run's settings, from which the snippet takes tools and limits.
        license: of the weights; default that of `base_model` (`license_of`).
        tags: front matter.
        repo_id: what the snippet loads; default the folder.
        dataset: the suite that `metrics` come from; default `eval_questions` or `questions` of `config`, or "world".
        plots: files in `output_dir` that the card shows.

    Raises:
        DialectError: for an unknown `dialect`.
        ConfigError: when `metrics` has neither `before` nor `after`.
    """
    from huggingface_hub import ModelCardData

    folder = Path(output_dir)
    name = repo_id or str(folder)
    title = name.rstrip("/").rsplit("/", 1)[-1]
    dataset = dataset or str(config.get("eval_questions") or config.get("questions") or "world")
    in_world = "world" in (config.get("corpus", "world"), config.get("triples", "world"))
    question = _WORLD_QUESTION if in_world else _ANY_QUESTION  # the world's would find nothing elsewhere
    adapter = adapter_config(folder)
    base = str(adapter.get("base_model_name_or_path")) if adapter else base_model
    license = license or license_of(base)
    evaluated = [metrics[key] for key in ("before", "after") if key in metrics] if metrics is not None else []
    if metrics is not None and not evaluated:
        raise ConfigError(f"metrics of a card are 'before' and 'after', got: {', '.join(metrics) or 'nothing'}")
    last = as_evaluation(evaluated[-1]) if evaluated else None
    results = [_result(metric, row, dataset) for metric, row in _named(last.rows).items()] if last else []
    own_tags = {"faithful-search", "search-agent", "tool-use", *tags, *(TAGS if adapter else ())}
    data = ModelCardData(
        base_model=base if is_hub_id(base) else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        license=license,
        tags=sorted(own_tags),
        model_name=title if results else None,
        eval_results=results or None,
    )
    names = ("before", "after") if len(evaluated) == 2 else ("value", "")
    # Without these flags `ask` would search elsewhere than in training
    flags = {"corpus": config.get("corpus"), "triples": config.get("triples"), "top-k": config.get("search_top_k")}
    given = {flag: shlex.quote(str(value)) for flag, value in flags.items() if value not in (None, "world")}
    body = render(
        "policy_card.md",
        title=title,
        base=base_model,
        recipe=recipe,
        dialect=dialect,
        adapter=adapter_note(adapter, name) if adapter else "",
        tools=tools,
        question=question.replace('"', "'"),  # it stands in quotes of the shell
        name=shlex.quote(name),
        asked="".join(f" --{flag} {value}" for flag, value in given.items()),
        snippet=usage(name, dialect, tools, config, question),
        command=command,
        config=as_json(config),
        plots=list(map(Path, plots)),
        dataset=dataset,
        table=table(evaluated[0], evaluated[1] if len(evaluated) > 1 else None, names=names) if evaluated else None,
        made_by=last.made_by if last else {},
        license=license,
    )
    return write_card(folder, data, body)


def eval_results(folder: str | os.PathLike[str], benchmark: str) -> dict[str, bytes]:
    """The rows of the last evaluation in a folder's `metrics.json` as a file of `.eval_results`, by its path there.

    The Hub shows results on datasets that it knows as benchmarks, here `benchmark`; each row is a task of that name.

    Raises:
        ConfigError: when there is no evaluation in it.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    path = Path(folder) / "metrics.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        evaluated = [one for one in found.values() if isinstance(one, dict) and "rows" in one]
        rows = as_evaluation(found.get("after") or evaluated[-1]).rows
    except (OSError, ValueError, IndexError, DataError) as error:
        raise ConfigError(f"{path} holds no evaluation to write results from: {error}") from error
    entries = [
        EvalResultEntry(
            dataset_id=benchmark,
            task_id=metric,
            value=row.value,
            notes=f"n = {row.n}, 95% interval {row.low} to {row.high}, with tools",
        )
        for metric, row in _named(rows).items()
    ]
    text = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False)
    return {".eval_results/faithful-search.yaml": text.encode()}


def _named(rows: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """The estimates of `RESULT_NAMES` that have a value, rounded."""
    known = {name: rows[name] for name in RESULT_NAMES if name in rows and rows[name].value is not None}
    rounded = {}
    for name, row in known.items():
        parts = {part: getattr(row, part) for part in ("value", "low", "high")}
        told = {part: None if value is None else round(value, 4) for part, value in parts.items()}
        rounded[name] = msgspec.structs.replace(row, **told)
    return rounded


def _result(metric: str, row: Estimate, dataset: str) -> Any:
    from huggingface_hub import EvalResult

    return EvalResult(
        task_type="question-answering",
        task_name="Question answering with search",
        dataset_type=dataset,
        dataset_name=dataset,
        metric_type=metric,
        metric_name=RESULT_NAMES[metric],
        metric_value=row.value,
        metric_args={"n": row.n, "ci95": [row.low, row.high]},
    )


def usage(name: str, dialect: str, tools: Sequence[str], config: Mapping[str, Any], question: str) -> str:
    """Python that loads the policy and asks it one question; tools that are not bundled are named in a comment."""
    search_tool = dialects.load(dialect).search_tool
    made = {tool: _made(tool, search_tool, config) for tool in tools}
    known = [code for code in made.values() if code]
    return render(
        "policy_snippet.py",
        classes=", ".join(sorted({"Toolbox", *(re.split(r"\W", code)[0] for code in known)})),
        name=json.dumps(name, ensure_ascii=False),
        made=", ".join(known),
        dialect=dialect,
        limits=", ".join(f"{key}={config[key]}" for key in _BOUNDS if isinstance(config.get(key), int) and config[key]),
        question=json.dumps(question, ensure_ascii=False),
        others=", ".join(tool for tool, code in made.items() if not code),
    ).rstrip("\n")


def _made(tool: str, search_tool: str | None, config: Mapping[str, Any]) -> str:
    """The code that makes a bundled tool as it was in training; empty for any other."""

    def call(kind: str, source: str, name: str = "") -> str:
        arguments = [json.dumps(source, ensure_ascii=False)] if source else []
        arguments += [f"top_k={config['search_top_k']}"] if isinstance(config.get("search_top_k"), int) else []
        arguments += [f'name="{name}"'] if name else []
        return f"{kind}({', '.join(arguments)})"

    corpus, triples = str(config.get("corpus") or "world"), str(config.get("triples") or "world")
    if tool in ("local_search", search_tool):
        if is_engine(corpus) and not is_server(corpus):
            return ""  # what opens it is not in `faithful_search.tools`
        kind = "RemoteSearch" if is_server(corpus) else "LocalSearch.from_corpus"
        return call(kind, corpus, "" if tool == "local_search" else tool)
    if tool == "knowledge_graph":
        return call("Wikidata", "") if triples == "wikidata" else call("KnowledgeGraph.from_triples", triples)
    return ""
