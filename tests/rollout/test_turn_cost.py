"""What a turn of an episode costs besides the model does not grow with the episode."""

from __future__ import annotations

from types import SimpleNamespace

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


@pytest.fixture(params=["chatml", "search_r1"])
def scene(request):
    """An episode of many turns, in messages and in one raw text, and what passed the tokenizer in each of them."""
    tokenizer = Watched(lab.tokenizer())
    name, said = ("pou", SAID) if request.param == "chatml" else ("search_r1", "<think>look</think><search>x</search>")
    chat = ChatFormat.of(tokenizer, dialects.load(name))
    episode = Episode(Task("q", "Where?"), chat, Limits(turns=TURNS + 1, total_tokens=10**6), [])
    passed = []
    for number in range(TURNS):
        before = tokenizer.passed
        text = said.format(VERDICT.format(number) if number else "")
        episode.take_turn(Completion(lab.tokenizer()(text)["input_ids"], "stop"))
        episode.take_observation(Observation((Evidence("It is in Rome.", "Place", f"E{number + 1}"),)))
        passed.append(tokenizer.passed - before)
    return SimpleNamespace(episode=episode, passed=passed)


def test_each_turn_tokenises_and_decodes_only_what_is_new(scene):
    spans = [end - start for start, _, end in scene.episode.turns]
    for passed, own in zip(scene.passed[1:], spans[1:], strict=True):
        assert passed <= own + 50  # one token a byte, but for the template's markers between the turns
    assert len(scene.episode.context) > 40 * max(scene.passed)


def test_places_of_late_turns_are_those_of_the_whole_text(scene):
    episode = scene.episode
    for number, step in enumerate(episode.steps):
        start, end = step.spans["think"]
        assert episode.text[start:end].endswith("look")
        start, end = step.spans["response"]
        assert f"E{number + 1}" in episode.text[start:end] or "Doc 1" in episode.text[start:end]
    assert episode.trajectory().text == episode.text
