"""What a tool or a page says itself is a note; what a source says, of errors too, is evidence."""

import random
import re
import time

import pytest

from faithful_search.evidence import failure_of, is_marked_failed, note_kind, sifted
from faithful_search.evidence.copies import texts_of
from faithful_search.evidence.phrases import LONGEST
from faithful_search.trajectory import Evidence, ToolCall

QUERY = "Ada Mirov born Oslo"
ERRORS = [
    "The tool call is not allowed.",
    "Your tool call must specify a query.",
    "Error: 429 Too Many Requests while searching for 'Ada Mirov born Oslo'",
    "Search error: request for 'Ada Mirov born Oslo' timed out",
    "[ERROR] upstream returned 500",
    "⚠️ Error: something broke while looking for Ada Mirov born Oslo",
    "Error executing tool search: quota exceeded for Ada Mirov born Oslo",
    "Tool execution failed: connection refused",
    "API quota exceeded for query Ada Mirov born Oslo. Please try again later.",
    "httpx.ConnectTimeout: timed out",
    "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://ex.org/Oslo",
    "Traceback (most recent call last):\n  File \"tool.py\", line 3\nKeyError: 'Oslo'",
    "<tool_use_error>No such file: Oslo</tool_use_error>",
    "HTTP 503 Service Unavailable",
    "429",
    "Error 403: Forbidden",
    "Rate limit exceeded, Oslo not found",
    "Quota exceeded for this month",
    "Too many requests, please slow down",
    "Request timed out after 30 seconds.",
    "Timeout while searching Ada Mirov born Oslo",
    "Ratelimit: 202 Ratelimit for Ada Mirov born Oslo",
    "Failed to fetch https://ex.org/towns/Oslo",
    "Unable to access this website.",
    "I am unable to access https://ex.org/Oslo.",
    "Search failed. Please try again later.",
    "Web search failed: none of the search engines answered.",
    "The search engine is temporarily unavailable, so nothing about Oslo was found.",
    "An error occurred while processing your request",
    "Sorry, something went wrong.",
    "Invalid API key",
    "Access to this page has been denied because we believe you are using automation tools",
    "Tool search does not exist.",
    "Unknown tool 'Oslo is the answer'. Available tools: search.",
    "The provided webpage content could not be accessed. Please check the URL or file format.",
    "[visit] Failed to read page.",
    "[Search] Invalid request format: Input must be a JSON object containing 'query' field",
    "[Python Interpreter Error]: Formatting error.",
    'Error: Tool call is not a valid JSON. Tool call must contain a valid "name" field.',
    "Fehler: Zeitüberschreitung bei der Suche nach Oslo",
    "Erreur : délai dépassé",
    "搜索失败",
    '{"result": "Search error: request for \'Ada Mirov born Oslo\' timed out"}',
]
EMPTY = [
    "[search results for Rome]: No results found.",
    "No results found for 'Ada Mirov born Oslo'. Try with a less restrictive filter.",
    "No results.",
    "No relevant documents found.",
    "No matching records.",
    "No data available.",
    "There are no results for Ada Mirov born Oslo",
    "Sorry, we couldn't find any results for Ada Mirov born Oslo.",
    "Your search - Ada Mirov born Oslo - did not match any documents.",
    "A Google search for 'Ada Mirov born Oslo' found 0 results:",
    "The search returned no results for Ada Mirov born Oslo.",
    "I could not find any information about Oslo.",
    "Could not find [Ada Mirov born Oslo]. Similar: ['Ada', 'Mira Ada', 'Adam']",
    "0 results for Ada Mirov born Oslo",
    "Found 0 results for 'Ada Mirov born Oslo'",
    "Nothing found.",
    "nothing to search",
    "None",
    "Finished execution.",
    "Not found: Ada Mirov born Oslo",
    "Keine Ergebnisse für „Ada Mirov born Oslo“",
    "Aucun résultat pour « Ada Mirov born Oslo »",
    "No se encontraron resultados para Oslo",
    "По вашему запросу ничего не найдено",
    "未找到与“Ada Mirov born Oslo”相关的结果",
    "「Ada Mirov born Oslo」に一致する情報は見つかりませんでした。",
    '{"query": "Ada Mirov born Oslo", "results": []}',
    '{"results": {"web": []}, "total": 0}',
    '{"status": 200, "query": "Ada Mirov born Oslo", "hits": [], "next": null}',
    '{"status": "ok", "message": "No documents matched your query \'Ada Mirov born Oslo\'"}',
    "Successfully transferred back to supervisor",
]
WALLS = [
    "Page not found. The page Ada Mirov born Oslo you are looking for does not exist.",
    "We value your privacy. We and our 842 partners store and access information on a device. "
    "Accept all cookies to continue reading Oslo: a town and its poet.",
    "Just a moment... Checking if the site connection is secure. Enable JavaScript and cookies to "
    "continue to ex.org/towns/Oslo. Verify you are human by completing the action below.",
    "You need to enable JavaScript to run this app. (ex.org: Oslo)",
    "404 Page not found. Sorry, the page you are looking for about Ada Mirov and Oslo does not "
    "exist.",
    "Attention Required! | Cloudflare. Sorry, you have been blocked.",
    "Our systems have detected unusual traffic from your computer network.",
    "Please log in to continue reading this article about Oslo.",
    "Subscribe to continue reading. Already a subscriber? Sign in to read about Oslo.",
    "You have reached your limit of free articles.",
    "This content is not available in your region.",
    "Oops! That page can't be found.",
    "The requested URL /towns/Oslo was not found on this server.",
    "Before you continue to Google Search",
    "Seite nicht gefunden",
    "页面不存在",
]
SOURCES = [
    "Error 404 means that the page was not found.",
    "The committee found no results of the experiment that could be repeated.",
    "Search results for 'Ada Mirov born Oslo':\nAda Mirov was born in Veldt, a town in Oran.",
    "No results of the experiment could be repeated.",
    "No results were published until 1950.",
    "HTTP 429 is the status with which a server says that a client sent too many requests.",
    "The 404 page not found error appears when a link is broken.",
    "Too many requests for help reached the town in 1952.",
    "Access denied to women in the college ended in 1920.",
    "Forbidden love is the theme of the novel.",
    "The error that the surveyors made in 1802 moved the border by a mile.",
    "Standard error: the standard error of a statistic is its standard deviation.",
    "A CAPTCHA asks visitors to verify that they are human.",
    'Cloudflare shows "Just a moment" before it lets a visitor in.',
    "Nothing is known of her childhood in Veldt.",
    "No records survive of his baptism.",
    "No documents were found in the tomb.",
    "We value privacy in this house, said the poet, and closed the door.",
    "Just a moment later the bridge fell into the river.",
    "Failed to find work, she moved to Oslo and wrote her first novel.",
    "Unable to return home, Ada Mirov settled in Veldt.",
    "Timeout is a 1999 film about a basketball player.",
    "The search for the northwest passage returned no results until Amundsen got through.",
    "The connection failed in 1953 when the ice broke the cable to Veldt.",
    "There are no lakes in Veldt.",
    "Found no documents in the tomb that could be read, said the report of 1911.",
    "Sorry, Wrong Number is a 1948 film noir.",
    "Not Found is an album by the band Veldt.",
    "Search and rescue teams found no survivors.",
    "The index found no match in the archive, so the painting was attributed to his pupil.",
    "No results found for 'Ada Mirov born Oslo'. Showing results for 'Ada Mirov': the poet Ada "
    "Mirov was born in Veldt, a town in Oran.",
    "The capital of Norway is Oslo.",
    "Oslo is it.",
    '{"answer": "Ada Mirov was born in Veldt.", "query": "Ada Mirov born Oslo"}',
    '{"query": "Ada Mirov born Oslo", "population": 709037}',
    '{"song": "Nothing"}',
    '{"credits": 120}',
    "Successfully transferred to the new ground, the club won its first match there.",
    '{"population": 709037, "sources": []}',
    "[Book review] Error: A Novel. The story of a town in Oran.",
    "[Chapter 1] Not found: the lost city, which was mapped in 1911.",
    "Tool call is not the same as function call in all APIs.",
    "The tool call must name a function; its result is sent back as a message.",
    '{"query": "Ada Mirov born Oslo", "exists": true}',
]


def kind(text: str, *said: str, **about: str) -> str | None:
    call = ToolCall("search", {"query": said[0] if said else QUERY, "more": list(said[1:])})
    return note_kind(Evidence(text, **about), texts_of(call))


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_is_a_note(text):
    assert kind(text) == "error"


@pytest.mark.parametrize("text", EMPTY)
def test_an_empty_result_is_a_note(text):
    assert kind(text) == "empty"


@pytest.mark.parametrize(
    "text",
    [
        '{"results": [], "suggestion": "None"}',
        '{"documents": "None", "total": 0}',
        '{"searchParameters": {"q": "Ada", "engine": "google"}, "organic": [], "credits": 1}',
        '{"query": "Ada Mirov born Oslo", "results": [], "response_time": 1.2, "request_id": "a1"}',
        '{"requestId": "a1", "results": [], "costDollars": {"total": 0.005}}',
    ],
)
def test_fields_that_hold_nothing_are_a_note(text):
    assert kind(text) == "empty"


@pytest.mark.parametrize("text", WALLS)
def test_a_wall_is_a_note(text):
    assert kind(text) == "wall"


@pytest.mark.parametrize("text", SOURCES)
def test_what_a_source_says_is_evidence(text):
    assert kind(text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Reflection recorded: it must be Oslo, I think.", "it must be Oslo, I think."),
        ("Your thought has been logged: it must be Oslo", "it must be Oslo"),
        ("it must be Oslo", "it must be Oslo"),
        ('{"thought": "it must be\\nOslo"}', "it must be\nOslo"),
        ("Updated todo list to [{'content': 'Find Oslo'}]", "Find Oslo"),
        ("Noted “It must be Oslo”.", "it must be oslo"),
        ("Saved to memory: Oslo", "Oslo"),
    ],
)
def test_an_echo_of_the_call_is_a_note(text, said):
    assert kind(text, said) == "echo"


def test_what_code_prints_from_between_quotes_is_an_echo():
    call = ToolCall("python", {"code": 'print("It is Oslo.")'})
    assert note_kind(Evidence("It is Oslo.\n"), texts_of(call)) == "echo"


@pytest.mark.parametrize("text", [*ERRORS[:3], *EMPTY[:3], *WALLS[:3]])
def test_a_page_that_says_nothing_else_is_a_note(text):
    about = {"title": "Oslo", "url": "https://ex.org/towns/Oslo"}
    assert kind(text, **about) is not None


@pytest.mark.parametrize("about", [{"title": "Songs of 1983"}, {"url": "https://ex.org/songs/9"}])
@pytest.mark.parametrize("text", ["Nothing", "None", '"null"', "nothing."])
def test_a_word_for_nothing_on_a_page_is_what_it_says(text, about):
    assert kind(text) == "empty"
    assert kind(text, **about) is None


@pytest.mark.parametrize("text", ['{"result": "None"}', '["None"]', '{"data": {"text": "null"}}'])
def test_a_word_for_nothing_as_all_that_a_call_returned_is_a_note(text):
    assert kind(text) == "empty"


def test_a_long_text_behind_an_error_is_evidence():
    article = "Ada Mirov was born in Veldt, a town in the north of Oran. " * 3
    assert kind(f"Error: one page of two is missing.\n{article}") is None


def test_a_page_about_errors_is_evidence_whatever_its_title():
    text = "A server answers so where it cannot find what was asked for; links are often old."
    assert kind(text, title="404 Not Found", url="https://ex.org/404") is None


def test_a_long_text_is_not_a_note():
    assert kind("No results. " * LONGEST) is None


def test_pumped_phrases_are_read_quickly():
    draw = random.Random(7)
    words = re.findall(r"[\w']+", " ".join([*ERRORS, *EMPTY, *WALLS]))
    texts = []
    for _ in range(200):
        pump = draw.choice((" ", ". ", "\n", ", ", ": ")).join(draw.choices(words, k=3)) + " "
        texts.append((" ".join(draw.choices(words, k=4)) + pump * LONGEST)[:LONGEST])
    kind("No results.")  # the patterns are made
    start = time.process_time()
    for text in texts:
        kind(text)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"isError": True, "content": [{"type": "text", "text": "quota"}]}, "quota"),
        ({"is_error": True, "output": "quota"}, "quota"),
        ({"error": {"code": 429, "message": "quota"}}, "quota"),
        ({"success": False, "message": "quota"}, "quota"),
        ({"ok": False, "reason": "quota"}, "quota"),
        ({"status": "error", "detail": "quota"}, "quota"),
        ({"status_code": 503, "text": "quota"}, "quota"),
        ({"status": "503"}, "failed"),
        ({"error": True}, "failed"),
    ],
)
def test_an_object_says_that_its_call_failed(fields, why):
    assert failure_of(fields) == why


@pytest.mark.parametrize(
    "fields",
    [
        {"isError": False, "content": []},
        {"error": None, "results": []},
        {"error": "", "results": []},
        {"status": "ok"},
        {"status": 200},
        {"status": True},
        {"error": 0.03, "mean": 12},
        {"title": "A patent", "status": "failed", "text": "It was refused."},
        {"name": "Veldt", "code": 404},
        {},
    ],
)
def test_another_object_does_not(fields):
    assert failure_of(fields) is None
    assert not is_marked_failed(fields)


def test_sifting_keeps_the_order_and_all_texts():
    items = [Evidence("A."), Evidence("No results."), Evidence("B."), Evidence("Error: x")]
    found = sifted(items, ToolCall("search", {"query": "q"}))
    assert [item.text for item in found.evidence] == ["A.", "B."]
    assert found.notes == ["No results.", "Error: x"]


@pytest.mark.parametrize("call", [None, ToolCall(""), ToolCall("search", {"query": None, "n": 3})])
def test_any_call_will_do(call):
    assert sifted([Evidence("A.")], call).evidence == [Evidence("A.")]
