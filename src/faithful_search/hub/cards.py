"""Model cards: how a policy or a distilled judge was made and measured, and code that runs it.

No secret is written, wherever it stands: see `wire.redact`.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import loose_json
from ..bundled import bundled_json
from ..errors import ConfigError, DataError, reason_of
from ..escape import as_code, as_literal, as_markdown
from ..measure import provenance
from ..measure.evaluation import Evaluation, Record
from ..measure.metrics import TITLES, asks
from ..measure.report import evaluation_table
from ..measure.stats import Estimate
from ..measure.writing import card_of, filled, write_whole
from ..rollout.arguments import EnvironmentArguments
from ..wire.redact import redact
from .models import adapter_config, is_hub_id, license_of

_TERMS: dict[str, str] = bundled_json("label_terms.json")
"""The terms of labelled data, by the source that `labelled.load` gives a row."""
_ADAPTER_TAGS = ("lora", "peft")
_WORLD_QUESTION = "Which city is the capital of the country that Mount Olympus is in?"
_MACHINE_SETTINGS = ("tool_", "cassette", "generation_", "contact")
"""Prefixes of settings that do not change what a policy sees."""


def command_line(recipe: str, argv: Sequence[str]) -> str:
    """The command that called a recipe, for a shell, without the secrets among its flags.

    `recipe` is the path of a script for Accelerate, or a subcommand of `faithful-search`.

    Example:
        >>> command_line("recipes/pou.py", ["--seed", "1", "--hub_token", "x"])
        'accelerate launch recipes/pou.py --seed 1 --hub_token [secret]'
        >>> command_line("faithful-search train pou", ["--seed", "1"])
        'faithful-search train pou --seed 1'
    """
    is_command = recipe.startswith("faithful-search ")
    program = recipe.split() if is_command else ["accelerate", "launch", recipe]
    # Redacted before it is quoted, since a quoted secret is not recognised
    words = redact([*program, *argv])
    return str(redact(shlex.join(words)))


def judge_card(
    folder: Path,
    *,
    file: Any,
    base_model: str,
    agreement: Any,
    argv: Sequence[str],
    config: Mapping[str, Any],
    recipe: str = "recipes/reward_model.py",
    pairs: Sequence[str] = (),
    license: str | None = None,
) -> Path:
    """Write `README.md`, the model card of a distilled judge: what it was trained on, and how far
    it agrees with labels.

    Args:
        folder: the judge's.
        file: its `JudgeFile`.
        base_model: what training started from.
        agreement: the held-out measurement (`measure.agreement.Agreement`), `None` for none.
        argv: the flags of `recipe`.
        config: the settings of training.
        pairs: files and folders of the pairs that it was trained on.
        license: `None` where it is not known.
    """
    from huggingface_hub import ModelCardData

    terms = {source: _TERMS.get(source, "terms not known") for source in file.trained_on}
    for place in pairs:
        labels = provenance.read(Path(place))
        if labels is not None:
            terms[place] = (
                f"{labels.pairs} pairs labelled by {labels.judge}; licence: "
                f"{labels.license or 'not stated'}"
            )
    data = ModelCardData(
        base_model=base_model if is_hub_id(base_model) else None,
        library_name=_library(folder, file.kind),
        pipeline_tag="text-generation" if file.kind == "generator" else "text-classification",
        license=license,
        tags=["faithful-search", "faithfulness", "judge"],
    )
    card = card_of(
        __package__,
        "judge_card.md.j2",
        data,
        title=folder.absolute().name,
        name=str(folder),
        file=file,
        base=base_model,
        sources=terms,
        command=command_line(recipe, argv),
        config=config,
        agreement="Not measured." if agreement is None else agreement.table(),
        license=license,
    )
    return write_whole(folder / "README.md", card)


def _library(folder: Path, kind: str) -> str:
    """What opens the judge's weights."""
    if kind == "span":
        return "onnx"
    return "peft" if (folder / "adapter_config.json").exists() else "transformers"


def model_card(record: Record, recipe: str, argv: Sequence[str], plots: Sequence[str] = ()) -> Path:
    """Write `README.md`, the model card of a training run, into its folder. If the folder holds an
    adapter, the card is an adapter's.

    `argv` are the flags that the recipe was called with; `plots` are files in the folder that the
    card shows. The licence is the base model's (`license_of`).
    """
    from huggingface_hub import EvalResult, ModelCardData

    folder = Path(record.folder)
    config = record.settings
    name = record.folder
    title = folder.absolute().name
    in_world = "world" in (config.get("corpus", "world"), config.get("triples", "world"))
    # Tools that search elsewhere find nothing about the bundled world
    question = _WORLD_QUESTION if in_world else "Your question?"
    adapter = adapter_config(folder)
    base = str(adapter.get("base_model_name_or_path")) if adapter else record.model
    license = license_of(base)
    last = record.after or record.before
    estimates = last.rows if last else {}
    results = []
    for metric, row in _published(estimates).items():
        result = EvalResult(
            task_type="question-answering",
            task_name="Question answering with search",
            dataset_type=record.questions,
            dataset_name=record.questions,
            metric_type=metric,
            metric_name=TITLES[metric],
            metric_value=row["value"],
            metric_args={"n": row["n"], "ci95": [row["low"], row["high"]]},
        )
        results.append(result)
    tags = ["faithful-search", "search-agent", "tool-use"]
    if adapter:
        tags += _ADAPTER_TAGS
    data = ModelCardData(
        base_model=base if is_hub_id(base) else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        license=license,
        tags=sorted(tags),
        model_name=title if results else None,
        eval_results=results or None,
    )
    measured = None
    if record.before and record.after:
        measured = evaluation_table(record.before, record.after, ("before", "after"))
    elif last:
        measured = evaluation_table(last, None, ("value", ""))
    card = card_of(
        __package__,
        "policy_card.md.j2",
        data,
        title=title,
        base=record.model,
        recipe=recipe,
        dialect=record.dialect,
        adapter=_adapter_note(adapter, name) if adapter else "",
        tools=record.tools,
        usage=f"pip install 'faithful-search[train]'\n{_ask_command(name, config, question)}",
        snippet=usage(name, record.dialect, config, question),
        command=command_line(recipe, argv),
        config=config,
        plots=list(map(Path, plots)),
        dataset=record.questions,
        table=measured,
        asked={metric: asks(metric) for metric in estimates if asks(metric)},
        license=license,
    )
    return write_whole(folder / "README.md", card)


def _ask_command(name: str, config: Mapping[str, Any], question: str) -> str:
    """The command that asks the policy, with the tools that it was trained with."""
    command = f"faithful-search ask {shlex.quote(question)} --model {shlex.quote(name)}"
    for setting in ("corpus", "triples", "search_top_k"):
        value = config.get(setting)
        if value not in (None, "world"):
            command += f" --{setting.replace('_', '-')} {shlex.quote(str(value))}"
    return command


def merged_card(adapter: str | Path, out: str | Path) -> Path:
    """Write the card of the merged model in the folder `out`: the adapter's card, with what differs
    replaced.

    Raises `ConfigError` when there is no adapter in the folder `adapter`.
    """
    from huggingface_hub import ModelCard

    adapter, out = Path(adapter), Path(out)
    config = adapter_config(adapter)
    if config is None:
        raise ConfigError(f"there is no PEFT adapter in {adapter}")
    base = str(config.get("base_model_name_or_path"))
    adapter_note = _adapter_note(config, str(adapter))
    merged_note = (
        f"The weights are full ones: those of {as_code(base)}, with the adapter\n"
        f"{as_code(str(adapter))} merged into them."
    )
    card: Any = ModelCard("")
    if (adapter / "README.md").exists():
        card = ModelCard.load(adapter / "README.md")
    # A card without our paragraph is somebody else's and says nothing of the merged model
    text = f"# {as_markdown(out.name)}\n\nA search agent. {merged_note}\n"
    if adapter_note in card.text:
        text = card.text.replace(adapter_note, merged_note)
    card.text = text.replace(as_literal(str(adapter)), as_literal(str(out)))
    card.data.library_name = "transformers"  # no longer peft
    tags = card.data.tags or ["faithful-search"]
    card.data.tags = [tag for tag in tags if tag not in _ADAPTER_TAGS]
    card.data.base_model = base if is_hub_id(base) else None
    ModelCard(redact(str(card))).save(out / "README.md")  # somebody else's card may hold a secret
    return out / "README.md"


def _adapter_note(config: Mapping[str, Any], name: str) -> str:
    """The paragraph of a card that says what the adapter is. `merged_card` replaces it."""
    kind = str(config.get("peft_type") or "LoRA").replace("LORA", "LoRA")
    if config.get("use_dora"):
        kind = "DoRA"
    base = str(config.get("base_model_name_or_path"))
    return (
        f"The weights are those of a {as_markdown(kind)} adapter of rank "
        f"{as_markdown(str(config.get('r')))}; the model below them, {as_code(base)}, is\n"
        "loaded with it. This writes a full model that needs no PEFT: "
        f"{as_code(f'faithful-search merge {name} OUT')}."
    )


def eval_results(folder: Path, benchmark: str) -> dict[str, bytes]:
    """The file of `.eval_results` with the last evaluation in a folder's `metrics.json`, by its
    path in the repository.

    The Hub shows results on datasets that it knows as benchmarks, here `benchmark`; each result is
    a task of its name. Raises `ConfigError` when `metrics.json` holds no evaluation.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    path = folder / "metrics.json"
    try:
        metrics = loose_json.decode(path.read_bytes())
        rows = _published(_last_evaluation(metrics).rows)
    except (OSError, ValueError, DataError) as error:
        raise ConfigError(
            f"{path} holds no evaluation to write results from: {reason_of(error)}"
        ) from error
    entries = []
    for metric, row in rows.items():
        notes = f"n = {row['n']}"
        if row["low"] is not None:  # too few questions have no interval
            notes += f", 95% interval {row['low']} to {row['high']}"
        notes += ", with tools"
        entries.append(
            EvalResultEntry(dataset_id=benchmark, task_id=metric, value=row["value"], notes=notes)
        )
    text = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False)
    return {".eval_results/faithful-search.yaml": text.encode()}


def _last_evaluation(metrics: Any) -> Evaluation:
    """The evaluation after training, else the last one there is. Raises `DataError` where there is
    none.
    """
    if not isinstance(metrics, dict):
        raise DataError("it is not a JSON object")
    if metrics.get("after"):
        return Evaluation.from_dict(metrics["after"])
    evaluations = [value for value in metrics.values() if isinstance(value, dict)]
    evaluations = [value for value in evaluations if "rows" in value]
    if not evaluations:
        raise DataError("no part of it has rows")
    return Evaluation.from_dict(evaluations[-1])


def _published(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    """The estimates that have a title and a value, rounded to four places."""
    published = {}
    for name, estimate in estimates.items():
        if name not in TITLES or estimate.value is None:
            continue
        published[name] = {
            "value": _rounded(estimate.value),
            "low": _rounded(estimate.low),
            "high": _rounded(estimate.high),
            "n": estimate.n,
        }
    return published


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def usage(name: str, dialect: str, config: Mapping[str, Any], question: str) -> str:
    """Python code that loads the policy with the tools and limits of its training, and asks it a
    question.
    """
    settings = {}
    for setting in dataclasses.fields(EnvironmentArguments):
        if setting.name.startswith(_MACHINE_SETTINGS):
            continue
        value = config.get(setting.name, setting.default)
        if value != setting.default:
            settings[setting.name] = value
    settings["dialect"] = dialect
    return filled(
        __package__,
        "policy_snippet.py.j2",
        settings=", ".join(f"{key}={value!r}" for key, value in settings.items()),
        total_tokens=config.get("total_tokens", 1024),
        name=name,
        question=question,
    ).rstrip("\n")
