"""Settings, typed once: they are the flags of recipes, what trainers are given, and where both are
checked.
"""

import logging
import math
import os
import time
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from typing import Any, cast

import torch
import torch.distributed as distributed
from accelerate.utils import parse_flag_from_env
from trl import GRPOConfig, SFTConfig

from ..errors import ConfigError
from ..flags import check_choices, check_least, check_shares, flag, refuse_unread
from ..inference.vllm import VLLM
from .advantages import ESTIMATORS, TURN_ESTIMATORS

logger = logging.getLogger(__name__)

PPO = "ppo"  # its name among the estimators of advantages
ROLLOUTS = ("engine", "trl")
CHOICES = {
    "rollouts": ROLLOUTS,
    "advantages": (*ESTIMATORS, *TURN_ESTIMATORS, PPO),
    "uniform_groups": ("keep", "drop"),
    "counterfactual_groups": ("paired", "own"),
}
_SAMPLING = ("correction", "mode", "clip_max", "clip_min", "cap")
_BOTH = {"mode", *(f"importance_sampling_{name}" for name in _SAMPLING)}
"""Settings, without `vllm_`, that TRL applies to the log-probs of the rollouts in both modes; by
mode, those used.
"""
_USED = {
    "colocate": {"gpu_memory_utilization", "max_model_length", "model_impl"},
    "server": {"server_base_url", "server_host", "server_port", "server_timeout", "group_port"},
}
MUCH_FASTER = 2.0
"""How many times as fast products must be in bfloat16 on a CPU: autocast also takes time, to
convert what is multiplied.
"""
_MIXED = "ACCELERATE_MIXED_PRECISION"  # `accelerate launch` and Transformers say here what is on


@cache
def faster_in_bf16() -> bool:
    """Whether this processor multiplies bfloat16 `MUCH_FASTER` times as fast as float32, or faster,
    as timed here and now.

    What a processor says of itself does not tell: with AVX-512's bfloat16 instructions one took
    longer for a product than in float32, and another a quarter of the time.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # on busy cores several wait for each other, which hides the difference
    try:
        in_float32 = seconds_to_multiply(torch.float32)
        in_bfloat16 = seconds_to_multiply(torch.bfloat16)
    finally:
        torch.set_num_threads(threads)
    return MUCH_FASTER * in_bfloat16 < in_float32


def seconds_to_multiply(dtype: torch.dtype) -> float:
    """The shortest of twenty times, since other programs may take turns, for the product of 256
    rows of 576 numbers with a layer of 1,536: some milliseconds.
    """
    rows = torch.ones(256, 576, dtype=dtype)
    layer = torch.ones(1536, 576, dtype=dtype)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        torch.nn.functional.linear(rows, layer)
        times.append(time.perf_counter() - began)
    return min(times)


def precision_line(args: Any) -> str:
    """The first line of a run, from its `TrainingArguments`: the device, and the precision of
    autocast.
    """
    device = args.device.type
    # Older versions of Transformers keep it in the environment only.
    shorter = getattr(args, "mixed_precision", None) or os.environ.get(_MIXED, "no")
    return f"{device}, no autocast" if shorter == "no" else f"{device}, {shorter} autocast"


def prepare(args: Any) -> None:
    """Prepare a trainer's settings before Transformers reads them.

    On a CPU the default is float32. With several processes their group is started here with
    `ddp_timeout`, which Transformers passes on for accelerators only.
    """
    check_least(args, seed=0, learning_rate=0)
    if (
        args.use_cpu
        or parse_flag_from_env("ACCELERATE_USE_CPU")
        or not torch.accelerator.is_available()
    ):
        args.use_cpu = True
        _choose_precision(args)
        alone = (
            int(os.environ.get("WORLD_SIZE", "1")) < 2
            or "RANK" not in os.environ
            or distributed.is_initialized()
        )
        if args.ddp_backend in (None, "gloo") and not alone:
            distributed.init_process_group("gloo", timeout=timedelta(seconds=args.ddp_timeout))


def _choose_precision(args: Any) -> None:
    """On a CPU bfloat16 is used where it is asked for, and where it is faster. By default it is
    not: it takes twice the memory, and policies of a few million parameters gain no time.
    """
    launched_in_bf16 = os.environ.get(_MIXED) == "bf16"
    if args.bf16 is None:
        args.bf16 = launched_in_bf16
    if args.bf16 and not faster_in_bf16():
        logger.warning(
            "bf16 is switched off: this processor does not multiply bfloat16 numbers much faster "
            "than float32 ones"
        )
        args.bf16 = False
    if launched_in_bf16 and not args.bf16:
        os.environ[_MIXED] = "no"  # it would switch it on again


def hide_token(args: Any) -> None:
    """Move the Hub's token from the settings to the environment, since trainers pickle their
    settings beside the policy.
    """
    model_token = (args.model_init_kwargs or {}).pop("token", None)
    token = args.hub_token or model_token
    if token:
        os.environ["HF_TOKEN"] = str(token)
    args.hub_token = None


@dataclass
class SearchSFTConfig(SFTConfig):
    """TRL's `SFTConfig`, which also works on CPUs, and keeps no token of the Hub."""

    def __post_init__(self) -> None:
        prepare(self)
        super().__post_init__()
        hide_token(self)


def check_vllm(args: GRPOConfig, device: str | None = None) -> None:
    """Raise `ConfigError` for settings that rollouts by vLLM cannot work with, or would ignore.

    `device` is the type of the device that trains. With it, it is also an error if vLLM is not
    installed, or the weights cannot be sent to it.
    """
    if not args.use_vllm:
        return
    check_choices(args, {"vllm_mode": tuple(_USED)})
    server = args.vllm_mode == "server"
    if not server and args.vllm_tensor_parallel_size != 1:
        raise ConfigError(
            f"vllm_tensor_parallel_size={args.vllm_tensor_parallel_size}: processes of one engine "
            "wait for each other: start a server over several GPUs"
        )
    if not server and args.vllm_enable_sleep_mode:
        raise ConfigError(
            "vllm_enable_sleep_mode: it would sleep between two turns: lower "
            "vllm_gpu_memory_utilization"
        )
    settings = [field for field in fields(GRPOConfig) if field.name.startswith("vllm_")]
    changed = [field.name for field in settings if getattr(args, field.name) != field.default]
    used = _BOTH | _USED[args.vllm_mode]
    ignored = [name for name in changed if name.removeprefix("vllm_") not in used]
    if ignored:
        where = " and give it to the server's command" if server else ""
        raise ConfigError(
            f"{', '.join(ignored)}: ignored with vllm_mode {args.vllm_mode!r}; leave unset{where}"
        )
    if args.temperature > VLLM.hottest:
        raise ConfigError(f"vLLM takes temperatures up to {VLLM.hottest:g}")
    # A dry run names no device: it needs neither vLLM nor a GPU
    if device is not None and find_spec("vllm") is None:
        raise ConfigError(
            "use_vllm: vLLM is not installed; pip install 'faithful-search[vllm]', or set it to "
            "false"
        )
    if device in ("cpu", "mps"):
        raise ConfigError(
            "use_vllm: weights are synced to vLLM on GPUs only, and this would train on "
            f"{device!r}; set it to false"
        )


@dataclass
class PPOSettings:
    """The settings that only PPO has, with Search-R1's defaults. Of TRL's settings it reads
    `num_iterations` (its epochs), `epsilon` (its clipping) and `beta` (the weight of the KL
    divergence).
    """

    gamma: float = flag(1.0, "PPO: discount of later rewards, per token or per turn.")
    lam: float = flag(
        1.0, "PPO: λ of generalised advantage estimation. 1 uses the returns alone, 0 the value."
    )
    value_learning_rate: float = flag(1e-5, "PPO: learning rate of the value head.")
    value_weight: float = flag(1.0, "PPO: weight of the value loss.")
    value_clip: float = flag(
        0.5, "PPO: largest change of a value in one batch that its loss follows."
    )
    value_trunk: bool = flag(
        False, "PPO: give the value a model of its own, instead of the policy's last hidden state."
    )
    gae_over_turns: bool = flag(False, "PPO: estimate advantages per turn instead of per token.")
    step_rewards: bool = flag(
        False, "PPO: pay the rewards of a step at its end, not at the end of the rollout."
    )
    kl_in_reward: bool = flag(
        True, "PPO: subtract the KL penalty (beta) from the rewards. false: add it to the loss."
    )
    whiten: bool = flag(True, "PPO: scale the advantages of a batch to mean 0 and deviation 1.")


@dataclass
class SearchGRPOConfig(PPOSettings, GRPOConfig):
    """TRL's `GRPOConfig`, which also works on CPUs, with the settings of search trainers.

    Each setting is a flag of the recipes, and `metadata["help"]` of its field says what it does.
    The settings keep no token of the Hub. Raises `ConfigError` for values that are out of range, or
    that nothing would read.

    Example:
        ```python
        SearchGRPOConfig("outputs/mine", advantages="turns", llds=0.1)
        ```
    """

    rollouts: str = flag(
        "engine",
        "Who makes the rollouts: 'engine', ours, or 'trl', TRL's own loop of tool calls.",
    )
    advantages: str = flag(
        "trl",
        f"Advantage estimator: 'trl', {', '.join(CHOICES['advantages'][1:])}; see docs/credit.md.",
    )
    turn_gamma: float = flag(1.0, "Discount of what later turns earn, for --advantages turns.")
    llds: float = flag(
        0.0, "Weight of the likelihood-preserving loss (LLDS). 0 disables it; the paper uses 0.1."
    )
    verdict_weight: float = flag(
        0.0,
        "Weight λ of the probes of R_pt in the loss, with their gradient. 0, as in the paper, "
        "leaves them out.",
    )
    uniform_groups: str = flag(
        "keep",
        "What to do with questions whose rollouts are all right or all wrong: 'keep' them in the "
        "update, or 'drop' them.",
    )
    counterfactual: float = flag(
        0.0, "Fraction of each group's rollouts that run in a counterfactual world."
    )
    counterfactual_groups: str = flag(
        "paired",
        "Rollouts that --counterfactual changes: 'paired' changes some of each question, 'own' all "
        "of some questions.",
    )
    max_abstained: float = flag(
        0.5, "Fraction of a step's rollouts without a verdict at which the run stops."
    )

    def __post_init__(self) -> None:
        check_choices(self, CHOICES)
        check_least(
            self, llds=0, verdict_weight=0, value_learning_rate=0, value_weight=0, value_clip=0
        )
        check_shares(self, "turn_gamma", "counterfactual", "max_abstained", "gamma", "lam")
        refuse_unread(
            self,
            PPOSettings.__dataclass_fields__,
            reader="--advantages ppo",
            has_reader=self.advantages == PPO,
        )
        refuse_unread(
            self,
            ["turn_gamma"],
            reader=f"--advantages {' or '.join(TURN_ESTIMATORS)}",
            has_reader=self.advantages in TURN_ESTIMATORS,
        )
        refuse_unread(
            self,
            ["counterfactual_groups"],
            reader="--counterfactual above 0",
            has_reader=self.counterfactual > 0,
        )
        prepare(self)
        single = self.num_generations == 1
        if single:
            # TRL wants groups of two or more rollouts, which PPO does not need. While TRL checks
            # its settings, the whole batch is one group.
            steps = self.steps_per_generation or self.gradient_accumulation_steps
            rows = self.generation_batch_size or self.per_device_train_batch_size * steps
            if self.advantages != PPO:
                raise ConfigError(
                    "num_generations 1 is for --advantages ppo: all others compare the rollouts of "
                    "a question"
                )
            if rows < 2:
                raise ConfigError(
                    "PPO needs two rollouts a batch: raise --per_device_train_batch_size"
                )
            self.num_generations, self.num_generations_eval = rows, self.num_generations_eval or 1
        super().__post_init__()
        if single:
            self.num_generations = 1
        hide_token(self)
        check_vllm(self)
        self._check()

    def _check(self) -> None:
        ignored = [name for name in ("min_p", "generation_kwargs") if getattr(self, name)]
        if self.repetition_penalty != 1.0:
            ignored.append("repetition_penalty")
        if ignored:
            raise ConfigError(
                f"not supported by the search engine's generator: {', '.join(ignored)}; leave the "
                "default"
            )
        if self.max_tool_calling_iterations is not None:
            raise ConfigError(
                "max_tool_calling_iterations: the limits of an episode bound its turns; give "
                "--turns, or Limits(turns=…)"
            )
        if self.temperature <= 0:
            raise ConfigError(
                "temperature must be above 0: rollouts that are all alike teach nothing"
            )
        if self.save_strategy == "steps":
            self._check_save_steps()
        if self.advantages not in ("trl", PPO) and self.scale_rewards != "group":
            raise ConfigError(
                f"--scale_rewards {self.scale_rewards} is for --advantages trl, not "
                f"{self.advantages}"
            )
        if self.advantages == PPO and self.uniform_groups != "keep":
            raise ConfigError("PPO has its own advantages, of every rollout: keep groups")
        if self.advantages == PPO and self.use_vllm:
            raise ConfigError("--use_vllm true: vLLM would be given PPO's value with the weights")

    def _check_save_steps(self) -> None:
        steps, cycle = self.save_steps, self._cycle
        if steps < 1:
            raise ConfigError(f"save_steps is a whole number of steps, 1 or more, not {steps:g}")
        if not self.between_generations(steps):
            raise ConfigError(
                f"save_steps={steps:g} would save in the middle of a generation's {cycle} batches, "
                "and a resumed run would differ; make save_steps x gradient_accumulation_steps a "
                f"multiple of {cycle}"
            )

    @property
    def _cycle(self) -> int:
        return (self.steps_per_generation or 1) * self.num_iterations

    def between_generations(self, step: float) -> bool:
        """Whether all generated rollouts have been used after this many optimizer steps, so that a
        run can be resumed there.
        """
        return step * self.gradient_accumulation_steps % self._cycle == 0

    def rollouts_after(self, step: int) -> int:
        """The number of rollouts that all processes have sampled after this many optimizer
        steps.
        """
        generations = math.ceil(step * self.gradient_accumulation_steps / self._cycle)
        return generations * cast(int, self.generation_batch_size)

    def steps_per_epoch(self, questions: int) -> int:
        """The number of optimizer steps in a pass over this many questions, without an incomplete
        last batch. `Warmup.parse` takes it.
        """
        batch = cast(int, self.generation_batch_size) // cast(int, self.num_generations)
        return max(
            1, math.ceil(questions // batch * self._cycle / self.gradient_accumulation_steps)
        )


@dataclass
class PokeeConfig(SearchGRPOConfig):
    """Settings of PokeeResearch's training: RLOO by default."""

    advantages: str = flag(
        "leave_one_out", "Advantage estimator: 'leave_one_out' (RLOO), 'trl' or 'group_relative'."
    )
