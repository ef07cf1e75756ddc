"""Can these questions be answered from this corpus? What an agent could find in it at best.

```
tasks ─ queries_of ─> searches ─ ranks ─> QuestionLookup (a line of rows.jsonl) ─ verdict_of ─> Answerable
```

The searches are those of an agent that knows the way: the question, the titles of its gold
passages, and the sub-questions that it is annotated with. A question whose answer they do not find
can still be answered by an agent that searches better, knows the answer or guesses it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import ConfigError, ToolError
from ..escape import as_line
from ..tasks import Task
from ..text import normalize, sub_exact_match, title_key
from ..tools.local_search import LocalSearch, open_search
from ..tools.remote_search import RemoteSearch
from ..trajectory import Evidence
from ..wire.background import Background, map_concurrently
from .ledger import Records, same_settings
from .report import aligned, interval
from .stats import Estimate, mean_ci
from .workers import chunks, progress_bar
from .writing import make_folder, write_metrics

ROWS, SETTINGS, RESULTS = "rows.jsonl", "settings.json", "answerable.json"
DEPTH = 20
"""Passages that are looked at for each query at least: results for a smaller top k are read from
the same rows.
"""
ANSWERABLE = "answerable"
IN_GRAPH = "a gold fact is not in the corpus, but in the knowledge graph"
NO_GOLD = "a gold passage is not in the corpus"
NO_STRING = "no passage of the corpus holds the answer"
NOT_RETRIEVED = "what is needed is not among the passages retrieved"
NOT_ANNOTATED = "the question names no gold passages"
VERDICTS = (ANSWERABLE, IN_GRAPH, NO_GOLD, NO_STRING, NOT_RETRIEVED, NOT_ANNOTATED)
MEASURES = {
    "gold_in_corpus": "all gold passages are in the corpus",
    "gold_retrieved": "all gold passages are retrieved",
    "answer_in_corpus": "a passage of the corpus holds the answer",
    "answer_by_question": "… and the question as the query retrieves one",
    "answer_by_best": "… and the best query retrieves one",
    "closed_by_gold": "yes/no and comparison: all gold passages are retrieved",
    "exact_match_ceiling": "upper bound of exact match",
}
"""The measures of the table, by name, in its order."""
CHECKED, MOST_PASSAGES, FEW = 200, 200_000, 0.8
"""Before a training so many questions are looked up, in a corpus of at most so many passages; below
this share of questions with all gold passages there is a warning.
"""
SHOWN = 5

_BATCH = 32  # questions whose rows are written together
_CLOSED = ("yes", "no")
_DECOMPOSITIONS = ("decomposition", "question_decomposition")
"""Columns with a question's sub-questions. The second is MuSiQue's own, which rows may keep beside
the first.
"""
_REFERENCE = re.compile(r"#([0-9]+)")
_ID, _TITLE = "id", "title"

Key = tuple[str, str]
"""What a passage is known by: its id in the corpus, or its normalised title."""
Gold = tuple[Key, ...]
"""One piece of evidence that a question needs: any passage with one of these keys."""
Outcome = list[Evidence] | ToolError
Search = Callable[[Sequence[str], int], Sequence[Outcome]]
"""Takes queries and a top k, and returns the passages of each query, or why there are none."""


class Query(msgspec.Struct, frozen=True):
    """A search, and at which ranks (from 1) it finds what is looked for.

    Attributes:
        text: the query.
        kind: `question`, `title` or `sub-question`.
        answer: the rank of the first passage that holds a gold answer; `None` without one.
        gold: the rank of each gold passage, likewise.
    """

    text: str
    kind: str
    answer: int | None
    gold: tuple[int | None, ...]


class QuestionLookup(msgspec.Struct, frozen=True):
    """What is known of one question.

    Attributes:
        closed: whether its answer is yes or no, or stands in the question, so that a passage that
            holds it says nothing.
        gold: the gold passages, as they are annotated.
        in_corpus: whether each of them is in the corpus; `None` where that cannot be known.
        answer_in_corpus: whether any passage of the corpus holds the answer; `None` where the
            question is closed, or where that cannot be known.
        in_graph: whether each gold fact is in the knowledge graph; empty without one.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    closed: bool
    gold: tuple[str, ...]
    in_corpus: tuple[bool | None, ...]
    queries: tuple[Query, ...]
    answer_in_corpus: bool | None = None
    in_graph: tuple[bool, ...] = ()


class LookupLimits(NamedTuple):
    """How many passages a search returns, and how many searches an episode may have."""

    top_k: int
    searches: int


class Answerable(msgspec.Struct, frozen=True):
    """The result over all questions.

    Attributes:
        rows: the estimates of `MEASURES`, each over the questions that it applies to.
        verdicts: the ids of the questions by verdict.
        failed: why questions could not be looked up, by id. They count nowhere.
    """

    limits: LookupLimits
    rows: dict[str, Estimate]
    verdicts: dict[str, list[str]]
    failed: dict[str, str] = {}

    def __str__(self) -> str:
        table = [["share of the questions", "[95% CI]", "n"]]
        for name, meaning in MEASURES.items():
            estimate = self.rows[name]
            table.append([meaning, interval(estimate), str(estimate.n)])
        lines = [
            f"top {self.limits.top_k} of a search, at most {self.limits.searches} searches",
            "",
            aligned(table),
            "",
        ]
        for verdict in VERDICTS:
            ids = self.verdicts.get(verdict, [])
            if verdict == IN_GRAPH and not ids:  # most corpora have no graph beside them
                continue
            line = f"{len(ids):>5}  {verdict}"
            if ids and verdict != ANSWERABLE:
                more = ", …" if len(ids) > SHOWN else ""
                line += f" (ids: {', '.join(ids[:SHOWN])}{more})"
            lines.append(as_line(line))
        return "\n".join(lines)


def gold_of(task: Task) -> dict[str, Gold]:
    """The pieces of evidence that the task is annotated with, by name; empty without annotation.

    They are the facts of its chain, each stated by a passage or a triple, else its
    `supporting_ids`, else its `supporting_titles`.

    Example:
        >>> gold_of(Task("q", "Where?", supporting_titles=("Mount Bogong",)))
        {'Mount Bogong': (('title', 'mount bogong'),)}
    """
    gold: dict[str, Gold] = {}
    for fact in _objects(task.meta.get("chain")):
        ids = [str(fact[kind]) for kind in ("passage", "triple") if fact.get(kind)]
        if ids:
            name = " or ".join(ids)
            gold[name] = tuple((_ID, id) for id in ids)
    if gold:
        return gold
    for id in task.supporting_ids:
        gold[id] = ((_ID, id),)
    if gold:
        return gold
    for title in task.supporting_titles:
        gold[title] = (_title_key(title),)
    return gold


def is_closed(task: Task) -> bool:
    """Whether a gold answer is yes or no, or stands in the question, as in comparisons.

    Example:
        >>> is_closed(Task("q", "Which is higher, Mount Bogong or K2?", ("K2",)))
        True
    """
    for answer in task.answers:
        if normalize(answer, "unicode") in _CLOSED:
            return True
        if sub_exact_match(task.question, [answer], "unicode"):
            return True
    return False


def queries_of(task: Task, titles: Iterable[str]) -> list[tuple[str, str]]:
    """The queries for a task and their kinds, each query once: the question, the titles of its gold
    passages, and its annotated sub-questions with the answers of earlier ones filled in.

    Example:
        >>> steps = [{"question": "Who wrote it?", "answer": "Ann"}, {"question": "#1 >> spouse"}]
        >>> queries_of(Task("q", "Whose spouse wrote it?", meta={"decomposition": steps}), [])
        [('Whose spouse wrote it?', 'question'), ('Who wrote it?', 'sub-question'), ('Ann spouse', 'sub-question')]
    """
    queries = {task.question: "question"}
    for title in titles:
        queries.setdefault(title, "title")
    for text in _sub_questions(task):
        queries.setdefault(text, "sub-question")
    return list(queries.items())


def _sub_questions(task: Task) -> Iterator[str]:
    """The annotated sub-questions, in which `#1` is replaced by the answer of the first one, and so
    on. In MuSiQue `>>` stands between a subject and its relation.
    """
    decompositions = [_objects(task.meta.get(column)) for column in _DECOMPOSITIONS]
    # Not both: `#1` is the first sub-question of its own column
    steps = next(filter(None, decompositions), [])
    answers = [str(step.get("answer", "")) for step in steps]

    def answer_referred_to(reference: re.Match[str]) -> str:
        place = int(reference[1]) - 1
        if not 0 <= place < len(answers):
            return reference[0]
        return answers[place]

    for step in steps:
        question = str(step.get("question", ""))
        question = _REFERENCE.sub(answer_referred_to, question)
        words = question.replace(">>", " ").split()
        yield " ".join(words)


def _objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects in a list, whatever a row holds in its place."""
    entries = value if isinstance(value, list | tuple) else []
    return [entry for entry in entries if isinstance(entry, Mapping)]


def searching(corpus: str) -> Search:
    """A function that searches the corpus, which is any that `open_search` knows. Raises as
    `open_search` does.
    """
    tool = open_search(corpus)
    if isinstance(tool, LocalSearch):
        return tool.index.search_each
    return _asking(tool)


def _asking(tool: RemoteSearch) -> Search:
    background = Background()

    def search(queries: Sequence[str], top_k: int) -> Sequence[Outcome]:
        searcher = RemoteSearch(tool.url, tool.wire, top_k=top_k, http=tool.http)

        async def outcome(query: str) -> Outcome:
            try:
                return await searcher.search(query)
            except ToolError as error:
                return error

        return background.run(map_concurrently(outcome, queries, most=tool.http.per_host))

    return search


class Presence(NamedTuple):
    """What one reading of the sources says of gold passages and facts.

    Attributes:
        keys: those that are in the corpus.
        titles: the titles of passages, by id.
        graph: the ids of the facts of a knowledge graph; `None` without one.
    """

    keys: frozenset[Key]
    titles: dict[str, str]
    graph: frozenset[str] | None = None


def look_up(
    tasks: Iterable[Task], passages: Iterable[Evidence], graph: frozenset[str] | None = None
) -> Presence:
    """Which gold passages of the tasks are among the passages. `graph` has the ids of the facts of
    a knowledge graph beside them.
    """
    needed: set[Key] = set()
    for task in tasks:
        needed.update(*gold_of(task).values())
    present: set[Key] = set()
    titles: dict[str, str] = {}
    for passage in passages:
        id_key = (_ID, passage.source)
        title_key = _title_key(passage.title)
        if title_key in needed:
            present.add(title_key)
        if id_key in needed:
            present.add(id_key)
            titles[passage.source] = passage.title
    return Presence(frozenset(present), titles, graph)


def run_lookup(
    tasks: Sequence[Task],
    search: Search,
    passages: Callable[[], Iterable[Evidence]] | None,
    folder: Path,
    settings: Mapping[str, Any],
    limits: LookupLimits,
    anew: bool = False,
    graph: frozenset[str] | None = None,
) -> Answerable:
    """Look up the questions that the folder has no row of, and compute the result over all.

    Args:
        tasks: the questions.
        search: searches the corpus.
        passages: reads all passages of the corpus; `None` where it can only be searched, so that
            only what is found is known to be there.
        folder: for `rows.jsonl`, written as rows are known, and `answerable.json`, written last.
        settings: what the rows depend on. A folder holds rows of the same settings only.
        limits: what an episode may do.
        anew: throw away what the folder holds.
        graph: the ids of the facts of a knowledge graph, which may have what the corpus lacks.
            It is read only where `passages` are.

    Raises `ConfigError` for repeated ids and for a folder of other settings, `DataError` when the
    corpus cannot be read or the folder not be written.
    """
    times = Counter(task.id for task in tasks)
    repeated = [id for id, count in times.items() if count > 1]
    if repeated:
        raise ConfigError(
            "questions are told apart by their ids, and these are repeated: "
            f"{', '.join(repeated[:SHOWN])}"
        )
    depth = max(DEPTH, limits.top_k)
    settings = {**settings, "depth": depth}
    file = make_folder(folder) / ROWS
    if anew:
        file.unlink(missing_ok=True)
    same_settings(folder / SETTINGS, settings, "give another --out, or --overwrite", ledger=file)
    write_metrics(folder / SETTINGS, settings)
    failed: dict[str, str] = {}
    with Records(file, "lookup", QuestionLookup, keep=lambda row: (row.id, row)) as rows:
        missing = [task for task in tasks if task.id not in rows.kept]
        presence = look_up(missing, passages(), graph) if missing and passages else None
        open_rows: list[QuestionLookup] = []
        with progress_bar(desc="searching", total=len(missing), unit="question") as bar:
            for part in chunks(missing, _BATCH):
                complete: list[QuestionLookup] = []
                for row in _rows(part, search, presence, depth, failed):
                    # Only a reading of the whole corpus can tell that no passage has the answer
                    if passages is None or _is_complete(row):
                        complete.append(row)
                    else:
                        open_rows.append(row)
                rows.add(complete)
                bar.update(len(part))
        if open_rows and passages:
            rows.add(_with_strings(open_rows, passages()))
        all_rows = [rows.kept[task.id] for task in tasks if task.id in rows.kept]
        result = summarise(all_rows, limits)
    result = msgspec.structs.replace(result, failed=failed)
    write_metrics(folder / RESULTS, {**msgspec.to_builtins(result), "settings": settings})
    return result


def _rows(
    tasks: Sequence[Task],
    search: Search,
    presence: Presence | None,
    depth: int,
    failed: dict[str, str],
) -> list[QuestionLookup]:
    """The rows of some tasks, whose queries are searched together. A task with a search that failed
    has none; `failed` gets the reason.
    """
    queries_by_task = [queries_of(task, _titles(task, presence)) for task in tasks]
    texts = [text for text, _ in chain.from_iterable(queries_by_task)]
    all_outcomes = iter(search(texts, depth))
    rows = []
    for task, queries in zip(tasks, queries_by_task, strict=True):
        outcomes = list(islice(all_outcomes, len(queries)))
        errors = [outcome for outcome in outcomes if isinstance(outcome, ToolError)]
        if errors:
            failed[task.id] = str(errors[0])
            continue
        results = [outcome for outcome in outcomes if isinstance(outcome, list)]
        rows.append(_row(task, queries, results, presence))
    return rows


def _row(
    task: Task,
    queries: Sequence[tuple[str, str]],
    results: Sequence[list[Evidence]],
    presence: Presence | None,
) -> QuestionLookup:
    gold = gold_of(task)
    closed = is_closed(task)
    searched = []
    for (text, kind), passages in zip(queries, results, strict=True):
        answer_rank = None
        if not closed:
            answer_rank = _rank(holds_answer(passage, task.answers) for passage in passages)
        gold_ranks = []
        for keys in gold.values():
            gold_ranks.append(_rank(_is_gold(passage, keys) for passage in passages))
        searched.append(Query(text, kind, answer_rank, tuple(gold_ranks)))
    in_corpus: list[bool | None] = []
    in_graph: list[bool] = []
    for place, keys in enumerate(gold.values()):
        if any(query.gold[place] for query in searched):
            in_corpus.append(True)
        elif presence is None:
            in_corpus.append(None)
        else:
            in_corpus.append(not presence.keys.isdisjoint(keys))
        if presence is not None and presence.graph is not None:
            ids = {id for kind, id in keys if kind == _ID}
            in_graph.append(not ids.isdisjoint(presence.graph))
    is_retrieved = any(query.answer for query in searched)
    return QuestionLookup(
        id=task.id,
        question=task.question,
        answers=task.answers,
        closed=closed,
        gold=tuple(gold),
        in_corpus=tuple(in_corpus),
        queries=tuple(searched),
        answer_in_corpus=True if is_retrieved else None,
        in_graph=tuple(in_graph),
    )


def _titles(task: Task, presence: Presence | None) -> list[str]:
    """The titles of the gold passages that the task names by title, and of those that it names by
    id, as far as the corpus was read and has them.
    """
    if presence is None:
        return list(task.supporting_titles)
    titles_by_id = [presence.titles.get(id, "") for id in task.supporting_ids]
    return [*filter(None, titles_by_id), *task.supporting_titles]


def _is_complete(row: QuestionLookup) -> bool:
    """Whether the row needs no look at the other passages of the corpus."""
    return row.closed or row.answer_in_corpus is not None


def _with_strings(
    rows: Sequence[QuestionLookup], passages: Iterable[Evidence]
) -> list[QuestionLookup]:
    """The rows, with `answer_in_corpus` filled in. Reads passages until one holds the answer of
    each row, at worst the whole corpus.
    """
    remaining = {row.id: row for row in rows}
    for passage in progress_bar(iterable=passages, desc="looking for answers", unit="passage"):
        answered = [row for row in remaining.values() if holds_answer(passage, row.answers)]
        for row in answered:
            del remaining[row.id]
        if not remaining:
            break
    return [msgspec.structs.replace(row, answer_in_corpus=row.id not in remaining) for row in rows]


def holds_answer(passage: Evidence, answers: Sequence[str]) -> bool:
    """Whether the passage's title or text holds an answer as whole words, numbers and dates in any
    way of writing.
    """
    return bool(sub_exact_match(f"{passage.title}\n{passage.text}", answers, "unicode"))


def _is_gold(passage: Evidence, gold: Gold) -> bool:
    return (_ID, passage.source) in gold or _title_key(passage.title) in gold


def _title_key(title: str) -> Key:
    return _TITLE, title_key(title)


def _rank(fits: Iterable[bool]) -> int | None:
    """The place, from 1, of the first that fits."""
    return next((rank for rank, does_fit in enumerate(fits, start=1) if does_fit), None)


def searches_needed(row: QuestionLookup, top_k: int) -> int | None:
    """The fewest of the row's queries that retrieve all gold passages together; `None` where all of
    them do not, or where none is annotated.
    """
    needed = set(range(len(row.gold)))
    covers: list[set[int]] = []  # what single queries retrieve, each such set once
    for query in row.queries:
        cover = {place for place, rank in enumerate(query.gold) if rank and rank <= top_k}
        if cover and cover not in covers:
            covers.append(cover)
    if not needed or not needed <= set().union(*covers):
        return None
    for count in range(1, len(covers)):
        for chosen in combinations(covers, count):
            if needed <= set().union(*chosen):
                return count
    return len(covers)


def verdict_of(row: QuestionLookup, limits: LookupLimits) -> str:
    """Whether the question can be answered, and why not: one of `VERDICTS`.

    It can where a query's first `top_k` passages hold a gold answer. A closed question can where at
    most `searches` queries retrieve all its gold passages.
    """
    if row.closed and not row.gold:
        return NOT_ANNOTATED
    if row.closed:
        needed = searches_needed(row, limits.top_k)
        is_found = needed is not None and needed <= limits.searches
    else:
        is_found = _answer_rank(row.queries) <= limits.top_k
    if is_found:
        return ANSWERABLE
    missing = [place for place, is_there in enumerate(row.in_corpus) if is_there is False]
    if missing and row.in_graph and all(row.in_graph[place] for place in missing):
        return IN_GRAPH
    if missing:
        return NO_GOLD
    if row.answer_in_corpus is False:
        return NO_STRING
    return NOT_RETRIEVED


def _answer_rank(queries: Iterable[Query]) -> float:
    """The best rank of an answer over the queries; infinite without one."""
    ranks = [query.answer for query in queries if query.answer is not None]
    return min(ranks, default=float("inf"))


def summarise(rows: Iterable[QuestionLookup], limits: LookupLimits) -> Answerable:
    """The result over the rows."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    verdicts: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        verdict = verdict_of(row, limits)
        verdicts[verdict].append(row.id)
        needed = searches_needed(row, limits.top_k)
        is_covered = needed is not None and needed <= limits.searches
        if row.gold:
            values["gold_retrieved"].append(is_covered)
            if None not in row.in_corpus:
                values["gold_in_corpus"].append(all(row.in_corpus))
            if row.closed:
                values["closed_by_gold"].append(is_covered)
        if not row.closed:
            if row.answer_in_corpus is not None:
                values["answer_in_corpus"].append(row.answer_in_corpus)
            alone = [query for query in row.queries if query.kind == "question"]
            values["answer_by_question"].append(_answer_rank(alone) <= limits.top_k)
            values["answer_by_best"].append(_answer_rank(row.queries) <= limits.top_k)
        if verdict != NOT_ANNOTATED:
            values["exact_match_ceiling"].append(verdict == ANSWERABLE)
    estimates = {name: mean_ci(values[name], bounds=(0.0, 1.0)) for name in MEASURES}
    return Answerable(limits, estimates, dict(verdicts))


def gold_warning(tasks: Iterable[Task], passages: Iterable[Evidence]) -> str | None:
    """A warning where the corpus lacks gold passages of many of the first questions; `None` where
    it has them, where they are not annotated, and where the corpus is too large to read at once.
    """
    annotated = [task for task in islice(tasks, CHECKED) if gold_of(task)]
    if not annotated:
        return None
    corpus = list(islice(passages, MOST_PASSAGES + 1))
    if len(corpus) > MOST_PASSAGES:
        return None
    present = look_up(annotated, corpus).keys
    complete = 0
    for task in annotated:
        gold = gold_of(task).values()
        if all(not present.isdisjoint(keys) for keys in gold):
            complete += 1
    if complete >= FEW * len(annotated):
        return None
    return (
        f"the corpus has all gold passages of {complete} of the first {len(annotated)} questions: "
        "an agent cannot read the answers of the others there"
    )
