"""Loading trained modules and captioners from files, without a Trainer and without running code of the file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from lightning.pytorch import LightningModule

from lightning_idc.checkpoints.checkpoint_io import write_checkpoint
from lightning_idc.checkpoints.reading import SHARD_INDEX, class_named, plain_hparams, read_checkpoint
from lightning_idc.checkpoints.resolve import resolve
from lightning_idc.models.addon import AUX
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.utils.arguments import accepted_arguments
from lightning_idc.utils.errors import CheckpointError, reads_file

M = TypeVar("M", bound=LightningModule)


@reads_file("path")
def load_module(module_class: type[M], path: str | Path) -> M:
    """Load a module of ``module_class`` from a ``.ckpt`` file, in eval mode; the file cannot name code to run.

    ``load_from_checkpoint`` is not used: it passes hyper-parameters to jsonargparse, which instantiates any class that
    a value names.

    Raises:
        CheckpointError: the file cannot be read, or does not hold a module of this class.
    """
    checkpoint = read_checkpoint(path)
    plain = plain_hparams(checkpoint, path)
    # the file may hold a subclass; one that cannot be imported is loaded as `module_class`
    with suppress(CheckpointError):
        module_class = class_named(str(checkpoint.get("class_path")), module_class)
    accepted = accepted_arguments(module_class)
    module = module_class(**{k: v for k, v in plain.items() if accepted is None or k in accepted})
    module.on_load_checkpoint(checkpoint)
    module.load_state_dict(checkpoint["state_dict"])
    return module.eval()


@reads_file("path")
def load_captioner(path: str | Path) -> PairCaptioner:
    """Load a captioner of this library, ready to describe pairs.

    Args:
        path: ``.ckpt`` file, folder of ``save_pretrained``, name of a captioner that comes with the library, or hub id.

    Raises:
        CheckpointError: the path does not exist, or the checkpoint names a class outside this library.
    """
    path = resolve(path)
    if path.is_dir() and not (path / SHARD_INDEX).is_file():
        return PairCaptioner.from_pretrained(path)
    class_path = read_checkpoint(path).get("class_path")
    if class_path is None:
        raise CheckpointError(f"{str(path)!r} is not a checkpoint of a PairCaptioner")
    captioner_class: type[PairCaptioner] = class_named(class_path, PairCaptioner)
    return load_module(captioner_class, path)


@reads_file("source")
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
    write_checkpoint(checkpoint, target)
    return dropped
