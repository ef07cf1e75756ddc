"""A judge behind `faithful-search serve-judge` and the judge that asks it: real servers on
loopback, real processes.
"""

import json
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2
import lab
import msgspec
import numpy as np
import pytest
from agent_rows import file_of
from hypothesis import given, settings, strategies as st
from served import command, invoked, running
from tiny_bert import bert_tokenizer, saved

from faithful_search.errors import JudgeError
from faithful_search.judges import GroundingJudge, Judge, Pair, Verdict
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.judges.generator import GeneratorJudge
from faithful_search.judges.remote import CHUNK, RemoteJudge
from faithful_search.judges.span import SpanJudge
from faithful_search.judges.span_inputs import MARKS, SpanReader
from faithful_search.measure.evaluating import default_rewards
from faithful_search.serving.app import ServerLimits, Service
from faithful_search.serving.judging import Judging, identity
from faithful_search.wire.cache import Cache
from faithful_search.wire.retry import Patience

PAIRS = [
    Pair("The tower stands in Lima.", "It stands in Lima."),
    Pair("The tower stands in Lima.", "It stands in Oslo.", "Where does it stand?", "info_think"),
    Pair("", "x"),
    Pair("Ünïcode ☃ \u2028 and a\ttab", 'quotes " and \\', "?", "think_answer"),
]
HASTY = Patience(retries=1, first=0.01)


@dataclass
class Noting(Judge):
    """Says p by the hypothesis's length, notes what it is asked, and obeys the hypotheses that are
    orders.
    """

    seconds: float = 0.0
    name: str = "noting"
    odd: float = 0.5
    asked: list[Pair] = field(default_factory=list, repr=False)
    batches: list[int] = field(default_factory=list, repr=False)

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        time.sleep(self.seconds)
        said = {pair.hypothesis for pair in pairs}
        if "crash" in said:
            raise ZeroDivisionError("secret detail")
        if "refuse" in said:
            raise JudgeError("the key is wrong")
        self.asked += pairs
        self.batches.append(len(pairs))
        return [self._verdict(pair) for pair in pairs]

    def _verdict(self, pair: Pair) -> Verdict:
        if pair.hypothesis == "abstain":
            return Verdict(None, None, "too hard", self.name)
        p = self.odd if pair.hypothesis == "odd" else 1 / (1 + len(pair.hypothesis))
        return Verdict(p, p >= 0.5, f"{len(pair.hypothesis)} characters", self.name)


@contextmanager
def serving(
    judge: Judge, cache: Cache | None = None, token: str = "", **limits
) -> Iterator[tuple[str, Judging]]:
    judging = Judging(judge, cache, ServerLimits(**limits))
    with running(judging, judging.limits, token) as url:
        yield url, judging


def count(judging: Judging, name: str, **labels: str) -> float:
    return judging.registry.get_sample_value(f"faithful_search_{name}_total", labels) or 0


@pytest.fixture(scope="module")
def words():
    """Asks a served comparison of words."""
    with serving(GroundingJudge()) as (url, _):
        yield RemoteJudge(url)


def asked(url: str, pairs: Sequence[Pair], **settings) -> list[Verdict]:
    with closing(RemoteJudge(url, **{"patience": HASTY, **settings})) as judge:
        return judge.judge_batch(pairs)


def numbers(count: int, start: int = 0) -> list[Pair]:
    return [Pair("evidence", "x" * (1 + number)) for number in range(start, start + count)]


# --- the same verdicts


@pytest.mark.parametrize("judge", [GroundingJudge(), Noting()], ids=lambda judge: judge.name)
def test_a_served_judge_says_what_it_says_in_process_bit_for_bit(judge):
    with serving(judge) as (url, _):
        assert asked(url, PAIRS * 2) == judge.judge_batch(PAIRS) * 2


@settings(max_examples=25)
@given(st.lists(st.builds(Pair, st.text(), st.text(), st.text()), max_size=5))
def test_any_text_arrives(words, pairs):
    assert words.judge_batch(pairs) == GroundingJudge().judge_batch(pairs)


def test_the_served_judge_is_given_all_of_a_pair():
    judge = Noting()
    pair = Pair("evidence", "claim", "question", "think_search", "context")
    with serving(judge) as (url, _):
        asked(url, [pair])
    assert judge.asked == [pair]


def of_thoughts(inputs: Any) -> Any:
    """A network that upholds thoughts and nothing else: the first mark says which they are."""
    logits = np.where(inputs["marks"][:, 0] == MARKS.index("thought"), 2.0, -2.0)
    return logits, np.zeros(inputs["marks"].shape)


def test_a_served_judge_of_several_tasks_is_told_which_is_asked():
    judge = SpanJudge(of_thoughts, SpanReader(bert_tokenizer().backend_tokenizer), "thoughts")
    pairs = [Pair("w1", "w2", task="support"), Pair("w1", "w2", task="info_think")]
    with serving(judge) as (url, _):
        verdicts = asked(url, pairs)
    assert [verdict.label for verdict in verdicts] == [False, True]


@pytest.mark.parametrize(
    ("task", "tasks"),
    [
        (None, ()),
        ("info_think", ("info_think",)),
        (("info_think", "support"), ("info_think", "support")),
    ],
)
def test_a_served_judge_tells_what_it_was_trained_to_be_asked(task, tasks):
    judging = Judging(Noting(), about={"task": task})
    with running(judging, judging.limits) as url:
        assert RemoteJudge(url).tasks == tasks


# --- once


def test_pairs_asked_for_at_the_same_time_are_judged_once():
    alike = [
        Pair("a", "b"),
        Pair("b", "a"),
        Pair("a", "b", "q"),
        Pair("a", "b", "", "info_think"),
        Pair("a", "bq"),
    ]
    judge, pairs = Noting(seconds=0.1), [*numbers(45), *alike]
    with serving(judge) as (url, judging), ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: asked(url, pairs), range(8)))
    assert found == [Noting().judge_batch(pairs)] * 8
    assert len(judge.asked) == 50
    assert len(set(judge.asked)) == 50
    assert [count(judging, name) for name in ("pairs", "pairs_judged", "pairs_known")] == [
        400,
        50,
        350,
    ]


def test_a_cache_file_serves_only_the_same_settings(
    tmp_path,
):
    judges, found = [Noting(), Noting(), Noting(name="another")], []
    for judge in judges:
        with serving(judge, Cache(tmp_path / "verdicts.sqlite")) as (url, _):
            found.append(asked(url, PAIRS))
    assert found[0] == found[1]
    assert [len(judge.asked) for judge in judges] == [len(PAIRS), 0, len(PAIRS)]


def test_a_model_trained_anew_in_its_place_is_another_judge(tmp_path):
    saved(tmp_path, lab.model(), lab.tokenizer())
    first = identity(GeneratorJudge.from_pretrained(str(tmp_path)))
    assert first == identity(GeneratorJudge.from_pretrained(str(tmp_path)))
    assert first != identity(GeneratorJudge.from_pretrained(str(tmp_path), threshold=0.7))
    lab.model(seed=1).save_pretrained(tmp_path)
    assert first != identity(GeneratorJudge.from_pretrained(str(tmp_path)))


# --- without a verdict


def test_abstentions_are_retried():
    judge = Noting()
    with serving(judge) as (url, judging):
        for _ in range(2):
            assert asked(url, [Pair("e", "abstain")]) == [Verdict(None, None, "too hard", "noting")]
        assert count(judging, "pairs_abstained") == len(judge.asked) == 2
        one, two, three = asked(url, [Pair("e", "x"), Pair("e", "crash"), Pair("e", "xyz")])
        assert asked(url, [Pair("e", "refuse")]) == [
            Verdict(None, None, "the key is wrong", "noting")
        ]
        assert asked(url, [Pair("e", "x")]) == [one]
    assert (one.p, three.p) == (0.5, 0.25)
    assert two.abstained
    assert "ZeroDivisionError" in two.why
    assert "secret" not in two.why


def test_a_dead_server_leaves_abstentions_with_advice():
    with serving(Noting()) as (url, _):
        judge = RemoteJudge(url, patience=HASTY)
        assert judge.judge_batch(PAIRS)[0].label is not None
    unknown, start = RemoteJudge("http://127.0.0.1:9", patience=HASTY), time.monotonic()
    assert unknown.name == "remote:http://127.0.0.1:9"
    with pytest.raises(
        JudgeError, match=r"cannot ask the judge at http://127.0.0.1:9: .*serve-judge"
    ):
        unknown.lexical  # noqa: B018 (no name is guessed)
    found = judge.judge_batch(numbers(2000))
    assert len(found) == 2000
    assert all(verdict.abstained for verdict in found)
    assert f"no verdict from the judge at {url}" in found[0].why
    assert "`faithful-search serve-judge`" in found[0].why
    assert time.monotonic() - start < 20


@pytest.mark.slow
def test_a_server_killed_while_judging_is_asked_again(tmp_path):
    pairs = [Pair("evidence " * 300, f"claim {number} " * 300) for number in range(600)]
    start = partial(
        command, "lexical", "--cache", str(tmp_path / "verdicts.sqlite"), verb="serve-judge"
    )
    with start() as (process, url), ThreadPoolExecutor(1) as pool:
        judge = RemoteJudge(url, patience=Patience(retries=200, first=0.1, longest=0.5))
        waiting = pool.submit(judge.judge_batch, pairs)
        while "faithful_search_pairs_total 0" in httpx2.get(f"{url}/metrics").text:
            time.sleep(0.01)
        process.kill()
        process.wait(60)
        with start(port=int(url.rsplit(":", 1)[1])):
            found = waiting.result(300)
    assert found == GroundingJudge().judge_batch(pairs)


@pytest.mark.parametrize("p", [float("nan"), -0.1, 1.1])
def test_an_impossible_verdict_is_an_abstention(p):
    with serving(Noting(odd=p)) as (url, judging):
        odd, fine = asked(url, [Pair("e", "odd"), Pair("e", "x")])
        assert len(judging.cache) == 1
    assert odd == Verdict(None, None, f"the judge gave p = {p}", "noting")
    assert fine.p == 0.5


@pytest.mark.parametrize(
    ("evidence", "size", "most"), [("e", 2 * CHUNK + 5, 10**6), ("e" * 200_000, CHUNK, 5 * 10**6)]
)
@pytest.mark.parametrize("text", ["premise", "context"])
def test_order_is_kept_over_several_requests(evidence, size, most, text):
    pairs = [msgspec.structs.replace(pair, **{text: evidence}) for pair in numbers(size)]
    with serving(Noting(), body_bytes=most) as (url, judging):
        assert asked(url, [*reversed(pairs), *pairs]) == Noting().judge_batch(
            [*reversed(pairs), *pairs]
        )
        assert asked(url, []) == []
        assert count(judging, "requests", path="/judge", status="413") == 0
        assert count(judging, "pairs_judged") == len(pairs)


def test_clients_that_a_busy_server_sends_away_come_back():
    with serving(Noting(seconds=0.02), requests=4) as (url, judging), ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda n: asked(url, numbers(3, n), patience=Patience(retries=60)), range(8))
        )
        refused = count(judging, "requests", path="/judge", status="503")
    assert found == [Noting().judge_batch(numbers(3, n)) for n in range(8)]
    assert refused
    assert count(judging, "pairs_judged") == 10


def test_clients_errors_leave_no_traceback_in_the_log(caplog):
    judge = Noting(seconds=0.4)
    with serving(judge, body_bytes=1000) as (url, _):
        for body in (b"{", b"[" * 900, b'{"pairs": 1}', b"x" * 100_000):
            assert 400 <= httpx2.post(f"{url}/judge", content=body).status_code < 500
        [late] = asked(url, numbers(1), timeout=0.1)
        assert late.abstained
        assert "took longer than 0.1 seconds" in late.why
        assert asked(url, numbers(1))[0].p == 0.5  # judged meanwhile, for a client that had gone
    assert len(judge.asked) == 1
    assert not caplog.records


@pytest.mark.parametrize(
    "answer",
    [
        {"verdicts": []},
        {"verdicts": [{"p": 1.5, "label": True}]},
        {"verdicts": [{"p": None, "label": True}]},
        {"verdicts": [{"p": 0.5, "label": None}]},
        {"verdicts": [{"p": 0.5, "label": True}] * 2},
        {"other": 1},
    ],
)
def test_what_is_no_verdict_is_not_taken_for_one(answer):
    with running(Service({"/judge": lambda body: {"judge": "odd", **answer}})) as url:
        (found,) = asked(url, numbers(1))
    assert found.abstained
    assert "does not hold the verdicts" in found.why


def test_another_server_and_a_wrong_token_are_told_at_once(monkeypatch):
    with running(Service({})) as url:
        with pytest.raises(JudgeError, match=r"is not a judge server .*404"):
            asked(url, PAIRS)
        with pytest.raises(JudgeError, match="is not a judge server"):
            RemoteJudge(url).lexical  # noqa: B018
    with serving(Noting(), token="right") as (url, _):
        monkeypatch.setenv("FAITHFUL_SEARCH_SERVE_TOKEN", "wrong")
        with pytest.raises(
            JudgeError, match="answers 401: FAITHFUL_SEARCH_SERVE_TOKEN must hold its token"
        ):
            asked(url, PAIRS)
        monkeypatch.setenv("FAITHFUL_SEARCH_SERVE_TOKEN", "right")
        assert len(asked(url, PAIRS)) == len(PAIRS)


def test_requests_that_the_server_finds_too_large_are_cut():
    judge = Noting()
    with serving(judge, pairs=10, pair_chars=40) as (url, _):
        *found, last = asked(url, [*numbers(30), Pair("e", "x" * 100)])
    assert [v.p for v in found] == [v.p for v in Noting().judge_batch(numbers(30))]
    assert last.abstained
    assert last.why.endswith("the pair's 101 characters are more than it takes")
    assert max(judge.batches) <= 10 * 8


@pytest.mark.parametrize("text", ["premise", "hypothesis", "question", "context"])
def test_all_texts_of_a_pair_count_in_its_length(text):
    texts = {"premise": "e", "hypothesis": "x", "question": "q", "context": "c", text: "x" * 38}
    with serving(Noting(), pair_chars=40) as (url, _):
        answer = httpx2.post(f"{url}/judge", json={"pairs": [texts]})
    assert answer.status_code == 413
    assert "pair 0 has 41 characters; at most 40" in answer.json()["error"]


# --- the wire


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        (b'{"pairs": [{"premise": "a"}]}', 422, "missing required field `hypothesis`"),
        (
            b'{"pairs": [{"premise": "a", "hypothesis": "b", "task": "cook"}]}',
            422,
            "Invalid enum value 'cook'",
        ),
        (b"\xff", 400, "not JSON"),
    ],
)
def test_a_malformed_request_is_told_the_expected_form(body, status, said):
    with serving(Noting()) as (url, _):
        answer = httpx2.post(f"{url}/judge", content=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]
    assert '"premise"' in answer.json()["error"]


def test_an_answer_by_hand():
    with serving(Noting()) as (url, _):
        body = {
            "pairs": [
                {"premise": "e", "hypothesis": "x", "more": 1},
                {"premise": "e", "hypothesis": "abstain"},
            ]
        }
        answer = httpx2.post(f"{url}/judge", json=body)
        assert httpx2.post(f"{url}/judge", json={"pairs": []}).json() == {
            "judge": "noting",
            "verdicts": [],
        }
        assert httpx2.get(f"{url}/health").json() == {
            "status": "ok",
            "judge": "noting",
            "lexical": False,
            "reads_queries": True,
        }
    assert answer.json() == {
        "judge": "noting",
        "verdicts": [
            {"p": 0.5, "label": True, "why": "1 characters", "judge": "noting"},
            {"p": None, "label": None, "why": "too hard", "judge": "noting"},
        ],
    }


# --- names, settings, processes


@pytest.mark.parametrize(
    ("judge", "ending"), [(GroundingJudge(), "lexical"), (Noting(), "faithfulness")]
)
def test_results_of_a_served_judge_are_named_after_it(judge, ending, tmp_path):
    looked = "<think>Where?</think><search>where</search><information>It is in Lima.</information>"
    rows = file_of(
        tmp_path / "rows.jsonl", [{"text": f"{looked}<think>In Lima.</think><answer>Lima</answer>"}]
    )
    with serving(judge) as (url, judging):
        flags = [
            "--judge",
            "remote",
            "--judge-url",
            f"{url}/judge",
            "--out",
            tmp_path,
            "--no-report",
        ]
        done = invoked("audit", rows, *flags)
        asked_by_audit = count(judging, "pairs")
        evaluated = default_rewards(
            "search_r1", JudgeArguments("remote", judge_url=url).load_judge()
        )
    assert done.exit_code == 0, done.output
    assert asked_by_audit > 0, done.output
    audit = json.loads((tmp_path / "audit.json").read_text())
    assert audit["settings"]["judge"] == f"remote:{judge.name}"
    for found in (audit["rows"], evaluated):
        named = {name for name in found if name.startswith(("info_think", "think_search"))}
        assert named == {f"info_think_{ending}", f"think_search_{ending}"}
        assert ("think_answer_faithfulness" in found) == (ending == "faithfulness")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_pickled_forked_and_closed_clients_can_ask(words):
    expected = words.judge_batch(PAIRS)
    copy = pickle.loads(pickle.dumps(words))
    assert copy == words
    assert copy.judge_batch(PAIRS) == expected
    copy.close()
    assert copy.judge_batch(PAIRS) == expected
    child = os.fork()
    if child == 0:
        os._exit(0 if words.judge_batch(PAIRS) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
