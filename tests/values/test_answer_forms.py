"""What an answer says, without the form around it."""

import time

import pytest

from faithful_search.answer_forms import claimed, said


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ("The page says so. \\boxed{Veldt}", "Veldt"),
        ("\\boxed{a} and then \\boxed{\\text{Veldt}}", "Veldt"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{Veldt", "\\boxed{Veldt"),
        ("\\boxed{}", "\\boxed{}"),
        ('{"answer": "Veldt"}', "Veldt"),
        ('{"reason": "x", "final_answer": 12}', "12"),
        ('{"answer": true}', "yes"),
        ('```json\n{"answer": "Veldt"}\n```', "Veldt"),
        ('Here it is: {"answer": "Veldt"}', "Veldt"),
        ('{"spans": []}', '{"spans": []}'),
        ("Explanation: x\nExact Answer: Veldt\nConfidence: 90%", "Veldt"),
        ("**Exact Answer:** Veldt", "Veldt"),
        ("Thought: a\nAction: finish[Veldt]", "Veldt"),
        ("**Final Answer:** Veldt", "Veldt"),
        ("Final answer:\nVeldt", "Veldt"),
        ("Answer: Oslo\nFinal Answer: Veldt\nAnswer: Oslo", "Veldt"),
        ("I read it.\nAnswer: Veldt", "Veldt"),
        ("\u6700\u7ec8\u7b54\u6848\uff1aVeldt", "Veldt"),
        ("<final_answer>Veldt</final_answer>", "Veldt"),
        ("So: <submit>Veldt</submit>", "Veldt"),
        ("2 + 2 = 4\n#### 4", "4"),
        ("The answer: none of these", "none of these"),
        ("It answers: no", "It answers: no"),
        ("Veldt", "Veldt"),
        ("It is {Veldt}", "It is {Veldt}"),
        ("", ""),
    ],
)
def test_forms_give_their_content(answer, content):
    assert said(answer) == content


@pytest.mark.parametrize(
    ("answer", "claims"),
    [
        ("So it is \\boxed{\\text{Veldt}}.", "So it is Veldt."),
        ('{"answer": "Veldt", "confidence": 0.9}', "Veldt"),
        (
            '```json\n{"final_answer": "Veldt", "explanation": "I read it."}\n```',
            "Veldt\nI read it.",
        ),
        ('{"spans": ["a"]}', '{"spans": ["a"]}'),
        ("finish[Veldt]", "Veldt"),
        ("Exact Answer: Veldt\nConfidence: 90%", "Veldt\n"),
        ("<response>Veldt</response>", "Veldt"),
        ("It is in Veldt [1].", "It is in Veldt [1]."),
    ],
)
def test_forms_claim_their_content(answer, claims):
    assert claimed(answer) == claims


PUMPS = ["\\boxed{", "{", "```", "```a", "exact answer:", "* ", "finish[", '{"answer": ', "\n"]
PUMPS += ["<answer>", "<answer>a</answer", "answer: a\n", "####", "\\boxed{a}", "\\boxed{{a}"]


@pytest.mark.parametrize("pump", PUMPS)
def test_long_answers_take_linear_time(pump):
    def seconds(size: int) -> float:
        text = pump * (size // len(pump)) + "x"
        start = time.process_time()
        said(text)
        claimed(text)
        return time.process_time() - start

    seconds(1000)
    assert seconds(160_000) < 10 * seconds(40_000) + 0.05
