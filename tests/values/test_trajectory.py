"""Trajectories as JSON lines, whole or broken; how answers are normalised and compared."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_rows import file_of
from hypothesis import given, settings, strategies as st

from faithful_search.errors import ConfigError, DataError
from faithful_search.text import (
    content_words,
    exact_match,
    f1,
    normalize,
    sentences,
    shortened,
    sub_exact_match,
    well_formed,
)
from faithful_search.trajectory import (
    Evidence,
    Issue,
    Step,
    Tokens,
    ToolCall,
    Trajectory,
    read_jsonl,
    read_lines,
    write_jsonl,
)

FULL = Trajectory(
    steps=(
        Step(
            think="where?",
            call=ToolCall(
                "local_search", {"query": "Louvre", "top_k": 2}, '{"name": "local_search"}'
            ),
            evidence=(
                Evidence(
                    "It is in Paris.", "Louvre", "E1", "local_search", "https://a.example", 1.5
                ),
            ),
            spans={"think": (7, 13), "step": (0, 80)},
        ),
        Step(
            helpful=False,
            refs=("E1",),
            note="nothing found",
            issues=(Issue("refs", "E9 is unknown", (90, 92)),),
        ),
    ),
    question="Where is the Louvre?\u2028☃",
    answer="Paris",
    stop_reason="answered",
    dialect="pou",
    id="q1",
    answers=("Paris", "the city of Paris"),
    text="line\nbreak",
    issues=(Issue("tag", "stray"),),
    tokens=Tokens([1, 2], [3, 4, 5], [1, 1, 0], ((0, 2, 3),), [-0.5, -0.25, 0.0]),
    meta={"hops": 2, "nested": {"a": [1, None]}},
)


@pytest.fixture(params=["t.jsonl", "t.jsonl.gz"])
def path(request, tmp_path) -> Path:
    return tmp_path / "made" / "for it" / request.param


def test_a_file_reads_back_equal(path):
    many = [FULL, Trajectory(), Trajectory(id="b", question="?")]
    assert write_jsonl(path, []) == 0
    assert list(read_jsonl(path)) == []
    assert write_jsonl(path, iter(many)) == 3
    assert list(read_jsonl(path)) == many
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (path.suffix == ".gz")
    assert [number for number, _ in read_lines(path)] == [1, 2, 3]


@settings(max_examples=60)
@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_text_and_score_survive_json(text, score):
    step = Step(think=text, evidence=(Evidence(text, text, "E1", score=score),))
    before = Trajectory((step,), text, meta={text: text})
    line = before.to_json()
    assert "\n" not in line
    assert Trajectory.from_json(line) == Trajectory.from_json(line.encode()) == before


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"steps": [', "truncated"),
        ('{"steps": [{"think": 3}]}', r"\$\.steps\[0\]\.think"),
        (b'{"id": "\xff"}', "not a trajectory"),
        (
            '{"id": "q1", "question": "Where?", "answers": ["Rome"], "supporting_ids": ["p1"]}',
            "supporting_ids",
        ),
        ('{"question": "Where?", "golden_answers": ["Rome"]}', "golden_answers"),
    ],
)
def test_what_is_no_trajectory_is_refused(line, why):
    with pytest.raises(DataError, match=why):
        Trajectory.from_json(line)


def test_a_broken_line_is_named_or_skipped_and_told(path):
    last = Trajectory(id="last")
    path.parent.mkdir(parents=True)
    file_of(path, ["{broken", FULL.to_json(), "", "[1]", last.to_json()])
    with pytest.raises(DataError, match=r"t\.jsonl(\.gz)?, line 1: not a trajectory"):
        list(read_jsonl(path))
    told: list[tuple[int, DataError]] = []
    assert list(read_jsonl(path, lambda number, error: told.append((number, error)))) == [
        FULL,
        last,
    ]
    assert [number for number, _ in told] == [1, 4]
    assert all(isinstance(error, DataError) for _, error in told)


def test_a_failed_write_keeps_the_old_file(path):
    write_jsonl(path, [FULL])

    def failing() -> Iterator[Trajectory]:
        yield Trajectory(id="new")
        raise RuntimeError("the run died")

    with pytest.raises(RuntimeError, match="the run died"):
        write_jsonl(path, failing())
    assert list(read_jsonl(path)) == [FULL]
    assert list(path.parent.iterdir()) == [path]


def test_what_a_trajectory_sums_up_of_its_steps():
    first, again, other = Evidence("a", id="E1"), Evidence("b", id="E1"), Evidence("c", id="E2")
    found = Trajectory((Step(evidence=(first,)), Step(), Step(evidence=(again, other)))).evidence
    assert list(found.items()) == [("E1", first), ("E2", other)]
    a, b, c = (Issue(kind, "why") for kind in "abc")
    assert Trajectory((Step(issues=(b,)), Step(issues=(c,))), issues=(a,)).all_issues() == [a, b, c]
    one, beside, two = Step(think="1"), Step(same_turn=True), Step(think="2")
    assert Trajectory((one, beside, two)).turns == [(one, beside), (two,)]
    assert json.loads(Trajectory(id="a", steps=(Step(think="b"),)).to_json()) == {
        "id": "a",
        "steps": [{"think": "b"}],
    }


def test_half_characters_can_be_written(tmp_path):
    def row(half: str) -> Trajectory:
        call = ToolCall("s", {f"q{half}": [f"{half}b"]})
        return Trajectory((Step(think=f"a{half}", call=call),), question=f"{half}?", id="1")

    write_jsonl(tmp_path / "a.jsonl", [row("\ud800")])
    assert (
        list(read_jsonl(tmp_path / "a.jsonl"))
        == [Trajectory.from_json(row("\udfff").to_json())]
        == [row("?")]
    )


@pytest.mark.parametrize("damage", ["missing", "truncated", 0, 1000])
def test_an_unreadable_file_is_refused_where_lines_are_not(tmp_path, damage):
    path, told = tmp_path / "t.jsonl.gz", []
    write_jsonl(path, [Trajectory(id=f"q{number}", text=f"{number**7}") for number in range(2000)])
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        cut = (
            content[:-4000]
            if damage == "truncated"
            else content[:damage] + b"\xff" * 64 + content[damage + 64 :]
        )
        path.write_bytes(cut)
    with pytest.raises(DataError, match=r"cannot read .*t\.jsonl\.gz"):
        list(read_jsonl(path, lambda number, error: told.append(number)))
    assert told == [] or damage == 1000


# text


@pytest.mark.parametrize(
    ("text", "squad", "pokee"),
    [
        ("The U.S.A. co-op", "usa coop", "the u s a co op"),
        ("  A  man,\na plan ", "man plan", "a man a plan"),
        ("an_apple", "anapple", "an apple"),
        ("a.n.", "", "a n"),
        ("l\u2019été", "l\u2019été", "l\u2019été"),
    ],
)
def test_normalisers_differ_as_documented(text, squad, pokee):
    assert normalize(text) == squad
    assert normalize(text, "pokee") == pokee


@settings(max_examples=60)
@given(st.text())
def test_normalisation_leaves_no_outer_blanks(text):
    once = normalize(text, "pokee")
    assert normalize(once, "pokee") == once
    assert normalize(text) == normalize(text).strip()


def test_exact_match_takes_any_gold_and_nothing_matches_nothing():
    assert exact_match("the Eiffel Tower!", ["Louvre", "Eiffel tower"]) == 1.0
    assert exact_match("the Eiffel Tower", ["Eiffel tower"], "pokee") == 0.0
    assert exact_match(None, ["x"]) == exact_match("x", []) == 0.0
    with pytest.raises(ConfigError, match=r"'triviaqa'.*squad, pokee"):
        exact_match("x", ["x"], "triviaqa")
    assert (
        exact_match("A", ["A"]) == exact_match(" + ", ["+"]) == 1.0
    )  # without content, as some golds are
    assert exact_match("the", ["A"]) == exact_match(".", ["+"]) == exact_match(" ", [""]) == 0.0


def test_sub_exact_match_looks_for_gold_in_the_prediction():
    assert sub_exact_match("It is Paris, France.", ["paris"]) == 1.0
    assert sub_exact_match("Paris", ["Paris, France"]) == sub_exact_match(None, ["x"]) == 0.0
    assert sub_exact_match("anything", ["the"]) == 0.0, (
        "a gold that normalises to nothing is in everything"
    )


@pytest.mark.parametrize(
    ("prediction", "golds", "squad", "pokee"),
    [
        (
            "Ada King Lovelace",
            ["Ada Lovelace"],
            0.8,
            0.8,
        ),  # 3 tokens against 2, 2 common: P 2/3, R 1
        (
            "new new new",
            ["new"],
            0.5,
            1.0,
        ),  # multiset: one common of 3 and 1 tokens; as sets both are {"new"}
        ("x", ["y", "x"], 1.0, 1.0),
        ("x", [], 0.0, 0.0),
        (None, ["x"], 0.0, 0.0),
        ("", [""], 0.0, 0.0),
        ("yes it is", ["yes"], 0.0, 0.5),  # HotpotQA's rule: closed answers get no partial credit
        ("no", ["no way"], 0.0, 2 / 3),
        ("Yes.", ["yes"], 1.0, 1.0),
    ],
)
def test_f1_counts_tokens_in_squad_and_sets_in_pokee(prediction, golds, squad, pokee):
    assert [f1(prediction, golds, how) for how in ("squad", "pokee")] == pytest.approx(
        [squad, pokee]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        (
            "Dr. J. R. Smith met Mrs. Jones. They left.",
            ["Dr. J. R. Smith met Mrs. Jones.", "They left."],
        ),
        ("It cost 3.5 million. 12 died.", ["It cost 3.5 million.", "12 died."]),
        ("He lives in the U.S. and works.", ["He lives in the U.S. and works."]),
        ("first line\nsecond line", ["first line", "second line"]),
        ('He said "Go." Then left.', ['He said "Go."', "Then left."]),
        (" \n ", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


@settings(max_examples=60)
@given(st.text(alphabet="aB. \n!?\"'Dr"))
def test_sentences_lose_nothing_but_blanks(text):
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


def test_content_words_keep_order_and_repeats():
    assert content_words("The Seine is in Paris, and Paris is on the Seine; it's 777 km") == [
        "seine", "paris", "paris", "seine", "it's", "777", "km",
    ]  # fmt: skip
    assert content_words("of the") == []


def test_text_made_safe_to_write():
    assert (well_formed("a\ud800b"), shortened("abcdef", 4), shortened("abcd", 4)) == (
        "a?b",
        "abc…",
        "abcd",
    )
