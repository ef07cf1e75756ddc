"""The Space: the page of `faithful-search demo`, and where `mcp` is installed an MCP server with
the tool `audit`.
"""

from importlib.util import find_spec

from faithful_search.demo.app import launch

if __name__ == "__main__":
    launch(mcp_server=find_spec("mcp") is not None)
