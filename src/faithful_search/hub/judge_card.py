"""A distilled judge's model card: what it was taught, and how far it agrees with held-out labels."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..measure import provenance
from ..text import as_markdown, printable
from ..wire.redact import redact
from .pushing import is_hub_id

_JUDGE = """# {title}

A judge of faithfulness: it reads a premise and a hypothesis and gives the probability that the hypothesis follows from
the premise (what exactly is asked: `{task}`). Distilled from {base} with faithful-search, recipe `{recipe}`.

## How to use

```bash
pip install 'faithful-search[train]'
```

```python
from faithful_search.judges import Pair, load

judge = load("{kind}", "{repo}")
[verdict] = judge.judge_batch([Pair("The tower is in Paris.", "It is in Paris.", task="{task}")])
print(verdict.p, verdict.label)
```

As a reward in training, and wherever a command or recipe takes a judge: `--judge {kind} --judge_model {repo}`.

`judge.json` holds what it was calibrated to: temperature {temperature:.3f}, threshold {threshold:g}.

## Training

- Base model: {base}
- Labelled pairs:
{sources}
- Command:

```bash
{command}
```

<details><summary>Configuration</summary>

```json
{config}
```

</details>

## Agreement with the labels

Of pairs that were held out, by question: none of them, and no question of theirs, was learnt from.

```
{agreement}
```

`distilled` is this judge, `untrained` its base model before training, `second run` whoever labelled the pairs, asked
again; the others were measured beside them. A row counts the `pairs` of one source of `labels`, of which the share
`true` has a true label. κ is Cohen's: agreement beyond chance, 0 where there is none. AUROC is the chance that of a
true and a false pair the true one has the higher p. ECE is how far p lies from the share of true labels, over so many
bins; Brier the mean of (p − label)². In brackets: 95% intervals, questions resampled. The tables below the first say
how far the judges agree with each other.

## Limitations

- It says what the labels it was trained on would say, mistakes included; on other kinds of text it may be wrong, and
  its probabilities need not mean what they say.
- A policy that is trained against it can learn to game it: look at what it writes, and measure with another judge.
- {terms}
"""


_LICENSED = "The weights are under the licence above as far as the base model and the data named here allow."
_UNLICENSED = "No licence was chosen for the weights; the terms of the base model and of the data named here hold."

_TERMS = {
    "world": "made from the bundled world, labels by construction; Apache-2.0",
    "halueval": "HaluEval-QA; MIT",
    "begin": "BEGIN (google/BEGIN-dataset), labelled by people; CC BY 4.0",
    "anli": "ANLI (facebookresearch/anli), labelled by people; CC BY-NC 4.0, not for commercial use",
    "attributionbench": "AttributionBench (OSU-NLP-Group), labelled by people; states no licence",
}
"""Terms of labelled pairs, by the source that `labelled.load` gives a row."""


def judge_card(
    output_dir: str | os.PathLike[str],
    *,
    file: Any,
    base_model: str,
    agreement: Any,
    recipe: str,
    command: str,
    config: Mapping[str, Any],
    license: str | None = None,
    sources: Mapping[str, str] | None = None,
    repo_id: str | None = None,
) -> Path:
    """Write `README.md`, a distilled judge's model card, into `output_dir`, without the secrets of `wire.redact`.

    Args:
        output_dir: the judge's folder.
        file: its `judges.distilled.JudgeFile`.
        base_model: what training started from; a Hub id also goes into the front matter.
        agreement: the held-out measurement (`measure.agreement.table.Agreement`); `None` where there is none.
        recipe, command, config: how it was trained.
        license: of the weights, front matter; left out where it is not known.
        sources: provenance and terms of each source of pairs.
        repo_id: what the snippet loads; default the folder.
    """
    from huggingface_hub import ModelCard, ModelCardData

    output_dir = Path(output_dir)
    name = repo_id or str(output_dir)
    data = ModelCardData(
        base_model=base_model if is_hub_id(base_model) else None,
        library_name="peft" if (output_dir / "adapter_config.json").exists() else "transformers",
        pipeline_tag="text-classification" if file.kind == "nli" else "text-generation",
        license=license,
        tags=["faithful-search", "faithfulness", "judge"],
    )
    known = {**dict.fromkeys(file.trained_on, "terms not known"), **(sources or {})}
    body = _JUDGE.format(
        title=name.rstrip("/").rsplit("/", 1)[-1],
        task=file.task,
        kind=file.kind,
        repo=name,
        base=f"`{base_model}`",
        recipe=recipe,
        temperature=file.temperature,
        threshold=file.threshold,
        sources="\n".join(f"  - {as_markdown(source)}: {as_markdown(terms)}" for source, terms in known.items()),
        command=command,
        config=json.dumps(dict(config), indent=2, ensure_ascii=False, default=str),
        agreement="Not measured." if agreement is None else printable(agreement.table()).replace("```", "'''"),
        terms=_LICENSED if license else _UNLICENSED,
    )
    path = output_dir / "README.md"
    output_dir.mkdir(parents=True, exist_ok=True)
    ModelCard(redact(f"---\n{data.to_yaml()}\n---\n\n{body}")).save(path)
    return path


def terms_of(sources: Iterable[str], places: Sequence[str] = ()) -> dict[str, str]:
    """Provenance and terms of each source of labelled pairs, and of each folder of labels with a `provenance.json`.

    Example:
        >>> terms_of(["halueval", "mine"])
        {'halueval': 'HaluEval-QA; MIT', 'mine': 'terms not known'}
    """
    read = ((place, provenance.read(Path(place))) for place in places)
    labelled = {
        place: f"{made.pairs} pairs labelled by {made.judge}; licence: {made.license or 'not stated'}"
        for place, made in read
        if made is not None
    }
    return {source: _TERMS.get(source, "terms not known") for source in sources} | labelled
