"""SkyRL-gym: a search environment that rewards each turn.

```python
skyrl_gym.register("faithful_search", "faithful_search.adapters.skyrl:SearchEnv")
```

SkyRL's `env_config` has the settings: `corpus` (what `faithful-search serve` takes, or the URL of a
retrieval server), `topk` (passages of a search), and those of `adapters.settings.scoring_of`. Only
what the environment's own search returned is evidence. Let sampling stop at the closing tag of a
call (`sampling_params.stop`).
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from .. import dialects
from ..columns import answers as gold_answers
from ..errors import ConfigError
from ..rewards import Score
from ..scoring import numeric_parts
from ..tools import Toolbox
from ..tools.local_search import open_search
from ..trajectory import Step, Trajectory
from .episodes import trajectory_of
from .settings import scoring_of

DEFAULTS: dict[str, Any] = {"corpus": "world", "topk": 3, "mix": "veritas", "dialect": "search_r1"}


@cache
def toolbox_of(corpus: str, topk: int, dialect: str) -> Toolbox:
    """The toolbox that all environments with these settings share. Its search has the name that the
    dialect gives it.
    """
    name = dialects.load(dialect).search_tool
    if name is None:
        return Toolbox([open_search(corpus, top_k=topk)])
    return Toolbox([open_search(corpus, top_k=topk, name=name)])


class SearchEnv(BaseTextEnv):
    """One rollout. `step` takes a turn of the policy, and returns what the search found and the
    reward of the turn.

    The reward of a turn is what it adds to the value that the steps have earned (`Score.credit`).
    The last turn gets the remainder, so that the rewards add up to the value of the rollout, which
    is also in the last `metadata["score"]`. A rollout without a value raises `NoScoreError`, unless
    the setting `abstained` has a value for it.

    `extras` is the row of the data set; `extras["reward_spec"]["ground_truth"]` has the gold
    answers. Raises `ConfigError` for a row without them.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        settings = DEFAULTS | dict(env_config or {})
        corpus = settings.pop("corpus")
        topk = settings.pop("topk")
        self.dialect = dialects.load(settings["dialect"])
        self.toolbox = toolbox_of(corpus, topk, self.dialect.name)
        self.scoring = scoring_of(**settings)
        row = extras or {}
        self.max_turns = row.get("max_turns", 4)
        if "ground_truth" not in row.get("reward_spec", {}):
            raise ConfigError(
                "SearchEnv: the row has no reward_spec.ground_truth with the gold answers, as "
                "SkyRL's own search environment needs it; it has: "
                f"{', '.join(map(str, row)) or 'nothing'}"
            )
        self.answers = gold_answers(row["reward_spec"]["ground_truth"])
        self.question: str | None = None
        self.session = self.toolbox.session()
        self.steps: list[Step] = []
        self.paid = 0.0  # the sum of the rewards of earlier turns
        self.score = Score(None, "the rollout has not ended")

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        """Begin with SkyRL's prompt, whose last message has the question."""
        content = prompt[-1].get("content") if prompt else None
        self.question = self.dialect.question_in(content) if isinstance(content, str) else None
        return prompt, {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take one turn of the policy."""
        self.turns += 1
        step = self.dialect.parse_turn(action, first=not self.steps)
        response = self._respond(step)
        done = response is None or self.turns >= self.max_turns
        reward = self._pay(done)
        if done:
            metadata = {"score": self.score.value, "why": self.score.why}
            return BaseTextEnvStepOutput(
                observations=[], reward=reward, done=True, metadata=metadata
            )
        message = {"role": self.dialect.observation_role or "user", "content": response}
        return BaseTextEnvStepOutput(observations=[message], reward=reward, done=False, metadata={})

    def get_metrics(self) -> dict[str, Any]:
        """The parts of the rollout's score."""
        return numeric_parts(self.score)

    def close(self) -> None:
        self.session.close()

    def _respond(self, step: Step) -> str | None:
        """Note a turn, and return the environment's response; `None` ends the rollout."""
        if step.call is None or step.answer is not None:
            self.steps.append(step)
            return self.dialect.controller_reply(self.steps)
        [observation] = self.toolbox.run_batch([step.call], [self.session])
        evidence, note = observation.evidence, observation.note
        self.steps.append(msgspec.structs.replace(step, evidence=evidence, note=note))
        return self.dialect.render_observation(evidence, note)

    @property
    def trajectory(self) -> Trajectory:
        """The rollout so far."""
        return trajectory_of(self.steps, self.question, self.answers, self.dialect.name)

    def _pay(self, done: bool) -> float:
        """The reward of the turn that was noted last."""
        [score] = self.scoring.score_trajectories([self.trajectory])
        if done:
            self.score = score
            total = self.scoring.number(score)
        else:
            step_rewards, _ = score.credit
            total = sum(step_rewards)
        reward = total - self.paid
        self.paid = total
        return reward
