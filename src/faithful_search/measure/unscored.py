"""What readers are told of the rows that no reward scores: those of control studies, of blanked
responses and verdicts, and of how episodes went.
"""

from ..rewards import Result

RESULTS = {
    "exact_match_unremembered": Result(
        asks="is the answer a gold answer, on questions whose facts the policy was never taught?",
    ),
    "exact_match_changed": Result(
        asks="where the evidence says something else, is the answer what it says?",
    ),
    "follow_rate": Result(
        asks=(
            "where the evidence says something else, which share of the answers follows it "
            "rather than memory?"
        ),
        good="the answer follows the evidence rather than memory",
    ),
    "memory_share": Result(
        asks="with the gold evidence blocked, which share of the answers is given all the same?",
        direction=-1,
        good="the answer is not given without its evidence",
    ),
    "same_answer": Result(
        asks="is the answer the same as with the evidence, although that is missing or changed?",
        direction=-1,
        good="the answer changes when its evidence is missing or changed",
    ),
    "verdict_gap": Result(
        asks=(
            "how much more probable is the verdict yes where the evidence states what was asked "
            "for?"
        ),
    ),
    "verdict_auroc": Result(
        asks=(
            "how often is the verdict yes more probable on a passage that states what was asked "
            "for than on one that does not?"
        ),
    ),
    "no_on_blank": Result(
        asks="which share of the verdicts on blanked evidence is no?",
        good="blanked evidence gets the verdict no",
    ),
    "retry_on_blank": Result(
        asks="after such a no, which share of the turns tries another tool?",
    ),
    "answered": Result(
        asks="did the episode end with an answer?",
    ),
    "answered_forced": Result(
        asks="was the agent made to answer?",
        direction=0,
    ),
    "calls": Result(
        asks="how many calls does an episode make?",
        direction=0,
    ),
    "tool_entropy": Result(
        asks="how evenly are the tools used? 1 is evenly, 0 is one tool alone",
        direction=0,
    ),
}
"""What each row asks and which way is better, by its name."""
TITLES = {
    "exact_match_unremembered": "Exact match on facts never remembered",
    "exact_match_changed": "Exact match in changed worlds",
    "follow_rate": "Answers that change with the evidence",
    "memory_share": "Answers given without the evidence",
    "no_on_blank": "Share of no on blanked responses",
    "retry_on_blank": "Another tool after such a no",
    "verdict_gap": "p(yes) with the fact minus without",
    "verdict_auroc": "AUROC of p(yes) for the fact",
    "tool_entropy": "Normalised tool entropy",
}
"""The titles of some in a model card."""
