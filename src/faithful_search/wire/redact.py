"""Keys into headers, and out of text before it is written to a file, a log or the terminal."""

import base64
import html
import json
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote

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
# What is a key in the name of a query's parameter, and words that only look like one.
_SECRET = re.compile(
    r"key|token|secret|sig|auth|passw|passphrase|passcode|credential|pwd|jwt", re.IGNORECASE
)
_HARMLESS = re.compile(
    r"keywords?|keyboards?|monkeys?|turkeys?|donkeys?|hockey|jockeys?|whiske?ys?|authors?|authentic"
    r"|designs?|insights?|assign|signals?|significan|signup|consign|resign"
    r"|tokeni[sz]|token_?(?:counts?|limits?|budget)|(?:max|min|num|total|turn|write|new)_?tokens",
    re.IGNORECASE,
)
# The words of such a name where other names are data: of a flag, or a field of JSON.
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SECRET_WORDS = frozenset((
    "key", "keys", "token", "tokens", "secret", "secrets", "sig", "signature", "auth", "jwt",
    "authorization", "bearer", "credential", "credentials", "passphrase", "passcode", "pwd",
    "password", "passwords", "passwd", "apikey", "authkey", "accesskey", "secretkey",
    "accesstoken", "authtoken", "hubtoken",
))  # fmt: skip
_ABOUT = frozenset(
    ("file", "path", "dir", "folder", "name", "url", "id", "type", "count", "limit", "env")
)
_PARAMETER = re.compile(
    r"(?:(?<=[?&#;])|(?<=\\u0026))([\w.%\[\]$-]{1,80})="
    r"(\"[^\"\s\\]*\"|'[^'\s\\]*'|[^&#;\s\"'<>\\]+)"
)
# A fragment of random characters, as links have that whoever holds them may follow.
_FRAGMENT = re.compile(
    r"(?<=#)(?=[A-Za-z]*[0-9])(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])[A-Za-z0-9+/]{16,}+={0,2}"
    r"(?![\w.:&=%-])"
)
_FLAG_NAME = re.compile(r"--[A-Za-z][\w-]{0,60}")
# A word of a shell: quoted and plain stretches without a blank between them.
_SHELL_WORD = r"(?:'[^']*+(?:'|\Z)|\"(?:[^\"\\]|\\.)*+(?:\"|\Z)|[^\s'\"])++"
_FLAG = re.compile(rf"(?<![\w-])({_FLAG_NAME.pattern})(=|[ \t]++(?!--[A-Za-z]))({_SHELL_WORD})")
# The beginning of a field that holds a text, in JSON or as Python prints it; and what may end one.
_FIELD = re.compile(
    r"(?P<quote>\\{0,7}[\"'])(?P<name>[\w.-]{1,60})(?P=quote)\s{0,9}:\s{0,9}"
    r"(?P<slashes>\\{0,7})(?P<open>[\"'])"
)
_QUOTE = re.compile(r"(?<!\\)(\\*+)([\"'])")
_HEADER = re.compile(
    r"(?i:(\bauthorization[\"']?\s{0,9}[:=]\s{0,9}[\"']?(?:bearer|basic|digest|token)\s{1,9})"
    r"[^\s\"',;]++)"
)


def carried(key: str) -> str | None:
    """A key without white space around it; `None` for what no header can carry, which a client
    would quote.
    """
    key = key.strip()
    return key if key.isascii() and key.isprintable() else None


def redact(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A copy of a text, or of a list or dict of texts, with everything secret replaced by
    `[secret]`.

    Secret are: values of environment variables named like keys (`…KEY`, `…TOKEN`, `…PASSWORD`,
    `PAT` and the like; at least six characters), also percent-encoded, escaped, in base64 or hex;
    passwords within URLs in the environment; any URL's user and password, and what a parameter in
    its query or fragment, a flag, a field of JSON or a header gives under a name that contains key,
    token, secret, sig, auth, password or credential (a field that is called `key` alone is data);
    what has the shape of a private key or of a token of the Hub, GitHub, Slack, Google, AWS or an
    OpenAI-like service; and `secrets`.

    Example:
        >>> redact(["https://me:pass@host/?api_key=1&q=x", "k-123456"], secrets=["k-123456"])
        ['https://[secret]@host/?api_key=[secret]&q=x', '[secret]']
        >>> redact(["--hub_token", "it's", "--turn_tokens", "8"])
        ['--hub_token', '[secret]', '--turn_tokens', '8']
    """
    secret_texts = set(filter(None, secrets))
    for name, content in os.environ.items():
        if _NAMES.search(name) and not _PLACES.search(name):
            # some variables hold a list of keys, which a program then uses one by one
            parts = [content, *re.split(r"[,;\s]+", content)]
        else:
            parts = [userinfo.partition(":")[2] for userinfo in _USERINFO.findall(content)]
        # MAX_TOKENS and its like are settings: their numbers would be taken out of answers
        if name.upper().endswith("TOKENS"):
            parts = [part for part in parts if not part.isdigit()]
        secret_texts.update(part for part in parts if len(part) >= SHORTEST)
    return _walk(value, _forms(frozenset(secret_texts)))


@lru_cache(maxsize=8)
def _forms(secrets: frozenset[str]) -> re.Pattern[str]:
    """A pattern of the secrets as they are, and as programs write them elsewhere."""
    forms: set[str] = set(secrets)
    for secret in secrets:
        data = secret.encode("utf-8", "replace")
        in_urls = (
            quote(secret, safe="", errors="replace"),
            quote_plus(secret, errors="replace"),
            "".join(f"%{byte:02X}" for byte in data),
        )
        for encoded in in_urls:
            forms.add(encoded)
            forms.add(re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), encoded))
        forms.update((json.dumps(secret)[1:-1], repr(secret)[1:-1], html.escape(secret)))
        if len(data) >= SHORTEST:
            forms.update((data.hex(), data.hex().upper()))
            forms.update(_base64(data))
    # The longest first: one key may be the beginning of another, whose end would stay.
    ordered = sorted(filter(None, forms), key=lambda form: (-len(form), form))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _base64(data: bytes) -> Iterator[str]:
    """What base64 makes of this data, alone or with other bytes around it, in both alphabets."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        # Without the characters that bytes before and behind it have a part in.
        begin, end = (0, 2, 3)[before], (before + len(data)) * 8 // 6
        forms = [encoded[begin:end]]
        if before == 0:
            forms += [encoded, encoded.rstrip("=")]
        for form in forms:
            if len(form) >= SHORTEST:
                yield form
                yield form.replace("+", "-").replace("/", "_")


def _is_parameter(name: str) -> bool:
    """Whether what a query gives under this name is a key."""
    return _SECRET.search(_HARMLESS.sub("", unquote(name))) is not None


def _is_field(name: str, content: str) -> bool:
    """Whether this is a key that a flag or a field of this name holds."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT or _SECRET_WORDS.isdisjoint(words):
        return False
    counts = words[-1] in ("tokens", "keys") and content.strip("'\"").isdigit()
    # A signature so short is how a function is called (`--signature trl`).
    is_word = words[-1] == "signature" and len(content.strip("'\"")) < SHORTEST
    return not (counts or is_word)


def _is_data(name: str, content: str) -> bool:
    """Whether a field that has the name of a key may as well be one of data."""
    return name.lower() in ("key", "keys") or (name.lower() == "token" and len(content) < SHORTEST)


def _walk(value: Any, secrets: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return _redacted(value, secrets)
    if isinstance(value, dict):
        return {_walk(key, secrets): _entry(key, entry, secrets) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [
            _word(flag, entry, secrets) for flag, entry in zip([None, *value], value, strict=False)
        ]
    return value


def _entry(name: Any, entry: Any, secrets: re.Pattern[str]) -> Any:
    """A value of a dictionary, which may be the field of a key."""
    if not isinstance(name, str) or not isinstance(entry, str) or not entry:
        return _walk(entry, secrets)
    secret = _is_field(name, entry) and not _is_data(name, entry)
    return REMOVED if secret else _walk(entry, secrets)


def _word(flag: Any, word: Any, secrets: re.Pattern[str]) -> Any:
    """An item of a list, which may be what a flag before it is given, or such a flag itself."""
    if not isinstance(word, str):
        return _walk(word, secrets)
    name, equals, content = word.partition("=")
    if equals and _FLAG_NAME.fullmatch(name) and _is_field(name, content):
        return f"{name}={REMOVED}"
    if not isinstance(flag, str) or word.startswith("--"):
        return _walk(word, secrets)
    names_a_secret = _FLAG_NAME.fullmatch(flag) is not None and _is_field(flag, word)
    return REMOVED if names_a_secret else _walk(word, secrets)


def _redacted(text: str, secrets: re.Pattern[str]) -> str:
    text = _USERINFO.sub(REMOVED, secrets.sub(REMOVED, text))
    text = _PARAMETER.sub(_parameter, text)
    text = _FRAGMENT.sub(REMOVED, text)
    text = _FLAG.sub(_flag, text)
    text = _without_fields(text)
    text = _HEADER.sub(rf"\1{REMOVED}", text)
    return _SHAPES.sub(REMOVED, text)


def _parameter(match: re.Match[str]) -> str:
    return f"{match[1]}={REMOVED}" if _is_parameter(match[1]) else match[0]


def _flag(match: re.Match[str]) -> str:
    flag, between, word = match.groups()
    return f"{flag}{between}{REMOVED}" if _is_field(flag, word) else match[0]


def _without_fields(text: str) -> str:
    """The text without what the fields of keys in it hold."""
    parts: list[str] = []
    done = at = line_end = 0
    while field := _FIELD.search(text, at):
        begin = field.end()
        if line_end < begin:
            line_end = text.find("\n", begin)
            line_end = len(text) if line_end < 0 else line_end
        end = at = _end_of_field(text, begin, line_end, field["open"], len(field["slashes"]))
        name, content = field["name"], text[begin:end]
        if content and _is_field(name, content) and not _is_data(name, content):
            parts += (text[done:begin], REMOVED)
            done = end
    return "".join([*parts, text[done:]])


def _end_of_field(text: str, begin: int, line_end: int, quote: str, slashes: int) -> int:
    """Where a text ends that `quote` behind so many backslashes opened, as it is written within
    texts within texts: at the line's end where nothing closes it.
    """
    for candidate in _QUOTE.finditer(text, begin, line_end):
        before = len(candidate[1])
        if candidate[2] == quote and before % (2 * (slashes + 1)) == slashes:
            return candidate.end() - slashes - 1
    return line_end
