"""Keys out of text: by the names of their variables, their shapes and their places; and nothing
else.
"""

import base64
import html
import json
import shlex

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


def test_keys_in_urls_and_lists_are_redacted(
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


PARAMETERS = """
key token sig auth password credential api_key apikey access_token client_secret X-Amz-Signature
X-Amz-Credential X-Amz-Security-Token subscription-key Ocp-Apim-Subscription-Key sas_token hmacsig sigv4
authkey AuthToken id_token refreshToken passwd api%5Fkey user[token] jwt
"""
WORDS = """
q id page keyword keywords author authors monkey design insight assignee signal token_count max_tokens
tokenizer turn_tokens
"""


@pytest.mark.parametrize("name", PARAMETERS.split())
@pytest.mark.parametrize("before", ["?", "?a=1&", "#", "#a=1&", "?a=1&amp;", "?a=1\\u0026"])
def test_what_an_address_gives_under_the_name_of_a_key_goes_out(before, name):
    address = f"https://host/p{before}{name}="
    assert redact(f"see {address}x-9/7+a%2F.b and on") == f"see {address}[secret] and on"
    assert redact(f'{address}"a"') == f"{address}[secret]"


@pytest.mark.parametrize("name", WORDS.split())
def test_what_only_looks_like_the_name_of_a_key_stays(name):
    assert redact(f"https://host/?{name}=5&b=7#top") == f"https://host/?{name}=5&b=7#top"
    assert redact(["--" + name, "5"]) == ["--" + name, "5"]


def test_a_fragment_of_random_characters_is_a_key():
    assert redact("https://host/d#K7dPq9ZxW2mLt4Rv") == "https://host/d#[secret]"
    title = "https://host/wiki/Seine#Early_life_and_2008_Campaign"
    assert redact(title) == title


FLAGS = ["--hub_token", "--api-key", "--judge-password", "--service_credentials", "--push-auth"]


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("key", ["abc", "it's a", 'a "b" c', "a\\'b", "$(x) y", '"; rm'])
def test_what_a_flag_gives_goes_out_whole(flag, key):
    words = ["run", flag, key, "--seed", "1", f"{flag}={key}"]
    clean = ["run", flag, "[secret]", "--seed", "1", f"{flag}=[secret]"]
    assert redact(words) == clean
    assert redact(shlex.join(words[:5])) == " ".join(clean[:5])


def test_flags_that_count_tokens_or_take_nothing_stay():
    line = "run --total_tokens 1024 --max-tokens=16 --key-file k.pem --without-token --port 8"
    assert redact(line) == line
    assert redact(line.split()) == line.split()


@pytest.mark.parametrize("name", ["token", "api_key", "apiKey", "client-secret", "password"])
def test_what_a_field_of_json_in_a_flag_holds_goes_out(name):
    given = json.dumps({name: 'two "words"', "n": 1})
    clean = json.dumps({name: "[secret]", "n": 1})
    assert redact(["--kwargs", given]) == ["--kwargs", clean]
    assert redact(shlex.join(["--kwargs", given])) == shlex.join(["--kwargs", clean])
    assert redact(repr({name: "abcdef", "n": 1})) == repr({name: "[secret]", "n": 1})
    assert redact({name: "abcdef"}) == {name: "[secret]"}
    assert json.loads(json.loads(redact(json.dumps(given))))[name] == "[secret]"


def test_fields_of_data_stay():
    data = {"key": "population", "token": "Seine", "author": "Ada", "tokens": ["a"], "key_id": "x"}
    assert redact(data) == data
    assert redact(json.dumps(data)) == json.dumps(data)


KEY = 's3cr3t~Key/+"9é'
FORMS = {
    "base64": lambda data: base64.b64encode(data).decode(),
    "base64, url": lambda data: base64.urlsafe_b64encode(data).decode(),
    "base64, bare": lambda data: base64.b64encode(data).decode().rstrip("="),
    "hex": lambda data: data.hex(),
    "HEX": lambda data: data.hex().upper(),
    "percent": lambda data: "".join(f"%{byte:02x}" for byte in data),
    "PERCENT": lambda data: "".join(f"%{byte:02X}" for byte in data),
    "json": lambda data: json.dumps(data.decode())[1:-1],
    "html": lambda data: html.escape(data.decode()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_known_key_goes_out_in_every_form(form, monkeypatch):
    monkeypatch.setenv("SERVICE_API_KEY", KEY)
    written = FORMS[form](KEY.encode())
    assert redact(f"a {written} b") == "a [secret] b"


@pytest.mark.parametrize("before", ["", "u", "me", "me:", "user:"])
@pytest.mark.parametrize("behind", ["", "x", "xy", "xyz"])
@pytest.mark.parametrize("size", [8, 9, 10, 21])
def test_nor_can_it_be_read_out_of_base64_with_others(before, behind, size):
    key = "".join(chr(ord("a") + (7 * n) % 26) for n in range(size))
    encoded = base64.b64encode(f"{before}{key}{behind}".encode()).decode()
    kept = redact(encoded, secrets=[key]).replace("[secret]", "")
    assert len(kept) <= len(encoded) - (size * 8 - 12) // 6


def test_a_header_for_authorization():
    assert redact("Authorization: Bearer a.b-c, x") == "Authorization: Bearer [secret], x"
    assert redact("authorization: the king's") == "authorization: the king's"


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
    units = ['"a":"', "'b':\\\"", "--token '", "?token=", "#a1A", '--a "', "authorization: "]
    urls += [unit * 50_000 for unit in units]
    for text in (*urls, "hf_" * 10**5, PEM + "\\" * 10**6, PEM + "\\n" * 10**5):
        assert len(redact(text)) >= 8
