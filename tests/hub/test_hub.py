"""Model cards: front matter the Hub accepts, code that runs, results that are there."""

import json
import re
from unittest.mock import patch

import lab
import pytest
import yaml
from agent_rows import file_of
from huggingface_hub import ModelCard
from huggingface_hub.errors import HTTPError

from faithful_search.errors import ConfigError
from faithful_search.hub.cards import eval_results, model_card, usage
from faithful_search.hub.models import adapter_config, license_of
from faithful_search.measure.evaluation import Evaluation, Record
from faithful_search.measure.stats import Estimate, mean_ci

WORLD_QUESTION = "Olympus"  # a word of the question that the snippet asks in the bundled world
BOTH = ["local_search", "knowledge_graph"]
SETTINGS = {"turns": 2, "turn_tokens": 8, "total_tokens": 4000, "learning_rate": 1e-5}


def evaluation(values):
    rows = {
        "exact_match": mean_ci(values),
        "evidence_sensitivity": Estimate(None, None, None, 0, None),
    }
    made_by = {"exact_match": "Correctness(metric='em')"}
    questions = [f"q{number}" for number in range(len(values))]
    return Evaluation(
        rows,
        questions,
        {"exact_match": values},
        {"local_search": [1] * len(values)},
        made_by=made_by,
    )


BEFORE, AFTER = evaluation([0.0, 1.0, 0.0, 0.0]), evaluation([1.0, 1.0, 1.0, 0.0])


def card(folder, recipe="recipes/pou.py", argv=("--seed", "0"), **changes):
    """The card's text and its front matter."""
    run = {
        "model": "someone/small-base",
        "dialect": "pou",
        "tools": BOTH,
        "questions": "world",
        "settings": SETTINGS,
    }
    run |= {
        "steps": 3,
        "history": [],
        "before": BEFORE,
        "after": AFTER,
        "folder": str(folder),
        **changes,
    }
    text = model_card(Record(**run), recipe, argv).read_text(encoding="utf-8")
    return text, yaml.safe_load(re.match(r"---\n(.*?)\n---\n\n# ", text, re.DOTALL).group(1))


def code_of(text):
    return re.search(r"```python\n(.*?)\n```", text, re.DOTALL).group(1)


def test_each_row_of_the_card_is_explained_in_words(tmp_path):
    text, _ = card(tmp_path / "policy")
    assert "- `exact_match`: is the answer a gold answer?" in text
    assert "Correctness(" not in text


@pytest.fixture
def written(tmp_path):
    """A card's text and front matter, of a policy measured before and after its training."""
    return card(tmp_path / "policy")


def test_front_matter_names_the_base_model(written):
    _, front = written
    assert front["base_model"] == "someone/small-base"
    assert front["library_name"] == "transformers"
    assert front["pipeline_tag"] == "text-generation"


def test_a_licence_that_cannot_be_read_is_not_guessed(written):
    text, front = written
    assert "license" not in front
    assert "The base model's licence is not known here" in text


def test_front_matter_has_the_results_after_training(written):
    text, front = written
    (result,) = front["model-index"][0]["results"]
    assert result["metrics"][0]["type"] == "exact_match"
    assert result["metrics"][0]["args"]["n"] == 4
    assert ModelCard(text).data.eval_results[0].metric_value == 0.75


def test_results_of_too_few_questions_have_no_interval(tmp_path):
    measured = evaluation([1.0]).to_dict()
    measured["rows"]["exact_match"] |= {"low": None, "high": None}
    (tmp_path / "metrics.json").write_text(json.dumps({"after": measured}))
    [text] = eval_results(tmp_path, "me/world").values()
    assert yaml.safe_load(text)[0]["notes"] == "n = 1, with tools"


def test_the_results_before_are_written_where_there_are_none_after(tmp_path):
    measured = evaluation([1.0, 0.0]).to_dict()
    (tmp_path / "metrics.json").write_text(json.dumps({"before": measured, "after": None}))
    [text] = eval_results(tmp_path, "me/world").values()
    assert yaml.safe_load(text)[0]["value"] == 0.5


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("metrics", ["[]", "{}", '{"after": [1]}', NESTED])
def test_metrics_without_an_evaluation_are_refused(tmp_path, metrics):
    (tmp_path / "metrics.json").write_text(metrics)
    with pytest.raises(ConfigError, match="holds no evaluation"):
        eval_results(tmp_path, "me/world")


@pytest.mark.parametrize("settings", ["[1]", NESTED])
def test_adapter_settings_that_are_no_object_are_refused(tmp_path, settings):
    (tmp_path / "adapter_config.json").write_text(settings)
    with pytest.raises(ConfigError, match="cannot read"):
        adapter_config(tmp_path)


def test_the_body_has_the_command_and_the_results(written):
    text, _ = written
    assert "accelerate launch recipes/pou.py --seed 0" in text
    assert re.search(r"exact_match +↑ +0\.250 \[.*\] +0\.750 \[.*\] +\+0\.500 \[", text)
    assert "## Limitations" in text


def test_no_placeholder_is_left_in_the_body(written):
    text, _ = written
    assert "{" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def test_a_card_without_an_evaluation_says_so(tmp_path):
    text, front = card(tmp_path / "policy", before=None, after=None)
    assert "model-index" not in front
    assert "Not evaluated." in text


@pytest.mark.parametrize(
    ("base_front", "license"), [("license: llama3.2", "llama3.2"), ("license: [", None)]
)
def test_the_licence_is_the_base_models(tmp_path, base_front, license):
    base = file_of(tmp_path / "base" / "README.md", ["---", base_front, "---"]).parent
    text, front = card(tmp_path / "policy", model=str(base))
    assert front.get("license") == license
    assert ("not known here" in text) == (license is None)
    assert f"- Base model: `{base}`" in text


def test_the_licence_of_a_bundled_policy_is_known(tmp_path):
    _, front = card(tmp_path / "policy", model="tiny_memory")
    assert front["license"] == "apache-2.0"


def test_a_base_model_that_is_no_hub_id_stays_out_of_the_front_matter(tmp_path):
    _, front = card(tmp_path / "policy", model="tiny_memory")
    assert "base_model" not in front


def test_the_licence_is_unknown_if_the_hub_is_out_of_reach():
    with patch("huggingface_hub.HfApi.model_info", side_effect=HTTPError("connection refused")):
        assert license_of("someone/small-base") is None


OWN_DATA = {"corpus": 'my "notes".jsonl', "triples": "none", "search_top_k": 5}


def test_the_card_tells_of_the_users_own_data(tmp_path):
    text, front = card(
        tmp_path / "policy", settings=OWN_DATA, questions="me/asked", tools=["local_search"]
    )
    compile(code_of(text), "card", "exec")
    assert "corpus='my \"notes\".jsonl', triples='none', search_top_k=5" in code_of(text)
    assert "On the suite `me/asked`" in text
    assert front["model-index"][0]["results"][0]["dataset"] == {
        "name": "me/asked",
        "type": "me/asked",
    }


@pytest.mark.parametrize(("settings", "asks"), [(OWN_DATA, False), ({"corpus": "world"}, True)])
def test_only_a_policy_of_the_world_is_asked_about_the_world(tmp_path, settings, asks):
    text, _ = card(tmp_path / "policy", settings=settings)
    assert (WORLD_QUESTION in text) == asks


@pytest.mark.parametrize("nasty", ["yes: no", 'quote" and {brace}', "---\nlicense: mit"])
def test_texts_from_outside_do_not_break_the_card(tmp_path, nasty):
    _, front = card(tmp_path / "policy", nasty, [nasty], settings={"note": nasty}, questions=nasty)
    assert front["model-index"][0]["results"][0]["dataset"]["name"] == nasty
    assert "license" not in front


def test_the_snippet_runs(tmp_path, capsys):
    lab.model().save_pretrained(tmp_path / "policy")
    lab.tokenizer().save_pretrained(tmp_path / "policy")
    text, _ = card(tmp_path / "policy")
    scope = {}
    exec(compile(code_of(text), "card", "exec"), scope)
    assert scope["trajectory"].question
    assert len(scope["trajectory"].steps) >= 1
    assert scope["toolbox"].names == BOTH
    assert scope["engine"].limits.turn_tokens == 8
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("dialect", "config", "made"),
    [
        (
            "pou",
            {"corpus": "http://h:9", "search_top_k": 2},
            "corpus='http://h:9', search_top_k=2, dialect='pou'",
        ),
        (
            "pou",
            {"tool_cache": "here.sqlite", "cassette": "c.jsonl"},
            "EnvironmentArguments(dialect='pou')",
        ),
        (
            "search_r1",
            {"turns": 4, "kept_responses": 1},
            "turns=4, kept_responses=1, dialect='search_r1'",
        ),
        ("search_r1", {"total_tokens": 900}, "environment.limits(total_tokens=900)"),
    ],
)
def test_the_snippet_makes_the_tools_of_training(dialect, config, made):
    code = usage("me/policy", dialect, config, 'What is "it"?')
    compile(code, "usage", "exec")
    assert made in code
