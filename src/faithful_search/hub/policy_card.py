"""A policy's model card: how it was made and measured, and code that runs it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import dialects
from ..bundled import bundled_policy
from ..errors import ConfigError, DataError
from ..measure.report import Evaluated, as_evaluation, table
from ..tools.opening import is_server
from ..tools.retrieval.engines import is_engine
from ..wire.redact import redact
from .adapters import TAGS, adapter_config, adapter_note
from .pushing import is_hub_id

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

_BODY = """# {title}

A search agent: it thinks, calls tools, and answers from the evidence they return. Trained from {base} with
faithful-search, recipe `{recipe}`. It writes its trajectories in the dialect `{dialect}` and expects {tools}.{weights}

## How to use

```bash
pip install 'faithful-search[train]'
faithful-search ask "{question}" --model {name}{asked}
```

```python
{snippet}
```

## Training

- Base model: {base}
- Recipe: `{recipe}`
- Command:

```bash
{command}
```

<details><summary>Configuration</summary>

```json
{config}
```

</details>
{plots}
## Evaluation

{evaluation}

## Limitations

- The policy was trained with the tools and the document collection named above; with other tools, other languages or
  longer questions it may call the wrong tool, cite passages that do not support it, or give no answer.
- A valid citation says that the passage was there and was named in the right form, not that it is true. Check answers
  that matter.
- Measures of faithfulness are proxies: they can be satisfied without the answer being right.
{terms}"""
_UNLICENSED = "The base model's licence is not known here; its terms hold for these weights, too."

_SNIPPET = """from faithful_search.inference.base import Sampling
from faithful_search.inference.loading import open_generator
from faithful_search.rollout import Engine, Limits
from faithful_search.tasks import Task
from faithful_search.tools import {classes}

generator = open_generator({repo})
toolbox = Toolbox([{made}])
greedy = Sampling(temperature=0.0)
engine = Engine(generator, toolbox, dialect="{dialect}", limits=Limits({limits}), sampling=greedy)

[trajectory] = engine.run([Task(id="1", question={question})])
print(trajectory.answer)
for step in trajectory.steps:
    print(step.helpful, step.refs, step.think)"""

_SECONDS = 10
_WORLD_QUESTION = "Which city is the capital of the country that Mount Olympus is in?"
_ANY_QUESTION = "Your question?"


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
    question: str | None = None,
    plots: Sequence[str] = (),
) -> Path:
    """Write `README.md`, the model card, into `output_dir`. Where an adapter lies there, the card is one of an adapter.

    No secret is written, wherever it stands: see `wire.redact`.

    Args:
        output_dir: the policy's folder.
        base_model: what training started from; a Hub id also goes into the front matter (an adapter's own base does).
        dialect, recipe, command, config, tools: how it was trained. The snippet uses of `config`: `corpus`, `triples`
            and `search_top_k` for the tools, `turns`, `turn_tokens`, `total_tokens`, `observation_tokens`,
            `force_answer` and `verify` for the limits.
        metrics: evaluations `before` and `after`, or `after` alone; `None` leaves the results out.
        license: of the weights; default that of `base_model` (`license_of`).
        tags: front matter.
        repo_id: what the snippet loads; default the folder.
        dataset: the suite that `metrics` come from; default `eval_questions` or `questions` of `config`, or "world".
        question: the snippet's; by default one on the bundled world where the tools search that.
        plots: files in `output_dir` that the card shows.

    Raises:
        DialectError: for an unknown `dialect`.
        ConfigError: when `metrics` has neither `before` nor `after`.
    """
    from huggingface_hub import ModelCard

    output_dir = Path(output_dir)
    name = repo_id or str(output_dir)
    dataset = dataset or str(config.get("eval_questions") or config.get("questions") or "world")
    question = question or (_WORLD_QUESTION if "world" in _searched(config) else _ANY_QUESTION)
    adapter = adapter_config(output_dir)
    base = str(adapter.get("base_model_name_or_path")) if adapter else base_model
    tags = (*tags, *TAGS) if adapter else tags
    license = license or license_of(base)
    data = card_data(base, license, tags, metrics, dataset, name.rstrip("/").rsplit("/", 1)[-1])
    data.library_name = "peft" if adapter else "transformers"
    body = _BODY.format(
        title=name.rstrip("/").rsplit("/", 1)[-1],
        base=f"`{base_model}`",
        recipe=recipe,
        dialect=dialect,
        weights=f"\n\n{adapter_note(adapter, name)}" if adapter else "",
        tools="the\ntools " + ", ".join(f"`{tool}`" for tool in tools) if tools else "no tools",
        question=question.replace('"', "'"),
        name=shlex.quote(name),
        asked=_asked(config),
        snippet=usage(name, dialect, tools, config, question),
        command=command,
        config=json.dumps(dict(config), indent=2, ensure_ascii=False, default=str),
        evaluation=_evaluation(metrics, dataset),
        plots="".join(f"\n![{Path(plot).stem}, over training]({plot})\n" for plot in plots),
        terms="" if license else f"- {_UNLICENSED}\n",
    )
    path = output_dir / "README.md"
    output_dir.mkdir(parents=True, exist_ok=True)
    ModelCard(redact(f"---\n{data.to_yaml()}\n---\n\n{body}")).save(path)
    return path


def card_data(
    base_model: str,
    license: str | None,
    tags: Sequence[str],
    metrics: Mapping[str, Evaluated] | None,
    dataset: str,
    model_name: str,
) -> Any:
    """The front matter as `huggingface_hub.ModelCardData`, with a model-index when there are results."""
    from huggingface_hub import ModelCardData

    results = _results(metrics, dataset)
    return ModelCardData(
        base_model=base_model if is_hub_id(base_model) else None,
        library_name="transformers",
        pipeline_tag="text-generation",
        license=license,
        tags=sorted({"faithful-search", "search-agent", "tool-use", *tags}),
        model_name=model_name if results else None,
        eval_results=results or None,
    )


def license_of(model: str) -> str | None:
    """The licence that a model's own card states; `None` where there is no card, none is stated, or it is out of reach.

    Args:
        model: a folder, a Hub id, or a bundled policy's name.
    """
    from huggingface_hub import HfApi, ModelCard
    from huggingface_hub.errors import HTTPError

    model = bundled_policy(model, "pou")
    card = Path(model) / "README.md"
    if not card.is_file() and not is_hub_id(model):
        return None
    try:
        if card.is_file():
            stated = ModelCard.load(card, ignore_metadata_errors=True).data.get("license")
        else:  # asked once: a file's download is tried again for half a minute where the Hub is out of reach
            told = HfApi().model_info(model, timeout=_SECONDS).card_data
            stated = told.get("license") if told else None
    except (HTTPError, OSError, ValueError):
        return None
    return stated if isinstance(stated, str) else None


def eval_results(folder: str | os.PathLike[str], benchmark: str) -> dict[str, bytes]:
    """The rows of the last evaluation in a folder's `metrics.json` as a file of `.eval_results`, by its path there.

    The Hub shows results on datasets that it knows as benchmarks; each row is a task of that name.

    Args:
        folder: the policy's.
        benchmark: the dataset of the Hub that the questions come from.

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
            task_id=name,
            value=round(row.value, 4),
            notes=f"n = {row.n}, 95% interval {_rounded(row.low)} to {_rounded(row.high)}, with tools",
        )
        for name in RESULT_NAMES
        if (row := rows.get(name)) is not None and row.value is not None
    ]
    text = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False)
    return {".eval_results/faithful-search.yaml": text.encode()}


def usage(name: str, dialect: str, tools: Sequence[str], config: Mapping[str, Any], question: str) -> str:
    """Python that loads the policy and asks it one question; tools that are not bundled are named in a comment."""
    found = {tool: _made(tool, dialects.load(dialect).search_tool, config) for tool in tools}
    known = [made for made in found.values() if made]
    bounds = ("turns", "turn_tokens", "total_tokens", "observation_tokens", "force_answer", "verify")
    limits = [f"{key}={config[key]}" for key in bounds if isinstance(config.get(key), int) and config[key]]
    snippet = _SNIPPET.format(
        classes=", ".join(sorted({"Toolbox", *(kind for kind, _ in known)})),
        repo=json.dumps(name, ensure_ascii=False),
        made=", ".join(made for _, made in known),
        dialect=dialect,
        limits=", ".join(limits),
        question=json.dumps(question, ensure_ascii=False),
    )
    others = [tool for tool, made in found.items() if not made]
    return f"{snippet}\n# add the other tools it was trained with: {', '.join(others)}" if others else snippet


def _asked(config: Mapping[str, Any]) -> str:
    """Flags of `ask` without which it would search elsewhere than in training."""
    own = {"corpus": config.get("corpus"), "triples": config.get("triples"), "top-k": config.get("search_top_k")}
    given = {flag: value for flag, value in own.items() if value not in (None, "world")}
    return "".join(f" --{flag} {shlex.quote(str(value))}" for flag, value in given.items())


def _made(tool: str, search_tool: str | None, config: Mapping[str, Any]) -> tuple[str, str] | None:
    """A bundled tool's class and the code that makes it as it was in training; `None` for any other."""
    top_k = f", top_k={config['search_top_k']}" if isinstance(config.get("search_top_k"), int) else ""
    if tool in ("local_search", search_tool):
        named = "" if tool == "local_search" else f', name="{tool}"'
        corpus = str(config.get("corpus") or "world")
        if is_server(corpus):
            return "RemoteSearch", f"RemoteSearch({_source(config, 'corpus')}{top_k}{named})"
        if is_engine(corpus):
            return None
        return "LocalSearch", f"LocalSearch.from_corpus({_source(config, 'corpus')}{top_k}{named})"
    if tool == "knowledge_graph" and config.get("triples") == "wikidata":
        return "Wikidata", f"Wikidata({top_k.removeprefix(', ')})"
    if tool == "knowledge_graph":
        return "KnowledgeGraph", f"KnowledgeGraph.from_triples({_source(config, 'triples')}{top_k})"
    return None


def _searched(config: Mapping[str, Any]) -> tuple[Any, Any]:
    return config.get("corpus", "world"), config.get("triples", "world")


def _source(config: Mapping[str, Any], key: str) -> str:
    return json.dumps(str(config.get(key) or "world"), ensure_ascii=False)


def _chosen(metrics: Mapping[str, Evaluated]) -> tuple[Evaluated | None, Evaluated | None]:
    if not {"before", "after"} & set(metrics):
        raise ConfigError(f"metrics of a card are 'before' and 'after', got: {', '.join(metrics) or 'nothing'}")
    return metrics.get("before"), metrics.get("after")


def _results(metrics: Mapping[str, Evaluated] | None, dataset: str) -> list[Any]:
    from huggingface_hub import EvalResult

    if metrics is None:
        return []
    before, after = _chosen(metrics)
    rows = as_evaluation(after or before or {}).rows
    return [
        EvalResult(
            task_type="question-answering",
            task_name="Question answering with search",
            dataset_type=dataset,
            dataset_name=dataset,
            metric_type=name,
            metric_name=label,
            metric_value=round(estimate.value, 4),
            metric_args={"n": estimate.n, "ci95": [_rounded(estimate.low), _rounded(estimate.high)]},
        )
        for name, label in RESULT_NAMES.items()
        if (estimate := rows.get(name)) is not None and estimate.value is not None
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _evaluation(metrics: Mapping[str, Evaluated] | None, dataset: str) -> str:
    if metrics is None:
        return "Not evaluated."
    before, after = _chosen(metrics)
    if before is not None and after is not None:
        shown = table(before, after, names=("before", "after"))
    else:
        shown = table(after or before or {}, names=("value", ""))
    made = as_evaluation(after or before or {}).made_by
    how = "\n".join(f"- {name}: `{reward}`" for name, reward in made.items())
    legend = f"On the suite `{dataset}`; n counts questions, `*` marks a difference whose interval leaves out 0."
    return f"{legend}\n\n```\n{shown}\n```\n\n{how}"
