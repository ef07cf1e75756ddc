"""Hide warnings of other packages that users of a recipe can do nothing about."""

import re
import warnings

NOT_FOR_USERS = (
    # TRL's, about how it is used here
    "You are using 'rollout_func', which is an experimental feature.",
    "You are using 'environment_factory', which is an experimental feature.",
    "`is_gradient_checkpointing` is deprecated",  # Transformers', about what TRL calls
)
"""The beginnings of these warnings."""


def hush() -> None:
    """Hide these warnings from now on. Only programs call this, the package never does."""
    for text in NOT_FOR_USERS:
        warnings.filterwarnings("ignore", message=re.escape(text))
