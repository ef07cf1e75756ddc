"""Model cards: front matter the Hub accepts, code that runs, results that are there."""

import re
from unittest.mock import patch

import lab
import pytest
import yaml
from agent_rows import file_of
from huggingface_hub import ModelCard
from huggingface_hub.errors import HTTPError

from faithful_search.hub.cards import model_card, usage
from faithful_search.hub.models import license_of
from faithful_search.measure.evaluation import Evaluation, Record
from faithful_search.measure.stats import Estimate, mean_ci

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


def test_front_matter_and_body_tell_how_it_was_made_and_measured(tmp_path):
    text, front = card(tmp_path / "policy")
    assert front["library_name"] == "transformers", "the base model's is out of reach"
    assert "license" not in front, "the base model's is out of reach"
    assert "The base model's licence is not known here" in text
    assert front["base_model"] == "someone/small-base"
    assert front["pipeline_tag"] == "text-generation"
    (result,) = front["model-index"][0]["results"]
    assert result["metrics"][0]["type"] == "exact_match"
    assert result["metrics"][0]["args"]["n"] == 4
    assert ModelCard(text).data.eval_results[0].metric_value == 0.75
    assert "accelerate launch recipes/pou.py --seed 0" in text
    assert re.search(r"exact_match +↑ +0\.250 \[.*\] +0\.750 \[.*\] +\+0\.500 \[", text)
    assert "## Limitations" in text
    assert "{" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text, front = card(tmp_path / "policy", before=None, after=None)
    assert "model-index" not in front
    assert "Not evaluated." in text


def test_the_licence_is_the_base_models(tmp_path):
    stated = {"tiny_memory": "apache-2.0"}
    for name, front, license in (
        ("one", "license: llama3.2", "llama3.2"),
        ("broken", "license: [", None),
    ):
        stated[str(file_of(tmp_path / name / "README.md", ["---", front, "---"]).parent)] = license
    for base, license in stated.items():
        text, front = card(tmp_path / "policy", model=base)
        assert front.get("license") == license
        assert ("not known here" in text) == (license is None)
        assert "base_model" not in front
        assert f"- Base model: `{base}`" in text
    with patch("huggingface_hub.HfApi.model_info", side_effect=HTTPError("connection refused")):
        assert license_of("someone/small-base") is None


def test_the_card_tells_of_the_users_own_data(tmp_path):
    own = {"corpus": 'my "notes".jsonl', "triples": "none", "search_top_k": 5}
    text, front = card(
        tmp_path / "policy", settings=own, questions="me/asked", tools=["local_search"]
    )
    compile(code_of(text), "card", "exec")
    assert "corpus='my \"notes\".jsonl', triples='none', search_top_k=5" in code_of(text)
    assert "Olympus" not in text
    assert "On the suite `me/asked`" in text
    assert front["model-index"][0]["results"][0]["dataset"] == {
        "name": "me/asked",
        "type": "me/asked",
    }
    assert "Olympus" in card(tmp_path / "policy", settings={"corpus": "world"})[0]


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
