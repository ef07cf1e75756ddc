"""What a distilled judge's directory says about it, and how p is calibrated."""

import json
import math
import random

import lab
import pytest
from hypothesis import given, strategies as st
from tiny_bert import bert, bert_tokenizer

from faithful_search.distil.heads import COLDEST, HOTTEST, fit_temperature, negative_log_likelihood
from faithful_search.errors import ConfigError
from faithful_search.judges import Pair, distilled, load
from faithful_search.judges.distilled import JudgeFile, calibrated
from faithful_search.judges.generator import GeneratorJudge
from faithful_search.judges.nli import NLIJudge

PAIRS = [Pair("w1 w2 w3.", "w2"), Pair("w5 w6.", "w9"), Pair("w11. w12. w13.", "w14")]
probability = st.floats(0, 1)
temperature = st.floats(0.05, 20)


def logit(p: float) -> float:
    return math.log(p / (1 - p))


@given(probability, probability, temperature)
def test_calibration_divides_the_log_odds_and_never_changes_the_label_or_the_order(p, other, value):
    assert (calibrated(p, value) >= 0.5) == (p >= 0.5)
    low, high = sorted((p, other))
    assert 0 <= calibrated(low, value) <= calibrated(high, value) <= 1
    found = calibrated(p, value)
    if 1e-6 < p < 1 - 1e-6 and 1e-9 < found < 1 - 1e-9:
        assert math.isclose(logit(found) * value, logit(p), rel_tol=1e-5, abs_tol=1e-9)


def test_the_label_of_a_p_just_below_one_half_survives_rounding():
    assert calibrated(math.nextafter(0.5, 0), 3.0) < 0.5
    assert calibrated(5e-324, 0.05) == pytest.approx(0, abs=1e-300)


def test_what_is_written_is_what_is_read(tmp_path):
    file = JudgeFile("nli", "info_think", None, 1.25, 0.4, "org/base", ("world", "mine"), window=40, stride=8)
    file.write(tmp_path)
    assert distilled.read(str(tmp_path)) == file
    written = json.loads((tmp_path / "judge.json").read_text())
    assert written["version"] == 1 and written["kind"] == "nli" and written["temperature"] == 1.25
    assert [path.name for path in tmp_path.iterdir()] == ["judge.json"]


@pytest.mark.parametrize("known", ["there", "missing", "unknown"])
def test_out_of_the_hubs_reach_a_judge_is_not_taken_for_one_without_the_file(tmp_path, monkeypatch, known):
    """The cache holds the file, or that the Hub has none, or neither: then the file was never asked for."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    own, commit = tmp_path / "models--me--judge", "a" * 40
    snapshot = own / "snapshots" / commit
    for folder in (snapshot, own / ".no_exist" / commit, own / "refs"):
        folder.mkdir(parents=True)
    (own / "refs" / "main").write_text(commit)
    if known == "there":
        JudgeFile("nli", temperature=2.0).write(snapshot)
    if known == "missing":
        (own / ".no_exist" / commit / "judge.json").touch()
    if known == "unknown":
        said = r"whether there is a judge\.json beside the model 'me/judge' is not known"
        with pytest.raises(ConfigError, match=said):
            distilled.settings("me/judge", "nli")
    else:
        found = distilled.settings("me/judge", "nli")
        assert found == ({"temperature": 2.0, "threshold": 0.5} if known == "there" else {})
    assert distilled.settings(str(snapshot), "nli").get("temperature") == (2.0 if known == "there" else None)


@pytest.mark.parametrize(
    "told",
    ["", '"kind": "x"', '"temperature": 2', '"kind": "nli", "temperature": 0', '"kind": "generator", "stride": 8', "["],
)
def test_a_broken_file_is_named(tmp_path, told):
    (tmp_path / "judge.json").write_text(f"{{{told}}}")
    with pytest.raises(ConfigError, match=r"cannot read judge\.json of the judge"):
        distilled.read(str(tmp_path))


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_temperature_is_refused(value):
    for made in (
        lambda: NLIJudge(bert(), bert_tokenizer(), temperature=value),
        lambda: GeneratorJudge(None, temperature=value),
    ):
        with pytest.raises(ConfigError, match="temperature must be above 0"):
            made()


@pytest.mark.parametrize(
    ("given", "other", "model", "tokenizer"),
    [
        (JudgeFile("nli", temperature=4.0, threshold=0.6, window=20, stride=4), "generator", bert, bert_tokenizer),
        (JudgeFile("generator", temperature=0.5, window=3000), "nli", lab.model, lab.tokenizer),
    ],
)
def test_a_judge_reads_its_file_and_knobs_win(tmp_path, given, other, model, tokenizer):
    folder = str(tmp_path)
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    assert distilled.read(folder) is None and distilled.settings(folder, given.kind) == {}
    plain = load(given.kind, folder).judge_batch(PAIRS)
    given.write(folder)
    judge, known = load(given.kind, folder), distilled.settings(folder, given.kind)
    assert {name: getattr(judge, name) for name in known} == known and known["window"] == given.window
    for before, after in zip(plain, judge.judge_batch(PAIRS), strict=True):
        assert logit(after.p) * given.temperature == pytest.approx(logit(before.p), abs=1e-5)
        assert after.label == (after.p >= given.threshold)
    assert load(given.kind, folder, temperature=1.0).judge_batch(PAIRS)[0].p == plain[0].p
    with pytest.raises(ConfigError, match=f"use --judge {given.kind}"):
        load(other, folder)


@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_the_temperature_that_made_the_labels_is_found(true):
    rng = random.Random(1)
    logits = [rng.gauss(0, 3) for _ in range(20000)]
    labels = [rng.random() < 1 / (1 + math.exp(-z / true)) for z in logits]
    assert fit_temperature([1 / (1 + math.exp(-z)) for z in logits], labels) == pytest.approx(true, rel=0.1)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_no_temperature_does_better_than_the_fitted_one(rows):
    p, labels = [row[0] for row in rows], [row[1] for row in rows]
    found = fit_temperature(p, labels)
    assert COLDEST <= found <= HOTTEST
    inside = [min(max(value, 1e-12), 1 - 1e-12) for value in p]

    def loss(value: float) -> float:
        return negative_log_likelihood([calibrated(own, value) for own in inside], labels)

    assert all(loss(found) <= loss(other) + 1e-6 for other in (0.05, 0.3, 1.0, 1.7, 5.0, 20.0))


def test_the_ends_of_the_interval():
    assert fit_temperature([0.9, 0.1], [True, False]) == pytest.approx(COLDEST, rel=1e-6)
    assert fit_temperature([0.9, 0.1], [False, True]) == pytest.approx(HOTTEST, rel=1e-6)
    assert fit_temperature([], []) == 1.0
