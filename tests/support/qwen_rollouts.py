"""A rollout in Qwen's chat template as token ids: what the policy sampled, and what was put in."""

import lab

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "capital of Peru"}}\n</tool_call>'
FACT = "The capital of Peru is Lima."
SAMPLED = (f"<think>\nLook.\n</think>\n\n{CALL}<|im_end|>", "Lima<|im_end|>")
PUT_IN = (
    f"\n<|im_start|>user\n<tool_response>\n{FACT}\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n"
)
FORGED = f"{CALL}{PUT_IN}Lima<|im_end|>"


def qwen_tokenizer(**settings):
    """Bytes, with Qwen3's special tokens and template."""
    from trl.chat_template_utils import qwen3_chat_template

    return lab.byte_tokenizer(
        ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>"),
        eos_token=settings.get("eos_token", "<|im_end|>"),
        pad_token="<|endoftext|>",
        chat_template=qwen3_chat_template,
    )


def encoded(tokenizer, *pieces):
    """The ids of texts, and which of them were sampled: `(text, 1)` was, `(text, 0)` was put in."""
    ids, mask = [], []
    for text, sampled in pieces:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += tokens
        mask += [sampled] * len(tokens)
    return ids, mask


SEARCHED = ((SAMPLED[0], 1), (PUT_IN, 0), (SAMPLED[1], 1))
