"""inspect_ai: a scorer and a task, found by the package's entry point.

```
inspect score run.eval --scorer faithful_search/faithfulness -S reward=veritas   # a finished log
inspect eval faithful_search/search_questions --model openai/gpt-5                         # questions by name
```

A sample's messages say who wrote what: only results of tools are evidence. A sample without a value
is `Score.unscored()`, which inspect leaves out of all means.
"""

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState, basic_agent
from inspect_ai.tool import Tool, tool

from ..dialects.segments import Responses
from ..rollout.environment import tool_functions
from ..scoring import numeric_parts
from ..tasks import load_tasks
from ..tools import Toolbox
from ..tools.local_search import open_search
from .settings import scoring_of


@scorer(metrics=[mean(), stderr()])
def faithfulness(
    reward: str = "veritas",
    dialect: str | None = None,
    responses: Responses = "messages",
    judge: str | None = None,
    judge_model: str | None = None,
    judge_url: str | None = None,
) -> Scorer:
    """A reward of ours as a scorer. The value is the reward's, the explanation its reason, the
    metadata has its parts and the values by step.

    The arguments are those of `adapters.settings.scoring_of`; gold answers are the sample's target.
    """
    scoring = scoring_of(
        reward,
        dialect=dialect,
        responses=responses,
        judge=judge,
        judge_model=judge_model,
        judge_url=judge_url,
    )

    async def score(state: TaskState, target: Target) -> Score:
        messages = [
            message.model_dump(mode="json", exclude_none=True) for message in state.messages
        ]
        row = {"messages": messages, "input": state.input_text}
        result = await scoring.ascore(row, answers=list(target))
        metadata = {"parts": numeric_parts(result), "steps": list(result.steps)}
        answer = state.output.completion
        if result.value is None:
            failed = result.parts.get("abstained")
            return Score.unscored(
                reason="grader_failed" if failed else "scoring_failed",
                answer=answer,
                explanation=result.why,
                metadata=metadata,
            )
        return Score(value=result.value, answer=answer, explanation=result.why, metadata=metadata)

    return score


@tool
def search(corpus: str = "world", top_k: int = 3) -> Tool:
    """Search a corpus, as `faithful-search serve` takes it."""
    [function] = tool_functions(Toolbox([open_search(corpus, top_k=top_k)]), "openai")

    async def execute(query: str) -> str:
        """Search for passages.

        Args:
            query: what to look for, in a few words.
        """
        return str(await function(query=query))

    return execute


@task
def search_questions(
    questions: str = "world", corpus: str = "world", limit: int = 100, reward: str = "veritas"
) -> Task:
    """Questions, an agent with our search, and the scorer above."""
    samples = [
        Sample(input=each.question, target=list(each.answers), id=each.id)
        for each in load_tasks(questions, "test", limit)
    ]
    return Task(
        dataset=MemoryDataset(samples),
        solver=basic_agent(tools=[search(corpus)]),
        scorer=faithfulness(reward),
    )
