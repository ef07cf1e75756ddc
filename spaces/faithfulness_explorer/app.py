"""The Space: the page of `faithful-search demo`, which is an MCP server with the tool `audit`, too."""

from faithful_search.demo.app import launch

if __name__ == "__main__":
    launch(mcp_server=True)
