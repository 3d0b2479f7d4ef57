"""Checkpoints of captioners: plain types only, bit-for-bit resume, directories to share."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_idc.core.addon import AUX
from lightning_idc.core.aliases import current_path
from lightning_idc.core.arguments import accepted_arguments
from lightning_idc.core.distributed import is_first, of_all_processes, whole
from lightning_idc.core.types import PairError

if TYPE_CHECKING:
    from typing_extensions import Self

    from lightning_idc.core.captioner import PairCaptioner

M = TypeVar("M", bound=LightningModule)

# arguments that say how training goes; objects, which a checkpoint of plain types cannot hold and must not name
TRAINING_ONLY = frozenset({"optimizer", "schedule", "encoder_schedule", "init_from", "settle_adapters"})
CONFIG, WEIGHTS = "config.json", "model.safetensors"
PIECES = ".metadata"  # of torch.distributed.checkpoint: what each process of a sharded model wrote


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint file, refusing anything but tensors and plain types.

    Raises:
        PairError: the file is missing, damaged, in pieces, or would run code when loaded.
    """
    if Path(path, PIECES).is_file():
        # its list of pieces is a pickle, which might run code
        raise PairError(
            f"{str(path)!r} is a checkpoint in pieces, which only Trainer.fit goes on from; to get one file, train "
            "with save_distributed_checkpoint: false, or go on from it under its strategy and call save_pretrained"
        )
    if not Path(path).is_file():
        raise PairError(f"there is no checkpoint {str(path)!r}; check the path (resuming never starts afresh silently)")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise PairError(
            f"{str(path)!r} cannot be loaded as a checkpoint of tensors and plain types: {error}"
        ) from error


def plain_hparams(checkpoint: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """Hyper-parameters of a checkpoint as constructor arguments that nothing but plain values can come from.

    Left out are those that only matter to training and those that Lightning adds for its own use, since either may
    name a class or a function that would then be called.

    Raises:
        PairError: a value names a class; only ``adapters`` may, and of this library alone.
    """
    found = checkpoint.get("hyper_parameters") or {}
    if not isinstance(found, Mapping):
        raise PairError(f"{str(path)!r}: hyper_parameters is a {type(found).__name__}; expected names with values")
    plain = {k: v for k, v in found.items() if not str(k).startswith("_") and k not in TRAINING_ONLY}
    for name, value in plain.items():
        if name == "adapters":
            _check_adapters(value, path)
        elif _names_a_class(value):
            raise PairError(
                f"{str(path)!r}: the hyper-parameter {name!r} names a class to build ({str(value)[:200]!r}); expected "
                "plain values. The file may be hostile: do not load it, or give this argument yourself"
            )
    return plain


def _check_adapters(records: Any, path: str | Path) -> None:
    for name, record in (records or {}).items() if isinstance(records, Mapping) or records is None else [("", records)]:
        fits = isinstance(record, Mapping) and set(record) <= {"class_path", "init_args", "settled"}
        options = record.get("init_args") if fits else None
        if not isinstance(options, Mapping) or not isinstance(record["class_path"], str) or _names_a_class(options):
            raise PairError(
                f"{str(path)!r}: the adapter {name!r} is made from {str(record)[:200]!r}; expected the class_path of "
                "an adapter of this library and plain init_args. The file may be hostile: do not load it"
            )


def _names_a_class(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "class_path" in value or any(map(_names_a_class, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_names_a_class, value))


def load_module(kind: type[M], path: str | Path) -> M:
    """Module of a known class from a ``.ckpt`` file, in eval mode; nothing in the file can name what is run.

    ``load_from_checkpoint`` is not used: it hands hyper-parameters to jsonargparse, which builds any class that a
    value names.

    Raises:
        PairError: the file cannot be read, or does not hold a module of this class.
    """
    checkpoint = read_checkpoint(path)
    plain = plain_hparams(checkpoint, path)
    known = accepted_arguments(kind)
    module = kind(**{k: v for k, v in plain.items() if known is None or k in known})
    module.on_load_checkpoint(checkpoint)
    module.load_state_dict(checkpoint["state_dict"])
    return module.eval()


def strip_aux(source: str | Path, target: str | Path) -> list[str]:
    """Copy a checkpoint without the weights of its add-ons, for modules that are not PairCaptioners.

    Returns:
        names of the weights that were left out.
    """
    checkpoint = read_checkpoint(source)
    state = checkpoint["state_dict"]
    dropped = [key for key in state if key.startswith(f"{AUX}.")]
    for key in dropped:
        del state[key]
    partial = Path(target).with_name(Path(target).name + ".partial")
    torch.save(checkpoint, partial)
    os.replace(partial, target)
    return dropped


def load_captioner(path: str | Path) -> PairCaptioner:
    """Captioner of this library from a ``.ckpt`` file or a folder of ``save_pretrained``, ready to describe pairs.

    Raises:
        PairError: there is nothing to load, or it names a class of somebody else.
    """
    from lightning_idc.core.captioner import PairCaptioner

    if Path(path).is_dir() and not Path(path, PIECES).is_file():
        return PairCaptioner.from_pretrained(path)
    class_path = read_checkpoint(path).get("class_path")
    if class_path is None:
        raise PairError(f"{str(path)!r} is no checkpoint of a PairCaptioner")
    return load_module(class_named(class_path, PairCaptioner), path)


class LoadsAndSaves:
    """The part of a PairCaptioner that reads and writes it."""

    word_hparams: tuple[str, ...] = ("vocabulary",)
    """Hyper-parameters that say what token ids mean: those that the weights were trained on win over others."""
    init_from: str | None
    _rng: dict[str, Any] | None = None

    def load_start(self: Any) -> dict[str, Tensor] | None:
        """Weights that ``init_from`` names, taking over its vocabulary and adapters; None without it."""
        if self.init_from is None:
            return None
        checkpoint = read_checkpoint(self.init_from)
        wanted = self.hparams["max_length"]
        self._adopt(plain_hparams(checkpoint, self.init_from))
        # descriptions of a pre-training may be longer than the captions that are wanted now
        self.hparams["max_length"] = wanted or self.hparams["max_length"]
        return checkpoint["state_dict"]

    def _adopt(self: Any, hparams: dict[str, Any]) -> None:
        for name in (*self.word_hparams, "no_change_captions", "image_size", "max_length"):
            if hparams.get(name) is not None:
                self.hparams[name] = hparams[name]
        self.record_adapters(hparams.get("adapters"))

    def on_save_checkpoint(self: Any, checkpoint: dict[str, Any]) -> None:
        self.check_loss()
        state: dict[str, Any] = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        checkpoint["rng"] = of_all_processes(state)
        checkpoint["class_path"] = f"{type(self).__module__}.{type(self).__qualname__}"

    def on_load_checkpoint(self: Any, checkpoint: dict[str, Any]) -> None:
        hparams = plain_hparams(checkpoint, "the checkpoint")
        words = {name: hparams[name] for name in self.word_hparams if hparams.get(name) is not None}
        if self.net is None or any(words[name] != self.hparams[name] for name in words):
            self._adopt(hparams)
            self.net, self.init_from = None, None  # the checkpoint brings all weights
            self.adapter.clear()
            self.build()
            if self.net is not None and self._trainer is not None and self.device_mesh is None:
                self.net.to(self.device)
        elif hparams.get("adapters"):
            self.record_adapters(hparams["adapters"])
            self.install_adapters()
        self._rng = {"states": checkpoint.get("rng")}

    def on_train_start(self: Any) -> None:
        """Continue the random numbers where the checkpoint left them, one stream per rank."""
        loaded, self._rng = self._rng, None
        if loaded is None or loaded["states"] is None or len(loaded["states"]) != self.trainer.world_size:
            return
        state = loaded["states"][self.trainer.global_rank]
        torch.set_rng_state(state["cpu"].cpu())
        if "cuda" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"].cpu(), self.device)

    def save_pretrained(self: Any, folder: str | Path) -> Path:
        """Write ``config.json`` and ``model.safetensors``, without add-ons, and return the folder.

        In a distributed run all processes must call this; sharded weights are put together and the first one writes.
        """
        from safetensors.torch import save_file

        folder = Path(folder)
        kind = type(self)
        hparams = {k: v for k, v in dict(self.hparams).items() if not k.startswith("_")}
        config = {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": hparams}
        state = whole({k: v for k, v in self.state_dict().items() if not k.startswith(f"{AUX}.")})
        if is_first():
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / f"{WEIGHTS}.partial"
            save_file(state, partial)
            os.replace(partial, folder / WEIGHTS)
            (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
        of_all_processes(None)  # nobody goes on to read what is not written yet
        return folder

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Load what :meth:`save_pretrained` wrote; runs no code from the folder.

        Raises:
            PairError: a file is missing, or the folder holds another class.
        """
        from safetensors.torch import load_file

        folder = Path(folder)
        for name in (CONFIG, WEIGHTS):
            if not (folder / name).is_file():
                raise PairError(f"{str(folder)!r} has no {name}; expected a folder that save_pretrained wrote")
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kind = class_named(config["class_path"], cls)
        model = kind(**plain_hparams({"hyper_parameters": config["init_args"]}, folder / CONFIG))
        model.build()
        model.load_state_dict(load_file(folder / WEIGHTS))
        return model.eval()


def class_named(path: str, base: type) -> Any:
    """Class of a config: ``base`` itself, a subclass that is already imported, or one of this library."""
    path = current_path(path)
    module = path.rpartition(".")[0]
    if module.split(".")[0] == "lightning_idc":
        importlib.import_module(module)
    known = [base]
    for kind in known:
        if path == f"{kind.__module__}.{kind.__qualname__}":
            return kind
        known += kind.__subclasses__()
    raise PairError(
        f"the checkpoint holds a {path}, which is no {base.__qualname__} of this library; import the module of that "
        "class first"
    )
