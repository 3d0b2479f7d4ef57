"""The verbs export and push: captioners for programs without this library, and for the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lightning_idc.serve.notes import capture_warnings
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import Output
from lightning_idc.utils.uploads import upload

Layout = Literal["captioner", "model", "adapters"]


def export(
    kind: Literal["onnx", "torch", "hf"],
    *,
    out: Path,
    options: ModelOptions,
    layout: Layout = "captioner",
    overwrite: bool = False,
) -> int:
    """Write a captioner for programs without this library, into a folder.

    onnx and torch write the encoder and one cached step of the decoder of a small captioner; docs/tasks/export.md has
    the loop over words. hf writes a repository for the Hugging Face hub; `lightning-idc push` uploads one.

    Args:
        kind: format of the files.
        out: output folder.
        options: the captioner.
        layout: layout of hf: captioner for this library; model for a vision-language model in the format of
            transformers and vLLM, with LoRA merged; adapters for LoRA in PEFT's format.
        overwrite: replace files of the folder that this command did not write.
    """
    if kind != "hf" and layout != "captioner":
        raise ConfigError(f"--layout belongs to `export hf`; found it with {kind}")
    with capture_warnings():
        if kind == "hf":
            output = _write_repository(out, f"OWNER/{out.resolve().name}", options, layout, overwrite)
        else:
            from lightning_idc.serve.export import graphs, write_graphs

            _check_folder(out)
            output = graphs(out, kind, overwrite, _inputs(options))
            write_graphs(options.open().cpu(), out, kind, overwrite, _inputs(options))
    _show(output, out)
    return 0


def push(repo: str, *, out: Path, options: ModelOptions, layout: Layout = "captioner", overwrite: bool = False) -> int:
    """Upload a captioner with its card to the Hugging Face hub; a new repository is private.

    Args:
        repo: OWNER/NAME on the hub.
        out: folder for the files before the upload.
        options: the captioner.
        layout: captioner for this library; model for a vision-language model in the format of transformers and vLLM,
            with LoRA merged; adapters for LoRA in PEFT's format.
        overwrite: replace files of the folder that this command did not write.
    """
    with capture_warnings():
        output = _write_repository(out, repo, options, layout, overwrite)
        try:
            print(upload(output, repo, "Upload an image difference captioner"))
        except ConfigError as error:
            raise ConfigError(f"{error}; the files are in {str(out)!r}") from error
    _show(output, out)
    return 0


def _write_repository(out: Path, repo: str, options: ModelOptions, layout: Layout, overwrite: bool) -> Output:
    from lightning_idc.models.vlm.publishing import CARD, repository, write_repository

    _check_folder(out)
    repository(out, overwrite, _inputs(options)).check(CARD)
    return write_repository(options.open(), out, repo, layout, overwrite=overwrite, inputs=_inputs(options))


def _inputs(options: ModelOptions) -> list[str]:
    return [] if options.model is None else [options.model]


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {str(out)!r} is a file; name a folder to write")


def _show(output: Output, out: Path) -> None:
    for path in sorted(out / file for file in output.files()):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
