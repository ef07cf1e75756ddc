"""The exceptions of this package:

```
Exception
└── FaithfulSearchError      everything that the package raises on purpose
    ├── ConfigError          settings that contradict each other, or name what does not exist
    │   └── WeightsError     a model that is not here and cannot be had, or cannot be opened
    ├── DataError            a file, row or column that cannot be used
    ├── DialectError         an unknown dialect, or text that does not fit the one asked for
    ├── TemplateError        a tokenizer without a usable chat template
    ├── ToolError            a tool that failed in a way the policy should read about
    ├── JudgeError           a judge that gave no verdict: the reward abstains
    │   └── UnreachableError the judge's, writer's or agent's server is not there
    ├── NoScoreError         a score was asked for where there is none
    └── GeneratorError       whatever samples the policy is down, or gives no numbers
```

`ConfigError`, `WeightsError`, `DataError`, `DialectError` and `TemplateError` are a `ValueError`,
too. What is bad in one row, text or call is no exception but data: an `Issue`, a note, or a score
without a value.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class FaithfulSearchError(Exception):
    """Base class: catch this to catch everything the package raises on purpose."""


class DialectError(FaithfulSearchError, ValueError):
    """An unknown dialect, or text that does not fit the dialect asked for."""


class DataError(FaithfulSearchError, ValueError):
    """Data that cannot be used: the message names the file, the row and what is missing."""


class ToolError(FaithfulSearchError):
    """A tool that failed in a way the policy should read about and act on.

    `message` is for the policy: no key and no internal address may be in it, nor the text of
    another exception. `transient` says that the same call may succeed a little later (a time-out,
    429, 503): such a call is tried again, counts against the service, and is neither cached nor
    recorded. `retry_after` is for how many seconds the service asked, `status` its HTTP status.
    `retried` says that the layer that raised it has retried already and keeps account of the
    service.
    """

    def __init__(
        self,
        message: str = "",
        *,
        transient: bool = False,
        retry_after: float | None = None,
        retried: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.retry_after = retry_after
        self.retried = retried
        self.status = status

    def retold(self, message: str) -> "ToolError":
        """The same failure in other words."""
        return ToolError(
            message,
            transient=self.transient,
            retry_after=self.retry_after,
            retried=self.retried,
            status=self.status,
        )


class TemplateError(FaithfulSearchError, ValueError):
    """A tokenizer without a usable chat template."""


class JudgeError(FaithfulSearchError):
    """A judge that gave no verdict; the reward abstains, it never scores 0 for it."""


class NoScoreError(FaithfulSearchError):
    """A rollout without a score, where a host needs one: a judge failed, or nothing applies."""


class UnreachableError(JudgeError):
    """A served judge, writer or agent whose server is not there: nobody refused anything."""


class GeneratorError(FaithfulSearchError):
    """A server that samples the policy and is down, fails or does not answer in time, or a policy
    whose logits are not numbers; the message says which.
    """


class ConfigError(FaithfulSearchError, ValueError):
    """Settings that contradict each other or name something that does not exist."""


class WeightsError(ConfigError):
    """A model that is not on this machine and cannot be had, or whose files cannot be opened."""


@contextmanager
def needs(feature: str, extra: str) -> Iterator[None]:
    """While the block imports what a feature needs, a missing package is a `ConfigError` that names
    the extra with it.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{feature} needs {error.name}: pip install 'faithful-search[{extra}]'"
        ) from error


def kind_of(thing: object) -> str:
    """The name of its class: all of an error that may be shown, since its text may hold keys and
    addresses.

    Example:
        >>> kind_of(KeyError("password"))
        'KeyError'
    """
    name: str = _CLASS_NAME(type(thing))
    return (
        name
        if name.isidentifier() and len(name) <= _LONGEST_NAME
        else "a class without a proper name"
    )


def reason_of(error: BaseException) -> str:
    """Why something failed, for a message that names the file: of an error of the system its words
    alone, without its number and the file's name.

    Example:
        >>> reason_of(FileNotFoundError(2, "No such file or directory", "rows.jsonl"))
        'No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or kind_of(error)


_CLASS_NAME = type.__dict__["__name__"].__get__  # a metaclass may put code of its own in its place
_LONGEST_NAME = 80
