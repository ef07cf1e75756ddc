"""Cheats and the expert as agents: their turns run through the real engine, tools and dialects."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..coldstart.experts import Habits, run_experts
from ..coldstart.plans import counted, plan_all, planner_for
from ..dialects.base import Dialect
from ..errors import ConfigError
from ..inference.base import Completion, Generator, Sampling
from ..inference.chat import ChatFormat
from ..rollout import Engine
from ..rollout.episode import Limits, OnEnd, OnStep
from ..tasks import Task
from ..tools import Toolbox
from ..trajectory import Step, Trajectory
from ..world import bundled_world
from .characters import Characters
from .cheat import Cheat, Scene, failures_named

HONEST = "honest"
LIMITS = Limits(turns=16, turn_tokens=100_000, total_tokens=1_000_000)
"""So wide that no cheat is cut: what it earns is then the reward's doing, not a limit's."""
WRONG_ANSWERS = 5  # so many answers of other questions a cheat knows, those of the next ones first


@dataclass(frozen=True)
class CheatingAgent:
    """A cheat as an `Agent`. Its turns are written in the dialect, and all else is the engine's.

    Args:
        tasks: all questions of the gauntlet; the answers of the others are a question's wrong ones.
    """

    cheat: Cheat
    tasks: Sequence[Task]
    toolbox: Toolbox
    dialect: Dialect

    def run(
        self, tasks: Iterable[Task], on_end: OnEnd = None, on_step: OnStep = None
    ) -> list[Trajectory]:
        planted = self._planted()
        edited = [replace(task, edits={**task.edits, **planted}) for task in tasks]
        script = _Script(self, edited)

        def hear(id: str, step: Step) -> None:
            script.hear(id, step)
            if on_step is not None:
                on_step(id, step)

        engine = Engine(script, self.toolbox, self.dialect, LIMITS)
        return engine.run(edited, on_end, hear)

    def scene(self, task: Task) -> Scene:
        """What the cheat knows before its first turn."""
        questions = [any_task.question for any_task in self.tasks]
        number = questions.index(task.question)  # not by the id, which names the player, too
        other_tasks = [*self.tasks[number + 1 :], *self.tasks[:number]]
        answers = [other_task.answers[0] for other_task in other_tasks]
        wrong = [answer for answer in answers if answer not in task.answers]
        return Scene(
            question=task.question,
            number=number,
            answer=task.answers[0],
            wrong=tuple(dict.fromkeys(wrong))[:WRONG_ANSWERS],
            tools=self._tools(),
        )

    def _tools(self) -> dict[str, str]:
        """The first argument of each tool; tools that search come first."""
        arguments = self.toolbox.first_arguments
        return {name: arguments[name] for name in sorted(arguments, key=_does_not_search)}

    def _planted(self) -> dict[str, str]:
        """The texts of the world that the cheat changes, each with what it then says."""
        planted = {}
        for statement in bundled_world().statements:
            with failures_named(self.cheat):
                changed = self.cheat.planted(statement.text)
            if not isinstance(changed, str):
                raise ConfigError(
                    f"the cheat {type(self.cheat).__name__} failed: planted() returned "
                    f"{changed!r}, which is no text"
                )
            if changed != statement.text:
                planted[statement.text] = changed
        return planted


class _Script(Generator):
    """Continues each prompt with its cheat's next turn.

    It knows an episode by its prompt, so no two episodes may ask the same question.
    """

    def __init__(self, agent: CheatingAgent, tasks: Sequence[Task]) -> None:
        self.tokenizer = Characters()
        self.agent = agent
        self.chat = ChatFormat.of(self.tokenizer, agent.dialect)
        self.scenes: dict[str, Scene] = {}
        self.id_of_opening: dict[tuple[int, ...], str] = {}
        for task in tasks:
            opening = tuple(self.chat.prompt_ids(task.question, agent.toolbox.schemas))
            if opening in self.id_of_opening:
                raise ConfigError(f"two questions of the gauntlet are the same: {task.question!r}")
            self.scenes[task.id] = agent.scene(task)
            self.id_of_opening[opening] = task.id

    def hear(self, id: str, step: Step) -> None:
        """Tell the cheat what its turn returned."""
        scene = self.scenes[id]
        self.scenes[id] = dataclasses.replace(scene, steps=(*scene.steps, step))

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        completions = []
        for prompt in prompts:
            scene = self.scenes[self._episode(prompt)]
            with failures_named(self.agent.cheat):
                text = self.agent.dialect.render_turn(self.agent.cheat.turn(scene))
            # as if it had been stopped at a string: the engine writes the end of the turn
            completions.append(Completion(self.chat.encode(text), "stop"))
        return completions

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        raise ConfigError("a script only writes turns; `Believers` says what it believes")

    def _episode(self, prompt: list[int]) -> str:
        """The id of the episode that this prompt belongs to, by its opening."""
        for length in {len(opening) for opening in self.id_of_opening}:
            id = self.id_of_opening.get(tuple(prompt[:length]))
            if id is not None:
                return id
        raise ConfigError("a prompt is not that of a question that the cheat was given")


@dataclass(frozen=True)
class HonestAgent:
    """The expert of the cold start as an `Agent`: it reads, and cites what states the fact.

    It is served all that the tools return, as cheats are: no response is emptied or robbed of its
    fact. All its episodes are played at once, and callbacks are called afterwards. `tasks` are all
    questions of the gauntlet; those that are played must be unedited, each given once.
    """

    tasks: Sequence[Task]
    toolbox: Toolbox
    dialect: Dialect

    def run(
        self, tasks: Iterable[Task], on_end: OnEnd = None, on_step: OnStep = None
    ) -> list[Trajectory]:
        plans, skipped = plan_all(list(tasks), planner_for("world", self.tasks))
        if skipped:
            raise ConfigError(f"questions that the expert has no plan for: {counted(skipped)}")
        habits = Habits(dropped=0.0, nothing=0.0, blind=0.0)
        experts = run_experts(plans, self.toolbox, self.dialect, habits)
        episodes = [expert.episode for expert in experts]
        for episode in episodes:
            if on_step is not None:
                for step in episode.steps:
                    on_step(episode.id, step)
            if on_end is not None:
                on_end(episode)
        return episodes


def _does_not_search(name: str) -> bool:
    return "search" not in name
