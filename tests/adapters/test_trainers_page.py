"""What docs/trainers.md gives to be pasted runs, where the trainer's package is installed.

Blocks of `python` are run with all other pages' in tests/project.
"""

import re
import tomllib

import pytest
import yaml
from paths import ROOT

from faithful_search.adapters.verl import compute_score_sync

PAGE = (ROOT / "docs" / "trainers.md").read_text("utf-8")
PROGRAMS = re.findall(r"^```py\n([^`]*)^```\n\n```text\n([^`]*)^```", PAGE, re.MULTILINE)
HOSTS = re.compile(r"import (skyrl_gym|verifiers)|adapters\.(openenv)")


def host_of(program):
    return next(filter(None, HOSTS.search(program).groups()))


@pytest.mark.parametrize(("program", "output"), PROGRAMS, ids=[host_of(p) for p, _ in PROGRAMS])
def test_a_program_prints_what_the_page_says(program, output, capsys, monkeypatch):
    host = host_of(program)
    package = pytest.importorskip("openenv.core" if host == "openenv" else host)
    if host == "skyrl_gym":  # another test may have registered it
        registry = package.envs.registration.registry
        monkeypatch.delitem(registry, "faithful_search", raising=False)
    exec(program, {})
    assert capsys.readouterr().out == output


def test_every_program_with_an_output_is_found():
    assert len(PROGRAMS) == 3


VERLS = [
    yaml.safe_load(text)["reward"] for text in re.findall(r"^```yaml\n([^`]*)^```", PAGE, re.M)
]


def test_verls_settings_are_those_of_the_function():
    function = VERLS[0]["custom_reward_function"]
    result = compute_score_sync("nq", "Lima", ["Lima"], **function["reward_kwargs"])
    assert (function["name"], "score" in result) == ("compute_score", True)


def test_verls_manager_is_made_of_the_pages_settings():
    pytest.importorskip("verl", reason="needs verl (pip install --no-deps verl) and ray")
    from omegaconf import OmegaConf
    from qwen_rollouts import qwen_tokenizer
    from verl.trainer.ppo.reward import load_reward_manager

    config = OmegaConf.create({"reward": VERLS[1]})
    manager = load_reward_manager(config, qwen_tokenizer(), reward_router_address=None)
    assert manager.scoring.name == "veritas"


@pytest.mark.parametrize("door", re.findall(r"`adapters\.(\w+)", PAGE))
def test_every_door_is_a_file(door):
    assert (ROOT / "src" / "faithful_search" / "adapters" / f"{door}.py").exists()


def test_every_inspect_command_names_the_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [name] = project["entry-points"]["inspect_ai"]
    assert set(re.findall(r"inspect (?:score|eval) .*?(\w+)/", PAGE)) == {name}
