"""Reward functions that were written for TRL or verl, read from files, as rewards."""

import asyncio
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

from .. import dialects
from ..errors import ConfigError
from ..rewards.base import BatchReward, Score
from ..trajectory import Trajectory

Signature = Literal["trl", "verl"]
USUAL_NAME = "compute_score"
"""What verl's reward functions are usually called."""


@dataclass(frozen=True)
class FunctionReward(BatchReward):
    """A reward function that was written for another trainer, as a reward.

    With the signature "trl" the function is called once for a batch, with lists that have an entry
    for each rollout: `prompts`, `completions` (messages), `question`, `answers` (all gold answers),
    `ground_truth` (the same) and `solution` (the first gold answer). It returns a list with a
    number or `None` for each rollout, and may be a coroutine function.

    With the signature "verl" it is called once for each rollout, with `data_source`, `solution_str`
    (the rollout's text without the prompt), `ground_truth` (`{"target": [gold answers]}`) and
    `extra_info` (`question` and `messages`). It returns a number, or a dictionary with `score`, and
    may be a coroutine function.

    `score_batch` raises `ConfigError` where the function fails, or returns anything else; infinity
    and NaN are no numbers.
    """

    function: Callable[..., Any]
    signature: Signature

    name: ClassVar[str] = "function"

    @classmethod
    def in_file(cls, place: str, signature: Signature) -> Self:
        """The reward of a function in a file.

        Args:
            place: `FILE.py:FUNCTION`, or `FILE.py` for `compute_score` or, where the file has none,
                its only public function.
            signature: how the function is called.

        Raises:
            ConfigError: the file cannot be imported, does not define the function, or defines
                several where none is named.
        """
        stem, _, name = place.partition(".py:")
        path = Path(f"{stem}.py" if name else place).expanduser()
        functions = _functions(path)
        if not functions:
            raise ConfigError(
                f"{path} defines no function; a class of a reward needs no --signature"
            )
        if not name:
            name = USUAL_NAME if USUAL_NAME in functions else next(iter(functions))
            if len(functions) > 1 and name != USUAL_NAME:
                raise ConfigError(
                    f"{path} defines several functions ({', '.join(functions)}): name one, "
                    f"{path}:{name}"
                )
        if name not in functions:
            raise ConfigError(
                f"{path} defines no function {name!r}; there are: {', '.join(functions)}"
            )
        return cls(functions[name], signature)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        call = self._trl if self.signature == "trl" else self._verl
        name = getattr(self.function, "__name__", "the function")
        try:
            values = call(trajectories)
        except Exception as error:  # whatever somebody's function raises
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{name} failed when it was called as {self.signature} does: {reason}"
            ) from error
        if not _is_list(values):
            raise ConfigError(
                f"{name} returned {values!r}, which is no list: return one value for each rollout"
            )
        if len(values) != len(trajectories):
            raise ConfigError(
                f"{name} returned {len(values)} values for {len(trajectories)} rollouts"
            )
        return [_score(value, name) for value in values]

    def _trl(self, trajectories: Sequence[Trajectory]) -> Sequence[Any]:
        """What the function returns for the batch, whatever that is."""
        prompts = []
        for trajectory in trajectories:
            dialect = dialects.load(trajectory.dialect)
            prompts.append(dialect.prompt(trajectory.question or "", ()))
        answers = [list(trajectory.answers) for trajectory in trajectories]
        values = self.function(
            prompts=prompts,
            completions=[messages_of(trajectory) for trajectory in trajectories],
            question=[trajectory.question for trajectory in trajectories],
            answers=answers,
            ground_truth=answers,
            solution=[golds[0] for golds in answers],
        )
        [awaited] = _awaited([values])
        return cast("Sequence[Any]", awaited)

    def _verl(self, trajectories: Sequence[Trajectory]) -> Sequence[Any]:
        """What the function returns for each rollout."""
        results = [
            self.function(
                data_source="gauntlet",
                solution_str=text_of(trajectory),
                ground_truth={"target": list(trajectory.answers)},
                extra_info={
                    "question": trajectory.question,
                    "messages": messages_of(trajectory),
                },
            )
            for trajectory in trajectories
        ]
        return _awaited(results)


def _awaited(results: Sequence[Any]) -> Sequence[Any]:
    """The results; where they are coroutines, what these return. They are awaited together."""
    if not all(inspect.isawaitable(result) for result in results):
        return results

    async def await_all() -> list[Any]:
        return list(await asyncio.gather(*results))

    return asyncio.run(await_all())


def _is_list(values: Any) -> bool:
    """Whether this can be a value for each rollout: a list, or what arrays and tensors are."""
    if isinstance(values, (str, bytes, Mapping, Set)):
        return False  # their characters, keys or members would be taken for values
    is_one_number = getattr(values, "shape", None) == ()
    return isinstance(values, Iterable) and isinstance(values, Sized) and not is_one_number


def text_of(trajectory: Trajectory) -> str:
    """A rollout as one text, without the prompt."""
    return trajectory.text or dialects.load(trajectory.dialect).render(trajectory)


def messages_of(trajectory: Trajectory) -> list[dict[str, str]]:
    """A rollout as the messages after the prompt: the assistant's turns, as they were written, and
    the tools' responses.
    """
    dialect = dialects.load(trajectory.dialect)
    messages: list[dict[str, str]] = []
    for step in trajectory.steps:
        start, end = step.spans.get("step", (0, 0))
        turn = trajectory.text[start:end] or dialect.render_turn(step)
        messages.append({"role": "assistant", "content": turn})
        if step.call is not None and step.answer is None:
            response = dialect.render_observation(step.evidence, step.note)
            start, end = dialect.response_span(response)
            messages.append({"role": "tool", "content": response[start:end]})
    return messages


def _score(value: Any, name: str) -> Score:
    """The score of one value that the function of this name returned."""
    if isinstance(value, Mapping):
        if "score" not in value:
            raise ConfigError(f"{name} returned {value!r}, which has no 'score'")
        value = value["score"]
    if value is None:
        return Score(None, f"{name} gave no value")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} returned {value!r}, which is no number") from error
    except OverflowError:  # an int that no float can hold
        number = math.inf if value > 0 else -math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{name} returned {number}, which is no finite number")
    return Score(number)


def _functions(path: Path) -> dict[str, Callable[..., Any]]:
    """The public functions that a file defines itself, without those it imports, by name."""
    # The module's name is the whole path, so that it hides no installed module.
    module_name = str(path.resolve())
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"there is no file {path} that could define a reward function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look a module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever somebody's file raises; scripts may exit
        del sys.modules[module_name]
        raise ConfigError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    functions = {}
    for name, value in vars(module).items():
        is_own = inspect.isfunction(value) and value.__module__ == module_name
        if is_own and not name.startswith("_"):
            functions[name] = value
    return functions
