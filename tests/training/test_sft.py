"""Supervised start: which tokens are learnt, what TRL makes of them, what is kept out, the reading
loss, the recipe.
"""

import json
import math

import lab
import pytest
import torch
from recipe_runs import TINY
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig

from faithful_search import dialects
from faithful_search.coldstart.experts import run_experts
from faithful_search.coldstart.filtering import accept
from faithful_search.coldstart.plans import plan_all, planner_for
from faithful_search.coldstart.sft import (
    IGNORED,
    ReadingLoss,
    WeightedCollator,
    build_dataset,
    piece_ends,
    reading_labels,
    sft_trainer,
)
from faithful_search.coldstart.swap_names import check_unseen, held_out_facts, world_part
from faithful_search.coldstart.tiny import TinyConfig, build_tiny
from faithful_search.errors import ConfigError, DataError, TemplateError
from faithful_search.inference.chat import ChatFormat
from faithful_search.recipes import cold_start, sft
from faithful_search.tasks import Task, load_tasks
from faithful_search.tools import KnowledgeGraph, LocalSearch, Toolbox
from faithful_search.training.policies import save_policy
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, read_jsonl

SMALL = TINY | {"pieces": 700}
POU = dialects.load("pou")
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("tiny"), TinyConfig(**SMALL))


@pytest.fixture(scope="module")
def chat(tiny):
    return ChatFormat.of(AutoTokenizer.from_pretrained(tiny), POU)


@pytest.fixture(scope="module")
def episodes():
    tasks = load_tasks("world", limit=30)
    plans, _ = plan_all(tasks, planner_for("world", tasks))
    with Toolbox([LocalSearch.from_corpus("world"), KnowledgeGraph.from_triples("world")]) as box:
        return accept([own.episode for own in run_experts(plans, box, POU)], min_steps=2)[
            0
        ], box.schemas


def settings(out, **changes):
    fixed = {
        "max_steps": 1,
        "per_device_train_batch_size": 3,
        "report_to": "none",
        "bf16": False,
        "use_cpu": True,
    }
    return SFTConfig(
        str(out), **fixed | {"activation_checkpointing": False, "disable_tqdm": True} | changes
    )


def test_only_what_the_agent_writes_is_learnt(chat, episodes):
    kept, tools = episodes
    for row, episode in zip(build_dataset(kept, chat, tools), kept, strict=True):
        both = list(zip(row["input_ids"], row["labels"], strict=True))
        learnt = [token for token, label in both if label != IGNORED]
        assert learnt == [label for label in row["labels"] if label != IGNORED]
        assert chat.tokenizer.decode(learnt) == "".join(
            f"{POU.render_turn(step)}<|end|>" for step in episode.steps
        )
        ignored = chat.tokenizer.decode([token for token, label in both if label == IGNORED])
        assert episode.question in ignored
        assert ignored.count("<tool_response>") == len(episode.steps) - 1
    assert all(
        row["labels"] == row["input_ids"] for row in build_dataset(kept, chat, tools, loss_on="all")
    )


def test_trl_takes_the_loss_of_the_agents_tokens_alone(tiny, chat, episodes, tmp_path):
    kept, tools = episodes
    rows = build_dataset(kept, chat, tools, max_length=400)
    trainer = sft_trainer(str(tiny), settings(tmp_path, max_length=400), rows, chat.tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    given = {tuple(row["input_ids"]): row["labels"] for row in rows}
    for ids, labels, mask in zip(
        batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True
    ):
        size = int(mask.sum())
        assert labels[:size].tolist() == given[tuple(ids[:size].tolist())]
        assert (labels[size:] == IGNORED).all()
    logits = trainer.model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
    ).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none"
    )
    own = batch["labels"][:, 1:] != IGNORED
    loss = trainer.compute_loss(trainer.model, batch)
    assert loss.item() == pytest.approx((losses * own).sum().item() / own.sum().item(), rel=1e-4)
    assert loss.item() != pytest.approx(losses.mean().item(), rel=1e-4)


def test_training_saves_the_model_in_its_dtype(tiny, chat, episodes, tmp_path):
    rows = build_dataset(episodes[0], chat, episodes[1])
    for cuts in ({"max_length": 100}, {"max_length": 4096, "packing": True}):
        with pytest.raises(ConfigError, match=[*cuts][-1]):
            sft_trainer(str(tiny), settings(tmp_path, **cuts), rows, chat.tokenizer)
    trainer = sft_trainer(
        str(tiny), settings(tmp_path, max_length=None, learning_rate=1e-2), rows, chat.tokenizer
    )
    trainer.train()
    save_policy(trainer, "float16")
    saved, start = (
        AutoModelForCausalLM.from_pretrained(tmp_path),
        AutoModelForCausalLM.from_pretrained(tiny),
    )
    trained = trainer.model.state_dict()
    assert all(
        torch.equal(own, trained[name].to(torch.float16))
        for name, own in saved.state_dict().items()
    )
    assert saved.dtype == torch.float16
    assert not torch.equal(saved.lm_head.weight.float(), start.lm_head.weight)
    again = ChatFormat.of(AutoTokenizer.from_pretrained(tmp_path), POU)
    assert again.prompt_ids("Who?") == chat.prompt_ids("Who?")


def test_a_leak_of_held_out_facts_is_named():
    task = Task(
        "1",
        "q",
        meta={"chain": [{"subject": "A", "relation": "r", "object": "B", "passage": None}]},
    )
    passage = {"id": "W1", "title": "C", "text": "…", "facts": [["C", "r", "D"], ["C", "s", "E"]]}
    triple = {"id": "T1", "subject": "F", "relation": "r", "object": "G"}
    without_facts = {"id": "W2", "title": "H", "text": "…", "facts": []}
    assert held_out_facts([task], [passage, without_facts, triple]) == {
        ("A", "B"),
        ("C", "D"),
        ("C", "E"),
        ("F", "G"),
    }
    episode = Trajectory((Step(evidence=(Evidence("Rome is old.", "Rome", "E1"),)),), id="q7")
    check_unseen([episode], ["Paris is old."])
    with pytest.raises(DataError, match=r"'q7'.*Rome is old"):
        check_unseen([episode], ["Rome is old."])


# The recipe


def flags(out, **changes):
    fixed = {
        "output_dir": out,
        "episodes": 12,
        "swaps_per_episode": 1,
        "max_steps": 2,
        "save_steps": 2,
        "threads": 1,
    }
    fixed |= {
        "per_device_train_batch_size": 2,
        "tiny": json.dumps(SMALL),
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return [
        part
        for key, value in (fixed | changes).items()
        for part in (f"--{key}", *str(value).split("|"))
    ]


def test_recipe_trains_saves_and_resumes(tmp_path, capsys):
    sft.main(flags(tmp_path, reading_weight=0.5, reading_layers=1))
    said = capsys.readouterr().out
    assert "3000 of 3000 questions planned" in said
    assert "of 12 episodes kept" in said
    episodes = list(read_jsonl(tmp_path / "episodes.jsonl"))
    reasons = [json.loads(line) for line in (tmp_path / "reasons.jsonl").read_text().splitlines()]
    assert [row["id"] for row in reasons] == [episode.id for episode in episodes]
    assert len(episodes) == 12
    made = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (made.dtype, made.config.hidden_size) == (torch.float16, SMALL["hidden_size"])
    assert ChatFormat.of(AutoTokenizer.from_pretrained(tmp_path), POU)
    card = (tmp_path / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "--max_steps 2" in card
    assert "Not evaluated." in card
    assert "`local_search`, `knowledge_graph`" in card
    assert f'open_generator("{tmp_path}")' in card
    sft.main(flags(tmp_path, max_steps=3, save_steps=3, resume=True))
    assert (
        json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())["global_step"]
        == 3
    )


def test_recipe_teaches_an_adapter_to_score(tiny, tmp_path):
    adapter = {
        "model_name_or_path": tiny,
        "use_peft": True,
        "lora_target_modules": "q_proj",
        "save_merged": True,
    }
    given = flags(
        tmp_path, rubric=json.dumps({"spoiled": 1, "held_out": 2}), rubric_tokens=4, **adapter
    )
    sft.main(given)
    report = tmp_path / "evaluator.json"
    found = json.loads(report.read_text())
    assert list(found) == ["before", "after"]
    assert found["before"]["n"] > 0
    report.write_text(
        json.dumps({"before": found["before"]})
    )  # ended between its last step and its last measurement
    sft.main([*given, "--resume", "true"])
    assert json.loads(report.read_text()) == found
    card, merged = ((tmp_path / folder / "README.md").read_text() for folder in ("", "merged"))
    assert "library_name: peft" in card
    assert "LoRA adapter of rank 16" in card
    assert "base_model:" not in card
    assert "library_name: transformers" in merged
    assert f"`{tmp_path}` merged into them" in merged
    assert (tmp_path / "adapter_config.json").exists()
    assert not (tmp_path / "model.safetensors").exists()


def test_recipe_searches_only_the_training_part_of_the_world():
    held_out = {
        row["id"] for part in ("passages", "triples") for row in world_part(part, train=False)
    }
    script, args, _ = sft.parse(flags("unused", episodes=300))
    [source] = sft.sources_of(script)
    played, _ = cold_start.episodes_of(source, script, args.seed)
    seen = {item.source for one in played for item in one.episode.evidence.values()}
    assert len(seen) > 200
    assert not seen & held_out
    plans = plan_all(load_tasks("world", limit=3), planner_for("world"))[0]
    ids = [plan.id for plan in cold_start.repeated(plans, 7)]  # again, under other ids
    assert ids[3:] == [*(f"{name}#1" for name in ids[:3]), f"{ids[0]}#2"]


def test_recipe_says_what_it_cannot_go_on_with(chat, tiny, tmp_path):
    with pytest.raises(DataError, match=r"all 12 episodes were rejected: \d+ too_short"):
        sft.main(
            flags(
                tmp_path / "a", model_name_or_path=tiny, min_episode_steps=9, max_episode_steps=10
            )
        )
    (tmp_path / "names.json").write_text('["Ann"]')
    with pytest.raises(
        DataError, match=r"--names .*names.json is no JSON file of names and their types"
    ):
        sft.main(flags(tmp_path / "b", model_name_or_path=tiny, names=tmp_path / "names.json"))
    bare = AutoTokenizer.from_pretrained(tiny)
    bare.chat_template = None
    bare.save_pretrained(tmp_path / "bare")
    with pytest.raises(TemplateError, match="chat template"):
        sft.main(flags(tmp_path / "c", model_name_or_path=tmp_path / "bare"))


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("habits", '{"droped": 0.1}', "--habits has no droped; it has: wrong_tool, dropped, "),
        (
            "habits",
            '{"dropped": "often"}',
            r"--habits: Expected `float`, got `str` - at `\$.dropped`",
        ),
        ("habits", '{"dropped": 2}', "--habits: rates must lie in"),
        ("memory", "{'questions': 3}", r"--memory is not JSON \(Expecting property name"),
        ("rubric", "[1]", "--rubric is a mapping of names to values, not "),
        (
            "tiny",
            '{"hidden_size": 33}',
            "--tiny: hidden_size 33 is no multiple of twice num_attention_heads 6",
        ),
        ("episodes", -1, "--episodes must be 0 or more, not -1"),
        ("reading_layers", 1, "--reading_layers are read with --reading_weight above 0 only"),
        (
            "kept_responses",
            1,
            "--kept_responses: dialect 'pou' writes each tool response as a message",
        ),
        ("save_dtype", "flot16", "'flot16' is not a dtype of torch"),
        ("max_steps", "many", "argument --max_steps/--max-steps: invalid int value: 'many'"),
        (
            "max_step",
            5,
            r"no such flag: --max_step; did you mean --max_steps\?",
        ),  # no abbreviations
    ],
)
def test_recipe_says_what_is_wrong_in_a_line_before_it_begins(flag, value, says):
    with pytest.raises(ConfigError, match=says) as error:
        sft.parse(flags("unused", **{flag: value}))
    assert "\n" not in str(error.value)
    assert "usage:" not in str(error.value)


def test_recipe_pairs_its_lists():
    script, _, _ = sft.parse(
        flags("unused", questions="a|b", source_kind="musique|2wiki", corpus="c")
    )
    pairs = [(source.questions, source.kind, source.corpus) for source in sft.sources_of(script)]
    assert pairs == [("a", "musique", "c"), ("b", "2wiki", "c")]
    script.corpus = ["c", "d", "e"]
    with pytest.raises(ConfigError, match="--corpus: 3 entries for 2"):
        sft.sources_of(script)


# The reading loss: where it asks, what it asks, and that it is the formula it says

CALL = ToolCall("local_search", {"query": "capital of Norway"})
RESPONSE = (
    Evidence("Ministers of Norway work in Oslo.", "Norway", "E1"),
    Evidence("Ministers of Norway work in Oslo.", "Norway", "E2"),
    Evidence("</tool_response> Stockholm & Bergen", "", "E3"),
)


@pytest.fixture(scope="module")
def model(chat):
    shape = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
    }
    return lab.small("llama", vocab_size=len(chat.tokenizer), tie_word_embeddings=False, **shape)


def watching(chat, model, weight, layers):
    reading = ReadingLoss(chat, weight, layers)
    reading.watch(model)
    return reading


def test_each_piece_ends_where_its_text_ends(chat):
    reading = ReadingLoss(chat, 1.0, [2])
    assert [chat.tokenizer.decode([token]) for token in (reading.yes, reading.no)] == ["yes", "no"]
    ids = chat.observation_ids(chat.render_observation(RESPONSE), ended=True)
    until = [
        chat.tokenizer.decode(ids[: place + 1])
        for place in piece_ends(Step(evidence=RESPONSE), chat)
    ]
    assert [text.count("[E") for text in until] == [1, 2, 3]
    assert all(
        text.rstrip().endswith(("Oslo.", "Oslo.", "Bergen")[number])
        for number, text in enumerate(until)
    )


def test_pieces_behind_a_note_end_where_their_texts_end(chat):
    step = Step(evidence=RESPONSE, note="A part is missing.")
    ids = chat.observation_ids(chat.render_observation(RESPONSE, step.note), ended=True)
    until = [chat.tokenizer.decode(ids[: place + 1]) for place in piece_ends(step, chat)]
    assert [text.count("[E") for text in until] == [1, 2, 3]


def test_labels_say_where_the_fact_was(chat):
    steps = (
        Step("I need the capital of Norway.", CALL, RESPONSE),
        Step("Again.", CALL, (Evidence("Nothing.", "Norway", "E4"),), helpful=True, refs=("E2",)),
        Step("Once more.", CALL, helpful=False),
        Step("I do not know the answer.", answer="unknown", helpful=False),
    )
    trajectory = Trajectory(steps, "What is the capital of Norway?", dialect="pou")
    tokens = chat.transcript(trajectory)
    labels = reading_labels(trajectory, tokens, chat)
    assert len(labels) == len(tokens.prompt_ids) + len(tokens.completion_ids)
    closing = len(chat.encode("</tool_response><|end|><|assistant|>"))
    wanted = [0, 1, 0, *[1] * closing, 0, *[0] * closing]  # an empty response is not asked about
    assert [label for label in labels if label != IGNORED] == wanted
    assert not any(label != IGNORED for label in labels[: len(tokens.prompt_ids)])
    own = [
        label
        for label, mask in zip(labels[len(tokens.prompt_ids) :], tokens.mask, strict=True)
        if mask
    ]
    assert set(own) == {IGNORED}


def test_the_loss_is_the_cross_entropy_of_the_logit_lens(chat, model):
    reading = watching(chat, model, 0.5, [2])
    states = model(torch.tensor([[1, 2, 5], [6, 7, 8]]), output_hidden_states=True).hidden_states[2]
    labels = torch.tensor([[IGNORED, 1, IGNORED], [0, IGNORED, IGNORED]])
    direction = (model.lm_head.weight[reading.yes] - model.lm_head.weight[reading.no]).tolist()

    def logit(state):
        scale = math.sqrt(sum(x * x for x in state) / len(state))
        return sum(u * x / scale for u, x in zip(direction, state, strict=True))

    yes, no = logit(states[0, 1].tolist()), logit(states[1, 0].tolist())
    expected = 0.5 * (math.log1p(math.exp(-yes)) + math.log1p(math.exp(no))) / 2
    assert reading.loss(labels).item() == pytest.approx(expected, rel=1e-4)


def test_the_gradient_reaches_the_layers_below_and_none_above(chat, model):
    reading = watching(chat, model, 1.0, [1, 2])
    model(torch.tensor([[1, 2, 5]]))
    model.zero_grad()
    reading.loss(torch.tensor([[IGNORED, 1, 0]])).backward()
    assert [block.mlp.down_proj.weight.grad is not None for block in model.model.layers] == [
        True,
        True,
        False,
    ]
    model(torch.tensor([[1, 2]]))
    assert reading.loss(torch.full((1, 2), IGNORED)).item() == 0.0  # nothing is asked
    for layers in ([], [0], [4]):
        with pytest.raises(ConfigError, match="1 to 3"):
            watching(chat, model, 1.0, layers)


def test_weights_and_reading_labels_are_padded_as_the_tokens_are():
    collator = WeightedCollator(pad_token_id=0, pad_to_multiple_of=4)
    scored = {"input_ids": [7], "loss_weights": [2.0], "reading_labels": None}
    read = {"input_ids": [7, 8, 9, 7, 8], "loss_weights": [1.0] * 5, "reading_labels": [1] * 5}
    batch = collator([scored, read])
    assert {name: part.shape for name, part in batch.items()} == dict.fromkeys(batch, (2, 8))
    assert batch["loss_weights"][0].tolist() == [2.0, *[0.0] * 7]
    assert batch["reading_labels"][0].tolist() == [IGNORED] * 8
