"""export: a captioner for programs without this library."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lightning_idc.cli import typed
from lightning_idc.serve.notes import noted
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.utils.errors import ConfigError


def run(given: list[str]) -> int:
    """The verb `export`."""
    return typed.call("export", export, given[1:])


def export(
    kind: Literal["onnx", "torch", "hf"],
    out: Path,
    options: ModelOptions,
    layout: Literal["captioner", "model", "adapters"] = "captioner",
    push: str | None = None,
) -> int:
    """Write a captioner for programs without this library, into a folder.

    onnx and torch write the encoder and one cached step of the decoder of a small captioner; docs/tasks/export.md has
    the loop over words. hf writes a repository of the Hugging Face hub with its card.

    Args:
        kind: of files.
        out: folder to write.
        options: of the captioner.
        layout: of hf: captioner for this library; model for a vision-language model that transformers and vLLM read,
            LoRA merged; adapters for LoRA as PEFT has it.
        push: of hf, OWNER/NAME on the hub to upload the folder to, made private where it is missing.
    """
    if kind != "hf" and (push is not None or layout != "captioner"):
        raise ConfigError(f"--push and --layout belong to `export hf`; found them with {kind}")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{str(out)!r} is a file; name a folder to write")
    with noted():
        captioner = options.open()
        if kind == "hf":
            from lightning_idc.models.vlm.publishing import upload, write_repository

            folder = write_repository(captioner, out, push or f"OWNER/{out.name}", layout)
            if push is not None:
                try:
                    print(upload(folder, push))
                except ConfigError as error:
                    raise ConfigError(f"{error}; the files are in {str(folder)!r}") from error
        else:
            from lightning_idc.serve.export import write_graphs

            write_graphs(captioner.cpu(), out, kind)
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    return 0
