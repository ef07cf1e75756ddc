"""The metrics by name, and as `evaluate` modules: loaded, installed, computed, explained; their
cards and pages.
"""

import importlib.util
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import evaluate
import msgspec
import pytest
import yaml
from agent_rows import CountingJudge, silent_on
from hypothesis import given, settings, strategies as st
from lab import Writing
from msgspec.structs import replace
from paths import ROOT, SHARED

import faithful_search as fs
from faithful_search.dialects import load as dialect
from faithful_search.errors import ConfigError, DataError, DialectError, JudgeError
from faithful_search.json_lines import read_rows
from faithful_search.judges import ContainmentJudge, GroundingJudge
from faithful_search.measure import metrics, widget
from faithful_search.rewards import ToolUse

ROLLOUTS = SHARED / "data/trajectories/r1_searcher_hotpotqa_qwen.jsonl.gz"

NAMED = {  # without a judge, and with one that reads
    "answer_correctness": (
        ["exact_match_unicode", "f1_unicode", "sub_em_unicode"],
        ["answer_correctness"],
    ),
    "answer_support": (
        ["answer_support_lexical", "declined"],
        ["answer_support", "declined"],
    ),
    "citation_validity": (["citation_validity"], ["citation_validity"]),
    "citations": (
        ["citation_returned", "citation_support_lexical", "citation_coverage"],
        ["citation_returned", "citation_support", "citation_coverage"],
    ),
    "evidence_sensitivity": (["evidence_sensitivity"], ["evidence_sensitivity"]),
    "info_think_faithfulness": (["info_think_lexical"], ["info_think_faithfulness"]),
    "protocol_format": (["protocol_format"], ["protocol_format"]),
    "query_provenance": (
        [f"query_from_{of}_lexical" for of in ("question", "evidence", "thought")],
    )
    * 2,
    "think_answer_faithfulness": (["think_answer_sub_em"], ["think_answer_faithfulness"]),
    "think_search_faithfulness": (["think_search_lexical"], ["think_search_faithfulness"]),
    "tool_use": (["repeated_calls", "unused_evidence_lexical", "uncited_evidence"],) * 2,
}

JUDGED_BY_WORDS = {
    "answer_support_lexical",
    "citation_support_lexical",
    "info_think_lexical",
    "think_search_lexical",
}
"""Whose last word is the judge's name; other comparisons of words ask no judge."""


def test_results_are_named_for_what_made_them():
    assert metrics.names() == list(NAMED)
    for name, (without, judged) in NAMED.items():
        assert list(metrics.load(name)) == without
        assert list(metrics.load(name, GroundingJudge())) == without
        judged_by_words = [
            row.replace("_lexical", "_containment") if row in JUDGED_BY_WORDS else row
            for row in without
        ]
        assert list(metrics.load(name, ContainmentJudge())) == judged_by_words
        # strings are still compared beside such a judge
        strings = without if name in ("answer_correctness", "think_answer_faithfulness") else []
        assert list(metrics.load(name, CountingJudge())) == [*strings, *judged]
        assert all(map(metrics.asks, (*without, *judged, "answered", "calls", "f1_pokee")))


def test_judge_normaliser_and_knobs_reach_the_rewards():
    assert list(metrics.load("answer_correctness", how="pokee")) == [
        "exact_match_pokee",
        "f1_pokee",
        "sub_em_pokee",
    ]
    strict = GroundingJudge(threshold=0.9)
    assert metrics.load("info_think_faithfulness", strict)["info_think_lexical"].judge == strict
    assert metrics.load("tool_use", words=5)["unused_evidence_lexical"] == ToolUse("unused", 5)
    for name, knobs, message in (
        ("info_think_faithfulness", {"sofft": True}, "no knob sofft; it has: soft"),
        ("tool_use", {"what": "unused"}, "no knob what"),  # what tells its results apart
        ("faith", {}, "unknown metric 'faith'; there are: answer_correctness"),
        ("citation_returned", {}, "'citation_returned', but a result of citations; there are"),
    ):
        with pytest.raises(ConfigError, match=message):
            metrics.load(name, **knobs)


@pytest.mark.skipif(not ROLLOUTS.exists(), reason="the rollouts are not here")
def test_every_metric_computes_on_real_rollouts():
    rows = [row for row, _ in zip(read_rows(ROLLOUTS), range(30), strict=False)]
    read = [
        dialect("r1_searcher").parse(row["gen_text_store"], question=row["question"])
        for row in rows
    ]
    real = [replace(item, answers=(row["answer"],)) for item, row in zip(read, rows, strict=True)]
    pool = [step.evidence for item in real for step in item.steps if step.evidence]
    draw = random.Random(0)
    swapped = [
        replace(
            item,
            steps=tuple(
                replace(s, evidence=draw.choice(pool)) if s.evidence else s for s in item.steps
            ),
        )
        for item in real
    ]
    means = {}
    for name in set(metrics.names()) - {"evidence_sensitivity"}:
        for result, reward in metrics.load(name).items():
            for kind, batch in (("real", real), ("swapped", swapped)):
                values = [
                    value
                    for value in map(reward.measure, reward.score_batch(batch))
                    if value is not None
                ]
                # this dialect has no verdicts, and its answers cite nothing
                if result == "uncited_evidence" or result.startswith("citation_"):
                    assert values == []
                    continue
                assert len(values) >= 15, result
                assert all(0 <= value <= 1 for value in values), result
                means[result, kind] = sum(values) / len(values)
    assert means["info_think_lexical", "real"] > 0.6
    assert means["info_think_lexical", "swapped"] < 0.1
    assert (
        means["answer_support_lexical", "real"] > means["answer_support_lexical", "swapped"] + 0.3
    )
    assert (
        means["unused_evidence_lexical", "real"] < means["unused_evidence_lexical", "swapped"] - 0.3
    )
    assert means["think_answer_sub_em", "real"] == means["think_answer_sub_em", "swapped"]


# --- as modules of `evaluate`

FOLDERS = ROOT / "evaluate_metrics"
NAMES = metrics.names()
MODEL_FREE = [name for name in NAMES if name != "evidence_sensitivity"]
RESULTS = {name: list(metrics.load(name)) for name in NAMES}
ESTIMATE = (
    "",
    "_stderr",
    "_low",
    "_high",
    "_n",
    "_not_applicable",
    "_not_applicable_share",
    "_abstained",
)
CITED = widget.EXAMPLE
INVENTED = CITED.replace("<ref>E1</ref>", "<ref>E7</ref>")
THOUGHT = "The bridge of Orlen stands in the Teska."
SEARCHED = f"""<think>I need the river at the bridge of Orlen.</think><search>bridge of Orlen river</search>
<information>Doc 1(Title: Bridge of Orlen) The bridge of Orlen stands in the river Teska since 1904.</information>
<think>{THOUGHT}</think><answer>Teska</answer>"""
CARELESS = SEARCHED.replace(THOUGHT, "Paris is famous for its museums.")
MESSAGES = [
    {"role": "system", "content": "Search before you answer."},
    {"role": "user", "content": "In which river does the bridge of Orlen stand?"},
    {"role": "assistant", "content": SEARCHED},
]


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory):
    """What evaluate writes goes into a folder of this run, and it asks no Hub."""
    home = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_MODULES_CACHE", "HF_METRICS_CACHE"):
            patch.setattr(evaluate.config, name, home / name)
        patch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
        yield


def load(name: str) -> evaluate.Metric:
    # A folder's time may be too coarse to tell that a module was added
    importlib.invalidate_caches()
    return evaluate.load(str(FOLDERS / name))


def python(code: str, home: Path) -> str:
    """The output of a fresh interpreter whose caches lie in `home`."""
    caches = {
        "HF_HOME": str(home),
        "HF_MODULES_CACHE": str(home / "modules"),
        "HF_EVALUATE_OFFLINE": "1",
    }
    own = {**os.environ, **caches, "PYTHONPATH": str(Path(fs.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=own, cwd=home, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# what there is


@pytest.mark.parametrize("name", NAMES)
def test_a_metrics_folder_is_what_evaluate_and_the_hub_expect(name):
    assert {path.name for path in FOLDERS.iterdir() if path.is_dir()} == {*NAMES}
    files = {
        path.name: path.read_text(encoding="utf-8")
        for path in (FOLDERS / name).iterdir()
        if path.is_file()
    }
    assert files.keys() == {f"{name}.py", "README.md", "app.py", "requirements.txt"}
    module = load(name)
    assert module.name == module.measure == name
    assert len(module.description) > 80
    assert "@" in module.citation
    assert "predictions" in module.inputs_description
    assert "Returns" in module.inputs_description
    card = files["README.md"]
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["sdk"] == "gradio"
    assert head["app_file"] == "app.py"
    assert set(head["tags"]) == {"evaluate", "metric"}
    assert all(said in card for said in ("docs/judges.md", *metrics.load(name)))
    assert all(need in files["requirements.txt"] for need in ("faithful-search[", "evaluate"))
    assert f'"{name}.py"' in files["app.py"]
    assert "widget.build(metric" in files["app.py"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL_FREE)
def test_a_metrics_page_is_built(name):
    pytest.importorskip("gradio")
    spec = importlib.util.spec_from_file_location(f"app_{name}", FOLDERS / name / "app.py")
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    assert type(app.page).__name__ == "Interface"


# computing


@pytest.mark.parametrize("name", MODEL_FREE)
def test_every_metric_computes_without_model_and_key(name):
    trajectory, module = fs.parse(CITED, dialect="pou"), load(name)
    forms = [CITED, trajectory, trajectory.to_json(), msgspec.to_builtins(trajectory)]
    result = module.compute(
        predictions=forms, references=["Teska", ["Teska"], ("Teska", "Teska River"), "Teska"]
    )
    assert {f"{key}{part}" for key in RESULTS[name] for part in ESTIMATE} <= set(result)
    # the question is not known, nothing is declined, and the answer has no marks
    expected = {"tool_use": 0.0, "query_provenance": None, "citations": None}.get(name, 1.0)
    wanted = {key: expected for key in RESULTS[name]} | (
        {"declined": 0.0} if name == "answer_support" else {}
    )
    assert {key: result[key] for key in RESULTS[name]} == wanted
    assert result["trajectories"] == 4
    assert result["dialects"] == {"pou": 4}
    assert result["errors"] == []
    assert not any(
        key.endswith("faithfulness") or key in ("answer_support", "answer_correctness")
        for key in result
    )
    chats = module.compute(
        predictions=[MESSAGES, MESSAGES], references=["Teska", "Teska"], details=True
    )
    assert [row["answer"] for row in chats["details"]] == ["Teska", "Teska"]
    assert chats["errors"] == []
    said, rows = widget.explain(module, INVENTED, widget.QUESTION, "Teska\nTeska River")
    assert "dialect: pou" in said
    assert "answer: Teska" in said
    assert [row[0] for row in rows] == RESULTS[name]
    assert name != "citation_validity" or (rows[0][1] == "0.000" and "E7" in rows[0][2])
    said, rows = widget.explain(module, "no tags at all")
    assert "no dialect" in said
    assert rows == []


def test_values_by_hand():
    result = load("info_think_faithfulness").compute(
        predictions=[SEARCHED, CARELESS, SEARCHED, SEARCHED]
    )
    # Wilson's interval of 3 in 4
    assert result["info_think_lexical"] == 0.75
    assert result["info_think_lexical_n"] == 4
    assert "not meaning" in result["info_think_lexical_warning"]
    interval = [result[f"info_think_lexical_{end}"] for end in ("low", "high", "stderr")]
    assert interval == pytest.approx([0.301, 0.954, (0.75 * 0.25 / 4) ** 0.5], abs=1e-3)
    cited = load("citation_validity").compute(predictions=[CITED, INVENTED, SEARCHED])
    assert cited["citation_validity"] == 0.5
    assert cited["citation_validity_n"] == 2
    assert cited["citation_validity_not_applicable_share"] == pytest.approx(1 / 3)
    rows, questions = [SEARCHED, CARELESS, SEARCHED], ["Which river?", "Which river? ", "Another?"]
    result = load("info_think_faithfulness").compute(
        predictions=rows, questions=questions, judge="lexical"
    )
    assert result["info_think_lexical_n"] == 2
    assert result["info_think_lexical"] == pytest.approx(0.75)


def test_correctness_needs_references():
    wordy, module = (
        SEARCHED.replace("Teska</answer>", "the Teska, a river</answer>"),
        load("answer_correctness"),
    )
    # all but pokee drop "the" and "a"
    for how, f1 in (("unicode", 2 / 3), ("squad", 2 / 3), ("pokee", 2 / 5)):
        result = module.compute(predictions=[wordy], references=["Teska"], how=how)
        assert [key for key in result if key in ("f1_unicode", "f1_squad", "f1_pokee")] == [
            f"f1_{how}"
        ]
        assert result[f"f1_{how}"] == pytest.approx(f1)
        assert result[f"exact_match_{how}"] == 0.0
    with pytest.raises(ConfigError, match="references"):
        module.compute(predictions=[SEARCHED])
    own = msgspec.structs.replace(fs.parse(SEARCHED), answers=("Teska",))
    assert module.compute(predictions=[own])["exact_match_unicode"] == 1.0
    some = module.compute(predictions=[SEARCHED, SEARCHED], references=["Teska", None])
    assert some["exact_match_unicode"] == 1.0
    assert some["exact_match_unicode_not_applicable"] == 1


GRAPH = CITED.replace(
    '"local_search", "arguments": {"query"', '"knowledge_graph", "arguments": {"entity"'
)


def test_tool_use_tells_of_the_corpus():
    tools = ["local_search", "knowledge_graph", "web_search"]
    result = load("tool_use").compute(predictions=[CITED, GRAPH], tools=tools)
    assert result["tool_calls"] == {"local_search": 1, "knowledge_graph": 1}
    assert result["tool_ratios"] == dict(zip(tools, (0.5, 0.5, 0.0), strict=True))
    assert result["tool_entropy"] == pytest.approx(0.6309, abs=1e-4)
    assert result["tool_entropy_n"] == 2


def test_tool_entropy_is_over_every_available_tool():
    tools = [*(f"tool_{number}" for number in range(40)), "local_search", "knowledge_graph"]
    result = load("tool_use").compute(predictions=[CITED, GRAPH], tools=tools)
    assert result["tool_entropy"] == pytest.approx(math.log(2) / math.log(42))


def test_add_add_batch_and_combine_measure_what_compute_measures():
    module = load("info_think_faithfulness")
    at_once = module.compute(predictions=[SEARCHED, CARELESS, MESSAGES], questions=["a", "b", "c"])
    module.add(prediction=SEARCHED, question="a")
    module.add_batch(predictions=[CARELESS, MESSAGES], questions=["b", "c"])
    assert module.compute() == at_once
    both = evaluate.combine([load("answer_correctness"), load("tool_use")])
    result = both.compute(predictions=[SEARCHED] * 2, references=["Teska", "Rhine"])
    assert result["exact_match_unicode"] == 0.5
    assert result["tool_calls"] == {"search": 2}


# judges


def test_a_silent_judge_is_no_zero():
    module, judge = (
        load("info_think_faithfulness"),
        CountingJudge(lambda pair: "bridge" in pair.hypothesis),
    )
    result = module.compute(predictions=[SEARCHED, CARELESS], judge=judge)
    assert result["info_think_faithfulness"] == 0.5
    assert result["judge"] == "counting@1"
    assert not any("lexical" in key for key in result)
    assert [pair.task for pair in judge.asked] == ["info_think"] * 2
    result = module.compute(
        predictions=[SEARCHED] * 9 + [CARELESS], judge=CountingJudge(silent_on("Paris"))
    )
    assert result["info_think_faithfulness"] == 1.0
    assert result["info_think_faithfulness_abstained"] == 1
    assert result["info_think_faithfulness_n"] == 9
    assert result["info_think_faithfulness_not_applicable"] == 0
    with pytest.raises(JudgeError, match="wrong key"):
        module.compute(predictions=[SEARCHED, CARELESS], judge=CountingJudge(refuses="wrong key"))


def test_a_metrics_settings_go_through_compute():
    metric, thoughtless = (
        load("info_think_faithfulness"),
        SEARCHED.replace(f"<think>{THOUGHT}</think>", ""),
    )
    assert metric.compute(predictions=[thoughtless])["info_think_lexical"] == 0.0
    assert metric.compute(predictions=[thoughtless], unthinking=False)["info_think_lexical"] is None
    note = dialect("search_r1").render_observation((), "No results.")
    text = (
        f"{SEARCHED.split('<information>')[0]}{note}<think>Nothing.</think><answer>Teska</answer>"
    )
    name, metric = "unused_evidence_lexical_n", load("tool_use")
    assert metric.compute(predictions=[text])[name] == 0
    prose = text.replace("No results.", "Teska lies in Oran.")
    assert metric.compute(predictions=[prose])[name] == 1  # anybody's prose may be evidence
    assert metric.compute(predictions=[prose], fenced=True)[name] == 0


# what goes wrong


def test_unreadable_rows_are_named_in_the_details(tmp_path):
    rows = [CITED, "no tags at all", None, 7, "", {"steps": 3}, INVENTED]
    result = load("citation_validity").compute(predictions=rows, details=True)
    assert [item["index"] for item in result["errors"]] == [1, 2, 3, 4, 5]
    assert all(e["error"] for e in result["errors"])
    assert result["trajectories"] == 2
    assert result["citation_validity"] == 0.5
    first, *errors, last = result["details"]
    assert errors == result["errors"]
    assert first["scores"]["citation_validity"]["value"] == 1.0
    assert "E7" in last["scores"]["citation_validity"]["why"]
    assert last["index"] == 6
    assert evaluate.save(tmp_path, **result).exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"predictions": ["no tags"]}, "none of 1 predictions.*no dialect"),
        ({"predictions": [], "references": []}, "no predictions"),
        ({"dialect": "serch_r1"}, "serch_r1"),
        ({"predictions": SEARCHED}, "list of trajectories"),
        ({"predictions": MESSAGES}, "one conversation"),
        ({"references": ["a", "b"]}, "a list references=.* for each of the 1"),
        ({"questions": "Where?"}, "a list questions="),
        ({"judge_model": "m"}, "judge"),
        ({"judge": "oracle"}, "judge"),
    ],
)
def test_what_cannot_be_scored_leaves_nothing_locked(wrong, message):
    module, right = load("answer_correctness"), {"predictions": [SEARCHED], "references": ["Teska"]}
    with pytest.raises((ConfigError, DataError, DialectError), match=message):
        module.compute(**{**right, **wrong})
    assert module.compute(**right)["trajectories"] == 1


@settings(max_examples=15)
@given(st.lists(st.text(alphabet=st.characters()), min_size=1, max_size=3))
def test_any_text_goes_through(texts):
    result = load("tool_use").compute(predictions=[SEARCHED, *texts], references=[None, *texts])
    assert result["trajectories"] + len(result["errors"]) == 1 + len(texts)


ZEBRAS = "Zebras graze on the plains where grass is tall and green."


def test_evidence_sensitivity_asks_the_policy_it_is_given():
    seen = []

    class Moved(Writing):
        def p_yes(self, prompt):
            seen.append(prompt.rsplit("<tool_response>", 1)[-1])
            return 0.9 if "Teska" in seen[-1] else 0.2

    metric = load("evidence_sensitivity")
    with pytest.raises(ConfigError, match="policy="):
        metric.compute(predictions=[CITED])
    result = metric.compute(predictions=[CITED], policy=Moved(), snippets=[ZEBRAS])
    assert any(ZEBRAS in text for text in seen)
    assert result["evidence_sensitivity"] == pytest.approx(0.7)
    assert result["evidence_sensitivity_n"] == 1


# installing


def test_the_last_installed_version_is_the_only_one(tmp_path, monkeypatch):
    first = metrics.install_metrics(tmp_path)
    whole = first[0].read_bytes()
    first[0].write_bytes(b"")
    assert metrics.install_metrics(tmp_path) == first
    assert first[0].read_bytes() == whole
    for name in NAMES:
        (tmp_path / "checkout" / name).mkdir(parents=True)
        (tmp_path / "checkout" / name / f"{name}.py").write_text("# version 2")
    monkeypatch.setattr(metrics, "shipped", lambda name: tmp_path / "checkout")
    assert metrics.install_metrics(tmp_path)[0].read_text().startswith("# version 2")
    assert not first[0].exists()


# cards and pages


def example(page: Path) -> tuple[str, str]:
    """The first block of Python that loads a metric, and the output that is promised below it."""
    text = page.read_text(encoding="utf-8")
    match = re.search(
        r"```python\n([^`]*evaluate\.load[^`]*)```\n\n```text\n(.*?)```", text, re.DOTALL
    )
    assert match is not None, page
    return match[1], match[2]


def test_installed_metrics_load_by_bare_name(capsys):
    examples = [
        example(page)
        for page in (ROOT / "README.md", *(FOLDERS / name / "README.md" for name in MODEL_FREE))
    ]
    assert len(fs.install_metrics()) == len(NAMES)
    for code, _ in examples:
        exec(code, {})
    assert capsys.readouterr().out == "".join(output for _, output in examples)


@pytest.mark.slow
def test_a_fresh_interpreter_installs_nothing_unasked(
    tmp_path,
):
    code, promised = example(FOLDERS / "evidence_sensitivity" / "README.md")
    found = (
        f"import os, faithful_search as fs\nprint(os.path.exists({str(tmp_path / 'modules')!r}))"
    )
    assert (
        python(f"{found}\nprint(len(fs.install_metrics()))\n{code}", tmp_path)
        == f"False\n{len(NAMES)}\n{promised}"
    )
