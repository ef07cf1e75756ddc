"""An answer of a chat API as it came, alone or beside the request that it answers.

| API | where the answer stands |
|---|---|
| OpenAI's chat completions and what copies them | `choices[0].message` |
| Anthropic's Messages | the object itself, with `type: message` |
| Bedrock's Converse | `output.message` |
| Cohere, Ollama | `message` |
| Azure OpenAI, with its user's own data | `choices[0].message`, or at first `choices[0].messages` |

Logs keep the request beside it (`{"request": …, "response": …}`, `{"messages": …, "response": …}`),
a batch within a line of its own (`response.body`). What an API searched for itself and sends beside
the message (Perplexity's `search_results`) is the result of a search; its query is not told, so it
stands for the question.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .messages import asked_at_the_end, is_chat
from .searches import searched_beside

_REQUESTS = (
    *("request", "input", "inputs", "kwargs", "body", "params"),
    *("request_body", "requestBody", "request_json"),
)
_RESPONSES = (
    *("response", "output", "outputs", "raw_response", "completion", "result"),
    *("response_body", "responseBody", "response_json"),
)
_BODY = "body"
_SYSTEM = ("system", "instructions")


def read(value: Any) -> Chat | None:
    """The messages of the request where there is one, and the first answer."""
    if not isinstance(value, Mapping):
        return None
    for response in _responses(value):
        answer, further_answers = _answer(response)
        if not answer:
            continue
        reply = answer[-1]
        prompt = _asked(value)
        if "messages" in value and _holds(prompt, reply):
            return None  # a log of a whole conversation, such as inspect_ai's
        beside_reply = searched_beside(reply, "", 0)  # is read with the message
        searched = [] if beside_reply else _searched(response, prompt)
        name = text(value.get("custom_id")) or text(response.get("id")) or ""
        return Chat(
            [*prompt, *searched, *answer], id=name, left_out={"further answers": further_answers}
        )
    return None


def _responses(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Where an answer may stand: the object itself, in a field of it, in the body of that."""
    yield value
    for name in _RESPONSES:
        response = mapping(value, name)
        if response:
            yield response
            yield mapping(response, _BODY)


def _answer(response: Mapping[str, Any]) -> tuple[Messages, int]:
    """The messages of an answer, mostly one, and how many further answers there are."""
    # The choice with the index 0 counts; it may not stand first.
    choices = sorted(mappings(response, "choices"), key=lambda choice: choice.get("index") != 0)
    for choice in choices[:1]:
        for messages in ([mapping(choice, "message")], mappings(choice, "messages", pure=True)):
            if is_chat(messages):
                return messages, len(choices) - 1
    if response.get("type") == "message" and response.get("role") == "assistant":
        return [response], 0
    for message in (mapping(response, "output", "message"), mapping(response, "message")):
        if message.get("role") == "assistant" and "content" in message:
            return [message], 0
    return [], 0


def _holds(messages: Messages, reply: Mapping[str, Any]) -> bool:
    """Whether the messages end with the reply, or have one with its id, perhaps edited since. An
    agent may have said the same earlier.
    """
    if messages[-1:] == [reply]:
        return True
    identity = reply.get("id")
    if identity is None:
        return False
    return any(mapping(message).get("id") == identity for message in messages)


def _asked(value: Mapping[str, Any]) -> Messages:
    """The request's messages, with its system prompt before them."""
    requests = [mapping(value, name) for name in _REQUESTS]
    for request in (*requests, value):
        messages = request.get("messages")
        if not isinstance(messages, list) or not is_chat(messages):
            continue
        prompts: Messages = []
        for name in _SYSTEM:
            if request.get(name):
                prompts.append({"role": "system", "content": request[name]})
        return [*prompts, *messages]
    return []


def _searched(response: Mapping[str, Any], prompt: Messages) -> Messages:
    """The search that the API made itself, as a call with its results; none where it made none."""
    if not searched_beside(response, "", 0):
        return []
    question = asked_at_the_end(prompt)
    return searched_beside(response, question.question, 0, question.returned)


FORMAT = Format(
    "an answer of a chat API (chat completion, Anthropic, Bedrock, Cohere, Perplexity)",
    read,
    frozenset(("choices", "finish_reason", "stop_reason", "usage", "completion")),
    "it holds no message of an assistant",
)
