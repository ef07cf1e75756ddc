"""The search tool, served by verifiers beside the rollouts."""

import verifiers.v1 as vf

from faithful_search.rollout.environment import tool_functions
from faithful_search.tools import Toolbox
from faithful_search.tools.local_search import open_search


class SearchToolsetConfig(vf.ToolsetConfig):
    """`corpus` as `faithful-search serve` takes it."""

    corpus: str = "world"
    top_k: int = 3


class SearchToolset(vf.Toolset[SearchToolsetConfig]):
    """One tool: search the corpus."""

    _search = None

    @vf.tool
    async def search(self, query: str) -> str:
        """Search for passages that say something about the query."""
        if self._search is None:
            tool = open_search(self.config.corpus, top_k=self.config.top_k)
            [self._search] = tool_functions(Toolbox([tool]), "openai")
        return await self._search(query=query)


if __name__ == "__main__":
    SearchToolset.run()
