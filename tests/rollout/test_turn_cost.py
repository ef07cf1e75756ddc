"""What a turn of an episode costs besides the model does not grow with the episode."""

from __future__ import annotations

import lab
import pytest

from faithful_search import dialects
from faithful_search.inference.base import Completion
from faithful_search.inference.chat import ChatFormat
from faithful_search.rollout import Episode, Limits
from faithful_search.tasks import Task
from faithful_search.tools.base import Observation
from faithful_search.trajectory import Evidence

TURNS = 60
SAID = '<think>{}look</think><tool_call>{{"name": "shelf", "arguments": {{"query": "x"}}}}</tool_call>'
VERDICT = "<helpful>yes</helpful><ref>E{}</ref>"


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


@pytest.mark.parametrize("dialect", ["pou", "search_r1"])
def test_each_turn_tokenises_and_decodes_only_what_is_new(dialect):
    """In messages, and in one raw text."""
    tokenizer = Watched(lab.tokenizer())
    said = SAID if dialect == "pou" else "<think>look</think><search>x</search>"
    chat = ChatFormat.of(tokenizer, dialects.load(dialect))
    episode = Episode(Task("q", "Where?"), chat, Limits(turns=TURNS + 1, total_tokens=10**6), [])
    passed = []
    for number in range(TURNS):
        before = tokenizer.passed
        text = said.format(VERDICT.format(number) if number else "")
        episode.take_turn(Completion(lab.tokenizer()(text)["input_ids"], "stop"))
        episode.take_observation(Observation((Evidence("It is in Rome.", "Place", f"E{number + 1}"),)))
        passed.append(tokenizer.passed - before)
    spans = [end - start for start, _, end in episode.turns]
    for own, new in zip(passed[1:], spans[1:], strict=True):
        assert own <= new + 50  # one token a byte, but for the template's markers between the turns
    assert len(episode.context) > 40 * max(passed)
    assert all(episode.text[slice(*step.spans["think"])].endswith("look") for step in episode.steps)
