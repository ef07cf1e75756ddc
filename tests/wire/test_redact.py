"""Keys out of text: by the names of their variables, their shapes and their places; and nothing else."""

import json

import pytest

from faithful_search.wire.redact import redact

NAMES = """
SERPER_API_KEY HF_TOKEN AWS_SECRET_ACCESS_KEY MY_SECRET PGPASSWORD JINA_KEY_2 openai_api_keys SERPER_API_KEY_PROD
GITHUB_PAT SMTP_PASS DB_PWD
"""
PEM = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize("name", NAMES.split())
def test_keys_are_known_by_the_names_of_their_variables(name, monkeypatch):
    monkeypatch.setenv(name, "sk-9f/8+Aé=&7d")
    assert redact("ask-9f/8+Aé=&7db") == "a[secret]b"


def test_keys_in_urls_and_lists_of_the_environment_and_what_only_looks_like_the_name_of_one(
    monkeypatch,
):
    known = {
        "MY_PROXY": "http://user:proxy-pass@proxy.example:3128",
        "SEVERAL_KEYS": "first-1, second-2",
    }
    others = {
        "PWD": "/some",
        "HF_TOKEN_PATH": "/token",
        "TOKENIZERS_PARALLELISM": "perhaps",
        "MAX_TOKENS": "128000",
    }
    for name, value in (known | others | {"SHORT_KEY": "abc"}).items():
        monkeypatch.setenv(name, value)
    assert redact("proxy-pass abcd second-2 first-1") == "[secret] abcd [secret] [secret]"
    assert redact(list(others.values())) == list(others.values())


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://u:p@host/a@b", "https://[secret]@host/a@b"),
        ("ftp://u:p@ss@host", "ftp://[secret]@host"),
        ("see https://host/a@b and mail@host", "see https://host/a@b and mail@host"),
        ("//u:p@host https://host", "//u:p@host https://host"),
        ("?a=1&API_KEY=x&api-key=y#z", "?a=1&API_KEY=[secret]&api-key=[secret]#z"),
        ("?monkey=1&token_count=2", "?monkey=1&token_count=2"),
        (f'{{"token": "hf_{"aB3" * 11}"}} disk-usage-of-the-whole-machine', None),
        ("AKIAIOSFODNN7EXAMPLE, AKIA is a prefix", "[secret], AKIA is a prefix"),
        ("xoxb-2345678901-abcdefghijklmnop", "[secret]"),
        (f"AIza{'Sy_-' * 8}abc, AIza another", "[secret], AIza another"),
    ],
)
def test_what_is_secret_by_its_place_or_shape(text, clean):
    assert redact(text) == (clean or '{"token": "[secret]"} disk-usage-of-the-whole-machine')


@pytest.mark.parametrize("encoded", [0, 1, 2, 3])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_private_key_goes_out_whole_also_inside_json(encoded, end):
    text = end.join([PEM, "MIIE+/=", "abcd", PEM.replace("BEGIN", "END")])
    around = "{}"
    for _ in range(encoded):
        text, around = json.dumps(text), json.dumps(around)
    assert redact(text) == around.format("[secret]")


def test_redacting_is_linear():
    urls = ["://" * 300_000, "://" + "a" * 10**6, "?api_key" * 100_000, "&api_key=" * 100_000]
    for text in (*urls, "hf_" * 10**5, PEM + "\\" * 10**6, PEM + "\\n" * 10**5):
        assert len(redact(text)) >= 8
