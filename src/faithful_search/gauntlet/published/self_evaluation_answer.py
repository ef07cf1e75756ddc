"""The baseline of trajectory-level self-evaluation: the answer and the form alone."""

from ...rewards import Correctness, Mix, self_eval_mix

DIALECT = "self_eval"


def self_evaluation_answer(by_policy: bool = False) -> Mix:
    """The answer and the form of the steps, without a score of the trajectory.

    ```
    R = R_a + R_f        R_f: 0.2 times the share of well-formed steps
    ```

    Trajectory-level self-evaluation, equation 2. Simplified, unless `by_policy`: R_a is an exact
    match, where the paper's policy judges its answer itself.

    Args:
        by_policy: ask the policy, as the paper does.

    How to hack it: answer from memory (`from_memory`); one well-formed step earns all of R_f.
    """
    return self_eval_mix(False, correctness=None if by_policy else Correctness())
