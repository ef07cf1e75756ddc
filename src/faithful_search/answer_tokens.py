"""The tokens of an answer, as people read it: the normaliser `unicode`.

What only differs in typography gives the same tokens (forms of a character, quotes, dashes, blanks,
groups of digits, ways to write a date). What means something else gives others: a sign, a decimal
point, `C++` and `C`, `10/1` and `101`.

Dates are recognised where the month is a word, in ISO 8601 and in Chinese and Japanese. `10/1/1949`
stays three numbers, since the order of day and month is not written in it.
"""

import html
import re
import unicodedata
from decimal import Decimal
from functools import lru_cache

_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63"), "-")
_APOSTROPHES = dict.fromkeys(map(ord, "\u2018\u2019\u201b\u02bc\u02b9\u2032\u0060\u00b4"), "'")
# In Chinese and Japanese a middle dot divides the parts of a foreign name; NFKC keeps them apart
_SAME_CHARACTER = _DASHES | _APOSTROPHES

# Thai, Lao, Burmese, Khmer, kana and Han are written without blanks: each character is a token
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_LETTER = rf"[^\W\d_{UNSPACED}]"

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            ("january", "jan"),
            ("february", "feb"),
            ("march", "mar"),
            ("april", "apr"),
            ("may",),
            ("june", "jun"),
            ("july", "jul"),
            ("august", "aug"),
            ("september", "sept", "sep"),
            ("october", "oct"),
            ("november", "nov"),
            ("december", "dec"),
        ),
        start=1,
    )
    for name in names
}
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})\b\.?"
_DAY = r"(?P<day>[0-3]?[0-9])(?:st|nd|rd|th)?\b"
_YEAR = r"(?P<year>[0-9]{4})(?![\w.]*[0-9])"
_DATES = [
    re.compile(rf"\b{_MONTH} {{0,2}}{_DAY}(?:,? {{0,2}}{_YEAR})?"),  # October 1st, 1949
    re.compile(rf"\b{_DAY} {{0,2}}(?:of )?{_MONTH}(?:,? {{0,2}}{_YEAR})?"),  # 1 October 1949
    re.compile(rf"\b{_MONTH},? {{0,2}}{_YEAR}"),  # October 1949
    re.compile(r"\b(?P<year>[0-9]{4})-(?P<month>[01][0-9])-(?P<day>[0-3][0-9])\b(?!-)"),
    re.compile(
        r"(?P<year>[0-9]{4}) ?年 ?(?P<month>[01]?[0-9]) ?月(?: ?(?P<day>[0-3]?[0-9]) ?[日号])?"
    ),
]
# Bounded: else a long run of groups, which is no number, would be looked at from each of them
_GROUPED = re.compile(
    r"(?<![\w.,])[0-9]{1,3}(?:,[0-9]{3}){1,10}(?![\w]|,[0-9])"
    r"|(?<![\w.,])[0-9]{1,3}(?:['\u202f ][0-9]{3}){1,10}(?![\w]|[' ][0-9])"
    r"|(?<![\w.,])[0-9]{1,3}(?:\.[0-9]{3}){2,10}(?![\w]|[.,][0-9])"
)
_INITIALS = re.compile(rf"(?<!\w)(?:{_LETTER}\. ?)+{_LETTER}(?:\.|(?!\w))")
# Before a word only, so that "Vitamin A" keeps its letter; "A" is one where the text begins
_ARTICLE = re.compile(r"(?:^A|\b(?:a|[Aa]n|[Tt]he|THE))\s+(?=\w)")
# In a title each word may have a capital, the article, too: "Diary of A Wimpy Kid"
_ARTICLE_IN_TITLE = re.compile(
    r"\b(?P<before>(?i:about|as|at|by|for|from|in|into|is|like|not|of|on|or|than|to|upon|was|what|"
    r"when|with|without))\s+A\s+(?=[A-Z])"
)
_CURRENCY = "$€£¥₹₩₽₺₫"
_AMOUNT = re.compile(
    rf"(?P<currency>[{_CURRENCY}]) ?"
    r"(?P<amount>-?[0-9][0-9,.]*(?: (?:thousand|million|billion|trillion))?)"
)
_TOKEN = re.compile(
    r"(?P<number>(?<![\w.)])[-+]?(?:(?<![0-9]\.)[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?![.,]?[0-9]|\w))"
    rf"|(?P<word>[^\W_{UNSPACED}]+(?:\+\+?|\#)?)"
    rf"|(?P<character>[{UNSPACED}])"
    rf"|(?P<sign>[%{_CURRENCY}])"
)
_RAISED = re.compile(r"(?<=[0-9])(?=[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u209f\u2150-\u215f])")
_PUNCTUATION_OF_UNSPACED = re.compile(r"[\u0e2f\u0e46\u0e4f\u0e5a\u0e5b\u30a0\u30fb]")
_ANSWER = 200  # characters of an answer; what is longer is not kept
_BOOLEANS: dict[tuple[str, ...], tuple[str, ...]] = {("true",): ("yes",), ("false",): ("no",)}


def tokens(text: str) -> tuple[str, ...]:
    """The tokens by which answers are compared; none for a text of punctuation alone.

    The text is brought to NFKC; HTML entities, invisible characters and English articles go; dashes
    and apostrophes of all kinds are one; letters are case-folded. A number keeps its sign and its
    value (`1,200.50` is `1200.5`). A date is its year, month and day. Chinese, Japanese and other
    scripts without blanks are compared by characters. An answer `true` is `yes`, `false` is `no`.

    Example:
        >>> tokens("The O'Brien-Smith estate")
        ('obrien', 'smith', 'estate')
        >>> tokens("-1.50"), tokens("1,200,300"), tokens("$2.50")
        (('-1.5',), ('1200300',), ('2.5', '$'))
        >>> tokens("October 1st, 1949") == tokens("1949-10-01") == tokens("1949年10月1日")
        True
        >>> tokens("《红楼梦》")
        ('红', '楼', '梦')
    """
    # Answers are compared again and again; texts of evidence would only fill the memory
    return _of_answer(text) if len(text) <= _ANSWER else _tokens(text)


def _tokens(text: str) -> tuple[str, ...]:
    text = one_typography(text)
    text = text.strip()
    if " A " in text:
        text = _ARTICLE_IN_TITLE.sub(r"\g<before> ", text)
    text = _ARTICLE.sub("", text).casefold()
    for date in _DATES:
        text = date.sub(_date_words, text)
    text = _GROUPED.sub(lambda match: re.sub(r"[^0-9]", "", match[0]), text)
    text = _INITIALS.sub(lambda match: re.sub(r"[. ]", "", match[0]), text)
    text = _AMOUNT.sub(r"\g<amount> \g<currency>", text)
    text = text.replace("per cent", "%").replace("percent", "%").replace("'", "")
    matches = tuple(map(_canonical, _TOKEN.finditer(text)))
    return _BOOLEANS.get(matches, matches)


_of_answer = lru_cache(maxsize=16384)(_tokens)


def one_typography(text: str) -> str:
    """The text with one form for each character that people do not tell apart."""
    if "&" in text:
        text = html.unescape(text)
    if text.isascii():
        return text.replace("`", "'")
    text = _RAISED.sub(" ", text)  # or else 10² would be 102, and 3½ 31/2
    # Once more behind the translation: an acute accent alone becomes a blank and a combining mark
    text = unicodedata.normalize("NFKC", text.translate(_SAME_CHARACTER))
    text = text.translate(_SAME_CHARACTER).replace("\u2044", "/")
    text = _PUNCTUATION_OF_UNSPACED.sub(" ", text)
    return "".join(map(_one_character, text))


def _one_character(character: str) -> str:
    if character.isascii():
        return character
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.digit(character))
    if category == "Cf" or "\ufe00" <= character <= "\ufe0f":  # joiners, soft hyphens, variants
        return ""
    return " " if category.startswith("Z") else character


def _date_words(match: re.Match[str]) -> str:
    """`1949 10m 1d` for a date that there can be; any other text stays as it is."""
    parts = match.groupdict()
    month = _MONTHS.get(parts["month"]) or int(parts["month"])
    day = parts.get("day")
    if month > 12 or (day is not None and not 1 <= int(day) <= 31):
        return match[0]
    words = [str(int(parts["year"]))] if parts.get("year") else []
    words.append(f"{month}m")
    if day is not None:
        words.append(f"{int(day)}d")
    return f" {' '.join(words)} "


def _canonical(match: re.Match[str]) -> str:
    if match["number"] is None or match["number"].isdecimal():
        return match[0]  # `007` is not `7`
    value = Decimal(match["number"])
    return format(value.normalize(), "f") if value else "0"
