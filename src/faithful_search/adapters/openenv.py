"""OpenEnv: an environment with our tools, and a rubric that scores its episodes step by step.

```python
from openenv.core.env_server.http_server import create_app
app = create_app(FaithfulEnvironment, SearchAction, SearchObservation, env_name="faithful_search")
```

An action is one turn of the policy: its thought with a call of a tool, or with the answer. What the
tools return is the environment's own, so that no text of the policy can be evidence.
"""

from functools import cache
from typing import Any

import msgspec
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.rubrics.trajectory import TrajectoryRubric
from pydantic import Field

from .. import dialects
from ..rewards import Score
from ..tasks import Task, load_tasks
from ..tools import Toolbox
from ..tools.arguments import ToolArguments
from ..trajectory import Evidence, Step, ToolCall
from .episodes import trajectory_of
from .settings import scoring_of

Episode = list[tuple[Any, Any]]


class SearchAction(Action):
    """One turn: a thought, and a call of a tool or the answer, which ends the episode."""

    thought: str = ""
    tool: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    answer: str | None = None

    @property
    def call(self) -> ToolCall | None:
        """The call, where the turn does not answer."""
        if self.answer is not None or self.tool is None:
            return None
        return ToolCall(self.tool, self.arguments)


class SearchObservation(Observation):
    """What the environment says: the question at first, then what tools returned."""

    text: str = ""
    evidence: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)  # JSON schemas, at first


class FaithfulRubric(TrajectoryRubric):
    """The value of a mix for the episode, and what each step earned.

    An episode without a value raises `NoScoreError`, unless `abstained` says what to take instead.
    `settings` are those of `adapters.settings.scoring_of`.
    """

    def __init__(self, mix: str = "veritas", **settings: Any) -> None:
        super().__init__()
        self.scoring = scoring_of(mix, **{"dialect": "openai", **settings})
        self.task = Task("", "", ())

    def score(self, episode: Episode) -> Score:
        """The score with its reason and parts."""
        steps = [_step_of(action, observation) for action, observation in episode]
        dialect = self.scoring.written_in or "openai"
        trajectory = trajectory_of(steps, self.task.question, self.task.answers, dialect)
        return self.scoring.score_trajectories([trajectory])[0]

    def score_trajectory(self, trajectory: Episode) -> float:
        return self.scoring.number(self.score(trajectory))

    def compute_step_rewards(self) -> list[float]:
        """What each step earned (`Score.credit`); the last one has what the whole earned, too."""
        if not self._trajectory:
            return []
        score = self.score(self._trajectory)
        shares, _ = score.credit
        rewards = list(shares) or [0.0] * len(self._trajectory)
        rewards[-1] += self.scoring.number(score) - sum(rewards)
        return rewards


@cache
def toolbox_of(corpus: str) -> Toolbox:
    """The tools that all environments with this corpus share."""
    return ToolArguments(corpus=corpus).build_toolbox()


class FaithfulEnvironment(Environment[SearchAction, SearchObservation, State]):
    """Questions; each `reset` asks the next one, or that with `index`."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self, questions: str = "world", corpus: str = "world", mix: str = "veritas", turns: int = 8
    ) -> None:
        self.rule = FaithfulRubric(mix)
        super().__init__(rubric=self.rule)
        self.tasks = load_tasks(questions)
        self.toolbox = toolbox_of(corpus)
        self.turns = turns
        self.dialect = dialects.load("openai")
        self.session = self.toolbox.session()
        self.next = 0
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **chosen: Any
    ) -> SearchObservation:
        following = self.next if seed is None else seed
        index = chosen.get("index", following)
        self.next = index + 1
        self.rule.task = self.tasks[index % len(self.tasks)]
        self.rule.reset()
        self.session.close()
        self.session = self.toolbox.session()
        self._state = State(episode_id=episode_id or self.rule.task.id)
        return SearchObservation(text=self.rule.task.question, tools=self.toolbox.schemas)

    def step(
        self, action: SearchAction, timeout_s: float | None = None, **unused: Any
    ) -> SearchObservation:
        self._state.step_count += 1
        done = action.answer is not None or self._state.step_count >= self.turns
        observation = SearchObservation(done=done)
        if action.call is not None:
            [result] = self.toolbox.run_batch([action.call], [self.session])
            observation.text = self.dialect.render_observation(result.evidence, result.note)
            observation.evidence = msgspec.to_builtins(result.evidence)
        observation.reward = self.rule(action, observation)
        return observation

    @property
    def state(self) -> State:
        return self._state


def _step_of(action: SearchAction, observation: SearchObservation) -> Step:
    evidence = tuple(msgspec.convert(passage, Evidence) for passage in observation.evidence)
    note = "" if evidence or action.call is None else observation.text
    return Step(
        think=action.thought or None,
        call=action.call,
        evidence=evidence,
        note=note,
        answer=action.answer,
    )
