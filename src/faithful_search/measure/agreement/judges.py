"""The judges that are compared: named on a command line, or labels that were given before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import ConfigError
from ...judges import Judge, LexicalJudge, Pair, Verdict
from ...judges import load as load_judge
from .labelled import Labelled, load


def parse_judge(spec: str, trust_remote_code: bool = False) -> tuple[str, Judge]:
    """A judge and its name from what is typed on a command line.

    ```
    lexical | containment | embedding:MODEL | nli:MODEL | generator:MODEL | endpoint:MODEL@URL | remote:URL
    labels:PATH
    ```
    MODEL is a Hub id or a directory (for `endpoint` the served name). The name is the kind and the model's last part.
    PATH is a labelled file or a folder of them, such as another run of a judge over the same pairs.

    Raises:
        ConfigError: for anything else.
        DataError: for a PATH that holds no labels.
    """
    kind, _, model = spec.partition(":")
    served, _, url = model.rpartition("@") if kind == "endpoint" else (model, "", "")
    name = f"{kind}:{served.removesuffix('/pairs.jsonl').rstrip('/').rsplit('/', 1)[-1]}" if model else kind
    if spec == "containment":
        return spec, LexicalJudge()
    if kind == "lexical" and model:
        raise ConfigError(f"{spec!r}: the lexical judge has no model")
    if kind == "labels" and model:
        return name, RecordedJudge.of(load(model))
    if kind == "remote":  # its model is the server's business
        return spec, load_judge(kind, url=model)
    if kind == "endpoint":
        if not served or not url.startswith(("http://", "https://")):
            raise ConfigError(f"{spec!r}: expected endpoint:MODEL@URL with an http(s) URL")
        # Several claims in one request bring no probabilities, which calibration needs
        return name, load_judge(kind, served, url=url, together=False)
    knobs = {"trust_remote_code": True} if trust_remote_code and kind != "lexical" else {}
    return name, load_judge(kind, model or None, **knobs)


def parse_judges(specs: Iterable[str], trust_remote_code: bool = False) -> dict[str, Judge]:
    """The judges by name; a name that two have gets a number."""
    found: dict[str, Judge] = {}
    for name, judge in (parse_judge(spec, trust_remote_code) for spec in specs):
        taken = sum(other == name or other.startswith(f"{name} #") for other in found)
        found[f"{name} #{taken + 1}" if taken else name] = judge
    return found


@dataclass(frozen=True)
class RecordedJudge:
    """Labels that were given before, by people or another run, as a judge.

    It looks a pair up by what it says (question, premise, hypothesis, task) and abstains where there is no label, or
    both. p is the labeller's where the file has it, else 1 or 0. The name holds a digest of the labels, so that other
    labels are another judge.
    """

    name: str
    verdicts: Mapping[Pair, Verdict] = field(repr=False)

    @classmethod
    def of(cls, rows: Iterable[Labelled]) -> RecordedJudge:
        """Of labelled rows."""
        found: dict[Pair, Verdict] = {}
        for row in rows:
            # without a p the label is as sure as can be: calibration then reads it as 1 or 0
            own = Verdict(float(row.label) if row.p is None else row.p, row.label)
            alike = found.get(row.pair, own).label == row.label
            found[row.pair] = own if alike else Verdict(None, None, "labelled both ways")
        digest = hashlib.sha256("\n".join(f"{pair} {own.p} {own.label}" for pair, own in found.items()).encode())
        return cls(f"labels@{digest.hexdigest()[:12]}", found)

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict a pair, in order."""
        missing = Verdict(None, None, "no label for this pair")
        return [self.verdicts.get(pair, missing) for pair in pairs]
