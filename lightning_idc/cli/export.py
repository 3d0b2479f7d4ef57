"""export: a captioner for programs without this library."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lightning_idc.cli import typed
from lightning_idc.serve.notes import noted
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.uploads import upload


def run(given: list[str]) -> int:
    """The verb `export`."""
    return typed.call("export", export, given[1:])


def export(
    kind: Literal["onnx", "torch", "hf"],
    out: Path,
    options: ModelOptions,
    layout: Literal["captioner", "model", "adapters"] = "captioner",
    push: str | None = None,
    overwrite: bool = False,
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
        push: of hf, OWNER/NAME on the hub to upload the written files to, made private where it is missing.
        overwrite: replace files of the folder that this command did not write.
    """
    if kind != "hf" and (push is not None or layout != "captioner"):
        raise ConfigError(f"--push and --layout belong to `export hf`; found them with {kind}")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{str(out)!r} is a file; name a folder to write")
    inputs = [] if options.model is None else [options.model]
    with noted():
        if kind == "hf":
            from lightning_idc.models.vlm.publishing import CARD, repository, write_repository

            repository(out, overwrite, inputs).check(CARD)
            repo = push or f"OWNER/{out.resolve().name}"
            output = write_repository(options.open(), out, repo, layout, overwrite=overwrite, inputs=inputs)
            if push is not None:
                try:
                    print(upload(output, push, "Upload an image difference captioner"))
                except ConfigError as error:
                    raise ConfigError(f"{error}; the files are in {str(out)!r}") from error
        else:
            from lightning_idc.serve.export import graphs, write_graphs

            output = graphs(out, kind, overwrite, inputs)
            write_graphs(options.open().cpu(), out, kind, overwrite, inputs)
    for path in sorted(out / file for file in output.files()):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    return 0
