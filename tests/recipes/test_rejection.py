"""Rejection sampling: what is sampled, what is accepted, and what is trained on it."""

import json

import lab
import pytest

from faithful_search.errors import ConfigError, DataError
from faithful_search.recipes import rejection
from faithful_search.recipes.evaluation_models import Models
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, read_jsonl

QUESTION = {"id": "q1", "question": "What is the capital of Peru?", "answers": ["Lima"]}
CORPUS = {"id": "p1", "title": "Peru", "text": "The capital of Peru is Lima."}
READS = (
    lab.searching("look", "local_search", "capital of Peru"),
    lab.answering("yes", "E1", "It says so.", "Lima"),
)
GUESSES = ("<think>I know it.</think><answer>Lima</answer>",)


class Recorded:
    """Runs the recipe on one question with a scripted policy; keeps the flags of the training."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.trainings = []
        self.policy = lab.Scripted(READS)
        (folder / "questions.jsonl").write_text(json.dumps(QUESTION) + "\n")
        (folder / "corpus.jsonl").write_text(json.dumps(CORPUS) + "\n")
        monkeypatch.chdir(folder)
        monkeypatch.setattr(Models, "generator", lambda *_: self.policy)
        monkeypatch.setattr(rejection.sft, "main", lambda argv, _: self.trainings.append(argv))

    def run(self, *flags):
        places = ("--questions=questions.jsonl", "--corpus=corpus.jsonl", "--triples=none")
        limits = ("--turn_tokens=400", "--total_tokens=2000", "--samples=3", "--threads=1")
        rejection.main([*places, *limits, "--out=out", *flags])

    @property
    def accepted(self):
        return list(read_jsonl(self.folder / "out" / "accepted.jsonl"))


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    return Recorded(tmp_path, monkeypatch)


def test_rollouts_that_read_their_answer_are_trained_on(recipe):
    recipe.run()
    assert [rollout.id for rollout in recipe.accepted] == ["q1", "q1#1", "q1#2"]


def test_their_prompts_describe_the_tools_that_they_had(recipe):
    recipe.run()
    [tool] = recipe.accepted[0].meta["tools"]
    assert tool["function"]["name"] == "local_search"


def test_the_training_reads_them(recipe):
    recipe.run()
    [flags] = recipe.trainings
    assert flags[-2:] == ["--trajectories", "out/accepted.jsonl"]


def test_flags_behind_two_dashes_are_the_trainings(recipe):
    recipe.run("--", "--max_steps=7")
    [flags] = recipe.trainings
    # Of two flags with one name the later one counts, so the user's come last
    assert flags.index("--max_steps=7") > flags.index("--dialect=pou")


def test_a_wrong_flag_of_the_training_is_told_before_sampling(recipe):
    with pytest.raises(ConfigError, match="no such flag: --max_stepz"):
        recipe.run("--", "--max_stepz=7")
    assert recipe.policy.seen == []


def test_without_an_accepted_rollout_there_is_no_training(recipe):
    recipe.policy = lab.Scripted(GUESSES)
    with pytest.raises(DataError, match="none of 3 rollouts can be trained on"):
        recipe.run()
    assert recipe.trainings == []


def test_no_more_than_so_many_of_a_question(recipe):
    recipe.run("--per_question=2")
    assert len(recipe.accepted) == 2


def test_an_earlier_run_is_not_touched(recipe):
    recipe.run()
    with pytest.raises(ConfigError, match="out holds an earlier run: --resume goes on"):
        recipe.run()


def test_rollouts_that_are_there_are_not_sampled_again(recipe):
    recipe.run()
    recipe.policy = lab.Scripted(GUESSES)
    recipe.run("--resume=true")
    assert recipe.policy.seen == []
    assert len(recipe.accepted) == 3


def test_a_run_cannot_go_on_with_other_settings(recipe):
    recipe.run()
    with pytest.raises(ConfigError, match=r"created with different settings \(samples: 3 there"):
        recipe.run("--resume=true", "--samples=4")


def test_what_is_accepted_may_change(recipe):
    recipe.run()
    recipe.run("--resume=true", "--per_question=1")
    assert len(recipe.accepted) == 1


def test_a_new_run_samples_anew(recipe):
    recipe.run()
    recipe.policy = lab.Scripted(READS)
    recipe.run("--overwrite=true")
    samples, turns = 3, 2
    assert len(recipe.policy.seen) == samples * turns


def test_several_processes_are_told_how_to_train(recipe, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="the rollouts are sampled in one process"):
        recipe.run()


@pytest.mark.parametrize(
    ("answer", "evidence", "reason"),
    [
        ("Lima", "The capital of Peru is Lima.", None),
        ("Lima", "Peru is old.", "ungrounded"),
        ("Cusco", "The capital of Peru is Lima.", "wrong_answer"),
    ],
)
def test_a_rollout_is_right_and_rests_on_evidence(answer, evidence, reason):
    call = ToolCall("search", {"query": "Peru"})
    steps = (
        Step(think="look", call=call, evidence=(Evidence(evidence, "Peru", "E1"),)),
        Step(think="so", answer=answer),
    )
    rollout = Trajectory(steps, "Which?", answer, dialect="search_r1", answers=("Lima",))
    _, reasons = rejection.choose([rollout], rejection.RejectionArguments())
    assert list(reasons) == ([] if reason is None else [reason])
