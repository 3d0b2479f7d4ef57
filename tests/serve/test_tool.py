"""`mcp`: the official client starts the server like an agent, and calls it over stdio."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers.processes import forking_python

import lightning_idc
from lightning_idc.serve import answer_pairs

mcp = pytest.importorskip("mcp", reason="needs the extra mcp")


def test_nothing_outside_the_folders_is_read(draw: Callable[..., Path], tmp_path: Path) -> None:
    """Links are resolved before the check, also those of masks and folders. Oracle: the files below the folder."""
    from mcp.server.mcpserver.exceptions import ToolError

    from lightning_idc.serve.opening import ModelOptions
    from lightning_idc.serve.tool import make_tool_server

    image, other = draw("a.png"), draw("b.png", square=(16, 8))
    root, outside = tmp_path / "root", tmp_path / "root-outside"
    for folder in (root, outside):
        (folder / "below").mkdir(parents=True)
        for name, source in (("a.png", image), ("b.png", other), ("masked.png", image), ("below/a.png", image)):
            (folder / name).write_bytes(source.read_bytes())
    (root / "link.png").symlink_to(outside / "a.png")
    (root / "inside.png").symlink_to("below/a.png")
    (root / "folder").symlink_to(outside)
    (root / "masked.png.msk").symlink_to(outside / "a.png")
    (tmp_path / "named").symlink_to(root)
    server = make_tool_server(ModelOptions().open_describer(), [tmp_path / "named"])

    def refusal(path: str | Path) -> str:
        try:
            anyio.run(server.call_tool, "describe_change", {"before": str(root / "a.png"), "after": str(path)})
        except ToolError as error:
            return str(error)
        return ""

    for path in (root / "b.png", root / "inside.png", root / "below/../b.png", tmp_path / "named/b.png"):
        assert refusal(path) == ""
    escapes = [outside / "a.png", root / "link.png", root / "folder/a.png", root / "../root-outside/a.png"]
    escapes += [root / "masked.png", Path("/etc/passwd")]
    for escape in [*escapes, f"file://{root}/a.png", f"FILE://{outside}/a.png", "https://example.com/a.png"]:
        assert "is not below" in refusal(escape), escape


@pytest.mark.dist
def test_an_agent_is_answered_as_python_answers(model: Path, draw: Callable[..., Path], tmp_path: Path) -> None:
    from mcp.client.stdio import StdioServerParameters

    pair = [draw("a.png"), draw("b.png", square=(16, 8), size=(32, 32))]
    arguments = ["-m", "lightning_idc", "mcp", "--model", str(model), "--folders", str(tmp_path)]
    server = StdioServerParameters(command=forking_python(), args=arguments, env=dict(os.environ), cwd=Path.cwd())

    sample = lightning_idc.sample_pair()[0]

    async def ask() -> tuple[Any, ...]:
        async with mcp.Client(server) as client:
            tools = await client.list_tools()
            result = await client.call_tool("describe_change", {"before": str(pair[0]), "after": str(pair[1])})
            (tmp_path / "text.png").write_text("no image")
            bad = await client.call_tool(
                "describe_change", {"before": str(pair[0]), "after": str(tmp_path / "text.png")}
            )
            again = await client.call_tool("describe_change", {"before": str(pair[0]), "after": str(pair[0])})
            elsewhere = await client.call_tool("describe_change", {"before": str(pair[0]), "after": str(sample)})
            return tools, result, bad, again, elsewhere

    tools, result, bad, again, elsewhere = anyio.run(ask)
    (tool,) = tools.tools
    assert tool.name == "describe_change" and set(tool.input_schema["required"]) == {"before", "after"}
    captioner = lightning_idc.load(model, device="cpu")
    wanted = answer_pairs(captioner, [captioner.input_spec.read(*pair)])[0]
    said = result.structured_content
    assert (said["caption"], said["regions"]) == (wanted.caption, wanted.boxes) and said["size"] == [32, 32]
    assert said["change_score"] == pytest.approx(wanted.change_score, abs=1e-5) and said["changed"] == wanted.changed
    assert wanted.boxes, "a square was drawn"
    assert bad.is_error and "is not a supported image" in bad.content[0].text
    assert elsewhere.is_error and "is not below" in elsewhere.content[0].text
    assert not again.is_error, "one bad file does not end the server"
