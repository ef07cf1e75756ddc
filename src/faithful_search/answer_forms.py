r"""What an answer says, in the forms in which agents are asked to write it.

| form | asked for by |
|---|---|
| `\boxed{Veldt}` | mathematics, MiroThinker, NeMo Gym |
| `{"answer": "Veldt"}`, alone or in a fence | structured output |
| `Exact Answer: Veldt`, `Final Answer:`, `Answer:`, in some languages, on a line | BrowseComp |
| `### Final Answer`, `**Answer**`, and below it one line, the last one | chat models |
| a fenced block that is all of the answer | chat models |
| `<final_answer>Veldt</final_answer>`, `<submit>`, `<response>` | prompts of Claude and others |
| `#### Veldt` at the end | GSM8K |
| `finish[Veldt]` | ReAct |
| `Veldt`, and `Confidence: 90%` on a line | BrowseComp |
"""

import re
from collections.abc import Mapping

from . import loose_json
from .errors import DataError
from .text import holds

_BOXED = re.compile(r"\\boxed\s*+\{")
_TEXT = re.compile(r"\\text(?:bf|rm|it)?\s*+\{([^{}]*+)\}")
_FENCE = re.compile(r"```[a-zA-Z]*+\n?(.*?)```", re.DOTALL)
_LABELS = (
    r"(?:(?:the |my )?(?P<sure>exact |final )?(?:short )?answer|(?P<zh>最终答案|最終回答)|答案|答え|"
    r"réponse(?: finale)?|antwort|antwoord|respuesta(?: final)?|resposta(?: final)?|"
    r"risposta(?: finale)?|odpowiedź|cevap|ответ|정답|الإجابة|उत्तर)"
)
_LABELLED = re.compile(
    rf"^[*_#> \t]*+{_LABELS}[*_]*+[ \t]*+[:\uff1a][*_ \t]*+\n?(?P<content>\S[^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_HEADED = re.compile(
    rf"^(?P<marks>[*_#> \t]*+)(?P<label>{_LABELS})[*_]*+[ \t]*+(?P<colon>[:\uff1a]?+)[*_ \t]*+\n"
    r"(?:[ \t]*+\n)?+[ \t]*+(?P<content>\S[^\n]*)\s*+\Z",
    re.IGNORECASE | re.MULTILINE,
)
_EMPHASISED = re.compile(r"(\*{1,3}+)([^*]++)\1")
_BLOCK = re.compile(r"```[a-zA-Z]*+\n([^`]*+)```")
_HOW_SURE = r"^[*_ \t]*+(?:confidence(?: level| score)?|置信度)[*_]*+[ \t]*+[:\uff1a]"
_CONFIDENCE = re.compile(rf"{_HOW_SURE}[^\n]*", re.IGNORECASE | re.MULTILINE)
# A line that says how sure the agent is, and nothing besides that might be its answer
_SHARE = r"[0-9]{1,3}(?:[.,][0-9]{1,4})? ?(?:%|percent|(?:/|out of) ?[0-9]{1,3})?"
_WORDS_OF_DEGREE = (
    r"(?:(?:very|fairly|quite|moderately|extremely|absolutely) )?"
    r"(?:high|medium|moderate|low|certain|sure|confident)|高|中|低"
)
_DEGREE = re.compile(
    rf"{_HOW_SURE}[*_ \t]*+(?:{_SHARE}|{_WORDS_OF_DEGREE})[*_. \t]*+$",
    re.IGNORECASE | re.MULTILINE,
)
_TAGS = "final_answer|final-answer|answer|submit|response|result|final|solution"
_TAGGED = re.compile(rf"<({_TAGS})>((?:[^<]|<(?!/?(?:{_TAGS})>))*+)</\1>", re.IGNORECASE)
_HASHED = re.compile(r"^####[ \t]*+(\S[^\n]*)\s*+\Z", re.MULTILINE)
_FINISH = re.compile(r"\bfinish\[([^\[\]\n]*+)\]\s*+\Z", re.IGNORECASE)
_EMPTY_BOX = re.compile(r"[$*\s]*+\\boxed\s*+\{(?:\s|\\text(?:bf|rm|it)?\s*+\{\s*+\})*+\}[$*.\s]*+")
_BOX = re.compile(r"\\boxed\s*+\{((?:[^{}]|\{[^{}]*+\})*+)\}")
_SURE = frozenset(("confidence", "confidence_score", "certainty", "probability", "score"))
_KEYS = ("answer", "final_answer", "exact_answer", "result", "response")
_LONGEST = 100_000  # characters that are looked through for JSON


def said(answer: str) -> str:
    r"""What the answer says, without the form around it, or a line that says how sure the agent is;
    the answer itself where it has neither. One that is nothing but a box or a JSON object with
    nothing in it says nothing.

    Example:
        >>> said(r"So it is \boxed{\text{Veldt}}."), said('{"answer": "Veldt"}'), said("Exact Answer: Veldt")
        ('Veldt', 'Veldt', 'Veldt')
        >>> said(r"\boxed{}")
        ''
    """
    content = _content(answer)
    return "" if _is_empty_form(content) else content


def _content(answer: str) -> str:
    """As `said`, an empty form as it is written."""
    labelled = _with_label(answer)
    for form in (_boxed, _json, _labelled, _tagged, _hashed, _finish, _block):
        content = form(labelled)
        if content is not None and content.strip():
            return content.strip()
    return _DEGREE.sub("", answer).strip() or answer.strip()


def _is_empty_form(answer: str) -> bool:
    """Whether this is a box, or a JSON object for an answer, in which none stands."""
    if "\\boxed" in answer:
        return _EMPTY_BOX.fullmatch(answer) is not None
    value = _only_object(answer) if answer[:1] in ("{", "`") else None
    content = None if value is None else _of_object(value)
    return content is not None and not content.strip()


def claimed(answer: str) -> str:
    r"""The answer as people read it: with what its forms hold in their place, and without how sure
    the agent is. What the answer `said` is always in it.

    Example:
        >>> claimed(r"So it is \boxed{\text{Veldt}}."), claimed('{"answer": "Veldt", "why": "I read it."}')
        ('So it is Veldt.', 'Veldt\nI read it.')
    """
    claims, content = _without_forms(answer), said(answer)
    if content == answer or _holds(claims, content):
        return claims
    # What is compared with gold answers must be judged, too, wherever the agent has put it
    return f"{claims}\n{content}"


def _holds(claims: str, content: str) -> bool:
    return holds(claims, content) if any(map(str.isalnum, content)) else content in claims


def _without_forms(answer: str) -> str:
    if answer.strip()[:1] in ("{", "`"):
        value = _only_object(answer)
        if value is not None:
            texts = [value[name] for name in value if name.lower() not in _SURE]
            return "\n".join(text for text in texts if isinstance(text, str))
    if "\\boxed" in answer:
        answer = _TEXT.sub(r"\1", _BOX.sub(r"\1", answer))
    if "[" in answer:
        answer = _FINISH.sub(r"\1", answer)
    if "</" in answer:
        answer = _TAGGED.sub(r"\2", answer)
    if ":" in answer or "\uff1a" in answer:
        answer = _LABELLED.sub(r"\g<content>", _CONFIDENCE.sub("", answer))
    heading = _heading(answer)
    if heading is not None:
        answer = answer[: heading.start()] + _below(heading)
    return _block(answer) or answer


def _boxed(answer: str) -> str | None:
    """The content of the last box, by its braces."""
    openings = list(_BOXED.finditer(answer)) if "\\boxed" in answer else []
    if not openings:
        return None
    begin, depth = openings[-1].end(), 1
    for place in range(begin, len(answer)):
        if answer[place] == "{":
            depth += 1
        elif answer[place] == "}":
            depth -= 1
            if depth == 0:
                return _TEXT.sub(r"\1", answer[begin:place])
    return None


def _json(answer: str) -> str | None:
    """The answer in a JSON object that is all of the text, or stands at its end or in a fence."""
    if "{" not in answer or len(answer) > _LONGEST:
        return None
    fences = _FENCE.findall(answer)
    last_line = answer.strip().rpartition("\n")[2]
    inline = last_line[last_line.find("{") :] if "{" in last_line else ""
    for written in (answer, *fences[-1:], inline):
        try:
            value = loose_json.decode(written)
        except DataError:
            continue
        if isinstance(value, Mapping):
            return _of_object(value)
    return None


def _of_object(value: Mapping[str, object]) -> str | None:
    for key in _KEYS:
        content = value.get(key)
        if isinstance(content, bool):
            return "yes" if content else "no"
        if isinstance(content, str | int | float):
            return str(content)
    return None


def _only_object(answer: str) -> Mapping[str, object] | None:
    """The JSON object that is all of the text, or all of the fence that is all of it."""
    if len(answer) > _LONGEST:
        return None
    fence = _FENCE.fullmatch(answer.strip())
    try:
        value = loose_json.decode(fence[1] if fence else answer)
    except DataError:
        return None
    return value if isinstance(value, dict) and any(name in value for name in _KEYS) else None


def _with_label(answer: str) -> str:
    """The answer, with a label that is a heading in front of the line below it, which may have a
    form of its own.
    """
    without_degree = _DEGREE.sub("", answer)
    heading = _heading(without_degree)
    if heading is None:
        return answer
    return f"{without_degree[: heading.start()]}{heading['label']}: {_content(_below(heading))}"


def _below(heading: re.Match[str]) -> str:
    """The line below a heading, without the marks of emphasis around it."""
    content = heading["content"].strip()
    emphasised = _EMPHASISED.fullmatch(content)
    return emphasised[2] if emphasised else content


def _heading(answer: str) -> re.Match[str] | None:
    """A label on a line of its own, with the answer below it; without a colon, a heading or bold
    type shows that it is a label.
    """
    heading = _HEADED.search(answer) if "\n" in answer else None
    if heading is None or heading["colon"] or {"#", "*"} & {*heading["marks"]}:
        return heading
    return None


def _labelled(answer: str) -> str | None:
    """The content of the last line with a label; of one that says that it is final, if there is."""
    if ":" not in answer and "\uff1a" not in answer:
        return None
    lines = list(_LABELLED.finditer(answer))
    sure = [line for line in lines if line["sure"] or line["zh"]]
    last = (sure or lines)[-1:]
    return last[0]["content"].rstrip(" *_") if last else None


def _tagged(answer: str) -> str | None:
    contents = [content for _, content in _TAGGED.findall(answer)] if "</" in answer else []
    return contents[-1] if contents else None


def _hashed(answer: str) -> str | None:
    line = _HASHED.search(answer) if "####" in answer else None
    return line[1] if line else None


def _finish(answer: str) -> str | None:
    end = _FINISH.search(answer[-2000:]) if "]" in answer else None
    return end[1] if end else None


def _block(answer: str) -> str | None:
    block = _BLOCK.fullmatch(answer.strip())
    return block[1] if block else None
