"""Which columns of a row hold what an agent wrote, its question, gold answers and id, whatever its
source calls them.

Questions to train on, rows to audit and rollouts of other programs are all looked up here. Names
are tried in a fixed order, so that the same columns always mean the same. `Ground Truth` and
`ground-truth` are `ground_truth`, too.
"""

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple

from . import loose_json
from .errors import DataError

QUESTIONS = (
    "question",
    "query",
    "problem",
    "user_input",
    "user_query",
    "question_text",
    "input_question",
    *("问题", "問題", "質問"),
    "question_en_origin",
)
_PERHAPS_GOLD = ("answers", "answer", "answer_en_origin")
GOLD_ANSWERS = (
    "golden_answers",
    "gold_answers",
    "golden_answer",
    "gold_answer",
    "reference_answers",
    "reference_answer",
    "reference_outputs",
    "reference_output",
    "correct_answers",
    "correct_answer",
    "true_answers",
    "true_answer",
    "possible_answers",
    "expected_answers",
    "expected_answer",
    "expected_output",
    "ground_truths",
    "ground_truth",
    "groundtruth",
    "gold_truth",
    "references",
    "reference",
    "targets",
    "target",
    "gts",
    "gt",
    "gold",
    "expected",
    "Final answer",
    *("标准答案", "参考答案", "答案", "正解"),
    *_PERHAPS_GOLD,
)
"""Tried in this order: `answer` and `answers` come last, because other projects also use them for
what the model answered. `Final answer` is GAIA's, with this capital and this space alone: a
`final_answer` is a model's.
"""
CERTAINLY_GOLD = tuple(name for name in GOLD_ANSWERS if name not in _PERHAPS_GOLD)
"""Those of them that no program uses for what the model answered."""
ALIASES = (
    *("answer_aliases", "answers_aliases", "gold_aliases", "aliases"),
    "answer_en_validate",
)
"""Further gold answers, beside those of `answer` or `answers` (MuSiQue), or of `answer_en_origin`
(Pirá).
"""
IDS = (
    *("id", "_id", "id_qa", "qid", "uid", "question_id", "query_id", "example_id", "instance_id"),
    *("sample_id", "task_id", "doc_id"),
)
MESSAGES = ("messages", "conversation", "conversations", "chat")
"""A chat."""
TEXTS = (
    *("text", "trajectory", "completion", "response", "output", "solution", "gen_text_store"),
    *("rollout", "prediction", "generation", "generated_text", "full_response", "completions"),
    *("responses", "sequence", "samples", "generations", "outputs", "resps", "output_response"),
)
"""What an agent wrote: its text, messages, or an object in some format."""
SAMPLES = ("responses", "completions", "resps", "samples", "generations", "outputs", *TEXTS)
"""Columns that may hold several samples for one question, each a text or a chat."""
PROMPTS = ("prompt", "input", "input_prompt")
"""What the agent was given: messages, or the text before its own."""
MOST_UNUSED, LONGEST_UNUSED = 8, 300
"""How many unused columns are named, and how many characters what may be an answer has."""
ANSWER_SPLIT = "<|answer_split|>"

_QUESTIONS_WITHIN = ("extra_info", "doc")
_GOLD_WITHIN = ("reward_model", "extra_info", "doc", "info")
# Programs of all kinds keep what they like in `metadata`, also what a model answered, or what pages
# it refers to: there only these names count
_GOLD_IN_METADATA = (
    *("golden_answers", "gold_answers", "golden_answer", "gold_answer"),
    *("reference_answers", "reference_answer", "correct_answers", "correct_answer"),
    *("true_answers", "true_answer", "expected_answers", "expected_answer"),
    *("ground_truths", "ground_truth", "groundtruth", "gold_truth"),
    *("标准答案", "参考答案", "正解"),
)
# Fields of an object that hold answers: Search-R1's, TriviaQA's, SQuAD's, NQ's. Its other fields
# say something else of them: where an answer begins, of which type it is.
_ANSWER_FIELDS = ("target", "value", "text", "short_answers", "answers", "answer", "aliases")
_OUTPUT_FIELDS = ("expected_answer", "expected_output", "expected", "output", "response", "content")
"""Fields of what an evaluation set expects (LangSmith's `reference_outputs`), where it has none of
the others.
"""
_ASKING = ("system", "developer", "user", "human", "tool", "function")  # roles of no reply
_YES_NO = "yes_no_answer"
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LITERAL = re.compile(_QUOTED, re.DOTALL)  # in such a list alone: there each quote is closed
_PRINTED_LIST = re.compile(rf"\[\s*+(?:{_QUOTED}(?:[\s,]++{_QUOTED})*+)?[\s,]*+\]", re.DOTALL)
# No texts that follow each other without a comma, as NumPy prints them: Python would join them
_APART = re.compile(rf"(?:[^'\"]++|{_QUOTED}(?!\s*+['\"]))*+", re.DOTALL)
# What lists, NumPy's arrays and its numbers and texts are called where they are printed
_PRINTED_CALLS = frozenset(
    (
        *("array", "list", "str_", "bool_", "Decimal"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
)
_LONGEST_PRINTED = 20_000
"""The most characters of an object that Python printed: it is read as Python, which is slow."""


class Field(NamedTuple):
    """A value, and the name of the column that it was taken from."""

    value: Any
    column: str


def question(row: Mapping[str, Any], column: str | None = None) -> Field | None:
    """The question in a row's own column, in verl's `extra_info`, or what the user says last in a
    prompt of messages; `None` where there is none.

    With `column` it is taken from there and nowhere else. Raises `DataError` when the row has no
    such column.

    Example:
        >>> question({"id": 7, "query": " Where? "})
        Field(value='Where?', column='query')
    """
    if column is not None:
        text = _named(row, column)
        return Field(text.strip(), column) if isinstance(text, str) and text.strip() else None
    for prefix, place in [("", row), *_objects_in(row, _QUESTIONS_WITHIN)]:
        for name in named(place, QUESTIONS):
            text = place[name]
            if isinstance(text, str) and text.strip():
                return Field(text.strip(), prefix + name)
    return _last_of_user(row)


def golds(row: Mapping[str, Any], column: str | None = None) -> Field | None:
    """The gold answers of a row, as a tuple of texts; `None` where no column could hold any.

    The first of `GOLD_ANSWERS` that holds something counts, with `ALIASES` beside it; then what
    verl's `reward_model` and its like hold. What `metadata` says are gold answers comes before
    `answer` and `answers`. An empty tuple says that there is such a column, and that it is empty.
    With `column` as for `question`.

    Example:
        >>> golds({"answer": "Oslo", "ground_truth": "Veldt"})
        Field(value=('Veldt',), column='ground_truth')
        >>> golds({"answer": "Oslo", "metadata": {"gold_answer": "Veldt"}})
        Field(value=('Veldt',), column='metadata.gold_answer')
        >>> golds({"answer": "US", "answer_aliases": ["USA"]})
        Field(value=('US', 'USA'), column='answer')
    """
    if column is not None:
        return Field(answers(_named(row, column)), column)
    empty = None
    for prefix, place, names in _gold_places(row):
        for name in named(place, names):
            if place[name] is None:
                continue
            if held := answers(place[name]):
                if name.lower() in _PERHAPS_GOLD:
                    held = _with_aliases(held, place)
                return Field(held, prefix + name)
            empty = empty or Field((), prefix + name)
    return empty


def _gold_places(
    row: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[str, Any], Sequence[str]]]:
    """Where gold answers may stand: what the names of the columns there begin with, the object, and
    the columns in it.
    """
    yield "", row, CERTAINLY_GOLD
    for prefix, metadata in _objects_in(row, ["metadata"]):
        # A truth value may be somebody's label of what the agent answered
        fields = {name: value for name, value in metadata.items() if not isinstance(value, bool)}
        yield prefix, fields, _GOLD_IN_METADATA
    yield "", row, _PERHAPS_GOLD
    for prefix, place in _objects_in(row, _GOLD_WITHIN):
        yield prefix, place, GOLD_ANSWERS


def identity(row: Mapping[str, Any], column: str | None = None) -> Field | None:
    """The row's id, as text. With `column` as for `question`."""
    if column is not None:
        return Field(str(_named(row, column)), column)
    field = first(row, IDS, lambda value: isinstance(value, str | int) and value != "")
    return None if field is None else Field(str(field.value), field.column)


def unused(row: Mapping[str, Any], used: Set[str]) -> list[str]:
    """Columns that may hold a question or gold answers under a name that is not known here: with a
    short text, a number, a truth value or a list of these. At most `MOST_UNUSED`.

    Example:
        >>> unused({"id": 3, "output": "Veldt", "solution_text": "Veldt", "logs": {}}, {"output"})
        ['solution_text']
    """
    ids = set(named(row, (*IDS, "dialect")))
    names = [
        name
        for name, value in row.items()
        if name not in used and name not in ids and _is_short(value)
    ]
    return names[:MOST_UNUSED]


def _is_short(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and len(value) <= MOST_UNUSED and all(map(_is_short, value))
    if isinstance(value, str):
        return 0 < len(value.strip()) <= LONGEST_UNUSED
    return isinstance(value, bool | int)


def first(
    row: Mapping[str, Any], names: Sequence[str], fits: Callable[[Any], Any] = lambda value: True
) -> Field | None:
    """The first of these columns that holds what fits; `None` is nothing."""
    for name in named(row, names):
        if row[name] is not None and fits(row[name]):
            return Field(row[name], name)
    return None


def named(row: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    """The row's columns of these names, in the order of the names, as the row spells them: in
    whatever case, as `camelCase`, with spaces or hyphens for underscores.

    Example:
        >>> list(named({"Answer": 1, "Ground Truth": 2}, ["ground_truth", "answer"]))
        ['Ground Truth', 'Answer']
    """
    spelled = {_plain(name): name for name in row if isinstance(name, str)}
    for name in names:
        if name in row:
            yield name
        elif name in spelled:
            yield spelled[name]


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    return _CAMEL.sub("_", name.strip()).lower().replace(" ", "_").replace("-", "_")


def answers(value: Any) -> tuple[str, ...]:
    """Gold answers however they were stored, each once: text, lists in lists, SQuAD's, TriviaQA's,
    NQ's and Search-R1's objects, or a list or an object that was printed. Nothing, `NaN` and blank
    texts are none.

    Example:
        >>> answers("['late 1967' '1967']"), answers([["a"], "b"]), answers("x<|answer_split|>y")
        (('late 1967', '1967'), ('a', 'b'), ('x', 'y'))
        >>> answers({"text": ["Veldt"], "answer_start": [515]}), answers(True), answers(float("nan"))
        (('Veldt',), ('yes',), ())
    """
    return tuple(dict.fromkeys(_answers(value)))


def _answers(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        messages: Any = value.get("messages")
        yield from _of_chat(messages) if _is_chat(messages) else _of_object(value)
    elif _is_chat(value):
        yield from _of_chat(value)
    elif isinstance(value, list | tuple):
        for entry in value:  # a text in a list is an answer, also one like "[0, 1]"
            yield from _split(entry) if isinstance(entry, str) else _answers(entry)
    elif isinstance(value, bool):  # StrategyQA's
        yield "yes" if value else "no"
    elif isinstance(value, str):
        yield from _of_text(value)
    elif hasattr(value, "tolist"):  # NumPy's, as parquet files are read
        yield from _answers(value.tolist())
    elif value is not None and not (isinstance(value, float) and math.isnan(value)):
        yield str(value)


def _is_chat(value: Any) -> bool:
    """Whether this is a list of messages."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(entry, Mapping) and "role" in entry for entry in value)


def _of_chat(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The last reply of a conversation that should have been."""
    replies = [message for message in messages if message["role"] not in _ASKING]
    if replies:
        yield from _answers(replies[-1].get("content"))


def _of_object(value: Mapping[str, Any]) -> Iterator[str]:
    named = any(value.get(name) is not None for name in _ANSWER_FIELDS)
    for name in _ANSWER_FIELDS if named else _OUTPUT_FIELDS:
        yield from _answers(value.get(name))
    if value.get(_YES_NO) in ("YES", "NO", 0, 1):  # -1 and "NONE" say that it is no such question
        yield "yes" if value[_YES_NO] in ("YES", 1) else "no"


def _of_text(text: str) -> Iterator[str]:
    stripped = text.strip()
    if stripped[:1] in ("[", "{"):
        value = _decoded(stripped)
        if value is None and _PRINTED_LIST.fullmatch(stripped):
            literals = _LITERAL.findall(stripped)
            yield from filter(str.strip, map(_unquoted, literals))
            return
        if value is None:
            value = _printed(stripped)
        if value is not None:
            yield from _answers(value)
            return
    yield from _split(text)


def _split(text: str) -> Iterator[str]:
    for part in text.split(ANSWER_SPLIT):
        if part.strip():
            yield part


def _decoded(text: str) -> Any:
    """The list or object in a text; `None` where it holds none."""
    try:
        value = loose_json.decode(text)
    except DataError:
        return None
    return value if isinstance(value, list | dict) else None


def _printed(text: str) -> dict[str, Any] | list[Any] | None:
    """The dictionary or list with texts that Python printed, as a table of verl's rows holds it
    when saved as CSV; NumPy's arrays in it become lists. `None` for anything else.
    """
    has_texts = "'" in text or '"' in text
    if len(text) > _LONGEST_PRINTED or not has_texts or not _APART.fullmatch(text):
        return None
    try:
        value = _value_of(ast.parse(text, mode="eval").body)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _value_of(printed: ast.expr) -> Any:
    """The value that an expression is the print of. Raises `ValueError` for any other expression,
    such as an array that was shortened.
    """
    match printed:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id="nan"):
            return None
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=entries) | ast.Tuple(elts=entries):
            return [_value_of(entry) for entry in entries]
        case ast.Dict(keys=names, values=values):
            keys = [_value_of(name) for name in names if name is not None]
            return dict(zip(keys, map(_value_of, values), strict=True))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[value]):
            if name in _PRINTED_CALLS:
                return _value_of(value)
    raise ValueError("this is no print of a value")


def _unquoted(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):  # an escape that Python does not know, or a line break
        return literal[1:-1]


def _last_of_user(row: Mapping[str, Any]) -> Field | None:
    for name in PROMPTS:
        messages = row.get(name)
        if not isinstance(messages, list | tuple):
            continue
        for message in reversed(messages):
            if isinstance(message, Mapping) and message.get("role") == "user":
                text = message.get("content")
                held = asked(text) if isinstance(text, str) else ""
                return Field(held, name) if held else None
    return None


def asked(prompt: str) -> str:
    """What a prompt asks: what follows its last `Question:`, since recipes put instructions and
    examples before it; else all of it.

    Example:
        >>> asked("Answer in a word. Question: where is it? ")
        'where is it?'
    """
    before, mark, text = prompt.rpartition("Question:")
    is_word = not before[-1:].isalnum()
    return text.strip() if mark and is_word and text.strip() else prompt.strip()


def _with_aliases(held: tuple[str, ...], row: Mapping[str, Any]) -> tuple[str, ...]:
    more = first(row, ALIASES)
    return answers([*held, more.value if more else None])


def _named(row: Mapping[str, Any], column: str) -> Any:
    """What a column holds that was named; `a.b` is the field `b` of the object in `a`."""
    value: Any = row
    for name in (column,) if column in row else column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise DataError(
                f"no column {column!r}; it has: {', '.join(map(str, row)) or 'nothing'}"
            )
        value = value[name]
    return value


def _objects_in(
    row: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects in columns of these names, each with what its columns' names begin with."""
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value.startswith("{"):  # a table's cell
            value = _decoded(value) or _printed(value)
        if isinstance(value, Mapping):
            yield f"{name}.", value
