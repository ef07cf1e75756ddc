"""Labels that were looked at again, and judges whose weights are not here."""

import json

import pytest
from click.testing import CliRunner

from faithful_search.cli import cli
from faithful_search.errors import ConfigError, DataError, WeightsError
from faithful_search.judges.presets import PRESETS
from faithful_search.measure.agreement import load, load_revisions, parse_judges

ROWS = [
    {"id": "a", "premise": "It burned in 1697.", "hypothesis": "It burned.", "label": False},
    {"id": "b", "premise": "It burned in 1697.", "hypothesis": "Cats sleep.", "label": False},
    {"id": "c", "premise": "Cats sleep.", "hypothesis": "Cats sleep.", "label": True},
    {"id": "c", "premise": "Cats sleep.", "hypothesis": "Dogs bark.", "label": False},
]
LOOKED_AT = [
    {"id": "a", "label": True, "why": "the passage says so"},
    {"id": "pairs:2:b", "label": "false"},
]


def written(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def pairs(tmp_path):
    return written(tmp_path / "pairs.jsonl", ROWS)


def agreement(tmp_path, *arguments):
    out = str(tmp_path / "out")
    return CliRunner().invoke(cli, ["agreement", *map(str, arguments), "--out", out])


def test_judges_are_compared_with_both_versions_of_the_labels(tmp_path, pairs):
    revised = written(tmp_path / "revised.jsonl", LOOKED_AT)
    done = agreement(tmp_path, pairs, "--judge", "lexical", "--revised", revised)
    result = json.loads((tmp_path / "out" / "agreement.json").read_text())
    assert done.exit_code == 0
    assert result["against"][0]["agreement"]["value"] == 0.75
    assert result["revised"]["against"][0]["agreement"]["value"] == 1.0
    assert "pairs (revised)" in done.output
    assert "looked at again: 2 of 4; changed: 1 (1 to true, 0 to false)" in done.output


def test_a_change_is_recorded_with_its_reason(tmp_path, pairs):
    revised = written(tmp_path / "revised.jsonl", LOOKED_AT)
    agreement(tmp_path, pairs, "--judge", "lexical", "--revised", revised)
    result = json.loads((tmp_path / "out" / "agreement.json").read_text())
    assert result["revised"]["changes"] == [
        {
            "id": "pairs:1:a",
            "source": "pairs",
            "label": False,
            "revised": True,
            "why": "the passage says so",
        }
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "d", "label": True}, "row 1: no labelled row has the id 'd'"),
        ({"id": "c", "label": True}, "row 1: several rows have the id 'c'"),
        ({"id": "a"}, "row 1: no column 'label'; it has: id"),
        ({"id": "a", "label": "maybe"}, "row 1: the label 'maybe' is not understood"),
    ],
)
def test_a_revision_that_cannot_be_used_is_refused(tmp_path, pairs, row, message):
    revised = written(tmp_path / "revised.jsonl", [row])
    with pytest.raises(DataError, match=message):
        load_revisions(revised, load(pairs))


def test_two_revisions_of_one_row_are_refused(tmp_path, pairs):
    revised = written(tmp_path / "revised.jsonl", [LOOKED_AT[0], {"id": "pairs:1:a", "label": 0}])
    with pytest.raises(DataError, match="row 2: the id 'pairs:1:a' was revised before"):
        load_revisions(revised, load(pairs))


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_presets_without_weights_are_named_and_skipped(tmp_path, pairs, offline):
    done = agreement(tmp_path, pairs, "--judge", "lexical", "--judge", "presets")
    result = json.loads((tmp_path / "out" / "agreement.json").read_text())
    assert done.exit_code == 0
    assert result["judges"] == ["lexical"]
    assert list(result["unmeasured"]) == list(PRESETS)
    assert "minicheck was not measured: cannot open the model" in done.output


def test_no_judge_at_all_is_an_error(offline):
    with pytest.raises(WeightsError, match="no judge could be opened: hhem: "):
        parse_judges(["hhem"])


def test_an_unknown_judge_is_an_error_beside_others(offline):
    with pytest.raises(ConfigError, match="unknown judge 'minichek'"):
        parse_judges(["lexical", "minichek"])
