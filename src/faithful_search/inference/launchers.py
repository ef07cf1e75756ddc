"""How a program tells that a launcher has started it."""

LAUNCHERS = frozenset(("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"))
"""What `accelerate launch` and `torchrun` put into the environment of what they start."""
