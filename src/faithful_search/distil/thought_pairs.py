"""Labelled pairs of what a search returned and the thought after it, made from questions that come
with their hops and the passages that each rests on.

| kind | label | the thought |
|---|---|---|
| `finding` | true | states what the passages say, and goes on or concludes |
| `rightly_nothing` | true | says that they do not have what is looked for, and they do not |
| `wrong_finding` | false | states it with another name or number |
| `denial` | false | says that they do not have it, where they do |
| `ignored` | false | goes on looking for it as if nothing had been read |
| `claim` | false | states a finding that the passages lack |
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..bundled import bundled_json
from ..text import normalize
from .edits import Span
from .passage_pairs import FORMS, CorpusPassage, PairRow, an_answer_unlike, near, shown

_TEMPLATES: dict[str, list[str]] = bundled_json("thought_templates.json")
_BACK = re.compile(r"#(\d)")


class ReasoningHop(NamedTuple):
    """One step of a question: `need` is what has to be found, `answer` what is, and `title` names
    the passage that says so. `fact` says it in a sentence.
    """

    need: str
    answer: str
    title: str
    fact: str


def hops_of(question: Mapping[str, Any]) -> list[ReasoningHop]:
    """The hops of a question that has a MuSiQue `decomposition` or 2Wiki `evidence_triples`; none
    for distractors.
    """
    if "decomposition" in question:
        return _of_decomposition(question["decomposition"])
    hops = []
    for subject, relation, answer in question.get("evidence_triples", ()):
        need = f"the {relation} of {subject}"
        hop = ReasoningHop(need, answer, title=subject, fact=f"{need} is {answer}.")
        hops.append(hop)
    return hops


def thought_pairs(
    question: Mapping[str, Any],
    passages: Mapping[str, CorpusPassage],
    corpus: Sequence[CorpusPassage],
    rng: random.Random,
) -> Iterator[PairRow]:
    """A true and a false thought about each hop, after a search that returned its passage and after
    one that did not. `passages` are those of the corpus by normalised title.
    """
    hops = hops_of(question)
    for place, hop in enumerate(hops):
        passage = passages.get(normalize(hop.title))
        if passage is None:
            continue
        following = hops[place + 1] if place + 1 < len(hops) else None
        distractors = near(passage, corpus, rng, rng.choice((1, 1, 2)))
        form = rng.choice(FORMS)
        answer = normalize(hop.answer)
        texts_without = " ".join(distractor.text for distractor in distractors)
        if rng.random() < 0.6 and answer in normalize(passage.text):
            evidence = shown([passage, *distractors], form, rng)
            pairs = _after_success(hop, following, evidence, rng)
        elif answer not in normalize(texts_without):
            evidence = shown(distractors, form, rng)
            pairs = _after_failure(hop, following, evidence, rng)
        else:
            continue
        for pair in pairs:
            yield pair._replace(question=question["question"], task="info_think")


def _after_success(
    hop: ReasoningHop, following: ReasoningHop | None, evidence: str, rng: random.Random
) -> Iterator[PairRow]:
    goes_on = _goes_on(hop, following, rng)
    template = _template("states", rng)
    thought = f"{_filled(template, hop.fact)} {goes_on}".strip()
    yield PairRow(evidence, thought, True, "finding", ())
    wrong = an_answer_unlike(hop.answer, hop.fact, evidence, rng)
    draw = rng.random()
    if wrong and draw < 0.5 and hop.answer in hop.fact:
        thought = f"{_filled(template, _with_answer(hop, wrong))} {goes_on}"
        thought = thought.replace(hop.answer, wrong).strip()  # also where it goes on
        yield PairRow(evidence, thought, False, "wrong_finding", _places(thought, wrong))
    elif draw < 0.8:
        denial, thought = _denial(hop, rng)
        yield PairRow(evidence, thought, False, "denial", ((0, len(denial)),))
    else:
        thought = _template("ignores", rng).format(need=hop.need)
        yield PairRow(evidence, thought, False, "ignored")


def _after_failure(
    hop: ReasoningHop, following: ReasoningHop | None, evidence: str, rng: random.Random
) -> Iterator[PairRow]:
    _, denying_thought = _denial(hop, rng)
    yield PairRow(evidence, denying_thought, True, "rightly_nothing", ())
    fact, answer = hop.fact, hop.answer
    wrong = an_answer_unlike(hop.answer, hop.fact, evidence, rng)
    if wrong and rng.random() < 0.5:
        fact = _with_answer(hop, wrong)
        answer = wrong
    claim = _filled(_template("states", rng), fact)
    thought = f"{claim} {_goes_on(hop, following, rng)}".strip()
    yield PairRow(evidence, thought, False, "claim", _places(thought, answer))


def _denial(hop: ReasoningHop, rng: random.Random) -> tuple[str, str]:
    """A sentence that says that nothing was found, and the thought that begins with it."""
    denial = _template("denies", rng).format(need=hop.need)
    again = _template("searches_again", rng).format(need=hop.need)
    return denial, f"{denial} {again}".strip()


def _with_answer(hop: ReasoningHop, answer: str) -> str:
    """The hop's fact with another answer."""
    before, _, after = hop.fact.rpartition(hop.answer)
    return before + answer + after


def _goes_on(hop: ReasoningHop, following: ReasoningHop | None, rng: random.Random) -> str:
    if following is None:
        return _template("concludes", rng).format(answer=hop.answer)
    return _template("continues", rng).format(next=following.need)


def _template(name: str, rng: random.Random) -> str:
    return rng.choice(_TEMPLATES[name])


def _filled(template: str, fact: str) -> str:
    if template.startswith("{fact}"):
        fact = fact[:1].upper() + fact[1:]
    return template.format(fact=fact)


def _places(text: str, part: str) -> tuple[Span, ...]:
    """Where a part stands in a text."""
    return tuple((match.start(), match.end()) for match in re.finditer(re.escape(part), text))


def _of_decomposition(steps: Sequence[Mapping[str, str]]) -> list[ReasoningHop]:
    """The hops of MuSiQue: a sub-question is "X >> relation" or a question, in which "#1" stands
    for the first answer.
    """
    answers = [step["answer"] for step in steps]
    hops = []
    for step in steps:
        text = _BACK.sub(lambda match: answers[int(match[1]) - 1], step["question"]).strip(" ?")
        subject, arrow, relation = text.partition(" >> ")
        if arrow:
            need = f"the {relation} of {subject}"
            fact = f"the {relation} of {subject} is {step['answer']}."
        else:
            need = text[:1].lower() + text[1:]
            fact = f'the answer to "{text}" is {step["answer"]}.'
        hops.append(ReasoningHop(need, step["answer"], step["title"], fact))
    return hops
