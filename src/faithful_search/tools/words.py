"""Words of any script, as the index and the entity linker see them; and long texts cut into
paragraphs.
"""

import re
import unicodedata
from collections.abc import Iterator

# Scripts written without spaces: each character is a word, so that a name can be found inside a
# sentence.
_SINGLE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and accents, which `\w` leaves out: without them Hindi, vocalised Arabic and pointed
# Hebrew fall apart.
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0900-\u0963\u0966-\u0dff"
)
_WORD = re.compile(rf"[{_SINGLE}]|(?:(?![{_SINGLE}])[^\W_]|[{_MARKS}])+")
# Where a text may be cut, best first: after a blank line, a line, a sentence, or a space
_CUTS = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?…]['\"”’)\]]*\s|[。！？]"),  # noqa: RUF001
    re.compile(r"\s"),
)


def words(text: str, fold: bool = True) -> list[str]:
    """The words of `text` after Unicode normalisation (NFKC), without case unless `fold` is false.
    Linear in the text.

    Example:
        >>> words("Saint-Denis, 法国 is №1")
        ['saint', 'denis', '法', '国', 'is', 'no1']
    """
    text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.casefold() if fold else text)


def paragraphs(text: str, most: int) -> Iterator[str]:
    """Cut `text` into parts of at most `most` characters, without the white space around them.
    Linear in the text.

    A part ends at the last blank line within that length, else at the last line's end, else after
    the last sentence, else at the last space, else in the middle of a word.

    Example:
        >>> list(paragraphs("One two three. Four five.\\n\\nSix seven eight.", 26))
        ['One two three. Four five.', 'Six seven eight.']
    """
    start = 0
    while len(text) - start > most:
        # A cut in the first quarter would leave a short part: a worse one behind it is better.
        first_place = start + most // 4
        end = start + most
        for cut in _CUTS:
            ends = [match.end() for match in cut.finditer(text, first_place, start + most)]
            if ends:
                end = ends[-1]
                break
        part = text[start:end].strip()
        if part:
            yield part
        start = end
    part = text[start:].strip()
    if part:
        yield part
