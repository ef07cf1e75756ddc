"""Citation marks in a text, found in one pass: what each form looks like, and what it names.

Code and formulas hold no marks. Whether what looks like a mark is content, since it stands in the
question or the evidence in the same form, is for `Citable` to say.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from ..trajectory import Span
from .addresses import ADDRESS, ENDS, IDENTIFIER, is_address, page_of
from .lists import LINK, RAISED, WORDS, key_of


class Mark(NamedTuple):
    """One mark.

    Attributes:
        span: where it stands.
        targets: what it names; empty for markup without a source of its own.
        how: the form in which it names it.
        kept: the words in it that are the sentence's, if there are some.
    """

    span: Span
    targets: tuple[str, ...] = ()
    how: str = ""
    kept: Span | None = None


class Citable(Protocol):
    """What sources can be cited by, which decides whether something is a mark."""

    def is_content(self, written: str, before: str) -> bool:
        """Whether the question or the evidence has this in the same form; `before` are the
        characters in front of it.
        """

    def is_id(self, token: str, strict: bool) -> bool:
        """Whether this is the id of a passage, or (unless `strict`) made like one."""

    def is_number(self, number: str) -> bool:
        """Whether a passage can be cited by this number."""

    def is_author(self, name: str, year: str) -> bool:
        """Whether a source has this author and year."""


_AND = r"\s{0,3}(?:[,;、，；&/+·]|\b(?:and|und|et|y|e|en|og|och|и)\b)\s{0,3}"
# Hyphens, those at which no line breaks among them, and dashes
_DASHES = r"\-\u2010-\u2014"
_TO = rf"\s{{0,2}}[{_DASHES}~〜～]\s{{0,2}}"
_NUMBERS = rf"#?\d{{1,6}}(?:(?:{_AND}|{_TO})#?\d{{1,6}}){{0,60}}+"
_TAG = "cite|citation|cit|ref|reference|source|fn|co|a"
_TURN = r"turn\d{1,4}[a-z]{1,20}\d{1,4}"
_NAMED = "|".join(WORDS["named"])

# The forms by their names, in the order in which they are tried. All repetition is bounded.
_FORMS: Mapping[str, str] = {
    "code": (
        r"```(?!\s{0,3}(?:markdown|md|text|txt)\b)(?:(?!```)[\s\S])*+(?:```|\Z)|`[^`\n]{1,500}+`"
    ),
    # OpenAI's, with and without its private characters, and Gemini's
    "artefact": (
        r"\ue200[^\ue200\ue201\n]{0,500}+\ue201"
        rf"|(?<![A-Za-z])(?:file)?cite(?:{_TURN}){{1,30}}+"
        r"|\[cite_(?:start|end)\]"
    ),
    "link": LINK,
    "tex": (
        rf"\$\^\{{?\[?(?P<dollar>{_NUMBERS})\]?\}}?\$"
        rf"|\\textsuperscript\{{\[?(?P<script>{_NUMBERS})\]?\}}"
        r"|\\(?:foot|auto|paren|text)?cite[a-z]{0,8}\*?(?:\[[^\]\n]{0,60}+\])?"
        r"\{(?P<keys>[^{}\n]{1,200}+)\}"
    ),
    "formula": (r"\$(?=\S)[^$\n]{1,200}+(?<=\S)\$(?!\d)|\\\((?:[^\\\n]|\\(?!\))){0,300}+\\\)"),
    "bracket": (r"(?:\\?[\[［【〔]){1,2}(?P<inner>[^\[\]［］【】〔〕\n]{1,200}+)[\]］】〕]{1,2}"),
    "raised": (
        r"<sup\b[^<>]{0,100}+>\s{0,3}(?:<a\b[^<>]{0,300}+>)?\s{0,3}[\[(]?"
        rf"(?P<sup>{_NUMBERS})[\])]?\s{{0,3}}(?:</a>)?\s{{0,3}}</sup>"
        rf"|\^\[?(?P<caret>{_NUMBERS})\]?\^(?!\w)"
        rf"|[{RAISED}]{{1,3}}+(?:[ ,˒⸴⁻]{{1,3}}[{RAISED}]{{1,3}}+){{0,20}}+"
    ),
    "element": (
        rf"<(?P<tag>(?i:{_TAG}))(?![\w-])(?P<attributes>[^<>]{{0,300}}+)>"
        r"(?:(?P<within>[^<>\n]{0,80}+)</(?P=tag)\s?>)?"
        rf"|</(?i:{_TAG})(?:[\s:][^<>\n]{{0,100}}+)?>"
    ),
    "address": rf"<?(?P<bare>{ADDRESS}|{IDENTIFIER})>?",
    "parenthesis": r"[(（](?P<aside>[^()（）\[\]\n]{1,200}+)[)）]",
    "word": (
        rf"(?:(?<!\w)(?i:{_NAMED})|来源|來源|出典|출처)\s{{0,2}}(?:[#№]|n[o°]\.?)?\s{{0,2}}"
        rf"(?P<number>{_NUMBERS})(?![\w%]|[.,]\d)"
    ),
}
_ANY = re.compile("|".join(f"(?P<{name}>{form})" for name, form in _FORMS.items()))
# What every mark has one of. Most texts have none of them, which is told much faster than by the
# forms.
_SIGNS = ("[", "<", "^", "://", "www.", "\\cite", "\\text", "citeturn", "doi:", "arxiv:", "10.")
_SIGNS_BEYOND_ASCII = re.compile(rf"[［【〔（{RAISED}\ue200]|(?i:{_NAMED})")
_SIGN_IN_PARENTHESES = re.compile(r"\(\s?[^\W\d][^()\n]{0,150}?[\d_:]")
_SIGN_OF_WORDS = re.compile(rf"(?:{_NAMED})\W{{0,4}}(?:n\w?\W)?\d")
_NUMBER = re.compile(r"\d{1,6}")
_LIST = re.compile(_NUMBERS)
_RANGE = re.compile(rf"#?(\d{{1,6}}){_TO}#?(\d{{1,6}})")
_LOCATED = re.compile(
    rf"({_NUMBERS})\s{{0,2}}[,:;]?\s{{0,2}}(?:pp?|ss?|ll?|lines?|§|ch|sec|fig)\.?\s{{0,2}}"
    rf"\d[\d\s,{_DASHES}]{{0,20}}",
    re.IGNORECASE,
)
_WORDED = re.compile(
    rf"(?i:{'|'.join(WORDS['source'])})(?P<sign>\s{{0,2}}(?:[:：#№]|n[o°]\.?))?\s{{0,2}}(?P<rest>\S.{{0,180}})"
)
_SIGNED = re.compile(rf"(?i:{_NAMED})\s{{0,2}}[:：]")
_WORD = re.compile(r"\S{1,200}")
_FOOTNOTE = re.compile(r"\^([\w.:-]{1,40})\^?")
_CURSOR = re.compile(rf"({_TURN}|\d{{1,4}}(?::\d{{1,4}})?)(?:†.{{0,100}})?")
_AUTHOR = re.compile(
    r"(?P<name>[^\W\d_a-zß-öø-ÿ][\w'’-]{1,40})"
    r"(?:(?:,? (?:and|und|et|&) | et al\.?|, )[\w'’. -]{0,60})?"
    r",? ?(?P<year>1[5-9]\d\d|20\d\d)[a-z]?"
    rf"(?:, ?(?:pp?|S)\. ?[\d{_DASHES}]{{1,12}})?"
)
_BREAK = re.compile(r"\s{0,3}[,;、，；|]\s{0,3}")
_ATTRIBUTE = re.compile(
    r"(?:ids?|index|url|href|src|source|ref|docs?|name|data-[a-z-]{1,20})\s{0,2}=\s{0,2}"
    r"(?:\"([^\"]{0,300})\"|'([^']{0,300})'|([^\s\"'>]{1,300}))",
    re.IGNORECASE,
)
_EXPONENT = re.compile(
    r"(?:(?<![^\W\d_])(?:[^\W\d_]|[kcdmnµ]m|ft|yd|mi|mc|sq|in|sec)|(?<![\d.,])(?:10|2)|[⁻⁺^])\Z"
)
_VALUE = re.compile(
    r"(?:[=∈≈<>]|\b(?:list|array|vector|interval|range|tuple|set|index|liste|intervall))\s?\Z",
    re.IGNORECASE,
)
_TABLE = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SAYS_NOTHING = re.compile(
    rf"(?i:{'|'.join(WORDS['source'])}|links?|here|hier|ici|aquí|这里|link)(?:\s?\d{{1,3}})?|\W{{0,20}}"
)
MOST = 10_000  # marks that are read of one text
WIDEST = 30  # how far the last number of a range of sources is from its first one


def marks_of(text: str, citable: Citable) -> list[Mark]:
    """The marks of a text in order. Linear in its length; never raises."""
    all_marks: list[Mark] = []
    at = 0
    while len(all_marks) < MOST:
        match = _ANY.search(text, at)
        if match is None:
            break
        marks = _READERS[match.lastgroup or ""](match, citable)
        if marks is None:  # what is no mark may hold one
            at = match.start() + 1
        else:
            all_marks += marks
            at = match.end()
    return all_marks


def may_have_marks(text: str) -> bool:
    """Whether the text has a sign that marks have."""
    lower = text.lower()
    if any(sign in lower for sign in _SIGNS):
        return True
    if "(" in text and _SIGN_IN_PARENTHESES.search(text):
        return True
    if not text.isascii() and _SIGNS_BEYOND_ASCII.search(text):
        return True
    return any(stem in lower for stem in WORDS["stems"]) and bool(_SIGN_OF_WORDS.search(lower))


def numbers_of(text: str) -> list[str]:
    """The numbers in a list of them, ranges written out; none where a range runs backwards, or is
    so wide that it is of years, pages or values.

    Example:
        >>> numbers_of("1, 3–5"), numbers_of("１、２"), numbers_of("1–40"), numbers_of("3-1")
        (['1', '3', '4', '5'], ['1', '2'], [], [])
    """
    numbers: list[str] = []
    end = 0
    for match in _RANGE.finditer(text):
        first = int(match[1])
        last = int(match[2])
        if not first <= last <= first + WIDEST:
            return []
        if first < last:
            numbers += map(key_of, _NUMBER.findall(text[end : match.start()]))
            numbers += map(str, range(first, last + 1))
            end = match.end()
    return [*numbers, *map(key_of, _NUMBER.findall(text[end:]))]


# Each reader takes a match of one form. It returns the marks that this is, none for text in which
# marks do not count (code, formulas), and `None` where the match is no mark.


def _before(match: re.Match[str]) -> str:
    """The characters in front of a match."""
    return match.string[max(0, match.start() - 40) : match.start()]


def _skipped(match: re.Match[str], citable: Citable) -> list[Mark]:
    return []


def _formula(match: re.Match[str], citable: Citable) -> list[Mark] | None:
    if re.search(r"[\\^_={}]", match[0]) is None:
        return None  # two amounts in dollars
    return []


def _artefact(match: re.Match[str], citable: Citable) -> list[Mark]:
    kind, *fields = match[0].strip("\ue200\ue201").split("\ue202")
    turns: list[str] = []
    for text in (kind, *fields):
        turns += re.findall(_TURN, text)
    addresses = filter(is_address, fields)
    targets = tuple(dict.fromkeys([*turns, *addresses]))
    return [Mark(match.span(), targets, "cursor")]


def _link(match: re.Match[str], citable: Citable) -> list[Mark] | None:
    label = match["label"].strip(" []\\^")
    url = match["url"]
    if not is_address(url):
        return _numbered(match, label, "number", citable)
    if match[0].startswith("!"):
        return [Mark(match.span())]  # a picture, which cites nothing
    if _only_names(label, url):
        return [Mark(match.span(), (url,), "link")]
    return [Mark(match.span(), (url,), "link", match.span("label"))]


def _only_names(label: str, url: str) -> bool:
    """Whether a link's label is no words of the sentence: a number, "source", or the site's name."""
    if "." in label and page_of(url).startswith(page_of(label)):
        return True
    if _LIST.fullmatch(label) or _SAYS_NOTHING.fullmatch(label):
        return True
    return is_address(label)


def _numbered(match: re.Match[str], text: str, form: str, citable: Citable) -> list[Mark] | None:
    """The mark that cites the numbers in a list of them; `None` where they are no sources'."""
    numbers = _cited_numbers(text, citable)
    if not numbers:
        return None
    return [Mark(match.span(), tuple(numbers), form)]


def _tex(match: re.Match[str], citable: Citable) -> list[Mark] | None:
    if not match["keys"]:
        return _numbered(match, match["dollar"] or match["script"], "raised", citable)
    keys = [key.strip() for key in match["keys"].split(",")]
    targets = tuple(filter(_says_something, keys))
    if not targets:
        return None
    return [Mark(match.span(), targets, "ref")]


def _bracket(match: re.Match[str], citable: Citable) -> list[Mark] | None:
    after = match.string[match.end() : match.end() + 1]
    if after == "(" and match[0].startswith("[[") and not match[0].endswith("]]"):
        return None  # [[1](address)] holds a link
    named = _names(match["inner"].strip(" \\\t\u3000"), citable, square=True)
    if named is None:
        return None
    targets, form = named
    before = _before(match)
    is_argument = before.endswith("(") and before[-2:-1].isalnum() and after == ")"  # f([1])
    if form == "number" and (is_argument or _VALUE.search(before)):
        return None
    if form in ("number", "footnote", "id") and citable.is_content(match[0], before):
        return None
    return [Mark(match.span(), tuple(targets), form)]


def _raised(match: re.Match[str], citable: Citable) -> list[Mark] | None:
    digits = (match["sup"] or match["caret"] or match[0]).translate(_TABLE)
    before = _before(match)
    numbers = _cited_numbers(digits, citable)
    if not numbers or before[-1:] in ("⁻", "⁺"):
        return None
    if numbers != ["1"] and _EXPONENT.search(before):
        return None
    if citable.is_content(match[0], before):
        return None
    return [Mark(match.span(), tuple(numbers), "raised")]


def _element(match: re.Match[str], citable: Citable) -> list[Mark] | None:
    if not match["tag"]:
        return [Mark(match.span())]  # a closing tag
    within = match["within"]
    targets = _attribute_targets(match["attributes"])
    named_within = _names(within.strip(" []"), citable, square=True) if within else None
    if named_within is not None:
        if not targets:
            targets, _ = named_within
    elif match["tag"].lower() == "a" and not any(map(is_address, targets)):
        targets = []  # a place on the same page
    words = None
    if within and within.strip() and named_within is None:
        words = match.span("within")
    return [Mark(match.span(), tuple(targets), "tag", words)]


def _attribute_targets(attributes: str) -> list[str]:
    """What the attributes of an element name."""
    targets: list[str] = []
    values = _ATTRIBUTE.findall(attributes)
    for *quoted, unquoted in values:  # one of them is not empty
        value = "".join(quoted) + unquoted
        if is_address(value):
            targets.append(value)
            continue
        if unquoted:
            value = unquoted.removesuffix("/")  # the tag's: <ref id=1/>
        targets += _BREAK.split(value.strip())
    bare = attributes.strip(" :=/\"'")
    if not values and _LIST.fullmatch(bare):
        targets = numbers_of(bare)
    # "3-12", as Claude writes it, is sentence 12 of source 3
    targets = [re.sub(r"\A(\d{1,4})-\d{1,4}\Z", r"\1", target) for target in targets]
    return [target for target in targets if _says_something(target) and not target.startswith("#")]


def _address(match: re.Match[str], citable: Citable) -> list[Mark]:
    address = match["bare"].rstrip(ENDS)
    if match[0].startswith("<") and match[0].endswith(">"):
        return [Mark(match.span(), (address,), "address")]
    start = match.start("bare")
    return [Mark((start, start + len(address)), (address,), "address")]


def _parenthesis(match: re.Match[str], citable: Citable) -> list[Mark] | None:
    named = _names(match["aside"].strip(), citable, square=False)
    if named is None:
        return None
    targets, form = named
    if form == "id" and citable.is_content(match[0], _before(match)):
        return None
    return [Mark(match.span(), tuple(targets), form)]


def _word(match: re.Match[str], citable: Citable) -> list[Mark] | None:
    numbers = _cited_numbers(match["number"], citable)
    if not numbers or citable.is_content(match[0], _before(match)):
        return None
    return [Mark(match.span(), tuple(numbers), "number")]


_READERS: Mapping[str, Callable[[re.Match[str], Citable], list[Mark] | None]] = {
    "code": _skipped,
    "formula": _formula,
    "artefact": _artefact,
    "link": _link,
    "tex": _tex,
    "bracket": _bracket,
    "raised": _raised,
    "element": _element,
    "address": _address,
    "parenthesis": _parenthesis,
    "word": _word,
}

Named = tuple[list[str], str]
"""The sources that a text between brackets names, and the form in which it does."""


def _names(inner: str, citable: Citable, square: bool) -> Named | None:
    """What the text between brackets names, and in which form; `None` where it names no source.

    In round brackets a number alone is none, nor an id that is only made like one of ours.
    """
    if square and inner.startswith("^"):
        notes = _first_groups(_FOOTNOTE, inner)
        return (notes, "footnote") if notes else None
    if square:
        counted = _cursors_or_numbers(inner, citable)
        if counted is not None:
            return counted
    parts = [part for part in re.split(r"[\s,;、，；|]+", inner) if part]
    if not parts:
        return None
    if all(map(is_address, parts)):
        return (parts, "address") if square else None  # round brackets are no part of an address
    are_like_ids = all(citable.is_id(part, strict=False) for part in parts)
    if are_like_ids and (square or any(citable.is_id(part, strict=True) for part in parts)):
        return parts, "id"
    worded = _WORDED.fullmatch(inner)
    if worded is None:
        return _authors(inner, citable)
    return _after_a_word(worded, citable, square)


def _cursors_or_numbers(inner: str, citable: Citable) -> Named | None:
    """What square brackets name that hold nothing but cursors, or nothing but numbers."""
    if "†" in inner or inner.startswith("turn"):
        cursors = _first_groups(_CURSOR, inner)
        if cursors:
            return cursors, "cursor"
    numbers = _cited_numbers(inner, citable)
    return (numbers, "number") if numbers else None


def _after_a_word(worded: re.Match[str], citable: Citable, square: bool) -> Named | None:
    """What brackets name that begin with a word for sources, as in `[Source: A]`."""
    inner = worded[0]
    after_word = worded["rest"]
    numbers = _cited_numbers(after_word, citable)
    if numbers:
        return numbers, "number"
    names = [part.strip(" ^[]") for part in _BREAK.split(after_word)]
    ids = list(filter(_says_something, names))
    if not ids:
        return None  # "Source:" alone
    if all(citable.is_id(part, strict=True) for part in ids):
        return ids, "ref"
    are_like_ids = all(citable.is_id(part, strict=False) for part in ids)
    if not are_like_ids and _LIST.fullmatch(after_word) and _RANGE.search(after_word):
        return None  # a range of years or pages, or one that runs backwards
    if (square and worded["sign"]) or _SIGNED.match(inner):
        if all(_WORD.fullmatch(part) for part in ids):
            return ids, "ref"
        return [after_word.strip()], "ref"  # a title, which may hold commas
    return _authors(inner, citable)


def _says_something(name: str) -> bool:
    """Whether the name is not of punctuation alone."""
    return any(map(str.isalnum, name))


def _are_ids(numbers: str, citable: Citable) -> bool:
    """Whether what looks like ranges are ids of passages: "3-12", the twelfth part of text 3."""
    if not _RANGE.search(numbers):
        return False
    return all(citable.is_id(part, strict=True) for part in _BREAK.split(numbers))


def _first_groups(form: re.Pattern[str], inner: str) -> list[str]:
    """The first group of each part of a list; empty where a part is not of the form."""
    groups: list[str] = []
    for part in _BREAK.split(inner):
        match = form.fullmatch(part)
        if match is None:
            return []
        groups.append(match[1])
    return groups


def _authors(inner: str, citable: Citable) -> Named | None:
    """Authors and years that sources carry, as in `(Mirov, 2020; Lind & Oss, 2021)`."""
    works = []
    is_known = False
    for part in inner.split(";"):
        match = _AUTHOR.fullmatch(part.strip())
        if match is None:
            return None
        works.append(f"{match['name']} {match['year']}")
        is_known = is_known or citable.is_author(match["name"], match["year"])
    return (works, "author") if is_known else None


def _cited_numbers(text: str, citable: Citable) -> list[str]:
    """The numbers in a list of them, none where one of them cannot be a source's."""
    located = _LOCATED.fullmatch(text)
    if located is not None:  # with a page or a line in the source
        text = located[1]
    if not _LIST.fullmatch(text) or _are_ids(text, citable):
        return []
    numbers = numbers_of(text)
    if len(numbers) > 1 and "0" in numbers and not citable.is_id("0", strict=True):
        return []  # [0, 1] is an interval
    return numbers if all(map(citable.is_number, numbers)) else []
