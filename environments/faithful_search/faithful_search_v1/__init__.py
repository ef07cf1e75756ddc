"""Search questions whose answers must rest on what was found."""

from collections.abc import Iterator

import verifiers.v1 as vf

from faithful_search.adapters.verifiers import FaithfulConfig, FaithfulTask, FaithfulTaskset
from faithful_search_v1.search import SearchToolset, SearchToolsetConfig

__all__ = ["SearchTask", "SearchTaskset", "SearchToolset"]


class SearchTaskConfig(vf.TaskConfig):
    """What is searched."""

    tools: SearchToolsetConfig = SearchToolsetConfig()


class SearchTask(FaithfulTask):
    """A question, a search tool, and the reward `veritas`."""

    mix = "veritas"

    @classmethod
    def config_type(cls) -> type[vf.TaskConfig]:
        return SearchTaskConfig

    @classmethod
    def toolsets(cls, config: SearchTaskConfig) -> list[vf.Toolset]:
        return [SearchToolset(config.tools)]


class SearchConfig(FaithfulConfig):
    """Which questions, and what is searched."""

    task: SearchTaskConfig = SearchTaskConfig()


class SearchTaskset(FaithfulTaskset, vf.Taskset[SearchTask, SearchConfig]):
    """The questions, each with the tool."""

    def load(self) -> Iterator[SearchTask]:
        for task in super().load():
            yield SearchTask(task.data, self.config.task)
