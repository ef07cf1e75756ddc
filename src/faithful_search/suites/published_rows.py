"""Turn rows of published data sets into rows with our columns, one function for each shape.

Each takes a row as its publisher stores it and returns one with `id`, `question`, `answers` and
what else is known of the question. Each raises `NotText` for a question that cannot be answered
without an image or a file, and `DataError` for a row without a question or without answers.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from itertools import cycle
from typing import Any

from .. import columns
from ..errors import DataError

Row = dict[str, Any]
"""A row with our columns."""
Published = Mapping[str, Any]
"""A row as its publisher stores it."""

_HEADINGS = {"instruction", "question", "abstract", "abstracts", "answer"}
"""The words with which a part of PQAref's text begins, at the start of a line, before a colon."""


class NotText(Exception):
    """A question that takes more than text; its message names what."""


def plain(row: Published) -> Row:
    """Any row whose columns are known to `columns`.

    Example:
        >>> plain({"_id": "b3", "Question": "Where?", "Answer": "Oslo"})
        {'id': 'b3', 'question': 'Where?', 'answers': ['Oslo']}
    """
    question = columns.question(row)
    gold = columns.golds(row)
    answers = [] if gold is None else list(gold.value)
    if question is None or not answers:
        missing = []
        if question is None:
            missing.append("question")
        if not answers:
            missing.append("answers")
        raise DataError(f"no {' and no '.join(missing)}; its columns: {', '.join(map(str, row))}")
    ours: Row = {}
    identity = columns.identity(row)
    if identity is not None:
        ours["id"] = identity.value
    return ours | {"question": question.value, "answers": answers}


def flashrag(row: Published) -> Row:
    """FlashRAG's: `id`, `question`, `golden_answers`, and in `metadata` what the set's own rows
    had, as the facts that support the answer, and 2WikiMultihopQA's triples.
    """
    metadata = row.get("metadata")
    ours = plain(row)
    if not isinstance(metadata, Mapping):
        return ours
    titles = _titles(metadata.get("supporting_facts"))
    if titles:
        ours["supporting_titles"] = titles
    triples = _triples(metadata.get("evidences"))
    if triples:
        ours["evidence_triples"] = triples
    for name in ("type", "level"):
        if isinstance(metadata.get(name), str):
            ours[name] = metadata[name]
    return ours


def musique(row: Published) -> Row:
    """MuSiQue's own: aliases beside the answer, paragraphs of which some support it, and the
    question's decomposition.
    """
    if row.get("answerable") is False:
        raise DataError("not answerable from its paragraphs")
    paragraphs = list(row.get("paragraphs") or ())
    supporting = [entry["title"] for entry in paragraphs if entry.get("is_supporting")]
    steps = []
    for step in row.get("question_decomposition") or ():
        place = step.get("paragraph_support_idx")
        paragraph: Mapping[str, Any] = {}
        if place is not None and place < len(paragraphs):
            paragraph = paragraphs[place]
        steps.append(
            {
                "question": step.get("question", ""),
                "answer": step.get("answer", ""),
                "title": paragraph.get("title", ""),
                "text": paragraph.get("paragraph_text", ""),
            }
        )
    return plain(row) | {"supporting_titles": _distinct(supporting), "decomposition": steps}


def morehopqa(row: Published) -> Row:
    """MoreHopQA's: `_id`, `question`, `answer`, `context` as HotpotQA's, and the question that it
    was made of.
    """
    names = ("previous_question", "answer_type")
    return plain(row) | {name: row[name] for name in names if row.get(name)}


def pqaref(row: Published) -> Row:
    """PQAref's: one text with the instruction (the question), abstracts, and the referenced
    answer.
    """
    parts: dict[str, list[str]] = {}
    heading = ""
    for line in str(row.get("input", "")).splitlines():
        name, colon, rest = line.partition(":")
        word = name.strip(" \t#*_").lower()
        if colon and word in _HEADINGS:
            heading = word.removesuffix("s")
            parts[heading] = [rest.strip(" \t*_")]
        elif heading:
            parts[heading].append(line)
    texts = {name: "\n".join(lines).strip() for name, lines in parts.items()}
    question = texts.get("instruction") or texts.get("question")
    answer = texts.get("answer")
    in_order = [name for name in parts if name not in ("instruction", "question")]
    if not question or not answer or in_order != ["abstract", "answer"]:
        raise DataError("its text has no question, abstracts and answer, in this order")
    return {"question": question, "answers": [answer]}


def bioasq(row: Published) -> Row:
    """BioASQ's as question, answer and the ids of the passages that are relevant."""
    listed = row.get("relevant_passage_ids")
    passages = columns.answers(listed) if listed is not None else ()
    return plain(row) | {"supporting_ids": list(passages)}


def gaia(row: Published) -> Row:
    """GAIA's; those that come with a file are left out."""
    if str(row.get("file_name") or "").strip():
        raise NotText("a file")
    return plain(row) | {"level": str(row.get("Level", ""))}


def hle(row: Published) -> Row:
    """Humanity's Last Exam's; those with an image are left out."""
    if row.get("image") or row.get("image_preview"):
        raise NotText("an image")
    return plain(row) | {name: row[name] for name in ("answer_type", "category") if row.get(name)}


def browsecomp(row: Published) -> Row:
    """BrowseComp's, decrypted by the canary of its row."""
    secret = str(row.get("canary") or "")
    if not secret:
        raise DataError("no canary, by which it is encrypted")
    problem = decrypted(str(row.get("problem") or ""), secret)
    answer = decrypted(str(row.get("answer") or ""), secret)
    return {"question": problem, "answers": [answer]}


def is_encrypted(row: Published) -> bool:
    """Whether a row is one of BrowseComp's, as published.

    Example:
        >>> is_encrypted({"problem": "YgJ6LQ==", "answer": "YgJ6LQ==", "canary": "x"})
        True
    """
    problem = row.get("problem")
    if not row.get("canary") or not isinstance(problem, str):
        return False
    return len(problem.split()) == 1  # base64 has no spaces, a question has


def decrypted(text: str, password: str) -> str:
    """BrowseComp's cipher: base64 of the bytes, each XOR the SHA-256 of the password, which is
    repeated. Raises `DataError` for what is no such text.

    Example:
        >>> decrypted("YgJ6LQ==", "x")
        'Oslo'
    """
    key = hashlib.sha256(password.encode()).digest()
    try:
        cipher = base64.b64decode(text, validate=True)
        plain_bytes = bytes(byte ^ key_byte for byte, key_byte in zip(cipher, cycle(key)))
        return plain_bytes.decode()
    except ValueError as error:  # no base64, or not UTF-8 when decrypted
        raise DataError(f"cannot be decrypted ({error})") from error


def contexts(row: Published) -> list[Row]:
    """The passages that come with a row, as the rows of a corpus: BioASQ's passage with its id,
    MuSiQue's paragraphs, contexts of HotpotQA's form in the row or in its `metadata`, Pirá's
    abstract. An empty list for a row without any.
    """
    if isinstance(row.get("passage"), str):
        return [{"id": str(row["id"]), "title": "", "text": row["passage"]}]
    if row.get("paragraphs"):
        return [
            {"title": entry.get("title", ""), "text": entry["paragraph_text"]}
            for entry in row["paragraphs"]
            if entry.get("paragraph_text")
        ]
    metadata = row.get("metadata")
    context = row.get("context")
    if context is None and isinstance(metadata, Mapping):
        context = metadata.get("context")
    if context is not None:
        passages: list[Row] = []
        for title, sentences in _pairs(context, ("sentences", "content")):
            stripped = (str(sentence).strip() for sentence in sentences)
            passages.append({"title": title, "text": " ".join(stripped)})
        return passages
    text = row.get("abstract") or row.get("text_excerpts_un_reports")
    if isinstance(text, str) and text.strip():
        return [{"title": "", "text": text.strip()}]
    return []


def _titles(facts: Any) -> list[str]:
    """The titles in HotpotQA's supporting facts, each a title and the number of a sentence."""
    return _distinct(title for title, _ in _pairs(facts, ("sent_id",)))


def _pairs(value: Any, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """HotpotQA's pairs of a title and something, from a list of pairs or from two columns, of which
    the second has one of the `names`.
    """
    if isinstance(value, Mapping):
        titles = value.get("title") or ()
        second_column = titles  # titles are known even where the other column is missing
        for name in names:
            if value.get(name) is not None:
                second_column = value[name]
                break
        return list(zip(titles, second_column, strict=False))
    if isinstance(value, list | tuple):
        return [(str(pair[0]), pair[1]) for pair in value if len(pair) >= 2]
    return []


def _triples(value: Any) -> list[list[str]]:
    """2WikiMultihopQA's subject, relation and object, as a list of triples or as three columns."""
    if isinstance(value, Mapping):
        subjects = value.get("fact") or ()
        relations = value.get("relation") or ()
        objects = value.get("entity") or ()
        return [list(triple) for triple in zip(subjects, relations, objects, strict=False)]
    return [list(triple) for triple in value or () if len(triple) == 3]


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
