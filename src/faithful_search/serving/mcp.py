"""The tools of a toolbox as a server of the Model Context Protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..dialects.fence import Fence, one_line
from ..errors import needs
from ..tools.base import Observation
from ..tools.toolbox import Toolbox
from ..trajectory import ToolCall

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult

    from .app import App, ServerLimits

# Sessions of clients at the same time; further ones are answered "come back later".
SESSIONS = 1000
# Seconds without a request after which a session ends; the client then has to begin another.
IDLE = 600.0
# What a model could take for the beginning of a special token, or for an id of our evidence
_FENCE = Fence(r"<\||\[[Ee][0-9]++\]")
# The JSON schema of an observation, with those of the values in it
_, _SCHEMAS = msgspec.json.schema_components([Observation])
_RESULT_SCHEMA = {**_SCHEMAS["Observation"], "$defs": _SCHEMAS}


def mcp_server(toolbox: Toolbox) -> Server[Any]:
    """A server whose tools are the toolbox's.

    A result is text for the model and, beside it, the evidence as data, with ids (`E1`, `E2`, …)
    that are unique as long as the server lives.

    Raises:
        ConfigError: the package `mcp` is missing.
    """
    with needs("an MCP server", "mcp"):
        from mcp.server.lowlevel import Server
        from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations
    session = toolbox.session()

    async def list_tools(context: Any, request: Any) -> ListToolsResult:
        tools = []
        for schema in toolbox.schemas:
            function = schema["function"]
            tool = Tool(
                name=function["name"],
                description=function["description"],
                input_schema=function["parameters"],
                output_schema=_RESULT_SCHEMA,
                annotations=ToolAnnotations(read_only_hint=True),
            )
            tools.append(tool)
        return ListToolsResult(tools=tools)

    async def call_tool(context: Any, request: CallToolRequestParams) -> CallToolResult:
        observation = await toolbox.call(ToolCall(request.name, request.arguments or {}), session)
        data = {"evidence": [], **msgspec.to_builtins(observation)}
        return CallToolResult(
            content=[TextContent(text=as_text(observation))],
            structured_content=data,
            is_error=observation.error,
        )

    return Server(
        "faithful-search", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool
    )


def serve_stdio(toolbox: Toolbox) -> None:
    """Serve the toolbox's tools on standard input and output until the client closes them."""
    server = mcp_server(toolbox)

    async def run() -> None:
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    asyncio.run(run())


def mcp_app(toolbox: Toolbox, limits: ServerLimits, idle: float = IDLE) -> App:
    """The toolbox's tools at `/mcp`, over HTTP, to be served behind `Guarded`.

    Args:
        limits: of these only `body_bytes` counts; an answer takes as long as the toolbox lets a
            call take.
        idle: see `IDLE`.
    """
    server = mcp_server(toolbox)
    from mcp.server.transport_security import TransportSecuritySettings

    return server.streamable_http_app(
        max_request_body_size=limits.body_bytes,
        session_idle_timeout=idle,
        max_sessions=SESSIONS,
        # `Guarded` protects from that, and knows the names of this server.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )


def as_text(observation: Observation) -> str:
    """What a model reads: a paragraph for each passage, with id and title, and one for the note.

    Ids and special tokens in the passages are escaped, so that none is forged.
    """
    parts = []
    for passage in observation.evidence:
        title = f"{one_line(_FENCE.escape(passage.title))}: " if passage.title else ""
        parts.append(f"[{passage.id}] {title}{_FENCE.escape(passage.text)}")
    if observation.note:
        parts.append(_FENCE.escape(observation.note))
    return "\n\n".join(parts)
