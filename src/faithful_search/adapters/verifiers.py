"""verifiers (and prime-rl): tasks that score whole traces.

```python
class MyTask(FaithfulTask):
    mix = "veritas"
```

Messages of a trace say who wrote what, so that only results of tools are evidence. A trace without
a value raises `NoScoreError`, which verifiers records as the rollout's error: neither a 0 nor a
sample to train on.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import verifiers.v1 as vf

from ..columns import answers as gold_answers
from ..rewards import Score
from ..scoring import Scoring, numeric_parts
from ..tasks import load_tasks
from .settings import scoring_of


class FaithfulData(vf.TaskData):
    """A question and its gold answers."""

    question: str | None = None
    answers: tuple[str, ...] = ()


class FaithfulTask(vf.Task[FaithfulData, vf.State, vf.TaskConfig]):
    """A task with a reward of ours. Subclasses say which.

    The metrics are the parts of the score; `trace.info["faithful_search"]` holds the reason and the
    values by step.
    """

    mix: ClassVar[str] = "veritas"
    dialect: ClassVar[str] = "openai"
    settings: ClassVar[dict[str, Any]] = {}  # more of `adapters.settings.scoring_of`

    @property
    def scoring(self) -> Scoring:
        return scoring_of(self.mix, dialect=self.dialect, **self.settings)

    @vf.reward(weight=1.0)
    async def faithful(self, trace: vf.Trace) -> float:
        """The score's value."""
        return self.scoring.number(await self._score(trace))

    @vf.metric
    async def faithful_parts(self, trace: vf.Trace) -> dict[str, float]:
        """The parts of the score that have a value."""
        return numeric_parts(await self._score(trace))

    async def _score(self, trace: vf.Trace) -> Score:
        known = trace.info.get("faithful_search")
        if known is None:
            messages = [message.model_dump(exclude_none=True) for message in trace.messages]
            question, answers = self.data.question, gold_answers(self.data.answers)
            score = await self.scoring.ascore(messages, question=question, answers=answers)
            known = {
                "value": score.value,
                "why": score.why,
                "steps": list(score.steps),
                "parts": numeric_parts(score),
            }
            trace.info["faithful_search"] = known
        return Score(known["value"], known["why"], known["parts"], tuple(known["steps"]))


class FaithfulConfig(vf.TasksetConfig):
    """Which questions: "world", a file, or a dataset of the Hub, as `load_tasks` takes them."""

    questions: str = "world"
    limit: int | None = None


class FaithfulTaskset(vf.Taskset[FaithfulTask, FaithfulConfig]):
    """The questions, one task each."""

    def load(self) -> Iterator[FaithfulTask]:
        for task in load_tasks(self.config.questions)[: self.config.limit]:
            data = FaithfulData(
                id=task.id, prompt=task.question, question=task.question, answers=task.answers
            )
            yield FaithfulTask(data, self.config.task)
