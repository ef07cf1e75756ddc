"""What a reply says: its thought, and its answer in the forms in which models write one."""

import re

from .. import answer_forms

_OPEN, _CLOSE = "<think>", "</think>"
_CONCLUDES = re.compile(r"\banswer\s+(?:to (?:the|this) question\s+)?is\b:?[ \t]*", re.IGNORECASE)


def thought_of(text: str) -> tuple[str | None, str]:
    """The thought in a reasoning model's reply, and the text after it.

    A thought that is opened and not closed is all of the reply: it was cut. One that is closed and
    not opened counts, too, since some chat templates write the opening tag into the prompt.

    Example:
        >>> thought_of("<think>It was Ada.</think> Ada"), thought_of("Ada")
        (('It was Ada.', 'Ada'), (None, 'Ada'))
    """
    text = text.strip()
    is_opened = text.startswith(_OPEN)
    thought, closing_tag, after = text.removeprefix(_OPEN).partition(_CLOSE)
    if closing_tag:
        return thought.strip() or None, after.strip()
    if is_opened:
        return thought.strip() or None, ""
    return None, text


def answer_of(text: str) -> str | None:
    """The answer in a reply to a prompt that asks for nothing but the answer, without a form such
    as "Final Answer:" around it; `None` for an empty one.

    Example:
        >>> answer_of("Final Answer: Rome"), answer_of("")
        ('Rome', None)
    """
    return answer_forms.said(text).strip() or None


def conclusion_of(text: str) -> tuple[str, str | None]:
    """The whole reply as a thought, and the answer that it concludes with: what stands after the
    last "the answer is", on the same line, else the answer in another form, such as a box; `None`
    where it concludes with none.

    Example:
        >>> conclusion_of("Ada wrote it. So the answer is: Ada.")
        ('Ada wrote it. So the answer is: Ada.', 'Ada')
    """
    thought = text.strip()
    conclusions = list(_CONCLUDES.finditer(text))
    if conclusions:
        after = text[conclusions[-1].end() :].strip()
        line = after.partition("\n")[0]
        return thought, answer_of(line.rstrip().removesuffix("."))
    answer = answer_forms.said(text)
    if answer == text:  # it is in none of the forms
        return thought, None
    return thought, answer.strip() or None
