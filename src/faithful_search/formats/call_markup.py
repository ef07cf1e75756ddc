"""Finds calls that a model wrote as text, in the markup of its chat template, for all dialects.

A server whose parser does not know a model leaves such calls in the content or in the thought of a
message; a trainer that decodes without special tokens loses half of their markup. `call_forms` is
the table of the markups; here it is decided which of them are calls and which only quoted.

The texts may be hostile, so every pattern takes linear time: each of its repetitions is bounded or
possessive. `tests/attacks/test_linear.py` tries them.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from .blocks import Part
from .call_arguments import Calls, calls_in_json, calls_in_python, json_end
from .call_forms import FORMS, HERMES, Form
from .quotes import code_of, stands_apart

_MOST_CALLS = 1_000  # of one message
_MOST_BROKEN = 100  # beginnings of calls that are none after all: each takes long to look at
# Blanks and special tokens: what stands between calls without being words. \uff5c is the bar in
# DeepSeek's tokens, \u2581 the blank in them.
_GAP = re.compile(r"(?:\s++|<\|[^<>|\n]{1,40}\|>|<\uff5c[^<>\n]{1,40}\uff5c>|</?s>|\[e~\[)*+")
# Markup around calls that holds nothing itself, before them and after them.
_BEFORE = re.compile(
    r"(?:<(?:\w{1,20}:)?(?:tool_calls?|function_calls)>|<\|tool_calls?_section_begin\|>"
    r"|<\uff5cDSML\uff5c(?:tool_calls|function_calls)>|<\uff5ctool\u2581calls\u2581begin\uff5c>"
    r"|<\|open\|>tools<\|sep\|>)\s*+\Z"
)
_BEHIND = re.compile(
    r"(?:\s{0,40}+(?:</(?:\w{1,20}:)?(?:tool_calls?|function_calls)>|<\|tool_calls?_section_end\|>"
    r"|</\uff5cDSML\uff5c(?:tool_calls|function_calls)>|<\uff5ctool\u2581calls\u2581end\uff5c>"
    r"|<\|close\|>tools<\|sep\|>|<\|/tool_call\|>|<\|END_ACTION\|>))*+"
)
_LONGEST_AROUND = 80  # characters of such markup before a call
_MINIMAX_3 = "]<]minimax[>["  # stands before each tag of this model
# A thought before a call that is the whole message otherwise
_LEAD = re.compile(r"\s*+(?:<think>(?:(?!</think>).)*+</think>\s*+)?+", re.DOTALL)
_END = re.compile(r"(?:\s|<\|\w{1,40}\|>){0,200}+\Z")
_LONGEST_END = 200  # characters of tokens and blanks at the end of a message
_CODE_BLOCK = re.compile(r"```(?:json|python|tool_code|tool_call)?[ \t]*+\n(?P<code>[^`]*+)```")
# What a call looks like whose form is not known: its name and then its arguments in JSON, a tag or
# a token that says so, or a whole message of a name and an object, or of code.
_LIKE_A_CALL = re.compile(
    r"""["'](?:name|tool|tool_name|function|action)["']\s{0,9}:\s{0,9}["'][\w.:/-]{1,100}["']\s{0,9},"""
    r"""\s{0,9}["'](?:arguments|parameters|args|input|action_input|tool_input)["']\s{0,9}:"""
    r"""|<[|\uff5c]?\w{0,20}[:_\u2581]?(?:tool|function)[_\u2581]?calls?\b|<(?:function|invoke|tool)[ =]"""
    r"""|```tool_c|<\|(?:DSML\||tool_[\w:]{1,30}\|>)|\A(?:[A-Za-z_][\w.-]{0,63}\{\s{0,9}"|<code>)"""
)
_LONGEST_TAIL = 4_000  # characters of an answer in which such a call would end it
_RETURN = re.compile(r"\A\s*+## Return of (\S{1,200})[ \t]*+\n")


class _Group(NamedTuple):
    """Calls that one match of a form gives, and the stretch of text that they take up, with the
    markup around them.
    """

    start: int
    end: int
    plain: bool
    calls: Calls


def split_calls(text: str, answered: bool, thought: bool = False) -> list[Part] | None:
    """Divide an agent's words into texts and calls; `None` where there is no call among them.

    A call that is shown as code, or that stands within a sentence, is a quotation and no call.

    Args:
        answered: a result follows. Then calls within sentences count, and quoted ones, too, where
            there are no others.
        thought: the words are a thought. Only calls at its end count, and calls in `<tool_call>`
            and JSON are read as well, which the dialects read elsewhere.

    Example:
        >>> call = "<function=search><parameter=query>Ada</parameter></function>"
        >>> split_calls(f"I look.<tool_call>{call}</tool_call>", answered=True)[1].value["arguments"]
        {'query': 'Ada'}
    """
    if _MINIMAX_3 in text:
        text = text.replace(_MINIMAX_3, "")
    forms = [form for form in FORMS if form.sign in text]
    if thought and HERMES.sign in text:
        forms.append(HERMES)
    groups = _without_overlaps([group for form in forms for group in _calls_of(form, text)])
    groups = _without_quotations(text, groups or _unmarked(text, answered), answered)
    if thought:
        groups = _at_end(text, groups)
    if not groups:
        return None
    parts: list[Part] = []
    done = 0
    for group in groups:
        parts += _text_part(text[done : group.start])
        parts += [Part("call", call, call["id"]) for call in group.calls]
        done = group.end
    return [*parts, *_text_part(text[done:])]


def read_tool_call_body(raw: str) -> tuple[str, dict[str, Any]] | None:
    """The name and arguments of the call between `<tool_call>` and `</tool_call>`, in a form that
    gives a mapping; `None` where it is no call.

    Example:
        >>> read_tool_call_body("search<arg_key>query</arg_key><arg_value>Ada</arg_value>")
        ('search', {'query': 'Ada'})
    """
    text = f"<tool_call>{raw}</tool_call>"
    for form in FORMS:
        if form.sign not in text:
            continue
        calls = [call for group in _calls_of(form, text) for call in group.calls]
        if len(calls) == 1 and isinstance(calls[0]["arguments"], dict):
            return calls[0]["name"], calls[0]["arguments"]
    return None


def ends_like_a_call(text: str) -> bool:
    """Whether a text ends with what looks like a call of a tool, in a form that is not known.

    Example:
        >>> ends_like_a_call('<tool>{"name": "search", "arguments": {"query": "Ada"}}</tool>')
        True
    """
    text = text.rstrip()
    if not text.endswith(("}", "]", ">", ")", "```")):
        return False
    return _LIKE_A_CALL.search(text, max(0, len(text) - _LONGEST_TAIL)) is not None


def split_return_line(text: str) -> tuple[str, str]:
    """The id of the call that a tool's message answers, and its text.

    Kimi's template writes the id in the first line. Without that line the id is empty.
    """
    head = _RETURN.match(text)
    return (head[1], text[head.end() :]) if head else ("", text)


# Where calls stand


def _calls_of(form: Form, text: str) -> Iterator[_Group]:
    """The calls of this form in a text; one that is not closed ends with the text."""
    place = 0  # where to look for the next call
    done = 0  # where the last group ends
    broken = 0
    while place <= len(text) and broken < _MOST_BROKEN:
        head = form.head.search(text, place)
        if head is None:
            return
        begin = head.end()
        if form.tail is None:
            inner_end = end = json_end(text, begin)
        else:
            tail = form.tail.search(text, begin)
            # A call that is not closed takes the rest of the text, and is the last one.
            inner_end, end = tail.span() if tail else (len(text), len(text) + 1)
        place = max(end, begin + 1)
        calls = form.read(head, text[begin:inner_end])
        if not calls:
            broken += 1
            continue
        after = _BEHIND.match(text, min(end, len(text)))
        place = max(place, after.end() if after else end)
        start = max(done, _opening(text, head.start()))
        done = min(place, len(text))
        yield _Group(start, done, form.plain, calls)


def _opening(text: str, start: int) -> int:
    """Where the markup begins that stands right before a call at `start`."""
    while around := _BEFORE.search(text, max(0, start - _LONGEST_AROUND), start):
        start = around.start()
    return start


def _without_overlaps(groups: list[_Group]) -> list[_Group]:
    """The groups in order. Of those that overlap, the one that begins first counts; of those that
    begin at one place, that of the earlier form.
    """
    separate: list[_Group] = []
    for group in sorted(groups, key=lambda group: group.start):
        if not separate or group.start >= separate[-1].end:
            separate.append(group)
    return separate[:_MOST_CALLS]


def _without_quotations(text: str, groups: list[_Group], answered: bool) -> list[_Group]:
    """The calls that are not only quoted: none in code, in closed thoughts or within sentences.

    Where they are `answered`, sentences do not matter, and if all calls are in code or thoughts,
    these count.
    """
    if not groups:
        return []
    code = code_of(_without(text, groups), blocks=())
    thoughts = _thoughts(text)
    outside = [group for group in groups if not (_holds(code, group) or _holds(thoughts, group))]
    if answered:
        return outside or groups
    calls: list[_Group] = []
    for number, group in enumerate(outside):
        before = outside[number - 1].end if number else 0
        after = outside[number + 1].start if number + 1 < len(outside) else len(text)
        alone = stands_apart(text, before, group.start) and _GAP.fullmatch(text, group.end, after)
        if alone or not group.plain:
            calls.append(group)
    return calls


def _without(text: str, groups: list[_Group]) -> str:
    """The text with blanks in the place of the calls: backticks in these are no code."""
    parts: list[str] = []
    done = 0
    for group in groups:
        parts += (text[done : group.start], " " * (group.end - group.start))
        done = group.end
    return "".join([*parts, text[done:]])


def _holds(spans: tuple[list[int], list[int]], group: _Group) -> bool:
    """Whether the group begins in one of these stretches: `spans` are where they begin, in order,
    and where they end.
    """
    place = bisect_right(spans[0], group.start) - 1
    return place >= 0 and group.start < spans[1][place]


def _thoughts(text: str) -> tuple[list[int], list[int]]:
    """Where closed thoughts begin and end. A last thought after which nothing is said is left out,
    as the calls in it are all that the agent did.
    """
    starts: list[int] = []
    ends: list[int] = []
    start = text.find("<think>")
    while start >= 0:
        end = text.find("</think>", start)
        if end < 0 or _GAP.fullmatch(text, end + len("</think>")):
            break
        starts.append(start)
        ends.append(end)
        start = text.find("<think>", end)
    return starts, ends


def _at_end(text: str, groups: list[_Group]) -> list[_Group]:
    """The calls after which nothing more is said."""
    next_start = len(text)
    for number in reversed(range(len(groups))):
        if not _GAP.fullmatch(text, groups[number].end, next_start):
            return groups[number + 1 :]
        next_start = groups[number].start
    return groups


def _unmarked(text: str, answered: bool) -> list[_Group]:
    """The calls of Llama 3 and 4, which are JSON or a list as in Python, without any markup.

    They are the whole text but for a thought, or where they are answered all of it from the first
    line that begins with a bracket, or a block of code.
    """
    start = _LEAD.match(text).end()  # type: ignore[union-attr]  # an empty string matches, too
    calls = _objects(text, start)
    if not calls and text.startswith("[", start):
        end = _END.search(text, max(start, len(text) - _LONGEST_END))
        calls = calls_in_python(text[start : end.start() if end else len(text)])
    if calls:
        return [_Group(start, len(text), False, calls)]
    if not answered or 'name"' not in text:
        return []
    for opening in ("\n{", "\n["):
        start = text.find(opening) + 1
        calls = _objects(text, start) if start else []
        if calls:
            return [_Group(start, len(text), False, calls)]
    block = _CODE_BLOCK.search(text)
    calls = _objects(block["code"].strip(), 0) if block else []
    return [_Group(*block.span(), False, calls)] if block and calls else []


def _objects(text: str, start: int) -> Calls:
    """The calls in the JSON from `start` on, if the text holds nothing else from there."""
    calls: Calls = []
    place, end = start, len(text)
    while place < end and len(calls) < _MOST_CALLS:
        if text[place] not in "[{":
            return []
        value_end = json_end(text, place)
        in_value = calls_in_json(text[place:value_end], strict=True)
        if not in_value:
            return []
        calls += in_value
        place = value_end
        while place < end and (text[place].isspace() or text[place] in ";,"):
            place += 1
        if text.startswith("<|", place) and _GAP.fullmatch(text, place):
            place = end
    return calls if place == end else []


def _text_part(text: str) -> list[Part]:
    """The text as a part, unless there are no words in it."""
    return [] if _GAP.fullmatch(text) else [Part("text", text.strip())]
