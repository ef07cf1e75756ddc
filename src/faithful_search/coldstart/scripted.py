"""What a dry run's policy says: the expert's turns, so that tools, judges and rewards are reached.

A random model never writes a valid turn. Here it is asked for probabilities and trained, and an
expert's script takes its place where turns are sampled.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ..dialects.base import Dialect
from ..errors import DataError
from ..inference.base import Completion, Generator, Sampling
from ..inference.chat import ChatFormat
from ..tasks import Task
from ..tools import Toolbox
from ..training.dry_run import WRONG, Player
from ..trajectory import Step
from .experts import Habits, run_experts
from .plans import plan_all, planner_for

WRONG_EVERY = 4
"""Every so many answers are wrong, so that rewards differ within a group."""
_NO_PLAN = "I can answer now."
_AS_TOOLS_ARE = Habits(wrong_tool=0.0, dropped=0.0, nothing=0.0, blind=0.0, shuffled=0.0)


class ScriptedTurn(NamedTuple):
    """A turn of a script, as the dialect writes it: as the expert gives it, and with a wrong answer
    where it gives one.
    """

    text: str
    wrong: str


class Scripted(Player):
    """Continues the prompt of a question's episode with the expert's next turn.

    Args:
        policy: the model of the dry run. It answers what is asked about probabilities.
        tasks: the questions of the bundled world that may be asked.
    """

    def __init__(
        self, policy: Generator, tasks: Sequence[Task], toolbox: Toolbox, dialect: Dialect
    ) -> None:
        self.policy = policy
        self.tokenizer = policy.tokenizer
        self.toolbox = toolbox
        self.dialect = dialect
        self.chat = ChatFormat.of(self.tokenizer, dialect)
        self.tasks = {task.question: task for task in tasks}
        self._planner = planner_for("world", tasks)
        self._scripts: dict[str, list[ScriptedTurn]] = {}  # by question
        self._answers = 0

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        pairs = [(self._question(prompt), self._text(prompt)) for prompt in prompts]
        self._write({question for question, _ in pairs if question is not None})
        completions = []
        for question, text in pairs:
            reply = _verdict(text) if question is None else self._next_turn(question, text)
            # As if it had been stopped at a string: the engine writes the end of the turn
            completions.append(Completion(self.chat.encode(reply), "stop"))
        return completions

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        return self.policy.choice_probs(prompts, choices)

    def _text(self, prompt: list[int]) -> str:
        return str(self.tokenizer.decode(prompt, clean_up_tokenization_spaces=False))

    def _question(self, prompt: list[int]) -> str | None:
        """The question of the episode that the prompt belongs to; `None` for other prompts."""
        text = self._text(prompt)
        named = [question for question in self.tasks if question in text]
        if not named:
            return None
        question = max(named, key=len)
        opening = self.chat.prompt_ids(question, self.toolbox.schemas)
        return question if prompt[: len(opening)] == opening else None

    def _write(self, questions: set[str]) -> None:
        """Have the expert play the questions that have no script yet."""
        tasks = [self.tasks[question] for question in sorted(questions - self._scripts.keys())]
        if not tasks:
            return
        try:
            plans, _ = plan_all(tasks, self._planner)
        except DataError:  # none of them can be planned
            plans = []
        played = run_experts(plans, self.toolbox, self.dialect, _AS_TOOLS_ARE)
        for plan, play in zip(plans, played, strict=True):
            self._scripts[plan.question] = [self._turn(step) for step in play.episode.steps]
        for task in tasks:
            self._scripts.setdefault(task.question, [self._turn(Step(_NO_PLAN, answer=WRONG))])

    def _turn(self, step: Step) -> ScriptedTurn:
        text = self.dialect.render_turn(step)
        if step.answer is None:
            return ScriptedTurn(text, text)
        return ScriptedTurn(text, self.dialect.render_turn(replace(step, answer=WRONG)))

    def _next_turn(self, question: str, text: str) -> str:
        """The turn after those that the prompt has already; the last one again at the end."""
        self.turns += 1
        turns = self._scripts[question]
        done = sum(turn.text in text or turn.wrong in text for turn in turns)
        turn = turns[min(done, len(turns) - 1)]
        gives_answer = turn.text != turn.wrong
        if gives_answer:
            self._answers += 1
        return turn.wrong if self._answers % WRONG_EVERY == 0 else turn.text


def _verdict(text: str) -> str:
    """The reply to whatever is asked outside of an episode, which self-evaluation's rewards can
    read.
    """
    return "False\nScore: 0.2" if WRONG in text else "True\nScore: 0.7"
