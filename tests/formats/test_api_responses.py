"""Answers of chat APIs as they came, alone or beside their request."""

import json

import pytest
from paths import SHARED

import faithful_search as fs
from faithful_search.reading.rows import READER
from faithful_search.trajectory import Trajectory

REAL = SHARED / "data" / "real" / "api"
ASKED = {"role": "user", "content": "Where was Ada born?"}
CALL = {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"q": "Ada"}'}}
SEARCHED = [
    ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "Ada was born in Veldt."},
]
COMPLETION = {
    "id": "c",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Veldt"}}],
}
ANTHROPIC = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "Veldt"}],
}
BEDROCK = {"output": {"message": {"role": "assistant", "content": [{"text": "Veldt"}]}}}
COHERE = {
    "id": "k",
    "message": {"role": "assistant", "content": [{"type": "text", "text": "Veldt"}]},
}
GEMINI = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Veldt"}]}}]}


def read(row: object) -> Trajectory:
    return READER.parse(json.dumps(row).encode())


@pytest.mark.parametrize("response", [COMPLETION, ANTHROPIC, BEDROCK, COHERE, GEMINI])
def test_an_answer_alone_is_read(response):
    assert read(response).answer == "Veldt"


@pytest.mark.parametrize("response", [COMPLETION, ANTHROPIC, BEDROCK, COHERE])
@pytest.mark.parametrize(
    "pair",
    [
        lambda response: {"request": {"messages": SEARCHED}, "response": response},
        lambda response: {"messages": SEARCHED, "response": response},
        lambda response: {"input": {"messages": SEARCHED}, "output": response},
        lambda response: {"body": {"messages": SEARCHED}, "response": {"body": response}},
    ],
)
def test_a_request_and_its_answer_are_one_chat(response, pair):
    trajectory = read(pair(response))
    assert trajectory.question == "Where was Ada born?"
    assert [step.call.name for step in trajectory.steps if step.call] == ["search"]
    assert [passage.text for passage in trajectory.evidence.values()] == ["Ada was born in Veldt."]
    assert trajectory.answer == "Veldt"


def chosen(**message: object) -> dict[str, object]:
    return {"choices": [{"message": {"role": "assistant", "content": "Veldt", **message}}]}


PAGE = {"title": "Ada", "url": "https://e.org", "content": "Ada was born in Veldt."}
QUERIES = ["Ada", "born in"]
AZURE = {
    "citations": [{**PAGE, "filepath": "ada.md", "chunk_id": "7"}],
    "intent": json.dumps(QUERIES),
}
AZURE_TOOL = {"role": "tool", "content": json.dumps(AZURE), "end_turn": False}
VELDT = {"role": "assistant", "content": "Veldt", "end_turn": True}
BY_AZURE = {
    "Azure": chosen(context=AZURE),
    "Azure, a tool's message in the context": chosen(context={"messages": [AZURE_TOOL]}),
    "Azure, several messages": {"choices": [{"index": 0, "messages": [AZURE_TOOL, VELDT]}]},
    "Azure, in a chat": {"messages": [ASKED, AZURE_TOOL, VELDT]},
    "Azure, as an object": {"messages": [ASKED, {**AZURE_TOOL, "content": AZURE}, VELDT]},
    "Azure, streamed": [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "context": AZURE}}]},
        {"choices": [{"index": 0, "delta": {"content": "Veldt"}}]},
    ],
    "Azure, all that was retrieved": chosen(
        context={
            "all_retrieved_documents": [
                {"content": "Bo.", "filter_reason": "score"},
                {**PAGE, "search_queries": ["Ada"]},
            ],
            "intent": AZURE["intent"],
        }
    ),
}  # fmt: skip
BY_SERVERS = {
    **BY_AZURE,
    "Groq": chosen(
        executed_tools=[
            {
                "type": "search",
                "arguments": '{"query": "Ada"}',
                "search_results": {"results": [PAGE]},
            }
        ]
    ),
    "Zhipu": {
        **chosen(),
        "web_search": [{"title": "Ada", "link": PAGE["url"], "content": PAGE["content"]}],
    },
    "DashScope": {
        "output": {
            **chosen(),
            "search_info": {"search_results": [{**PAGE, "snippet": PAGE["content"]}]},
        }
    },
}


@pytest.mark.parametrize("api", BY_SERVERS)
def test_what_a_server_searched_is_a_call_with_results(api):
    trajectory = read(BY_SERVERS[api])
    [passage] = trajectory.evidence.values()
    assert passage.url == PAGE["url"]
    assert passage.text == PAGE["content"]
    assert trajectory.answer == "Veldt"


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        (
            {"type": "browser_automation", "output": "Ada", "browser_results": [PAGE]},
            PAGE["content"],
        ),
        ({"type": "python", "output": "2", "code_results": [{"text": "2"}]}, "2"),
        ({"type": "python", "code_results": [{"text": "2"}, {"text": "3"}]}, "2\n3"),
    ],
)
def test_what_groqs_tools_return_is_evidence(tool, text):
    trajectory = read(chosen(executed_tools=[tool]))
    assert [passage.text for passage in trajectory.evidence.values()] == [text]
    assert trajectory.all_issues() == []


@pytest.mark.parametrize(
    "tools",
    [
        [{"look": "Ada"}],
        [{"type": "search", "pods": [{"text": PAGE["content"]}]}],
        [{"type": "search", "search_results": [PAGE]}],
        [PAGE["content"]],
        {"search": PAGE["content"]},
    ],
    ids=["no name", "unknown field", "no results", "a text", "no list"],
)
def test_what_is_not_read_of_groqs_tools_is_an_issue(tools):
    [issue, *_] = read(chosen(executed_tools=tools)).all_issues()
    assert issue.why == "content of kind executed_tools in the assistant's message"


def test_a_tool_of_groqs_without_a_name_is_no_call():
    trajectory = read(chosen(executed_tools=[{"look": "Ada"}]))
    assert [step.call for step in trajectory.steps] == [None]


@pytest.mark.parametrize("form", BY_AZURE)
def test_azures_searches_keep_their_queries(form):
    assert read(BY_AZURE[form]).steps[0].call.arguments == {"queries": QUERIES}


@pytest.mark.parametrize("form", BY_AZURE)
def test_what_azure_retrieved_leaves_no_issue(form):
    assert read(BY_AZURE[form]).all_issues() == []


@pytest.mark.parametrize(
    ("intent", "query"),
    [
        ("where Ada was born", "where Ada was born"),
        ("[]", ASKED["content"]),
        (None, ASKED["content"]),
    ],
)
def test_azures_queries_may_be_one_text_or_none(intent, query):
    reply = {**VELDT, "context": {**AZURE, "intent": intent}}
    assert read({"messages": [ASKED, reply]}).steps[0].call.arguments == {"queries": [query]}


def test_a_file_is_the_address_of_a_document_of_azures_without_another():
    document = {**AZURE["citations"][0], "title": None, "url": None}
    [passage] = read(chosen(context={**AZURE, "citations": [document]})).evidence.values()
    assert (passage.title, passage.url) == ("ada.md", "ada.md")


def test_azure_may_find_nothing():
    trajectory = read(chosen(context={**AZURE, "citations": []}))
    assert trajectory.steps[0].call.arguments == {"queries": QUERIES}
    assert trajectory.evidence == {}


def test_a_call_may_return_what_looks_like_azures():
    chat = [ASKED, SEARCHED[1], AZURE_TOOL, VELDT]
    assert [step.call.name for step in read({"messages": chat}).steps if step.call] == ["search"]


def test_pages_in_openrouters_annotations_were_returned():
    page = {"url": "https://ex.org/ada", "title": "Ada", "content": "Ada was born in Veldt."}
    sent = [{"type": "url_citation", "url_citation": page}] * 2
    [passage] = read({"messages": [ASKED, {**VELDT, "annotations": sent}]}).passages
    assert passage.text == page["content"]
    assert passage.url == page["url"]


def test_a_context_that_is_not_read_is_an_issue():
    trajectory = read(chosen(context={"pages": ["Ada was born in Veldt."]}))
    assert [issue.kind for issue in trajectory.all_issues()][:1] == ["content_unread"]


@pytest.mark.parametrize(
    "beside",
    [
        {"source_documents": [{"page_content": PAGE["content"]}]},
        {
            "citations": [
                {"sources": [{"document": {"text": PAGE["content"]}}]},
                {"sources": [{"document": {"text": "Another one."}}]},
            ]
        },
    ],
)
def test_documents_without_an_address_or_id_are_kept(beside):
    call = {"id": "1", "function": {"name": "lookup", "arguments": "{}"}}
    chat = [
        {"role": "user", "content": "Where was Ada born?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "Nothing there."},
        {"role": "assistant", "content": "Veldt", **beside},
    ]
    texts = [passage.text for passage in read({"messages": chat}).evidence.values()]
    assert PAGE["content"] in texts


def test_a_document_without_an_id_that_is_cited_twice_stands_once():
    citation = {"sources": [{"document": {"text": PAGE["content"]}}]}
    chat = [
        {"role": "user", "content": "Where was Ada born?"},
        {"role": "assistant", "content": "Veldt, in Veldt", "citations": [citation, citation]},
    ]
    assert len(read({"messages": chat}).passages) == 1


def test_groqs_searches_keep_their_queries():
    assert read(BY_SERVERS["Groq"]).steps[0].call.arguments == {"query": "Ada"}


def test_a_response_in_a_batch_is_read():
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text"}]}
    message["content"][0]["text"] = "Veldt"
    body = {"object": "response", "id": "resp_1", "output": [message]}
    trajectory = read({"custom_id": "q7", "response": {"status_code": 200, "body": body}})
    assert trajectory.answer == "Veldt"
    assert trajectory.id == "q7"


def test_a_line_of_a_batch_has_its_own_id():
    row = {"custom_id": "q7", "response": {"status_code": 200, "body": COMPLETION}}
    assert read(row).id == "q7"


@pytest.mark.parametrize("edited", [{}, {"content": "Veldt, it says"}], ids=["same", "same id"])
def test_messages_that_hold_the_answer_are_the_chat(edited):
    reply = {"role": "assistant", "content": "Veldt", "id": "a"}
    row = {"messages": [ASKED, reply | edited], "output": {"choices": [{"message": reply}]}}
    assert read(row).answer == edited.get("content", "Veldt")


@pytest.mark.parametrize("between", [[], SEARCHED[1:]], ids=["at once", "after a search"])
def test_an_answer_that_was_given_before_is_another(between):
    reply = {"role": "assistant", "content": "Veldt"}
    request = {"messages": [*SEARCHED, reply, *between]}
    trajectory = read({"request": request, "response": {"choices": [{"message": reply}]}})
    whole = read({"messages": [*request["messages"], reply]})
    assert trajectory.steps == whole.steps


def test_further_answers_are_counted():
    row = {**COMPLETION, "choices": COMPLETION["choices"] * 3}
    [issue] = [issue for issue in read(row).all_issues() if issue.kind == "content_unread"]
    assert issue.why == "left out: 2 further answers"


@pytest.mark.parametrize(
    ("response", "urls", "texts"),
    [
        (
            {
                **COMPLETION,
                "search_results": [{"title": "A", "url": "https://a.org", "snippet": "x"}],
            },
            ["https://a.org"],
            ["x"],
        ),
        (
            {**COMPLETION, "citations": ["https://a.org", "https://b.org"]},
            ["https://a.org", "https://b.org"],
            ["", ""],
        ),
        (
            {
                "candidates": [
                    {
                        **GEMINI["candidates"][0],
                        "groundingMetadata": {
                            "webSearchQueries": ["Ada"],
                            "groundingChunks": [
                                {"web": {"uri": "https://a.org", "title": "a.org"}}
                            ],
                        },
                    }
                ]
            },
            ["https://a.org"],
            [""],
        ),
        (
            {
                "message": {
                    **COHERE["message"],
                    "citations": [
                        {
                            "sources": [
                                {"id": "d", "document": {"id": "d", "title": "t", "text": "x"}}
                            ]
                        },
                        {
                            "sources": [
                                {"id": "d", "document": {"id": "d", "title": "t", "text": "x"}}
                            ]
                        },
                    ],
                }
            },
            [""],
            ["x"],
        ),
    ],
)
def test_what_the_api_searched_is_evidence(response, urls, texts):
    trajectory = read(response)
    evidence = list(trajectory.evidence.values())
    assert [passage.url for passage in evidence] == urls
    assert [passage.text for passage in evidence] == texts
    assert trajectory.answer == "Veldt"


def test_after_calls_that_the_server_ran_comes_the_answer():
    calls = [
        {"type": "web_search_call", "id": "w1", "action": {"type": "search", "query": "Ada"}},
        {
            "type": "web_search_call",
            "id": "w2",
            "action": {"type": "open_page", "url": "https://a.org"},
        },
    ]
    message = {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Veldt"}],
    }
    trajectory = read({"input": "Where?", "output": [*calls, message]})
    assert trajectory.answer == "Veldt"
    assert len([step for step in trajectory.steps if step.call]) == 2
    assert all(step.think is None for step in trajectory.steps)


def test_sources_of_a_search_are_passages():
    sources = [{"type": "url", "url": "https://a.org"}, {"type": "url", "url": "https://b.org"}]
    action = {"type": "search", "query": "Ada", "sources": sources}
    trajectory = read(
        {"input": "Where?", "output": [{"type": "web_search_call", "id": "w", "action": action}]}
    )
    assert [passage.url for passage in trajectory.evidence.values()] == [
        "https://a.org",
        "https://b.org",
    ]


def test_bedrocks_parts_are_read():
    use = {"toolUse": {"toolUseId": "t", "name": "search", "input": {"query": "Ada"}}}
    returned = {
        "toolResult": {
            "toolUseId": "t",
            "content": [
                {
                    "json": {
                        "results": [
                            {"title": "Ada", "url": "https://a.org", "text": "born in Veldt"}
                        ]
                    }
                }
            ],
        }
    }
    thought = {"reasoningContent": {"reasoningText": {"text": "So Veldt."}}}
    messages = [
        {"role": "user", "content": [{"text": "Where?"}]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [returned]},
        {"role": "assistant", "content": [thought, {"text": "Veldt"}]},
    ]
    trajectory = read({"messages": messages})
    assert [passage.url for passage in trajectory.evidence.values()] == ["https://a.org"]
    assert trajectory.steps[-1].think == "So Veldt."
    assert trajectory.answer == "Veldt"


def test_a_fetched_page_is_one_passage():
    document = {
        "type": "document",
        "title": "Ada",
        "source": {"type": "text", "data": "born in Veldt"},
    }
    result = {"type": "web_fetch_result", "url": "https://a.org", "content": document}
    content = [
        {
            "type": "server_tool_use",
            "id": "s",
            "name": "web_fetch",
            "input": {"url": "https://a.org"},
        },
        {"type": "web_fetch_tool_result", "tool_use_id": "s", "content": result},
        {"type": "text", "text": "Veldt"},
    ]
    [passage] = read({**ANTHROPIC, "content": content}).evidence.values()
    assert (passage.title, passage.url, passage.text) == ("Ada", "https://a.org", "born in Veldt")


def test_texts_of_an_assistants_thread_are_their_values():
    messages = [
        {"role": role, "content": [{"type": "text", "text": {"value": text, "annotations": []}}]}
        for role, text in (("user", "Where?"), ("assistant", "Veldt"))
    ]
    assert read({"messages": messages}).answer == "Veldt"


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded answers are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "calls", "evidence", "begins"),
    [
        ("anthropic-web-fetch-tool.1.json", 1, 1, "This Wikipedia page is about"),
        ("anthropic-web-search-tool.1.json", 2, 10, "Based on the search results"),
        ("azure-web-search-preview-tool.1.json", 2, 0, "Here are three major news stories"),
        ("cohere-citations.json", 1, 1, "The key benefits mentioned"),
        ("google-search.json", 1, 0, "Here's a look at some notable AI"),
        ("openai-file-search-tool.2.json", 1, 1, "According to the document"),
        ("openai-web-search-tool.1.json", 3, 16, "Short answer first"),
        ("perplexity-citations.json", 1, 7, "The most recent estimates"),
        ("xai-web-search-tool.1.json", 1, 0, "xAI is an American"),
    ],
)
def test_recorded_answers(name, calls, evidence, begins):
    trajectory = fs.parse(json.loads((REAL / name).read_text()))
    assert sum(step.call is not None for step in trajectory.steps) == calls
    assert len(trajectory.evidence) == evidence
    assert trajectory.answer.startswith(begins)


def test_a_commentary_of_openais_is_a_thought():
    def said(phase: str, text: str) -> dict[str, object]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {"type": "message", "role": "assistant", "phase": phase, "content": content}

    output = [said("commentary", "I know it now."), said("final_answer", "Veldt")]
    step = read({"input": "Where was Ada born?", "output": output}).steps[-1]
    assert step.think == "I know it now."
    assert step.answer == "Veldt"
