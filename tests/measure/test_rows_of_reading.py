"""What an evaluation tells of a policy that reads and one that does not: verdicts, blanked
responses, citations.
"""

import json
import pickle
from contextlib import nullcontext
from types import SimpleNamespace

import lab
import msgspec
import numpy as np
import pytest
from agent_rows import CountingJudge
from hypothesis import given, settings, strategies as st
from stub_judges import Down

from faithful_search.coldstart.twins import TRAINING_BLANKS
from faithful_search.errors import ConfigError, GeneratorError
from faithful_search.hub.cards import model_card
from faithful_search.inference.base import Sampling
from faithful_search.judges import GroundingJudge
from faithful_search.measure.behaviour import no_share, retry_share, tool_counts
from faithful_search.measure.evaluating import (
    NO,
    RETRY,
    default_rewards,
    evaluate_policy,
    evaluate_rollouts,
)
from faithful_search.measure.evaluation import AUROC, GAP, Evaluation, Record, difference
from faithful_search.measure.probes import (
    BLANK_TURNS,
    UNSEEN_BLANKS,
    UNSEEN_SNIPPETS,
    Blanked,
    blank_engine,
)
from faithful_search.measure.report import evaluation_rows
from faithful_search.measure.stats import pooled_estimate
from faithful_search.measure.verdicts import (
    BINS,
    POOLED_VERDICTS,
    Seen,
    Verdicts,
    verdict_columns,
)
from faithful_search.rewards import CitationStatesFact, Correctness, EvidenceSensitivity, Format
from faithful_search.rollout import Engine, Limits
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.tasks import load_tasks
from faithful_search.tools import Toolbox
from faithful_search.training import runs
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
from faithful_search.world import Asked, Change, bundled_world
from faithful_search.world.facts import FactsJudge

# --- the statistics, by hand


def value(name, verdicts):
    columns = verdict_columns(verdicts)
    return pooled_estimate(columns, POOLED_VERDICTS[name], range(len(verdicts))).value


def seen(stratum, *stating, lacking=()):
    return [Seen(stratum, True, q) for q in stating] + [Seen(stratum, False, q) for q in lacking]


HAND = [
    seen("a", 0.9, lacking=[0.5]),
    [*seen("a", 0.3), *seen("b", 0.8, lacking=[0.8])],
    [*seen("b", lacking=[0.4]), *seen("c", 0.1)],  # c has no counterpart
    [],
]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # a: (0.9 + 0.3)/2 - 0.5 = 0.1, b: 0.8 - (0.8 + 0.4)/2 = 0.2, each of weight 2/3; pairs won
        # 1 and 1.5 of 2
        (HAND, (0.15, 2.5 / 4)),
        # strata weigh n1 n0 / (n1 + n0): 3/4 where the gap is 1, 1/2 where it is 0; the raw means
        # would say 0.75
        (
            [seen("a", 1.0, 1.0, 1.0, lacking=[0.0]) + seen("b", 0.5, lacking=[0.5]), []],
            (0.6, 0.875),
        ),
        # a shortcut: p(yes) is 1 for one tool and 0 for the other, whatever stands there
        (
            [seen("a", *[1.0] * 9, lacking=[1.0]) + seen("b", 0.0, lacking=[0.0] * 9), []],
            (0.0, 0.5),
        ),
        ([seen("a", 0.9) + seen("b", lacking=[0.1]), []], (None, None)),  # no pair
    ],
)
def test_gap_and_auroc_are_within_strata(rows, expected):
    found = [value(function, rows) for function in (GAP, AUROC)]
    assert found == [None if own is None else pytest.approx(own) for own in expected]
    estimate = pooled_estimate(verdict_columns(HAND), POOLED_VERDICTS[GAP], list("wxyz"))
    assert (estimate.n, estimate.not_applicable) == (3, 1)
    assert (
        pooled_estimate(verdict_columns(HAND), POOLED_VERDICTS[GAP], list("wwyz")).n == 2
    )  # questions, not rollouts


SEEN = st.builds(
    Seen,
    st.sampled_from("ab"),
    st.booleans(),
    st.integers(0, BINS - 1).map(lambda n: (n + 0.5) / BINS),
)


@settings(max_examples=40)
@given(st.lists(st.lists(SEEN, max_size=4), min_size=1, max_size=12))
def test_auroc_is_the_share_of_pairs_in_the_right_order(rows):
    every = [item for own in rows for item in own]
    won = [
        1.0 if one.q > two.q else 0.5 if one.q == two.q else 0.0
        for one in every
        for two in every
        if one.stratum == two.stratum and one.states and not two.states
    ]
    found = value(AUROC, rows)
    assert found is None if not won else found == pytest.approx(np.mean(won))


# --- a policy in the bundled world

FORMAT = {"valid_format": Format()}
WORLD = bundled_world()
LAST = [(task, task.meta["chain"][-1]) for task in load_tasks("world", "validation")]
COUNTRY = [(task, fact) for task, fact in LAST if fact["relation"] == "country"]
ONE_TOOL = [
    task for task, fact in COUNTRY if not (fact["passage"] and fact["triple"])
]  # 2 passages, 5 triples
TASKS = [*ONE_TOOL, *(task for task, fact in COUNTRY if task not in ONE_TOOL)][:12]


def asked_for(task):
    return f"country of {task.meta['chain'][-1]['subject']}"


class Looker(lab.Writing):
    """Asks for a question's last fact, first the tool that lacks it where one does, after a no the
    other; p(yes) tells whether it reads.
    """

    def __init__(self, reads=True):
        super().__init__()
        self.reads, self.asked = reads, []

    def choice_probs(self, prompts, choices):
        self.asked.append([self.tokenizer.decode(prompt) for prompt in prompts])
        return super().choice_probs(prompts, choices)

    def p_yes(self, prompt):
        return 0.9 if not self.reads or self._stating(prompt) else 0.2

    def turn(self, prompt):
        task = next(task for task in TASKS if task.question in prompt)
        tools = ("knowledge_graph", "local_search")
        tools = tools if task.meta["chain"][-1]["passage"] else tools[::-1]
        made = prompt.count("<tool_response>") - prompt.split("<|im_start|>assistant")[0].count(
            "<tool_response>"
        )
        asked = lab.searching("look", tools[made % 2], asked_for(task))
        if not made:
            return asked
        if found := self._stating(prompt):
            return lab.answering("yes", found.split("[")[1].split("]")[0], "so", task.answers[0])
        return asked.replace("look", "<helpful>no</helpful><ref>null</ref>on")

    def _stating(self, prompt):
        """The line of the last response that states the fact."""
        task = next(task for task in TASKS if task.question in prompt)
        lines = prompt.rsplit("<tool_response>", 1)[1].splitlines()
        stating = (
            line
            for line in lines
            if WORLD.states(asked_for(task), Evidence(line.rpartition("]: ")[2]))
        )
        return next(stating, None)


@pytest.fixture(scope="module")
def toolbox():
    with EnvironmentArguments().toolbox() as box:
        yield box


def engine(toolbox, policy=None):
    return Engine(
        policy or Looker(),
        toolbox,
        "pou",
        Limits(turns=5, total_tokens=20000),
        Sampling(temperature=0.0),
    )


@pytest.fixture(scope="module")
def found(toolbox):
    return {
        reads: evaluate_policy(engine(toolbox, Looker(reads)), TASKS) for reads in (True, False)
    }


def test_blanked_tools_leave_a_reading_policy_nothing(toolbox, found):
    read = found[True]
    ones = (
        "exact_match",
        "f1",
        "valid_format",
        "citation_validity",
        "answer_support_facts",
        "answered",
    )
    assert [read.rows[name].value for name in ones] == [1.0] * 6
    assert read.rows["evidence_sensitivity_unseen"].value > 0.5
    assert read.rows["exact_match"].n == len(TASKS)
    assert found[False].rows["evidence_sensitivity_unseen"].value == pytest.approx(0.0)
    calls = {name: sum(own) for name, own in read.tool_calls.items()}
    assert calls == tool_counts(read.trajectories)
    assert all(calls.values())
    assert read.trajectories[0].meta["scores"]["exact_match"] == 1.0
    other = msgspec.structs.replace(
        TASKS[1], question=f"{TASKS[1].question} Say: "
    )  # whose facts are not known
    assert (
        "answer_support_facts"
        not in evaluate_policy(engine(toolbox), [TASKS[0], other], controls=0).rows
    )
    blind = evaluate_policy(
        engine(Blanked(toolbox)), TASKS[:4], {"exact_match": Correctness()}, controls=0
    )
    assert blind.rows["exact_match"].value == 0.0
    assert difference(read, blind, "exact_match").value == -1.0
    assert all(
        item.text == item.title == "content"
        for t in blind.trajectories
        for item in t.evidence.values()
    )


class Failing(Looker):
    """Writes so many turns, then its server is down."""

    left = 4

    def generate(self, prompts, *args):
        self.left -= 1
        if self.left < 0:
            raise GeneratorError("the server is down")
        return super().generate(prompts, *args)


def test_an_interrupted_evaluation_goes_on_where_it_was(toolbox, tmp_path):
    tasks = [
        TASKS[0],
        *TASKS[:4],
        TASKS[0],
    ]  # a question's copies end before and after the interruption
    failing = engine(toolbox, Failing())
    failing.concurrency = 2
    with pytest.raises(GeneratorError):
        evaluate_policy(failing, tasks, FORMAT, folder=tmp_path)
    rollouts = tmp_path / "evaluating.jsonl"
    kept = [Trajectory.from_json(line).id for line in rollouts.read_text().splitlines()]
    assert kept[:2] == [TASKS[0].id, f"{TASKS[0].id}#1"]
    assert len(kept) < len(tasks)
    rollouts.write_text(rollouts.read_text() + '{"steps": [')  # killed while it wrote
    whole = evaluate_policy(engine(toolbox), tasks, FORMAT)
    for asks in (True, False):
        policy = Failing()
        policy.left = 100
        again = evaluate_policy(engine(toolbox, policy), tasks, FORMAT, folder=tmp_path)
        assert again.rows == whole.rows
        assert again.trajectories == whole.trajectories
        assert (policy.left < 100) is asks


def test_natural_states_are_asked_in_one_call(found):
    reads, blind, policy = found[True], found[False], Looker()
    judged = [sum(bool(step.evidence) for step in item.steps[:-1]) for item in reads.trajectories]
    assert [len(own) for own in reads.verdicts] == judged
    assert {1, 2} <= {*judged}
    every = {item for own in reads.verdicts for item in own}
    assert {item.stratum for item in every} == {"local_search country", "knowledge_graph country"}
    assert {(item.states, item.q) for item in every} == {(True, 0.9), (False, 0.2)}
    assert reads.rows[GAP].value == pytest.approx(0.7)
    assert reads.rows[AUROC].value == 1.0
    assert blind.rows[GAP].value == pytest.approx(0.0, abs=1e-9)
    assert blind.rows[AUROC].value == 0.5
    assert 0 < reads.rows[GAP].n <= len(TASKS)
    texts = [
        msgspec.structs.replace(item, tokens=None) for item in reads.trajectories
    ]  # rendered again
    for own in (reads.trajectories, texts):
        assert [
            score.parts["verdicts"] for score in Verdicts(policy=policy).score_batch(own)
        ] == reads.verdicts
    Verdicts(policy=policy).score_batch([])  # other processes may wait for this call
    assert [len(asked) for asked in policy.asked] == [sum(judged), sum(judged), 0]


def reader():
    """A judge that is prompted: a passage states what is asked for when it holds the word
    `fact`.
    """

    def states(pair):
        assert pair.task == "states"
        return "fact" in pair.premise

    return CountingJudge(states)


class Constant(lab.Writing):
    def choice_probs(self, prompts, choices):
        return [[0.25 + 0.5 * (len(prompts) > 1)] for _ in prompts]


def rollout(*steps, **more):
    return Trajectory(steps, "Which?", "a", "answered", "pou", **more)


def searched(*texts, first=1, tool="web", query="the thing", **more):
    evidence = tuple(Evidence(text, id=f"E{number}") for number, text in enumerate(texts, first))
    return Step(
        think="t", call=ToolCall(tool, {"query": query} if query else {}), evidence=evidence, **more
    )


def last(*refs, helpful=True, answer="a"):
    return Step(think="t", helpful=helpful, refs=refs, answer=answer)


def test_outside_the_world_strata_are_the_tools():
    second = searched("other", first=2, tool="graph", helpful=True, refs=("E1",))
    row, no = rollout(searched("a fact"), second, last(helpful=False)), last(helpful=False)
    (score,) = Verdicts(reader(), policy=Constant()).score_batch([row])
    assert score.parts["verdicts"] == [Seen("web", True, 0.75), Seen("graph", False, 0.75)]
    assert score.value is None
    estimate = evaluate_rollouts(
        [row] * 3, list("abc"), {GAP: Verdicts(Down(), policy=Constant())}, ["web"]
    ).rows[GAP]
    assert (estimate.value, estimate.n, estimate.abstained, estimate.not_applicable) == (
        None,
        0,
        3,
        0,
    )
    # what is no verdict on evidence is left out
    empty = Step(think="t", call=ToolCall("web", {"query": "x"}), note="No results.")
    unread, unasked = (
        rollout(searched("fact"), last(helpful=None)),
        rollout(searched("fact", query=""), no),
    )
    rows = [unread, rollout(empty, no), unasked, rollout(no)]
    assert [
        s.parts["verdicts"] for s in Verdicts(reader(), policy=Constant()).score_batch(rows)
    ] == [[]] * 4


def test_a_verdict_is_held_against_its_own_world():
    """In the changed world the edited passage states the fact; in the world as it is the same text
    does not.
    """
    change = Change("Algeria", "capital", "Algiers", "Luanda", 0, Asked("Algeria", "capital"))
    asked = searched(
        "The capital of Algeria is Luanda.", tool="knowledge_graph", query="capital of Algeria"
    )
    rows = [
        rollout(asked, last("E1"), meta=meta)
        for meta in ({}, {"counterfactual": msgspec.to_builtins(change)})
    ]
    scores = Verdicts(FactsJudge(), policy=Constant()).score_batch(rows)
    assert [score.parts["verdicts"][0].states for score in scores] == [False, True]


# --- differences, kept and shown


def test_paired_differences_survive_a_file(found, tmp_path):
    before, after = found[False], found[True]
    back = Evaluation.from_dict(json.loads(json.dumps(before.to_dict())))
    assert (back.verdicts, back.rows, back.values) == (before.verdicts, before.rows, before.values)
    for name in (GAP, AUROC, NO, "tool_entropy", "citation_states_fact"):
        change = difference(back, after, name)
        assert change == difference(before, after, name)
        assert change.value == pytest.approx(after.rows[name].value - before.rows[name].value), name
    change, swapped = difference(back, after, GAP), difference(after, back, GAP)
    assert change.value == pytest.approx(0.7)
    assert change.low > 0
    assert change.n == after.rows[GAP].n
    assert (swapped.value, swapped.low) == (
        pytest.approx(-change.value),
        pytest.approx(-change.high),
    )

    names = {
        GAP,
        AUROC,
        NO,
        RETRY,
        "citation_states_fact",
        "answer_support_facts",
        "evidence_sensitivity_unseen",
    }
    run = {
        "folder": str(tmp_path),
        "model": "m",
        "dialect": "pou",
        "tools": [],
        "questions": "world",
        "settings": {},
    }
    record = Record(**run, steps=1, history=[], before=before, after=after)
    metrics = record.metrics()
    assert names <= metrics["differences"].keys() & metrics["before"]["rows"].keys()
    cells = {row[0]: row for row in evaluation_rows(before, after, ("before", "after"))}
    assert names <= cells.keys()
    assert cells[GAP][4].startswith("+0.700 [")
    assert cells[GAP][4].endswith("*")
    card = model_card(record, "r", []).read_text(encoding="utf-8")
    assert all(f"\n{name} " in card and f"type: {name}\n" in card for name in names)


# --- blanked responses


def test_a_blank_response_depends_on_its_call_alone(
    toolbox,
):
    calls = [
        *(ToolCall("local_search", {"query": asked_for(task)}) for task in TASKS),
        ToolCall("nosuch"),
        None,
    ]
    box = pickle.loads(pickle.dumps(Blanked(toolbox, UNSEEN_BLANKS)))
    assert (box.names, box.schemas) == (toolbox.names, toolbox.schemas)
    first, again = (
        box.run_batch(order, [box.session() for _ in order]) for order in (calls, calls[::-1])
    )
    assert [shown.evidence for shown in first] == [shown.evidence for shown in again[::-1]]
    *found, unknown, nothing = first
    words = [
        {item.text for item in shown.evidence} | {item.title for item in shown.evidence}
        for shown in found
    ]
    assert all(len(own) == 1 for own in words)
    assert {*UNSEEN_BLANKS} >= set.union(*words)
    assert len(set.union(*words)) > 2
    assert "Unknown tool" in unknown.note
    assert nothing.evidence == ()


def test_blanked_evidence_keeps_its_address(toolbox):
    page = Evidence("Ada led it.", "Ada", url="https://a.org/ada")
    with Toolbox([lab.Shelf(page, Evidence("Bo lives there."))]) as box:
        call = ToolCall("shelf", {"query": "Ada"})
        [shown] = Blanked(box).run_batch([call], [box.session()])
    assert [item.url for item in shown.evidence] == ["https://a.org/ada", ""]


def test_a_reader_says_no_to_blanked_evidence_and_goes_on(toolbox, found):
    assert (
        {len(item.steps) for item in blank_engine(engine(toolbox)).run(TASKS)}
        == {BLANK_TURNS}
        == {3}
    )
    rows = found[True].rows
    assert rows[NO].value == rows[RETRY].value == 1.0
    assert rows[NO].n == rows[RETRY].n == len(TASKS)


BLIND = rollout(  # no, then another tool; no, then the same tool; yes; no, then an answer
    searched("garden"),
    searched("garden", first=2, tool="graph", helpful=False),
    searched("garden", first=3, tool="graph", helpful=False),
    searched("garden", first=4, helpful=True, refs=("E3",)),
    last(helpful=False),
)


def test_shares_on_blanked_responses_by_hand():
    assert no_share(BLIND) == 3 / 4
    assert retry_share(BLIND, ["web", "graph"]) == pytest.approx(1 / 3)
    assert retry_share(BLIND, ["web"]) == 0.0  # the other tool is none
    trusting = rollout(searched("garden"), last("E1"))
    assert no_share(trusting) == 0.0
    assert retry_share(trusting, ["web", "graph"]) is None
    noted = rollout(Step(call=ToolCall("web"), note="No results."), last(helpful=False))
    assert no_share(noted) is None
    assert no_share(rollout(Step(answer="a"))) is None

    plain, blind = [rollout(Step(answer="a"))] * 4, [BLIND, BLIND, BLIND, rollout(Step(answer="a"))]
    shown = evaluate_rollouts(plain, ["q", "q", "r", "s"], {}, ["web", "graph"], blind=blind)
    row = shown.rows[NO]
    assert (row.value, row.n, row.not_applicable) == (0.75, 2, 1)
    assert shown.rows[RETRY].value == pytest.approx(1 / 3)
    assert NO not in shown.trajectories[0].meta["scores"]  # these are other episodes
    assert RETRY not in evaluate_rollouts(plain, list("abcd"), {}, ["web"], blind=blind).rows
    assert NO not in evaluate_rollouts(plain, list("abcd"), {}, ["web"]).rows


def test_evaluations_share_the_blanked_episodes_out(toolbox, monkeypatch):
    """Two processes have every other question each; the main one has all in one order, blanked ones
    too.
    """
    gathered: dict[int, list] = {0: [], 1: []}

    def evaluated(rank):
        def gather(own):
            gathered[rank].append(own)
            return own + gathered[1][len(gathered[0]) - 1] if rank == 0 else own

        policy = Looker()
        own = {
            "generator": policy,
            "policy": policy,
            "toolbox": toolbox,
            "engine": engine(toolbox, policy),
        }
        trainer = SimpleNamespace(
            **own, generating=nullcontext, asking=lambda *rewards: nullcontext()
        )
        state = SimpleNamespace(process_index=rank, num_processes=2, is_main_process=rank == 0)
        state.print = lambda line: None
        monkeypatch.setattr(runs, "PartialState", lambda: state)
        monkeypatch.setattr(runs, "gather_object", gather)
        script = SimpleNamespace(dialect="pou", eval_controls=5, held_out=lambda: TASKS)
        return runs.evaluate(trainer, script, default_rewards(facts=True), "after training")

    assert evaluated(1) is None
    whole = evaluated(0)
    # five are blocked and four changed, in all
    assert [len(own) for own in gathered[0]] == [6, 6, 5]
    assert len(gathered[1][2]) == 4
    assert whole.questions == [task.id for task in (*TASKS[::2], *TASKS[1::2])]
    assert [item.id for own in (gathered[0][1], gathered[1][1]) for item in own] == whole.questions
    assert [whole.rows[name].n for name in ("memory_share", NO)] == [5, 12]


# --- citations


def test_citations_that_state_the_fact_by_hand():
    texts = ("The capital of Japan is Tokyo.", "The currency of Japan is yen.")
    first = searched(*texts, tool="local_search", query="capital of Japan")
    again = searched(
        texts[0], first=3, tool="local_search", query="capital of Japan", helpful=True, refs=("E2",)
    )

    def score(*steps, judge=None):
        return CitationStatesFact(*[judge] if judge else []).score(rollout(*steps))

    assert score(first, last("E1")).value == 1.0
    assert score(first, last("E2")).value == 0.0
    assert score(first, last("E2", "E1")).value == 1.0  # one of the cited is enough
    half = score(first, again, last("E3"))
    assert half.value == 0.5
    assert "step 2" in half.why
    assert score(first, again, last("E9")).value == 0.0  # one that is not valid does not count
    for steps in ((first, last("E9")), (first, last(helpful=False)), (Step(answer="a"),)):
        assert score(*steps).value is None
        assert CitationStatesFact().measure(score(*steps)) is None
    assert not CitationStatesFact().covers("search_r1")
    assert CitationStatesFact().covers("pou")
    unsure = score(searched("a fact"), last("E1"), judge=Down())
    assert unsure.value is None
    assert unsure.parts["abstained"]


# --- who judges, and what rows are called


@pytest.mark.parametrize(
    ("judge", "facts", "support", "reading"),
    [
        (None, False, {"answer_support_containment"}, None),
        (GroundingJudge(), False, {"answer_support_lexical"}, None),
        (None, True, {"answer_support_facts"}, FactsJudge),
        (reader(), True, {"answer_support", "answer_support_facts"}, FactsJudge),
        (reader(), False, {"answer_support"}, CountingJudge),
    ],
)
def test_rows_are_named_by_what_made_them(judge, facts, support, reading):
    rewards = default_rewards("pou", judge, facts)
    assert {name for name in rewards if name.startswith("answer_support")} == support
    assert ("lm_accuracy" in rewards) is isinstance(judge, CountingJudge)
    readers = [rewards[name] for name in ("citation_states_fact", GAP) if name in rewards]
    assert {type(own.judge) for own in readers} == {reading} - {None}
    for kind in (CitationStatesFact, Verdicts):
        with pytest.raises(ConfigError, match="lexical compares texts"):
            kind(GroundingJudge())


def test_sensitivity_is_measured_with_unseen_passages(found):
    rewards, policy = default_rewards(facts=True), Looker()
    assert rewards["evidence_sensitivity"] == EvidenceSensitivity()
    scores = (
        rewards["evidence_sensitivity_unseen"]
        .bind(policy=policy)
        .score_batch(found[True].trajectories)
    )
    unseen = [
        any(text[:16] in prompt for _, text in UNSEEN_SNIPPETS) for prompt in policy.asked[0][1::2]
    ]
    steps = [step for score in scores for step in score.parts.get("steps", ())]
    assert unseen == [step["case"] == "yes" for step in steps]
    assert sum(unseen) > 5
    assert not {*UNSEEN_BLANKS} & {*TRAINING_BLANKS}
