"""Judges read pairs of texts and say whether the second follows from the first."""

from importlib import import_module
from typing import Any

from ..errors import ConfigError, needs
from .base import (
    Judge as Judge,
    Pair as Pair,
    Request as Request,
    Verdict as Verdict,
    Writer as Writer,
)
from .grounding import GroundingJudge as GroundingJudge, LexicalJudge as LexicalJudge

_CLASSES = {
    "lexical": ("grounding", "GroundingJudge"),
    "embedding": ("embedding", "EmbeddingJudge"),
    "nli": ("nli", "NLIJudge"),
    "generator": ("generator", "GeneratorJudge"),
    "endpoint": ("endpoint", "EndpointJudge"),
    "remote": ("remote", "RemoteJudge"),
}
KINDS = tuple(_CLASSES)
LOCAL = ("embedding", "nli", "generator")  # those that run a model here


def load(kind: str, model: str | None = None, **knobs: Any) -> Judge:
    """A judge by its kind.

    | kind | model | knobs |
    |---|---|---|
    | lexical | none | those of `GroundingJudge` |
    | embedding | an encoder, Hub id or directory | those of `EmbeddingJudge.from_pretrained` |
    | nli | an NLI classifier, or a seq2seq model of the TRUE kind | those of `NLIJudge.from_pretrained` |
    | generator | a causal LM | those of `GeneratorJudge.from_pretrained` |
    | endpoint | the served model's name | `url`, and those of `EndpointJudge` |
    | remote | none: the server has it | `url` of `faithful-search serve-judge`, and those of `RemoteJudge` |

    Raises `ConfigError` for an unknown kind, without the model or the packages that the kind needs, or with a model
    that it cannot have.
    """
    if kind not in KINDS:
        raise ConfigError(f"unknown judge {kind!r}; there are: {', '.join(KINDS)}")
    if bool(model) == (kind in ("lexical", "remote")):
        raise ConfigError(f"the judge {kind!r} {'has no model' if model else 'needs a model'}")
    if kind == "remote" and not knobs.get("url"):
        raise ConfigError("the judge 'remote' needs the URL of `faithful-search serve-judge`")
    module, name = _CLASSES[kind]
    with needs(f"the judge {kind!r} runs a model here and", "train"):
        judge = getattr(import_module(f".{module}", __name__), name)
        if kind in LOCAL:
            return judge.from_pretrained(model, **knobs)
        return judge(model=model, **knobs) if model else judge(**knobs)


def is_lexical(judge: Judge) -> bool:
    """Whether the judge only compares words: what it measures is then called `…_lexical`.

    Raises `JudgeError` for a served judge whose server is down.
    """
    return bool(getattr(judge, "lexical", False))


def reads_queries(judge: Judge) -> bool:
    """Whether the judge can tell if passages state what a query asks for (`Pair.task` "states").

    Judges that compare texts cannot, and say so by `reads_queries = False`: nothing follows from a query, and what is
    near its topic is what has to be told apart. Raises as `is_lexical`.
    """
    return bool(getattr(judge, "reads_queries", True))
