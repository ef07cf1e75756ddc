"""Proof-of-Use's objective as it is published."""

from ...rewards import Mix, pou_mix

DIALECT = "pou"


def proof_of_use_paper(alpha: float | None = None) -> Mix:
    """Proof-of-Use's objective in its published form.

    ```
    R = (R_cite + R_pt + R_a)/3    if the format is valid, else -1
    R_a = α·R_ans + (1 - α)·R_anc
    ```

    Proof-of-Use, sections 3.3.1 to 3.3.4, equations 2 to 10. It asks the policy for p(yes).
    Simplified: R_ans and R_anc compare strings where the paper asks a model, and lures are made
    from a template.

    Args:
        alpha: a constant weight of R_ans; by default it adapts to the outcomes of training, as the
            paper's does.

    How to hack it: say no to searches that can bring nothing, until a lure tests it, and then
    search for the answer that is remembered (`lure_farming`).
    """
    return pou_mix(alpha=alpha, paper=True)
