"""What an answer says, without the form around it."""

import time

import pytest
from growth import MOST, growth

from faithful_search.answer_forms import claimed, said


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ("The page says so. \\boxed{Veldt}", "Veldt"),
        ("\\boxed{a} and then \\boxed{\\text{Veldt}}", "Veldt"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{Veldt", "\\boxed{Veldt"),
        ("\\boxed{}", ""),
        ("$\\boxed{ \\text{} }$.", ""),
        ("## Final Answer\n\n\\boxed{}", ""),
        ("Veldt \\boxed{}", "Veldt \\boxed{}"),
        ('{"answer": " ", "why": "not found"}', ""),
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
        ("**Final Answer**\n\nVeldt", "Veldt"),
        ("I read it.\n\n### Final Answer\n**Veldt**\n", "Veldt"),
        ("Final Answer:\n\nVeldt\n\nConfidence: 90%", "Veldt"),
        ("Answer: Oslo\n\n## Answer\n\nVeldt", "Veldt"),
        ("Exact Answer: Veldt\n\nAnswer:\n\nSee above.", "Veldt"),
        ("## Answer\nExact Answer: Veldt", "Veldt"),
        ("**Answer**\n\n**Final Answer:** Veldt", "Veldt"),
        ("## Final Answer\n<answer>Veldt</answer>", "Veldt"),
        ("## Answer\nfinish[Veldt]", "Veldt"),
        (
            "## Answer\n\nIt is Veldt.\nIt lies in Sule.",
            "## Answer\n\nIt is Veldt.\nIt lies in Sule.",
        ),
        ("Answer\nVeldt", "Answer\nVeldt"),
        ("```\nVeldt\n```", "Veldt"),
        ("```text\nVeldt\n```\n", "Veldt"),
        ("Run ```\nVeldt\n```", "Run ```\nVeldt\n```"),
        ("\u041e\u0442\u0432\u0435\u0442: Veldt", "Veldt"),
        ("\uc815\ub2f5: Veldt", "Veldt"),
        ("Resposta: Veldt", "Veldt"),
        (" Veldt\n", "Veldt"),
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
        ("I read it.\n\n**Final Answer**\n\nVeldt", "I read it.\n\nVeldt"),
        ("```\nVeldt\n```", "Veldt\n"),
    ],
)
def test_forms_claim_their_content(answer, claims):
    assert claimed(answer) == claims


# Where an answer can be compared with gold answers and not be read as a claim
HIDDEN = [
    "A page.\nConfidence: \\boxed{Veldt}",
    'A page.\nconfidence: {"answer": "Veldt"}',
    "A page.\nConfidence: <final>Veldt</final>",
    '{"answer": 1889, "why": "A page."}',
    '{"answer": true, "why": "A page."}',
    "A page. \\boxed{\\frac{1}{2}}",
    "A page. \\boxed{{{?}}}",
    "A page.\n### Answer\nConfidence: Veldt",
    "A page.\n### Answer\n```\nVeldt\n```",
    "```\n### Answer\nVeldt\n```",
]


@pytest.mark.parametrize("answer", HIDDEN)
def test_what_an_answer_says_is_among_its_claims(answer):
    assert said(answer) in claimed(answer)


PUMPS = ["\\boxed{", "{", "```", "```a", "exact answer:", "* ", "finish[", '{"answer": ', "\n"]
PUMPS += ["### Answer\n", "### Answer\n\na\n", "```\na```"]
PUMPS += ["<answer>", "<answer>a</answer", "answer: a\n", "####", "\\boxed{a}", "\\boxed{{a}"]


@pytest.mark.parametrize("pump", PUMPS)
def test_long_answers_take_linear_time(pump):
    def seconds(size: int) -> float:
        text = pump * (size // len(pump)) + "x"
        start = time.process_time()
        said(text)
        claimed(text)
        return time.process_time() - start

    assert growth(seconds, 160_000) <= MOST


SURE = ["90%", "0.9", "9/10", "High", "very high.", "95 percent", "**90%**"]


@pytest.mark.parametrize("degree", SURE)
@pytest.mark.parametrize(
    "name", ["Confidence", "**Confidence**", "confidence level", "\u7f6e\u4fe1\u5ea6"]
)
def test_a_line_that_says_how_sure_the_agent_is_is_not_said(degree, name):
    assert said(f"Veldt\n{name}: {degree}") == "Veldt"


@pytest.mark.parametrize(
    "line", ["Confidence: Paris", "Confidence: 90% Paris", "Confidence: a Story"]
)
def test_a_line_that_says_more_than_how_sure_the_agent_is_is_said(line):
    assert said(f"Veldt\n{line}") == f"Veldt\n{line}"
