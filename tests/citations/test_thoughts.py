"""What thoughts cite, of what had been returned before them."""

import pytest

from faithful_search.citations import read_thoughts
from faithful_search.trajectory import Evidence, Step, Trajectory

ADA = Evidence("Ada was born in Veldt.", "Ada", url="https://e.org/ada")
BOB = Evidence("Bob was born in Orvik.", "Bob", url="https://e.org/bob")


def targets(*thoughts: str) -> list[list[str]]:
    """The targets that each thought cites; each step returns one more passage behind its thought."""
    steps = [
        Step(think=thought, evidence=(passage,))
        for thought, passage in zip(thoughts, (ADA, BOB), strict=False)
    ]
    steps += [Step(think=thoughts[-1], answer="Veldt")] if len(thoughts) > len(steps) else []
    readings = read_thoughts(Trajectory(tuple(steps)))
    return [[citation.target for citation in reading.citations] for reading in readings]


@pytest.mark.parametrize("mark", ["https://e.org/ada", "[Ada](https://e.org/ada)"])
def test_a_thought_cites_what_was_returned_before(mark: str) -> None:
    assert targets("I look.", f"Ada was born in Veldt ({mark}).")[1] == ["https://e.org/ada"]


def test_a_number_before_any_result_cites_nothing() -> None:
    assert targets("See [1].", "It says Veldt [1].") == [[], ["1"]]


def test_a_step_without_a_thought_has_no_reading() -> None:
    assert read_thoughts(Trajectory((Step(answer="Veldt"),))) == [None]
