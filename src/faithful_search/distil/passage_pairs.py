"""Labelled pairs made from real passages: statements of a passage and answers to questions, each
with its evidence, right and with one error of a known kind.

| kind | label | what was done |
|---|---|---|
| `stated`, `joined` | true | one or two sentences of the passage |
| `compressed`, `reworded`, `introduced` | true | the same by other words |
| the keys of `edits.ERRORS` | false | one fact of the statement edited |
| `both_sides` | true | the same exchange in evidence and statement |
| `evidence_only` | false | the exchange in the evidence alone |
| `removed` | false | the passage without the sentence |
| `answer` | true | the answer to the question, with the passages that it rests on |
| `other_answer` | false | another name of these passages, or another number |
| `unsupported_answer` | false | the right answer, without these passages |
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..text import sentences
from .edits import ERRORS, REWORDINGS, Edited, Span, exchange, names, other_number

_PRONOUN = re.compile(r"^(?:He|She|It|They)\b(?=\s)")
_SHORTEST, _LONGEST = 30, 260
"""Characters of a sentence that becomes a statement."""


class CorpusPassage(NamedTuple):
    """A passage of a corpus, with its place there: neighbours are often about the same topic."""

    title: str
    text: str
    place: int


class PairRow(NamedTuple):
    """A pair as it is written; see `measure.agreement.labelled`."""

    premise: str
    hypothesis: str
    label: bool
    kind: str
    spans: tuple[Span, ...] | None = None
    question: str = ""
    task: str = "support"


def statement_pairs(
    passage: CorpusPassage, corpus: Sequence[CorpusPassage], rng: random.Random
) -> Iterator[PairRow]:
    """A true and a false pair about one sentence of the passage, both on passages in the same
    form; none where no sentence is fit.
    """
    fit = [
        sentence for sentence in sentences(passage.text) if _SHORTEST <= len(sentence) <= _LONGEST
    ]
    if not fit:
        return
    sentence = rng.choice(fit)
    statement = _with_name(sentence, passage)
    second = ""
    kind = "stated"
    if len(fit) > 1 and rng.random() < 0.12:
        second = rng.choice([other for other in fit if other != sentence] or [sentence])
        statement = f"{statement} {_with_name(second, passage)}"
        kind = "joined"
    for name, reword in REWORDINGS.items():
        if rng.random() < 0.4:
            reworded = reword(statement, (), rng)
            if reworded is not None:
                statement = reworded.text
                kind = name
    distractors = near(passage, corpus, rng, rng.choice((0, 0, 0, 1, 1, 2, 2, 5)))
    form = rng.choice(FORMS)
    evidence = shown([passage, *distractors], form, rng)
    draw = rng.random()
    if draw < 0.18:
        stated = [sentence]
        if second and second != sentence:
            stated.append(second)
        yield from _exchanged_pairs(passage, stated, statement, distractors, form, rng)
        return
    yield PairRow(evidence, statement, True, kind, ())
    if draw < 0.36:
        remaining = _without(sentence, passage.text)
        away = distractors or near(passage, corpus, rng, 2)
        if kind != "joined" and remaining:
            without = passage._replace(text=remaining)
            yield PairRow(shown([without, *away], form, rng), statement, False, "removed")
            return
    error = an_error(statement, [evidence, *_texts(near(passage, corpus, rng, 3))], rng)
    if error is not None:
        yield PairRow(evidence, error.text, False, error.kind, error.spans)


def answer_pairs(
    question: Mapping[str, Any],
    gold: Sequence[CorpusPassage],
    corpus: Sequence[CorpusPassage],
    rng: random.Random,
) -> Iterator[PairRow]:
    """A right and a wrong answer to a question with its passages, or the right one without them."""
    text = question["question"]
    answer = question["answers"][0]
    is_yes_or_no = answer.lower() in ("yes", "no")  # such an answer need not stand in a passage
    distractors = near(rng.choice(gold), corpus, rng, rng.choice((0, 1, 2)))
    distractors = [passage for passage in distractors if passage not in gold]
    form = rng.choice(FORMS)
    evidence = shown([*gold, *distractors], form, rng)
    template = rng.choice(ANSWERS)
    if not is_yes_or_no and answer.lower() not in evidence.lower():
        return
    right = template.format(answer=answer)
    yield PairRow(evidence, right, True, "answer", (), text)
    if rng.random() < 0.3:
        away = near(rng.choice(gold), corpus, rng, rng.choice((1, 2, 3)))
        unrelated = shown([passage for passage in away if passage not in gold], form, rng)
        if unrelated and not is_yes_or_no and answer.lower() not in unrelated.lower():
            spans = _place(right, answer)
            yield PairRow(unrelated, right, False, "unsupported_answer", spans, text)
            return
    wrong_answer = an_answer_unlike(answer, text, evidence, rng)
    if wrong_answer:
        wrong = template.format(answer=wrong_answer)
        yield PairRow(evidence, wrong, False, "other_answer", _place(wrong, wrong_answer), text)


def an_error(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """The statement with an error of a random kind, of those that apply."""

    def comes_late(kind: str) -> bool:
        return kind != "name" or rng.random() < 0.6  # names err most often

    kinds = list(ERRORS)
    rng.shuffle(kinds)
    kinds.sort(key=comes_late)
    for kind in kinds:
        edited = ERRORS[kind](statement, texts, rng)
        if edited is not None:
            return edited
    return None


def near(
    passage: CorpusPassage, corpus: Sequence[CorpusPassage], rng: random.Random, count: int
) -> list[CorpusPassage]:
    """So many passages from the neighbourhood of one in its corpus, with other titles."""
    around = corpus[max(0, passage.place - 8) : passage.place + 9]
    fit = [neighbour for neighbour in around if neighbour.title != passage.title]
    return rng.sample(fit, min(count, len(fit)))


FORMS = ("{title}\n{text}", "Title: {title}\n\n{text}", "{text}", "{title}: {text}", "{text}")
"""How passages are shown to a judge; numbered ones are made of these."""
ANSWERS = ("{answer}", "{answer}", "{answer}.", "The answer is {answer}.", "It is {answer}.")


def shown(passages: Sequence[CorpusPassage], form: str, rng: random.Random) -> str:
    """The passages as evidence, in random order."""
    shuffled = rng.sample(list(passages), len(passages))
    texts = [form.format(title=passage.title, text=passage.text) for passage in shuffled]
    if len(texts) > 1 and rng.random() < 0.3:
        texts = [f"[{number}] {text}" for number, text in enumerate(texts, 1)]
    return "\n\n".join(texts)


def _exchanged_pairs(
    passage: CorpusPassage,
    stated: Sequence[str],
    statement: str,
    distractors: Sequence[CorpusPassage],
    form: str,
    rng: random.Random,
) -> Iterator[PairRow]:
    """The same exchange on both sides, and in the evidence alone. `stated` are the sentences of the
    passage that the statement is made of.
    """
    kind = rng.choice(("name", "name", "number", "date", "negation", "relation"))
    edited = ERRORS[kind](statement, [passage.text, *_texts(distractors)], rng)
    if edited is None:
        return
    if kind in ("negation", "relation"):
        # Their words also stand where they must not change, so the edited statement takes the place
        # of its sentences
        first, *further = stated
        text = passage.text
        for sentence in further:
            text = _without(sentence, text)
        changed = passage._replace(text=text.replace(first, edited.text).strip())
    else:
        title = exchange(passage.title, edited)
        text = exchange(passage.text, edited)
        changed = passage._replace(title=title, text=text)
        all_words = " ".join([title, text, *_texts(distractors)])
        if edited.old in all_words or edited.new not in all_words:
            return
    evidence = shown([changed, *distractors], form, rng)
    start, _ = edited.spans[0]
    spans = ((start, start + len(edited.old)),)
    yield PairRow(evidence, edited.text, True, "both_sides", ())
    yield PairRow(evidence, statement, False, "evidence_only", spans)


def _without(sentence: str, text: str) -> str:
    """A text without a sentence, and with one blank or line break where it stood: two would show
    that something was cut out there.
    """
    pattern = rf"(\s*){re.escape(sentence)}(\s*)"
    return re.sub(pattern, lambda match: match[1] or match[2], text).strip()


def an_answer_unlike(answer: str, question: str, evidence: str, rng: random.Random) -> str:
    """A wrong answer of the same shape; empty where there is none."""
    opposite = {"yes": "no", "no": "yes"}.get(answer.lower())
    if opposite is not None:
        return opposite.capitalize() if answer[0].isupper() else opposite
    if re.search(r"\d", answer):
        edited = other_number(answer, [evidence], rng)
        return edited.text if edited is not None else ""
    words = set(answer.lower().split())
    candidates = []
    for name in sorted(set(names(evidence))):
        name_words = name.lower().split()
        is_other = words.isdisjoint(name_words) and name.lower() not in question.lower()
        if is_other and abs(len(name_words) - len(words)) <= 1:
            candidates.append(name)
    return rng.choice(candidates) if candidates else ""


def _with_name(sentence: str, passage: CorpusPassage) -> str:
    """The sentence with the passage's title in place of a pronoun at its beginning."""
    return _PRONOUN.sub(lambda _: passage.title, sentence)


def _place(text: str, part: str) -> tuple[Span, ...]:
    """Where a part first stands in a text."""
    start = text.index(part)
    return ((start, start + len(part)),)


def _texts(passages: Sequence[CorpusPassage]) -> list[str]:
    return [passage.text for passage in passages]
