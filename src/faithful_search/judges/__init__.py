"""Judges read pairs of texts and say whether the second follows from the first."""

import sys
from typing import Any

from .. import registry, suites
from ..errors import ConfigError, needs
from .base import (
    Judge as Judge,
    Pair as Pair,
    Request as Request,
    Verdict as Verdict,
    Weights as Weights,
    Writer as Writer,
)
from .containment import ContainmentJudge as ContainmentJudge
from .counted import CountedJudge as CountedJudge
from .lexical import GroundingJudge as GroundingJudge

WORDS = ("lexical", "counted", "containment")
"""Those that compare words; results that they made are named after them."""


def names() -> list[str]:
    """The judges that come with the package: one for each file here that defines one, and those
    that sources of questions bring.
    """
    return sorted([*_files(), *suites.judges()])


def find(name: str) -> type[Judge]:
    """The judge's class: by a name of `names`, by that of a judge that a source of questions brings,
    by an entry point of the group `faithful_search.judges`, or by the path of a file that defines
    one.

    Raises `ConfigError` for an unknown name, or without the packages that the judge needs.
    """
    with needs(f"the judge {name!r} runs a model here and", "train"):
        return registry.find(sys.modules[__name__], name, Judge, _files(), suites.judges())


def _files() -> list[str]:
    return registry.files(sys.modules[__name__], Judge)


def load(kind: str, model: str | None = None, **settings: Any) -> Judge:
    """A judge by its name, opened.

    | kind | model | settings |
    |---|---|---|
    | lexical | none | those of `GroundingJudge`, which counts the words that are found |
    | counted | none | `weights_of_tasks` of `CountedJudge`, which weighs where words are found |
    | containment | none | `ContainmentJudge` has none; it looks for the whole text as it stands |
    | facts | none | none; it knows the facts of the bundled questions |
    | embedding | an encoder, Hub id or directory | those of `EmbeddingJudge.from_pretrained` |
    | nli | an NLI classifier, or a seq2seq model of the TRUE kind | those of `NLIJudge.from_pretrained` |
    | span | a directory that `recipes/reward_model.py` wrote with `head: spans` | those of `SpanJudge` |
    | generator | a causal LM | those of `GeneratorJudge.from_pretrained` |
    | those of `PRESETS` | one of its family; by default the preset | of its `from_pretrained` |
    | endpoint | the served model's name | `url`, and those of `EndpointJudge` |
    | remote | none: the server has it | `url` of `faithful-search serve-judge`, and those of `RemoteJudge` |
    | yours | if `needs_model` | see `find` and `Judge.open` |

    Raises `ConfigError` for an unknown kind, without the model or the packages that the kind needs,
    or with a model that it cannot have.
    """
    judge = find(kind)
    if model and not judge.needs_model:
        raise ConfigError(f"the judge {kind!r} has no model")
    if judge.needs_model and not model:
        if judge.preset is None:
            name = "what its server calls it" if "url" in judge.flags else "its directory or Hub id"
            raise ConfigError(
                f"the judge {kind!r} needs a model: name {name} with --judge_model, or in Python "
                f"load({kind!r}, model)"
            )
        model = judge.preset.model
    with needs(f"the judge {kind!r} runs a model here and", "train"):
        return judge.open(model, **settings)


def made_by(judge: Judge) -> str:
    """How the name of a result ends that this judge made: "faithfulness", the judge's own name where
    a suite brings it ("facts"), or one of `WORDS` where words are compared. Raises `JudgeError` for
    a served judge whose server is down.

    Example:
        >>> made_by(GroundingJudge()), made_by(ContainmentJudge())
        ('lexical', 'containment')
    """
    name = judge.name.removeprefix("remote:")
    if name in suites.judges():
        return name
    if not judge.lexical:
        return "faithfulness"
    return name if name in WORDS else "lexical"
