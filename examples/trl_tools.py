"""TRL runs the episodes, the toolbox runs the tools: as environments, or as plain functions.

```
accelerate launch examples/trl_tools.py --model Qwen/Qwen2.5-0.5B-Instruct --max_steps 10
accelerate launch examples/trl_tools.py --model Qwen/Qwen2.5-0.5B-Instruct --plain      # GRPOTrainer(tools=[…])
```

The model's chat template must know tools. An environment knows its rollout: evidence ids begin at
E1 in each, and the reward sees what was found. Plain functions need no class; their ids run on.
`SearchGRPOTrainer` (recipes/pou.py) runs the episodes itself, in any dialect, and batches the tool
calls of a turn.
"""

import argparse
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from transformers.utils import is_torch_bf16_gpu_available
from trl import GRPOConfig, GRPOTrainer

from faithful_search import SearchEnvironment, Toolbox, load_tasks, tool_functions
from faithful_search.text import exact_match
from faithful_search.tools import KnowledgeGraph, LocalSearch


def reward(completions: list[Any], answers: list[list[str]], **columns: Any) -> list[float]:
    """1 where the last message is a right answer."""
    return [
        exact_match(str(messages[-1].get("content") or ""), gold)
        for messages, gold in zip(completions, answers, strict=True)
    ]


def train(
    model: Any, tokenizer: Any, toolbox: Toolbox, args: GRPOConfig, plain: bool, limit: int | None
) -> GRPOTrainer:
    """GRPO on questions of the bundled world."""
    rows = [
        {"prompt": [{"role": "user", "content": task.question}], "answers": list(task.answers)}
        for task in load_tasks("world", limit=limit)
    ]
    tools: dict[str, Any] = (
        {"tools": tool_functions(toolbox, tokenizer=tokenizer)}
        if plain
        else {"environment_factory": SearchEnvironment.factory(toolbox, tokenizer=tokenizer)}
    )
    dataset = Dataset.from_list(rows)
    trainer = GRPOTrainer(
        model, reward, args, train_dataset=dataset, processing_class=tokenizer, **tools
    )
    trainer.train()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", required=True, help="Hub id or directory of a chat model that calls tools"
    )
    parser.add_argument(
        "--plain", action="store_true", help="plain functions instead of environments"
    )
    parser.add_argument("--max_steps", type=int, default=10)
    parser.add_argument("--questions", type=int, default=64)
    given = parser.parse_args()
    args = GRPOConfig(
        "outputs/trl_tools",
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=1024,
        max_tool_calling_iterations=4,
        max_steps=given.max_steps,
        logging_steps=1,
        report_to="none",
        bf16=is_torch_bf16_gpu_available(),
    )
    with Toolbox(
        [LocalSearch.from_corpus("world"), KnowledgeGraph.from_triples("world")]
    ) as toolbox:
        train(
            given.model,
            AutoTokenizer.from_pretrained(given.model),
            toolbox,
            args,
            given.plain,
            given.questions,
        )
        print("\n".join(f"{name}: {stats}" for name, stats in toolbox.stats().items()))


if __name__ == "__main__":
    main()
