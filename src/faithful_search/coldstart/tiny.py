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

# How often the agent's own phrases are repeated for the BPE trainer, so that each word in them
# becomes one piece
OFTEN = 200
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
        return SearchR1().prompt("", ())[0]["content"], SearchR1.no_action_reply or "", *UNSAID
    if dialect == "self_eval":
        questions = []
        for reward in (SelfRubric(), SelfCorrectness()):
            questions.append(reward.question(Trajectory(), Fence("")))
        return "The answer is missing.", *EXPLANATIONS.values(), *questions, "Score: "
    if dialect == "pokee":
        with_answer, without = Step("", answer="?"), Step("")
        rejected = Step("", verified=False)
        # After each of these episodes the controller writes another of its lines.
        episodes = ((with_answer,), (with_answer, rejected), (without,), (with_answer, without))
        replies = [Pokee().controller_reply(steps, verify=True) or "" for steps in episodes]
        prompt = Pokee().prompt("", ())[1]["content"]
        return prompt, *replies, *UPHELD, *NOT_FOUND, *STOPPED_EARLY
    return ()


@dataclass(frozen=True)
class TinyConfig:
    """The shape of the tiny policy.

    Args:
        dialect: what it is to write.
        start: the dialect of a bundled tiny policy of the same shape, whose weights it takes over,
            also those of shared tokens: a policy that can read in one dialect need not learn it
            again in another. Empty for random weights.
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
        # The components of a head are rotated in pairs.
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
    llama_config = LlamaConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(llama_config)
    if config.start:
        take_over(model, tokenizer, tiny_policy(config.start))
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    return out_dir


def take_over(model: Any, tokenizer: Any, start: Path) -> None:
    """Give the model the weights of the policy in `start`. Tokens that only the model has keep
    their own embeddings.

    Raises:
        ConfigError: the policy has another shape.
    """
    old = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, trust_remote_code=False)
    # By text and not by id: the vocabularies of two dialects have the same words in other places.
    old_ids = read_tokenizer(str(start)).get_vocab()
    new_ids = tokenizer.get_vocab()
    shared_tokens = [token for token in new_ids if token in old_ids]
    embeddings = model.get_input_embeddings().weight.detach().clone()
    weights = old.state_dict()
    old_embeddings = weights["model.embed_tokens.weight"]
    try:
        from_rows = [old_ids[token] for token in shared_tokens]
        to_rows = [new_ids[token] for token in shared_tokens]
        embeddings[to_rows] = old_embeddings[from_rows]
        weights["model.embed_tokens.weight"] = embeddings
        weights["lm_head.weight"] = embeddings
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigError(
            f"the policy in {start} has another shape than the one to be made: {error}"
        ) from error


def build_tokenizer(config: TinyConfig) -> PreTrainedTokenizerFast:
    """The tokenizer of the tiny policy, trained on the world's sentences; the same on every run."""
    script = script_of(config.dialect)
    backend: Any = Tokenizer(models.BPE(byte_fallback=True, unk_token=None))
    # As in SentencePiece: a blank is part of the word after it, and nothing is lost in decoding.
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
    # The bytes had to be special tokens for the training; in use they are ordinary ones.
    state = json.loads(backend.to_str())
    backend = Tokenizer.from_str(json.dumps({**state, "added_tokens": []}))
    markup: list[str] = []
    for tag in script.tags:
        markup += [f"<{tag}>", f"</{tag}>"]
    markup += script.scaffold
    words = list(script.words)
    if script.cites:
        words += [f"E{number}" for number in range(1, config.evidence_ids + 1)]
    words += names
    backend.add_tokens([AddedToken(text, normalized=False) for text in markup])
    backend.add_tokens([AddedToken(text, normalized=False, single_word=True) for text in words])
    special = [AddedToken(text, normalized=False, special=True) for text in SPECIAL]
    backend.add_special_tokens(special)
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
    names cut out, so that no fact can leak.

    Held-out passages are among them, since the policy must be able to read them; held-out questions
    are not.
    """
    finder = NameFinder(dict.fromkeys(names, ""))
    passages = list(read_rows(world_file("passages.jsonl.gz")))
    relations: set[str] = set()
    for row in passages:
        for _, relation, _ in row["facts"]:
            relations.add(relation)
    for row in read_rows(world_file("triples.jsonl.gz")):
        relations.add(row["relation"])
    for _ in range(OFTEN):
        yield from PHRASES
        yield from TRAINING_BLANKS
        yield from phrases
        yield "No results."
        yield "Unknown tool. Available tools:"
        for relation in sorted(relations):
            yield f"{relation} of the {relation} of . The {relation} is"
    texts = [row["text"] for row in passages]
    texts += [task.question for task in load_tasks("world", "train")]
    for text in texts:
        yield finder.sub(lambda name: "", text)
