"""The flags that name a judge."""

import dataclasses
import re

import pytest

from faithful_search.errors import ConfigError
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.judges.endpoint import EndpointJudge
from faithful_search.judges.remote import RemoteJudge

URL = "http://127.0.0.1:9/v1"


def endpoint(**flags) -> EndpointJudge:
    judge = JudgeArguments("endpoint", "served", URL, **flags).load_judge()
    assert isinstance(judge, EndpointJudge)
    return judge


def test_the_flags_reach_the_judge():
    assert JudgeArguments().load_judge() is None  # each reward has its own comparison of words
    limits = {"judge_concurrency": 3, "judge_timeout": 7.0}
    judge = endpoint(judge_cache="judge.sqlite", judge_max_tokens=900, judge_prices="0.15, 0.6", **limits)
    assert (judge.model, judge.url, judge.cache, judge.prices) == ("served", URL, "judge.sqlite", (0.15, 0.6))
    assert (judge.concurrency, judge.timeout, judge.max_tokens) == (3, 7.0, 900)
    assert endpoint(judge_cache="none").cache is None
    remote = JudgeArguments("remote", judge_url="http://host:1", **limits).load_judge()
    assert remote == RemoteJudge("http://host:1", timeout=7.0, concurrency=3)


def test_flags_left_out_are_the_judges_own_defaults():
    defaults = {field.name: field.default for field in dataclasses.fields(EndpointJudge)}
    judge = endpoint()
    for name in ("cache", "concurrency", "timeout", "max_tokens", "together", "prices"):
        assert getattr(judge, name) == defaults[name], name
    assert JudgeArguments("remote", judge_url="http://host:1").load_judge().timeout == RemoteJudge.timeout


@pytest.mark.parametrize(
    ("judge", "model", "url", "more", "said"),
    [
        ("oracle", None, None, {}, "unknown judge 'oracle'; there are: lexical"),
        ("lexical", "some/model", None, {}, "'lexical' has no model"),
        ("lexical", None, URL, {}, "goes with the judge 'endpoint' or 'remote', not 'lexical'"),
        ("nli", "some/model", URL, {}, "goes with the judge 'endpoint' or 'remote', not 'nli'"),
        ("nli", None, None, {}, "'nli' needs a model"),
        ("endpoint", None, URL, {}, "'endpoint' needs a model"),
        ("endpoint", "served", "127.0.0.1:9", {}, "must begin with http"),
        ("endpoint", "served", URL, {"judge_prices": "1"}, "prices '1' are two numbers"),
        ("remote", None, None, {}, "needs the URL of `faithful-search serve-judge`"),
        ("remote", None, "127.0.0.1:1", {}, "must look like http://127.0.0.1:8001"),
        ("remote", None, "http://me:secret@host", {}, "without a user or password"),
        ("remote", None, "http://host?x=1", {}, "without a query"),
        ("remote", "m", "http://host", {}, "'remote' has no model"),
        ("remote", None, "http://host", {"judge_timeout": 0.0}, "must be positive"),
        ("remote", None, "http://host", {"judge_concurrency": 0}, "must be positive"),
    ],
)
def test_flags_that_cannot_work_are_refused(judge, model, url, more, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as refusal:
        JudgeArguments(judge, model, url, **more).load_judge()
    assert "secret" not in str(refusal.value)
