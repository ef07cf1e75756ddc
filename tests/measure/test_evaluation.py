"""Intervals that cover, differences that are paired, a suite that tells a reader from a guesser, a table to read."""

import json
import math
import pickle

import lab
import numpy as np
import pytest
from hypothesis import given, strategies as st

from faithful_search.bundled import tiny_policy
from faithful_search.dialects import load
from faithful_search.errors import DataError, GeneratorError, JudgeError
from faithful_search.inference.base import Sampling
from faithful_search.measure.behaviour import normalized_entropy, tool_entropy
from faithful_search.measure.evaluation import Evaluation, difference
from faithful_search.measure.probes import Blanked
from faithful_search.measure.report import table, table_rows
from faithful_search.measure.stats import (
    bootstrap,
    left_out,
    mean_ci,
    paired_difference,
    pooled_estimate,
    t_quantile,
)
from faithful_search.measure.suite import evaluate_policy, evaluate_rollouts
from faithful_search.measure.writing import write_metrics
from faithful_search.rewards import AnswerSupport, Citation, Format
from faithful_search.rollout import Engine, Limits
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.tasks import Task, load_tasks
from faithful_search.text import exact_match
from faithful_search.tools import LocalSearch, Toolbox
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

# --- stats


def test_wilson_interval_of_shares():
    """Hand-worked: n = 10, p = 0.8, z = 1.96 gives 0.490 to 0.943; at 0 of 20 the upper end is z²/(n + z²) = 0.161."""
    estimate = mean_ci([1] * 8 + [0] * 2)
    assert (round(estimate.low, 3), round(estimate.high, 3), estimate.n) == (0.490, 0.943, 10)
    none = mean_ci([0.0] * 20)
    assert (none.value, none.low, round(none.high, 3)) == (0.0, 0.0, 0.161)
    assert mean_ci([1.0] * 20).high == 1.0 and mean_ci([1.0] * 20).low == pytest.approx(1 - none.high)


def test_student_interval_of_numbers():
    """1, 2, 3, 4, 5: s/√5 = 0.7071, t = 2.776, so 3 ± 1.963; zeros and ones that are not shares get it too."""
    estimate = mean_ci([1, 2, 3, 4, 5])
    assert (estimate.value, estimate.n, estimate.stderr) == (3.0, 5, pytest.approx(math.sqrt(0.5)))
    assert [estimate.high - 3, 3 - estimate.low] == pytest.approx([1.963, 1.963], abs=0.005)
    calls = mean_ci([1.0, 1.0, 0.0], bounds=(0.0, math.inf))
    assert calls.low == 0.0 and calls.high == pytest.approx(2 / 3 + 4.303 / 3, abs=0.01)
    for df, t in ((1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042)):
        assert [t_quantile(0.975, df), -t_quantile(0.025, df)] == pytest.approx([t, t], rel=2e-3)


def test_too_little_to_say_and_what_is_refused():
    assert (mean_ci([]).value, mean_ci([]).n) == (None, 0)
    one = mean_ci([0.4])
    assert (one.value, one.low, one.high, one.n) == (0.4, None, None, 1)
    assert bootstrap([]).value is None and bootstrap([3.0]).low is None
    assert paired_difference({"a": 1.0}, {"b": 1.0}).n == 0
    assert pooled_estimate({"a": [3, 1]}, normalized_entropy, ["x", "y"]).value is tool_entropy({"a": 4}, ["a"]) is None
    with pytest.raises(DataError, match="not a finite number"):
        mean_ci([0.5, math.nan])


def test_a_mean_bears_a_tenth_of_its_rows_left_open_and_no_more():
    kept = mean_ci([1.0] * 9)
    assert left_out(kept, 9, 3, 1).value == 1.0 and left_out(kept, 9, 3, 1).not_applicable == 3
    open_ = left_out(mean_ci([1.0] * 8), 8, 0, 2)
    assert (open_.value, open_.low, open_.n, open_.abstained) == (None, None, 8, 2)


def test_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(1)
    shares = [mean_ci((rng.random(30) < 0.2).astype(float).tolist()) for _ in range(400)]
    numbers = [mean_ci(rng.normal(0.3, 1, 8).tolist()) for _ in range(400)]
    for estimates, truth in ((shares, 0.2), (numbers, 0.3)):
        assert 0.92 <= np.mean([e.low <= truth <= e.high for e in estimates]) <= 0.985


def test_rollouts_of_one_question_are_not_independent():
    values, questions = [1.0] * 8 + [0.0] * 8, ["a"] * 8 + ["b"] * 8
    assert mean_ci(values).n == 16
    clustered = mean_ci(values, questions)
    assert (clustered.value, clustered.n) == (0.5, 2)
    assert clustered.high - clustered.low > 1.5 * (mean_ci(values).high - mean_ci(values).low)
    assert bootstrap(values, clusters=questions).low == 0.0


def test_bootstrap_is_seeded_and_agrees_with_the_standard_error_of_a_mean():
    values = np.random.default_rng(0).random(200)
    one, again, other = (bootstrap(values, seed=seed) for seed in (3, 3, 4))
    assert one == again != other and one.value == pytest.approx(values.mean()) and one.low < one.value < one.high
    assert one.stderr == pytest.approx(values.std() / math.sqrt(200), rel=0.06)


def test_pairing_removes_what_the_questions_share():
    rng = np.random.default_rng(0)
    hard = rng.random(50)
    before, after = hard.tolist(), (hard + 0.1 + rng.normal(0, 0.02, 50)).tolist()
    paired = paired_difference(dict(enumerate(before)), dict(enumerate(after)))
    assert paired.value == pytest.approx(0.1, abs=0.01) and paired.low > 0.08 and paired.high < 0.12
    assert mean_ci(after).low < mean_ci(before).high


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_entropy_row_equals_the_formula(rows):
    calls = {tool: [row[place] for row in rows] for place, tool in enumerate("abc")}
    totals = {tool: sum(column) for tool, column in calls.items()}
    shares = [total / sum(totals.values()) for total in totals.values() if total]
    estimate = pooled_estimate(calls, normalized_entropy, list(range(len(rows))))
    if shares:
        expected = pytest.approx(-sum(p * math.log(p) for p in shares) / math.log(3), abs=1e-12)
        assert estimate.value == expected and tool_entropy(totals, list("abc")) == expected
    else:
        assert estimate.value is tool_entropy(totals, list("abc")) is None
    assert estimate.not_applicable == sum(row == (0, 0, 0) for row in rows)


# --- suite

CORPUS = [
    {"id": f"p{number}", "title": f"{place} harbour", "text": f"The keeper of {place} is {keeper}."}
    for number, (place, keeper) in enumerate(
        [("Arvon", "Mila Dorn"), ("Belt", "Ivo Kast"), ("Corry", "Tess Olm"), ("Dale", "Ned Quill"), ("Eb", "Una Orr")]
    )
]
TASKS = [
    Task(row["id"], f"Who is the keeper of {row['title'].split()[0]}?", (row["text"].split(" is ")[1].rstrip("."),))
    for row in CORPUS
]


class Reader(lab.Writing):
    """A policy that searches for the question, and answers with what the first passage says after "is"."""

    def __init__(self, memory=""):
        super().__init__()
        self.memory = memory

    def p_yes(self, prompt):
        return 0.9 if "keeper of" in self._response(prompt).strip().split("\n")[0] else 0.2

    def turn(self, prompt):
        if "<|im_start|>assistant\n<think>" not in prompt:
            return lab.searching("look", "local_search", prompt.split("Who is ")[1].split("?")[0])
        response = self._response(prompt)
        if " is " not in response:
            return lab.answering("no", "null", "nothing", self.memory or "?")
        return lab.answering("yes", "E1", "there", response.split(" is ")[1].split(".")[0])

    def _response(self, prompt):
        return prompt.rsplit("<tool_response>", 1)[-1].split("</tool_response>")[0]


def engine(toolbox=None, policy=None):
    toolbox = toolbox or Toolbox([LocalSearch.from_corpus(CORPUS), lab.Shelf(Evidence("Nothing."))])
    return Engine(policy or Reader(), toolbox, "pou", Limits(turns=4))


@pytest.fixture(scope="module")
def read():
    return evaluate_policy(engine(), TASKS)


def test_a_policy_that_reads_scores(read):
    value = {name: row.value for name, row in read.rows.items()}
    ones = ("exact_match", "f1", "valid_format", "citation_validity", "answer_support_lexical", "answered", "calls")
    assert [value[name] for name in ones] == [1.0] * 7
    assert value["evidence_sensitivity"] == pytest.approx(0.7)
    assert value["tool_entropy"] == 0.0 and "verdict_gap" not in value
    assert value["no_on_blank"] == 1.0 and value["retry_on_blank"] == 0.0  # it then answers
    assert all(row.n == 5 for row in read.rows.values())
    assert read.tool_calls == {"local_search": [1] * 5, "shelf": [0] * 5}
    assert read.trajectories[0].meta["scores"]["exact_match"] == 1.0
    back = Evaluation.from_dict(json.loads(json.dumps(read.to_dict())))
    assert back.rows == read.rows and back.values == read.values and back.trajectories == []
    again = evaluate_policy(engine(), [TASKS[0], TASKS[1], TASKS[0]], {"valid_format": Format()})
    assert again.rows["valid_format"].n == 2 and again.questions == ["p0", "p1", "p0"]


class Failing(Reader):
    """Writes so many turns, then its server is down."""

    left = 4

    def generate(self, prompts, *args):
        self.left -= 1
        if self.left < 0:
            raise GeneratorError("the server is down")
        return super().generate(prompts, *args)


def test_an_interrupted_evaluation_goes_on_where_it_was(tmp_path):
    tasks = [TASKS[0], *TASKS, TASKS[0]]  # a question's copies end before and after the interruption
    failing = engine(policy=Failing())
    failing.concurrency = 2
    with pytest.raises(GeneratorError):
        evaluate_policy(failing, tasks, folder=tmp_path)
    rollouts = tmp_path / "evaluating.jsonl"
    kept = [Trajectory.from_json(line).id for line in rollouts.read_text().splitlines()]
    assert kept == ["p0", "p0#1", "p1", "p2"]
    rollouts.write_text(rollouts.read_text() + '{"steps": [')  # killed while it wrote
    policy = Reader()
    contexts = []
    policy.generate = lambda prompts, *args: contexts.extend(prompts) or Reader.generate(policy, prompts, *args)
    found, whole = evaluate_policy(engine(policy=policy), tasks, folder=tmp_path), evaluate_policy(engine(), tasks)
    assert found.rows == whole.rows and found.trajectories == whole.trajectories
    assert [item.id for item in found.trajectories] == ["p0", "p0#1", "p1", "p2", "p3", "p4", "p0#2"]
    asked = len(contexts)
    assert evaluate_policy(engine(policy=policy), tasks, folder=tmp_path).rows == whole.rows
    assert 0 < asked == len(contexts)


def test_blanked_tools_take_everything_from_a_policy_that_reads_and_nothing_from_one_that_does_not(read):
    blind = evaluate_policy(engine(Blanked(engine().toolbox)), TASKS)
    assert blind.rows["exact_match"].value == 0.0
    assert blind.rows["citation_validity"].value == 1.0
    assert all(item.text == item.title == "content" for t in blind.trajectories for item in t.evidence.values())
    shape = [[item.id for item in t.evidence.values()] for t in read.trajectories]
    assert [[item.id for item in t.evidence.values()] for t in blind.trajectories] == shape
    assert difference(read, blind, "exact_match").value == -1.0
    memory = evaluate_policy(engine(Blanked(engine().toolbox), Reader("Mila Dorn")), TASKS)
    assert memory.rows["exact_match"].value == pytest.approx(0.2)


def test_a_blanked_toolbox_is_a_toolbox():
    inner = engine().toolbox
    box = pickle.loads(pickle.dumps(Blanked(inner, "nothing here")))
    assert (box.names, box.schemas) == (inner.names, inner.schemas)
    calls = [ToolCall("local_search", {"query": "keeper of Belt"}), ToolCall("nosuch", {}), None]
    found, unknown, nothing = box.run_batch(calls, [box.session() for _ in calls])
    assert {item.text for item in found.evidence} == {"nothing here"} and found.evidence[0].source == "p1"
    assert load("pou").render_observation(found.evidence).count("nothing here [E1]: nothing here") == 1
    assert "Unknown tool" in unknown.note and nothing.evidence == ()
    assert box.stats()["local_search"].calls == 1


@pytest.mark.slow
def test_the_bundled_policy_reads_and_does_not_remember():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from faithful_search.inference.transformers import TransformersGenerator

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(tiny_policy(), dtype=torch.float32).eval()
    generator = TransformersGenerator(model, AutoTokenizer.from_pretrained(tiny_policy()), 24)
    limits, tasks, exact = Limits(turns=8, turn_tokens=96, total_tokens=1024), load_tasks("world", "test", 24), {}
    with EnvironmentArguments().toolbox() as toolbox:
        for word in (None, "content", "nothing here"):
            box = toolbox if word is None else Blanked(toolbox, word)
            rollouts = Engine(generator, box, "pou", limits, Sampling(temperature=0.0)).run(tasks)
            exact[word] = sum(exact_match(t.answer or "", t.answers) for t in rollouts)
    assert exact[None] >= 6 and exact["content"] <= 1 and exact["nothing here"] <= 1, exact


def trajectory(*steps, answer=None, golds=("Rome",)):
    reason = "answered" if answer else "turn_limit"
    return Trajectory(steps=steps, answer=answer, answers=golds, dialect="pou", stop_reason=reason)


SEARCH = Step(think="a", call=ToolCall("local_search"), evidence=(Evidence("Rome it is.", id="E1"),))
GOOD = Step(think="b", helpful=True, refs=("E1",), call=ToolCall("web"), evidence=(Evidence("More.", id="E2"),))
WRONG = Step(think="c", helpful=True, refs=("E9",), answer="Rome")
ALONE = Step(think="d", answer="Rome")


def test_citation_validity_is_the_share_of_valid_steps():
    rollouts = [trajectory(SEARCH, GOOD, WRONG, answer="Rome"), trajectory(ALONE, answer="Rome")]
    found = evaluate_rollouts(rollouts, ["a", "b"], {"citation_validity": Citation()}, ["local_search", "web"])
    row = found.rows["citation_validity"]
    assert (row.value, row.n, row.not_applicable) == (0.5, 1, 1)
    assert found.values["citation_validity"] == [0.5, None]
    assert found.rows["calls"].value == 1.0 and found.rows["tool_entropy"].value == 1.0
    assert found.trajectories[0].meta["reasons"]["citation_validity"].startswith("step 3: cites E9")


def test_an_abstaining_judge_is_counted_apart():
    class Down:
        name = "down"

        def judge_batch(self, pairs):
            raise JudgeError("no answer")

    last = Step(think="b", helpful=True, refs=("E1",), answer="Rome")
    rollouts = [trajectory(SEARCH, last, answer="Rome"), trajectory(ALONE, answer="Rome")]
    found = evaluate_rollouts(rollouts, ["a", "b"], {"answer_support": AnswerSupport(Down())}, ["web"])
    row = found.rows["answer_support"]
    assert (row.value, row.n, row.abstained, row.not_applicable) == (None, 0, 1, 1)


def test_what_cannot_be_evaluated():
    with pytest.raises(DataError, match="no questions"):
        evaluate_policy(engine(), [])
    with pytest.raises(DataError, match="1 trajectories for 0 question ids"):
        evaluate_rollouts([trajectory(ALONE)], [], {}, [])
    with pytest.raises(DataError, match="not an evaluation"):
        Evaluation.from_dict({"rows": 3})


# --- report


def test_the_table_shows_the_difference_and_marks_what_is_clear(read):
    blind = evaluate_policy(engine(Blanked(engine().toolbox)), TASKS)
    rows = {row[0]: row for row in table_rows(blind, read, ("blind", "reads"))}
    assert rows["metric"][1:3] == ["blind [95% CI]", "reads [95% CI]"]
    assert rows["exact_match"][1].startswith("0.000 [0.000, 0.43")
    assert rows["exact_match"][3] == "+1.000 [+1.000, +1.000]"
    assert rows["valid_format"][3] == "+0.000 [+0.000, +0.000]"
    assert rows["answer_support_lexical"][4] == "5"
    assert rows["evidence_sensitivity"][2].startswith("0.700 [")
    *lines, warning = table(blind, read, ("cold start", "GRPO")).splitlines()
    assert warning.startswith("…_lexical: words are compared, which is no judge")
    column = lines[0].index("GRPO")
    assert all(line[column - 1] == " " and line[column] != " " for line in lines)


@pytest.mark.parametrize(("gains", "marked"), [([1.0] * 6, True), ([1.0] * 5, False), ([1.0, -1.0] * 10, False)])
def test_only_clear_differences_are_marked(gains, marked):
    questions = [str(number) for number in range(len(gains))]
    before, after = (Evaluation({"f1": mean_ci(v)}, questions, {"f1": v}, {}) for v in ([0.0] * len(gains), gains))
    assert table_rows(before, after, ("before", "after"))[1][3].endswith(" *") is marked


def test_entropy_differences_are_paired_too():
    two = {"local_search": [2, 2, 2, 2], "web": [2, 2, 2, 2]}
    one = {"web": [0, 0, 1, 0], "local_search": [4, 4, 3, 4]}
    before, after = (
        Evaluation({"tool_entropy": pooled_estimate(calls, normalized_entropy, list("abcd"))}, list("abcd"), {}, calls)
        for calls in (two, one)
    )
    change = difference(before, after, "tool_entropy")
    assert difference(before, Evaluation({}, list("abcd"), {}, {"web": [1] * 4}), "tool_entropy").n == 0  # other tools
    expected = tool_entropy({"web": 1, "local_search": 15}, ["web", "local_search"]) - 1
    assert change.value == pytest.approx(expected) and change.high < 0 and change.n == 4
    assert difference(before, after, "f1").n == 0


def test_metrics_are_written_whole_or_not_at_all(tmp_path, read):
    metrics = {"before": read, "one": read.rows["f1"], "path": tmp_path, "n": np.int64(3)}
    path = write_metrics(tmp_path / "deep" / "metrics.json", metrics)
    data = json.loads(path.read_text())
    assert data["before"]["rows"]["f1"]["n"] == 5 and data["one"]["value"] == 1.0 and data["n"] == 3
    with pytest.raises(DataError, match="not JSON"):
        write_metrics(path, {"loss": math.nan})
    assert json.loads(path.read_text()) == data and [item.name for item in path.parent.iterdir()] == ["metrics.json"]
