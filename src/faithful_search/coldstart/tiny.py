"""The tiny policy's tokenizer and untrained model: a small Llama for which each name of the bundled
world is one token.

Its two million parameters can thus go into reading instead of spelling. Names and the markup of
calls are ordinary added tokens; everything else is byte-fallback BPE, so that any text can be
encoded and decoded back.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    set_seed,
)

from ..bundled import bundled_json, shipped, tiny_policy, world_file
from ..dialects.fence import Fence
from ..dialects.pokee import Pokee
from ..dialects.search_r1 import SearchR1
from ..errors import ConfigError
from ..inference.loading import read_tokenizer
from ..json_lines import read_rows
from ..rewards import SelfCorrectness, SelfRubric
from ..rewards.world_rubric import EXPLANATIONS
from ..tasks import load_tasks
from ..text import NameFinder
from ..trajectory import Step, Trajectory
from .experts import NOT_FOUND, PHRASES, STOPPED_EARLY, UNSAID, UPHELD
from .twins import TRAINING_BLANKS

OFTEN = 200
"""How often the agent's own phrases are repeated for the BPE trainer, so that each word in them
becomes one piece.
"""
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>", "<|tools|>", "<|pad|>")


class Script(msgspec.Struct, frozen=True):
    """What a dialect writes again and again, each part of it one token; an entry of
    `data/tiny_scripts.json`.

    Args:
        tags: the names of its tags.
        scaffold: its other markup.
        words: words that it writes in every episode.
        cites: whether it also writes ids of evidence.
        chat: whether there is a chat template; a base model has none.
    """

    tags: tuple[str, ...]
    scaffold: tuple[str, ...]
    words: tuple[str, ...]
    cites: bool = False
    chat: bool = True


def script_of(dialect: str) -> Script:
    """A dialect's `Script`. Raises `ConfigError` naming the dialects that a tiny policy can be made
    for.
    """
    scripts = msgspec.convert(bundled_json("tiny_scripts.json"), dict[str, Script])
    if dialect not in scripts:
        raise ConfigError(
            f"no tiny policy can be made for dialect {dialect!r}; there are: {', '.join(scripts)}"
        )
    return scripts[dialect]


def phrases_of(dialect: str) -> tuple[str, ...]:
    """The sentences of a dialect's prompt, controller and agent, which are always the same."""
    if dialect == "search_r1":
        [message] = SearchR1().prompt("", ())
        return message["content"], SearchR1.no_action_reply or "", *UNSAID
    if dialect == "self_eval":
        questions = []
        for reward in (SelfRubric(), SelfCorrectness()):
            questions.append(reward.question(Trajectory(), Fence("")))
        return "The answer is missing.", *EXPLANATIONS.values(), *questions, "Score: "
    if dialect == "pokee":
        answer, nothing = Step("", answer="?"), Step("")
        rejected = Step("", verified=False)
        # after each of these episodes the controller says another of its lines
        episodes = ((answer,), (answer, rejected), (nothing,), (answer, nothing))
        replies = [Pokee().controller_reply(steps, verify=True) or "" for steps in episodes]
        _, prompt = Pokee().prompt("", ())
        return prompt["content"], *replies, *UPHELD, *NOT_FOUND, *STOPPED_EARLY
    return ()


@dataclass(frozen=True)
class TinyConfig:
    """The shape of the tiny policy.

    Args:
        dialect: what it is to write.
        start: the dialect of a bundled tiny policy of the same shape, whose weights it takes over,
            also those of shared tokens: a policy that can read in one dialect need not learn it
            again in another. Empty: none.
        pieces: the size of the vocabulary's BPE part; the world's names come on top.
        evidence_ids: how many ids of evidence are tokens.
        seed: the seed of the weights.
    """

    dialect: str = "pou"
    start: str = ""
    hidden_size: int = 192
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 6
    pieces: int = 1500
    evidence_ids: int = 48
    max_position_embeddings: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        # twice, since a head's rotary positions are pairs
        if heads < 1 or self.hidden_size < 1 or self.hidden_size % (2 * heads):
            raise ConfigError(
                f"hidden_size {self.hidden_size} is no multiple of twice num_attention_heads "
                f"{heads}"
            )


def build_tiny(out_dir: str | Path, config: TinyConfig | None = None) -> Path:
    """Write an untrained tiny policy, loadable with `from_pretrained`, to `out_dir`."""
    config = config or TinyConfig()
    out_dir = Path(out_dir)
    tokenizer = build_tokenizer(config)
    set_seed(config.seed)
    shape = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    )
    sizes = {name: getattr(config, name) for name in shape} | {"vocab_size": len(tokenizer)}
    ends = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes, **ends, tie_word_embeddings=True))
    if config.start:
        take_over(model, tokenizer, tiny_policy(config.start))
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    return out_dir


def take_over(model: Any, tokenizer: Any, start: Path) -> None:
    """Give the model the weights of the policy in `start`, which must have the same shape (else
    `ConfigError`); tokens that only the model has keep their own.
    """
    old = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, trust_remote_code=False)
    old_places = read_tokenizer(str(start)).get_vocab()
    new_places = tokenizer.get_vocab()
    shared = [token for token in new_places if token in old_places]
    # By text and not by id: the vocabularies of two dialects have the same words in other places.
    rows = model.get_input_embeddings().weight.detach().clone()
    weights = old.state_dict()
    learnt = weights["model.embed_tokens.weight"]
    ours = [new_places[token] for token in shared]
    theirs = [old_places[token] for token in shared]
    try:
        rows[ours] = learnt[theirs]
        model.load_state_dict(
            {**weights, "model.embed_tokens.weight": rows, "lm_head.weight": rows}
        )
    except RuntimeError as error:
        raise ConfigError(
            f"the policy in {start} has another shape than the one to be made: {error}"
        ) from error


def build_tokenizer(config: TinyConfig) -> PreTrainedTokenizerFast:
    """The tokenizer of the tiny policy, trained on the world's sentences; the same on every run."""
    script = script_of(config.dialect)
    backend: Any = Tokenizer(models.BPE(byte_fallback=True, unk_token=None))
    # As SentencePiece has it: a blank is part of the word after it, and nothing is lost in
    # decoding.
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"▁?\p{L}+|▁?\p{N}|▁?[^\s\p{L}\p{N}▁]+|▁+|\s"), "isolated"
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    names = sorted(bundled_json("world/names.json"))
    trainer = trainers.BpeTrainer(
        vocab_size=config.pieces,
        special_tokens=[f"<0x{byte:02X}>" for byte in range(256)],
        initial_alphabet=[*map(chr, range(33, 127)), "\n", "▁"],
        show_progress=False,
    )
    backend.train_from_iterator(_sentences(names, phrases_of(config.dialect)), trainer)
    # bytes had to be special tokens for training; in use they are ordinary ones
    state = json.loads(backend.to_str())
    backend = Tokenizer.from_str(json.dumps({**state, "added_tokens": []}))
    markup = []
    for tag in script.tags:
        markup += [f"<{tag}>", f"</{tag}>"]
    markup += script.scaffold
    words = [*script.words]
    if script.cites:
        words += [f"E{number}" for number in range(1, config.evidence_ids + 1)]
    words += names
    backend.add_tokens([AddedToken(text, normalized=False) for text in markup])
    backend.add_tokens([AddedToken(text, normalized=False, single_word=True) for text in words])
    backend.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in SPECIAL]
    )
    template = (shipped("data") / "tiny_chat.jinja").read_text(encoding="utf-8")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=list(SPECIAL[1:4]),
        chat_template="".join(template.splitlines()) if script.chat else None,
        clean_up_tokenization_spaces=False,
    )


def _sentences(names: list[str], phrases: tuple[str, ...]) -> Iterator[str]:
    """What the BPE pieces have to spell: the experts' phrases, then the world's texts with the
    names cut out, so that no fact can leak. Held-out passages are among them, since the policy must
    be able to read them; questions are not.
    """
    finder = NameFinder(dict.fromkeys(names, ""))
    passages = list(read_rows(world_file("passages.jsonl.gz")))
    relations = {row["relation"] for row in read_rows(world_file("triples.jsonl.gz"))}
    for row in passages:
        relations.update(relation for _, relation, _ in row["facts"])
    fixed = (*PHRASES, *TRAINING_BLANKS, *phrases, "No results.", "Unknown tool. Available tools:")
    for _ in range(OFTEN):
        yield from fixed
        for relation in sorted(relations):
            yield f"{relation} of the {relation} of . The {relation} is"
    texts = [row["text"] for row in passages]
    texts += [task.question for task in load_tasks("world", "train")]
    for text in texts:
        yield finder.sub(lambda name: "", text)
