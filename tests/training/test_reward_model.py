"""Distilling a judge: both heads on small random models, from labelled pairs to what loads again;
and the recipe.
"""

import itertools
import json
import random
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import lab
import msgspec
import pytest
import torch
import yaml
from agent_rows import file_of
from hypothesis import given, strategies as st
from paths import RECIPES, ROOT
from peft import LoraConfig
from safetensors.torch import load_file
from tiny_bert import bert, saved
from transformers import TrainerCallback
from trl import SFTConfig

from faithful_search.distil import distillation, heads
from faithful_search.distil.distillation import AFTER, BEFORE, SECOND, Distillation, train_judge
from faithful_search.distil.heads import entailment_index, freeze, open_classifier
from faithful_search.distil.pairs import (
    class_weights,
    classifier_rows,
    divided,
    generator_rows,
    resampled,
)
from faithful_search.errors import ConfigError, DataError
from faithful_search.hub.cards import judge_card
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.judges import ContainmentJudge, Pair, distilled, load, prompting
from faithful_search.judges.generator import GeneratorJudge
from faithful_search.judges.nli import NLIJudge
from faithful_search.judges.windowed import Input
from faithful_search.measure.agreement.labelled import Labelled
from faithful_search.recipes import reward_model

QUICK = Distillation(untrained=False)


def row(number: int, label: bool, split: str = "train", **named: Any) -> Labelled:
    """A pair whose label its words give away: a true hypothesis says w1, a false one w2."""
    fields = {
        "id": f"made:{number}",
        "premise": f"w{3 + number % 40} w{4 + number % 31}.",
        "hypothesis": " ".join([f"w{1 if label else 2}"] * 3) + f" w{5 + number % 17}",
        "question": f"w{number}",
        "label": label,
        "source": "made",
        "split": split,
        "group": f"g{number}",
        "task": "info_think",
    }
    return Labelled(**{**fields, **named})


def rows(count: int = 120, share: float = 0.5) -> list[Labelled]:
    rng = random.Random(0)
    return [
        row(number, rng.random() < share, "heldout" if number % 4 == 0 else "train")
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(
        tmp_path_factory.mktemp("encoder"), bert(spread=0.05)
    )  # three labels: the head does not fit


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("decoder")
    lab.model().save_pretrained(folder)
    lab.tokenizer().save_pretrained(folder)
    return str(folder)


def settings(out: Any, **named: Any) -> SFTConfig:
    usual = {
        "max_steps": 40,
        "eval_strategy": "steps",
        "eval_steps": 10,
        "learning_rate": 1e-2,
        "max_length": 4096,
    }
    usual |= {
        "seed": 0,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "disable_tqdm": True,
    }
    return SFTConfig(output_dir=str(out), **{**usual, **named})


def lora() -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")


@pytest.fixture
def made(monkeypatch):
    """The trainers that `train_judge` makes."""
    found, make = [], distillation._trainer
    monkeypatch.setattr(
        distillation, "_trainer", lambda *args: found.append(make(*args)) or found[-1]
    )
    return found


def test_an_encoder_learns_is_saved_and_judges_alike(encoder, tmp_path, made):
    own = rows()
    found = train_judge(
        own, encoder, settings(tmp_path), beside={"containment": ContainmentJudge()}
    )
    judge, asked = load("nli", str(tmp_path)), [item.pair for item in own]
    inside = made[0].make_judge(made[0].model.eval()).judge_batch(asked)
    raw = load("nli", str(tmp_path), temperature=1.0).judge_batch(asked)
    assert [one.p for one in raw] == pytest.approx([one.p for one in inside], abs=1e-5)
    labels = [verdict.label for verdict in judge.judge_batch(asked)]
    assert labels == [item.label for item in own], "p is that of the label that means support"
    assert found.file.kind == "nli"
    assert found.file.task == "info_think"
    assert found.file.trained_on == ("made",)
    assert judge.temperature == found.file.temperature != 1.0
    kappas = {against.judge: against.kappa.value for against in found.agreement.against}
    assert kappas.keys() == {AFTER, BEFORE, "containment"}
    assert kappas[AFTER] == 1.0 > kappas[BEFORE]
    pairs = {against.pairs for against in found.agreement.against}
    assert pairs == {sum(item.split == "heldout" for item in own)}, (
        "measured on what was held out, and all of it"
    )
    worse = train_judge(
        own, encoder, settings(tmp_path, max_steps=1, eval_steps=1, learning_rate=1e-5), QUICK
    )
    assert worse.agreement.against[0].kappa.value < 1.0, (
        "the verdicts that lay there are not taken for its own"
    )


TWO_TASKS = ("info_think", "support")


def rows_of_two_tasks() -> list[Labelled]:
    return [
        msgspec.structs.replace(item, task=TWO_TASKS[number // 2 % 2])
        for number, item in enumerate(rows(60))
    ]


def test_a_classifier_of_two_tasks_names_both(encoder, tmp_path):
    args = settings(tmp_path, max_steps=1, eval_steps=1)
    train_judge(rows_of_two_tasks(), encoder, args, QUICK)
    file = distilled.read(str(tmp_path))
    assert file.tasks == TWO_TASKS


def test_a_generator_of_two_tasks_names_both_prompts(decoder, tmp_path):
    args = settings(tmp_path, max_steps=1, eval_steps=1, per_device_train_batch_size=2)
    generator = Distillation(head="generator", untrained=False)
    train_judge(rows_of_two_tasks(), decoder, args, generator, peft_config=lora())
    file = distilled.read(str(tmp_path))
    assert file.tasks == TWO_TASKS
    assert file.prompt == ("info_think@1", prompting.load("support").id)


def test_a_judges_card_names_all_its_tasks(tmp_path):
    file = distilled.JudgeFile("nli", TWO_TASKS)
    card = judge_card(
        tmp_path, file=file, base_model="tiny", agreement=None, argv=[], config={}
    ).read_text()
    assert "asked: `info_think`, `support`)" in card
    assert 'task="info_think")' in card


def test_a_decoder_becomes_a_classifier_of_two_texts(decoder, tmp_path):
    model, tokenizer = open_classifier(decoder)
    judge = NLIJudge(model.eval(), tokenizer)
    [[ids], [shifted]] = [
        [own["input_ids"] for own in judge.encode([Input(*texts)])]
        for texts in (("ab", "c"), ("a", "bc"))
    ]
    end = tokenizer.eos_token_id
    assert ids == [*tokenizer("ab", add_special_tokens=False)["input_ids"], end, *ids[3:-1], end]
    assert ids != shifted
    train_judge(rows(60), decoder, settings(tmp_path, max_steps=2, eval_steps=2), QUICK)
    loaded = load("nli", str(tmp_path))
    assert [own["input_ids"] for own in loaded.encode([Input("ab", "c")])] == [ids]
    batch = [Pair("x", "y"), Pair("x" * 50, "y" * 20), Pair("long " * 30, "z")]
    together = [verdict.p for verdict in loaded.judge_batch(batch)]
    alone = [loaded.judge_batch([pair])[0].p for pair in batch]
    assert together == pytest.approx(alone, abs=1e-5), "padding changes nothing"


def test_a_generator_learns_its_label_is_saved_and_judges_alike(decoder, tmp_path, made):
    own = rows(24)
    args = settings(tmp_path, max_steps=4, eval_steps=2, per_device_train_batch_size=2)
    found = train_judge(
        own, decoder, args, Distillation(head="generator", validation=0.2), peft_config=lora()
    )
    assert (tmp_path / "adapter_config.json").exists()
    assert not (tmp_path / "model.safetensors").exists()
    assert (found.file.kind, found.file.prompt, found.file.window) == (
        "generator",
        "info_think@1",
        4095,
    )
    asked = [item.pair for item in own]
    inside = made[0].make_judge(made[0].model).judge_batch(asked)
    raw = load("generator", str(tmp_path), temperature=1.0).judge_batch(asked)
    plain = load("generator", decoder).judge_batch(asked)
    assert [one.p for one in raw] == pytest.approx([one.p for one in inside], abs=1e-5)
    assert max(abs(one.p - other.p) for one, other in zip(raw, plain, strict=True)) > 1e-3, (
        "it was trained"
    )
    assert {against.judge for against in found.agreement.against} == {AFTER, BEFORE}
    with pytest.raises(ConfigError, match="use --judge generator"):
        load("nli", str(tmp_path))


def test_the_generator_learns_only_the_label():
    judge = GeneratorJudge(TransformersGenerator(lab.model(), lab.tokenizer()), "made")
    own = rows(6)
    for item, made in zip(own, generator_rows(judge, own), strict=True):
        asked = judge.asked(item.pair)
        assert made["input_ids"][:-1] == asked.ids
        assert made["length"] == len(asked.ids) + 1
        assert made["labels"][:-1] == [-100] * len(asked.ids)
        assert (
            [made["labels"][-1]] == [made["input_ids"][-1]] == asked.choices[0 if item.label else 1]
        )
        assert lab.tokenizer().decode(made["labels"][-1:]) == ("1" if item.label else "0")
    short = GeneratorJudge(judge.generator, "made", window=50)
    assert generator_rows(short, own) == []  # a prompt that does not fit is not learnt


def test_a_long_premise_is_learnt_by_its_nearest_window(encoder):
    model, tokenizer = open_classifier(encoder)
    judge = NLIJudge(model, tokenizer, window=8, stride=0)
    premise = "W1 w2 w3 w4 w5. W6 w7 w8 w9 w10. W11 w12 w13 w14 w15."
    [made] = classifier_rows(judge, [row(0, True, premise=premise, hypothesis="w7 w9")], 1)
    assert tokenizer.decode(made["input_ids"]) == "[CLS] w6 w7 w8 w9 w10 . [SEP] w7 w9 [SEP]"
    assert made["labels"] == 1
    assert made["length"] == len(made["input_ids"])
    assert classifier_rows(judge, [row(0, False)], 1)[0]["labels"] == 0
    assert classifier_rows(judge, [row(0, True)], 0)[0]["labels"] == 0
    assert classifier_rows(judge, [row(0, True, hypothesis=" ")], 1) == []


def test_a_fitting_head_is_kept_and_parts_can_be_frozen(encoder, tmp_path):
    own = bert({0: "entailment", 1: "not_entailment"})
    kept, _ = open_classifier(saved(tmp_path, own))
    assert entailment_index(kept) == 0
    assert torch.equal(kept.classifier.weight, own.classifier.weight)
    model, _ = open_classifier(encoder)
    freeze(model, embeddings=True, layers=1)
    still = {name for name, own in model.named_parameters() if not own.requires_grad}
    assert still
    assert all(name.startswith(("bert.embeddings.", "bert.encoder.layer.0.")) for name in still)
    with pytest.raises(ConfigError, match="cannot freeze 3 layers"):
        freeze(model, layers=3)


def test_training_stops_early_and_keeps_the_best_kappa(encoder, tmp_path, monkeypatch):
    scripted = iter(
        [{"kappa": value, "agreement": 0.5, "nll": 1.0} for value in (0.1, 0.7, 0.3, 0.2, 0.9)]
    )
    monkeypatch.setattr(heads, "agreement", lambda judge, rows: next(scripted))
    args = settings(tmp_path, max_steps=5, eval_steps=1, learning_rate=1e-2)
    train_judge(rows(60), encoder, args, Distillation(patience=2, untrained=False))
    folders = {
        path.name: load_file(path / "model.safetensors") for path in tmp_path.glob("checkpoint-*")
    }
    assert max(folders) == "checkpoint-4"
    saved = load_file(tmp_path / "model.safetensors")
    same = [
        folder
        for folder, there in folders.items()
        if all(torch.equal(saved[name], there[name]) for name in saved)
    ]
    assert same == ["checkpoint-2"]


def test_a_resumed_training_ends_where_an_uninterrupted_one_does(encoder, tmp_path, monkeypatch):
    make, named = (
        distillation._trainer,
        {"max_steps": 4, "eval_steps": 2, "per_device_train_batch_size": 2},
    )
    how = Distillation(validation=0.2, untrained=False)

    def trained(name: str, **more: Any) -> Any:
        return train_judge(rows(24), encoder, settings(tmp_path / name, **named), how, **more)

    class Interrupt(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                raise KeyboardInterrupt

    def interrupted(*args: Any) -> Any:
        trainer = make(*args)
        trainer.add_callback(Interrupt())
        return trainer

    whole = trained("whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(distillation, "_trainer", interrupted)
        trained("parts")
    parts = trained("parts", resume=True)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    assert parts.file.temperature == pytest.approx(whole.file.temperature, rel=1e-3)


def test_a_second_labelling_measures_the_labeller(encoder, tmp_path):
    own = rows(60)
    held = [item for item in own if item.split == "heldout"]
    changed = msgspec.structs.replace(held[0], label=not held[0].label)
    for second, same in (([changed, *held[1:-1]], len(held) - 2), (held, len(held))):
        found = train_judge(
            own, encoder, settings(tmp_path, max_steps=1, eval_steps=1), QUICK, second=second
        )
        again = {against.judge: against for against in found.agreement.against}[SECOND]
        # the second time other labels are not answered from those of the earlier run
        assert (again.pairs, again.abstained) == (len(second), len(held) - len(second))
        assert again.agreement.value == pytest.approx(same / len(second))


@given(
    st.lists(st.booleans(), min_size=2, max_size=60).filter(lambda labels: len(set(labels)) == 2),
    st.integers(0, 9),
)
def test_both_ways_of_balancing_make_the_labels_weigh_the_same(labels, seed):
    own = [row(number, label) for number, label in enumerate(labels)]
    again = resampled(own, seed)
    assert again[: len(own)] == own
    assert again == resampled(own, seed)
    count = Counter(item.label for item in again)
    assert count[True] == count[False] == max(Counter(labels).values())
    of_each = Counter(
        item.id for item in again if item.label is not max(Counter(labels), key=Counter(labels).get)
    )
    assert not of_each or max(of_each.values()) - min(of_each.values()) <= 1
    false, true = class_weights(own)
    assert (
        false * labels.count(False)
        == pytest.approx(true * labels.count(True))
        == pytest.approx(len(labels) / 2)
    )


def test_a_batch_in_parts_weighs_what_a_whole_one_does(encoder, tmp_path):
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    loss = heads.weighted_loss({"logits": logits}, labels, num_items_in_batch=4, weights=(0.5, 3.0))
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert loss.item() == pytest.approx(float((0.5 * each[0] + 3.0 * each[1]) / 4))
    norms, how = [], Distillation(balance="weights", untrained=False)
    for size in (8, 2):
        named = {"max_steps": 1, "eval_steps": 1, "logging_steps": 1, "learning_rate": 0.0}
        named |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": 8 // size}
        train_judge(rows(30), encoder, settings(tmp_path / str(size), **named), how)
        state = json.loads(
            (tmp_path / str(size) / "checkpoint-1" / "trainer_state.json").read_text()
        )
        norms += [entry["grad_norm"] for entry in state["log_history"] if "grad_norm" in entry]
    assert norms[1] == pytest.approx(norms[0], rel=0.5), "four parts are not four times as much"


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=40, max_size=80),
    st.floats(0.05, 0.5),
)
def test_no_group_is_on_two_sides(drawn, share):
    splits = ("heldout", "overlap", "train", "train", "train")
    own = [
        row(place, label, splits[group % 5], group=f"g{group}")
        for place, (group, label) in enumerate(drawn)
    ]
    try:
        parts = divided(own, share)
    except DataError:
        return
    groups = [
        {item.group for item in part} for part in (parts.train, parts.validation, parts.heldout)
    ]
    assert all(not one & other for one, other in itertools.combinations(groups, 2))
    assert {item.split for item in (*parts.train, *parts.validation)} == {"train"}
    assert {item.split for item in parts.heldout} == {"heldout"}
    assert len(parts.train) + len(parts.validation) + len(parts.heldout) == sum(
        i.split != "overlap" for i in own
    )


@pytest.mark.parametrize(
    "knobs, said",
    [
        ({"head": "other"}, "unknown head"),
        ({"head": "generator", "balance": "weights"}, "balance by 'resample'"),
        ({"head": "spans", "balance": "weights"}, "balance by 'resample'"),
        ({"head": "spans", "stride": 32}, "--stride 32: read with --head encoder only"),
        ({"head": "generator", "stride": 32}, "--stride 32: read with --head encoder only"),
        ({"head": "spans", "measure_dtype": "bfloat16"}, "in 8 bits"),
        ({"validation": 0.0}, "validation is a share"),
        ({"patience": -1}, "patience must be 0 or more"),
        ({"head": "generator", "freeze_layers": 2}, "goes with the encoder head"),
        ({"save_dtype": "flot16"}, "'flot16' is not a dtype"),
    ],
)
def test_knobs_out_of_range(knobs, said):
    with pytest.raises(ConfigError, match=said):
        Distillation(**knobs)


def test_untrainable_pairs_and_misfitting_settings_are_refused(encoder, tmp_path):
    with pytest.raises(DataError, match="none is left for: heldout"):
        divided([row(number, bool(number % 2)) for number in range(50)])
    with pytest.raises(DataError, match="have the label True"):
        divided([row(number, True, "heldout" if number % 2 else "train") for number in range(50)])
    with pytest.raises(ConfigError, match="set eval_strategy"):
        train_judge(rows(), encoder, settings(tmp_path, eval_strategy="no"))
    with pytest.raises(ConfigError, match="leave use_peft and quantised weights to the generator"):
        train_judge(rows(), encoder, settings(tmp_path), peft_config=lora())
    with pytest.raises(ConfigError, match="leave use_peft and quantised weights to the generator"):
        train_judge(
            rows(), encoder, settings(tmp_path), model_kwargs={"quantization_config": object()}
        )
    with pytest.raises(DataError, match="no pair is left to train on"):
        train_judge(
            [msgspec.structs.replace(item, hypothesis=" ") for item in rows()],
            encoder,
            settings(tmp_path),
        )


# The recipe, as a user would start it


@pytest.fixture
def flags(tmp_path):
    """A file of pairs, and where the judge goes."""
    named = ("question", "premise", "hypothesis", "label", "task", "source")
    pairs = file_of(
        tmp_path / "pairs.jsonl",
        [{name: getattr(item, name) for name in named} for item in rows(24)],
    )
    small = ["--config", str(RECIPES / "configs" / "rm_tiny.yaml"), "--pairs", str(pairs)]
    small += [
        "--output_dir",
        str(tmp_path / "out"),
        "--max_steps",
        "1",
        "--eval_steps",
        "1",
        "--validation",
        "0.3",
    ]
    small += [
        "--per_device_train_batch_size",
        "2",
        "--threads",
        "1",
        "--bf16",
        "false",
        "--disable_tqdm",
        "true",
    ]
    return [*small, "--untrained", "false"]


def test_a_judge_its_card_and_its_agreement_come_out(flags, tmp_path, capsys):
    out = tmp_path / "out"
    reward_model.main([*flags, "--measure_dtype", "bfloat16"])
    printed = capsys.readouterr().out
    assert f"--judge nli --judge_model {out}" in printed
    assert "distilled" in printed
    assert "containment" in printed
    text = (out / "README.md").read_text()
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["license"] == "apache-2.0"
    assert "base_model" not in front
    assert (front["library_name"], front["pipeline_tag"]) == ("transformers", "text-classification")
    assert "`made`: terms not known" in text
    assert '"max_steps": 1' in text
    assert " ".join(flags[:4]) in text
    found = json.loads((out / "agreement.json").read_text())
    assert {row["source"] for row in found["against"]} == {"made"}
    told = json.loads((out / "judge.json").read_text())
    assert (told["kind"], told["task"], told["base_model"]) == ("nli", "info_think", "tiny")
    assert all(
        named.endswith(" in bfloat16")
        for named in found["settings"]["judges"].values()
        if "nli" in named
    )
    assert {value.dtype for value in load_file(out / "model.safetensors").values()} == {
        torch.float16
    }
    assert str(ROOT) not in json.dumps([told, found]), "where the package lies is nobody's business"
    [shown] = re.findall(r"```python\n(.*?)```", text, re.S)
    said: dict = {}
    exec(shown, said)
    pair = Pair("The tower is in Paris.", "It is in Paris.", task="info_think")
    assert said["verdict"].p == load("nli", str(out)).judge_batch([pair])[0].p


@pytest.mark.slow
def test_two_processes_make_one_judge(flags, tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    command += [str(RECIPES / "reward_model.py"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("the judge is in") == 1
    told = json.loads((tmp_path / "out" / "judge.json").read_text())
    assert load("nli", str(tmp_path / "out")).temperature == told["temperature"]
