"""NeMo Gym's check of citations: form and ids, never what the answer says."""

from dataclasses import dataclass
from typing import ClassVar

from ...rewards import Mix, Reward, Score
from ...rewards.citation import VERDICT_ISSUES
from ...rewards.turns import answer_of
from ...trajectory import Trajectory
from ..gold import CitedSource, cited_sources, facts_of, stated_in

DIALECT = "pou"


@dataclass(frozen=True)
class CitationGates(Reward):
    """The gates of `citation_if`, in their order; `why` names the first that fails."""

    least: int = 1
    slack: int | None = 1

    name: ClassVar[str] = "citation_gates"

    def score(self, trajectory: Trajectory) -> Score:
        why = self._failed(trajectory, cited_sources(trajectory))
        return Score(float(not why), why)

    def _failed(self, trajectory: Trajectory, sources: list[CitedSource]) -> str:
        if not any(map(str.isalnum, answer_of(trajectory))):
            return "no answer beside the citations"
        malformed = [issue.why for issue in trajectory.all_issues() if issue.kind in VERDICT_ISSUES]
        if malformed:
            return f"a malformed citation: {malformed[0]}"
        if len(sources) < self.least:
            return f"cites {len(sources)} sources, {self.least} are asked for"
        absent = [source.name for source in sources if not source.passages]
        if absent:
            return f"cites {absent[0]}, which was never returned"
        if self.slack is None:
            return ""
        return self._missed(trajectory, sources, self.slack)

    def _missed(self, trajectory: Trajectory, sources: list[CitedSource], slack: int) -> str:
        """What the citations miss of the sources that are expected, or cite beyond them."""
        expected = {fact.asked for fact in facts_of(trajectory)}
        cited = [passage for source in sources for passage in source.passages]
        missing = sorted(expected - stated_in(cited, trajectory))
        if missing:
            return f"cites nothing that states the {missing[0].relation} of {missing[0].subject}"
        most = len(expected) + slack
        if expected and len(sources) > most:
            return f"cites {len(sources)} sources, at most {most} are allowed"
        return ""


def citation_if(least: int = 1, slack: int | None = 1) -> Mix:
    """1 where the answer cites, in good form, what was returned and what is expected, else 0.

    ```
    R = [an answer]·[no malformed citation]·[at least `least` citations]·[all cited ids were returned]
        ·[all expected ids are cited]·[|cited| ≤ |expected| + slack]
    ```

    NVIDIA-NeMo/Gym, `resources_servers/citation_if/README.md`, the gates 0b to 4 of mode "cite".
    What the answer says is never read. Simplified: citations are the ids of the verdicts in
    dialects that have them, else the marks in the answer; a citation is malformed where a verdict
    or its ids could not be read; expected are the facts that lead to the answer, each by any
    passage that states it, and nothing where the question is not of the bundled world; a call of a
    tool fails no gate, as the whole episode is scored and not one turn after all searches.

    Args:
        least: how many sources must be cited.
        slack: how many more than expected may be cited; `None` expects none, as rows without
            `expected_ids`.

    How to hack it: cite the passage that holds the answer that is remembered (`wrong_reasons`),
    or cite the first and say nothing (`hollow_answer`): the answer is never read.
    """
    return Mix({"citation_gates": CitationGates(least, slack)}, gate=None)
