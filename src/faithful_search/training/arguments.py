"""Settings, typed once: they are the flags of recipes, what trainers are given, and where both are checked."""

import math
import os
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, cast

import torch
import torch.distributed as distributed
from accelerate.utils import parse_flag_from_env
from trl import GRPOConfig, SFTConfig

from ..flags import check_choices, check_least, check_shares, flag, refuse, refuse_unread
from ..inference.vllm import VLLM
from .advantages import ESTIMATORS, TURN_ESTIMATORS

PPO = "ppo"  # its name among the estimators of advantages
CHOICES = {
    "advantages": (*ESTIMATORS, *TURN_ESTIMATORS, PPO),
    "uniform_groups": ("keep", "drop"),
    "counterfactual_groups": ("paired", "own"),
}
_SAMPLING = ("correction", "mode", "clip_max", "clip_min", "cap")
_BOTH = {"mode", *(f"importance_sampling_{name}" for name in _SAMPLING)}
"""Settings, without `vllm_`, that TRL applies to the log-probs of the rollouts in both modes; by mode, those used."""
_USED = {
    "colocate": {"gpu_memory_utilization", "max_model_length", "model_impl"},
    "server": {"server_base_url", "server_host", "server_port", "server_timeout", "group_port"},
}
NATIVE = frozenset(("avx512_bf16", "amx_bf16", "bf16"))
"""Capabilities of processors that multiply bfloat16 natively: x86 with AVX-512 or AMX, and Arm."""


def native_bf16() -> bool:
    """Whether this processor multiplies bfloat16 natively: else autocast emulates it, which takes several times as long
    as float32. PyTorch before 2.11 cannot say: then not."""
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(found.get(name) is True for name in NATIVE)


def precision_line(args: Any) -> str:
    """The first line of a run, from its `TrainingArguments`: the device, and the precision of autocast."""
    device = args.device.type
    # Older versions of Transformers keep it in the environment only.
    shorter = getattr(args, "mixed_precision", None) or os.environ.get(
        "ACCELERATE_MIXED_PRECISION", "no"
    )
    if shorter != "no":
        return f"{device}, {shorter} autocast"
    emulated = device == "cpu" and not native_bf16()
    return f"{device}, no autocast" + (": this processor has no native bf16" if emulated else "")


def prepare(args: Any) -> None:
    """What comes before Transformers reads a trainer's settings: on a CPU, bfloat16 only where that is native, and a
    process group with `ddp_timeout`, which Transformers passes on for accelerators only."""
    check_least(args, seed=0, learning_rate=0)
    if (
        args.use_cpu
        or parse_flag_from_env("ACCELERATE_USE_CPU")
        or not torch.accelerator.is_available()
    ):
        args.use_cpu = True
        if not native_bf16():
            args.bf16 = False
            # `accelerate launch` counts even where the settings say no
            if os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16":
                os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
        alone = (
            int(os.environ.get("WORLD_SIZE", "1")) < 2
            or "RANK" not in os.environ
            or distributed.is_initialized()
        )
        if args.ddp_backend in (None, "gloo") and not alone:
            distributed.init_process_group("gloo", timeout=timedelta(seconds=args.ddp_timeout))


def hide_token(args: Any) -> None:
    """Move a token of the Hub to the environment: trainers pickle their settings beside the policy."""
    tokens = args.hub_token, (args.model_init_kwargs or {}).pop("token", None)
    if any(tokens):
        os.environ["HF_TOKEN"] = str(tokens[0] or tokens[1])
    args.hub_token = None


@dataclass
class SearchSFTConfig(SFTConfig):
    """TRL's `SFTConfig`, on CPUs too; a token of the Hub does not stay in it."""

    def __post_init__(self) -> None:
        prepare(self)
        super().__post_init__()
        hide_token(self)


def check_vllm(args: GRPOConfig, device: str | None = None) -> None:
    """Raise `ConfigError`, before anything is loaded, for settings that rollouts by vLLM cannot work with or would
    ignore; with the type of the device that trains, also where weights cannot be brought to vLLM."""
    if not args.use_vllm:
        return
    check_choices(args, {"vllm_mode": tuple(_USED)})
    mode, server, parallel = (
        args.vllm_mode,
        args.vllm_mode == "server",
        args.vllm_tensor_parallel_size,
    )
    ours = [item for item in fields(GRPOConfig) if item.name.startswith("vllm_")]
    given = [item.name for item in ours if getattr(args, item.name) != item.default]
    ignored = ", ".join(
        name for name in given if name.removeprefix("vllm_") not in _BOTH | _USED[mode]
    )
    where = " and give it to the server's command" if server else ""
    waiting = f"vllm_tensor_parallel_size={parallel}: processes of one engine wait for each other: start a server"
    asleep = "vllm_enable_sleep_mode: it would sleep between two turns: lower vllm_gpu_memory_utilization"
    missing = (
        "use_vllm: vLLM is not installed; pip install 'faithful-search[vllm]', or set it to false"
    )
    unsynced = f"use_vllm: weights are synced to vLLM on GPUs only, and this would train on {device!r}; set it to false"
    refuse(
        [
            (not server and parallel != 1, f"{waiting} over several GPUs"),
            (not server and args.vllm_enable_sleep_mode, asleep),
            (ignored, f"{ignored}: ignored with vllm_mode {mode!r}; leave unset{where}"),
            (args.temperature > VLLM.hottest, f"vLLM takes temperatures up to {VLLM.hottest:g}"),
            # a dry run names no device, since it needs neither vLLM nor a GPU
            (device is not None and find_spec("vllm") is None, missing),
            (device in ("cpu", "mps"), unsynced),
        ]
    )


@dataclass
class PPOSettings:
    """PPO's own, with Search-R1's defaults. Of TRL's settings, `num_iterations` are its epochs, `epsilon` is its
    clipping and `beta` the weight of the KL divergence."""

    gamma: float = flag(1.0, "PPO: discount of later rewards, by token or by turn")
    lam: float = flag(1.0, "PPO: λ of GAE: 1 trusts the returns, 0 the value")
    value_learning_rate: float = flag(1e-5, "PPO: of the value's own parameters")
    value_weight: float = flag(1.0, "PPO: of the value's loss beside the policy's")
    value_clip: float = flag(0.5, "PPO: how far from its old value it may move in a batch")
    value_trunk: bool = flag(
        False, "PPO: a model of its own under the value, not the policy's last hidden state"
    )
    gae_over_turns: bool = flag(False, "PPO: advantages by turn instead of by token")
    step_rewards: bool = flag(
        False, "PPO: what rewards say of a step comes at its end, not at the rollout's"
    )
    kl_in_reward: bool = flag(True, "PPO: beta's KL is taken from the rewards; false: the loss")
    whiten: bool = flag(True, "PPO: advantages of a batch with mean 0 and deviation 1")


@dataclass
class SearchGRPOConfig(PPOSettings, GRPOConfig):
    """TRL's `GRPOConfig`, on CPUs too, with what a search trainer can do besides.

    Each setting is a flag of the recipes; `metadata["help"]` of its field says what it does. A token of the Hub does
    not stay in it. Values that are out of range, or that nothing would read, are a `ConfigError`.

    Example:
        ```python
        SearchGRPOConfig("outputs/mine", advantages="turns", llds=0.1)
        ```
    """

    advantages: str = flag(
        "trl", f"'trl' or another: {', '.join(CHOICES['advantages'][1:])}; see docs/credit.md"
    )
    turn_gamma: float = flag(1.0, "by how much a turn discounts what later turns earn")
    llds: float = flag(
        0.0, "weight of the term that keeps what is not worse than others likely; 0.1 (LLDS)"
    )
    verdict_weight: float = flag(
        0.0, "λ: R_pt's probes in the loss itself, with gradient; 0: not there (paper)"
    )
    uniform_groups: str = flag(
        "keep", "'drop': the update leaves out questions all right or all wrong"
    )
    counterfactual: float = flag(
        0.0, "share of each question's rollouts in a world in which its answer is another"
    )
    counterfactual_groups: str = flag(
        "paired", "'own': a share of the questions is changed, each as a whole"
    )
    max_abstained: float = flag(
        0.5, "share of a step's rollouts that a judge may leave open before the run stops"
    )

    def __post_init__(self) -> None:
        check_choices(self, CHOICES)
        check_least(
            self, llds=0, verdict_weight=0, value_learning_rate=0, value_weight=0, value_clip=0
        )
        check_shares(self, "turn_gamma", "counterfactual", "max_abstained", "gamma", "lam")
        by_turn = self.advantages in TURN_ESTIMATORS
        refuse_unread(
            self, self.advantages == PPO, PPOSettings.__dataclass_fields__, "--advantages ppo"
        )
        refuse_unread(self, by_turn, ["turn_gamma"], f"--advantages {' or '.join(TURN_ESTIMATORS)}")
        refuse_unread(
            self, self.counterfactual, ["counterfactual_groups"], "--counterfactual above 0"
        )
        prepare(self)
        single = self.num_generations == 1
        if (
            single
        ):  # TRL wants groups of two or more; a value needs none, so the whole batch passes for one
            steps = self.steps_per_generation or self.gradient_accumulation_steps
            rows = self.generation_batch_size or self.per_device_train_batch_size * steps
            others = "num_generations 1 is for --advantages ppo: all others compare the rollouts of a question"
            few = "PPO needs two rollouts a batch: raise --per_device_train_batch_size"
            refuse([(self.advantages != PPO, others), (rows < 2, few)])
            self.num_generations, self.num_generations_eval = rows, self.num_generations_eval or 1
        super().__post_init__()
        if single:
            self.num_generations = 1
        hide_token(self)
        check_vllm(self)
        self._check()

    def _check(self) -> None:
        ignored = [name for name in ("min_p", "generation_kwargs") if getattr(self, name)]
        ignored += ["repetition_penalty"] if self.repetition_penalty != 1.0 else []
        saves, ppo, steps = self.save_strategy == "steps", self.advantages == PPO, self.save_steps
        between = (
            f"save_steps={steps:g} would save in the middle of a generation's {self._cycle} batches, and a resumed run "
            f"would differ; make save_steps x gradient_accumulation_steps a multiple of {self._cycle}"
        )
        scale = (
            f"--scale_rewards {self.scale_rewards} is for --advantages trl, not {self.advantages}"
        )
        refuse(
            [
                (
                    ignored,
                    f"not supported by the search engine's generator: {', '.join(ignored)}; leave the default",
                ),
                (
                    self.temperature <= 0,
                    "temperature must be above 0: rollouts that are all alike teach nothing",
                ),
                (
                    saves and steps < 1,
                    f"save_steps is a whole number of steps, 1 or more, not {steps:g}",
                ),
                (saves and not self.between_generations(steps), between),
                (self.advantages not in ("trl", PPO) and self.scale_rewards != "group", scale),
                (
                    ppo and self.uniform_groups != "keep",
                    "PPO has its own advantages, of every rollout: keep groups",
                ),
                (
                    ppo and self.use_vllm,
                    "--use_vllm true: vLLM would be given PPO's value with the weights",
                ),
            ]
        )

    @property
    def _cycle(self) -> int:
        return (self.steps_per_generation or 1) * self.num_iterations

    def between_generations(self, step: float) -> bool:
        """Whether that many optimizer steps use up the generated rollouts, so that a run could resume there."""
        return step * self.gradient_accumulation_steps % self._cycle == 0

    def rollouts_after(self, step: int) -> int:
        """How many rollouts all processes have sampled for that many optimizer steps."""
        generations = math.ceil(step * self.gradient_accumulation_steps / self._cycle)
        return generations * cast(int, self.generation_batch_size)

    def steps_per_epoch(self, questions: int) -> int:
        """Optimizer steps of one pass over that many questions, without a last incomplete batch; for `Warmup.parse`."""
        batch = cast(int, self.generation_batch_size) // cast(int, self.num_generations)
        return max(
            1, math.ceil(questions // batch * self._cycle / self.gradient_accumulation_steps)
        )
