"""Model cards: how a policy or a distilled judge was made and measured, and code that runs it.

No secret is written, wherever it stands: see `wire.redact`.
"""

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..bundled import bundled_json
from ..errors import ConfigError, DataError
from ..measure import provenance
from ..measure.evaluation import Evaluation, Record
from ..measure.report import table
from ..measure.stats import Estimate
from ..measure.writing import card_of, filled, write_whole
from ..rollout.arguments import EnvironmentArguments
from ..text import printable
from ..wire.redact import redact
from .models import adapter_config, is_hub_id, license_of

RESULT_NAMES: dict[str, str] = bundled_json("result_names.json")
"""Rows of an evaluation that go into the card's front matter, with what they are called there."""
_TERMS: dict[str, str] = bundled_json(
    "label_terms.json"
)  # by the source that `labelled.load` gives a row
_ADAPTER_TAGS = ("lora", "peft")
_WORLD_QUESTION = "Which city is the capital of the country that Mount Olympus is in?"
_OF_THE_MACHINE = ("tool_", "cassette", "generation_", "contact")
"""How the names of settings begin that say nothing of what a policy sees."""


def command_line(recipe: str, argv: Sequence[str]) -> str:
    """How a recipe was called, to be pasted into a shell, without the secrets among its flags.

    Example:
        >>> command_line("recipes/pou.py", ["--seed", "1", "--hub_token", "x"])
        'accelerate launch recipes/pou.py --seed 1 --hub_token [secret]'
    """
    words = redact(
        ["accelerate", "launch", recipe, *argv]
    )  # before quoting, which would hide one with a quote in it
    return str(redact(shlex.join(words)))


def judge_card(
    folder: Path,
    *,
    file: Any,
    base_model: str,
    agreement: Any,
    argv: Sequence[str],
    config: Mapping[str, Any],
    pairs: Sequence[str] = (),
    license: str | None = None,
) -> Path:
    """Write `README.md`, a distilled judge's model card: what it was taught, and how far it agrees with labels.

    `file` is the judge's `JudgeFile`, `base_model` what training started from, `agreement` the held-out measurement
    (`measure.agreement.Agreement`) or `None`. `argv` are the flags of `recipes/reward_model.py`, `pairs` the files and
    folders of pairs that it was trained on; `license` is left out where it is not known.
    """
    from huggingface_hub import ModelCardData

    terms = {source: _TERMS.get(source, "terms not known") for source in file.trained_on}
    for place in pairs:
        if (made := provenance.read(Path(place))) is not None:
            terms[place] = (
                f"{made.pairs} pairs labelled by {made.judge}; licence: {made.license or 'not stated'}"
            )
    data = ModelCardData(
        base_model=base_model if is_hub_id(base_model) else None,
        library_name="peft" if (folder / "adapter_config.json").exists() else "transformers",
        pipeline_tag="text-classification" if file.kind == "nli" else "text-generation",
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
        command=command_line("recipes/reward_model.py", argv),
        config=config,
        # shown between fences, which nothing in a table may close
        agreement="Not measured."
        if agreement is None
        else printable(agreement.table()).replace("```", "'''"),
        license=license,
    )
    return write_whole(folder / "README.md", card)


def model_card(record: Record, recipe: str, argv: Sequence[str], plots: Sequence[str] = ()) -> Path:
    """Write `README.md`, a run's model card, into its folder. Where an adapter lies there, it is one of an adapter.

    `argv` are the flags that the recipe was called with, `plots` files in the folder that the card shows. The licence
    is the base model's (`license_of`).
    """
    from huggingface_hub import EvalResult, ModelCardData

    folder, config = Path(record.folder), record.settings
    name, title = record.folder, folder.absolute().name
    in_world = "world" in (config.get("corpus", "world"), config.get("triples", "world"))
    question = (
        _WORLD_QUESTION if in_world else "Your question?"
    )  # the world's would find nothing elsewhere
    adapter = adapter_config(folder)
    base = str(adapter.get("base_model_name_or_path")) if adapter else record.model
    license = license_of(base)
    evaluated = [own for own in (record.before, record.after) if own is not None]
    results = [
        EvalResult(
            task_type="question-answering",
            task_name="Question answering with search",
            dataset_type=record.questions,
            dataset_name=record.questions,
            metric_type=metric,
            metric_name=RESULT_NAMES[metric],
            metric_value=row["value"],
            metric_args={"n": row["n"], "ci95": [row["low"], row["high"]]},
        )
        for metric, row in _named(evaluated[-1].rows if evaluated else {}).items()
    ]
    data = ModelCardData(
        base_model=base if is_hub_id(base) else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        license=license,
        tags=sorted(
            {"faithful-search", "search-agent", "tool-use", *(_ADAPTER_TAGS if adapter else ())}
        ),
        model_name=title if results else None,
        eval_results=results or None,
    )
    # Without these flags `ask` would search elsewhere than in training
    flags = {
        "corpus": config.get("corpus"),
        "triples": config.get("triples"),
        "top-k": config.get("search_top_k"),
    }
    given = {
        flag: shlex.quote(str(value))
        for flag, value in flags.items()
        if value not in (None, "world")
    }
    columns = ("before", "after") if len(evaluated) == 2 else ("value", "")
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
        question=question.replace('"', "'"),  # it stands in quotes of the shell
        name=shlex.quote(name),
        asked="".join(f" --{flag} {value}" for flag, value in given.items()),
        snippet=usage(name, record.dialect, config, question),
        command=command_line(recipe, argv),
        config=config,
        plots=list(map(Path, plots)),
        dataset=record.questions,
        table=table(evaluated[0], evaluated[1] if len(evaluated) == 2 else None, columns)
        if evaluated
        else None,
        made_by=evaluated[-1].made_by if evaluated else {},
        license=license,
    )
    return write_whole(folder / "README.md", card)


def merged_card(adapter: str | Path, out: str | Path) -> Path:
    """Write the card of the merged model in the folder `out`: its adapter's, changed where it differs.

    Raises `ConfigError` when there is no adapter in the folder.
    """
    from huggingface_hub import ModelCard

    adapter, out = Path(adapter), Path(out)
    config = adapter_config(adapter)
    if config is None:
        raise ConfigError(f"there is no PEFT adapter in {adapter}")
    base, own = str(config.get("base_model_name_or_path")), _adapter_note(config, str(adapter))
    merged = f"The weights are full ones: those of `{base}`, with the adapter\n`{adapter}` merged into them."
    card: Any = (
        ModelCard.load(adapter / "README.md") if (adapter / "README.md").exists() else ModelCard("")
    )
    # Only a card of ours has our paragraph; any other would say something wrong of the merged model
    text = (
        card.text.replace(own, merged)
        if own in card.text
        else f"# {out.name}\n\nA search agent. {merged}\n"
    )
    card.text = text.replace(json.dumps(str(adapter)), json.dumps(str(out)))
    card.data.library_name = "transformers"  # no longer peft
    card.data.tags = [
        tag for tag in card.data.tags or ["faithful-search"] if tag not in _ADAPTER_TAGS
    ]
    card.data.base_model = base if is_hub_id(base) else None
    ModelCard(redact(str(card))).save(out / "README.md")  # somebody else's card may hold a secret
    return out / "README.md"


def _adapter_note(config: Mapping[str, Any], name: str) -> str:
    kind = (
        "DoRA"
        if config.get("use_dora")
        else str(config.get("peft_type") or "LoRA").replace("LORA", "LoRA")
    )
    return (
        f"The weights are those of a {kind} adapter of rank {config.get('r')}; the model below them, "
        f"`{config.get('base_model_name_or_path')}`, is\nloaded with it. This writes a full model that needs no PEFT: "
        f"`faithful-search merge {name} OUT`."
    )


def eval_results(folder: Path, benchmark: str) -> dict[str, bytes]:
    """The rows of the last evaluation in a folder's `metrics.json` as a file of `.eval_results`, by its path there.

    The Hub shows results on datasets that it knows as benchmarks, here `benchmark`; each row is a task of that name.
    Raises `ConfigError` when there is no evaluation in it.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    path = folder / "metrics.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        evaluated = [one for one in found.values() if isinstance(one, dict) and "rows" in one]
        rows = _named(Evaluation.from_dict(found.get("after") or evaluated[-1]).rows)
    except (OSError, ValueError, IndexError, DataError) as error:
        raise ConfigError(f"{path} holds no evaluation to write results from: {error}") from error
    entries = []
    for metric, row in rows.items():
        notes = f"n = {row['n']}, 95% interval {row['low']} to {row['high']}, with tools"
        entries.append(
            EvalResultEntry(dataset_id=benchmark, task_id=metric, value=row["value"], notes=notes)
        )
    text = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False)
    return {".eval_results/faithful-search.yaml": text.encode()}


def _named(rows: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    """The estimates of `RESULT_NAMES` that have a value, rounded."""
    found = {}
    for name in RESULT_NAMES:
        if (row := rows.get(name)) is not None and row.value is not None:
            parts = {"value": row.value, "low": row.low, "high": row.high}
            rounded = {
                part: None if value is None else round(value, 4) for part, value in parts.items()
            }
            found[name] = {**rounded, "n": row.n}
    return found


def usage(name: str, dialect: str, config: Mapping[str, Any], question: str) -> str:
    """Python that loads the policy with the tools and limits of its training and asks it one question."""
    fields = [
        item
        for item in dataclasses.fields(EnvironmentArguments)
        if not item.name.startswith(_OF_THE_MACHINE)
    ]
    given = {
        item.name: config[item.name]
        for item in fields
        if config.get(item.name, item.default) != item.default
    }
    return filled(
        __package__,
        "policy_snippet.py.j2",
        settings=", ".join(
            f"{key}={value!r}" for key, value in {**given, "dialect": dialect}.items()
        ),
        total_tokens=config.get("total_tokens", 1024),
        name=json.dumps(name, ensure_ascii=False),
        question=json.dumps(question, ensure_ascii=False),
    ).rstrip("\n")
