"""The tools of `faithful-search serve CORPUS --mcp`, used by any client of the Model Context
Protocol.

    python examples/mcp_client.py                                  # starts the server itself
    python examples/mcp_client.py --url http://127.0.0.1:8000/mcp  # one that runs with --mcp-http

The client itself needs `mcp` only.
"""

import argparse
import asyncio
import sys

from mcp import Client, StdioServerParameters

_COMMAND = "from faithful_search.cli import main; main()"


async def use(server: str | StdioServerParameters, query: str) -> None:
    """List the server's tools and ask each for the same thing."""
    async with Client(server) as client:
        for tool in (await client.list_tools()).tools:
            print(f"{tool.name}: {tool.description}")
            result = await client.call_tool(tool.name, {"query": query})
            print(
                "failed"
                if result.is_error
                else f"{len(result.structured_content['evidence'])} passages"
            )
            for block in result.content:
                print(f"{block.text}\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", default="world")
    parser.add_argument("--url", help="Of a server that runs already.")
    parser.add_argument("--query", default="capital")
    args = parser.parse_args()
    started = StdioServerParameters(
        command=sys.executable, args=["-c", _COMMAND, "serve", args.corpus, "--mcp"]
    )
    asyncio.run(use(args.url or started, args.query))


if __name__ == "__main__":
    main()
