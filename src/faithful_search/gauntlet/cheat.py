"""What a cheat is: it writes an agent's next turn from what was returned so far, and reads
nothing.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..errors import ConfigError
from ..text import content_words
from ..trajectory import Evidence, Step, ToolCall

SHARED_WORDS = 2
"""How many content words a query and a passage have to share for a cheat to believe the passage."""


@dataclass(frozen=True)
class Scene:
    """What a cheat knows when it writes its next turn.

    Args:
        question: what it is asked.
        number: the question's place in the gauntlet, from 0; the seed of cheats that draw at random.
        answer: the right answer, as far as the cheat has it by heart.
        wrong: answers of other questions, in the order of the questions after this one; none of them
            is the right one.
        tools: the first argument of each tool, by the tool's name; the search comes first.
        steps: the turns so far, each with what it returned.
    """

    question: str
    number: int = 0
    answer: str = ""
    wrong: tuple[str, ...] = ()
    tools: Mapping[str, str] = field(default_factory=lambda: {"local_search": "query"})
    steps: tuple[Step, ...] = ()

    @property
    def guess(self) -> str:
        """A name that is not the answer."""
        return self.wrong[0] if self.wrong else "nothing"

    @property
    def returned(self) -> tuple[Evidence, ...]:
        """What the last call returned."""
        return self.steps[-1].evidence if self.steps else ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of what the last call returned."""
        return tuple(passage.id for passage in self.returned)

    @property
    def search(self) -> str:
        """The name of the tool that searches."""
        return next(iter(self.tools))


@contextmanager
def failures_named(cheat: "Cheat") -> Iterator[None]:
    """Where the code of a cheat fails within this context, raise `ConfigError` that names it."""
    try:
        yield
    except Exception as error:  # whatever somebody's cheat raises
        raise ConfigError(
            f"the cheat {type(cheat).__name__} failed: {type(error).__name__}: {error}"
        ) from error


class Cheat:
    """A scripted agent that is never paid for reading, since it does not read.

    The first paragraph of a subclass's docstring says what it exploits, and is shown beside its
    name. By default a cheat asks its one question, cites all that came back, and answers from
    memory; a subclass says what it does otherwise.

    Example:
        >>> from faithful_search.trajectory import Evidence
        >>> class CiteLast(Cheat):
        ...     "Cites the last passage, whatever it says."
        ...     def refs(self, scene):
        ...         return scene.ids[-1:]
        >>> call = ToolCall("local_search", {"query": "?"})
        >>> search = Step("I look.", call, (Evidence("…", id="E1"),))
        >>> CiteLast().turn(Scene("?", answer="Rome", steps=(search,))).refs
        ('E1',)
    """

    @classmethod
    def exploits(cls) -> str:
        """What it does: the first paragraph of its docstring.

        Example:
            >>> Cheat.exploits()
            'A scripted agent that is never paid for reading, since it does not read.'
        """
        words = (inspect.getdoc(cls) or cls.__name__).partition("\n\n")[0]
        return " ".join(words.split())

    def queries(self, scene: Scene) -> Sequence[str]:
        """What it asks the tools, one call a turn, before it answers."""
        return [scene.question]

    def call(self, scene: Scene, query: str) -> ToolCall:
        return ToolCall(scene.search, {scene.tools[scene.search]: query})

    def think(self, scene: Scene, answers: bool) -> str:
        """The thought of the next turn; `answers` says whether that is the last one."""
        return "So it is." if answers else "I look."

    def answer(self, scene: Scene) -> str:
        return scene.answer

    def helpful(self, scene: Scene) -> bool:
        """The verdict on what the last call returned."""
        return bool(scene.ids)

    def refs(self, scene: Scene) -> tuple[str, ...]:
        """What a verdict that says yes cites."""
        return scene.ids

    def believes(self, query: str, evidence: Sequence[Evidence]) -> bool:
        """Whether its p(yes) is high after this response to the query: by default where a passage
        shares `SHARED_WORDS` content words with the query.
        """
        words = set(content_words(query))
        shared = (len(words & set(content_words(passage.text))) for passage in evidence)
        return max(shared, default=0) >= SHARED_WORDS

    def believes_after(self, steps: Sequence[Step]) -> bool:
        """Whether its p(yes) is high after these turns, the last of which called a tool: what
        `believes` says of that one, where a cheat does not remember the others.
        """
        call = steps[-1].call
        query = " ".join(map(str, call.arguments.values())) if call else ""
        return self.believes(query, steps[-1].evidence)

    def planted(self, text: str) -> str:
        """What this text of the corpus says in the cheat's copy of the world, before any search: the
        text itself, unless the cheat has put pages of its own there.
        """
        return text

    def turn(self, scene: Scene) -> Step:
        """The next turn: a call while there are queries left, then the answer."""
        verdict: bool | None = None
        refs: tuple[str, ...] = ()
        if scene.steps:
            verdict = self.helpful(scene)
            refs = self.refs(scene) if verdict else ()
        queries = self.queries(scene)
        if len(scene.steps) < len(queries):
            call = self.call(scene, queries[len(scene.steps)])
            return Step(self.think(scene, answers=False), call, helpful=verdict, refs=refs)
        think = self.think(scene, answers=True)
        return Step(think, answer=self.answer(scene), helpful=verdict, refs=refs)
