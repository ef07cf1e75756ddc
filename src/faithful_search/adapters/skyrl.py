"""SkyRL-gym: a search environment that pays each turn.

```python
skyrl_gym.register("faithful_search", "faithful_search.adapters.skyrl:SearchEnv")
```

Settings stand in SkyRL's `env_config`: `corpus` (whatever `faithful-search serve` takes, or a
retrieval server's URL), `topk`, and those of `adapters.settings.scoring_of`. Only what the
environment's own search returned is evidence. The policy should be stopped at the closing tag of
its call (`sampling_params.stop`).
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
    """The toolbox that all environments with this corpus share; its search is called what the
    dialect calls it.
    """
    name = dialects.load(dialect).search_tool
    naming: dict[str, Any] = {} if name is None else {"name": name}
    return Toolbox([open_search(corpus, top_k=topk, **naming)])


class SearchEnv(BaseTextEnv):
    """One rollout: a turn in, what the search returned and the turn's reward out.

    A turn earns what it adds to the steps' share of the value (`Score.credit`), and the last turn
    the rest, so that a rollout's rewards add up to its value. Each turn is parsed once. The last
    turn's `metadata["score"]` is the value itself. A rollout without a value raises `NoScoreError`,
    unless `abstained` says what to take instead.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        settings = DEFAULTS | dict(env_config or {})
        corpus, topk = settings.pop("corpus"), settings.pop("topk")
        self.dialect = dialects.load(settings["dialect"])
        self.toolbox = toolbox_of(corpus, topk, self.dialect.name)
        self.scoring = scoring_of(**settings)
        known = extras or {}
        self.max_turns = known.get("max_turns", 4)
        if "ground_truth" not in known.get("reward_spec", {}):
            raise ConfigError(
                "SearchEnv: the row has no reward_spec.ground_truth with the gold answers, as "
                "SkyRL's own search environment needs it; it has: "
                f"{', '.join(map(str, known)) or 'nothing'}"
            )
        self.answers = gold_answers(known["reward_spec"]["ground_truth"])
        self.question: str | None = None
        self.session = self.toolbox.session()
        self.steps: list[Step] = []
        self.paid = 0.0
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
        text = self._respond(step)
        done = text is None or self.turns >= self.max_turns
        reward = self._pay(done)
        message = {"role": self.dialect.observation_role or "user", "content": text}
        metadata = {"score": self.score.value, "why": self.score.why} if done else {}
        return BaseTextEnvStepOutput(
            observations=[] if done else [message], reward=reward, done=done, metadata=metadata
        )

    def get_metrics(self) -> dict[str, Any]:
        """The parts of the rollout's score."""
        return numeric_parts(self.score)

    def close(self) -> None:
        self.session.close()

    def _respond(self, step: Step) -> str | None:
        """What the environment says after a turn, which is noted; `None` ends the rollout."""
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
        [score] = self.scoring.score_trajectories([self.trajectory])
        if done:
            self.score = score
        worth = self.scoring.number(score) if done else sum(score.credit[0])
        reward, self.paid = worth - self.paid, worth
        return reward
