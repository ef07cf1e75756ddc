"""Check whether a change of the code changes how recorded rollouts are read and scored: record
before and after the change, then compare the two records.

    python scripts/compare_scores.py record before.jsonl.gz ../shared/data/trajectories
    python scripts/compare_scores.py record after.jsonl.gz ../shared/data/trajectories
    python scripts/compare_scores.py compare before.jsonl.gz after.jsonl.gz

Each row is read several times:

- as an audit reads it;
- by `parse`, with the dialect detected;
- by `parse` in each dialect, also those that it is not written in: what is made of a foreign text
  must not change either;
- one row in `EVERY` is also rendered by each dialect, as text and as chat, and read again.

A record has the trajectory of each reading, and its scores by all metrics that need neither a model
nor a policy. Long texts are recorded by their beginning and a digest.
"""

import argparse
import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from faithful_search import dialects
from faithful_search.errors import FaithfulSearchError
from faithful_search.json_lines import read_rows
from faithful_search.measure import metrics
from faithful_search.reading.rows import Row, read_trajectories
from faithful_search.rewards import Reward
from faithful_search.trajectory import Issue, Step, ToolCall, Trajectory

Read = Callable[[], Trajectory]
TEXT_FIELDS = ("messages", "gen_text_store", "solution", "output")
EVERY = 5
"""One row in so many is also rendered by each dialect."""
SHOWN = 60
"""The number of characters that a record has of a longer text."""
EXAMPLES = 3
"""The number of examples that are printed of each kind of difference."""


def main(argv: Sequence[str] | None = None) -> int:
    """Record or compare; returns 1 if two records differ, else 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    record_verb = verbs.add_parser("record", help="read and score every row, and write a record")
    record_verb.add_argument("out", type=Path)
    record_verb.add_argument("data", type=Path, help="a folder of .jsonl.gz files")
    compare_verb = verbs.add_parser("compare", help="list where two records differ")
    compare_verb.add_argument("before", type=Path)
    compare_verb.add_argument("after", type=Path)
    options = parser.parse_args(argv)
    if options.verb == "record":
        record(options.out, sorted(options.data.glob("*.jsonl.gz")))
        return 0
    return compare(options.before, options.after)


def record(out: Path, files: Sequence[Path]) -> None:
    """Write a line for each reading of each row."""
    rewards: dict[str, Reward] = {}
    for metric in metrics.names():
        for name, reward in metrics.load(metric).items():
            if not reward.needs_policy:
                rewards[name] = reward
    with gzip.open(out, "wt", encoding="utf-8") as file:
        for path in files:
            source = path.stem.removesuffix(".jsonl")
            for reading, read in readings(path):
                line = {"where": f"{source} {reading}", **outcome(read, rewards)}
                file.write(json.dumps(line, ensure_ascii=True, default=str) + "\n")


def readings(path: Path) -> Iterator[tuple[str, Read]]:
    """The name of each reading of each row, with a function that does it."""
    rows = zip(read_rows(path), read_trajectories(path), strict=True)
    for number, (row, audited) in enumerate(rows, start=1):
        trajectory = audited.trajectory
        source = next(row[name] for name in TEXT_FIELDS if name in row)
        yield f"{number} audit", partial(trajectory_in, audited)
        yield f"{number} parse", partial(dialects.parse, source)
        for name in dialects.names():
            yield f"{number} as {name}", partial(dialects.parse, source, name)
        if number % EVERY or trajectory is None:
            continue
        for name in dialects.names():
            dialect = dialects.load(name)
            writable = adapted(trajectory, dialect)
            text = dialect.render(writable)
            yield f"{number} text of {name}", partial(dialect.parse, text, fenced=True)
            chat = messages(writable, dialect)
            yield f"{number} chat of {name}", partial(dialect.parse_messages, chat, fenced=True)


def trajectory_in(row: Row) -> Trajectory:
    """The trajectory of a row. Raises `FaithfulSearchError` where it could not be read."""
    if row.trajectory is None:
        raise FaithfulSearchError(row.error)
    return row.trajectory


def adapted(trajectory: Trajectory, dialect: dialects.Dialect) -> Trajectory:
    """The same turns with calls, verdicts and ids that this dialect can write.

    A call becomes a search for the words of its arguments. In the dialect `pou` each step after a
    call says whether it brought evidence, and cites the first passage.
    """
    steps: list[Step] = []
    cited: tuple[str, ...] | None = None  # what the next verdict cites; `None` before any call
    for step in trajectory.steps:
        call = None
        if step.call is not None:
            query = " ".join(map(str, step.call.arguments.values()))
            call = ToolCall(dialect.search_tool or "search", {"query": query})
        verdict: dict[str, Any] = {}
        if cited is not None and dialect.name == "pou":
            verdict = {"helpful": bool(cited), "refs": cited}
        steps.append(
            Step(
                think=step.think,
                call=call,
                evidence=step.evidence,
                note=step.note,
                answer=None if call else step.answer,
                **verdict,
            )
        )
        if call is not None:
            cited = tuple(passage.id for passage in step.evidence[:1])
    return Trajectory(tuple(steps), trajectory.question or "Who?", answers=trajectory.answers)


def messages(trajectory: Trajectory, dialect: dialects.Dialect) -> list[dict[str, Any]]:
    """The trajectory as chat messages."""
    chat: list[dict[str, Any]] = [{"role": "user", "content": trajectory.question}]
    for step in trajectory.steps:
        chat.append({"role": "assistant", "content": dialect.render_turn(step)})
        if step.call is not None:
            role = dialect.observation_role or "tool"
            chat.append(
                {"role": role, "content": dialect.render_observation(step.evidence, step.note)}
            )
    return chat


def outcome(read: Read, rewards: Mapping[str, Reward]) -> dict[str, Any]:
    """The trajectory and its scores; or the error."""
    try:
        trajectory = read()
    except FaithfulSearchError as error:
        return {"error": str(error)}
    scores = {}
    for name, reward in rewards.items():
        score = reward.score(trajectory)
        scores[name] = [reward.measure(score), score.why, short(score.parts)]
    recorded = short(msgspec.to_builtins(with_quotes(trajectory)))
    return {"trajectory": recorded, "scores": scores}


def with_quotes(trajectory: Trajectory) -> Trajectory:
    """The trajectory without its text. Each span is replaced by the piece of text that it points
    to, so that one place of the text can change without all later spans.
    """

    def quote(span: tuple[int, int] | None) -> Any:
        return span and trajectory.text[slice(*span)]

    def quoted(issues: Sequence[Issue]) -> Any:
        return tuple(msgspec.structs.replace(issue, span=quote(issue.span)) for issue in issues)

    steps = []
    for step in trajectory.steps:
        spans: Any = {part: quote(span) for part, span in step.spans.items()}
        steps.append(msgspec.structs.replace(step, spans=spans, issues=quoted(step.issues)))
    return msgspec.structs.replace(
        trajectory, text="", steps=tuple(steps), issues=quoted(trajectory.issues)
    )


def short(value: Any) -> Any:
    """The value with each long text cut to its beginning and a digest of the whole."""
    if isinstance(value, str) and len(value) > SHOWN:
        digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return f"{value[:SHOWN]}… {digest}"
    if isinstance(value, dict):
        return {name: short(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [short(part) for part in value]
    return value


def compare(before: Path, after: Path) -> int:
    """Print how many readings differ and where: for each kind of difference its number of readings
    and some examples. Readings that only one of the records has (a dialect is new, or gone) are
    counted. Returns 1 if a reading differs, else 0.
    """
    kinds: Counter[str] = Counter()
    examples: defaultdict[str, list[str]] = defaultdict(list)
    not_compared = {line["where"]: line for line in lines(before)}
    compared = added = rescored = 0
    for new in lines(after):
        where = new["where"]
        old = not_compared.pop(where, None)
        if old is None:
            added += 1
            continue
        compared += 1
        rescored += old.get("scores") != new.get("scores")
        # The same difference in several rows is of one kind, so numbers are left out
        reading = " ".join(part for part in where.split() if not part.isdigit())
        kinds_of_reading = set()
        for place, was, now in differences(old, new, ""):
            kind = f"{reading}: {without_numbers(place)}"
            kinds_of_reading.add(kind)
            if len(examples[kind]) < EXAMPLES:
                examples[kind].append(
                    f"    {where} {place}\n      - {was!r:.300}\n      + {now!r:.300}"
                )
        kinds.update(kinds_of_reading)
    print(
        f"{compared} readings; {rescored} with other scores; {added} new, {len(not_compared)} gone"
    )
    for kind, count in sorted(kinds.items()):
        print(f"{count:6}  {kind}", *examples[kind], sep="\n")
    return int(bool(kinds))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a record."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def without_numbers(place: str) -> str:
    """A place in a record, such as `/trajectory/steps/3/think`, without the numbers in it."""
    return "/".join(part for part in place.split("/") if not part.isdigit())


def differences(old: Any, new: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Each place where two values differ, with both."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from differences(old.get(name), new.get(name), f"{place}/{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (old_part, new_part) in enumerate(zip(old, new, strict=True)):
            yield from differences(old_part, new_part, f"{place}/{number}")
    elif old != new:
        yield place, old, new


if __name__ == "__main__":
    sys.exit(main())
