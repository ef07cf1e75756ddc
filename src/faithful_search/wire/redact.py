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
SHORTEST = 6
"""Characters of the shortest key. Shorter ones are words: without them the text would be harmed."""
# Environment variables whose value is a key
_VARIABLES = re.compile(
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(?<![^_])(?:PASS|PAT)|_PWD)S?\d*(?![^_])",
    re.IGNORECASE,
)
# Of these, the variables that say where a key lies, and do not hold it
_PLACES = re.compile(r"_(?:PATH|FILE|DIR)\Z", re.IGNORECASE)
# The keys that are known by their form: the Hub's and GitHub's, OpenAI's (sk-), Slack's (xox),
# Google's (AIza), AWS's (AKIA, ASIA), and private keys in PEM
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:hf_|gh[opsur]_|github_pat_|sk-)[A-Za-z0-9_-]{20,}|xox[abeprs]-[A-Za-z0-9-]{20,}"
    r"|AIza[A-Za-z0-9_-]{35}|A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9]))"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[A-Za-z0-9+/=\s]|\\{1,9}[nr]){0,10000}"
    r"(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
# User and password in a URL
_USERINFO = re.compile(r"(?<=://)[^/?#\s\"'<>]*(?=@)")
# The name of a query's parameter is that of a key where it contains one of these …
_SECRET_PART = re.compile(
    r"key|token|secret|sig|auth|passw|passphrase|passcode|credential|pwd|jwt", re.IGNORECASE
)
# … outside of these words, which only look like it.
_HARMLESS_PART = re.compile(
    r"keywords?|keyboards?|monkeys?|turkeys?|donkeys?|hockey|jockeys?|whiske?ys?|authors?|authentic"
    r"|designs?|insights?|assign|signals?|significan|signup|consign|resign"
    r"|tokeni[sz]|token_?(?:counts?|limits?|budget)|(?:max|min|num|total|turn|write|new)_?tokens",
    re.IGNORECASE,
)
# Flags and fields of JSON often hold data under names that contain the parts above. Such a name is
# that of a key where one of its words (`authToken`: auth, token) is one of these …
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SECRET_WORDS = frozenset((
    "key", "keys", "token", "tokens", "secret", "secrets", "sig", "signature", "auth", "jwt",
    "authorization", "bearer", "credential", "credentials", "passphrase", "passcode", "pwd",
    "password", "passwords", "passwd", "apikey", "authkey", "accesskey", "secretkey",
    "accesstoken", "authtoken", "hubtoken",
))  # fmt: skip
# … and the last is none of these: `key_file` holds something about a key, but not the key.
_ABOUT_A_KEY = frozenset(
    ("file", "path", "dir", "folder", "name", "url", "id", "type", "count", "limit", "env")
)
# `name=value` in a URL's query or fragment; JSON may write "&" as \\u0026.
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
# The beginning of a field that holds a text, in JSON or as Python prints it, up to the first
# character of the text. JSON within JSON has its quotes behind backslashes. Then what may end it.
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
    """A key without white space around it; `None` where no header can carry it: a client would
    refuse it with an error that quotes it.
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
        secret_texts.update(_secrets_in(name, content))
    return _walk(value, _forms(frozenset(secret_texts)))


def _secrets_in(name: str, content: str) -> list[str]:
    """The keys and passwords in an environment variable."""
    if _VARIABLES.search(name) and not _PLACES.search(name):
        # Some variables hold a list of keys, which a program then uses one by one.
        parts = [content, *re.split(r"[,;\s]+", content)]
    else:
        # The passwords of the URLs in it
        parts = [userinfo.partition(":")[2] for userinfo in _USERINFO.findall(content)]
    # MAX_TOKENS and its like are settings: their numbers would be taken out of answers.
    if name.upper().endswith("TOKENS"):
        parts = [part for part in parts if not part.isdigit()]
    return [part for part in parts if len(part) >= SHORTEST]


@lru_cache(maxsize=8)
def _forms(secrets: frozenset[str]) -> re.Pattern[str]:
    """A pattern of the secrets as they are, and as programs write them elsewhere."""
    forms: set[str] = set(secrets)
    for secret in secrets:
        data = secret.encode("utf-8", "replace")
        in_urls = (
            quote(secret, safe="", errors="replace"),
            quote_plus(secret, errors="replace"),
            "".join(f"%{byte:02X}" for byte in data),  # every character, as some clients do
        )
        for encoded in in_urls:
            forms.add(encoded)
            forms.add(re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), encoded))
        forms.add(json.dumps(secret)[1:-1])  # without the quotes
        forms.add(repr(secret)[1:-1])
        forms.add(html.escape(secret))
        if len(data) >= SHORTEST:
            forms.add(data.hex())
            forms.add(data.hex().upper())
            forms.update(_base64(data))
    # The longest first: one key may be the beginning of another, whose end would stay.
    ordered = sorted(filter(None, forms), key=lambda form: (-len(form), form))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _base64(data: bytes) -> Iterator[str]:
    """What base64 makes of this data, alone or with other bytes around it, in both alphabets.

    Base64 writes three bytes as four characters, of six bits each. So there are three forms, by how
    many bytes stand before the data in its first group of three.
    """
    for bytes_before in range(3):
        encoded = base64.b64encode(bytes(bytes_before) + data).decode()
        # Only the characters whose six bits are all the data's: the others depend on what stands
        # around it.
        begin = (0, 2, 3)[bytes_before]
        end = (bytes_before + len(data)) * 8 // 6
        forms = [encoded[begin:end]]
        if bytes_before == 0:
            forms += [encoded, encoded.rstrip("=")]
        for form in forms:
            if len(form) >= SHORTEST:
                yield form
                yield form.replace("+", "-").replace("/", "_")


def _parameter_holds_key(name: str) -> bool:
    """Whether the value of a query's parameter is a key, by the name of the parameter."""
    return _SECRET_PART.search(_HARMLESS_PART.sub("", unquote(name))) is not None


def _flag_holds_key(name: str, content: str) -> bool:
    """Whether the value of a flag is a key."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT_A_KEY or _SECRET_WORDS.isdisjoint(words):
        return False
    content = content.strip("'\"")
    is_count = words[-1] in ("tokens", "keys") and content.isdigit()
    # So short a signature is how a function is called (`--signature trl`).
    is_word = words[-1] == "signature" and len(content) < SHORTEST
    return not is_count and not is_word


def _field_holds_key(name: str, content: str) -> bool:
    """Whether the text of a JSON field is a key.

    Other than flags, fields that are called just `key`, `keys` or `token` often hold data.
    """
    if name.lower() in ("key", "keys"):
        return False
    if name.lower() == "token" and len(content) < SHORTEST:
        return False
    return _flag_holds_key(name, content)


def _walk(value: Any, secrets: re.Pattern[str]) -> Any:
    """The value with the secrets in all its texts replaced."""
    if isinstance(value, str):
        return _redacted(value, secrets)
    if isinstance(value, dict):
        copy = {}
        for name, entry in value.items():
            copy[_walk(name, secrets)] = _redacted_field(name, entry, secrets)
        return copy
    if isinstance(value, (list, tuple)):
        # It may be a command's arguments, in which a key follows its flag.
        words = []
        word_before = None
        for word in value:
            words.append(_redacted_word(word_before, word, secrets))
            word_before = word
        return words
    return value


def _redacted_field(name: Any, content: Any, secrets: re.Pattern[str]) -> Any:
    """A value of a dictionary, redacted."""
    is_text_field = isinstance(name, str) and isinstance(content, str) and content != ""
    if is_text_field and _field_holds_key(name, content):
        return REMOVED
    return _walk(content, secrets)


def _redacted_word(word_before: Any, word: Any, secrets: re.Pattern[str]) -> Any:
    """An item of a list, redacted: it may be `--flag=key`, or the key after a word `--flag`."""
    if not isinstance(word, str):
        return _walk(word, secrets)
    flag, equals, content = word.partition("=")
    if equals and _FLAG_NAME.fullmatch(flag) and _flag_holds_key(flag, content):
        return f"{flag}={REMOVED}"
    follows_flag = isinstance(word_before, str) and _FLAG_NAME.fullmatch(word_before)
    if follows_flag and not word.startswith("--") and _flag_holds_key(word_before, word):
        return REMOVED
    return _walk(word, secrets)


def _redacted(text: str, secrets: re.Pattern[str]) -> str:
    """The text with everything secret replaced."""
    text = secrets.sub(REMOVED, text)
    text = _USERINFO.sub(REMOVED, text)
    text = _PARAMETER.sub(_redacted_parameter, text)
    text = _FRAGMENT.sub(REMOVED, text)
    text = _FLAG.sub(_redacted_flag, text)
    text = _redacted_fields(text)
    text = _HEADER.sub(rf"\1{REMOVED}", text)
    return _SHAPES.sub(REMOVED, text)


def _redacted_parameter(match: re.Match[str]) -> str:
    """What replaces a match of `_PARAMETER`."""
    return f"{match[1]}={REMOVED}" if _parameter_holds_key(match[1]) else match[0]


def _redacted_flag(match: re.Match[str]) -> str:
    """What replaces a match of `_FLAG`."""
    flag, between, word = match.groups()
    return f"{flag}{between}{REMOVED}" if _flag_holds_key(flag, word) else match[0]


def _redacted_fields(text: str) -> str:
    """The text with the keys in fields of JSON replaced. Linear in the text's length."""
    parts: list[str] = []
    copied_until = 0  # `parts` holds the text up to here
    search_from = 0
    line_end = 0  # of the line in which the last field begins
    while field := _FIELD.search(text, search_from):
        begin = field.end()
        if line_end < begin:
            line_end = text.find("\n", begin)
            if line_end < 0:
                line_end = len(text)
        end = _end_of_field(text, begin, line_end, field["open"], len(field["slashes"]))
        search_from = end
        content = text[begin:end]
        if content and _field_holds_key(field["name"], content):
            parts += (text[copied_until:begin], REMOVED)
            copied_until = end
    parts.append(text[copied_until:])
    return "".join(parts)


def _end_of_field(text: str, begin: int, line_end: int, quote: str, slashes: int) -> int:
    """Where the text of a field ends; the line's end where nothing closes it.

    The text was opened by `quote` behind `slashes` backslashes: none in JSON, one in JSON within
    JSON, three in a third layer. Each layer doubles the backslashes before a quote and adds one. So
    the end has as many as the beginning, and may have more that the text itself ends with: a
    multiple of `2 * (slashes + 1)`.
    """
    for candidate in _QUOTE.finditer(text, begin, line_end):
        slashes_before = len(candidate[1])
        closes = slashes_before % (2 * (slashes + 1)) == slashes
        if candidate[2] == quote and closes:
            return candidate.end() - slashes - 1
    return line_end
