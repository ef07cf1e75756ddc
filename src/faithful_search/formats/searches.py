"""Searches that an API made itself and reports beside its message, as messages of a chat."""

from collections.abc import Mapping, Sequence
from typing import Any

from .. import loose_json
from ..citations import is_address, page_of, pages_in
from ..errors import DataError
from .base import Messages, mapping, mappings, text
from .field_names import unread

# Where gateways and frameworks keep what an API sent beside its message
_BESIDE = (
    *("additional_kwargs", "response_metadata", "metadata", "provider_specific_fields"),
    "search_info",  # DashScope's
)
# The same of the AI SDK's, in which each provider may have an object of its own
_OF_PROVIDERS = ("provider_metadata", "providerMetadata", "experimental_providerMetadata")

_SOURCES = (
    *("sources", "source_documents", "source_nodes", "retriever_resources", "documents"),
    "web_search",  # Zhipu's
)
_TEXTS = ("content", "text", "page_content", "snippet")
_TITLES = ("title", "name", "document_name", "filename")
_URLS = ("url", "uri", "link", "source")
# Fields of a tool that Groq's server ran in which nothing is left unread: `output` is read, or else
# says once more what stands in the pages
_EXECUTED_FIELDS = frozenset(("name", "type", "index", "id", "arguments", "output"))
# What Azure tells of the documents that it searched; a message may have no more than these
_AZURE_FIELDS = frozenset(("citations", "intent", "all_retrieved_documents"))


def search(
    name: str,
    arguments: Mapping[str, Any],
    passages: Sequence[Mapping[str, Any]],
    identity: str = "search",
) -> Messages:
    """The two messages of a search: a call of the tool `name`, and the passages it returned."""
    call = {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": identity, "content": list(passages)},
    ]


class ReturnedPages:
    """The pages that tools returned, by their addresses in the texts that came back."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._pages: set[str] = set()
        # A text is searched for addresses when one is first asked for
        self._unsearched_texts: list[str] = []

    def add(self, text: str) -> None:
        """Add the text that a tool returned."""
        self._texts.append(text)
        self._unsearched_texts.append(text)

    def has_all(self, passages: Sequence[Mapping[str, str]]) -> bool:
        """Whether each passage was returned: its page or, where it has no address, its text. One
        with neither was not.
        """
        return all(self._has(passage["url"], passage["content"]) for passage in passages)

    def _has(self, address: str, content: str) -> bool:
        if address:
            return self._has_page(address)
        return bool(content) and any(content in text for text in self._texts)

    def _has_page(self, address: str) -> bool:
        while self._unsearched_texts:
            self._pages |= pages_in(self._unsearched_texts.pop())
        return page_of(address) in self._pages


def searched_beside(
    message: Mapping[str, Any], query: str, number: int, returned: "ReturnedPages | None" = None
) -> Messages:
    """The searches that an API made for a message, as calls and their results.

    Empty where nothing beside the message reports one. A search whose pages were all returned
    before is left out: then there was no further search, and the API lists them once more. Calls
    that Groq reports, and searches that Azure reports with a query, were made in any case.

    Args:
        query: the query of the search where the API does not report it.
        number: the message's number, for the id of the call.
        returned: what tools returned before.
    """
    calls_of_groq = _executed_calls(message, number)
    if calls_of_groq:
        return calls_of_groq
    identity = f"search {number}"
    for fields in places_beside(message):
        azure_report = _azure_context(fields)
        if azure_report:
            return _azure_search(azure_report, query, identity, returned)
        metadata = grounding_metadata(fields)
        queries = metadata.get("webSearchQueries") or metadata.get("web_search_queries")
        passages = _results(fields) or _grounding(metadata)
        passages = passages or _cited_documents(fields) or _sources(fields)
        # What Gemini opened and cites stands among its passages, too
        opened_pages = _without_pages_of(passages, _opened_pages(fields))
        if not (passages or queries or opened_pages):
            continue
        messages: Messages = []
        if opened_pages and not (returned and returned.has_all(opened_pages)):
            messages += search("url_context", {}, opened_pages, f"pages {number}")
        if passages and returned and returned.has_all(passages):
            return messages
        if metadata and (passages or queries):
            messages += search("google_search", {"queries": queries or []}, passages, identity)
        elif passages:
            messages += search("web_search", {"query": query}, passages, identity)
        return messages
    return []


def places_beside(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The message, and the objects in it where gateways and frameworks keep what an API sent beside
    it.
    """
    places = [message, *(mapping(message, name) for name in _BESIDE)]
    for name in _OF_PROVIDERS:
        providers = mapping(message, name)
        places += [providers, *(mapping(providers, provider) for provider in providers)]
    return places


def grounding_metadata(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """What Gemini says its answer is grounded on, in either spelling; empty for nothing."""
    return mapping(fields, "groundingMetadata") or mapping(fields, "grounding_metadata")


def reported_search(message: Mapping[str, Any], query: str, number: int) -> Messages:
    """The search that a tool's message reports by itself, with its queries: older deployments of
    Azure's send one before the reply. Empty for any other message.

    Args:
        query: the query of the search where the message reports none.
        number: the message's number, for the id of the call.
    """
    if message.get("tool_call_id") or message.get("name"):
        return []
    return _azure_search(_azure_report(message), query, f"search {number}")


def _executed_calls(message: Mapping[str, Any], number: int) -> Messages:
    """Groq's `executed_tools`: calls that the server ran, each with its own results. One that names
    no tool is left out.
    """
    messages: Messages = []
    for place, tool in enumerate(mappings(message, "executed_tools")):
        name = _executed_name(tool)
        if name:
            arguments = tool.get("arguments") or {}
            identity = f"search {number}.{place}"
            messages += search(name, arguments, _executed_results(tool), identity)
    return messages


def _executed_name(tool: Mapping[str, Any]) -> str:
    return text(tool.get("name")) or text(tool.get("type")) or ""


def _executed_results(tool: Mapping[str, Any]) -> list[dict[str, str]]:
    """What a tool that Groq's server ran returned: pages, or else what it printed. Where there are
    pages, `output` says them once more.
    """
    pages = mappings(mapping(tool, "search_results"), "results")
    pages += mappings(tool, "browser_results")
    if pages:
        return [passage(page, page.get("content")) for page in pages]
    printed = str(tool.get("output") or "")
    for result in mappings(tool, "code_results"):
        value = text(result.get("text"))
        if value and value not in printed:
            printed = f"{printed}\n{value}" if printed else value
    return [{"type": "text", "text": printed}]


def all_executed_are_read(message: Mapping[str, Any]) -> bool:
    """Whether everything in Groq's `executed_tools` is read; true of a message without any."""
    tools = message.get("executed_tools") or []
    for tool in tools if isinstance(tools, list | tuple) else [tools]:
        if not isinstance(tool, Mapping) or not _executed_name(tool):
            return False
        texts: list[str] = []
        for result in _executed_results(tool):
            texts += result.values()
        fields = {name: value for name, value in tool.items() if name not in _EXECUTED_FIELDS}
        # Any field may hold a result, whatever its name
        if unread(fields, texts, fields_read=(), nothing_read=True):
            return False
    return True


def _azure_context(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """What Azure OpenAI says in a message's `context` that it retrieved from its user's own data;
    empty for nothing. Older deployments have messages there, one of which is a tool's with the same
    as JSON.
    """
    context = mapping(fields, "context")
    for report in (context, *map(_azure_report, mappings(context, "messages"))):
        if not _AZURE_FIELDS.isdisjoint(report):
            return report
    return {}


def _azure_report(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """What Azure OpenAI says that it retrieved, where a message's content is that and nothing
    else.
    """
    content = message.get("content")
    if isinstance(content, str) and '"citations"' in content:
        try:
            content = loose_json.decode(content)
        except DataError:
            return {}
    report = mapping(content)
    is_whole = {"citations", "intent"} <= report.keys() <= _AZURE_FIELDS
    return report if is_whole else {}


def _azure_search(
    report: Mapping[str, Any],
    query: str,
    identity: str,
    returned: "ReturnedPages | None" = None,
) -> Messages:
    """The search that Azure OpenAI reports; empty where it made none. An answer cites the N-th
    document as `[docN]`.
    """
    documents = mappings(report, "citations")
    if not documents:
        # Those with a reason were left out before the model read any
        retrieved = mappings(report, "all_retrieved_documents")
        documents = [document for document in retrieved if not document.get("filter_reason")]
    passages: list[dict[str, str]] = []
    for place, document in enumerate(documents, start=1):
        filename = text(document.get("filepath")) or ""
        fields = {
            "id": str(place),
            "title": text(document.get("title")) or filename,
            "url": text(document.get("url")) or filename,
        }
        passages.append(passage(fields, document.get("content")))
    queries = _azure_queries(report.get("intent"))
    if queries:
        return search("search", {"queries": queries}, passages, identity)
    if not passages or (returned and returned.has_all(passages)):
        return []
    return search("search", {"queries": [query]}, passages, identity)


def _azure_queries(intent: Any) -> list[str]:
    """The queries that Azure OpenAI made of the question: a text, or the JSON of a list of them."""
    written = text(intent)
    if written is None:
        return []
    try:
        decoded = loose_json.decode(written)
    except DataError:
        return [written]
    if not isinstance(decoded, list):
        return [written]
    return [query for query in decoded if text(query)]


def _results(fields: Mapping[str, Any]) -> list[dict[str, str]]:
    """Perplexity's `search_results` and Anthropic's `web_search_results`; without either, the
    addresses in Perplexity's `citations`.
    """
    results = mappings(fields, "search_results")
    for block in mappings(fields, "web_search_results"):  # as LiteLLM keeps Anthropic's
        results += mappings(block, "content") or [block]
    citations = fields.get("citations")
    if not results and isinstance(citations, list):
        for address in citations:
            if isinstance(address, str) and is_address(address):
                results.append({"url": address})
    return [passage(result, result.get("snippet") or result.get("text")) for result in results]


def _sources(fields: Mapping[str, Any]) -> list[dict[str, str]]:
    """The passages that a framework retrieved for a message, and keeps beside it."""
    # Agno keeps them in an object. References that are a list themselves may be what the agent
    # wrote, and are not taken.
    places = {**fields, "references": mapping(fields, "references").get("references")}
    for name in (*_SOURCES, "references"):
        passages = [_source(source) for source in mappings(places, name, pure=True)]
        if passages and all(passage["url"] or passage["content"] for passage in passages):
            return passages
    return []


def _source(source: Mapping[str, Any]) -> dict[str, str]:
    """A retrieved passage; its title, address and text may stand one level down."""
    inner = mapping(source, "source") or mapping(source, "node") or mapping(source, "metadata")
    fields = dict(inner)
    for name, value in source.items():
        if value:  # an empty field must not hide the inner one
            fields[name] = value
    content = ""
    document = fields.get("document")
    if isinstance(document, list):
        content = "\n".join(piece for piece in document if isinstance(piece, str))
    result = {
        "id": source.get("id") or source.get("refer"),
        "title": _first_text(fields, _TITLES),
        "url": _first_text(fields, _URLS),
    }
    return passage(result, content or _first_text(fields, _TEXTS))


def _first_text(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of these fields that is a text; empty where none is."""
    for name in names:
        value = text(fields.get(name))
        if value:
            return value
    return ""


def _grounding(metadata: Mapping[str, Any]) -> list[dict[str, str]]:
    """The pages that Gemini's answer is grounded on."""
    chunks = mappings(metadata, "groundingChunks") or mappings(metadata, "grounding_chunks")
    passages = []
    for chunk in chunks:
        source = mapping(chunk, "web") or mapping(chunk, "retrievedContext")
        source = source or mapping(chunk, "retrieved_context") or mapping(chunk, "maps")
        passages.append(passage(source, source.get("text")))
    return passages


def _opened_pages(fields: Mapping[str, Any]) -> list[dict[str, str]]:
    """The pages that Gemini's server opened (`urlContextMetadata`)."""
    metadata = mapping(fields, "urlContextMetadata") or mapping(fields, "url_context_metadata")
    pages = mappings(metadata, "urlMetadata") or mappings(metadata, "url_metadata")
    urls = [page.get("retrievedUrl") or page.get("retrieved_url") for page in pages]
    return [passage({"url": url}) for url in urls if url]


def _without_pages_of(
    passages: Sequence[Mapping[str, str]], opened_pages: Sequence[dict[str, str]]
) -> list[dict[str, str]]:
    """The opened pages that no passage is from."""
    pages = {page_of(passage["url"]) for passage in passages if passage["url"]}
    return [page for page in opened_pages if page_of(page["url"]) not in pages]


def _cited_documents(fields: Mapping[str, Any]) -> list[dict[str, str]]:
    """The documents in Cohere's citations and the pages in OpenRouter's annotations, each once."""
    documents: dict[str, dict[str, str]] = {}
    for annotation in mappings(fields, "annotations"):
        page = mapping(annotation, "url_citation")
        if text(page.get("content")):
            documents.setdefault(str(page.get("url")), passage(page, page["content"]))
    for citation in mappings(fields, "citations"):
        for source in mappings(citation, "sources"):
            document = mapping(source, "document")
            if not document:
                continue
            identity = source.get("id") or document.get("id") or document
            documents[str(identity)] = passage(document, document.get("text"))
    return list(documents.values())


def passage(source: Mapping[str, Any], content: Any = None) -> dict[str, str]:
    """A source as a part of a tool's result. Title, address or content are empty where it has
    none: many APIs send addresses alone.
    """
    part = {
        "type": "search_result",
        "title": str(source.get("title") or ""),
        "url": str(source.get("url") or source.get("uri") or ""),
        "content": str(content or ""),
    }
    if isinstance(source.get("id"), str | int):
        return {"id": str(source["id"]), **part}
    return part
