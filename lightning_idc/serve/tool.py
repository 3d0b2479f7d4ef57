"""A server of the Model Context Protocol: coding agents ask what changed between two image files."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from typing_extensions import TypedDict  # pydantic refuses that of typing before Python 3.12

from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.serve.answers import answer_pairs
from lightning_idc.serve.rules_captioner import RulesCaptioner
from lightning_idc.utils.errors import IDCError


class Described(TypedDict):
    """What the tool returns.

    Args:
        caption: what changed, as a sentence.
        change_score: probability that anything changed; None where the captioner knows no unchanged pairs.
        changed: whether the pair counts as changed; None where that is not known.
        regions: where, [x1, y1, x2, y2] in pixels of the first image, the most important one first.
        size: width and height of the first image.
        notes: what makes the answer doubtful.
    """

    caption: str
    change_score: float | None
    changed: bool | None
    regions: list[list[int]]
    size: list[int]
    notes: list[str]


def make_tool_server(captioner: PairCaptioner | RulesCaptioner, folders: Sequence[Path]) -> MCPServer:
    """A server with the tool ``describe_change``, ready to run.

    Args:
        captioner: the captioner.
        folders: folders below which images are read; no other file is opened.
    """
    readable = [folder.resolve() for folder in folders]
    about = (
        "Compares pixels by rules, without a network."
        if isinstance(captioner, RulesCaptioner)
        else f"Knows {captioner.input_spec.domain or 'the kind of images it was trained on'} only."
    )
    server = MCPServer(
        "lightning_idc", instructions=f"Says what changed between two images. {about}", log_level="ERROR"
    )
    turn = threading.Lock()

    def describe_change(before: str, after: str) -> Described:
        for image in (before, after):
            path = Path(image).resolve()
            if not any(path.is_relative_to(folder) for folder in readable):
                raise ToolError(f"{image!r} is not below {', '.join(map(str, readable))}; see --folders")
        try:
            with turn, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                answer = answer_pairs(captioner, [captioner.input_spec.read(before, after)])[0]
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
        description=f"Say what changed from one image file to another, how sure that is, and where. {about}",
    )
    return server
