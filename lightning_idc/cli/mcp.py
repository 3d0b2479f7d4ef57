"""The verb mcp: answer coding agents over stdio."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_idc.serve.notes import capture_warnings
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.process import collect_as_usual


def serve_tool(*, options: ModelOptions, folders: Sequence[Path] = (Path(),)) -> int:
    """Answer coding agents over stdio, by the Model Context Protocol.

    The tool describe_change takes the paths of two images and returns caption, change score and regions. An agent
    starts the server with the command `lightning-idc mcp --folders FOLDER`.

    Args:
        options: the captioner and how it reads images.
        folders: folders with readable images; no other file is opened.
    """
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise ConfigError(f"--folders: {missing[0]!r} is not a folder")
    with capture_warnings():
        from lightning_idc.serve.tool import make_tool_server

        server = make_tool_server(options.open_describer(), folders)
    collect_as_usual()
    server.run("stdio")
    return 0
