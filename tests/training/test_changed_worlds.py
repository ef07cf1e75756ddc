"""Training in changed worlds: which rollouts meet one, what they are scored by, and what the log
says.
"""

import json

import lab
import pytest
from hypothesis import given, strategies as st
from tiny_trainer import TURNS, Luck, trainer

from faithful_search.counterfactual import CounterfactualWorld
from faithful_search.errors import ConfigError
from faithful_search.rewards import Correctness
from faithful_search.tasks import Task
from faithful_search.training.changed_worlds import ChangedWorlds
from faithful_search.training.step_metrics import world_metrics
from faithful_search.trajectory import Trajectory, read_jsonl
from faithful_search.world import Change, Statement, World, bundled_world

CITIES = ("Oslo", "Lima", "Bern", "Kyiv", "Riga", "Bonn")
WORLD = World(
    (
        Statement("1", "shelf", "train", "Place", "city", "Rome", "Place", "It is in Rome."),
        *(
            Statement(city, "shelf", "train", f"{city} Hall", "city", city, "", f"{city} Hall.")
            for city in CITIES
        ),
    )
)
"""What `tiny_trainer.trainer`'s only tool says, and what else it could say."""
FACT = {"chain": [{"subject": "Place", "relation": "city", "object": "Rome"}]}
TASKS = [
    Task(f"q{number}", f"Question {number}?", ("Rome",), meta=FACT if number else {})
    for number in range(8)
]
"""The first one has no chain, and so no changed world."""
GROUPS = ("paired", "own")


def in_worlds(path, reward=None, **settings):
    more = {
        "tasks": TASKS,
        "counterfactual": 0.5,
        "counterfactual_world": CounterfactualWorld(WORLD, 3),
        **settings,
    }
    return trainer(path, reward or Luck(), trajectory_file=path / "t.jsonl", **more)


def rows_of(path):
    return list(read_jsonl(path / "t.jsonl"))


class Reader(lab.Scripted):
    """Answers what it read; with a memory, Rome."""

    def __init__(self, memory: bool) -> None:
        super().__init__(TURNS)
        self.memory = memory

    def _turn(self, prompt, limit):
        read = self.tokenizer.decode(prompt).rpartition("It is in ")[2]
        city = "Rome" if self.memory else read.partition(".")[0]
        self.turns = [TURNS[0], TURNS[1].replace("Rome", city)]
        return super()._turn(prompt, limit)


@pytest.mark.parametrize("memory", [False, True])
def test_half_of_every_group_is_scored_by_what_it_could_read(tmp_path, memory):
    """A reader is right in both worlds; a memory is wrong in the changed one, and the metrics tell
    them apart.
    """
    made = in_worlds(tmp_path, Correctness(), scripted=True)
    made.engine.generator = Reader(memory)
    made.train()
    rows = rows_of(tmp_path)
    assert len(rows) == 32
    for number, row in enumerate(rows):
        change, due = Change.of(row.meta), number % 4 >= 2  # the last two of a group
        assert (change is not None) is (due and row.id.split("@")[0] != "q0")
        assert row.steps[0].evidence[0].text == f"It is in {change.new if change else 'Rome'}."
        assert row.answers == ((change.new,) if change else ("Rome",))
        assert row.meta["reward"] == (not memory or change is None)
    logged = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())[
        "log_history"
    ]
    steps = [line for line in logged if "counterfactual/share" in line]
    assert len(steps) == 4
    assert all(line["counterfactual/original"] == 1.0 for line in steps)
    assert {line["counterfactual/exact_match"] for line in steps} == {0.0 if memory else 1.0}
    without = {line["counterfactual/share"]: line["counterfactual/unchanged"] for line in steps}
    assert without[0.5] == 0  # with q0
    assert set(without) <= {0.25, 0.5}
    assert without.get(0.25, 0.5) == 0.5


def test_a_question_that_brings_its_own_version_is_asked_in_it(tmp_path):
    stale, dropped = CounterfactualWorld(WORLD).change_all(TASKS)
    in_worlds(tmp_path, scripted=True, max_steps=1, tasks=stale, counterfactual=0.0).train()
    assert dropped.total() == 1
    for row in rows_of(tmp_path):
        change = Change.of(row.meta)
        assert row.answers == (change.new,)
        assert row.steps[0].evidence[0].text == f"It is in {change.new}."


def test_evaluation_questions_are_never_changed(tmp_path):
    """Not by `evaluate` on the very same questions, which moves no state, nor by an engine with the
    trainer's tools.
    """
    made = in_worlds(tmp_path, scripted=True, max_steps=1, counterfactual=1.0)
    made.engine.generator = Reader(memory=False)
    seen = []
    made.mix = made.mix.bind()
    score = made.mix.components
    object.__setattr__(made.mix, "components", lambda rows: seen.extend(rows) or score(rows))
    made.train()
    assert seen
    assert all(Change.of(row.meta) for row in seen if not row.id.startswith("q0@"))
    seen.clear()
    state = made.reward_state
    made.evaluate(made.train_dataset)
    assert made.reward_state == state
    assert state.step > 0
    assert len(seen) >= 8
    assert (
        {row.answer for row in seen} == {"Rome"} == {gold for row in seen for gold in row.answers}
    )
    assert not any(Change.of(row.meta) for row in seen)
    (after,) = made.engine.run([TASKS[1]])
    assert after.answer == "Rome"
    assert after.meta == {}


@given(
    st.integers(1, 4),
    st.sampled_from([0.25, 0.5, 0.75, 1.0]),
    st.sampled_from(GROUPS),
    st.integers(0, 9),
)
def test_processes_share_a_batch_as_one_would_have_it(processes, share, groups, step):
    """12 rows are 3 questions of 4; a group may lie in two processes."""
    worlds = ChangedWorlds(CounterfactualWorld(WORLD), TASKS, share, 4, groups)
    rows, size = [number // 4 for number in range(12)], 12 // processes
    split = [
        worlds.questions(rows[size * p : size * (p + 1)], size * p, step) for p in range(processes)
    ]
    whole = worlds.questions(rows, 0, step)
    assert [task for part in split for task in part] == whole
    if groups == "paired":
        assert [bool(task.edits) for task in whole[4:]] == [
            place >= 4 - 4 * share for place in range(4)
        ] * 2


@pytest.mark.parametrize("groups", GROUPS)
def test_a_group_shares_its_change_and_each_step_has_another(groups):
    """Drawn from seed and step, so that a resumed run meets the same worlds."""
    rows, drawn = [1 + number // 4 for number in range(8)], []
    for step in range(16):
        made = [ChangedWorlds(CounterfactualWorld(WORLD, 3), TASKS, 0.5, 4, groups) for _ in "12"]
        first, again = ([task.edits for task in worlds.questions(rows, 0, step)] for worlds in made)
        assert first == again
        for group in (first[:4], first[4:]):
            kinds = {str(edits) for edits in group if edits}
            assert len(kinds) <= 1
            assert sum(map(bool, group)) in ({2} if groups == "paired" else {0, 4})
            drawn += kinds
    assert len(set(drawn)) > 2
    assert groups == "paired" or 8 <= len(drawn) <= 24


def test_figures_of_a_step_by_hand():
    """Three are due; two of them are in a changed world, one of those without gold answers."""
    changed = CounterfactualWorld(WORLD).change(TASKS[1]).meta
    rows = [
        ("Oslo", "Oslo", changed),
        ("Oslo", None, changed),
        ("Oslo", "Rome", {}),
        ("Rome", "Rome", {}),
    ]
    rollouts = [
        Trajectory(answer=said, answers=(gold,) if gold else (), meta=meta)
        for said, gold, meta in rows
    ]
    expected = {"share": 0.5, "unchanged": 1 / 3, "exact_match": 1.0, "original": 0.5}
    found = world_metrics(rollouts, [True, True, True, False])
    assert found == {f"counterfactual/{name}": value for name, value in expected.items()}
    nothing = world_metrics([Trajectory()], [False])
    assert [name for name, value in nothing.items() if value is not None] == [
        "counterfactual/share"
    ]


def test_questions_that_no_changed_world_is_about_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="of 8 questions none has a changed world: 7"):
        in_worlds(tmp_path, counterfactual_world=CounterfactualWorld(bundled_world()))
