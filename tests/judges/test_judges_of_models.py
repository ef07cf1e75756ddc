"""What judges that run a model here have in common: how they are opened, batched, copied and refused."""

import pickle
from dataclasses import replace
from typing import Any

import lab
import pytest
from tiny_bert import LONG, bert, bert_tokenizer, t5, t5_tokenizer, tiny_encoder

from faithful_search.errors import ConfigError
from faithful_search.judges import Judge, Pair, load

MADE = {
    "classifier": ("nli", bert, bert_tokenizer),
    "seq2seq": ("nli", t5, t5_tokenizer),
    "generator": ("generator", lab.model, lab.tokenizer),
    "embedding": ("embedding", tiny_encoder, bert_tokenizer),
}
PAIRS = [
    Pair("w1 w2 w3", "w2"),
    Pair(LONG, "w9 w10"),
    Pair("", "w4"),
    Pair("w5 " * 30, "w7 w8 w9 w10", "Which one?"),
    Pair("w11. w12. w13.", "w14", "", "think_search"),
]


@pytest.fixture(params=MADE)
def made(request: Any, tmp_path: Any) -> tuple[str, str]:
    """The kind of a judge, and the directory of its model."""
    kind, model, tokenizer = MADE[request.param]
    model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    return kind, str(tmp_path)


def test_it_loads_from_a_directory_prints_and_pickles(made):
    kind, folder = made
    judge = load(kind, folder, threshold=0.25)
    assert isinstance(judge, Judge) and judge.name == f"{kind}:{folder}"
    assert f"source={folder!r}" in repr(judge) and "threshold=0.25" in repr(judge) and "model=" not in repr(judge)
    again = pickle.loads(pickle.dumps(judge))
    assert again.judge_batch(PAIRS) == judge.judge_batch(PAIRS) and judge.judge_batch([]) == []
    sure = replace(judge, threshold=1.0).judge_batch(PAIRS)
    assert [v.p for v in sure] == [v.p for v in judge.judge_batch(PAIRS)] and not any(v.label for v in sure)


def test_a_batch_says_what_single_pairs_say_in_their_order(made):
    kind, folder = made
    for budget in (1, 130, 10_000):
        judge = load(kind, folder, batch_tokens=budget)
        together, alone = judge.judge_batch(PAIRS), [judge.judge_batch([pair])[0] for pair in PAIRS]
        assert [v.p for v in together] == pytest.approx([v.p for v in alone], abs=1e-5)
        assert [v.why.split()[0] for v in together] == [v.why.split()[0] for v in alone]
    assert len({round(v.p, 5) for v in together}) == len(PAIRS)  # else order could not be seen


@pytest.mark.parametrize("kind", ["nli", "generator", "embedding"])
def test_what_cannot_be_opened_or_set_is_refused(kind, tmp_path):
    with pytest.raises(ConfigError, match="there is no model"):
        load(kind, str(tmp_path / "nothing"))
    _, model, tokenizer = next(parts for parts in MADE.values() if parts[0] == kind)
    model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    for knobs in ({"threshold": 1.5}, {"threshold": -0.1}, {"window": 0}, {"window": 8, "stride": 8}, {"stride": -1}):
        with pytest.raises((ConfigError, TypeError) if kind == "generator" and "stride" in knobs else ConfigError):
            load(kind, str(tmp_path), **knobs)
    with pytest.raises(ConfigError, match="at least 1 token"):
        load(kind, str(tmp_path), batch_tokens=0).judge_batch(PAIRS)
