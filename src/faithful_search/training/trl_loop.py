"""Rollouts by TRL's own loop of tool calls (`rollouts: trl`), read as our engine's are.

TRL samples with what it has: its generation, its parsing of calls, its calls of the tools, its
masks. `SearchEnvironment` runs the toolbox there, and a `ToolTemplate` has the tokenizer write and
read what the dialect does. So the policy reads the same tokens as in our engine's rollouts, and
whoever rewards, probes and trains on them sees no difference.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from trl import GRPOConfig

from ..dialects.base import Dialect
from ..errors import ConfigError
from ..inference.chat import ChatFormat, folded
from ..inference.tool_template import ToolTemplate, refuses_system
from ..rollout import Limits, SearchEnvironment
from ..rollout.environment import returned_observations
from ..rollout.outside import OutsideEpisode, check_outside, turns_of
from ..tasks import Task
from ..tools import Toolbox
from ..trajectory import Tokens, Trajectory

Message = Mapping[str, Any]


def check_alone(accelerator: Any, args: GRPOConfig) -> None:
    """Raise `ConfigError` where TRL's loop would wait for ever: where all processes must generate
    together in each turn, one whose rollouts are done takes no more turns.
    """
    if accelerator.num_processes == 1:
        return
    # accelerate's state has the plugins that are in use, and no others
    deepspeed = getattr(accelerator.state, "deepspeed_plugin", None)
    fsdp = getattr(accelerator.state, "fsdp_plugin", None)
    together = {
        "FSDP": fsdp is not None,
        "ZeRO-3": deepspeed is not None and deepspeed.zero_stage == 3,
        "vllm_mode: server": args.use_vllm and args.vllm_mode == "server",
    }
    for name, is_used in together.items():
        if is_used:
            raise ConfigError(
                f"rollouts: trl with {name} in several processes: TRL's loop would wait for ever, "
                "since rollouts differ in their number of turns; let our engine make them "
                "(rollouts: engine)"
            )


@dataclass(frozen=True)
class Sampled:
    """What TRL's loop returned: each field has an entry for each rollout. `messages` are those after
    the prompt.
    """

    prompt_ids: Sequence[list[int]]
    completion_ids: Sequence[list[int]]
    mask: Sequence[list[int]]
    messages: Sequence[Sequence[Message]]
    logprobs: Sequence[list[float]] | None


@dataclass(frozen=True)
class TRLLoop:
    """What TRL's trainer is given for its loop, and how its rollouts are read.

    Raises `ConfigError` and `TemplateError`, when it is made, for what cannot work there: see
    `check_outside`, `ToolTemplate.of` and `SearchEnvironment.factory`.
    """

    tokenizer: Any
    dialect: Dialect
    limits: Limits
    schemas: list[dict[str, Any]]
    template: ToolTemplate
    environment: Callable[[], SearchEnvironment]
    folds_system: bool  # the template refuses a system message, see `folded`

    @classmethod
    def of(cls, tokenizer: Any, toolbox: Toolbox, dialect: Dialect, limits: Limits) -> Self:
        check_outside(dialect, limits)
        return cls(
            tokenizer=tokenizer,
            dialect=dialect,
            limits=limits,
            schemas=toolbox.schemas,
            template=ToolTemplate.of(tokenizer, dialect, toolbox.names),
            environment=SearchEnvironment.factory(
                toolbox, dialect, tokenizer, limits.observation_tokens
            ),
            folds_system=refuses_system(tokenizer, dialect),
        )

    def bound(self, args: GRPOConfig) -> None:
        """Write the episodes' limits into TRL's settings, where `SearchGRPOConfig` refuses others."""
        args.max_completion_length = self.limits.total_tokens
        # TRL counts rounds of calls; after the last one the policy has one more turn.
        args.max_tool_calling_iterations = self.limits.turns - 1
        # A turn's limit: vLLM and Transformers name it differently.
        name = "max_tokens" if args.use_vllm else "max_new_tokens"
        args.generation_kwargs = {name: min(self.limits.turn_tokens, self.limits.total_tokens)}

    def prompt(self, task: Task) -> list[dict[str, Any]]:
        """The messages that open an episode, as the tokenizer's template takes them."""
        messages = self.dialect.prompt(task.question, self.schemas)
        return folded(messages) if self.folds_system else messages

    def trajectories(
        self,
        tasks: Sequence[Task],
        environments: Sequence[SearchEnvironment],
        sampled: Sampled,
        chat: ChatFormat,
        eos_ids: Collection[int],
    ) -> list[Trajectory]:
        """The trajectory of each rollout, with its tokens as TRL has them."""
        trajectories = []
        for number, (task, environment) in enumerate(zip(tasks, environments, strict=True)):
            messages = sampled.messages[number]
            tokens = Tokens(
                prompt_ids=sampled.prompt_ids[number],
                completion_ids=sampled.completion_ids[number],
                mask=sampled.mask[number],
                turns=turns_of(sampled.mask[number]),
                logprobs=None if sampled.logprobs is None else sampled.logprobs[number],
            )
            contents = [message["content"] for message in messages if message["role"] == "tool"]
            # what the environment returned to each call; None where its words are another's
            observations = iter(returned_observations(environment, contents))
            responses_by_turn = []
            for size in _response_sizes(messages):
                responses_by_turn.append([next(observations) for _ in range(size)])
            episode = OutsideEpisode(task, chat, self.limits, self.schemas, eos_ids)
            # tells a call whose response did not fit from a turn without an action
            last_turn_calls = bool(messages[-1].get("tool_calls"))
            trajectories.append(episode.read(tokens, responses_by_turn, last_turn_calls))
        return trajectories


def _response_sizes(messages: Sequence[Message]) -> Iterator[int]:
    """The length of each run of tool messages: such a run answers one turn."""
    count = 0
    for message in messages:
        if message["role"] == "tool":
            count += 1
        elif count:
            yield count
            count = 0
    if count:
        yield count
