"""push_to_hub: upload a captioner with its model card to the Hugging Face hub."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import Output
from lightning_idc.utils.uploads import upload

LAYOUTS = ("captioner", "model", "adapters")
CARD = "README.md"
_USES = {
    "captioner": """import lightning_idc

captioner = lightning_idc.load("{repo}")
print(captioner.describe("before.png", "after.png").text)""",
    "model": """import lightning_idc

captioner = lightning_idc.load("{repo}", prompt={prompt!r})
print(captioner.describe("before.png", "after.png").text)""",
    "adapters": """from huggingface_hub import snapshot_download
from lightning_idc.models import VLMCaptioner

captioner = VLMCaptioner(model={base!r}, prompt={prompt!r})
captioner.build()
captioner.load_adapters(snapshot_download("{repo}"))
print(captioner.describe("before.png", "after.png").text)""",
}


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a model card says besides the captioner's own hyper-parameters.

    Args:
        scores: scores by metric; those of the last evaluation when None.
        license: identifier of the licence on the hub, such as apache-2.0.
        dataset: repository of the benchmark that was scored, OWNER/NAME.
        limits: what the captioner does not do, in sentences.
        files: further files of the repository by path, such as ``.eval_results/coco.yaml``.
    """

    scores: Mapping[str, float] | None = None
    license: str | None = None
    dataset: str | None = None
    limits: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def write_repository(
    captioner: PairCaptioner,
    folder: str | Path,
    repo: str,
    layout: str = "captioner",
    facts: CardFacts | None = None,
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
) -> Output:
    """Write all files of a repository and its model card, and return them.

    Args:
        captioner: captioner to write.
        folder: output folder.
        repo: ``OWNER/NAME`` on the hub.
        layout: ``captioner`` for the self-contained folder of ``save_pretrained``; ``model`` for the format of
            transformers and vLLM, with LoRA merged permanently; ``adapters`` for LoRA in PEFT's format, and MDP.
            Captioners other than vision-language models only have the layout ``captioner``.
        facts: scores, licence and limits on the card, and further files.
        overwrite: whether existing files in the folder may be replaced.
        inputs: files and folders that the captioner was loaded from.

    Raises:
        ConfigError: the layout is unknown, other weights than the adapters are trainable, a plain model would need
            MDP, or a file exists already.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"layout {layout!r} is unknown; expected one of {', '.join(LAYOUTS)}")
    if not isinstance(captioner, VLMCaptioner) and layout != LAYOUTS[0]:
        raise ConfigError(f"layout {layout!r} is for vision-language models, not for a {type(captioner).__name__}")
    if isinstance(captioner, VLMCaptioner) and layout == "adapters":
        _check_adapters(captioner)
    facts = CardFacts() if facts is None else facts
    card = card_of(captioner, repo, layout, facts)  # before adapters are merged
    output = repository(folder, overwrite, inputs)
    with output as draft:
        if not isinstance(captioner, VLMCaptioner) or layout == "captioner":
            captioner.save_pretrained(draft)
        elif layout == "adapters":
            captioner.save_adapters(draft)
        else:
            captioner.save_model(draft, merge=True)
        _hide_local_paths(draft)
        for path, text in {CARD: card, **facts.files}.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            write_content(draft / path, text)
    return output


def repository(folder: str | Path, overwrite: bool = False, inputs: Sequence[str | Path] = ()) -> Output:
    """Output files of a repository in a folder; arguments as in :func:`write_repository`."""
    return Output(folder, "repository of a captioner", overwrite, inputs)


def _hide_local_paths(folder: Path) -> None:
    """Replace the paths of this machine in configurations, such as that of the base model, which may be private."""
    for file in sorted(folder.rglob("*config.json")) + sorted(folder.rglob("adapters.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        hidden = _without_paths(content)
        if hidden != content:
            write_content(file, json.dumps(hidden, indent=2, ensure_ascii=False))


def _without_paths(value: Any) -> Any:
    """Copy of plain values in which the paths of files and folders that exist here are replaced."""
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    is_path = isinstance(value, str) and len(value) < 4096 and os.sep in value[1:] and os.path.exists(value)
    return "local" if is_path else value


def _check_adapters(captioner: VLMCaptioner) -> None:
    if not len(captioner.adapters):
        raise ConfigError("the captioner has no adapters to write; the layout captioner writes all weights")
    others = captioner.trainable_non_adapter_parameters()
    if others:
        raise ConfigError(
            f"the layout adapters would leave out {len(others)} trained weights that are not part of an adapter "
            f"({', '.join(others[:2])}); use the layout captioner, or freeze them (LoRA: freeze: [model, lm_head])"
        )


def push_to_hub(
    captioner: PairCaptioner,
    repo: str,
    layout: str = "captioner",
    facts: CardFacts | None = None,
    private: bool = True,
    message: str = "Upload an image difference captioner",
    overwrite: bool = False,
) -> str:
    """Upload a captioner with its model card to the hub, and return the URL; creates the repository if needed.

    Args:
        captioner: captioner to upload.
        repo: ``OWNER/NAME``.
        layout: see :func:`write_repository`.
        facts: see :func:`write_repository`.
        private: whether a new repository is private.
        message: commit message.
        overwrite: whether files of the repository that were not uploaded by this function may be replaced.

    Raises:
        ConfigError: see :func:`write_repository`, raised before the upload; or the repository has files of others.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = write_repository(captioner, folder, repo, layout, facts)
        return upload(output, repo, message, private, overwrite=overwrite)


def card_of(captioner: PairCaptioner, repo: str, layout: str, facts: CardFacts) -> str:
    """Text of the model card: metadata of the hub, usage, training, scores and limits.

    Args:
        captioner: captioner to describe.
        repo: ``OWNER/NAME``.
        layout: see :func:`write_repository`.
        facts: scores, licence and limits.
    """
    from huggingface_hub import ModelCardData

    options, is_vlm = captioner.hparams, isinstance(captioner, VLMCaptioner)
    base = captioner.built_net.base_name if is_vlm else None
    prompt = options["prompt"] if is_vlm else None
    scores = facts.scores
    if scores is None and captioner.scores is not None:
        scores = captioner.scores.as_dict()
    # the path of a local folder is private
    public_base = base if base is not None and not Path(base).exists() else None
    metadata_fields: dict[str, Any] = {
        "library_name": {"captioner": "lightning-idc", "model": "transformers", "adapters": "peft"}[layout],
        "pipeline_tag": "image-text-to-text" if is_vlm else "image-to-text",
        "tags": ["image-difference-captioning", "lightning-idc", *captioner.adapters],
        "base_model": public_base,
        "license": facts.license,
        "datasets": None if facts.dataset is None else [facts.dataset],
        "metrics": list(scores) if scores else None,
    }
    metadata = ModelCardData(**{name: value for name, value in metadata_fields.items() if value is not None}).to_yaml()
    usage = _USES[layout].format(repo=repo, prompt=prompt, base=public_base or "the base model")
    records = options["adapters"] or {}
    if is_vlm:
        rows = [f"| base model | {public_base or 'not public'} |", f"| prompt | {prompt} |"]
    else:
        spec = captioner.input_spec
        size = "any size" if spec.size is None else f"{spec.size[1]}x{spec.size[0]} pixels"
        rows = [f"| network | {type(captioner).__name__} |", f"| images | {size} |", f"| trained on | {spec.domain} |"]
    rows += [f"| {name} | {_options_text(records[name])} |" for name in captioner.adapters if name in records]
    text = [
        f"---\n{metadata}\n---\n",
        f"# {repo.rpartition('/')[2]}\n",
        "Describes the change from a first image to a second one.\n",
        f"```python\n{usage}\n```\n",
        "| | |\n|---|---|\n" + "\n".join(rows) + "\n",
    ]
    if scores:
        lines = "\n".join(f"| {name} | {value:.2f} |" for name, value in scores.items())
        text.append(f"| metric | value |\n|---|---|\n{lines}\n")
    text.append(f"## Limits\n\n{' '.join(_limits(captioner, layout, facts))}\n")
    return "\n".join(text)


def _limits(captioner: PairCaptioner, layout: str, facts: CardFacts) -> list[str]:
    """Sentences of the card's section on limits."""
    sentences = [] if facts.limits is None else [facts.limits]
    if not isinstance(captioner, VLMCaptioner):
        domain = captioner.input_spec.domain or "unknown images"
        sentences.append(f"Trained on {domain}; it describes other images as if they were of this kind.")
    if "mdp" in captioner.adapters and layout != "model":
        sentences.append("MDP rewrites the features of both images; programs other than lightning_idc cannot run it.")
    return sentences or ["None were measured."]


def _options_text(record: Mapping[str, Any]) -> str:
    options = {name: value for name, value in record["init_args"].items() if value not in (None, [], False)}
    return ", ".join(f"{name} {value}" for name, value in options.items()) or "default options"
