"""What a turn of an episode costs besides the model does not grow with the episode."""

import lab
import pytest

from faithful_search import dialects
from faithful_search.inference.base import Completion
from faithful_search.inference.chat import ChatFormat
from faithful_search.rollout import Episode, Limits
from faithful_search.tasks import Task
from faithful_search.tools.base import Observation
from faithful_search.trajectory import Evidence, Step, ToolCall

TURNS = 60


class Watched:
    """A tokenizer that notes how much text and how many ids pass through it."""

    def __init__(self, own):
        self._own, self.passed = own, 0

    def __call__(self, text, **kwargs):
        self.passed += len(text)
        return self._own(text, **kwargs)

    def decode(self, ids, **kwargs):
        self.passed += len(ids)
        return self._own.decode(ids, **kwargs)

    def __getattr__(self, name):
        return getattr(self._own, name)


@pytest.mark.parametrize("name", ["pou", "search_r1"])
def test_each_turn_tokenises_and_decodes_only_what_is_new(name):
    """In messages, and in one raw text."""
    tokenizer, dialect = Watched(lab.tokenizer()), dialects.load(name)
    chat = ChatFormat.of(tokenizer, dialect)
    episode = Episode(Task("q", "Where?"), chat, Limits(turns=TURNS + 1, total_tokens=10**6), [])
    call, passed = ToolCall(dialect.search_tool or "shelf", {"query": "x"}), []
    for number in range(TURNS):
        before = tokenizer.passed
        verdict = {"helpful": True, "refs": (f"E{number}",)} if number and name == "pou" else {}
        text = dialect.render_turn(Step(think="look", call=call, **verdict))
        episode.take_turn(Completion(lab.tokenizer()(text)["input_ids"], "stop"))
        episode.take_observation(Observation((Evidence("It is in Rome.", "Place", f"E{number + 1}"),)))
        passed.append(tokenizer.passed - before)
    spans = [end - start for start, _, end in episode.turns]
    for own, new in zip(passed[1:], spans[1:], strict=True):
        assert own <= new + 50  # one token a byte, but for the template's markers between the turns
    assert len(episode.context) > 40 * max(passed)
    text = episode.trajectory().text
    assert all(text[slice(*step.spans["think"])].endswith("look") for step in episode.steps)
