"""Proof-of-Use's objective as this package ships it."""

from ...rewards import Mix, pou_mix

DIALECT = "pou"


def proof_of_use(alpha: float | None = None) -> Mix:
    """Proof-of-Use's objective in the form that this package ships: `rewards.pou_mix()`.

    ```
    R = (R_cite + R_pt + R_a)/3    if the format is valid, else -1
    R_a = α·R_ans + (1 - α)·R_anc
    all four count on right answers alone that the cited evidence holds
    ```

    Proof-of-Use, section 3.3.4, equation 10, with three settings of ours that `pou_mix` explains
    and `proof_of_use_paper` does not have. It asks the policy for p(yes).

    Args:
        alpha: a constant weight of R_ans; by default it adapts to the outcomes of training.

    How to hack it: say no to searches that can bring nothing, until a lure tests it, and then
    search for the answer that is remembered (`lure_farming`).
    """
    return pou_mix(alpha=alpha)
