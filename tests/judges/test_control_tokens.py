"""A served judge gets no control token from the texts that it judges: by form, by its tokenizer, or
by what its server tells.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import pytest
from faulty_server import FaultyServer, Request as Asked
from jinja2 import Environment

from faithful_search.dialects.fence import unescape
from faithful_search.errors import ConfigError
from faithful_search.judges import Pair
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.judges.control_tokens import GENERAL, of_server, of_tokenizer, tokens_of
from faithful_search.judges.endpoint import EndpointJudge

TOKENS = """
<|im_start|> <|im_end|> <|eot_id|> <|start_header_id|> <|return|> <|call|> <|"|> <|turn> <turn|>
<|channel> <channel|> <tool_call|> <s> </s> <bos> <eos> <pad> <unk> <start_of_turn> <end_of_turn>
<think> </think> <tool_call> <seed:bos> <function=search> <sop> <image> <extra_id_0> <::::>
<end_of_utterance> [INST] [/INST] [TOOL_CALLS] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [AVAILABLE_TOOLS]
[THINK] [gMASK] [sMASK] [CLS] [SEP] <<SYS>> <</SYS>> [e~[ ]~b] ]~!b[ <|END_OF_TURN_TOKEN|>
<minimax:tool_call> <|open|> <|end_of_msg|> <\uff5cUser\uff5c> <\uff5cend\u2581of\u2581sentence\uff5c>
</\uff5cDSML\uff5cx> \uff1c|im_end|\uff1e
"""
ORDINARY = [
    "see [1], [12] and [E1]", "[sic] and [citation needed]", "a < b > c", "I <3 you", "2 << 3", "x[0][i]",
    "[a](http://e.org)", "<a href='x'>", "A|B", "[ A ]", "1 <-> 2", "Q&A;",
]  # fmt: skip


def templates() -> list[Path]:
    trl = pytest.importorskip("trl")
    return sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))


def marks(template: str) -> Iterator[str]:
    """What a template writes in angle or upper-case square brackets, without a blank in it."""
    for _, kind, text in Environment(extensions=["jinja2.ext.loopcontrols"]).lex(template):
        if kind in ("data", "string"):
            yield from re.findall(r"<[^<>\s]{1,60}>|\[/?[A-Za-z_]*[A-Z]{3}[A-Z_]*\]", text)


@pytest.mark.parametrize("token", TOKENS.split())
def test_what_has_the_form_of_a_control_token_is_escaped(token: str) -> None:
    text = f"It is {token}so{token}."
    assert token not in GENERAL.escape(text)
    assert unescape(GENERAL.escape(text)) == text


@pytest.mark.parametrize("text", ORDINARY)
def test_other_brackets_stay(text: str) -> None:
    assert GENERAL.escape(text) == text


def test_entities_of_the_text_are_told_from_escapes() -> None:
    assert unescape(GENERAL.escape("&lt;b&gt;")) == "&lt;b&gt;"


def test_no_template_of_trl_has_a_mark_that_passes() -> None:
    for path in templates():
        for mark in marks(path.read_text("utf-8")):
            assert mark not in GENERAL.escape(f"a{mark}b"), (path.name, mark)


def test_no_special_token_of_transformers_passes() -> None:
    """Those that its tokenizers have by default."""
    transformers = pytest.importorskip("transformers")
    models = Path(transformers.__file__).parent / "models"
    found = set()
    for path in models.glob("*/tokenization_*.py"):
        pattern = r"\b(?:bos|eos|unk|sep|pad|cls|mask)_token(?:: \w+)?\s*=\s*\"([^\"\n]+)\""
        found.update(re.findall(pattern, path.read_text("utf-8")))
    angular = [token for token in found if re.fullmatch("<.+>", token)]
    square = [token for token in found if re.fullmatch(r"\[.*[A-Z].*\]", token)]
    markup = angular + square
    assert len(markup) > 10
    for token in markup:
        assert token not in GENERAL.escape(f"a {token} b"), token


@pytest.mark.parametrize(
    ("about", "tokens"),
    [
        ({"bos_token": "<s>", "eos_token": {"content": "</s>"}}, {"<s>", "</s>"}),
        ({"added_tokens_decoder": {"5": {"content": "⟦end⟧"}}}, {"⟦end⟧"}),
        ({"additional_special_tokens": ["<x y>", "word", "."]}, {"<x y>"}),
        ({"chat_template": "{% if x['a'] %}{{ '[b~c]' + m[0] }}<turn>{% endif %}"}, {"[b~c]", "<turn>"}),
        ({"chat_template": [{"name": "a", "template": "<a>"}]}, {"<a>"}),
        ({"chat_template": "{% if %"}, set()),
        ({"chat_template": None, "bos_token": None, "n_ctx": 8}, set()),
    ],
)  # fmt: skip
def test_what_a_server_tells_of_its_tokens(about: dict[str, Any], tokens: set[str]) -> None:
    assert set(tokens_of(about)) == tokens


def serving(path: str, about: Any) -> FaultyServer:
    """An endpoint that says 1 to everything, and tells of its tokenizer."""

    def answer(request: Asked) -> tuple[int, Any]:
        if request.path == path:
            return 200, about
        if request.path != "/v1/chat/completions":
            return 404, {"error": "no such path"}
        choice = {"index": 0, "message": {"role": "assistant", "content": "1"}}
        return 200, {"choices": [choice], "model": "m"}

    return FaultyServer(answer)


def texts_of(server: FaultyServer) -> str:
    """What reached the server as words of a message."""
    bodies = [json.loads(each.data) for each in server.requests if each.method == "POST"]
    return "\n".join(body["messages"][-1]["content"] for body in bodies)


@pytest.mark.parametrize("path", ["/tokenizer_info", "/props"])
def test_a_served_template_is_heeded(path: str) -> None:
    about = {"chat_template": "{{ '[turn' + x }}[turn~user]", "eos_token": "[over-and-out]"}
    with serving(path, about) as server:
        judge = EndpointJudge("m", url=f"{server.url}/v1", cache=None, together=False)
        judge.judge_batch([Pair("see [over-and-out] [1]", "[turn~user] x"), Pair("a [2]", "b")])
        texts = texts_of(server)
        asked = [each.path for each in server.requests if each.method == "GET"]
    assert "[over-and-out]" not in texts
    assert "[turn~user]" not in texts
    assert "[1]" in texts
    assert sorted(asked) == ["/props", "/tokenizer_info"]


@pytest.mark.parametrize("about", ["no JSON", [], {"chat_template": "x" * 5_000_000}])
def test_judging_works_if_the_server_tells_no_tokens(about: Any) -> None:
    data = about.encode() if isinstance(about, str) else about
    with serving("/props", data) as server:
        judge = EndpointJudge("m", url=f"{server.url}/v1", cache=None)
        assert judge.judge_batch([Pair("see [1]", "b")])[0].label is True
        assert of_server(f"{server.url}/v1") == GENERAL


def test_no_server_is_asked_without_need() -> None:
    with serving("/props", {}) as server:
        judge = EndpointJudge("m", url=f"{server.url}/v1", cache=None)
        judge.judge_batch([Pair("evidence <|im_end|>", "claim")])
        dry = EndpointJudge("m", url=f"{server.url}/v1", cache=None, dry=True)
        dry.judge_batch([Pair("see [1]", "claim")])
        assert {each.method for each in server.requests} == {"POST"}


def test_a_tokenizer_tells_of_its_own_tokens(tmp_path: Path) -> None:
    tokenizer = lab.byte_tokenizer(("⟦over⟧", "<|pad|>"), pad_token="<|pad|>")
    tokenizer.save_pretrained(tmp_path)
    assert "⟦over⟧" not in of_tokenizer(str(tmp_path)).escape("a ⟦over⟧ b")
    with serving("/none", {}) as server:
        arguments = JudgeArguments(
            "endpoint", "m", f"{server.url}/v1", "none", judge_tokenizer=str(tmp_path)
        )
        arguments.load_judge().judge_batch([Pair("a ⟦over⟧ b", "c [1]")])
        assert "⟦over⟧" not in texts_of(server)
        assert {each.method for each in server.requests} == {"POST"}


@pytest.mark.parametrize("judge", ["lexical", "remote"])
def test_a_judge_without_an_endpoint_takes_no_tokenizer(judge: str) -> None:
    arguments = JudgeArguments(judge, judge_tokenizer="x")
    with pytest.raises(ConfigError, match=f"goes with the judge 'endpoint', not '{judge}'"):
        arguments.load_judge()
