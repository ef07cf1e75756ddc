"""Episodes whose web services fail in every way: none is lost, every fault is read.

`tests/attacks/test_tool_faults.py` has tools that fail in every way that Python allows, `tests/tools/test_toolbox.py`
services that go down altogether.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from asking import Asking
from search_servers import KEY, Request, SearchServer, serper
from web_site import WebSite

from faithful_search import dialects
from faithful_search.rollout import Engine, Limits
from faithful_search.tasks import Task
from faithful_search.tools import Patience, Toolbox
from faithful_search.tools.browse import Browse, Fetch
from faithful_search.tools.remote_search import RemoteSearch
from faithful_search.tools.web.pages import Reading
from faithful_search.tools.web.providers.serper import Serper
from faithful_search.tools.web_search import WebSearch
from faithful_search.trajectory import Step, Trajectory
from faithful_search.wire import http
from faithful_search.wire.guard import Guard

CALLS = 3  # of an episode


def run(policy: Asking, toolbox: Toolbox, count: int) -> list[Trajectory]:
    """So many episodes at once: all are there afterwards, with all their calls and an answer."""
    tasks = [Task(f"q{n}", f"Question {n:04}?", ("Rome",)) for n in range(count)]
    found = Engine(policy, toolbox, limits=Limits(turns=6), concurrency=count).run(tasks)
    assert [t.id for t in found] == [task.id for task in tasks]
    assert {t.stop_reason for t in found} == {"answered"} and {len(t.steps) for t in found} == {CALLS + 1}
    return found


def told(found: Iterable[Trajectory]) -> Iterator[Step]:
    """The steps with a call; a note is alone, and in the text that the policy saw."""
    for t in found:
        for step in t.steps[:CALLS]:
            response = t.text[slice(*step.spans["response"])]
            assert bool(step.evidence) != bool(step.note)
            assert dialects.load("pou").fence.escape(step.note) in response
            yield step


SEARCHES = {  # what a search server does, and the policy reads: of `web_search`, of `local_search`, or of both
    "forbidden": (
        "The search service refuses to search; use another tool.",
        "Search is not available now; use another tool.",
    ),
    "busy": "the service: 429 Too Many Requests.",
    "unavailable": "the service: 503 Service Unavailable.",
    "hang": "the service took longer than 4 seconds.",
    "cut": "the service broke off or garbled its answer.",
    "closed": "the service broke off or garbled its answer.",
    "html": "the answer is not JSON.",
    "null": (
        "Web search failed: the search service answered with something else than results.",
        "The search server sent something that is no search result.",
    ),
}
PAGES = {
    "/missing": "404 Not Found.", "/status/503": "503 Service Unavailable.", "/silent": "took longer than 4 seconds.",
    "/slow-body": "took longer than 4 seconds.", "/drop": "broke off or garbled its answer.",
    "/endless": "sent more than 1,000,000 bytes.", "/bomb": "sent more than 1,000,000 bytes.",
    "/image": "sent image/png, which cannot be read here.", "/to-metadata": "redirects to an address that is refused.",
    "/loop": "redirects in a circle.", "/empty": "there is no text in it that could be read.",
}  # fmt: skip


class Moody(SearchServer):
    """Misbehaves for the queries that say how, such as "17 cut"."""

    def now(self, request: Request) -> str:
        super().now(request)
        _, mode, *_ = *self.asked(request).split(), "ok"
        return mode

    @staticmethod
    def asked(request: Request) -> str:
        return request.body["q"] if "q" in request.body else request.body["queries"][0]


def retrieve(request: Request) -> tuple[int, Any]:
    """A server of the Search-R1 format."""
    [query] = request.body["queries"]
    return 200, {"result": [[{"document": {"id": "1", "contents": f'"Page"\nAbout {query}.'}, "score": 1.0}]]}


@pytest.mark.slow
def test_the_real_tools_tell_every_fault_of_their_services(monkeypatch):
    count, draw = 200, random.Random(7)
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    monkeypatch.setattr(http, "_CALLS", 10_000)  # else one host's faults hide one another
    settings = {"timeout": 4, "patience": Patience(0), "per_host": 1000, "max_bytes": 1_000_000}

    def planned(number: int, turn: int, site: WebSite) -> tuple[str, dict[str, str], str]:
        """The call, and how the note ends; empty for evidence."""
        name, faulty = ("web_search", "local_search", "browse")[(number + turn) % 3], draw.random() < 0.3
        if name == "browse":
            path = draw.choice(list(PAGES)) if faulty else "/plain.txt"
            return name, {"url": site.url(f"{path}?{number}-{turn}"), "query": "nine arches"}, PAGES.get(path, "")
        mode = draw.choice(list(SEARCHES)) if faulty else ""
        told = SEARCHES.get(mode, "")
        local = name == "local_search"
        told = f"{'Search' if local else 'Web search'} failed: {told}" if told and isinstance(told, str) else told
        note = told if isinstance(told, str) else told[local]
        return name, {"query": f"{number}-{turn} {mode}".strip()}, note

    with Moody(serper) as web, Moody(retrieve) as local, WebSite() as site:
        guarded = http.Http(**settings, guard=Guard(allow=(f"{site.host}:{site.port}",)))
        tools = [
            WebSearch(Serper(url=web.url, http=http.Http(**settings))),
            RemoteSearch(local.url, http=http.Http(**settings)),
            Browse(Fetch(guarded), timeout=100, reading=Reading(seconds=100)),
        ]
        expected = {(n, turn): planned(n, turn, site) for n in range(count) for turn in range(CALLS + 1)}
        with Toolbox(tools, timeout=120, concurrency=1000) as toolbox:
            policy = Asking(lambda number, turn: expected[number, turn][:2], CALLS, slips=True)
            found = run(policy, toolbox, count)
            stats = toolbox.stats()
        asked = Counter(Moody.asked(request) for server in (web, local) for request in server.requests)
    faults = 0
    made = [expected[number, turn] for number in range(count) for turn in range(CALLS)]
    for (name, arguments, note), step in zip(made, told(found), strict=True):
        assert (step.call.name, step.call.arguments) == (name, arguments)
        assert step.note.endswith(note) if note else not step.note, (arguments, step.note)
        assert note or arguments["query"] in step.evidence[0].text
        assert "query" not in arguments or name == "browse" or asked[arguments["query"]] == 1
        faults += bool(note)
    assert sum(s.errors for s in stats.values()) == faults > 0.25 * CALLS * count
    assert not any(word in str(found) for word in (KEY, "169.254"))
