"""The gauntlet: every mix against every cheat, beside an honest reader."""

import json
import re
from dataclasses import fields

import pytest
import yaml
from msgspec.structs import replace
from paths import ROOT
from served import invoked

from faithful_search import dialects, rewards
from faithful_search.errors import ConfigError, DataError
from faithful_search.gauntlet import cheats, published
from faithful_search.gauntlet.believing import Believers
from faithful_search.gauntlet.mixes import MIXES, Contender, contender, reachable_settings
from faithful_search.gauntlet.page import write as write_page
from faithful_search.gauntlet.playing import HONEST
from faithful_search.gauntlet.results import Payment, Trial, gauntlet_of
from faithful_search.gauntlet.running import play, questions, run_gauntlet, try_cheat
from faithful_search.inference.chat import ChatFormat
from faithful_search.recipes.pou import PoUArguments, build_reward
from faithful_search.rewards import Adaptive, Format, Mix, Warmup, pou_mix, veritas_mix
from faithful_search.trajectory import Evidence, Step, Trajectory, read_jsonl

CHEATS = {name: cheats.load(name)() for name in cheats.names()}
QUESTIONS = questions(12)
OF_LITERATURE = sorted({published.dialect_of(name) for name in published.names()})
DIALECTS = (*OF_LITERATURE, "openai", "r1_searcher")
MINE = """
from faithful_search.gauntlet.cheat import Cheat

class Mine(Cheat):
    \"\"\"Always says Rome.\"\"\"

    def answer(self, scene):
        return "Rome"
"""
OF_VERL = """
{call} compute_score(data_source, solution_str, ground_truth, extra_info):
    right = ground_truth["target"][0] in solution_str
    return {{"score": float(right and extra_info["messages"][0]["role"] == "assistant")}}
"""
DOWN = """
from pathlib import Path

from faithful_search.judges import Judge, Verdict

class SometimesDown(Judge):
    name = "sometimes down"

    def judge_batch(self, pairs):
        up = Path("up").exists()
        return [Verdict(1.0, True) if up else Verdict(None, None, "down") for pair in pairs]
"""
CITES_ANYTHING = """
def reward(completions, **columns):
    return [float("<ref>E" in messages[-1]["content"]) for messages in completions]
"""


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory):
    """By dialect, what every player did."""
    folder = tmp_path_factory.mktemp("rollouts")
    return {name: play(CHEATS, QUESTIONS, name, folder / name) for name in DIALECTS}


@pytest.mark.parametrize("player", [HONEST, *CHEATS])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_rollouts_are_valid_in_their_dialect(rollouts, dialect, player):
    problems = {Format().score(rollout).why for rollout in rollouts[dialect][player]}
    assert problems == {""}


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("name", MIXES)
def test_no_default_pays_a_cheat_what_it_pays_a_reader(rollouts, name, cheat):
    mix = contender(name)
    trial = try_cheat(mix, cheat, CHEATS[cheat], rollouts[mix.dialect])
    ratios = [finding.exploitability.value for finding in gauntlet_of([trial]).findings]
    assert max(ratios) <= 0.8


def run(folder, *names):
    """A gauntlet of two cheats in a folder."""
    chosen = {name: CHEATS[name] for name in ("from_memory", "cite_all")}
    return run_gauntlet([contender(name) for name in names], chosen, QUESTIONS[:4], folder, {})


def test_an_interrupted_run_continued_gives_the_same(tmp_path):
    whole = run(tmp_path / "whole", "pou")
    run(tmp_path / "cut", "pou")
    trials = tmp_path / "cut" / "trials.jsonl"
    lines = trials.read_text().splitlines(keepends=True)
    trials.write_text(lines[0] + lines[1][:50])
    rollouts = tmp_path / "cut" / "rollouts" / "pou" / "cite_all.jsonl"
    kept = rollouts.read_text().splitlines(keepends=True)[:2]
    rollouts.write_text("".join(kept))
    assert run(tmp_path / "cut", "pou") == whole
    assert trials.read_text().splitlines(keepends=True) == lines


def test_a_planted_hole_is_found_and_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hole.py").write_text(CITES_ANYTHING)
    done = invoked("gauntlet", "--mix", "hole.py", "--signature", "trl", "--questions", "4")
    assert done.exit_code == 0, done.output
    findings = json.loads((tmp_path / "outputs/gauntlet/gauntlet.json").read_text())["findings"]
    ratios = {finding["cheat"]: finding["exploitability"]["value"] for finding in findings}
    assert ratios["cite_all"] == 1.0
    assert ratios["from_memory"] == 0.0


def test_a_folder_of_other_settings_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ("gauntlet", "--cheat", "cite_all", "--questions")
    assert invoked(*few, "2").exit_code == 0
    refused = invoked(*few, "3")
    assert refused.exit_code == 1
    assert "--overwrite" in refused.stderr
    assert invoked(*few, "3", "--overwrite").exit_code == 0


def test_rollouts_of_other_settings_are_not_taken_over(tmp_path):
    run(tmp_path, "exact_match")
    (tmp_path / "trials.jsonl").unlink()  # as where a run was stopped while it played
    with pytest.raises(ConfigError, match="different settings"):
        run_gauntlet([contender("exact_match")], CHEATS, QUESTIONS[:4], tmp_path, {"mixes": 2})


def test_an_unknown_mix_is_refused_with_those_known():
    with pytest.raises(ConfigError, match="proof_of_use_paper"):
        contender("no_such_mix")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of a gauntlet of one mix that pays from memory, and one that does not."""
    folder = tmp_path_factory.mktemp("results")
    run(folder, "pou_static", "exact_match")
    return folder


def test_the_page_shows_the_rollout_that_was_paid_best(results):
    page = (results / "gauntlet.html").read_text()
    assert "exact_match: the best cheat is from_memory, which earns 100%" in page
    assert QUESTIONS[0].question in page
    assert "<script" not in page


def test_the_page_says_why_a_mix_paid_the_best_rollout(tmp_path):
    paid_once = (Payment("q0", (0.5,), why={"mix": "half of it is right"}),)
    trial = Trial("mine", "cheat", ("",), honest=paid(1.0), cheating=paid_once)
    rollout = Trajectory((Step("", answer="Rome"),), "?", "Rome", dialect="pou", id="q0@cheat")
    rollouts = {"mine": {"cheat": [rollout]}}
    write_page(tmp_path / "page.html", gauntlet_of([trial]), [trial], rollouts)
    assert "half of it is right" in (tmp_path / "page.html").read_text()


def test_the_table_says_how_many_cheats_are_paid_too_much(results):
    text = (results / "gauntlet.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| exact_match"))
    assert row.endswith("| 2 |")


def test_a_cheat_says_in_a_sentence_what_it_exploits():
    sentences = {name: cheat.exploits() for name, cheat in CHEATS.items()}
    assert [name for name, sentence in sentences.items() if not sentence.endswith(".")] == []
    assert len(set(sentences.values())) == len(CHEATS)


def test_a_cheat_of_a_file_plays_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    done = invoked("gauntlet", "--cheat", "mine.py", "--mix", "exact_match", "--questions", "2")
    assert done.exit_code == 0, done.output
    assert "Always says Rome." in (tmp_path / "outputs/gauntlet/gauntlet.html").read_text()


@pytest.mark.parametrize("call", ["def", "async def"])
def test_a_function_is_called_as_verl_does(tmp_path, call):
    (tmp_path / "reward.py").write_text(OF_VERL.format(call=call))
    mix = contender(str(tmp_path / "reward.py"), signature="verl")
    steps = (Step("I know.", answer="Rome"),)
    rows = [
        Trajectory(steps, "?", "Rome", dialect="pou", answers=(gold,)) for gold in ("Rome", "x")
    ]
    assert [score.value for score in mix.reward.score_batch(rows)] == [1.0, 0.0]


def test_a_coroutine_function_is_awaited_as_trl_does(tmp_path):
    (tmp_path / "reward.py").write_text("async def reward(completions, **columns): return [0.5]")
    mix = contender(str(tmp_path / "reward.py"), signature="trl")
    row = Trajectory((Step("I know.", answer="Rome"),), "?", "Rome", dialect="pou", answers=("x",))
    assert mix.reward.score_batch([row])[0].value == 0.5


def test_another_signature_is_another_setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "any.py").write_text(
        "def reward(completions=(1, 2), **columns): return [1.0 for _ in completions]"
    )
    few = ("gauntlet", "--mix", "any.py", "--cheat", "guess", "--questions", "1", "--signature")
    assert invoked(*few, "trl").exit_code == 0
    assert "signature: 'trl' there, 'verl' now" in invoked(*few, "verl").stderr


BROKEN = {
    "several functions": ("def a(): ...\ndef b(): ...", "name one"),
    "defines no function": ("x = 1", "no --signature"),
    "failed": ("def a(**columns): raise ValueError('no')", "ValueError: no"),
    "values": ("def a(**columns): return []", "0 values for 1 rollouts"),
    "no number": ("def a(**columns): return ['high']", "'high'"),
    "no finite number": ("def a(**columns): return [float('nan')]", "nan"),
    "no list": ("def a(**columns): return 0.5", "0.5"),
    "which is no list": ("def a(**columns): return {0: 1.0}", "{0: 1.0}"),
    "one value for each": ("def a(**columns): return '1'", "'1'"),
    "array(0.5), which": (
        "import numpy\ndef a(**columns): return numpy.array(0.5)",
        "no list",
    ),
    "inf, which": ("def a(**columns): return [10**400]", "no finite number"),
    "has no 'score'": ("def a(**columns): return [{'reward': 1.0}]", "'reward'"),
    "cannot import": ("1/0", "ZeroDivisionError"),
    "SystemExit": ("import sys\nsys.exit(0)", "cannot import"),
}


@pytest.mark.parametrize("words", BROKEN)
def test_a_function_that_cannot_be_used_is_refused(tmp_path, words):
    code, reason = BROKEN[words]
    (tmp_path / "reward.py").write_text(code)
    row = Trajectory((Step("I know.", answer="Rome"),), "?", "Rome", dialect="pou", answers=("x",))
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        contender(str(tmp_path / "reward.py"), signature="trl").reward.score_batch([row])
    assert reason in str(error.value)


CLASS = """
from dataclasses import dataclass
from typing import ClassVar

from faithful_search.rewards import Reward, Score

@dataclass(frozen=True)
class AnyCitation(Reward):
    name: ClassVar[str] = "any_citation"

    def score(self, trajectory):
        return Score(float(any(step.refs for step in trajectory.steps)), "it cites")
"""


def test_a_reward_of_a_file_runs_too(tmp_path):
    (tmp_path / "mine.py").write_text(CLASS)
    mix = contender(str(tmp_path / "mine.py"))
    row = Trajectory((Step("", answer="Rome", refs=("E1",)),), "?", "Rome", dialect="pou")
    assert (mix.name, mix.dialect) == ("mine", "pou")
    assert mix.reward.score(row).value == 1.0


def test_a_reward_whose_settings_lack_defaults_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(
        CLASS.replace("    def score", "    least: int\n\n    def score")
    )
    with pytest.raises(ConfigError, match=r"AnyCitation.*'least'; give its settings defaults"):
        contender(str(tmp_path / "mine.py"))


def test_a_reward_that_gives_too_few_scores_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(
        f"{CLASS}\n    def score_batch(self, trajectories): return [Score(1.0)]\n"
    )
    mix = contender(str(tmp_path / "mine.py"))
    with pytest.raises(ConfigError, match="mine gave 1 scores for 8 rollouts"):
        run_gauntlet([mix], {"guess": CHEATS["guess"]}, QUESTIONS[:4], tmp_path / "out", {})


FAILING_CHEATS = {
    "turn": "def turn(self, scene): raise ValueError('boom')",
    "queries": "def queries(self, scene): return 5",
    "call": "def call(self, scene, query): return 'search'",
    "planted": "def planted(self, text): return 3",
}


@pytest.mark.parametrize("method", FAILING_CHEATS)
def test_a_cheat_that_fails_is_named(tmp_path, method):
    (tmp_path / "mine.py").write_text(
        "from faithful_search.gauntlet.cheat import Cheat\n"
        f"class Mine(Cheat):\n    {FAILING_CHEATS[method]}"
    )
    cheat = cheats.load(str(tmp_path / "mine.py"))()
    with pytest.raises(ConfigError, match="the cheat Mine failed: "):
        play({"mine": cheat}, QUESTIONS[:1], "pou")


def test_a_cheat_that_fails_when_it_believes_is_named(rollouts):
    class Mine(type(CHEATS["guess"])):
        def believes(self, query, evidence):
            raise ValueError("boom")

    cheating = rollouts["pou"]["guess"]
    with pytest.raises(ConfigError, match="the cheat Mine failed: ValueError: boom"):
        Believers(Mine(), cheating)._sure(cheating[0].steps[:1], cheating=True)


def test_a_cheat_that_ends_the_program_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit(0)")
    done = invoked("gauntlet", "--cheat", str(tmp_path / "mine.py"), "--out", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert "cannot import" in done.stderr


def test_a_cheat_whose_settings_lack_defaults_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(
        MINE.replace("    def answer", "    def __init__(self, name): ...\n\n    def answer")
    )
    done = invoked("gauntlet", "--cheat", str(tmp_path / "mine.py"), "--out", str(tmp_path / "out"))
    assert "cannot make Mine" in done.stderr


def test_results_without_their_settings_are_not_taken_over(tmp_path):
    run(tmp_path, "exact_match")
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ConfigError, match=r"no settings\.json"):
        run(tmp_path, "exact_match")


def test_a_trial_whose_values_do_not_fit_its_settings_is_named(tmp_path):
    run(tmp_path, "exact_match")
    trials = tmp_path / "trials.jsonl"
    trials.write_text(trials.read_text().replace('"settings":[""]', '"settings":["a","b"]', 1))
    with pytest.raises(DataError, match=r"trials.jsonl, line 1: .* values at 2 settings"):
        run(tmp_path, "exact_match")


def test_a_rollout_that_cannot_be_read_is_named(tmp_path):
    run(tmp_path, "exact_match")
    file = next(tmp_path.glob("rollouts/*/honest.jsonl"))
    first, *others = file.read_text().splitlines(keepends=True)
    file.write_text("".join([first, "x", *others]))
    with pytest.raises(DataError, match=r"honest.jsonl, line 2: not a trajectory"):
        run(tmp_path, "exact_match")


def test_two_close_weights_have_a_label_each():
    labels = [setting.label for setting in reachable_settings(pou_mix(), (0.501, 0.499, 0.3))]
    assert labels == ["α 0.501", "α 0.499", "α 0.30"]


def test_a_process_that_a_mix_leaves_out_is_tried_at_other_weights(rollouts):
    mix = Mix(parts={"answer": Adaptive(fixed=0.0)})
    trial = try_cheat(
        Contender("mine", mix, "pou"),
        "cite_all",
        CHEATS["cite_all"],
        rollouts["pou"],
        alphas=(1.0,),
    )
    assert "answer_support" in trial.honest[0].parts


def test_a_weight_that_is_no_number_is_refused():
    assert "'nan' is not a number" in invoked("gauntlet", "--alpha", "nan").stderr


def test_a_weight_without_an_adaptive_process_is_refused():
    done = invoked("gauntlet", "--mix", "exact_match", "--alpha", "0.3")
    assert "no mix here has an adaptive process" in done.stderr


def test_a_file_with_a_function_asks_for_its_signature(tmp_path):
    (tmp_path / "reward.py").write_text(CITES_ANYTHING)
    done = invoked("gauntlet", "--mix", str(tmp_path / "reward.py"))
    assert "--signature trl or verl" in done.stderr


def test_another_function_of_a_file_is_not_there(tmp_path):
    (tmp_path / "reward.py").write_text(CITES_ANYTHING)
    with pytest.raises(ConfigError, match="no function 'other'; there are: reward"):
        contender(f"{tmp_path}/reward.py:other", signature="trl")


def paid(*values):
    """What a reward paid rollouts of q0, q1, …"""
    return tuple(Payment(f"q{number}", (value,)) for number, value in enumerate(values))


def test_exploitability_is_the_cheats_mean_over_the_readers():
    trial = Trial("mix", "cheat", ("",), honest=paid(1.0, 0.5, 0.5), cheating=paid(0.0, 0.5, 1.0))
    [finding] = gauntlet_of([trial]).findings
    assert finding.exploitability.value == pytest.approx(1.5 / 2)
    assert finding.preferred.value == pytest.approx(1 / 3)
    assert finding.tied.value == pytest.approx(1 / 3)


def test_a_question_without_a_value_counts_on_neither_side():
    trial = Trial("mix", "cheat", ("",), honest=paid(1.0, None, 1.0), cheating=paid(0.5, 1.0, None))
    [finding] = gauntlet_of([trial]).findings
    assert finding.exploitability.value == pytest.approx(0.5)
    assert finding.exploitability.n == 1


def test_where_honesty_earns_nothing_there_is_no_ratio():
    trial = Trial("mix", "cheat", ("",), honest=paid(0.0, 0.0), cheating=paid(1.0, 1.0))
    [finding] = gauntlet_of([trial]).findings
    assert finding.exploitability.value is None
    assert finding.cheating.value == 1.0


WITHOUT_A_RATIO = [
    (0.0, 0.3, "b"),  # reading earns nothing there, so that the cheat earns any multiple of it
    (-1.0, 0.3, "b"),
    (0.0, 0.0, "a"),
    (-1.0, -0.5, "a"),
    (None, 0.9, "a"),
]
"""What a reader and a cheat earn at setting b, and the setting that exploits the mix most."""


@pytest.mark.parametrize(("honest", "cheating", "setting"), WITHOUT_A_RATIO)
def test_a_cheat_that_earns_where_reading_does_not_comes_first(honest, cheating, setting):
    reader = (Payment("q0", (1.0, honest)),)
    cheat = (Payment("q0", (0.4, cheating)),)
    trial = Trial("mix", "cheat", ("a", "b"), honest=reader, cheating=cheat)
    assert gauntlet_of([trial]).headlines[0].setting == setting


def test_a_judge_that_failed_leaves_no_number():
    failed = (Payment("q0", (None,), abstained=True), *paid(None, 0.5)[1:])
    trial = Trial("mix", "cheat", ("",), honest=paid(1.0, 1.0), cheating=failed)
    [finding] = gauntlet_of([trial]).findings
    assert finding.cheating.value is None
    assert finding.cheating.abstained == 1


def test_a_value_at_one_setting_outlives_a_failed_judge_at_another():
    scored = tuple(Payment(f"q{number}", (None, 0.5), abstained=True) for number in range(4))
    trial = Trial("mix", "cheat", ("judged", "unjudged"), honest=scored, cheating=scored)
    judged, unjudged = gauntlet_of([trial]).findings
    assert judged.cheating.abstained == 4
    assert unjudged.cheating.value == 0.5
    assert unjudged.exploitability.value == 1.0
    assert unjudged.exploitability.not_applicable == 0


def test_a_judge_that_failed_on_the_reader_leaves_no_ratio():
    failed = (Payment("q0", (None,), abstained=True), *paid(None, 0.5)[1:])
    trial = Trial("mix", "cheat", ("",), honest=failed, cheating=paid(1.0, 1.0))
    [finding] = gauntlet_of([trial]).findings
    assert finding.exploitability.abstained == 1
    assert finding.exploitability.value is None


def test_the_weights_of_a_schedule_are_tried_at_both_ends():
    labels = [setting.label for setting in reachable_settings(pou_mix())]
    assert labels == ["α 0.99", "α 0.50", "α 0.01"]


def test_a_curriculum_is_tried_at_its_beginning_and_its_end():
    mix = veritas_mix(warmup=Warmup(("info_think",), 20, 30))
    assert [setting.label for setting in reachable_settings(mix)] == ["step 1", "step 30"]


def test_what_a_cheat_believes_is_asked_of_the_cheat_alone(rollouts):
    cheat, cheating = CHEATS["always_helpful"], rollouts["pou"]["always_helpful"]
    believers = Believers(cheat, cheating)
    chat = ChatFormat.of(believers.tokenizer, dialects.load("pou"))
    prompts = []
    for rollout in (cheating[0], rollouts["pou"][HONEST][0]):
        tokens = chat.transcript(replace(rollout, steps=rollout.steps[:1]))
        other = chat.render_observation([Evidence("Nothing of it.", "None", "E1")])
        [(start, middle, _)] = tokens.turns
        turn = tokens.completion_ids[start:middle]
        prompts.append(tokens.prompt_ids + turn + chat.observation_ids(other, ended=True))
    [[of_cheat], [of_reader]] = believers.choice_probs(prompts, [[[1]], [[1]]])
    assert of_cheat > 0.9
    assert of_reader < 0.1


def tabled():
    """The names that begin a row of the page's tables."""
    page = (ROOT / "docs" / "gauntlet.md").read_text("utf-8")
    return set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))


ASKS_A_POLICY = {"answer_likelihood_gap", "self_correctness", "self_rubric"}


def test_every_reward_has_an_entry_in_the_table():
    names = {*MIXES, *published.names(), *rewards.names()} - ASKS_A_POLICY
    assert names - tabled() == set(), "run the gauntlet on it, and put its row in docs/gauntlet.md"


def test_every_cheat_is_in_the_list():
    assert set(CHEATS) - tabled() == set()


def test_pou_recipe_is_what_the_recipe_trains_with():
    config = yaml.safe_load((ROOT / "recipes" / "configs" / "pou_tiny.yaml").read_text())
    names = {setting.name for setting in fields(PoUArguments)}
    script = PoUArguments(**{name: config[name] for name in names & set(config)})
    assert contender("pou_recipe").reward == build_reward(script)


def test_what_a_judge_left_open_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "down.py").write_text(DOWN)
    few = ("--mix", "answer_support", "--cheat", "cite_all", "--questions", "2")
    first = invoked("gauntlet", *few, "--judge", "down.py")
    assert first.exit_code == 3
    assert "4 values are missing" in first.stderr
    (tmp_path / "up").touch()
    assert invoked("gauntlet", *few, "--judge", "down.py").exit_code == 0
    assert "| answer_support | 1.000" in (tmp_path / "outputs/gauntlet/gauntlet.md").read_text()


def test_a_held_out_judge_scores_the_same_rollouts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "down.py").write_text(DOWN)
    (tmp_path / "up").touch()
    few = ("--mix", "answer_support", "--cheat", "guess", "--questions", "2")
    done = invoked("gauntlet", *few, "--held-out-judge", "down.py")
    assert done.exit_code == 0, done.output
    findings = json.loads((tmp_path / "outputs/gauntlet/gauntlet.json").read_text())["findings"]
    paid_by = {finding["mix"]: finding["cheating"]["value"] for finding in findings}
    assert paid_by == {"answer_support": 0.0, "answer_support, judged by down.py": 1.0}


def test_a_trained_policy_can_be_the_honest_reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ("--mix", "pou", "--cheat", "from_memory", "--questions", "2", "--policy", "tiny")
    done = invoked("gauntlet", *few)
    assert done.exit_code == 0, done.output
    rollouts = list(read_jsonl(tmp_path / "outputs/gauntlet/rollouts/pou/honest.jsonl"))
    assert [rollout.question for rollout in rollouts] == [task.question for task in questions(2)]
    assert rollouts[0].steps[0].spans


def test_a_cheat_cannot_pass_for_the_reader(tmp_path):
    with pytest.raises(ConfigError, match="rename the file"):
        run_gauntlet([contender("pou")], {HONEST: CHEATS["guess"]}, [], tmp_path, {})


def test_two_mixes_of_one_name_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="one name"):
        run_gauntlet([contender("pou")] * 2, {}, [], tmp_path, {})
