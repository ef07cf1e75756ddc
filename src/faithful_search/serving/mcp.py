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

# That clients may hold at the same time; further ones are sent away to come back later
SESSIONS = 1000
# Seconds without a request after which a session ends; the next request is told to begin another
IDLE = 600.0
# what a model could take for the beginning of a special token, or for an id of ours
_FENCE = Fence(r"<\||\[[Ee][0-9]++\]")
_, _KINDS = msgspec.json.schema_components([Observation])
_RESULT = {**_KINDS["Observation"], "$defs": _KINDS}


def mcp_server(toolbox: Toolbox) -> Server[Any]:
    """A server whose tools are the toolbox's. A result is text for the model and, beside it, the
    evidence as data, with ids (`E1`, `E2`, …) that are unique as long as it lives. Raises
    `ConfigError` when the package `mcp` is missing.
    """
    with needs("an MCP server", "mcp"):
        from mcp.server.lowlevel import Server
        from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations
    session = toolbox.session()

    async def list_tools(context: Any, request: Any) -> ListToolsResult:
        annotations: dict[str, Any] = {
            "output_schema": _RESULT,
            "annotations": ToolAnnotations(read_only_hint=True),
        }
        tools = []
        for schema in toolbox.schemas:
            function = dict(schema["function"])
            parameters = function.pop("parameters")
            tools.append(Tool(input_schema=parameters, **function, **annotations))
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
    """The toolbox's tools at `/mcp`, over HTTP, for `Guarded`. Of the limits only `body_bytes` is
    read; an answer takes as long as the toolbox lets a call take.
    """
    server = mcp_server(toolbox)
    from mcp.server.transport_security import TransportSecuritySettings

    return server.streamable_http_app(
        max_request_body_size=limits.body_bytes,
        session_idle_timeout=idle,
        max_sessions=SESSIONS,
        # `Guarded` stands before every application and knows the names that this server was given
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )


def as_text(observation: Observation) -> str:
    """What a model reads: a paragraph for each passage, with its id and title, then the note. No
    text in it can pose as an id or as another role.
    """
    paragraphs = []
    for passage in observation.evidence:
        title = f"{one_line(_FENCE.escape(passage.title))}: " if passage.title else ""
        paragraphs.append(f"[{passage.id}] {title}{_FENCE.escape(passage.text)}")
    if observation.note:
        paragraphs.append(_FENCE.escape(observation.note))
    return "\n\n".join(paragraphs)
