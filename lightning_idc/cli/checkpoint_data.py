"""Data of a training beside its weights, so that `test` and `predict` of a checkpoint need no configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.checkpoints.reading import names_a_class
from lightning_idc.utils.arguments import accepted_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import class_of, full_name, is_public

KEY = "data"
READING = ("value_range", "bands", "page", "fill_nan", "interpolation")
"""Arguments of a data module that say how files are read; those of the training fit other files as well."""
WRITTEN = ("cache_dir", "cache_images")
"""Arguments of a data module that name folders to write in; of a file of somebody else, below the current one only."""
_PLAIN = (str, int, float, bool, type(None))


class StoreData(Callback):
    """Writes what the data module of a training is made from into its checkpoints, where that is plain.

    Args:
        class_path: of the configuration.
        init_args: as they were given, defaults left out.
    """

    def __init__(self, class_path: str, init_args: Mapping[str, Any] | None) -> None:
        self.data = {"class_path": class_path, "init_args": dict(init_args or {})}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if _is_safe(self.data):
            checkpoint[KEY] = self.data


def _is_safe(data: Any) -> bool:
    """Whether a data module of this library is named, made from plain values: nothing else is built from a file."""
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
    here = Path.cwd().resolve()
    return isinstance(path, str) and here in (here / Path(path).expanduser()).resolve().parents


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return all(map(_is_plain, value)) if isinstance(value, (list, tuple)) else isinstance(value, _PLAIN)


def with_stored_data(config: dict[str, Any], checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration with the data of its checkpoint where none are named, and with how files were read otherwise.

    Args:
        config: merged.
        checkpoint: its content.
    """
    given = dict(config.get("data") or {})
    if not given.get("class_path"):
        stored = checkpoint.get(KEY)
        if not isinstance(stored, dict) or not _is_safe(stored):
            return config
        # `--data.root X` without a class stands beside, and not under, init_args
        options = (given.pop("init_args", None) or {}) | {k: v for k, v in given.items() if k != "class_path"}
        kept = {k: v for k, v in stored["init_args"].items() if k not in WRITTEN or _is_below(v)}
        return {**config, "data": {"class_path": stored["class_path"], "init_args": {**kept, **options}}}
    options = given.get("init_args") or {}
    spec = (checkpoint.get("hyper_parameters") or {}).get("input_spec") or {}
    known = accepted_arguments(class_of(given["class_path"])) or ()
    read = {k: spec[k] for k in READING if k in known and k not in options and spec.get(k) is not None}
    return {**config, "data": {**given, "init_args": {**read, **options}}}
