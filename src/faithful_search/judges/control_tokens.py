"""What a served judge's tokenizer and chat template give a meaning to, kept out of the texts that
it judges.

A server reads a control token that is spelled in a text as the token itself. `GENERAL` forbids
everything that has the form of one. What a model has beyond that is known from its tokenizer, or
from the server where it tells: vLLM at `/tokenizer_info` (`--enable-tokenizer-info-endpoint`),
llama.cpp at `/props`.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2

from ..dialects.fence import Fence, fenceable
from ..escape import as_line
from ..wire.guard import is_loopback, tls

_log = logging.getLogger(__name__)
GENERAL = Fence(
    r"[<\uff1c]/?[|\uff5c]"  # <|im_start|>, <|turn>, and as DeepSeek writes it
    r"|<[A-Za-z_][\w ]{0,40}[|\uff5c]>"  # <turn|>
    r"|<</?[A-Z]{2,20}>>"  # <<SYS>>
    r"|</?[A-Za-z_:][\w:.=/-]{0,60}>"  # <s>, <think>, <start_of_turn>, <seed:bos>, <function=search>
    r"|\[/?[a-z]?[A-Z_]{2}[A-Z0-9_]{0,40}\]"  # [INST], [TOOL_CALLS], [gMASK]
    r"|[\[\]][a-z!]{0,3}~[a-z!]{0,3}[\[\]]"  # [e~[
)
_MARKER = re.compile(r"<[^<>\s]{1,60}>|\[[^\[\]\s]{1,40}\]|[\[\]][^\[\]\s]{1,8}[\[\]]")
# What tokens of any other form begin with.
_OPENS = re.compile(r"[<\[]|\][^\[\]\s]{1,8}[\[\]]")
_PATHS = ("/tokenizer_info", "/props")
_MOST_BYTES, _SECONDS = 4_000_000, 5.0


def may_hold_other_control_tokens(escaped: str) -> bool:
    """Whether a text that `GENERAL` has escaped may hold control tokens of other forms."""
    return _OPENS.search(escaped) is not None


def of_tokenizer(name: str) -> Fence:
    """The fence for a model whose tokenizer this is: its control tokens, its template's marks, and
    whatever it reads as one of them. Raises `ConfigError` when it cannot be opened.
    """
    from ..inference.fencing import guarded
    from ..inference.loading import read_tokenizer

    return guarded(GENERAL, read_tokenizer(name))


def of_server(url: str, key: str | None = None) -> Fence:
    """The fence for the model that is served there; `GENERAL` where the server tells nothing."""
    tokens: set[str] = set()
    for path in _PATHS:
        tokens.update(tokens_of(_asked(url, path, key)))
    return GENERAL.with_tokens(sorted(fenceable(tokens)))


def tokens_of(template_variables: Mapping[str, Any]) -> Iterator[str]:
    """The control tokens in what a server tells of its tokenizer: special and added tokens, and the
    marks in its chat template.

    Example:
        >>> sorted(tokens_of({"bos_token": "<s>", "chat_template": "{{ '[B]' + m['x'] }}:USER"}))
        ['<s>', '[B]']
    """
    for name, value in template_variables.items():
        if name.endswith("_token"):
            yield from _contents([value])
        elif name.endswith("_tokens"):
            yield from _contents(value if isinstance(value, list) else ())
        elif name == "added_tokens_decoder" and isinstance(value, Mapping):
            yield from _contents(value.values())
        elif name.startswith("chat_template"):
            yield from _marks(value)


def _contents(tokens: Iterable[Any]) -> Iterator[str]:
    """The tokens that are more than a word or a sign; a string, or an object with one."""
    for token in tokens:
        content = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(content, str) and len(content.strip()) > 1 and not content.isalnum():
            yield content


def _marks(template: Any) -> Iterator[str]:
    """The marks that a template writes, or several of them; none of it is run."""
    from jinja2 import Environment, TemplateError

    if isinstance(template, Mapping):
        template = list(template.values())
    if isinstance(template, list):
        for each in template:
            yield from _marks(each.get("template") if isinstance(each, Mapping) else each)
        return
    if not isinstance(template, str):
        return
    try:
        for _, kind, text in Environment().lex(template):
            if kind in ("data", "string"):
                yield from _MARKER.findall(text.strip("'\""))
    except TemplateError as error:
        _log.debug("the served template cannot be read: %s", as_line(str(error)))


def _asked(url: str, path: str, key: str | None) -> Mapping[str, Any]:
    """What the server tells at this path beside its API; nothing where it has none."""
    parts = urlsplit(url)
    root = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
    address = urlunsplit((parts.scheme, parts.netloc, f"{root}{path}", "", ""))
    headers = {"Authorization": f"Bearer {key}"} if key else None
    try:
        with (
            httpx2.Client(
                headers=headers, timeout=_SECONDS, verify=tls(), trust_env=not is_loopback(url)
            ) as client,
            client.stream("GET", address) as response,
        ):
            if response.status_code != 200:
                return {}
            data = b""
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > _MOST_BYTES:
                    return {}
        properties = json.loads(data)
    except (httpx2.HTTPError, ValueError, RecursionError) as error:
        _log.debug("%s tells nothing of its tokenizer: %s", address, as_line(str(error)))
        return {}
    return properties if isinstance(properties, Mapping) else {}
