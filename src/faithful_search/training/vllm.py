"""Training with vLLM: what samples the rollouts, and a test that the weights really arrive there."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import log
from statistics import fmean
from typing import Any, NamedTuple, cast

import torch
from accelerate.utils import gather_object
from torch.distributed.fsdp import FSDPModule
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_client import VLLMClient

from ..errors import ConfigError, FaithfulSearchError, GeneratorError
from ..inference.base import Generator, Sampling
from ..inference.vllm import VLLM, VLLMGenerator, VLLMServer, wait_for_server
from .endings import RESUME, ending_after

_ROWS, _TOKENS = 4, 16  # what `check_sync` samples each time
ROUNDING = 0.2
"""Nats a token by which log-probs may differ with the embedding restored: kernels in bfloat16 do by about 0.05, and by
up to 0.5 with the embedding changed, which moves the model by about 3; samples of a stale layer are off by 10."""


def policy_generator(trainer: GRPOTrainer) -> VLLM:
    """What samples the policy in this process: the trainer's engine, or its server, which each process asks alone."""
    args, tokenizer = cast(GRPOConfig, trainer.args), trainer.processing_class
    if args.vllm_mode == "colocate":
        return VLLMGenerator(trainer.vllm_generation.llm, tokenizer)
    return VLLMServer(_url(args), tokenizer, args.vllm_server_timeout)


@contextmanager
def joining_server(args: GRPOConfig) -> Iterator[None]:
    """Within the block TRL's trainer can be made: the server is up (else `GeneratorError`), and joining it has a
    time-out. TRL sets none, and would wait forever for a server that still waits for a run that was killed."""
    if not args.use_vllm or args.vllm_mode != "server":
        yield
        return
    wait_for_server(_url(args), args.vllm_server_timeout)
    client: Any = VLLMClient  # the class: TRL makes its client within its trainer's constructor
    join = client.init_communicator
    client.init_communicator = _bounded(join, args, "did not let this run join it")
    try:
        yield
    finally:
        client.init_communicator = join


def bound_sync(trainer: GRPOTrainer) -> None:
    """Bound weight syncs with a server as `joining_server` does; what the server refuses is a `GeneratorError`."""
    args = cast(GRPOConfig, trainer.args)
    if (
        args.vllm_mode == "server" and trainer.accelerator.is_main_process
    ):  # the only one that talks to it
        generation = cast(Any, trainer.vllm_generation)
        generation.sync_weights = _bounded(
            generation.sync_weights, args, "did not take the weights"
        )


def sync_weights(trainer: GRPOTrainer) -> None:
    """Bring the policy's weights to vLLM; every process calls it and waits until they are there."""
    trainer.vllm_generation.sync_weights()
    trainer.accelerator.wait_for_everyone()


class SyncCheck(NamedTuple):
    """Mean absolute differences of log-probs, in nats per token: vLLM's from the training model's, with a changed and
    with the restored embedding, and the training model's own before and after the change."""

    changed: float
    restored: float
    moved: float


def check_sync(
    model: Any, sync: Callable[[], None], sampler: Generator, scorer: Generator, prompt: list[int]
) -> SyncCheck:
    """Change the input embedding, sync, and compare vLLM's log-probs of its tokens with the training model's; then the
    same with the embedding restored.

    An engine that ignores updates, or keeps a tied output layer on old values, would train without an error on samples
    of another policy. The sign of every other row is flipped, so that it comes back bit for bit. Every process calls
    this, with any prompt. `model` is the training model, unwrapped (for LoRA the base embedding changes), `sync` brings
    its weights to vLLM, `sampler` is vLLM and `scorer` the training model as a generator.

    Raises:
        ConfigError: if they disagree.
        FaithfulSearchError: in every process, if one of them could not sample.
    """
    failures: list[FaithfulSearchError] = []

    def sample() -> tuple[list[list[int]], list[float], list[float]]:
        """Tokens with the log-probs of both; after a failure it still scores, because the other processes do."""
        try:
            rows = sampler.generate(
                [prompt] * _ROWS, Sampling(max_new_tokens=_TOKENS, logprobs=True)
            )
        except FaithfulSearchError as error:
            rows = []
            failures.append(error)
        ids = [row.ids for row in rows]
        return (
            ids,
            [value for row in rows for value in row.logprobs or []],
            _logprobs(scorer, prompt, ids),
        )

    # The embedding: a layer that every token goes through, and the one that engines keep a tied copy of.
    _flip(model)
    try:
        sync()
        ids, sampled, scored = sample()
    finally:
        _flip(model)
    sync()
    _, *restored = sample()
    before = _logprobs(scorer, prompt, ids)  # of the same tokens, with the restored embedding
    _reshard(model)
    found = SyncCheck(
        _difference(sampled, scored), _difference(*restored), _difference(scored, before)
    )
    for check, failed in gather_object([(found, failures)]):
        if failed:
            raise failed[0]
        # Rounding has more effect with the changed embedding: it is compared with how far the change moved the model.
        bound = check.moved / 4
        if not (
            check.changed <= bound and check.restored <= min(ROUNDING, bound)
        ):  # NaN does not agree
            off = f"{check.changed:.3g} nats a token (at most {bound:.3g}), restored by {check.restored:.3g}"
            raise ConfigError(
                f"vLLM does not follow the training model: with a changed embedding its log-probs are off by {off} (at "
                f"most {ROUNDING:g}). Take another version of vLLM or vllm_mode, or train with use_vllm: false"
            )
    return found


def _logprobs(scorer: Generator, prompt: list[int], rows: Sequence[list[int]]) -> list[float]:
    places = [(row[:place], row[place]) for row in rows for place in range(len(row))]
    probs = scorer.choice_probs(
        [prompt + before for before, _ in places], [[[token]] for _, token in places]
    )
    return [
        log(max(p, torch.finfo(torch.float32).tiny)) for [p] in probs
    ]  # p may have underflowed to 0


def _difference(some: Sequence[float], others: Sequence[float]) -> float:
    pairs = list(zip(some, others, strict=False))  # what could not be sampled is empty
    return fmean(abs(one - other) for one, other in pairs) if pairs else float("nan")


@torch.no_grad()
def _flip(model: Any) -> None:
    """Flip the sign of every other row of the input embedding, in each process's own shard."""
    _reshard(model)
    weight = model.get_input_embeddings().weight
    if hasattr(weight, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
            weight.data[::2].neg_()
    else:
        local = weight.to_local() if hasattr(weight, "to_local") else weight
        local[::2].neg_()


def _reshard(model: Any) -> None:
    """Under FSDP 2 a forward pass leaves a whole copy of each parameter, which hides the shard itself."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _bounded(call: Callable[..., None], args: GRPOConfig, failed: str) -> Callable[..., None]:
    subject, advice = (
        f"the vLLM server at {_url(args)} {failed}",
        f"see its log and start it again; {RESUME}",
    )

    def bounded(*given: Any, **named: Any) -> None:
        late = f"{subject} within {args.vllm_server_timeout:g} s (vllm_server_timeout); {advice}"
        with ending_after(args.vllm_server_timeout, late):
            try:
                call(*given, **named)
            except Exception as error:
                if (
                    isinstance(error, OSError) or type(error) is Exception
                ):  # TRL's own for what a server refuses
                    raise GeneratorError(f"{subject} ({error}); {advice}") from error
                raise

    return bounded


def _url(args: GRPOConfig) -> str:
    return args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
