"""verifiers (and prime-rl): tasks that score whole traces.

```python
class MyTask(FaithfulTask):
    mix = "veritas"
```

The messages of a trace say who wrote what, so that only results of tools are evidence. A trace
without a value raises `NoScoreError`. verifiers records it as the rollout's error, so that the
rollout is neither a 0 nor a sample to train on.
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
    """A task with a reward of this package.

    The metrics are the parts of the score. `trace.info["faithful_search"]` also has the reason and
    what each step earned.

    Class attributes that a subclass may set:
        mix: the name of the reward.
        dialect: how the policy writes.
        settings: other settings of `adapters.settings.scoring_of`.
    """

    mix: ClassVar[str] = "veritas"
    dialect: ClassVar[str] = "openai"
    settings: ClassVar[dict[str, Any]] = {}

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
        """The trace's score, which is made once and kept in the trace."""
        record = trace.info.get("faithful_search")
        if record is None:
            messages = [message.model_dump(exclude_none=True) for message in trace.messages]
            score = await self.scoring.ascore(
                messages,
                question=self.data.question,
                answers=gold_answers(self.data.answers),
            )
            record = {
                "value": score.value,
                "why": score.why,
                "steps": list(score.steps),
                "parts": numeric_parts(score),
            }
            trace.info["faithful_search"] = record
        return Score(record["value"], record["why"], record["parts"], tuple(record["steps"]))


class FaithfulConfig(vf.TasksetConfig):
    """Which questions, as `load_tasks` takes them ("world", a file, or a dataset of the Hub), and
    how many of them; all, where `limit` is `None`.
    """

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
