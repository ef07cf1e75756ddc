"""Adapters: they are what samples, is probed and learns; on disk as such and merged, with cards
that say which.
"""

from pathlib import Path
from types import SimpleNamespace

import lab
import pytest
import torch
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from served import invoked
from tiny_trainer import batch_of
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from transformers.integrations import deepspeed
from trl import ModelConfig

from faithful_search import dialects
from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError
from faithful_search.hub.cards import merged_card
from faithful_search.inference.base import Sampling
from faithful_search.inference.chat import ChatFormat
from faithful_search.inference.loading import open_generator
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.recipes import pou
from faithful_search.training import policies
from faithful_search.training.policies import MERGED, merge_adapter, open_policy, save_policy
from faithful_search.training.runs import build_trainer

LORA = (
    "--use_peft",
    "true",
    "--lora_r",
    "4",
    "--lora_target_modules",
    "all-linear",
    "--lora_dropout",
    "0",
)
STEP = (
    "--max_steps",
    "1",
    "--per_device_train_batch_size",
    "4",
    "--num_generations",
    "4",
    "--turns",
    "2",
)
STEP = (
    *STEP,
    "--gradient_accumulation_steps",
    "1",
    "--turn_tokens",
    "24",
    "--threads",
    "1",
    "--eval_limit",
    "0",
    "--bf16",
    "false",
)
IDS = torch.arange(5, 45)[None]
torch.set_num_threads(1)


def pou_trainer(out: Path, *flags: str):
    """Recipe and trainer as `recipes/pou.py` makes them; the world's tools stay open for as long as
    the trainer.
    """
    flags = script, *_ = pou.parse(
        ["--output_dir", str(out), *STEP, "--reward", "answer_only", *flags]
    )
    return build_trainer(flags, script.toolbox(), pou.build_reward(script))


def disturb(model, size=0.1):
    """Make a fresh adapter say something: its second matrices begin as zeros."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.requires_grad:
                weights.add_(torch.randn_like(weights) * size)


def parts(model, trained: bool):
    return {
        name: own.detach().clone()
        for name, own in model.named_parameters()
        if own.requires_grad == trained
    }


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_adapter_is_what_samples_and_what_is_probed(tmp_path):
    made = pou_trainer(tmp_path, *LORA)
    disturb(made.model, 0.05)
    tokenizer = made.processing_class
    chat = ChatFormat.of(tokenizer, dialects.load("pou"))
    prompts = [
        chat.prompt_ids(question, made.toolbox.schemas)
        for question in ("Which city is it?", "Who wrote it?")
    ]
    choices = [[tokenizer("yes")["input_ids"][:1], tokenizer("no")["input_ids"][:1]]] * 2

    def said(generator):
        probs = torch.tensor(generator.choice_probs(prompts, choices))
        return [
            item.ids for item in generator.generate(prompts, Sampling(0.0, max_new_tokens=12))
        ], probs.log()

    whole = AutoModelForCausalLM.from_pretrained(tiny_policy("memory"), dtype=torch.float32)
    tuned, plain = said(made.generator), said(TransformersGenerator(whole, tokenizer))
    with made.model.disable_adapter():
        assert said(made.generator)[0] == plain[0]
    save_policy(made, merged=True)
    merged = said(open_generator(str(tmp_path / MERGED), device="cpu"))
    assert tuned[0] == merged[0] != plain[0]
    assert tuned[1].allclose(merged[1], atol=1e-4)
    assert not tuned[1].allclose(plain[1], atol=0.05)


@pytest.mark.parametrize(
    "bits", [None, *(pytest.param(f"load_in_{bits}bit", marks=pytest.mark.slow) for bits in (4, 8))]
)
def test_only_the_adapter_learns_also_on_quantised_weights(tmp_path, bits):
    """Where bitsandbytes is installed, which computes on CPUs, too; the merged model has the full
    weights.
    """
    if bits:
        pytest.importorskip("bitsandbytes")
    flags = (
        (f"--{bits}", "true", "--dtype", "bfloat16")
        if bits
        else ("--activation_checkpointing", "true")
    )
    made = pou_trainer(tmp_path, *LORA, "--learning_rate", "1e-2", "--warmup_steps", "0", *flags)
    held, first, given = parts(made.model, False), parts(made.model, True), iter(range(1000))
    assert {name.split(".")[-3] for name in first} == {"lora_A", "lora_B"}
    assert any(own.dtype in (torch.uint8, torch.int8) for own in held.values()) == bool(bits)
    own = made._reward
    made.reward_funcs = [lambda **more: [float(next(given) % 2) for _ in own(**more)]]
    made.train()
    assert same(held, parts(made.model, False))
    assert not same(first, parts(made.model, True))
    if bits:
        save_policy(made, merged=True)
        adapted = open_generator(str(tmp_path), device="cpu", dtype="bfloat16").model
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / MERGED)
        assert whole.dtype == torch.bfloat16
        assert "quantization_config" not in whole.config.to_dict()
        with torch.no_grad():
            wanted = adapted(IDS).logits.float()
            assert (whole(IDS).logits - wanted).abs().max() < 0.05 * wanted.abs().max()


def base_model(folder: Path, tied: bool = False) -> Path:
    """An untrained model on disk, its output matrix the embedding or its own."""
    config = lab.model().config
    config.tie_word_embeddings = tied
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    lab.tokenizer().save_pretrained(folder)
    return folder


def saved_adapter(folder: Path, base: Path, **settings):
    """An adapter on disk that changes what its base says, and the logits with it."""
    config = LoraConfig(task_type="CAUSAL_LM", r=4, **{"target_modules": "all-linear", **settings})
    tuned = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    disturb(tuned, 0.05)
    tuned.eval().save_pretrained(folder)
    lab.tokenizer().save_pretrained(folder)
    with torch.no_grad():
        return tuned(IDS).logits


KINDS = {
    "lora": {},
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True},
    "head_saved": {"modules_to_save": ["lm_head"]},
    "ends_saved": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "embedding_adapted": {"target_modules": ["embed_tokens", "q_proj"]},
    "head_adapted": {"target_modules": ["lm_head", "q_proj"]},
}


@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_and_what_it_is_merged_to_say_the_same(tmp_path, kind, tied):
    base = base_model(tmp_path / "base", tied)
    wanted = saved_adapter(tmp_path / "adapter", base, **KINDS[kind])
    merge_adapter(tmp_path / "adapter", tmp_path / "merged")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not any("lora" in name for name, _ in whole.named_parameters())
    untuned = AutoModelForCausalLM.from_pretrained(base)
    adapted = open_generator(str(tmp_path / "adapter"), device="cpu").model
    with torch.no_grad():
        assert whole(IDS).logits.allclose(wanted, atol=1e-5)
        assert adapted(IDS).logits.allclose(wanted, atol=1e-5)
        assert not untuned(IDS).logits.allclose(wanted, atol=1e-2)
    assert (
        AutoTokenizer.from_pretrained(tmp_path / "merged").get_vocab()
        == lab.tokenizer().get_vocab()
    )


def test_an_adapter_without_a_tokenizer_has_that_of_its_base(tmp_path):
    base = base_model(tmp_path / "base", tied=False)
    saved_adapter(tmp_path / "adapter", base)
    for file in (tmp_path / "adapter").glob("tokenizer*"):
        file.unlink()
    generator = open_generator(str(tmp_path / "adapter"), device="cpu")
    assert generator.tokenizer.name_or_path == str(base)


def test_an_adapters_own_tokenizer_is_used(tmp_path):
    base = base_model(tmp_path / "base", tied=False)
    saved_adapter(tmp_path / "adapter", base)
    generator = open_generator(str(tmp_path / "adapter"), device="cpu")
    assert generator.tokenizer.name_or_path == str(tmp_path / "adapter")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_failed_merge_leaves_what_was_there(tmp_path, monkeypatch):
    base = base_model(tmp_path / "base")
    saved_adapter(tmp_path / "adapter", base)
    out = merge_adapter(tmp_path / "adapter", tmp_path / "run" / "merged")
    before = contents(tmp_path / "run")
    monkeypatch.setattr(
        LlamaForCausalLM, "save_pretrained", lambda self, path, **_: (path.mkdir(), 1 / 0)
    )
    with pytest.raises(ZeroDivisionError):
        merge_adapter(tmp_path / "adapter", out)
    assert contents(tmp_path / "run") == before
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["merged"]
    monkeypatch.undo()
    saved_adapter(tmp_path / "adapter", base, use_dora=True)
    monkeypatch.setattr(
        PeftModel, "merge_and_unload", lambda self, **_: self.unload(), raising=False
    )
    with pytest.raises(ConfigError, match=r"gives other logits, by \d+"):
        merge_adapter(tmp_path / "adapter", out)
    assert contents(tmp_path / "run") == before
    monkeypatch.undo()
    merge_adapter(tmp_path / "adapter", out)
    assert contents(tmp_path / "run") != before


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def poison(file: Path) -> None:
    save_file({name: value * float("nan") for name, value in load_file(file).items()}, file)


WEIGHTS, CONFIG = "adapter/adapter_model.safetensors", "adapter/adapter_config.json"
TOKENS = "adapter/tokenizer.json"
REFUSED = {
    "no adapter": (lambda folder: None, ("base", "out"), "no PEFT adapter in"),
    "itself": (lambda folder: None, ("adapter", "."), "would replace the adapter"),
    "other files": (
        lambda folder: (folder / "out").write_text("mine"),
        ("adapter", "out"),
        "is not a model",
    ),
    "NaN": (lambda folder: poison(folder / WEIGHTS), ("adapter", "out"), "cannot be merged"),
    "no base": (
        lambda folder: (folder / "base").rename(folder / "b"),
        ("adapter", "out"),
        "base_model_name_or_path",
    ),
    "no weights": (
        lambda folder: (folder / WEIGHTS).unlink(),
        ("adapter", "out"),
        "cannot open the adapter in",
    ),
    "half weights": (
        lambda folder: cut(folder / WEIGHTS),
        ("adapter", "out"),
        "cannot open the adapter in",
    ),
    "half a config": (
        lambda folder: cut(folder / CONFIG),
        ("adapter", "out"),
        "cannot open the model",
    ),
    "no tokenizer": (
        lambda folder: (folder / TOKENS).unlink(),
        ("adapter", "out"),
        "cannot open the tokenizer of",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_merged_is_refused(tmp_path, case):
    spoil, (source, out), said = REFUSED[case]
    saved_adapter(tmp_path / "adapter", base_model(tmp_path / "base"))
    spoil(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=said) as error:
        merge_adapter(tmp_path / source, tmp_path / out)
    assert contents(tmp_path) == before
    assert str(tmp_path) in str(error.value)


def test_merging_needs_no_sharded_loading(tmp_path):
    """Under ZeRO-3 every model that is loaded is shared out; the main process merges alone."""
    saved_adapter(tmp_path / "adapter", base_model(tmp_path / "base"))
    zero3 = type(
        "Zero3", (), {"config": {}, "is_zero3": lambda self: True}
    )()  # as far as loading reads it
    deepspeed.set_hf_deepspeed_config(zero3)
    try:
        with pytest.raises(
            (ImportError, AttributeError)
        ):  # what loading would need to share it out is not here
            AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        merge_adapter(tmp_path / "adapter", tmp_path / "merged")
        assert deepspeed.is_deepspeed_zero3_enabled()
    finally:
        deepspeed.unset_hf_deepspeed_config()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"use_peft": True, "load_in_4bit": True},
            r"4bit true needs bitsandbytes: .*faithful-search\[qlora\]",
        ),
        (
            {"use_peft": True, "load_in_4bit": True, "use_vllm": True},
            "--load_in_4bit true with --use_vllm true",
        ),
        (
            {"load_in_4bit": True},
            "quantised weights cannot be trained: --load_in_4bit true needs --use_peft true",
        ),
        (
            {"use_peft": True, "lora_target_modules": ["lm_head", "q_proj"]},
            "--lora_modules_to_save lm_head",
        ),
        # PEFT would leave it out silently
        (
            {"use_peft": True, "lora_target_modules": ["q_proj", "nonsense"]},
            "has no nonsense; its linear layers are",
        ),
        (
            {"lora_r": 4, "use_dora": True},
            "without --use_peft true these have no effect: lora_r, use_dora",
        ),
        ({"dtype": "bfloat61"}, "'bfloat61' is not a dtype of torch"),
        ({"merged": True}, "there is no adapter to merge"),
    ],
    ids=str,
)
def test_flags_of_a_model_that_do_not_fit_are_refused(monkeypatch, flags, said):
    monkeypatch.setattr(policies, "find_spec", lambda name: None)
    given = {"use_vllm": False, "merged": False, **flags}
    args, merged = (
        SimpleNamespace(model_init_kwargs=None, use_vllm=given.pop("use_vllm")),
        given.pop("merged"),
    )
    with pytest.raises(ConfigError, match=said):
        open_policy(str(tiny_policy()), ModelConfig(**given), args, merged)


@pytest.mark.parametrize(
    ("named", "becomes"),
    [("q_proj", ["q_proj"]), ("all-linear", "all-linear"), (r".*\.[qk]_proj", r".*\.[qk]_proj")],
)
def test_a_layers_name_is_not_taken_for_a_pattern(named, becomes):
    flags = ModelConfig(use_peft=True, lora_target_modules=[named])
    open_policy(str(tiny_policy()), flags, SimpleNamespace(model_init_kwargs=None))
    assert flags.lora_target_modules == becomes


def test_what_is_saved_takes_the_place_of_what_was_there(tmp_path):
    whole, adapter = pou_trainer(tmp_path), pou_trainer(tmp_path, *LORA)
    for made, merged in ((whole, False), (adapter, True), (whole, False), (adapter, False)):
        save_policy(made, merged=merged)
        lora = made is adapter
        assert (tmp_path / "adapter_config.json").exists() == lora
        assert (
            (tmp_path / "model.safetensors").exists()
            == (tmp_path / "config.json").exists()
            == (not lora)
        )
        assert isinstance(open_generator(str(tmp_path), device="cpu").model, PeftModel) == lora
        assert (
            (tmp_path / MERGED / "config.json").exists() == (tmp_path / MERGED).exists() == merged
        )


def test_an_adapter_is_trained_on_against_itself(tmp_path):
    """With the adapter's directory as the model, the reference is the adapter as it was; nothing of
    it is left over.
    """
    first = pou_trainer(tmp_path / "first", *LORA)
    disturb(first.model, 0.05)
    save_policy(first)
    again = ("--model_name_or_path", str(tmp_path / "first"))
    with pytest.raises(
        ConfigError, match=r"is already an adapter: leave out --use_peft .*faithful-search merge"
    ):
        pou_trainer(tmp_path / "second", *again, *LORA)
    made = pou_trainer(tmp_path / "second", *again, "--beta", "0.1")
    assert same(parts(first.model, True), parts(made.model, True))

    def at_the_reference() -> bool:
        batch = batch_of(made)
        with torch.no_grad():
            now, own = made._read(made.model, batch).logps, batch["turn_numbers"] > 0
        return now[own].allclose(batch["ref_per_token_logps"][own], atol=1e-4)

    assert at_the_reference()
    disturb(made.model, 0.05)
    assert not at_the_reference()
    save_policy(made, merged=True)
    assert {path.name for path in (tmp_path / "second").iterdir()} >= {
        "adapter_config.json",
        "merged",
    }
    assert not (tmp_path / "second" / "ref").exists()


def test_the_command_merges_and_the_card_names_the_base(tmp_path):
    def front_matter(folder: Path) -> dict:
        return yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])

    saved_adapter(tmp_path / "adapter", base_model(tmp_path / "base"))
    config = tmp_path / "adapter" / "adapter_config.json"
    done = invoked("merge", tmp_path / "adapter", tmp_path / "out", "--dtype", "bfloat16")
    assert done.exit_code == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    assert "base_model" not in front_matter(tmp_path / "out")
    config.write_text(config.read_text().replace(str(tmp_path / "base"), "someone/base"))
    assert (
        front_matter(merged_card(tmp_path / "adapter", tmp_path / "out").parent)["base_model"]
        == "someone/base"
    )
    done = invoked("merge", tmp_path / "base", tmp_path / "out")
    assert done.exit_code == 1
    assert done.output.startswith("error: there is no PEFT adapter in")
