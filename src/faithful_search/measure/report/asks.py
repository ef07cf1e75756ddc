"""What each result of an audit asks, in one line."""

from __future__ import annotations

from ..metrics import LOWER_IS_BETTER

_ASKS = {
    "exact_match": "is the answer a gold answer?",
    "f1": "how many words do answer and gold answer share?",
    "sub_em": "does the answer contain a gold answer?",
    "answer_correctness": "does the judge find the answer right?",
    "answer_support": "are the answer's claims supported by the cited, or else the retrieved, evidence?",
    "citation_validity": "do the citations hold, step by step?",
    "evidence_sensitivity": "would the policy's verdict change if the evidence did?",
    "info_think": "does each thought consider what was just retrieved?",
    "think_search": "does each call follow from its thought?",
    "think_answer": "does the answer follow from the last thought?",
    "think_answer_sub_em": "does the last thought contain the answer?",
    "protocol_format": "is it written as its protocol asks?",
    "repeated_calls": "which share of the calls was made before?",
    "unused_evidence": "which share of the calls returned evidence that nothing later takes up?",
    "uncited_evidence": "which share of the calls returned evidence that nothing later cites?",
    "query_from_question": "which share of what calls name stood in the question first?",
    "query_from_evidence": "which share of what calls name stood in evidence first?",
    "query_from_thought": "which share of what calls name did the agent bring up itself?",
    "answered": "is there an answer?",
    "answered_forced": "was the answer opened for the agent?",
    "calls": "how many calls does an episode make?",
}
_HOW = {
    "_lexical": "words are compared",
    "_faithfulness": "",
    "_squad": "SQuAD's normaliser",
    "_pokee": "PokeeResearch's normaliser",
}


def asks(name: str) -> str:
    """What the result asks and how it is found out; empty for a name that no metric gives.

    Example:
        >>> asks("think_search_lexical")
        'does each call follow from its thought? (words are compared)'
        >>> asks("repeated_calls")
        'which share of the calls was made before? (lower is better)'
    """
    ending = next((ending for ending in _HOW if name.endswith(ending)), "")
    question = _ASKS.get(name) or _ASKS.get(name.removesuffix(ending), "")
    notes = [_HOW.get(ending, ""), "lower is better" if name in LOWER_IS_BETTER else ""]
    said = "; ".join(note for note in notes if note)
    return f"{question} ({said})" if question and said else question
