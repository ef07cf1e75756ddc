"""Plain chat messages with tool calls, as OpenAI-compatible servers return them: no tags for
thought or answer.

An assistant's message with `tool_calls` is a turn, each call a step (the further ones with
`same_turn`); its `reasoning_content`, else its content, is the thought. Messages of role tool are
the responses, matched by `tool_call_id`. The content of a message without calls is the answer. As
text it is what chat templates make of that. A thought is optional: a missing one is not an issue.

Tools may return anything. JSON in which search services list what they found, under usual names, is
evidence item by item, and so are the linked results of smolagents' searches, and what MCP's results
hold. An object that says that the call failed, one with a `note`, or a list of nothing, is a note;
any other text is one piece of evidence.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from msgspec.structs import replace

from .. import loose_json
from ..errors import DataError
from ..evidence import REPORTING, failure_of, is_marked_failed
from ..formats.base import first, mapping, mappings
from ..formats.blocks import as_json, result as read_result
from ..formats.quotes import code_of
from ..trajectory import Evidence, Span
from .passages import headed, in_columns, label_of, read_json, read_snippets, text_of
from .tool_calls import BARE, MARKS, ToolCalls

_LISTS = (
    *("results", "result", "search_results", "documents", "docs", "items", "data", "passages"),
    "organic",
    *("organic_results", "webPages", "value", "web", "hits", "sources", "chunks", "output"),
    *("papers", "articles", "records", "matches", "entries", "search", "points"),
    *("retrievalResults", "pages"),
)
# Names of lists of results that may also be what one page says of itself
_ALSO_OF_PAGE = frozenset(("points", "pages"))
# What search services put before their results: an answer, or facts of the thing that is meant
_BOXES = ("answerBox", "answer_box", "knowledgeGraph", "knowledge_graph", "featured_snippet")
_TEXTS = (
    *("text", "content", "contents", "snippet", "description", "summary", "passage", "body"),
    "information",
    *("page_content", "raw_content", "extract", "markdown", "highlights", "snippets"),
    *("abstract", "answer", "excerpt", "excerpts", "extra_snippets"),
)
_TITLES = ("title", "name", "filename", "question")
_URLS = ("url", "link", "href", "uri", "source", "sourceURL", "source_url", "URL")
_SUMMARIES = ("answer", "summary")  # texts that services write of all their results
# Fields of a page that are never what stands on it
_ABOUT_PAGE = re.compile(
    r"date|time|(?:\A|_)age(?:_|\Z)|encrypted|html|token|(?:\A|_)id(?:_|\Z)|thumbnail|favicon|"
    r"\A(?:lang|language|locale|engine)\Z",
    re.IGNORECASE,
)
_TOLD = frozenset((*_TITLES, *_URLS, "type", "kind", "status", "object", "role", "format"))
# Numbers that say how a page was found, or which part of it
_OF_SEARCH = re.compile(
    r"(?:@?(?:search|relevance|similarity|result|doc|chunk|page|token)[_.])?"
    r"(?:score|rank|ranking|position|index|distance|similarity|relevance|count|page|chunk|number|"
    r"offset|length|size|total)",
    re.IGNORECASE,
)
# Lists beside a service's results that are no results: what was asked or said, and how it went
_OF_CALL = re.compile(
    r"messag|histor|conversation|prompt|quer|request|suggest|error|warning|usage|(?:\A|_)logs?\Z",
    re.IGNORECASE,
)
_FEWEST_WORDS = 4  # and one more has a field of another name that is a page's text
# Fields of a passage may stand one level down, as in retrievers' records.
_INNER = (
    *("metadata", "meta", "document", "_source", "node", "payload", "kwargs"),
    *("derivedStructData", "structData", "location", "webLocation", "s3Location"),
)
_MOST_INNER = 3  # levels down
_MOST_QUOTES = 50  # of a page that are looked for in it: more would take long
_OF_PAGE = frozenset(("type", "id", *_URLS))  # fields of a page that was found, not read
_NOTHING = frozenset(("", "null", "None", "{}", "[]", '""'))
_NOTING = REPORTING | {"note"}
_BESIDE_NOTE = _NOTING | {"query", "type", "id"}  # fields beside which a note is all that is said
# Fields that may hold the whole text of a response
_WRAPPING = frozenset(
    ("result", "results", "output", "response", "data", "content", "text", "observation")
)
# Fields that may stand beside that text and say nothing more
_BESIDE_WRAPPED = REPORTING | {"type", "annotations", "meta", "_meta"}
# Looked for at once: most objects have none of them, and asking for each takes longer.
_MAY_LIST = frozenset((*_LISTS, "query"))
_DEEPEST = 6  # lists in lists; a tool may return anything
# A line that only leads to a box, as Search-o1 and MiroThinker end.
_ANSWER_TAG = re.compile(r"<(?P<closing>/?)answer>", re.IGNORECASE)
_BOXED = re.compile(r"[^.!?\n\\\[\]]{0,80}\\boxed\{(?P<answer>[^{}\\\n]{1,300})\}[.$ ]{0,4}")
_LINKED = re.compile(r"^\[([^\n]*)\]\(([^\s()]*)\)\n", re.MULTILINE)


class OpenAI(ToolCalls):
    # The tools' schemas go to the server or the chat template, not into the text.
    system = "Answer the question. Use the tools to find evidence; once you know enough, reply with the answer alone."
    stop = ("</tool_call>",)
    grammar = BARE
    answer_opening = None
    needs_tools = False
    asks_for_thoughts = False
    parallel_calls = True
    may_open_in_prompt = True
    # Matches anything: a user's message is always a user's, since responses have their own role.
    controller_pattern = re.compile("")
    takes_any_words = True
    marks = MARKS | {"answer": -3.0, "tool_call": 1.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"<\|structured_calls\|>": 6.0,
        r"\\boxed[ {]": -1.5,
        r'<tool_response>\s{0,9}\[\s{0,9}\{"title"': 3.0,
        r"<tool_response>\s{0,9}(?:<|&lt;)(?:snippet|webpage)\b": 5.0,
        r'<tool_response>\s{0,9}\{"(?:results|documents|error|note)"': 2.0,
    }

    def find_answer(self, text: str, span: Span) -> Span | None:
        """The whole text, or what stands between answer tags in it (between the last ones), or in
        the box that is all it says.

        Tags that are shown as code, with words behind it, are words. Behind a tag that is not closed
        stands the answer.
        """
        tags = _answer_tags(text, span)
        openings = [tag for tag in tags if not tag["closing"]]
        closings = [tag.start() for tag in tags if tag["closing"]]
        if not openings:
            boxed = _BOXED.fullmatch(text, *span)
            return boxed.span("answer") if boxed else span
        first_opening = openings[0]
        if not closings or closings[-1] < first_opening.start():
            return openings[-1].end(), span[1]
        end = closings[-1]
        if len(closings) > 1 and first_opening.start() < closings[-2]:
            # An answer was closed before: the last one begins behind it
            for opening in openings:
                if closings[-2] <= opening.start() < end:
                    return opening.end(), end
        return first_opening.end(), end

    def write_answer(self, answer: str) -> str:
        return answer

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        if body.startswith("## Search Results"):
            results = headed(_LINKED.finditer(body), body)
            passages = [Evidence(text.strip(), head[1], url=head[2]) for head, text in results]
            return passages, "" if passages else body
        if body.lstrip()[:9].startswith(("<snippet", "<webpage")):
            passages, note = read_snippets(body)
            if passages:
                return passages, note
        if body.strip() in _NOTHING:
            return [], body
        value = read_json(body)
        if value is None:
            value = loose_json.printed(body)
        texts = _texts_wrapped(body if value is None else value)
        if texts:
            evidence, note = self._read_each(texts)
            return evidence, note or ("" if evidence else body)
        if isinstance(value, dict):
            return self._read_object(value, body)
        if not isinstance(value, list):
            return [Evidence(body)], ""
        notes = []
        results = []
        for result in value:
            result_note = _note(result)
            if result_note is None:
                results.append(result)
            else:
                notes.append(result_note)
        passages = _passages(results)
        if passages or notes or not results:
            return passages, "\n".join(notes) or ("" if passages else body)
        return [Evidence(body)], ""

    def _read_each(self, texts: Sequence[str]) -> tuple[list[Evidence], str]:
        """The evidence in all of these bodies, and their notes."""
        evidence: list[Evidence] = []
        notes: list[str] = []
        for text in texts:
            evidence_in_text, note = self.read_body(text)
            evidence += evidence_in_text
            notes.append(note)
        return evidence, "\n".join(filter(None, notes))

    def _read_object(self, fields: dict[str, Any], body: str) -> tuple[list[Evidence], str]:
        note = _note(fields)
        if note is not None:
            # Results may stand in a list beside the failure.
            beside = [] if _is_mcp(fields) else _passages(_listed(fields))
            return beside, note
        if _is_mcp(fields):
            passages = _passages(fields.get("structuredContent"), depth=1)
            if passages:
                return passages, ""
            returned = next(read_result({"content": fields["content"]})).value
            structured = mapping(fields, "structuredContent")
            is_structured = structured and not fields["content"]
            return self.read_body(as_json(structured) if is_structured else returned)
        passages = _passages(fields)
        if not passages and [] in (_listed(fields), in_columns(fields)):
            return [], body
        return passages or [Evidence(body)], ""

    def write_note(self, note: str) -> str:
        return as_json({"note": note})

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        entries = []
        for passage in evidence:
            fields = {"title": passage.title, "text": passage.text}
            if passage.url:
                fields["url"] = passage.url
            entries.append(fields)
        return as_json(entries)


def _answer_tags(text: str, span: Span) -> list[re.Match[str]]:
    """The tags of answers in a part of a text, without those in code behind which more is said."""
    tags = list(_ANSWER_TAG.finditer(text, *span))
    if not tags or text.find("`", *span) < 0:
        return tags
    words = text[slice(*span)]
    said_until = len(words.rstrip("`~ \n."))
    starts, ends = code_of(words, ())
    outside = []
    for tag in tags:
        at = tag.start() - span[0]
        place = bisect_right(starts, at) - 1
        in_code = place >= 0 and at < ends[place]
        if not in_code or ends[place] >= said_until:
            outside.append(tag)
    return outside


def _note(value: Any) -> str | None:
    """The note that an object is, or that its call failed; `None` for anything else."""
    if not isinstance(value, dict) or _NOTING.isdisjoint(value):
        return None
    failure = failure_of(value)
    if failure is not None and (is_marked_failed(value) or first(value, _TEXTS) is None):
        return failure
    if value.get("note") is None or not value.keys() <= _BESIDE_NOTE:
        return None
    return text_of(value["note"])


def _texts_wrapped(value: Any) -> list[str]:
    """The texts in a response that only wraps them: a JSON string, an object with one field of
    text, or parts of text, as MCP has them. None where the response holds anything else.
    """
    if isinstance(value, str):
        text = _quoted_json(value)
        return [] if text is None else [text]
    if isinstance(value, list):
        entries = [mapping(entry) for entry in value]
        if not all(entry.get("type") == "text" for entry in entries):
            return []
    else:
        entries = [mapping(value)]
    texts: list[str] = []
    for entry in entries:
        text = _text_wrapped(entry)
        if text is None:
            return []
        texts.append(text)
    return texts


def _quoted_json(text: str) -> str | None:
    """The decoded text, if this is a JSON string of further JSON. Any other may be words in
    quotation marks, with a backslash of their own.
    """
    text = text.strip()
    if not text.startswith('"') or "\\" not in text:
        return None
    with suppress(DataError):
        value = loose_json.decode(text, halves=True)
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
            return value
    return None


def _text_wrapped(fields: Mapping[str, Any]) -> str | None:
    """The text in the only meaningful field of an object; `None` if it has several, or is a note."""
    if _note(fields) is not None:
        return None
    filled = {name: value for name, value in fields.items() if value is not None}
    names = [name for name in filled if name not in _BESIDE_WRAPPED]
    if len(names) != 1 or names[0] not in _WRAPPING:
        return None
    text = filled[names[0]]
    return text if isinstance(text, str) else None


def _is_mcp(fields: Mapping[str, Any]) -> bool:
    """Whether this is a call's result in the form of MCP."""
    content = fields.get("content")
    if not isinstance(content, list):
        return False
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            return False
    return "isError" in fields or "structuredContent" in fields


def _listed(value: Mapping[str, Any]) -> Any:
    """The list (or object) under one of the usual names; `None`: there is none."""
    if _MAY_LIST.isdisjoint(value):
        return None
    for key in _LISTS:
        if key in _ALSO_OF_PAGE and not _lists_passages(value, key):
            continue
        if isinstance(value.get(key), (list, dict)):
            return value[key]
    if isinstance(value.get("query"), dict):  # Wikipedia's
        return _listed(value["query"])
    return None


def _lists_passages(value: Mapping[str, Any], name: str) -> bool:
    """Whether the field of this name holds objects, in an object that has no text of its own: a
    paper has its abstract beside the numbers of its pages.
    """
    if any(value.get(own) for own in _TEXTS if own not in _SUMMARIES):
        return False
    return isinstance(value.get(name), dict) or bool(mappings(value.get(name)))


def _boxes(value: Mapping[str, Any]) -> list[Evidence]:
    """The boxes beside a list of results, each a passage."""
    passages = []
    for name in _BOXES:
        box = value.get(name)
        if not isinstance(box, dict):
            continue
        text = first(box, _TEXTS)
        title = _first_filled(box, _TITLES)
        url = text_of(next((box[key] for key in _URLS if isinstance(box.get(key), str)), None))
        lines = [] if text is None else [text_of(text)]
        for facts in (box if text is None else {}, mapping(box, "attributes")):
            for key, fact in facts.items():
                if isinstance(fact, str) and key not in (*_TITLES, *_URLS):
                    lines.append(f"{key}: {fact}")
        if any(lines):
            passages.append(Evidence("\n".join(lines), title, url=url))
    return passages


def _passages(value: Any, depth: int = 0) -> list[Evidence]:
    """The passages in a value of JSON: texts in lists, and objects with a text, or with a title and
    an address. Lists may stand under the usual names.
    """
    if isinstance(value, str):
        return [Evidence(value)] if depth else []
    if depth > _DEEPEST:
        return []
    if isinstance(value, list):
        of_each = [_passages(result, depth + 1) for result in value]
        if not any(of_each):
            return []
        passages: list[Evidence] = []
        for result, inner in zip(value, of_each, strict=True):
            if inner:
                passages += inner
            elif result:  # among passages, anything else is one as a whole
                passages.append(Evidence(text_of(result)))
        return passages
    if not isinstance(value, dict):
        return []
    columns = in_columns(value)
    if columns is not None:
        return _passages(columns, depth + 1)
    results = _listed(value)
    if results is not None and not isinstance(value.get("text"), str):
        passages = _passages(results, depth + 1)
        beside = _beside(value, results, depth + 1)
        # A service may list its results twice
        further = [passage for passage in beside if passage not in passages]
        return [*_boxes(value), *passages, *further]
    fields = _with_inner(value)
    title, url = _first_filled(fields, _TITLES), _first_filled(fields, _URLS)
    text: str | None = "\n".join(_usual_texts(fields))
    if not text:
        text = _text_of_page(fields, value, is_named=bool(title or url))
    if text is None:
        return _by_id(value, depth) if depth else []
    return [Evidence(text, title, url=url, label=label_of(fields))]


def _by_id(value: Mapping[str, Any], depth: int) -> list[Evidence]:
    """The passages in an object that holds nothing but passages, by their ids. A number there may
    be large, and what is in brackets a year: it is no label. Nor is the name of a single passage
    without a digit, as `page`, which says what stands there.
    """
    is_several = len(value) > 1
    passages: list[Evidence] = []
    for name, entry in value.items():
        of_entry = _passages(entry, depth + 1) if isinstance(entry, dict) else []
        if len(of_entry) != 1:
            return []
        [passage] = of_entry
        is_id = is_several or any(map(str.isdigit, name))
        if is_id and not passage.label and not name.isdecimal():
            passage = replace(passage, label=name)
        passages.append(passage)
    return passages


def _with_inner(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A passage's fields, with those that stand some levels down; outer ones count first."""
    fields = value
    level = [value]
    for _ in range(_MOST_INNER):
        level = [outer[name] for outer in level for name in _INNER if _is_object(outer, name)]
        for inner in level:
            fields = {**inner, **fields}
    return fields


def _is_object(fields: Mapping[str, Any], name: str) -> bool:
    return isinstance(fields.get(name), dict)


def _beside(value: Mapping[str, Any], results: Any, depth: int) -> list[Evidence]:
    """What a service says beside the list of its results: further lists of objects with texts, and
    what it wrote of them all. They stand last, so that each result keeps its number.

    Texts in lists are what else may be asked, mostly, and an object alone is what was asked.
    """
    passages: list[Evidence] = []
    for name, further in value.items():
        if _OF_CALL.search(name):
            continue
        listed = _listed(further) if isinstance(further, dict) else further
        if isinstance(listed, list) and further is not results:
            objects = [entry for entry in listed if isinstance(entry, dict)]
            passages += [passage for passage in _passages(objects, depth) if passage.text]
    for name in _SUMMARIES:
        summary = value.get(name)
        if isinstance(summary, str) and summary.strip():
            passages.append(Evidence(summary))
    return passages


def _usual_texts(fields: Mapping[str, Any]) -> list[str]:
    """The texts in the usual fields of a passage, without those that another one holds. A service
    may send a description beside its snippets, or beside the whole page.
    """
    texts: list[str] = []
    for name in _TEXTS:
        value = fields.get(name)
        if not value or value is True:
            continue
        parts = value if isinstance(value, list) else [value]
        snippets = list(map(_snippet, parts))
        if len(snippets) <= _MOST_QUOTES:  # a service may quote a page beside it
            before = "\n".join(texts)
            snippets = [snippet for snippet in snippets if snippet not in before]
        text = "\n".join(snippets)
        if not any(text in earlier for earlier in texts):
            texts = [earlier for earlier in texts if earlier not in text]
            texts.append(text)
    return texts


def _text_of_page(
    fields: Mapping[str, Any], value: Mapping[str, Any], is_named: bool
) -> str | None:
    """The text of a passage whose usual fields hold none: the sentences in fields of other names,
    with what else is said of it, or nothing. `None`: it is no passage.

    `is_named`: it has a title or an address.
    """
    # A number or a switch, such as `{"answer": 0}`, is no text that is empty
    has_empty_text = isinstance(first(fields, _TEXTS), str | list | Mapping)
    url = _first_filled(fields, _URLS)
    content = {name: entry for name, entry in fields.items() if _is_of_content(name, entry)}
    texts = [entry for entry in content.values() if isinstance(entry, str)]
    if any(map(_is_sentence, texts)) and (url or has_empty_text):
        lines = []
        for name, entry in content.items():
            lines.append(entry if _is_sentence(entry) else f"{name}: {entry}")
        return "\n".join(lines)
    is_page = bool(url) and (bool(_first_filled(fields, _TITLES)) or value.keys() <= _OF_PAGE)
    if is_page or (has_empty_text and (is_named or not texts)):
        return ""
    return None


def _is_of_content(name: str, entry: Any) -> bool:
    """Whether a field of a page is a text or a number that may stand on it."""
    if name in _TOLD or _ABOUT_PAGE.search(name) or isinstance(entry, bool):
        return False
    if isinstance(entry, int | float):
        return _OF_SEARCH.fullmatch(name) is None
    return isinstance(entry, str) and bool(entry) and not entry.startswith(("http://", "https://"))


def _is_sentence(entry: Any) -> bool:
    """Whether this is a text of more than `_FEWEST_WORDS` words."""
    return isinstance(entry, str) and len(entry.split(maxsplit=_FEWEST_WORDS)) > _FEWEST_WORDS


def _first_filled(fields: Mapping[str, Any], names: Iterable[str]) -> str:
    """The text of the first of these fields that holds something."""
    for name in names:
        if fields.get(name):
            return text_of(fields[name])
    return ""


def _snippet(part: Any) -> str:
    """One of the texts of a result, which may be an object of its own."""
    text = first(part, _TEXTS) if isinstance(part, Mapping) else None
    return text_of(part if text is None else text)
