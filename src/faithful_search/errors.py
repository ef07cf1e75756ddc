"""The exceptions of this package, all under `FaithfulSearchError`."""

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

    `message` is for the policy: no key and no internal address may be in it, nor the text of another exception.
    `passing` says that the same call may succeed a little later (a time-out, 429, 503): such a call is tried again,
    counts against the service, and is neither cached nor recorded. `retry_after` is for how many seconds the service
    asked, `status` its HTTP status. `tried` says that the layer that raised it has retried already and keeps account of
    the service.
    """

    def __init__(
        self,
        message: str = "",
        *,
        passing: bool = False,
        retry_after: float | None = None,
        tried: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.passing, self.retry_after, self.tried, self.status = (
            passing,
            retry_after,
            tried,
            status,
        )

    def retold(self, message: str) -> "ToolError":
        """The same failure in other words."""
        own = {name: getattr(self, name) for name in ("passing", "retry_after", "tried", "status")}
        return ToolError(message, **own)


class TemplateError(FaithfulSearchError, ValueError):
    """A tokenizer without a usable chat template."""


class JudgeError(FaithfulSearchError):
    """A judge that gave no verdict; the reward abstains, it never scores 0 for it."""


class GeneratorError(FaithfulSearchError):
    """A server that samples the policy and is down, fails or does not answer in time, or a policy whose logits are not
    numbers; the message says which."""


class ConfigError(FaithfulSearchError, ValueError):
    """Settings that contradict each other or name something that does not exist."""


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """While the block imports what `what` needs, a missing package is a `ConfigError` that names the extra with it."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{what} needs {error.name}: pip install 'faithful-search[{extra}]'"
        ) from error


def kind_of(thing: object) -> str:
    """The name of its class: all of an error that may be shown, since its text may hold keys and addresses.

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


_CLASS_NAME = type.__dict__["__name__"].__get__  # a metaclass may put code of its own in its place
_LONGEST_NAME = 80
