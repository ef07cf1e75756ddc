"""Labelled files: what each label means, splits that nothing crosses, and bad files named."""

import gzip
import hashlib
import re
from collections import Counter

import pytest
from agent_rows import file_of
from hypothesis import given, settings, strategies as st
from paths import SHARED

from faithful_search.errors import ConfigError, DataError
from faithful_search.judges import Pair
from faithful_search.measure.agreement import parse_judge
from faithful_search.measure.agreement.labelled import load, sample

REAL = SHARED / "data" / "faithfulness"


def attribution(question, claim="Snow fell.", references=("It snowed.",), label="attributable"):
    return {
        "question": question,
        "claim": claim,
        "references": list(references),
        "attribution_label": label,
    }


def questions(held_out, count):
    """The first `count` made-up questions whose hash puts them on the side wanted."""
    texts = (f"who built bridge {number}" for number in range(1000))
    side = (
        (text, int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 5 == 0) for text in texts
    )
    return [text for text, held in side if held is held_out][:count]


HALUEVAL = {"knowledge": "K", "question": "Q", "right_answer": "yes", "hallucinated_answer": "no"}
ANLI = [{"context": "C", "statement": "S", "gold_label": label} for label in "enc"]
BEGIN = [
    {"knowledge": "K", "message": "M", "response": "R", "begin_label": label}
    for label in ("Fully attributable", "Not fully attributable", "Generic")
]


@pytest.mark.parametrize(
    ("rows", "source", "found"),
    [
        (
            [
                attribution("q1", references=("One.", "Two.")),
                attribution("q2", label="not attributable"),
            ],
            "attributionbench",
            [
                ("f:1", "One.\n\nTwo.", "Snow fell.", "q1", True),
                ("f:2", "It snowed.", "Snow fell.", "q2", False),
            ],
        ),
        (
            [HALUEVAL],
            "halueval",
            [("f:1:right", "K", "yes", "Q", True), ("f:1:hallucinated", "K", "no", "Q", False)],
        ),
        (BEGIN, "begin", [(f"f:{n}", "K", "R", "", n == 1) for n in (1, 2, 3)]),
        (ANLI, "anli", [(f"f:{n}", "C", "S", "", n == 1) for n in (1, 2, 3)]),
        (
            [{"evidence": ["A", "B"], "answer": "C", "label": 1}],
            "f",
            [("f:1", "A\n\nB", "C", "", True)],
        ),
    ],
)
def test_what_kind_of_file_it_is_is_told_by_its_columns(tmp_path, rows, source, found):
    read = load(file_of(tmp_path / "f.jsonl.gz", rows))
    assert [(row.id, row.premise, row.hypothesis, row.question, row.label) for row in read] == found
    assert {row.source for row in read} == {source}
    assert len({(row.group, row.split) for row in read if row.source != "attributionbench"}) <= 1


YES, NO = (1, "Yes", " attributable "), (False, "0", "not_entailment")


@pytest.mark.parametrize(
    ("label", "meaning"), [*((label, True) for label in YES), *((label, False) for label in NO)]
)
def test_labels_of_other_files(tmp_path, label, meaning):
    row = {
        "document": "D",
        "claim": "C",
        "supported": label,
        "question": "Q",
        "id": 7,
        "source": "mine",
    }
    (found,) = load(file_of(tmp_path / "file.jsonl", [row]))
    assert (found.label, found.source, found.id, found.question) == (
        meaning,
        "mine",
        "file:1:7",
        "Q",
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"claim": "C", "label": 1}],
            r"file.jsonl, row 1: no column premise or .*; it has: claim, label",
        ),
        ([{"premise": "P", "claim": "C"}], "no column label or"),
        ([{"premise": "P", "claim": "C", "label": "perhaps"}], "label 'perhaps' is not understood"),
        ([{"premise": "P", "claim": 3, "label": 1}], "must be texts"),
        ([{"premise": {"a": 1}, "claim": "C", "label": 1}], "a text or a list of texts"),
        (
            [{"premise": "P", "claim": "C", "label": 1, "task": "guess"}],
            "unknown task 'guess'; there are: support",
        ),
        ([attribution("q"), {"question": "q"}], r"row 2: no column 'references'; it has: question"),
        ([], "no labelled rows in it"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        load(file_of(tmp_path / "file.jsonl", rows))


@pytest.mark.parametrize("p", [1.5, -0.1, "high", "0.5", True, [0.5]])
def test_a_p_that_is_no_probability_is_an_error(tmp_path, p):
    row = {"premise": "P", "claim": "C", "label": 1, "p": p}
    path = file_of(tmp_path / "file.jsonl", [{**row, "p": 0.5}, row])
    message = f"{path}, row 2: p must be a number in [0, 1], got {p!r}"
    with pytest.raises(DataError, match=re.escape(message)):
        load(path)


@pytest.mark.parametrize("written", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_p_that_is_not_finite_is_an_error(tmp_path, written):
    path = tmp_path / "file.jsonl"
    path.write_text(f'{{"premise": "P", "claim": "C", "label": 1, "p": {written}}}\n')
    message = f"{path}, row 1: p must be a number in [0, 1], got {float(written)!r}"
    with pytest.raises(DataError, match=re.escape(message)):
        load(path)


def test_nan_in_another_column_is_a_missing_value(tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_text('{"premise": "P", "claim": "C", "label": 1, "p": null, "question": NaN}\n')
    assert load(path)[0].question == ""


@pytest.mark.parametrize("p", [0, 1, 0.25, None])
def test_a_p_is_what_the_labeller_gave(tmp_path, p):
    path = file_of(tmp_path / "file.jsonl", [{"premise": "P", "claim": "C", "label": 1, "p": p}])
    assert load(path)[0].p == p


def test_missing_and_broken_sources(tmp_path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"premise": "P"')[:-4])
    for name, message in (("nothing.jsonl", "No such file"), ("cut.jsonl.gz", "cannot read")):
        with pytest.raises(DataError, match=message):
            load(tmp_path / name)
    with pytest.raises(ConfigError, match="unknown split 'test'"):
        load(tmp_path, "test")


def test_the_hash_of_the_question_decides(tmp_path):
    (held,), (train,) = questions(True, 1), questions(False, 1)
    rows = [attribution(held, references=("A.",)), attribution(train, references=("B.",))]
    path = file_of(tmp_path / "attributionbench_dev.jsonl", rows)
    assert [row.split for row in load(path)] == ["heldout", "train"]
    assert [row.question for row in load(path, "heldout")] == [held]
    spelled = [attribution(f"  {held.upper()}?!", references=("A.",))]
    assert load(file_of(tmp_path / "attributionbench_dev.jsonl", spelled))[0].split == "heldout"
    shared = [
        {"premise": "Same.", "claim": "C", "label": 1, "question": text} for text in (train, held)
    ]
    assert [row.split for row in load(file_of(tmp_path / "file.jsonl", shared))] == [
        "overlap",
        "heldout",
    ]


def test_what_the_test_file_shares_leaves_train(tmp_path):
    one, two, three = questions(False, 3)
    file_of(
        tmp_path / "attributionbench_test500.jsonl",
        [attribution(one, references=("Shared.", "Own."))],
    )
    dev = [
        attribution(one, references=("A.",)),  # its question
        attribution(two, references=("B.", "shared")),  # one of its passages
        attribution(three, references=("C.",)),
    ]
    path = file_of(tmp_path / "attributionbench_dev.jsonl", dev)
    assert [row.split for row in load(path)] == ["overlap", "overlap", "train"]
    assert Counter(row.split for row in load(tmp_path)) == {"overlap": 2, "train": 1, "heldout": 1}
    assert [row.question for row in load(path, "train")] == [three]


@pytest.mark.parametrize(("source", "split"), [("mine", "overlap"), ("other", "train")])
def test_rows_overlap_within_their_source(tmp_path, source, split):
    (held,), (train,) = questions(True, 1), questions(False, 1)
    row = {"premise": "Same.", "claim": "C", "label": 1}
    rows = [
        {**row, "question": held, "source": "mine"},
        {**row, "question": train, "source": source},
    ]
    assert load(file_of(tmp_path / "file.jsonl", rows))[1].split == split


texts = st.sampled_from(["a b", "A  b!", "c", "d", "e", "f", "?", "", "g h", "ﬁ", "fi"])


@settings(max_examples=40)
@given(st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=20))
def test_nothing_is_on_both_sides(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "file.jsonl"
    found = load(
        file_of(path, [{"premise": p, "claim": c, "label": 1, "question": q} for p, c, q in rows])
    )
    assert len(found) == len(rows)
    sides = {side: [row for row in found if row.split == side] for side in ("train", "heldout")}
    for field in ("question", "premise"):
        shared = {getattr(row, field) for row in sides["train"]} & {
            getattr(row, field) for row in sides["heldout"]
        }
        assert all(not text.strip("?") for text in shared)
    assert not {row.group for row in sides["train"]} & {row.group for row in sides["heldout"]}


def test_samples_are_seeded_nested_and_per_source(tmp_path):
    rows = [
        {"premise": f"P{n}", "claim": f"C{n}", "label": n % 2, "source": "ab"[n % 2], "id": n}
        for n in range(60)
    ]
    found = load(file_of(tmp_path / "file.jsonl", rows))
    few, more = sample(found, 5, seed=1), sample(found, 12, seed=1)
    assert Counter(row.source for row in few) == {"a": 5, "b": 5}
    assert set(few) <= set(more)
    assert [row for row in found if row in more] == more
    assert sample(found, 5, seed=2) != few
    assert sample(found, 1000) == found


def test_labels_of_another_run_are_a_judge(tmp_path):
    rows = [
        {"premise": f"P{n}", "claim": "C", "label": n % 2, "task": "info_think", "p": 0.5 / n}
        for n in (1, 2)
    ]
    both = [{"premise": "Q", "claim": "C", "label": label} for label in (0, 1, 1)]
    path = file_of(tmp_path / "second" / "pairs.jsonl", [*rows, *both])
    name, judge = parse_judge(f"labels:{path}")
    assert name == "labels:second"
    asked = [
        Pair("P1", "C", "", "info_think"),
        Pair("P2", "C", "", "info_think"),
        Pair("P1", "C"),
        Pair("Q", "C"),
    ]
    found = judge.judge_batch(asked)
    assert [(own.p, own.label) for own in found] == [
        (0.5, True),
        (0.25, False),
        (None, None),
        (None, None),
    ]
    assert "no label" in found[2].why
    assert "both ways" in found[3].why
    assert parse_judge(f"labels:{path.parent}")[1].name == judge.name
    file_of(path, rows)
    assert parse_judge(f"labels:{path}")[1].name != judge.name


@pytest.mark.slow  # agreement with a judge counts the held out rows, too
@pytest.mark.skipif(not REAL.is_dir(), reason="the labelled data is not here")
def test_the_real_files_are_split_once_and_for_all():
    found = load(REAL)
    assert Counter(row.split for row in found) == {"train": 9938, "heldout": 2991, "overlap": 4}
    ids = "\n".join(row.id for row in found if row.split == "heldout")
    assert hashlib.sha256(ids.encode()).hexdigest()[:12] == "13f8f1eaa974"
    assert len({row.id for row in found}) == len(found)
    train, held = ([row for row in found if row.split == side] for side in ("train", "heldout"))
    for text in (lambda row: row.question, lambda row: row.premise, lambda row: row.group):
        assert not {text(row) for row in train} & {text(row) for row in held} - {""}
    name = "attributionbench_dev"  # alone it is split as in its folder
    assert load(REAL / f"{name}.jsonl.gz") == [
        row for row in found if row.id.startswith(f"{name}:")
    ]
