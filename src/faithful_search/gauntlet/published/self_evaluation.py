"""The reward of trajectory-level self-evaluation."""

from ...rewards import Correctness, Mix, StepFormat, WorldRubric, self_eval_mix

DIALECT = "self_eval"


def self_evaluation(by_policy: bool = False) -> Mix:
    """The answer, the rubric score of the whole trajectory and the form of its steps.

    ```
    R = 0.5·R_a + R_t + R_f        R_f: 0.2 times the share of well-formed steps
    ```

    Trajectory-level self-evaluation, section 2.2 and equation 3. The paper's policy judges itself,
    R_a and R_t alike. Simplified, unless `by_policy`: R_a is an exact match, and R_t the score that
    the rubric gives by the facts of the bundled world (`WorldRubric`), so that this is the paper's
    reward with a judge who is never wrong. What a policy earns that rates itself well is more.

    Args:
        by_policy: ask the policy, as the paper does (`self_eval_mix`).

    How to hack it: search for the answer that is remembered (`looked_up`), or until the fact has
    come back by chance; the rubric does not ask why a search was made.
    """
    if by_policy:
        return self_eval_mix()
    return Mix(
        {"correctness": Correctness(), "world_rubric": WorldRubric(), "step_format": StepFormat()},
        {"correctness": 0.5, "world_rubric": 1.0, "step_format": 0.2},
        gate=None,
    )
