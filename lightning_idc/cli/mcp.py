"""mcp: answer coding agents over stdio."""

from __future__ import annotations

from lightning_idc.cli import typed
from lightning_idc.serve.notes import noted
from lightning_idc.serve.opening import ModelOptions


def run(given: list[str]) -> int:
    """The verb `mcp`."""
    return typed.call("mcp", serve_tool, given[1:])


def serve_tool(options: ModelOptions) -> int:
    """Answer coding agents over stdio, by the Model Context Protocol.

    The tool describe_change takes the paths of two images and returns caption, change score and regions. An agent
    starts the server with the command `lightning-idc mcp`.

    Args:
        options: of the captioner.
    """
    with noted():
        from lightning_idc.serve.tool import make_tool_server

        server = make_tool_server(options.open())
    server.run("stdio")
    return 0
