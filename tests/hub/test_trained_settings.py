"""The settings of a policy's training: known, known to be missing, or not to be had."""

import json
from unittest.mock import Mock

import httpx2
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError

from faithful_search.errors import ConfigError
from faithful_search.hub.models import settings_to_run, trained_with
from faithful_search.inference import hub_files


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """The folder of a snapshot of me/policy in the Hub's cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--me--policy"
    folder = repository / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    hub_files.check_there.cache_clear()
    return folder


def hub_error(kind):
    """An error as the Hub's client raises it."""
    return kind("404", response=httpx2.Response(404, request=httpx2.Request("GET", "https://hub")))


def test_settings_unknown_without_the_hub_are_an_error(cached):
    with pytest.raises(ConfigError, match=r"whether there is a metrics\.json .* is not known here"):
        settings_to_run("me/policy")


def test_a_model_that_was_never_here_is_not_found_without_the_hub(cached):
    with pytest.raises(ConfigError, match=r"there is no model 'me/other' here, .*HF_HUB_OFFLINE"):
        trained_with("me/other")


def test_settings_nested_too_deeply_are_refused(tmp_path):
    (tmp_path / "metrics.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ConfigError, match=r"cannot read metrics\.json .* nested more than"):
        trained_with(str(tmp_path))


def test_settings_in_the_cache_need_no_hub(cached):
    (cached / "metrics.json").write_text(json.dumps({"settings": {"dialect": "search_r1"}}))
    assert settings_to_run("me/policy") == {"dialect": "search_r1"}


def test_a_policy_that_the_hub_knows_without_settings_has_none(cached):
    missing = cached.parent.parent / ".no_exist" / "abc" / "metrics.json"
    missing.parent.mkdir(parents=True)
    missing.touch()
    assert trained_with("me/policy") == {}


def test_a_policy_without_settings_on_the_hub_has_none(cached, monkeypatch):
    error = hub_error(RemoteEntryNotFoundError)
    monkeypatch.setattr(hub_files, "hf_hub_download", Mock(side_effect=error))
    assert trained_with("me/policy") == {}


def test_a_policy_that_is_nowhere_is_an_error(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    error = hub_error(RepositoryNotFoundError)
    monkeypatch.setattr(hub_files.HfApi, "model_info", Mock(side_effect=error))
    hub_files.check_there.cache_clear()
    with pytest.raises(ConfigError, match="there is no model 'me/nowhere'"):
        trained_with("me/nowhere")
