"""Folders of `save_pretrained`: ``config.json``, which contains a checksum of ``model.safetensors``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.checkpoints.reading import check_no_nan, check_no_pointers
from lightning_idc.utils.errors import CheckpointError
from lightning_idc.utils.files import file_digest, write_content
from lightning_idc.utils.outputs import Output

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def write_folder(folder: Path, config: Mapping[str, Any], state: dict[str, Tensor]) -> None:
    """Write the configuration and weights of a module.

    Raises:
        ConfigError: another file would be overwritten.
    """
    from safetensors.torch import save_file

    with Output(folder, "captioner") as draft:
        save_file(state, draft / WEIGHTS)
        content = {**config, "weights": file_digest(draft / WEIGHTS)}
        write_content(draft / CONFIG, json.dumps(content, indent=2, ensure_ascii=False))


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of the module in a folder.

    Raises:
        CheckpointError: the folder has no configuration, or contains a model of transformers.
    """
    check_no_pointers(folder)
    config = json.loads(_file_of(folder, CONFIG).read_text(encoding="utf-8"))
    if isinstance(config, dict) and "class_path" not in config and "model_type" in config:
        raise CheckpointError(
            f"{str(folder)!r} is a model of transformers ({str(config['model_type'])[:40]}), not a captioner; a "
            "vision-language model is the argument `model` of VLMCaptioner"
        )
    return dict(config)


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the weights of a folder.

    Raises:
        CheckpointError: the file is missing, or its checksum differs from the one in the configuration.
    """
    from safetensors.torch import load_file

    weights = _file_of(folder, WEIGHTS)
    if config.get("weights") not in (None, file_digest(weights)):
        raise CheckpointError(
            f"the checksum of {str(weights)!r} differs from the one in {CONFIG}: the file is damaged or incomplete; "
            "download it again"
        )
    state = load_file(weights)
    check_no_nan(state, weights)
    return state


def read_folder(folder: Path) -> dict[str, Any]:
    """Read a folder of ``save_pretrained`` as a dictionary with the keys of a checkpoint file.

    Raises:
        CheckpointError: a file is missing or damaged, or the folder holds a model of transformers.
    """
    config = read_config(folder)
    return {
        "class_path": config.get("class_path"),
        "hyper_parameters": config.get("init_args") or {},
        "state_dict": read_weights(folder, config),
    }


def _file_of(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise CheckpointError(f"{str(folder)!r} has no {name}; expected a folder that save_pretrained wrote")
    return folder / name
