"""Where in a text the prompt ends and the agent's first turn begins."""

import re


def _opens(roles: str) -> str:
    """A pattern of what opens a message of these roles in the chat templates of ChatML, Llama,
    Gemma and Phi.
    """
    forms = (
        r"<\|im_start\|>{}\n?",
        r"<\|start_header_id\|>{}<\|end_header_id\|>\s*+",
        "<start_of_turn>{}\n",
        r"<\|{}\|>\n?",
    )
    return "|".join(form.format(f"(?:{roles})") for form in forms)


# Mistral's and DeepSeek's tokens, which name no role as others do
_ASSISTANT = re.compile(rf"{_opens('assistant|model')}|\[/INST\]|<\uff5cAssistant\uff5c>")
_USER = re.compile(rf"(?:{_opens('user|tool|ipython')}|\[INST\]|<\uff5cUser\uff5c>)\s*+")
_PROLOGUE = re.compile(
    r"\A\s*+(?:(?:<\|(?:begin_of_text|startoftext|endoftext)\|>|<s>|<bos>|\[gMASK\]|<sop>)\s*+)*+"
    r"(?:<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|(?:system|tools|user|assistant)\|>"
    r"|\[INST\]|\[SYSTEM_PROMPT\]|<\uff5c(?:begin\u2581of\u2581sentence|User)\uff5c>)"
)
_NAMED = re.compile(r"<(\w{2,24})> ?(?:and|\.\.\.|\u2026) ?</\1>")  # tags that a prompt explains
_QUESTION = re.compile(r"\bQuestion:[ \t]*+")
_OPENS_LINE = re.compile(r"(?:\n|Assistant:)[ \t]*+\Z")
_LONGEST_PROMPT = 20_000
_BARE_PROLOGUE = re.compile(r"\A\s*+(?=(?:system|user)\n)")
_END_OF_MESSAGE = re.compile(r"<\|(?:im_end|eot_id|end)\|>|<end_of_turn>")


def episode_start(text: str, response: str) -> tuple[int, str | None]:
    """Where the agent's first turn begins, and the last user message of the prompt before it.

    Only a text that begins with chat markup has a prompt: markup further inside may be evidence.
    There is none either where the last message before that turn is a tool response, as the agent
    had already spoken; `response` is the tag that opens one. Without a prompt the result is
    `(0, None)`.
    """
    bare = _BARE_PROLOGUE.match(text)
    if bare:
        return _after_bare_roles(text, bare.end(), response)
    marker = _ASSISTANT.search(text) if _PROLOGUE.match(text) else None
    if marker is None:
        return 0, None
    message_start = -1
    for match in _USER.finditer(text, 0, marker.start()):
        message_start = match.end()
    if message_start < 0:
        return marker.end(), None
    if text.startswith(response, message_start):
        return 0, None
    message = _END_OF_MESSAGE.split(text[message_start : marker.start()], maxsplit=1)[0]
    return marker.end(), message.strip()


def _after_bare_roles(text: str, start: int, response: str) -> tuple[int, str | None]:
    """As `episode_start`, for a text that was decoded without special tokens: each role is a line
    of its own. `start` is where the first role stands.
    """
    end = text.find("\nassistant\n", start)
    if end < 0:
        return 0, None
    turn_start = end + len("\nassistant\n")
    if text.startswith("user\n", start):
        message_start = start + len("user\n")
    else:
        before_user = text.rfind("\nuser\n", start, end)
        if before_user < 0:
            return turn_start, None
        message_start = before_user + len("\nuser\n")
    if text.startswith(response, message_start):
        return 0, None
    return turn_start, text[message_start:end].strip()


def explained_start(text: str, own_tags: re.Pattern[str]) -> tuple[int, str | None]:
    """As `episode_start`, for a text without chat markup that begins with a prompt in any words.

    A prompt is told by two different tags that it only names, as in "between <answer> and
    </answer>". The agent's turn begins with the first of its `own_tags` that opens a line, or
    follows "Assistant:", behind the last tag that is named and, where one follows that, behind
    "Question:". An example in the prompt is no answer.
    """
    beginning = text[:_LONGEST_PROMPT]
    tags = list(_NAMED.finditer(beginning))
    names = {tag[1] for tag in tags}
    if len(names) < 2 or own_tags.match(beginning.lstrip()):
        return 0, None
    explained = tags[-1].end()
    label = _QUESTION.search(beginning, explained)
    start = label.end() if label else explained
    turn = own_tags.search(text, start)
    while turn and not _OPENS_LINE.search(text, max(0, turn.start() - 20), turn.start()):
        turn = own_tags.search(text, turn.end())
    if turn is None:
        return 0, None
    if label is None:
        return turn.start(), None
    question = text[start : turn.start()].removesuffix("Assistant:").strip()
    return turn.start(), question or None
