"""Where a model is served, and with which key it is asked."""

import os
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import httpx2

from ..errors import ConfigError, JudgeError

ROUTER = "https://router.huggingface.co/v1"
_HUB_HOSTS = ("huggingface.co", "huggingface.cloud", "hf.space")


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and how patiently.

    Args:
        url: base URL, usually ending in `/v1`; `None` for Hugging Face Inference Providers.
        model: the served model's name.
        key: sent as a bearer token, and hidden in everything that the server says.
        timeout: seconds for one request, its whole answer included.
        patience: seconds for one question, its retries included.
        retries: further tries of a question after transient failures.
        backoff: seconds before the first retry, doubled each time.
        concurrency: requests under way at once.
        give_up_after: questions in a row without any answer, after which no more are asked.
        direct: use no proxy, whatever the environment says; on this machine none is used anyway.
    """

    url: str | None
    model: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 60.0
    patience: float = 180.0
    retries: int = 4
    backoff: float = 0.5
    concurrency: int = 16
    give_up_after: int = 8
    direct: bool = False

    def __post_init__(self) -> None:
        positive = (self.concurrency, self.timeout, self.patience, self.give_up_after)
        if min(positive) <= 0 or min(self.retries, self.backoff) < 0:
            told = "concurrency, timeout, patience and give_up_after must be positive, retries and backoff not negative"
            raise ConfigError(told)
        parts = urlsplit(self.url or ROUTER)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the endpoint's url must begin with http:// or https://; got {self.url!r}")
        if parts.username or parts.password:  # it would end up in logs
            raise ConfigError("the endpoint's url must not hold a password: put the key into an environment variable")

    @property
    def where(self) -> str:
        return self.url or "Inference Providers"

    def address(self, path: str) -> httpx2.URL:
        """Where a path of its API is: `url` may end in `/v1`, in the path itself or before both."""
        url = httpx2.URL(self.url or ROUTER)
        base = url.path.rstrip("/")
        if base.endswith(path):
            return url
        return url.copy_with(path=f"{base if base.endswith('/v1') else f'{base}/v1'}{path}")


def with_key(endpoint: Endpoint) -> Endpoint:
    """The endpoint with its key, from the environment where it has none of its own.

    `FAITHFUL_SEARCH_API_KEY`, else the Hub's token for Hugging Face hosts alone, and `OPENAI_API_KEY` for all others.
    Raises `JudgeError` when a key is needed and missing, or no header can carry it.
    """
    key, url = endpoint.key, endpoint.url
    if key is None:
        from huggingface_hub import get_token

        host = urlsplit(url or ROUTER).hostname or ""
        # with the dot: the host `nothuggingface.co` must not be sent the Hub's token
        at_hub = any(host == name or host.endswith(f".{name}") for name in _HUB_HOSTS)
        key = os.environ.get("FAITHFUL_SEARCH_API_KEY") or (get_token() if at_hub else os.environ.get("OPENAI_API_KEY"))
        if url is None and not (key or "").startswith("hf_"):
            raise JudgeError("Inference Providers need a Hub token: set HF_TOKEN, run `hf auth login`, or give a url")
    key = _carried(key or "")
    if key is None:
        raise JudgeError("the judge's key holds characters that no header can carry; copy it anew")
    return replace(endpoint, key=key or None)


def key_in(variable: str) -> str | None:
    """The key that an environment variable holds, empty without one; `None` for what no header can carry."""
    return _carried(os.environ.get(variable, ""))


def _carried(key: str) -> str | None:
    key = key.strip()
    return key if key.isascii() and key.isprintable() else None  # an HTTP client would quote it in its complaint
