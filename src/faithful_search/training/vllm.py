"""Training with vLLM: the generator that samples the rollouts, and a check that vLLM really gets
the weights.
"""

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

# `check_sync` samples so many texts of so many tokens
_ROWS = 4
_TOKENS = 16
ROUNDING = 0.2
"""The largest difference of log-probs, in nats per token, that `check_sync` takes for rounding.

`check_sync` changes the embedding, compares, restores it and compares again. In bfloat16 the
difference is about 0.05, and up to 0.5 with the changed embedding, which moves the model itself by
about 3. Where a layer was not updated it is about 10.
"""


def policy_generator(trainer: GRPOTrainer) -> VLLM:
    """The generator of this process: the trainer's engine, or its server, which every process asks
    on its own.
    """
    args, tokenizer = cast(GRPOConfig, trainer.args), trainer.processing_class
    if args.vllm_mode == "colocate":
        return VLLMGenerator(trainer.vllm_generation.llm, tokenizer)
    return VLLMServer(_url(args), tokenizer, args.vllm_server_timeout)


@contextmanager
def joining_server(args: GRPOConfig) -> Iterator[None]:
    """A context in which TRL's trainer is made: the server is up, and joining it has a time-out.

    TRL sets no time-out, and would wait forever for a server that still waits for a run that was
    killed. Raises `GeneratorError` if the server is not up.
    """
    if not args.use_vllm or args.vllm_mode != "server":
        yield
        return
    wait_for_server(_url(args), args.vllm_server_timeout)
    # On the class, since TRL makes its client in the constructor of its trainer
    client: Any = VLLMClient
    join = client.init_communicator
    client.init_communicator = _bounded(join, args, "did not let this run join it")
    try:
        yield
    finally:
        client.init_communicator = join


def bound_sync(trainer: GRPOTrainer) -> None:
    """Give weight syncs with a server a time-out, too. If the server refuses one, they raise
    `GeneratorError`.
    """
    args = cast(GRPOConfig, trainer.args)
    # Only the main process talks to the server
    if args.vllm_mode == "server" and trainer.accelerator.is_main_process:
        generation = cast(Any, trainer.vllm_generation)
        generation.sync_weights = _bounded(
            generation.sync_weights, args, "did not take the weights"
        )


def sync_weights(trainer: GRPOTrainer) -> None:
    """Send the policy's weights to vLLM. Every process calls this and waits until they are
    there.
    """
    trainer.vllm_generation.sync_weights()
    trainer.accelerator.wait_for_everyone()


class SyncCheck(NamedTuple):
    """Mean absolute differences of log-probs, in nats per token.

    Attributes:
        changed: between vLLM and the training model, with the changed embedding.
        restored: between both with the restored embedding.
        moved: of the training model, between the changed and the restored embedding.
    """

    changed: float
    restored: float
    moved: float


def check_sync(
    model: Any, sync: Callable[[], None], sampler: Generator, scorer: Generator, prompt: list[int]
) -> SyncCheck:
    """Check that vLLM samples from the training model: change the input embedding, sync, and
    compare the log-probs that both give to vLLM's tokens; then do the same with the embedding
    restored.

    With an engine that ignores updates, or keeps old values in a tied output layer, training would
    use samples of another policy without any error. The change flips the sign of every other row,
    so that it can be taken back bit for bit. Every process calls this.

    Args:
        model: the training model, unwrapped. For LoRA the embedding of the base model changes.
        sync: sends the weights to vLLM.
        sampler: vLLM.
        scorer: the training model as a generator.
        prompt: token ids of any prompt.

    Raises:
        ConfigError: if they disagree.
        FaithfulSearchError: in every process, if one of them could not sample.
    """
    failures: list[FaithfulSearchError] = []

    def sample() -> tuple[list[list[int]], list[float], list[float]]:
        """vLLM's tokens with the log-probs of both. After a failure it scores all the same, since
        the other processes do.
        """
        try:
            rows = sampler.generate(
                [prompt] * _ROWS, Sampling(max_new_tokens=_TOKENS, logprobs=True)
            )
        except FaithfulSearchError as error:
            rows = []
            failures.append(error)
        ids = [row.ids for row in rows]
        sampled = [value for row in rows for value in row.logprobs or []]
        return ids, sampled, _logprobs(scorer, prompt, ids)

    # The embedding is a layer that every token passes, and of which engines keep a tied copy
    _flip(model)
    try:
        sync()
        ids, sampled, scored = sample()
    finally:
        _flip(model)
    sync()
    _, sampled_restored, scored_restored = sample()
    # Of the first tokens, but with the restored embedding
    before = _logprobs(scorer, prompt, ids)
    _reshard(model)
    result = SyncCheck(
        changed=_difference(sampled, scored),
        restored=_difference(sampled_restored, scored_restored),
        moved=_difference(scored, before),
    )
    for check, failed in gather_object([(result, failures)]):
        if failed:
            raise failed[0]
        # Rounding has more effect with the changed embedding, so that the difference is compared
        # with how far the change has moved the model
        bound = check.moved / 4
        follows = check.changed <= bound and check.restored <= min(ROUNDING, bound)
        if not follows:  # also if a difference is NaN
            raise ConfigError(
                "vLLM does not follow the training model: with a changed embedding its log-probs "
                f"are off by {check.changed:.3g} nats a token (at most {bound:.3g}), restored by "
                f"{check.restored:.3g} (at most {ROUNDING:g}). Take another version of vLLM or "
                "vllm_mode, or train with use_vllm: false"
            )
    return result


def _logprobs(scorer: Generator, prompt: list[int], rows: Sequence[list[int]]) -> list[float]:
    """The log-prob of each token of these rows, which go on from the prompt."""
    contexts: list[list[int]] = []
    choices: list[list[list[int]]] = []  # at each place the one choice of its one token
    for row in rows:
        for place, token in enumerate(row):
            contexts.append(prompt + row[:place])
            choices.append([[token]])
    probs = scorer.choice_probs(contexts, choices)
    smallest = torch.finfo(torch.float32).tiny  # p may have underflowed to 0
    return [log(max(p, smallest)) for [p] in probs]


def _difference(first: Sequence[float], second: Sequence[float]) -> float:
    """The mean absolute difference of log-probs; NaN if nothing could be sampled. vLLM may give
    fewer than there are tokens.
    """
    differences = [abs(a - b) for a, b in zip(first, second, strict=False)]
    return fmean(differences) if differences else float("nan")


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
    """Under FSDP 2, drop the whole copies of parameters that a forward pass has left: they hide the
    shards.
    """
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _bounded(call: Callable[..., None], args: GRPOConfig, failed: str) -> Callable[..., None]:
    subject = f"the vLLM server at {_url(args)} {failed}"
    advice = f"see its log and start it again; {RESUME}"

    def bounded(*args_: Any, **kwargs: Any) -> None:
        late = f"{subject} within {args.vllm_server_timeout:g} s (vllm_server_timeout); {advice}"
        with ending_after(args.vllm_server_timeout, late):
            try:
                call(*args_, **kwargs)
            except Exception as error:
                # TRL raises a plain Exception if the server refuses something
                if isinstance(error, OSError) or type(error) is Exception:
                    raise GeneratorError(f"{subject} ({error}); {advice}") from error
                raise

    return bounded


def _url(args: GRPOConfig) -> str:
    return args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
