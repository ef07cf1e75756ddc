"""How a judge is distilled, as flags: read before torch is imported."""

from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigError
from ..flags import check_least, check_literals, flag, refuse_unread
from ..training.refusing import check_dtype

Head = Literal["encoder", "generator", "spans"]
Balance = Literal["none", "weights", "resample"]


@dataclass
class Distillation:
    """How a judge is distilled; learning rate, batches and steps are the trainer's own settings.
    The `encoder` head becomes an `nli` judge, `spans` a `span` judge.

    `save_dtype` is by default that of training; the temperature is fitted to the judge as it loads,
    whatever `measure_dtype` is. Values that do not fit together are a `ConfigError`.
    """

    head: Head = flag(
        "encoder",
        "Kind of judge: 'encoder' (a classifier), 'generator' (the odds of 1 and 0) or 'spans' (it "
        "marks what is not supported, and runs without torch).",
    )
    balance: Balance = flag(
        "resample",
        "Balance of the labels: 'resample' the rarer ones, 'weights' (encoder only) or 'none'.",
    )
    validation: float = flag(
        0.1, "Share of the groups that are set aside to stop and calibrate by."
    )
    patience: int = flag(5, "Evaluations without a better kappa after which it stops. 0: never.")
    freeze_embeddings: bool = flag(False, "Freeze an encoder's embeddings.")
    freeze_layers: int = flag(0, "Number of an encoder's lowest layers that are frozen.")
    window: int = flag(384, "Number of tokens of a premise that an encoder reads at once.")
    stride: int = flag(64, "Number of tokens that neighbouring windows share.")
    hypothesis_window: int = flag(
        96, "Number of tokens of a hypothesis that the 'spans' head reads at once."
    )
    token_weight: float = flag(
        0.5, "Weight of the tokens' loss beside the pair's, with the 'spans' head."
    )
    head_learning_rate: float = flag(
        1e-3, "Learning rate of what is new beside the encoder, with the 'spans' head."
    )
    save_dtype: str | None = flag(
        None, "Data type of the saved weights, such as float16. By default that of training."
    )
    measure_dtype: str | None = flag(
        None,
        "Data type in which the judges are measured, such as bfloat16. By default as they load.",
    )
    untrained: bool = flag(True, "Also measure the model before training.")

    def __post_init__(self) -> None:
        check_literals(self)
        refuse_unread(self, ["stride"], reader="--head encoder", has_reader=self.head == "encoder")
        generates = self.head == "generator"
        if self.head != "encoder" and self.balance == "weights":
            raise ConfigError(
                f"the {self.head} head learns with a loss of its own, without weights of labels: "
                "balance by 'resample'"
            )
        if self.head == "spans" and self.measure_dtype is not None:
            raise ConfigError(
                "a judge of the 'spans' head is measured as it runs, in 8 bits: leave out "
                "measure_dtype"
            )
        if generates and (self.freeze_embeddings or self.freeze_layers):
            raise ConfigError("freeze_… goes with the encoder head; a generator takes LoRA")
        if not 0 < self.validation < 1:
            raise ConfigError(
                f"validation is a share of the pairs, above 0 and below 1, got {self.validation}"
            )
        check_least(self, patience=0, freeze_layers=0)
        check_dtype(self.save_dtype)
        check_dtype(self.measure_dtype)
