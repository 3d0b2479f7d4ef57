"""Data module settings in checkpoints, so that `test` and `predict` of a checkpoint need no configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.checkpoints.reading import names_a_class, read_checkpoint
from lightning_idc.utils.arguments import accepted_arguments
from lightning_idc.utils.errors import CheckpointError, ConfigError
from lightning_idc.utils.names import class_of, full_name, is_public

KEY = "data"
READING = ("value_range", "bands", "page", "fill_nan", "interpolation")
"""Arguments of a data module for reading files; those of the training also apply to other files."""
WRITTEN = ("cache_dir", "cache_images")
"""Arguments of a data module for output folders; from a checkpoint, only folders below the current one are used."""
_PLAIN = (str, int, float, bool, type(None))


class StoreData(Callback):
    """Saves class and arguments of the data module in checkpoints, if all arguments are plain values.

    Args:
        class_path: class path of the data module.
        init_args: arguments in the configuration, without defaults.
    """

    def __init__(self, class_path: str, init_args: Mapping[str, Any] | None) -> None:
        self.data = {"class_path": class_path, "init_args": dict(init_args or {})}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if _is_safe(self.data):
            checkpoint[KEY] = self.data


def _is_safe(data: Any) -> bool:
    """Whether data settings are safe to build: a data module of this library with plain values."""
    if not isinstance(data, Mapping) or not isinstance(data.get("class_path"), str):
        return False
    options = data.get("init_args")
    if not isinstance(options, Mapping) or names_a_class(options) or not _is_plain(options):
        return False
    try:
        module, _, name = full_name(data["class_path"]).rpartition(".")
    except ConfigError:
        return False
    return module == "lightning_idc.data" and is_public(name)


def _is_below(path: Any) -> bool:
    current = Path.cwd().resolve()
    return isinstance(path, str) and current in (current / Path(path).expanduser()).resolve().parents


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return all(map(_is_plain, value)) if isinstance(value, (list, tuple)) else isinstance(value, _PLAIN)


def is_path(ckpt_path: Any) -> bool:
    """Whether a ``ckpt_path`` is a path and not a keyword of Lightning."""
    return bool(ckpt_path) and ckpt_path not in ("best", "last", "hpc", "registry")


def with_checkpoint(config: dict[str, Any]) -> dict[str, Any]:
    """Configuration completed by the model, and if available the data module, of its checkpoint.

    Raises:
        ConfigError: ``ckpt_path`` is not a path.
        CheckpointError: the checkpoint cannot be read, or has no model class.
    """
    path = config.get("ckpt_path")
    if not is_path(path):
        return config
    if not isinstance(path, str):
        raise ConfigError(f"--ckpt_path {path!r}: expected the path of a checkpoint")
    checkpoint, model = read_checkpoint(path), dict(config.get("model") or {})
    if not model.get("class_path"):
        stored = checkpoint.get("class_path")
        if stored is None:
            raise CheckpointError(f"{str(path)!r} does not store its class; set it with --model NAME")
        # options without a class, as in `--model.width 64`, are not under init_args
        options = (model.pop("init_args", None) or {}) | {k: v for k, v in model.items() if k != "class_path"}
        model = {"class_path": full_name(stored), "init_args": options}
    return with_stored_data({**config, "model": model}, checkpoint)


def check_content(checkpoint: Mapping[str, Any], verb: str, path: str) -> None:
    """Check that a checkpoint has all keys that Lightning needs.

    Raises:
        CheckpointError: a key is missing.
    """
    needed = ["state_dict", "pytorch-lightning_version", "loops", "global_step"]
    needed += ["optimizer_states", "lr_schedulers", "callbacks"] if verb == "fit" else []
    missing = [name for name in needed if name not in checkpoint]
    if missing:
        use = "training cannot resume from it" if verb == "fit" else "it cannot be loaded"
        raise CheckpointError(f"{path!r} has no {missing[0]!r}, so {use}; expected a checkpoint that a Trainer wrote")


def with_stored_data(config: dict[str, Any], checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration completed by the data module of its checkpoint, or by the settings for reading files.

    Args:
        config: merged configuration.
        checkpoint: content of the checkpoint.
    """
    data = dict(config.get("data") or {})
    if not data.get("class_path"):
        stored = checkpoint.get(KEY)
        if not isinstance(stored, dict) or not _is_safe(stored):
            return config
        # options without a class, as in `--data.root X`, are not under init_args
        options = (data.pop("init_args", None) or {}) | {k: v for k, v in data.items() if k != "class_path"}
        stored_options = {k: v for k, v in stored["init_args"].items() if k not in WRITTEN or _is_below(v)}
        return {**config, "data": {"class_path": stored["class_path"], "init_args": {**stored_options, **options}}}
    options = data.get("init_args") or {}
    spec = (checkpoint.get("hyper_parameters") or {}).get("input_spec") or {}
    names = accepted_arguments(class_of(data["class_path"])) or ()
    read_options = {k: spec[k] for k in READING if k in names and k not in options and spec.get(k) is not None}
    return {**config, "data": {**data, "init_args": {**read_options, **options}}}
