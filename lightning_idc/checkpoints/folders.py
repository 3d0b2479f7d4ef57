"""Folders of `save_pretrained`: ``config.json``, sealed by a digest of itself, and ``model.safetensors``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.checkpoints.reading import refuse_nan
from lightning_idc.utils.errors import CheckpointError
from lightning_idc.utils.files import atomic_write, file_digest, seal, unseal

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def write_folder(folder: Path, config: Mapping[str, Any], state: dict[str, Tensor]) -> None:
    """Write what a module is made from and its weights."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / WEIGHTS, lambda path: save_file(state, path))
    atomic_write(folder / CONFIG, seal({**config, "weights": file_digest(folder / WEIGHTS)}, indent=2))


def read_config(folder: Path) -> dict[str, Any]:
    """What the module of a folder is made from.

    Raises:
        CheckpointError: the folder has none, or holds a model of transformers.
    """
    config = json.loads(_file_of(folder, CONFIG).read_text(encoding="utf-8"))
    if isinstance(config, dict) and "class_path" not in config and "model_type" in config:
        raise CheckpointError(
            f"{str(folder)!r} is a model of transformers ({str(config['model_type'])[:40]}), not a captioner; a "
            "vision-language model is the argument `model` of VLMCaptioner"
        )
    return dict(config)


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights of a folder, whose files are those that were saved where its configuration says which these are.

    Raises:
        CheckpointError: a file is missing, damaged or was changed.
    """
    from safetensors.torch import load_file

    weights = _file_of(folder, WEIGHTS)
    state = load_file(weights)
    refuse_nan(state, weights)
    changed = [CONFIG] if "seal" in config and unseal((folder / CONFIG).read_text(encoding="utf-8")) is None else []
    changed += [WEIGHTS] if config.get("weights") not in (None, file_digest(weights)) else []
    if changed:
        raise CheckpointError(
            f"{str(folder / changed[0])!r} is not what was saved: it is damaged or was changed; fetch the folder "
            f"again, or remove the lines 'seal' and 'weights' from {CONFIG} where it was changed on purpose"
        )
    return state


def _file_of(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise CheckpointError(f"{str(folder)!r} has no {name}; expected a folder that save_pretrained wrote")
    return folder / name
