"""Words of any script, as the index and the entity linker see them."""

from __future__ import annotations

import re
import unicodedata

# Scripts written without spaces: each character is a word, so that a name can be found inside a sentence.
_SINGLE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and accents, which `\w` leaves out: without them Hindi, vocalised Arabic and pointed Hebrew fall apart.
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0900-\u0963\u0966-\u0dff"
)
_WORD = re.compile(rf"[{_SINGLE}]|(?:(?![{_SINGLE}])[^\W_]|[{_MARKS}])+")


def words(text: str, fold: bool = True) -> list[str]:
    """The words of `text` after Unicode normalisation (NFKC), without case unless `fold` is false. Linear in the text.

    Example:
        >>> words("Saint-Denis, 法国 is №1")
        ['saint', 'denis', '法', '国', 'is', 'no1']
    """
    text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.casefold() if fold else text)
