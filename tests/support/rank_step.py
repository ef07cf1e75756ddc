"""One training step on given rollouts, as a process of a training: `python rank_step.py OUT ROWS
KIND MORE`.

Each process leaves in OUT what it saw; the main one the model, which one step of plain gradient
descent with a learning rate of 1 has moved by exactly the gradient. KIND is "ddp", "fsdp2" or
"zero3". MORE is JSON: `sensitivity` has arguments of `EvidenceSensitivity`, `args` of
`SearchGRPOConfig`; with `lora` an adapter is trained, with `kept_responses` a policy that sees so
many responses, by VERITAS's reward; with `sync` the test of weight syncs is made too.
"""

import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import lab
import tiny_trainer
import torch
from peft import LoraConfig

from faithful_search.errors import FaithfulSearchError, GeneratorError
from faithful_search.inference.base import Completion, Sampling
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.rewards import EvidenceSensitivity, pou_mix, veritas_mix
from faithful_search.rollout import Engine, Limits
from faithful_search.tasks import Task
from faithful_search.tools import Toolbox
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.grpo import SearchGRPOTrainer
from faithful_search.training.ppo import SearchPPOTrainer
from faithful_search.training.vllm import check_sync
from faithful_search.trajectory import Evidence

TASKS = [Task(f"q{number}", f"Question {number}?", ("Rome",)) for number in range(4)]
GROUP = 4


class Shelf(lab.Shelf):
    """Has other evidence for every row, so that it matters from which of them a probe takes what is
    unrelated.
    """

    async def shelf(self, query: str) -> list[Evidence]:
        found = ("Rome, below Mount{0}.", "Peak{0}"), ("Oslo, by Lake{0}.", "Shore{0}")
        return [Evidence(text.format(query), title.format(query)) for text, title in found]


class Planned(lab.Writing):
    """Writes what the global number of a row says: how many calls, which citations, and the
    answer.
    """

    def __init__(self, first: int) -> None:
        super().__init__()
        self.tokenizer, self.first = tiny_trainer.tokenizer(), first

    def generate(self, prompts: Any, sampling: Any, max_new_tokens: Any = None) -> list[Completion]:
        self.numbers = iter(range(self.first, self.first + len(prompts)))
        return super().generate(prompts, sampling, max_new_tokens)

    def p_yes(self, context: str) -> float:
        raise AssertionError("the training model is to be asked, not the generator")

    def turn(self, context: str) -> str:
        number = next(self.numbers)
        said = re.findall(r"<think>(?:<helpful>.*?</ref>)?row (\d+)", context)
        if not said:
            return lab.searching(f"row {number} {'x' * (7 * number % 40)}", "shelf", str(number))
        row, turns = int(said[0]), len(said)
        ref = f"E{1 if row % 3 and row < 8 else 9}"  # later rows have no probe
        if turns <= row % 3:
            verdict = f"<helpful>yes</helpful><ref>{ref}</ref>"
            return lab.searching(f"{verdict}row {row} {'y' * (5 * row % 30)}", "shelf", str(row))
        return lab.answering("yes", ref, f"row {row}", "Rome" if row % 5 < 2 else "Oslo")


class Forgetting(Planned):
    """Likewise in Search-R1's format, with thoughts that state what they look for."""

    def turn(self, context: str) -> str:
        number, said = next(self.numbers), re.findall(r"row (\d+) asks", context)
        row = int(said[0]) if said else number
        if len(said) <= row % 3:
            return f"<think>row {row} asks for Mount{row}</think>\n<search>Mount{row} {'x' * (7 * row % 40)}</search>"
        return f"<think>row {row} asks no more</think>\n<answer>{'Rome' if row % 5 < 2 else 'Oslo'}</answer>"


def main(out: Path, rows: int, kind: str, more: dict[str, Any]) -> None:
    trainer = made(out, rows, prepare(kind), more)
    process = trainer.accelerator.process_index
    plan = Forgetting if "kept_responses" in more else Planned
    trainer.engine.generator = plan(process * rows * (trainer.args.steps_per_generation or 1))
    passes: list[int] = []
    trainer.policy.model.register_forward_pre_hook(
        lambda model, args, given: (
            None if model.training else passes.append(given["input_ids"].shape[1])
        ),
        with_kwargs=True,
    )
    trainer.train()
    probed, state = len(passes), trainer.reward_state
    written = sampled(trainer, [] if process else TASKS)
    synced = checked(trainer) if more.get("sync") else []
    trainer.save_model()
    seen = {
        "rewards": [row.score.value for row in trainer.rollouts.local],
        "ema": state.ema,
        "step": state.step,
    }
    terms = ("value/loss", "groups/one_outcome", "likelihood/right", "verdict_term")
    logged = {
        name: line[name] for line in trainer.state.log_history for name in terms if name in line
    }
    seen |= {"probed": probed, "written": written, "terms": logged, "synced": synced}
    (out / f"process{process}.json").write_text(json.dumps(seen))


def prepare(kind: str) -> dict[str, Any]:
    """What makes this process one of that kind on a CPU, where Accelerate offers neither; settings
    of the trainer.
    """
    if kind == "zero3":
        import deepspeed

        deepspeed.init_distributed("gloo")
        stage = {
            "stage": 3,
            "stage3_gather_16bit_weights_on_model_save": True,
            "stage3_param_persistence_threshold": 0,
        }
        sizes = (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        )
        auto = (*sizes, "gradient_clipping")  # Accelerate would clip at 1 else
        how = {
            "zero_optimization": stage,
            "zero_allow_untested_optimizer": True,
            **dict.fromkeys(auto, "auto"),
        }
        return {"deepspeed": how}
    if kind == "fsdp2":
        pretend_fsdp()
    return {}


def pretend_fsdp() -> None:
    from accelerate import state
    from accelerate.utils import DistributedType

    os.environ |= {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    }
    start = state.AcceleratorState.__init__

    def init(self: Any, *args: Any, **given: Any) -> None:
        if not state.AcceleratorState._shared_state:
            state.PartialState(cpu=True)
            state.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        start(self, *args, **given)

    state.AcceleratorState.__init__ = init


SETTINGS = tiny_trainer.SETTINGS | {
    "num_generations": GROUP,
    "max_steps": 1,
    "max_completion_length": 900,
    "learning_rate": 1.0,
    "optim": "sgd",
    "max_grad_norm": 0.0,
    "save_strategy": "no",
    "shuffle_dataset": False,
}


def made(out: Path, rows: int, settings: dict[str, Any], more: dict[str, Any]) -> SearchGRPOTrainer:
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)  # of an adapter's first values
    given = {**SETTINGS, **settings, **more.get("args", {}), "per_device_train_batch_size": rows}
    args, kept = SearchGRPOConfig(str(out / "model"), **given), more.get("kept_responses", 0)
    return (SearchPPOTrainer if args.advantages == "ppo" else SearchGRPOTrainer)(
        model=str(out.parent / "start"),
        processing_class=tiny_trainer.tokenizer(),
        args=args,
        train_dataset=TASKS,
        toolbox=Toolbox([Shelf()]),
        limits=Limits(turns=5, turn_tokens=400, total_tokens=900, kept_responses=kept),
        trajectory_file=out / "trajectories.jsonl",
        peft_config=LoraConfig(target_modules="all-linear", r=2) if more.get("lora") else None,
        dialect="search_r1" if kept else "pou",
        reward=veritas_mix()
        if kept
        else pou_mix(
            paper=True,
            sensitivity=EvidenceSensitivity(**{"budget": 2, **more.get("sensitivity", {})}),
        ),
    )


def sampled(trainer: SearchGRPOTrainer, tasks: list[Task]) -> dict[str, list[int]]:
    """Greedy episodes of the trained policy, for which no process may need another: one has none at
    all.
    """
    dialect = trainer.engine.chat.dialect.name
    engine = Engine(
        trainer.policy, trainer.toolbox, dialect, Limits(2, 12, 400), Sampling(temperature=0.0)
    )
    with trainer.generating():
        return {item.id: item.tokens.completion_ids for item in engine.run(tasks)}


class Copied(TransformersGenerator):
    """A model that takes all weights of the one that is trained, unless it is deaf; may be out of
    order.
    """

    def __init__(self, how: str) -> None:
        super().__init__(tiny_trainer.model(), tiny_trainer.tokenizer())
        self.how = how

    def load(self, model: Any) -> None:
        whole = {
            name: full(value) for name, value in model.named_parameters()
        }  # every process takes part
        if self.how != "deaf":
            self.model.load_state_dict(whole)

    def generate(self, *arguments: Any) -> Any:
        if self.how == "broken":
            raise GeneratorError("out of order")
        return super().generate(*arguments)


def full(parameter: Any) -> torch.Tensor:
    if hasattr(parameter, "full_tensor"):
        return parameter.full_tensor()
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def checked(trainer: SearchGRPOTrainer) -> list[Any]:
    """What comes of a sync with each process's copy, with one that is deaf, with one that is
    broken; then this process's share of the embedding, in size, and whether each bit of it is as
    before.
    """

    def share() -> torch.Tensor:
        weight = model.get_input_embeddings().weight
        return (
            (weight.ds_tensor if hasattr(weight, "ds_tensor") else weight.to_local())
            .detach()
            .clone()
        )

    model, process = trainer.policy.model, trainer.accelerator.process_index
    prompt = tiny_trainer.tokenizer()("Which city" + " is" * process)["input_ids"]
    before, told = share(), []
    for how in ("", "deaf" if process == 1 else "", "broken" if process == 0 else ""):
        engine = Copied(how)
        try:
            found = check_sync(model, partial(engine.load, model), engine, trainer.policy, prompt)
            told.append([max(found.changed, found.restored) < 1e-4, found.moved > 0.1])
        except FaithfulSearchError as error:
            told.append([type(error).__name__, str(error)[:40]])
    return [
        *told,
        [before.numel(), torch.equal(before.view(torch.int32), share().view(torch.int32))],
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
