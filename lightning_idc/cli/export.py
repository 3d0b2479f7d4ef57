"""The verbs export and push: captioners for programs without this library, and for the hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lightning_idc.serve.notes import capture_warnings
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import Output
from lightning_idc.utils.uploads import upload

if TYPE_CHECKING:
    from lightning_idc.models.vlm.publishing import CardFacts

Layout = Literal["captioner", "model", "adapters"]


@dataclass(frozen=True, slots=True)
class CardOptions:
    """What the card of a repository says.

    Args:
        results: metrics.json of a test, for the scores on the card and in .eval_results.
        dataset: repository of the benchmark on the hub, OWNER/NAME; needed for .eval_results.
        license: identifier of the licence, such as apache-2.0.
        limits: what the captioner does not do, in sentences.
    """

    results: Path | None = None
    dataset: str | None = None
    license: str | None = None
    limits: str | None = None

    def facts(self) -> CardFacts:
        """Contents of the card and of the files next to it.

        Raises:
            ConfigError: the results cannot be read.
        """
        from lightning_idc.models.vlm.publishing import CardFacts

        if self.results is None:
            return CardFacts(None, self.license, self.dataset, self.limits)
        import yaml

        from lightning_idc.report.hub_results import hub_entries

        try:
            result = json.loads(self.results.expanduser().read_text(encoding="utf-8"))
            scores = {name: value for name, value in result["scores"][result["headline"]].items() if value is not None}
            entries = hub_entries(result, self.dataset) if self.dataset else []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"--results {str(self.results)!r} is not the metrics.json of a test ({error})") from error
        name = f".eval_results/{result['protocol']['name'].replace('/', '_')}.yaml"
        files = {name: yaml.safe_dump(entries, sort_keys=False)} if entries else {}
        return CardFacts(scores, self.license, self.dataset, self.limits, files)


def export(
    kind: Literal["onnx", "torch", "hf"],
    *,
    out: Path,
    options: ModelOptions,
    card: CardOptions,
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
        card: the card of hf.
        layout: layout of hf: captioner for this library; model for a vision-language model in the format of
            transformers and vLLM, with LoRA merged; adapters for LoRA in PEFT's format.
        overwrite: replace files of the folder that this command did not write.
    """
    if kind != "hf" and layout != "captioner":
        raise ConfigError(f"--layout is an option of `export hf`, not of `export {kind}`")
    with capture_warnings():
        if kind == "hf":
            output = _write_repository(out, f"OWNER/{out.resolve().name}", options, card, layout, overwrite)
        else:
            from lightning_idc.serve.export import graphs, write_graphs

            _check_folder(out)
            output = graphs(out, kind, overwrite, _inputs(options))
            write_graphs(options.open().cpu(), out, kind, overwrite, _inputs(options))
    _show(output, out)
    return 0


def push(
    repo: str,
    *,
    out: Path,
    options: ModelOptions,
    card: CardOptions,
    layout: Layout = "captioner",
    overwrite: bool = False,
) -> int:
    """Upload a captioner with its card to the Hugging Face hub; a new repository is private.

    Args:
        repo: OWNER/NAME on the hub.
        out: folder for the files before the upload.
        options: the captioner.
        card: the card.
        layout: captioner for this library; model for a vision-language model in the format of transformers and vLLM,
            with LoRA merged; adapters for LoRA in PEFT's format.
        overwrite: replace files of the folder and of the repository that this command did not write.
    """
    with capture_warnings():
        output = _write_repository(out, repo, options, card, layout, overwrite)
        try:
            print(upload(output, repo, "Upload an image difference captioner", overwrite=overwrite))
        except ConfigError as error:
            raise ConfigError(f"{error}; the files are in {str(out)!r}") from error
    _show(output, out)
    return 0


def _write_repository(
    out: Path, repo: str, options: ModelOptions, card: CardOptions, layout: Layout, overwrite: bool
) -> Output:
    from lightning_idc.models.vlm.publishing import CARD, repository, write_repository

    _check_folder(out)
    facts = card.facts()
    repository(out, overwrite, _inputs(options)).check(CARD, *facts.files)
    return write_repository(options.open(), out, repo, layout, facts, overwrite, _inputs(options))


def _inputs(options: ModelOptions) -> list[str]:
    return [] if options.model is None else [options.model]


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {str(out)!r} is a file; name a folder to write")


def _show(output: Output, out: Path) -> None:
    for path in sorted(out / file for file in output.files()):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
