"""Models opened from the Hub or a directory, in one way for judges and encoders, and the CPU
threads they run on.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import find_adapter_config_file
from transformers.utils.logging import disable_progress_bar

from ..errors import WeightsError
from .hub_files import check_there, file_beside
from .launchers import LAUNCHERS
from .transformers import TransformersGenerator, positions_of

_SAYS_NOTHING = 10**6  # tokenizers without a limit name a huge one
# What the names of Transformers' classes have in them that write text
_WRITING = ("CausalLM", "LMHead", "ConditionalGeneration", "BertGenerationDecoder")


def open_model(
    auto: Any,
    name: str,
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    subfolder: str = "",
    trust_remote_code: bool = False,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """The model in eval mode, and its tokenizer.

    Args:
        auto: the Transformers class that opens it, such as `AutoModelForSequenceClassification`.
        name: a Hub id or a directory, that of a PEFT adapter included.
        device: a torch device; by default a GPU where there is one.
        dtype: by default float32 on a CPU and the checkpoint's own elsewhere.
        revision, subfolder: where in the repository the model lies.
        trust_remote_code: whether Python code beside the model may be run; else a model that needs
            some is refused.
        **kwargs: further arguments of the class's `from_pretrained`, such as
            `attn_implementation`.

    Raises:
        WeightsError: when it cannot be opened.
    """
    device, dtype = device_and_dtype(device, dtype)
    where: dict[str, Any] = {
        "revision": revision,
        "subfolder": subfolder,
        "trust_remote_code": trust_remote_code,
    }
    model = read_model(auto, name, dtype=dtype, **where, **kwargs)
    return model.to(device).eval(), read_tokenizer(name, **where)


def device_and_dtype(
    device: str | None, dtype: str | torch.dtype | None
) -> tuple[str, str | torch.dtype]:
    """Where and in which precision a model runs, with the defaults of `open_model`; on a CPU the
    threads are chosen, too.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    on_cpu = str(device).startswith("cpu")
    if on_cpu:
        choose_threads()
    return device, dtype or ("float32" if on_cpu else "auto")


def read_tokenizer(name: str, **where: Any) -> Any:
    """The tokenizer of a model; an adapter that has none is written in its base model's. Arguments
    and errors as of `open_model`.
    """
    revision, subfolder = where.get("revision"), where.get("subfolder", "")
    check_there(name, revision)
    with opening(f"the tokenizer of {name!r}"):
        has_tokenizer = bool(get_tokenizer_config(name, revision=revision, subfolder=subfolder))
    adapter = f"{subfolder}/adapter_config.json" if subfolder else "adapter_config.json"
    if not has_tokenizer and file_beside(name, adapter, revision):
        base = adapter_base(name, revision, subfolder)
        if base is not None:
            name, revision = base
            where = {**where, "revision": revision, "subfolder": ""}
    return _opened(AutoTokenizer, f"the tokenizer of {name!r}", name, **where)


def read_config(name: str, **where: Any) -> Any:
    """The Transformers configuration of a model; arguments and errors as of `open_model`."""
    return _opened(AutoConfig, f"the model {name!r}", name, **where)


def _opened(
    auto: Any, subject: str, name: str, *, trust_remote_code: bool = False, **where: Any
) -> Any:
    check_there(name, where.get("revision"))
    with opening(subject):
        # given either way: Transformers would ask on the standard input
        return auto.from_pretrained(name, trust_remote_code=trust_remote_code, **where)


@contextmanager
def opening(subject: str, hint: str = "") -> Iterator[None]:
    """Errors of `from_pretrained` for wrong names and broken files become a `WeightsError` of one
    line.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise WeightsError(
            f"cannot open {subject}: {' '.join(str(error).split())}{hint}"
        ) from error


def read_model(
    auto: Any,
    name: str,
    *,
    revision: str | None = None,
    subfolder: str = "",
    trust_remote_code: bool = False,
    trainable: bool = False,
    **kwargs: Any,
) -> Any:
    """As `open_model`, the model alone, left where it is loaded; the weights of an adapter may be
    `trainable`.
    """
    kwargs = {"trust_remote_code": trust_remote_code, **kwargs}
    base = adapter_base(name, revision, subfolder)
    if base is None:
        with opening(f"the model {name!r}"):
            return auto.from_pretrained(name, revision=revision, subfolder=subfolder, **kwargs)
    from peft import PeftModel

    # `auto.from_pretrained` would open it too, but leaves out what is not a plain LoRA matrix
    # (DoRA's magnitudes)
    moved = "; where that has moved, correct `base_model_name_or_path` in adapter_config.json"
    with opening(f"the base model {base[0]!r}, which the adapter in {name!r} belongs to", moved):
        model = auto.from_pretrained(base[0], revision=base[1], **kwargs)
    with opening(f"the adapter in {name!r}"):
        return PeftModel.from_pretrained(
            model, name, revision=revision, subfolder=subfolder, is_trainable=trainable
        )


def adapter_base(
    name: str, revision: str | None = None, subfolder: str = ""
) -> tuple[str, str | None] | None:
    """Name and revision of the model that a PEFT adapter was made for; `None` when there is no
    adapter at `name`.
    """
    check_there(name, revision)
    with opening(f"the model {name!r}"):
        file = find_adapter_config_file(name, revision=revision, subfolder=subfolder)
        if file is None:
            return None
        config = json.loads(Path(file).read_text(encoding="utf-8"))
        if not isinstance(config, dict) or not config.get("base_model_name_or_path"):
            raise ValueError("its adapter_config.json names no `base_model_name_or_path`")
    return str(config["base_model_name_or_path"]), config.get("revision")


def open_generator(name: str, **kwargs: Any) -> TransformersGenerator:
    """A causal LM, or a PEFT adapter's directory, as a generator; arguments and errors as
    `open_model`. A model that was not made to write text is an error, too.
    """
    model, tokenizer = open_model(AutoModelForCausalLM, name, **kwargs)
    classes = _classes_without_head(model.config)
    if classes:
        raise WeightsError(
            f"the model {name!r} is a {classes}, which does not write text: as a causal LM it "
            "would have a head with random weights; name a causal LM (a classifier judges with "
            "the judge 'nli', an encoder with 'embedding')"
        )
    return TransformersGenerator(model, tokenizer)


def _classes_without_head(config: Any) -> str:
    """The classes that a model was saved as, if none of them has a head that writes; else empty,
    also where the configuration does not say.
    """
    if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return ""
    classes = " ".join(config.architectures or [])
    return "" if any(name in classes for name in _WRITING) else classes


def seed_sampling(seed: int) -> None:
    """Seed what is sampled from now on, so that it is the same each time. Also hide the progress
    bars of loading models.
    """
    disable_progress_bar()
    torch.manual_seed(seed)


def max_tokens(model: Any, tokenizer: Any) -> int | None:
    """How many tokens, special ones included, model and tokenizer take; `None` when neither
    says.
    """
    limits = [tokenizer.model_max_length, positions_of(model.config), embedded_positions(model)]
    return min((limit for limit in limits if limit and limit < _SAYS_NOTHING), default=None)


def embedded_positions(model: Any) -> int | None:
    """How many positions a model has vectors for; `None` where positions are not embedded."""
    counts = []
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and its kin count positions from behind the padding token's
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            counts.append(module.num_embeddings - first)
    return min(counts, default=None)


WATCHED = 0.5  # seconds, for which cores are idle or not
_chosen = False


def choose_threads(count: int = 0) -> int:
    """Set torch's threads, and return how many there are: `count`, or at 0 as many as `idle_cores`.

    Threads that share a core wait for each other: two on a busy machine can take ten times as long
    as one.

    At 0 what `OMP_NUM_THREADS` says stays (a launcher's 1 is what it says where nobody said
    anything), and so does what was set before: by then this program itself keeps cores busy.
    """
    global _chosen
    variable = os.environ.get("OMP_NUM_THREADS")
    launched = variable == "1" and not LAUNCHERS.isdisjoint(os.environ)
    if count:
        torch.set_num_threads(count)
    elif not _chosen and launched:
        torch.set_num_threads(idle_cores())
    elif not _chosen and variable is None:
        torch.set_num_threads(min(torch.get_num_threads(), idle_cores()))
    _chosen = True
    return torch.get_num_threads()


def idle_cores() -> int:
    """This process's share of the cores that it may use and that are idle now; at least 1.

    They are watched for half a second, in which this process waits. A load average would still
    count an installation that has ended, and this program's own imports. The launcher's other
    processes may still be importing: they do not count either.
    """
    usable = set(range(os.cpu_count() or 1))
    if hasattr(os, "sched_getaffinity"):
        usable = os.sched_getaffinity(0)
    percents = psutil.cpu_percent(interval=WATCHED, percpu=True)
    idle = sum(1 - percent / 100 for core, percent in enumerate(percents) if core in usable)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # Each of the other processes may keep a core busy with its imports
    shared = min(len(usable), round(idle) + processes - 1)
    return max(1, shared // processes)
