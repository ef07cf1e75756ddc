"""An agent of one's own is asked as those of the package are."""

import pytest

from faithful_search.measure.evaluation import run_episodes
from faithful_search.rollout.episode import copies
from faithful_search.tasks import Task
from faithful_search.trajectory import Step, Trajectory

TASKS = [Task("a", "Who?", ("Ada",)), Task("b", "Where?", ("Oslo",)), Task("a", "Who?", ("Ada",))]


class Parrot:
    """Answers each question with its last gold answer, without a step of evidence."""

    def run(self, tasks, on_end=None, on_step=None):
        trajectories = []
        for task, name, _ in copies(tasks):
            step = Step(answer=task.answers[-1])
            trajectory = Trajectory((step,), task.question, step.answer, "answered", id=name)
            if on_step is not None:
                on_step(name, step)
            if on_end is not None:
                on_end(trajectory)
            trajectories.append(trajectory)
        return trajectories


@pytest.fixture
def rollouts():
    return run_episodes(Parrot(), TASKS, "parrot")


def test_the_rollouts_come_in_the_order_of_the_tasks(rollouts):
    assert [rollout.answer for rollout in rollouts] == ["Ada", "Oslo", "Ada"]


def test_a_task_given_twice_has_two_ids(rollouts):
    assert [rollout.id for rollout in rollouts] == ["a", "b", "a#1"]


def test_what_an_agent_answered_is_not_asked_again(tmp_path, rollouts):
    class Silent:
        def run(self, tasks, on_end=None, on_step=None):
            raise AssertionError("it was asked")

    file = tmp_path / "rollouts.jsonl"
    run_episodes(Parrot(), TASKS, "parrot", file)
    assert run_episodes(Silent(), TASKS, "silent", file) == rollouts
