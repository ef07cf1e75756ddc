"""Judges read pairs of texts and say whether the second follows from the first."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import ConfigError
from .base import Judge, Pair, Request, Verdict, Writer
from .grounding import GroundingJudge
from .lexical import LexicalJudge

KINDS = ("lexical", "embedding", "nli", "generator", "endpoint", "remote")
_CLASSES = {"embedding": "EmbeddingJudge", "nli": "NLIJudge", "generator": "GeneratorJudge"}

__all__ = [
    "KINDS",
    "GroundingJudge",
    "Judge",
    "LexicalJudge",
    "Pair",
    "Request",
    "Verdict",
    "Writer",
    "is_lexical",
    "load",
    "reads_queries",
]


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

    Raises:
        ConfigError: for an unknown kind, or without the model or the packages that the kind needs.

    Example:
        >>> load("lexical").judge_batch([Pair("The tower is in Paris.", "It is in Paris.")])[0].label
        True
    """
    if kind not in KINDS:
        raise ConfigError(f"unknown judge {kind!r}; there are: {', '.join(KINDS)}")
    if kind == "lexical":
        return GroundingJudge(**knobs)
    if kind == "remote":
        if model:
            raise ConfigError(f"the judge 'remote' has no model: its server was started with one; got {model!r}")
        if not knobs.get("url"):
            raise ConfigError("the judge 'remote' needs the URL of `faithful-search serve-judge`")
        from .remote import RemoteJudge

        return RemoteJudge(**knobs)
    if not model:
        raise ConfigError(f"the judge {kind!r} needs a model")
    if kind == "endpoint":
        from .endpoint import EndpointJudge

        return EndpointJudge(model=model, **knobs)
    try:
        module = import_module(f".{kind}", __name__)  # these bring torch
        return getattr(module, _CLASSES[kind]).from_pretrained(model, **knobs)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the judge {kind!r} runs a model here and needs {error.name}: pip install 'faithful-search[train]'"
        ) from error


def is_lexical(judge: Judge) -> bool:
    """Whether the judge only compares words: what it measures is then called `…_lexical`. A served judge tells.

    Raises:
        JudgeError: when it does not, because its server is down.
    """
    return isinstance(judge, (GroundingJudge, LexicalJudge)) or bool(getattr(judge, "lexical", False))


def reads_queries(judge: Judge) -> bool:
    """Whether the judge can tell if passages state what a query asks for (`Pair.task` "states").

    Judges that compare texts cannot, and say so by `reads_queries = False`: nothing follows from a query, and what is
    near its topic is what has to be told apart. A served judge tells.

    Raises:
        JudgeError: when it does not, because its server is down.
    """
    return bool(getattr(judge, "reads_queries", True))
