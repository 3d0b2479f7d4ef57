"""make_tool_server: a Model Context Protocol server with a tool that describes the change between two image files."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from typing_extensions import TypedDict  # pydantic rejects typing.TypedDict before Python 3.12

from lightning_idc.images.sidecars import sidecar_paths
from lightning_idc.serve.describer import Describer
from lightning_idc.utils.errors import IDCError


class ChangeDescription(TypedDict):
    """Result of the tool.

    Args:
        caption: description of the change.
        change_score: probability that anything changed; None if the captioner was trained without unchanged pairs.
        changed: whether the pair counts as changed; None if unknown.
        regions: boxes of the change, [x1, y1, x2, y2] in pixels of the first image, the most important one first.
        size: width and height of the first image.
        notes: warnings about the answer.
    """

    caption: str
    change_score: float | None
    changed: bool | None
    regions: list[list[int]]
    size: list[int]
    notes: list[str]


def make_tool_server(describer: Describer, folders: Sequence[Path]) -> MCPServer:
    """Create a server with the tool ``describe_change``.

    Args:
        describer: captioner or rules.
        folders: folders with readable images; no other file is opened.
    """
    roots = [folder.resolve() for folder in folders]
    instructions = f"Describes the change between two images. {describer.scope}"
    server = MCPServer("lightning_idc", instructions=instructions, log_level="ERROR")
    lock = threading.Lock()

    def describe_change(before: str, after: str) -> ChangeDescription:
        first, second = (str(_readable_path(image, roots)) for image in (before, after))
        try:
            with lock, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                answer = describer.answer([describer.input_spec.read(first, second)])[0]
        except IDCError as error:
            raise ToolError(str(error)) from error
        return {
            "caption": answer.caption,
            "change_score": answer.change_score,
            "changed": answer.changed,
            "regions": answer.boxes,
            "size": list(answer.size or ()),
            "notes": [str(note.message) for note in caught],
        }

    server.add_tool(
        describe_change,
        description=f"Describe the change from one image file to another, with its score and boxes. {describer.scope}",
    )
    return server


def _readable_path(image: str, roots: Sequence[Path]) -> Path:
    """Resolved path of an image below one of the folders.

    Links are followed before the check, for the image and for the files next to it that its reader opens.

    Raises:
        ToolError: the image, or its mask or metadata, is elsewhere.
    """
    path = Path(image).resolve()
    for file in (path, *(Path(sidecar).resolve() for sidecar in sidecar_paths(path))):
        if not any(file.is_relative_to(root) for root in roots):
            raise ToolError(f"{image!r} is not below {', '.join(map(str, roots))}; see --folders")
    return path
