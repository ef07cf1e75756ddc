"""What doors share that run the tools themselves: the trajectory of an episode so far."""

from collections.abc import Sequence

from ..trajectory import Step, Trajectory


def trajectory_of(
    steps: Sequence[Step], question: str | None, answers: tuple[str, ...], dialect: str
) -> Trajectory:
    """The trajectory of these steps. Its answer is the last one, and its evidence the
    environment's: no text of the policy can be any.

    Example:
        >>> trajectory_of([Step(answer="Lima")], "Capital of Peru?", ("Lima",), "openai").answer
        'Lima'
    """
    given_answers = [step.answer for step in steps if step.answer is not None]
    return Trajectory(
        steps=tuple(steps),
        question=question,
        answer=given_answers[-1] if given_answers else None,
        answers=answers,
        dialect=dialect,
        evidence_from="environment",
    )
