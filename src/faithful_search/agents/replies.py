"""What a reply says: its thought, and its answer in the forms in which models write one."""

import re

from .. import answer_forms

_OPEN, _CLOSE = "<think>", "</think>"
_CONCLUDES = re.compile(r"\banswer\s+(?:to (?:the|this) question\s+)?is\b:?[ \t]*", re.IGNORECASE)


def thought_of(text: str) -> tuple[str | None, str]:
    """The thought in a reasoning model's reply, and what it says behind it. A thought that is not
    closed is all of the reply: it was cut.

    Example:
        >>> thought_of("<think>It was Ada.</think> Ada"), thought_of("Ada")
        (('It was Ada.', 'Ada'), (None, 'Ada'))
    """
    text = text.strip()
    is_opened = text.startswith(_OPEN)
    thought, closed, behind = text.removeprefix(_OPEN).partition(_CLOSE)
    if closed:
        return thought.strip() or None, behind.strip()
    if is_opened:
        return thought.strip() or None, ""
    return None, text


def answer_of(text: str) -> str | None:
    """A reply that is asked to be the answer alone, without the form around it; `None` where there
    is none.

    Example:
        >>> answer_of("Final Answer: Rome"), answer_of("")
        ('Rome', None)
    """
    return answer_forms.said(text).strip() or None


def conclusion_of(text: str) -> tuple[str, str | None]:
    """What is thought in a reply that ends in "the answer is …", and that answer; `None` where it
    does not say so.

    Example:
        >>> conclusion_of("Ada wrote it. So the answer is: Ada.")
        ('Ada wrote it. So the answer is: Ada.', 'Ada')
    """
    concluding = list(_CONCLUDES.finditer(text))
    if concluding:
        line = text[concluding[-1].end() :].strip().partition("\n")[0]
        answer = answer_of(line.rstrip().removesuffix("."))
        return text.strip(), answer
    said = answer_forms.said(text)
    return text.strip(), said.strip() if said != text and said.strip() else None
