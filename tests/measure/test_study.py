"""Studies over seeds: which runs they are made of."""

from argparse import Namespace
from pathlib import Path

import pytest
import study
from study_parts import START, VALUES, tables_over_seeds

from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.writing import write_metrics

TWO = study.narrowed(study.POU, ["the paper's form", "Proof-of-Use"], seeds=None)


def planned(first_seed=0):
    return study.plan(TWO, Namespace(out=Path("out"), steps=40, first_seed=first_seed))


def test_the_start_is_measured_and_not_trained():
    first, *_ = planned()
    assert (first.setting, first.command) == (START, ())


def test_settings_have_as_many_seeds_as_they_say():
    folders = [run.folder.name for run in planned()[1:]]
    assert sorted(folders) == sorted(
        [f"the_paper_s_form_{seed}" for seed in range(8)]
        + [f"Proof_of_Use_{seed}" for seed in range(5)]
    )


def test_seeds_before_the_first_are_left_out():
    folders = [run.folder.name for run in planned(first_seed=5)[1:]]
    assert folders == ["the_paper_s_form_5", "the_paper_s_form_6", "the_paper_s_form_7"]


@pytest.mark.parametrize("seed", [5, 7])
def test_a_run_trains_with_its_seed(seed):
    [run] = [run for run in planned(first_seed=5) if run.folder.name.endswith(f"_{seed}")]
    assert run.command[run.command.index("--seed") + 1] == str(seed)


def test_a_first_seed_that_no_setting_has_is_refused():
    with pytest.raises(SystemExit, match="no setting has a seed from 8 on"):
        planned(first_seed=8)


def test_a_study_of_no_setting_of_its_diagram_has_tables(tmp_path):
    name = "EM + think-answer"
    one_setting = study.narrowed(study.THOUGHTS, [name], seeds=1)
    values = {metric: [1.0, 0.0] for metric in one_setting.metrics}
    evaluation = Evaluation({}, ["q1", "q2"], values, {})
    run = study.Run(name, tmp_path / "run", tmp_path / "run")
    (run.folder / "test").mkdir(parents=True)
    write_metrics(run.folder / "test" / "metrics.json", {"run": evaluation.to_dict()})
    study.summarise(one_setting, [run], tmp_path)
    assert f"| {name} | 1 | 0.500" in (tmp_path / "study.md").read_text(encoding="utf-8")


def test_a_single_setting_has_no_differences_to_itself():
    evaluation = Evaluation({}, ["q1", "q2"], {"exact_match": [1.0, 0.0]}, {})
    tables = tables_over_seeds({"EM": [evaluation]}, ["exact_match"], ["EM"])
    assert list(tables) == [VALUES]
