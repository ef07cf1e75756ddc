"""The flags that name a judge."""

import dataclasses

import pytest

from faithful_search.errors import ConfigError
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.judges.endpoint import EndpointJudge

URL = "http://127.0.0.1:9/v1"


def endpoint(**flags) -> EndpointJudge:
    judge = JudgeArguments("endpoint", "served", URL, **flags).load_judge()
    assert isinstance(judge, EndpointJudge)
    return judge


def test_the_default_leaves_each_reward_its_own_comparison_of_words():
    assert JudgeArguments().load_judge() is None


def test_the_flags_reach_the_endpoint_judge(tmp_path):
    file = str(tmp_path / "judge.sqlite")
    judge = endpoint(
        judge_cache=file, judge_concurrency=3, judge_timeout=7.0, judge_max_tokens=900, judge_prices="0.15, 0.6"
    )
    assert (judge.model, judge.url, judge.cache) == ("served", URL, file)
    assert (judge.concurrency, judge.timeout, judge.max_tokens) == (3, 7.0, 900)
    assert judge.prices == (0.15, 0.6) and endpoint(judge_cache="none").cache is None


def test_flags_left_out_are_the_judges_own_defaults():
    defaults = {field.name: field.default for field in dataclasses.fields(EndpointJudge)}
    judge = endpoint()
    for name in ("cache", "concurrency", "timeout", "max_tokens", "together", "prices"):
        assert getattr(judge, name) == defaults[name], name


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("oracle",), "unknown judge 'oracle'; there are: lexical"),
        (("lexical", "some/model"), "'lexical' has no model"),
        (("lexical", None, URL), "goes with the judge 'endpoint' or 'remote', not 'lexical'"),
        (("nli", "some/model", URL), "goes with the judge 'endpoint' or 'remote', not 'nli'"),
        (("nli",), "'nli' needs a model"),
        (("endpoint", None, URL), "'endpoint' needs a model"),
        (("endpoint", "served", "127.0.0.1:9"), "must begin with http"),
        (("endpoint", "served", URL, None, 16, None, 16, True, "1"), r"prices '1' are two numbers"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags, said):
    with pytest.raises(ConfigError, match=said):
        JudgeArguments(*flags).load_judge()
