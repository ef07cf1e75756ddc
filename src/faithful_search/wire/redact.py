"""Keys into headers, and out of text before it is written to a file, a log or the terminal."""

import os
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus

REMOVED = "[secret]"
SHORTEST = (
    6  # of what counts as a key: shorter ones are words, and taking these out would harm the text
)
_NAMES = re.compile(
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(?<![^_])(?:PASS|PAT)|_PWD)S?\d*(?![^_])",
    re.IGNORECASE,
)
_PLACES = re.compile(
    r"_(?:PATH|FILE|DIR)\Z", re.IGNORECASE
)  # these say where a key lies, and are not the key
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:hf_|gh[opsur]_|github_pat_|sk-)[A-Za-z0-9_-]{20,}|xox[abeprs]-[A-Za-z0-9-]{20,}"
    r"|AIza[A-Za-z0-9_-]{35}|A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9]))"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[A-Za-z0-9+/=\s]|\\{1,9}[nr]){0,10000}"
    r"(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
_USERINFO = re.compile(r"(?<=://)[^/?#\s\"'<>]*(?=@)")
_PARAMETER = re.compile(
    r"(?i:(?<=[?&])((?:api[_-]?key|access_token|auth_token|client_secret|password)=)[^&#\s\"'<>]+)"
)
_FLAG = re.compile(
    r"(?i:(--[\w-]{0,40}(?:hub[_-]token|api[_-]?key|secret|password)(?:=|[ \t]+)['\"]?))[^\s'\"]+"
)


def carried(key: str) -> str | None:
    """A key without white space around it; `None` for what no header can carry, which a client would quote."""
    key = key.strip()
    return key if key.isascii() and key.isprintable() else None


def redact(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A copy of a text, or of a list or dict of texts, with everything secret replaced by `[secret]`.

    Secret are: values of environment variables named like keys (`…KEY`, `…TOKEN`, `…PASSWORD`, `PAT` and the like; at
    least six characters), also percent-encoded; passwords within URLs in the environment; any URL's user, password and
    `api_key` or the like; what is given to a flag such as `--hub_token`; what has the shape of a private key or of a
    token of the Hub, GitHub, Slack, Google, AWS or an OpenAI-like service; and `secrets`.

    Example:
        >>> redact(["https://me:pass@host/?api_key=1&q=x", "k-123456"], secrets=["k-123456"])
        ['https://[secret]@host/?api_key=[secret]&q=x', '[secret]']
    """
    found = set(filter(None, secrets))
    for name, told in os.environ.items():
        if _NAMES.search(name) and not _PLACES.search(name):
            # some variables hold a list of keys, which a program then uses one by one
            parts = [told, *re.split(r"[,;\s]+", told)]
        else:
            parts = [userinfo.partition(":")[2] for userinfo in _USERINFO.findall(told)]
        # MAX_TOKENS and its like are settings: their numbers would be taken out of answers
        parts = [part for part in parts if not (name.upper().endswith("TOKENS") and part.isdigit())]
        found.update(part for part in parts if len(part) >= SHORTEST)
    forms = set(found)
    for secret in found:
        # as it may be written in a URL, too
        encoded = (quote(secret, safe="", errors="replace"), quote_plus(secret, errors="replace"))
        forms.update(
            encoded,
            (re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in encoded),
        )
    # the longest first: one key may be the beginning of another, whose rest would stay
    ordered = sorted(forms, key=lambda form: (-len(form), form))
    return _walk(value, re.compile("|".join(map(re.escape, ordered)) or r"(?!)"))


def _walk(value: Any, known: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        text = _USERINFO.sub(REMOVED, known.sub(REMOVED, value))
        for named in (_PARAMETER, _FLAG):
            text = named.sub(rf"\1{REMOVED}", text)
        return _SHAPES.sub(REMOVED, text)
    if isinstance(value, dict):
        return {_walk(key, known): _walk(item, known) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_walk(item, known) for item in value]
    return value
