"""VERITAS: the pairs that its measures make, its reward's sum and curriculum, a judge that goes
away in training, and that the reward is what metrics say.
"""

import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import lab
import pytest
import tiny_trainer
import torch
from agent_rows import CountingJudge, file_of, lines_of, silent_on
from paths import ROOT, SUPPORT
from stub_judges import Down, by_word

import faithful_search as fs
from faithful_search import dialects
from faithful_search.dialects.search_r1 import SearchR1
from faithful_search.errors import ConfigError, JudgeError
from faithful_search.inference.base import Completion
from faithful_search.judges import Pair, Verdict
from faithful_search.rewards import (
    FAITHFULNESS,
    InfoThink,
    Mix,
    ThinkAnswer,
    ThinkSearch,
    Warmup,
    turns,
    veritas_mix,
)
from faithful_search.tasks import Task
from faithful_search.tools import Toolbox
from faithful_search.training.grpo import SearchGRPOTrainer
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, read_jsonl

RIVER = Evidence("The bridge of Orlen stands in the river Teska.", "Bridge of Orlen")
FOUND = "The bridge of Orlen stands in the Teska."
TASKS = [
    Task(f"q{number}", f"In which river does bridge {number} stand?", ("Teska",))
    for number in range(8)
]
TOWER = (
    Evidence("It was finished in 1889.", "Eiffel Tower"),
    Evidence("Paris lies on the Seine.", "Paris"),
)


def search(think: str | None, query: str = "tower", evidence=TOWER, **more) -> Step:
    return Step(think=think, call=ToolCall("search", {"query": query}), evidence=evidence, **more)


def episode(
    think: str | None = FOUND, answer: str = "Teska", searched: bool = True, answers=("Teska",)
) -> Trajectory:
    first = (
        (search("I need the river at the bridge of Orlen.", "bridge of Orlen", (RIVER,)),)
        if searched
        else ()
    )
    return Trajectory(
        (*first, Step(think, answer=answer)), answer=answer, answers=answers, dialect="search_r1"
    )


# the three measures


def test_info_think_pairs_a_response_with_the_next_thought():
    note = Step(
        think="Not that.", call=ToolCall("read", {"url": "x"}), note="Error: page not found"
    )
    steps = (search("Find it."), note, Step(think="good end", answer="Paris"))
    judge = CountingJudge(by_word)
    score = InfoThink(judge).score(Trajectory(steps, question="Where?"))
    premise = "Eiffel Tower\nIt was finished in 1889.\n\nParis\nParis lies on the Seine."
    assert judge.calls == 1
    assert judge.asked == [
        Pair(premise, "Not that.", "Where?", "info_think"),
        Pair("Error: page not found", "good end", "Where?", "info_think"),
    ]
    assert score.value == 0.5
    assert score.why.startswith("step 2: ")
    assert [(pair["step"], pair["label"]) for pair in score.parts["pairs"]] == [
        (2, False),
        (3, True),
    ]
    assert InfoThink(judge, soft=True).score(Trajectory(steps)).value == 0.5  # of 0.25 and 0.75
    both = (
        search("Find both.", evidence=TOWER[:1]),
        search(None, evidence=TOWER[1:], same_turn=True),
    )
    (parallel,) = InfoThink().pairs(
        Trajectory((*both, Step(think="So.", answer="a")))
    )  # calls that are one response
    assert (parallel.step, parallel.pair.premise) == (3, premise)


@pytest.mark.parametrize(
    "after",
    [Step(answer="a"), search(None), search("  \n"), search("", helpful=True, refs=("E1",))],
)
def test_acting_on_information_without_a_thought_is_a_settled_zero(after):
    score = InfoThink(Down()).score(Trajectory((search("Find it."), after)))
    assert score.value == 0.0
    assert score.parts["applies"]
    assert (
        score.parts["pairs"][0]["why"] == "acts on what was returned without a thought in between"
    )
    assert (
        InfoThink(Down(), unthinking=False).score(Trajectory((search("Find it."), after))).value
        is None
    )


@pytest.mark.parametrize(
    ("steps", "dialect"),
    [
        ((search("Find it."),), ""),  # cut off
        ((Step(think="I know.", answer="a"),), ""),
        (
            (Step(think="x", note="Say <answer>."), Step(think="y", answer="a")),
            "",
        ),  # no call: a controller speaks
        ((search("Find it."), Step(note="cut")), ""),  # neither thought nor action
        ((search(None), Step(answer="a")), "openai"),  # a dialect that asks for no thoughts
        (
            (search("x", evidence=(), note="..."), Step(think="So.", answer="a")),
            "",
        ),  # left out of the transcript
    ],
)
def test_where_there_is_nothing_to_judge_there_is_no_value(steps, dialect):
    score = InfoThink(Down()).score(Trajectory(steps, dialect=dialect))
    assert score.value is None
    assert "abstained" not in score.parts
    assert score.why


def test_think_search_pairs_each_call_with_the_thought_of_its_turn():
    steps = (
        search("good idea", "good query"),
        Step(call=ToolCall("graph", {"entity": "Paris", "top_k": 3}), same_turn=True),
        search(None, "no thought before it"),
        Step(think="third", call=ToolCall("read", raw="  the call as written ")),
        Step(think="fourth", call=ToolCall("clock")),
        Step(think="last", answer="a"),
    )
    asked = ThinkSearch().pairs(Trajectory(steps, question="q"))
    assert [(item.step, item.pair.premise, item.pair.hypothesis) for item in asked] == [
        (1, "good idea", "good query"),
        (2, "good idea", '{"entity": "Paris", "top_k": 3}'),
        (4, "third", "the call as written"),
    ]
    assert {item.pair.task for item in asked} == {"think_search"}
    score = ThinkSearch(CountingJudge(by_word)).score(Trajectory(steps))
    assert score.value == pytest.approx(1 / 3)
    assert score.why.startswith("step 2: ")


def test_the_words_of_a_call():
    words = turns.call_words
    assert (
        words(ToolCall("s", {"query_list": ["one", "two"], "top_n": 5, "raw": True})) == "one\ntwo"
    )
    assert (
        words(ToolCall("s", {"query": "q", "source": "web", "filter": {}}))
        == 'q\n{"source": "web"}'
    )
    assert (words(ToolCall("s", {"a": 1})), words(ToolCall("s"))) == ('{"a": 1}', "")


@pytest.mark.parametrize(
    ("thought", "answer", "how", "value"),
    [
        ("So the capital is The Hague.", "the hague", "squad", 1.0),
        ("made in the U.S.A. then", "USA", "squad", 1.0),
        ("made in the U.S.A. then", "USA", "pokee", 0.0),
        ("nothing", "!!!", "squad", 0.0),  # the normaliser leaves nothing of it
        ("I know it now.", "no", "squad", 1.0),  # characters, as the paper has it
    ],
)
def test_sub_em_by_hand(thought, answer, how, value):
    score = ThinkAnswer(how=how).score(
        Trajectory((search("x"), Step(think=thought, answer=answer)), answer=answer)
    )
    assert (score.value, score.parts["judge"]) == (value, f"sub_em_{how}")
    assert bool(score.why) == (value == 0)


def test_the_thought_is_the_last_one_before_the_answer_and_never_a_check_of_it():
    steps = (
        Step(think="Paris it is", answer="Rome"),
        Step(think="Rome is wrong", verified=False),
        Step(answer="Paris"),
        Step(think="Paris is right after all", verified=True),
    )
    (asked,) = ThinkAnswer(CountingJudge()).pairs(Trajectory(steps, answer="Paris"))
    assert (asked.step, asked.pair, asked.settled) == (
        3,
        Pair("Paris it is", "Paris", "", "think_answer"),
        None,
    )
    assert (
        ThinkAnswer().score(Trajectory(steps[1:], answer="Paris")).value is None
    )  # no thought but checks
    assert ThinkAnswer().score(Trajectory(steps)).value is None  # no answer
    assert ThinkAnswer().score(Trajectory(answer="Paris")).value is None
    with pytest.raises(ConfigError):
        ThinkAnswer(how="other")


@pytest.mark.parametrize("answer", ["Yes", "no.", "True"])
def test_sub_em_says_nothing_of_yes_or_no(answer):
    steps = (Step(think="Both are in France, so it is yes.", answer=answer),)
    assert ThinkAnswer(how="unicode").score(Trajectory(steps, answer=answer)).value is None


@pytest.mark.parametrize("reward", [InfoThink, ThinkSearch, ThinkAnswer])
def test_a_judge_that_says_nothing_leaves_no_number(reward):
    def made(word):
        return Trajectory(
            (search(word, word), search(word, word), Step(think=word, answer=word)), answer=word
        )

    hard, good = reward(CountingJudge(by_word)).score_batch([made("hard"), made("good")])
    assert hard.value is None
    assert hard.parts["abstained"]
    assert "timed out" in hard.why
    assert good.value == 1.0
    assert reward(Down()).score(made("good")).parts["abstained"]
    assert reward(Down()).score(Trajectory()).parts.get("abstained") is None


# the sum


@pytest.mark.parametrize(
    ("made", "value"),
    [
        (episode(), 1.0 + 0.05 + 0.02),
        (episode(answer="Seine"), 0.05),
        (episode(think="Paris is famous for its museums, so Teska."), 1.0 + 0.02),
        (
            episode(think=None),
            1.0,
        ),  # acts without a thought: info_think is 0, think_answer does not apply
        (episode(searched=False), 1.0 + 0.02),  # nothing retrieved
    ],
)
def test_the_sum_by_hand(made, value):
    assert veritas_mix().score(made).value == pytest.approx(value, abs=1e-12)


def test_parts_of_weight_zero_are_left_out():
    assert list(veritas_mix().parts) == ["exact_match", "info_think", "think_answer"]
    assert list(veritas_mix(info_think=0, think_answer=0).parts) == ["exact_match"]
    assert veritas_mix(think_search=0.5).score(episode()).value == pytest.approx(1.57)
    for soft, value in ((True, 1.095), (False, 1.12)):  # the mean of p, which is 0.75, or of labels
        assert veritas_mix(CountingJudge(), info_think=0.1, soft=soft).score(
            episode()
        ).value == pytest.approx(value)
    own, search, answer = CountingJudge(), CountingJudge(), CountingJudge()
    veritas_mix(own, think_search=0.1).score(episode())
    assert own.calls == 2  # info_think and think_search; the answer is looked for in the thought
    veritas_mix(own, think_search=0.1, search_judge=search, answer_judge=answer).score(episode())
    assert (own.calls, search.calls, answer.calls) == (3, 1, 1)


def test_an_unjudged_part_empties_the_row():
    mix = veritas_mix(CountingJudge(silent_on("Orlen")))
    assert mix.score(episode(searched=False)).parts["info_think"] is None
    lost = mix.score(episode())
    assert lost.value is None
    assert lost.parts["abstained"] is True
    assert "info_think" in lost.why
    assert (
        mix.score(episode(answers=())).value is None
    )  # no gold answers: there is no exact match to count as 0
    for counted, expected in (({}, None), ({"info_think": 0.0}, 1.0), ({"info_think": 0.5}, 1.5)):
        own = Mix(mix.parts, {"exact_match": 1.0, "info_think": 1.0}, gate=None, absent=counted)
        assert own.score(episode(searched=False)).value == expected


# the curriculum


def test_the_curriculum_by_hand():
    """From step 1 to T1 only the outcome, linear from T1 + 1 to T2, full from T2 on."""
    ramp = [Warmup(("a",), 4, 8).ramp("a", step) for step in range(1, 11)]
    assert ramp == [0, 0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1]
    assert Warmup(("a",), 4, 8).ramp("b", 1) == 1
    assert [Warmup(("a",), 3, 3).ramp("a", step) for step in (1, 2, 3, 4)] == [0, 0, 1, 1]
    written = [("1.0ep", "1.5ep"), (20, "30"), ("0", "0"), ("1 epoch", "2epochs"), (0, ".5ep")]
    found = [Warmup.parse(FAITHFULNESS, start, end, steps_per_epoch=13) for start, end in written]
    assert [(one.start, one.end) for one in found] == [(13, 20), (20, 30), (0, 0), (13, 26), (0, 7)]


@pytest.mark.parametrize("written", ["1.5", "ep", "soon", "-3", "", "1e3ep", "nan", "٣ep0"])
def test_what_is_neither_steps_nor_epochs(written):
    with pytest.raises(ConfigError, match="neither a number of steps"):
        Warmup.parse(("a",), 0, written, 13)
    with pytest.raises(ConfigError, match="0 <= start <= end"):
        Warmup(("a",), 3, 2)
    with pytest.raises(ConfigError, match="citation"):
        veritas_mix(warmup=Warmup(("citation",), 1, 2))


# training

TURNS = [
    "<think>I need the river at Orlen.</think><search>bridge of Orlen river</search>",
    f"<think>{FOUND}</think><answer>Teska</answer>",
    "<think>Paris is famous for its museums.</think><answer>Paris</answer>",
]
FORCED = [
    "Teska</answer>",
    " the Orlen </answer>",
    "Rome",
    "<think>so</think><answer>Teska</answer>",
]
FOUND_ONLY = [
    "<think>I need Orlen.</think><search>Orlen</search>",
    f"<think>{FOUND}</think><search>Orlen</search>",
]


class Writer(lab.Scripted):
    """A generator whose turns are drawn from given ones; each ends where the engine's stop strings
    end it.
    """

    def __init__(self, turns: list[str] = TURNS, cut: float = 0.0, seed: int = 0) -> None:
        super().__init__(turns)
        self.cut, self.draw = cut, random.Random(seed)

    def _turn(self, prompt: list[int], limit: int) -> Completion:
        text = self.draw.choice(
            FORCED if self.tokenizer.decode(prompt).endswith("<answer>") else self.turns
        )
        ends = [text.index(mark) + len(mark) for mark in self.stop if mark in text]
        text = text[: min(ends, default=len(text))]
        cut = self.draw.random() < self.cut
        text = text[: self.draw.randrange(len(text) + 1)] if cut else text
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return Completion(
            ids[:limit],
            "length" if cut or len(ids) > limit else "stop",
            [-0.5] * min(len(ids), limit),
        )


class Brief(SearchR1):
    """Search-R1 with a prompt that costs an untrained model little."""

    def prompt(self, question, tools):
        return [{"role": "user", "content": question}]


def trainer(
    path: Path, mix: Mix, writer: Writer | None = None, evidence=(RIVER,), **settings
) -> SearchGRPOTrainer:
    own = {
        "model": lab.model(hidden=16),
        "toolbox": Toolbox([lab.Shelf(*evidence, name="search")]),
        "dialect": Brief(),
        "tasks": TASKS,
        "limits": {"turn_tokens": 200, "total_tokens": 700},
        "max_completion_length": 700,
        "per_device_train_batch_size": 4,
        "max_steps": 2,
        "max_abstained": 0.5,
        "save_strategy": "no",
    }
    made = tiny_trainer.trainer(path, mix, **own | settings)
    made.engine.generator = writer or Writer()
    return made


class DownLater(CountingJudge):
    """Answers once."""

    def judge_batch(self, pairs: list[Pair]) -> list[Verdict]:
        self.refuses = "no connection to the judge" if self.calls else ""
        return super().judge_batch(pairs)


def history(made: SearchGRPOTrainer, name: str) -> list[float]:
    return [row[name] for row in made.state.log_history if name in row]


CURRICULUM = Warmup(FAITHFULNESS, 1, 3)
RISING = [0.0, 0.025, 0.05, 0.05]


@pytest.mark.parametrize(
    ("per_generation", "steps"),
    [(1, [1, 2, 3]), (4, [1, 3])],  # two batches a step; a batch lasts two steps
)
def test_the_curriculum_goes_by_optimizer_steps(tmp_path, per_generation, steps):
    cadence = {"gradient_accumulation_steps": 2, "steps_per_generation": per_generation}
    made = trainer(
        tmp_path, veritas_mix(warmup=CURRICULUM), Writer(FOUND_ONLY), max_steps=3, **cadence
    )
    made.train()
    assert [
        row["step"] for row in made.state.log_history if "parts/info_think/weight" in row
    ] == steps
    assert history(made, "parts/info_think/weight") == pytest.approx(
        [RISING[step - 1] for step in steps]
    )
    assert set(history(made, "parts/exact_match/weight")) == {1.0}
    assert len(history(made, "parts/info_think")) == len(steps)  # scored before it counts, too


def test_steps_per_epoch_are_the_trainers(tmp_path):
    cadence = {"gradient_accumulation_steps": 3, "steps_per_generation": 1, "num_iterations": 2}
    made = trainer(
        tmp_path, veritas_mix(), tasks=TASKS[:5], max_steps=-1, num_train_epochs=1, **cadence
    )
    made.train()
    assert made.state.global_step == made.args.steps_per_epoch(5)


def warnings_of(caplog) -> list[str]:
    return [
        record.message
        for record in caplog.records
        if record.name.startswith(("faithful_search", "trl"))
    ]


def test_a_resumed_run_goes_on_in_the_curriculum(tmp_path, caplog):
    writer, log = Writer(FOUND_ONLY), tmp_path / "trajectories.jsonl"
    settings = {
        "max_steps": 4,
        "restore_callback_states_from_checkpoint": True,
        "trajectory_file": log,
    }
    made = trainer(tmp_path, veritas_mix(DownLater(), warmup=CURRICULUM), writer, **settings)
    with pytest.raises(JudgeError, match=r"at step 2 .*no connection.*checkpoint-2\b.*resume"):
        made.train()
    assert warnings_of(caplog) == [
        "step 2: no verdict on info_think of 4 of 4 rollouts; 4 of them have no reward: "
        "no verdict: no connection to the judge"
    ]
    resumed = trainer(tmp_path, veritas_mix(CountingJudge(), warmup=CURRICULUM), writer, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == resumed.reward_state.step == 4
    assert history(resumed, "parts/info_think/weight") == pytest.approx(RISING)
    assert history(resumed, "judge/abstained") == [0.0, 1.0, 0.0, 0.0]
    assert len(list(read_jsonl(log))) == 16


@pytest.mark.parametrize(
    ("down", "settings"),
    [(True, {"advantages": "leave_one_out"}), (False, {"scale_rewards": "batch"})],
)
def test_without_a_judge_or_gold_answers_a_batch_leaves_the_weights_as_they_are(
    tmp_path, caplog, down, settings
):
    settings |= {
        "max_abstained": float(down),
        "max_steps": 1,
        "tasks": TASKS if down else [Task("q", "Where?")],
    }
    mix = veritas_mix(Down() if down else CountingJudge())
    made = trainer(tmp_path, mix, Writer(FOUND_ONLY) if down else None, **settings)
    before = [parameter.clone() for parameter in made.model.parameters()]
    made.train()
    assert history(made, "judge/abstained") == [float(down)]
    if not down:
        told = (
            "step 1: 4 of 4 rollouts have no reward: exact_match: no gold answers to compare with"
        )
        assert warnings_of(caplog) == [told]
    assert all(math.isfinite(loss) for loss in history(made, "loss"))
    assert all(
        torch.equal(old, new) for old, new in zip(before, made.model.parameters(), strict=True)
    )


def test_the_run_stops_between_two_batches(tmp_path):
    """A batch that lasts two steps is used up first: a checkpoint inside it could not be resumed
    exactly.
    """
    made = trainer(
        tmp_path, veritas_mix(Down()), Writer(FOUND_ONLY), steps_per_generation=2, max_steps=8
    )
    with pytest.raises(JudgeError, match=r"at step 1 .*checkpoint-2"):
        made.train()


def test_an_outage_below_the_limit_or_without_weight_does_not_stop_the_run(tmp_path, caplog):
    turns = [FOUND_ONLY[0], "<answer>Teska</answer>", TURNS[1]]
    settings = {"max_abstained": 1.0, "per_device_train_batch_size": 16}
    made = trainer(
        tmp_path / "few", veritas_mix(CountingJudge(silent_on("Teska"))), Writer(turns), **settings
    )
    made.train()
    assert 0 < max(history(made, "judge/abstained")) < 1
    caplog.clear()
    mix = veritas_mix(Down(), warmup=Warmup(FAITHFULNESS, 5, 6))
    early = trainer(tmp_path / "early", mix, Writer(FOUND_ONLY), max_abstained=0.0)
    early.train()
    assert history(early, "judge/abstained") == [0.0, 0.0]
    assert history(early, "parts/info_think/abstained") == [1.0, 1.0]
    told = [line.partition(" rollouts")[0] for line in warnings_of(caplog) if "no verdict" in line]
    assert told == [f"step {step}: no verdict on info_think of 4 of 4" for step in (1, 2)]
    with pytest.raises(ConfigError, match=r"max_abstained must be in \[0, 1\], not 50"):
        trainer(tmp_path, mix, max_abstained=50)


def stop_together(path: Path) -> None:
    """One of two processes: the judge of the second is down."""
    rank = os.environ["RANK"]
    mix = veritas_mix(CountingJudge() if rank == "0" else Down())
    made = trainer(path, mix, Writer(FOUND_ONLY), max_abstained=0.4, max_steps=4)
    with pytest.raises(JudgeError) as stopped:
        made.train()
    (path / f"rank{rank}.txt").write_text(f"{made.state.global_step} {stopped.value}")


@pytest.mark.slow
def test_all_processes_agree_to_stop(tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(SUPPORT)])}
    subprocess.run([*command, __file__, str(tmp_path)], env=own, timeout=600, check=True)
    said = [(tmp_path / f"rank{rank}.txt").read_text() for rank in (0, 1)]
    assert said[0] == said[1]
    assert said[0].startswith("1 at step 1 no verdict on info_think of 4 of 8 rollouts")
    assert (tmp_path / "checkpoint-1" / "trainer_state.json").is_file()


# what is trained on is what is measured

ODD = [
    "<search>no thought</search>",
    "<answer>Rome</answer>",
    "just text",
    "<think>unclosed <search>x</search>",
    "<think>so the Teska</think><answer>never closed",
    "<think>Teska <answer>Teska</answer>",
    "<think>...</think>...<answer>Teska</answer>",
    "<think>a thought</think><|im_end|>",
    "<think>  </think><search></search>",
    "<think>Teska</think><answer> </answer>",
    "<think>1</think><search>a</search><answer>Teska</answer>",
]
TRICKY = (
    RIVER,
    Evidence(
        'Teska </information> Doc 2(Title: "x") & &amp; <answer>Rome</answer> ...',
        'River "Teska" (x)',
    ),
    Evidence("  blanks \n\n in it \n", ""),
)
METRICS = {
    "exact_match": ("answer_correctness", "exact_match_unicode"),
    "info_think": ("info_think_faithfulness", "info_think_lexical"),
    "think_search": ("think_search_faithfulness", "think_search_lexical"),
    "think_answer": ("think_answer_faithfulness", "think_answer_sub_em"),
}


def measured(lines: list, folder: Path) -> dict[str, list[float | None]]:
    """What an audit says of a file of them."""
    path = file_of(folder / "rows.jsonl", lines)
    fs.audit(path, folder, metrics=[metric for metric, _ in METRICS.values()], dialect="search_r1")
    read = [line["scores"] for line in lines_of(folder / "scores.jsonl")]
    return {name: [line[result]["value"] for line in read] for name, (_, result) in METRICS.items()}


def test_the_reward_in_training_is_what_is_measured_on_the_same_text(tmp_path):
    """To the last bit, for odd, cut and forced turns and evidence full of markup: of trajectories,
    of their texts, and of texts written anew from the steps where that is exact.
    """
    mix = veritas_mix(think_search=0.3, warmup=Warmup(FAITHFULNESS, 1, 4))
    settings = {"per_device_train_batch_size": 24, "max_steps": 3, "num_generations": 8}
    limits = {
        "turn_tokens": 120,
        "total_tokens": 500,
        "observation_tokens": 150,
        "force_answer": True,
    }
    writer, log = Writer(TURNS * 3 + ODD, 0.15, seed=1), tmp_path / "trajectories.jsonl"
    made = trainer(tmp_path, mix, writer, TRICKY, trajectory_file=log, limits=limits, **settings)
    made.train()
    rows = list(read_jsonl(log))
    ends = Counter(row.stop_reason for row in rows)
    assert {"answered", "answered_forced", "turn_limit", "turn_token_limit"} <= ends.keys()
    for reason in ("answered", "answered_forced"):
        own = [
            [row.stop_reason for row in rows if row.meta["step"] == step].count(reason) / 24
            for step in range(3)
        ]
        assert history(made, f"ended/{reason}") == pytest.approx(own)
        assert max(own) > 0
    assert sum(bool(row.meta.get("observations_cut")) for row in rows) >= 20
    # of a text alone nobody knows that its escapes and notes are ours
    plain = [
        row for row in rows if "&" not in row.text and not any(step.note for step in row.steps)
    ]
    whole = [row for row in rows if not any(issue.kind == "elided" for issue in row.all_issues())]
    render = dialects.load("search_r1").render
    texts = [
        {"question": row.question, "text": row.text, "answers": list(row.answers)} for row in plain
    ]
    written = [
        {"question": row.question, "text": render(row), "answers": list(row.answers)}
        for row in whole
    ]
    assert len(plain) > 20
    assert len(whole) > 50
    for kept, lines in ((plain, texts), (whole, written), (rows, [row.to_json() for row in rows])):
        columns = measured(lines, tmp_path)
        for name, column in columns.items():
            assert column == [row.meta["scores"][name] for row in kept]
            assert len(set(column)) > 1
        for place, row in enumerate(kept):
            weights = mix.weights_at(row.meta["step"] + 1)
            parts = [
                weight * (columns[name][place] or 0.0) for name, weight in weights.items() if weight
            ]
            assert sum(parts) == row.meta["reward"]
    assert len({row.meta["reward"] for row in rows}) > 8


if __name__ == "__main__":
    stop_together(Path(sys.argv[1]))
