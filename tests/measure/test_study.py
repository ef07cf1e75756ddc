"""Studies over seeds: which runs they are made of."""

from argparse import Namespace
from pathlib import Path

import pytest
import study
from study_parts import START

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
