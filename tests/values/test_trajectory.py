"""Trajectories as values and as JSON lines: round trips, broken lines, broken files, failed writes."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from faithful_search.errors import DataError
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
            call=ToolCall("local_search", {"query": "Louvre", "top_k": 2}, '{"name": "local_search"}'),
            evidence=(Evidence("It is in Paris.", "Louvre", "E1", "local_search", "https://a.example", 1.5),),
            spans={"think": (7, 13), "step": (0, 80)},
        ),
        Step(helpful=False, refs=("E1",), note="nothing found", issues=(Issue("refs", "E9 is unknown", (90, 92)),)),
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


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_a_file_reads_back_equal(path):
    many = [FULL, Trajectory(), Trajectory(id="b", question="?")]
    assert write_jsonl(path, []) == 0 and list(read_jsonl(path)) == []
    assert write_jsonl(path, iter(many)) == 3
    assert list(read_jsonl(path)) == many
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (path.suffix == ".gz")
    assert [number for number, _ in read_lines(path)] == [1, 2, 3]


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_and_score_survive_json(text, score):
    before = Trajectory(
        (Step(think=text, evidence=(Evidence(text, text, "E1", score=score),)),), text, meta={text: text}
    )
    line = before.to_json()
    assert "\n" not in line
    assert Trajectory.from_json(line) == Trajectory.from_json(line.encode()) == before


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "not a trajectory"),
        ("[]", "Expected `object`"),
        ('{"steps": [', "truncated"),
        ('{"steps": [{"think": 3}]}', r"\$\.steps\[0\]\.think"),
        (b'{"id": "\xff"}', "not a trajectory"),
        ('{"id": "q1", "question": "Where?", "answers": ["Rome"], "supporting_ids": ["p1"]}', "supporting_ids"),
        ('{"question": "Where?", "golden_answers": ["Rome"]}', "golden_answers"),
    ],
)
def test_what_is_no_trajectory_is_refused(line, why):
    with pytest.raises(DataError, match=why):
        Trajectory.from_json(line)


def test_a_broken_line_is_named_or_skipped_and_told(path):
    last = Trajectory(id="last")
    put(path, b"{broken\n" + FULL.to_json().encode() + b"\n\n[1]\n" + last.to_json().encode())
    with pytest.raises(DataError, match=r"t\.jsonl(\.gz)?, line 1: not a trajectory"):
        list(read_jsonl(path))
    told: list[tuple[int, DataError]] = []
    assert list(read_jsonl(path, lambda number, error: told.append((number, error)))) == [FULL, last]
    assert [number for number, _ in told] == [1, 4] and all(isinstance(error, DataError) for _, error in told)

    def full_disk(number: int, error: DataError) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):  # the caller's own error is not taken for the file's
        list(read_jsonl(path, full_disk))


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
    assert list(found.items()) == [("E1", first), ("E2", other)] and Trajectory().evidence == {}
    a, b, c = (Issue(kind, "why") for kind in "abc")
    assert Trajectory((Step(issues=(b,)), Step(issues=(c,))), issues=(a,)).all_issues() == [a, b, c]
    one, beside, two = Step(think="1"), Step(same_turn=True), Step(think="2")
    assert Trajectory((one, beside, two)).turns == [(one, beside), (two,)]
    assert json.loads(Trajectory(id="a", steps=(Step(think="b"),)).to_json()) == {"id": "a", "steps": [{"think": "b"}]}


def test_half_characters_do_not_keep_a_trajectory_from_being_written(tmp_path):
    broken = Trajectory(
        (Step(think="a\ud800", call=ToolCall("s", {"q\udc00": ["\ud800b"]})),), question="\udfff?", id="1"
    )
    clean = Trajectory((Step(think="a?", call=ToolCall("s", {"q?": ["?b"]})),), question="??", id="1")
    assert Trajectory.from_json(broken.to_json()) == clean
    write_jsonl(tmp_path / "a.jsonl", [broken])
    assert list(read_jsonl(tmp_path / "a.jsonl")) == [clean]


@pytest.mark.parametrize("damage", ["missing", "truncated", 0, 1000])
def test_a_file_that_cannot_be_read_is_refused_even_when_broken_lines_are_not(tmp_path, damage):
    path, told = tmp_path / "t.jsonl.gz", []
    write_jsonl(path, [Trajectory(id=f"q{number}", text=f"{number**7}") for number in range(2000)])
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        cut = content[:-4000] if damage == "truncated" else content[:damage] + b"\xff" * 64 + content[damage + 64 :]
        path.write_bytes(cut)
    with pytest.raises(DataError, match=r"cannot read .*t\.jsonl\.gz"):
        list(read_jsonl(path, lambda number, error: told.append(number)))
    assert told == [] or damage == 1000
