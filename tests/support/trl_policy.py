"""A policy for TRL's own tool loop whose turns are given."""

import lab
import pytest


def scripted_policy(turns):
    """A two-layer Qwen2 whose generation follows a script: episodes go on by themselves, everything else is real."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from trl.chat_template_utils import qwen2_5_chat_template

    special = ("<|im_start|>", "<|im_end|>", "<|pad|>")
    tokenizer = lab.byte_tokenizer(
        special, eos_token="<|im_end|>", pad_token="<|pad|>", chat_template=qwen2_5_chat_template
    )
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )

    class Scripted(transformers.Qwen2ForCausalLM):
        def generate(self, input_ids, **kwargs):
            opening = "<|im_start|>assistant"
            rows = [turns[text.count(opening) - 1] for text in tokenizer.batch_decode(input_ids)]
            ids = tokenizer(rows, padding=True, padding_side="right", return_tensors="pt")["input_ids"]
            return torch.cat([input_ids, ids], dim=1)

    return Scripted(config), tokenizer
