"""Whether a change of the code changes what is read and scored: every recorded trajectory, in every
dialect.

    python scripts/compare_scores.py record before.jsonl.gz ../shared/data/trajectories
    python scripts/compare_scores.py record after.jsonl.gz ../shared/data/trajectories
    python scripts/compare_scores.py compare before.jsonl.gz after.jsonl.gz

Each row is read as the audit reads it, by `parse` without a dialect, by `parse` in each dialect
there is (also in those that it is not written in: what is read of a foreign text must not change
either), and, one row in `EVERY`, written anew by each dialect, as text and as chat, and read again.
Recorded are the trajectory and the scores of all metrics that need neither a model nor a policy.
Texts are recorded by their first words and a digest.
"""

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from faithful_search import dialects
from faithful_search.errors import FaithfulSearchError
from faithful_search.json_lines import read_rows
from faithful_search.measure import metrics
from faithful_search.reading.rows import read_trajectories
from faithful_search.rewards import Reward
from faithful_search.trajectory import Step, ToolCall, Trajectory

TEXT_FIELDS = ("messages", "gen_text_store", "solution", "output")
EVERY = 5
"""One row in so many is also written anew by each dialect."""
SHOWN, EXAMPLES = 60, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Record or compare; 1 when two records differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    record_verb = verbs.add_parser(
        "record", help="parse and score every row, and write what came out"
    )
    record_verb.add_argument("out", type=Path)
    record_verb.add_argument("data", type=Path, help="a folder of .jsonl.gz files")
    compare_verb = verbs.add_parser("compare", help="list where two such files differ")
    compare_verb.add_argument("before", type=Path)
    compare_verb.add_argument("after", type=Path)
    options = parser.parse_args(argv)
    if options.verb == "record":
        record(options.out, sorted(options.data.glob("*.jsonl.gz")))
        return 0
    return compare(options.before, options.after)


def record(out: Path, files: Sequence[Path]) -> None:
    """Write one line for each way in which each row is read."""
    rewards: dict[str, Reward] = {}
    for name in metrics.names():
        rewards |= {
            result: one for result, one in metrics.load(name).items() if not one.needs_policy
        }
    with gzip.open(out, "wt", encoding="utf-8") as file:
        for path in files:
            for where, read in readings(path):
                line = {
                    "where": f"{path.stem.removesuffix('.jsonl')} {where}",
                    **outcome(read, rewards),
                }
                file.write(json.dumps(line, ensure_ascii=True, default=str) + "\n")


def readings(path: Path) -> Iterator[tuple[str, Callable[[], Trajectory]]]:
    """Each reading's name, and what does it."""
    audited = read_trajectories(path)
    for number, (row, found) in enumerate(zip(read_rows(path), audited, strict=True), start=1):
        source = next(row[name] for name in TEXT_FIELDS if name in row)
        yield f"{number} audit", lambda found=found: found.trajectory or refuse(found.error)
        yield f"{number} parse", lambda source=source: dialects.parse(source)
        for name in dialects.names():
            yield (
                f"{number} as {name}",
                lambda source=source, name=name: dialects.parse(source, name),
            )
        if number % EVERY == 0 and found.trajectory is not None:
            for name in dialects.names():
                dialect, written = (
                    dialects.load(name),
                    rewritten(found.trajectory, dialects.load(name)),
                )
                text = dialect.render(written)
                yield (
                    f"{number} text of {name}",
                    lambda text=text, own=dialect: own.parse(text, fenced=True),
                )
                chat = messages(written, dialect)
                yield (
                    f"{number} chat of {name}",
                    lambda chat=chat, own=dialect: own.parse_messages(chat, fenced=True),
                )


def refuse(why: str) -> Trajectory:
    """Raise the reason why a row could not be read."""
    raise FaithfulSearchError(why)


def rewritten(trajectory: Trajectory, dialect: dialects.Dialect) -> Trajectory:
    """The same turns with calls, verdicts and ids that this dialect can write."""
    steps: list[Step] = []
    received: tuple[str, ...] | None = None
    for step in trajectory.steps:
        words = " ".join(str(value) for value in step.call.arguments.values()) if step.call else ""
        call = ToolCall(dialect.search_tool or "search", {"query": words}) if step.call else None
        verdict = (
            {}
            if received is None or dialect.name != "pou"
            else {"helpful": bool(received), "refs": received}
        )
        answer = None if call else step.answer
        steps.append(
            Step(
                think=step.think,
                call=call,
                evidence=step.evidence,
                note=step.note,
                answer=answer,
                **verdict,
            )
        )
        received = tuple(item.id for item in step.evidence[:1]) if call else received
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


def outcome(read: Callable[[], Trajectory], rewards: Mapping[str, Reward]) -> dict[str, Any]:
    """What was read, and its scores; or the error."""
    try:
        found = read()
    except FaithfulSearchError as error:
        return {"error": str(error)}
    scores = {name: reward.score(found) for name, reward in rewards.items()}
    return {
        "trajectory": short(msgspec.to_builtins(pointed(found))),
        "scores": {
            name: [rewards[name].measure(score), score.why, short(score.parts)]
            for name, score in scores.items()
        },
    }


def pointed(found: Trajectory) -> Trajectory:
    """Without its text, and with what spans point to in the place of where they point."""

    def piece(span: tuple[int, int] | None) -> Any:
        return span and found.text[slice(*span)]

    def told(issues: Sequence[Any]) -> Any:
        return tuple(msgspec.structs.replace(issue, span=piece(issue.span)) for issue in issues)

    steps = tuple(
        msgspec.structs.replace(
            step,
            spans={part: piece(span) for part, span in step.spans.items()},
            issues=told(step.issues),
        )
        for step in found.steps
    )
    return msgspec.structs.replace(found, text="", steps=steps, issues=told(found.issues))


def short(value: Any) -> Any:
    """Long texts cut to their beginning and a digest of the whole."""
    if isinstance(value, str) and len(value) > SHOWN:
        digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return f"{value[:SHOWN]}… {digest}"
    if isinstance(value, dict):
        return {name: short(item) for name, item in value.items()}
    return [short(item) for item in value] if isinstance(value, (list, tuple)) else value


def compare(before: Path, after: Path) -> int:
    """Print how many readings differ and where: for each kind of difference a count and some
    examples. Readings that one of the records alone has (of a dialect that is new) are counted.
    """
    kinds: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    earlier = {line["where"]: line for line in lines(before)}
    scored = read = added = 0
    for new in lines(after):
        where = new["where"]
        old = earlier.pop(where, None)
        if old is None:
            added += 1
            continue
        read += 1
        differing = list(differences(old, new, ""))
        scored += any(place.startswith("/scores") for place, *_ in differing)
        reading = " ".join(part for part in where.split() if not part.isdigit())
        for kind in dict.fromkeys(shape(place) for place, *_ in differing):
            kinds[f"{reading}: {kind}"] += 1
        for place, was, now in differing:
            shown = examples.setdefault(f"{reading}: {shape(place)}", [])
            if len(shown) < EXAMPLES:
                shown.append(f"    {where} {place}\n      - {was!r:.300}\n      + {now!r:.300}")
    print(f"{read} readings; {scored} with other scores; {added} new, {len(earlier)} gone")
    for kind, count in sorted(kinds.items()):
        print(f"{count:6}  {kind}", *examples[kind], sep="\n")
    return int(bool(kinds))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a record."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def shape(place: str) -> str:
    """A place without its numbers."""
    return "/".join(part for part in place.split("/") if not part.isdigit())


def differences(old: Any, new: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Each place where two values differ, with both."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from differences(old.get(name), new.get(name), f"{place}/{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif old != new:
        yield place, old, new


if __name__ == "__main__":
    sys.exit(main())
