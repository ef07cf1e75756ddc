"""What lets a build fail: requirements that an audit must meet, and regressions between audits.

A gate never passes in silence: a result without a value meets no requirement, and two audits that
cannot show a regression have not shown that there is none.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .metrics import about, without_ending
from .report import MIN_PAIRS, interval
from .stats import Estimate

if TYPE_CHECKING:
    from .comparison import Comparison

SHARE = (0.0, 1.0)
"""The range of a result that does not give its own."""
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(r"(\w++)\s*+(>=|<=|==|>|<)\s*+(\S++)")
_ROUNDING = 1e-9
"""A mean that differs by less from what is required is equal to it: 0.7999999999999999 is 0.8."""


@dataclass(frozen=True)
class Requirement:
    """What a result must be, as `answer_support >= 0.8`.

    `name` is a result's (`answer_support_lexical`), or without the ending that says what made it.
    """

    name: str
    operator: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> "Requirement":
        """Read one; raises `ConfigError` for anything else.

        Example:
            >>> Requirement.parse("answer_support >= 0.8")
            Requirement(name='answer_support', operator='>=', bound=0.8)
        """
        form = _FORM.fullmatch(text.strip())
        if form is None:
            operators = ", ".join(_OPERATORS)
            raise ConfigError(
                f"require takes a result, one of {operators}, and a number, as "
                f"'answer_support >= 0.8'; got {text!r}"
            )
        name, sign, number = form.groups()
        try:
            bound = float(number)
        except ValueError:
            bound = math.nan
        if not math.isfinite(bound):
            raise ConfigError(f"require compares with a number, as 0.8; got {number!r} in {text!r}")
        return cls(name, sign, bound)

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.bound:g}"

    def result(self, names: Iterable[str]) -> str:
        """Which of the results it is about. Raises `ConfigError`, naming them, where it is none, or
        more than one.
        """
        names = list(names)
        if self.name in names:
            return self.name
        same = [name for name in names if without_ending(name) == self.name]
        if len(same) == 1:
            return same[0]
        problem = f"can be {' or '.join(same)}" if same else "is not measured"
        raise ConfigError(
            f"{self.name}, which is required, {problem}; there are: {', '.join(sorted(names))}"
        )

    def check_bound(self, result: str, bounds: tuple[float, float]) -> None:
        """Raise `ConfigError` for a bound outside the range of the result, and for a requirement
        that no value in it meets, as `> 1` of a share. `>= 0` of one only asks for a value.
        """
        low, high = bounds
        never = (self.operator, self.bound) in ((">", high), ("<", low))
        if never or not low <= self.bound <= high:
            limits = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
            raise ConfigError(f"{self} is required, but {result} is always {limits}")

    def met(self, value: float) -> bool:
        """Whether the value is what is required."""
        equal = abs(value - self.bound) < _ROUNDING
        return _OPERATORS[self.operator](self.bound if equal else value, self.bound)


def check(requirements: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raise `ConfigError` for a requirement that names none of these results, or more than one, or
    whose bound that result cannot reach (`Requirement.check_bound`).

    `bounds` has the range of each result, by its name.
    """
    for requirement in map(Requirement.parse, requirements):
        result = requirement.result(bounds)
        requirement.check_bound(result, bounds[result])


def unmet(requirements: Sequence[str], rows: Mapping[str, Estimate]) -> list[str]:
    """A line for each requirement that the estimates do not meet: value, interval, n, what was
    required. Raises `ConfigError` for one of a result that is not there.

    It is the value that is compared, not an end of its interval.

    Example:
        >>> rows = {"answer_support_lexical": Estimate(0.71, 0.64, 0.78, 40, 0.03)}
        >>> unmet(["answer_support >= 0.8", "answer_support < 1"], rows)
        ['answer_support_lexical is 0.710 [0.640, 0.780] (n=40), required: answer_support >= 0.8']
    """
    lines = []
    for requirement in map(Requirement.parse, requirements):
        result = requirement.result(rows)
        estimate = rows[result]
        if estimate.value is None:
            lines.append(f"{result} has no value ({_why(estimate)}), required: {requirement}")
        elif not requirement.met(estimate.value):
            value = _exact(estimate, requirement)
            lines.append(f"{result} is {value} (n={estimate.n}), required: {requirement}")
    return lines


def regressions(comparison: "Comparison") -> list[str]:
    """One line for each result that is clearly worse than in the first audit, and for each later
    audit that has too few shared questions to show one.

    Worse is a paired difference in the wrong direction whose interval leaves out 0, over at least
    `MIN_PAIRS` questions. A result that has a value in the first audit alone has been lost, and
    gets a line, too.
    """
    lines = []
    for place, side in enumerate(comparison.names[1:]):
        directed = {
            name: differences[place]
            for name, differences in comparison.differences.items()
            if about(name).direction != 0
        }
        worse = comparison.clear(place).get("worse", {})
        for name, change in worse.items():
            lines.append(f"{side}: {name} is worse by {interval(change, sign=True)} (n={change.n})")
        for name in directed:
            before, after = comparison.rows[name][0], comparison.rows[name][place + 1]
            if before.value is not None and after.value is None:
                lines.append(
                    f"{side}: {name} has no value ({_why(after)}); it is {interval(before)} "
                    f"in {comparison.names[0]}"
                )
        if not any(change.n >= MIN_PAIRS for change in directed.values()):
            lines.append(
                f"{side}: no result has a value for {MIN_PAIRS} shared questions or more, so no "
                "regression could be seen"
            )
    return lines


def _why(estimate: Estimate) -> str:
    """Why it has no value."""
    if estimate.abstained:
        return f"the judge gave no verdict on {estimate.abstained:,} rows"
    if estimate.not_applicable:
        return f"it applies to none of {estimate.not_applicable:,} rows"
    return "it was not measured"


def _exact(estimate: Estimate, requirement: Requirement) -> str:
    """The value with its interval; with all its digits where three would look like what is
    required.
    """
    value = interval(estimate)
    rounded = round(estimate.value or 0.0, 3)
    return f"{value}, exactly {estimate.value}" if requirement.met(rounded) else value
