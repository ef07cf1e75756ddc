"""Where the tokenizer of a PEFT adapter is taken from."""

import json
import shutil

import pytest

from faithful_search.bundled import tiny_policy
from faithful_search.errors import WeightsError
from faithful_search.inference.loading import read_tokenizer


def adapter_of(base, folder):
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    return folder


@pytest.mark.parametrize("subfolder", ["", "best"])
def test_an_adapter_without_a_tokenizer_has_that_of_its_base(tmp_path, subfolder):
    base = tiny_policy("pou")
    adapter_of(base, tmp_path / "adapter" / subfolder)
    tokenizer = read_tokenizer(str(tmp_path / "adapter"), subfolder=subfolder)
    assert tokenizer.name_or_path == str(base)


def test_an_adapter_keeps_its_own_tokenizer(tmp_path):
    adapter = adapter_of("/elsewhere", tmp_path / "adapter")
    for file in tiny_policy("pou").glob("*token*"):
        shutil.copy(file, adapter)
    assert read_tokenizer(str(adapter)).name_or_path == str(adapter)


@pytest.mark.parametrize("config", ["[1]", "{}", '{"base_model_name_or_path": null}'])
def test_an_adapter_that_names_no_base_is_refused(tmp_path, config):
    (tmp_path / "adapter_config.json").write_text(config)
    with pytest.raises(WeightsError, match="names no `base_model_name_or_path`"):
        read_tokenizer(str(tmp_path))


def test_broken_settings_of_a_tokenizer_are_refused(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(WeightsError, match="cannot open the tokenizer"):
        read_tokenizer(str(tmp_path))
