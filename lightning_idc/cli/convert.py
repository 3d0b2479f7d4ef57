"""The verb convert: convert official checkpoints of a method to checkpoints of this library."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, Literal

from lightning_idc.utils.errors import ConfigError

# method -> function(path of the official checkpoint, **options) -> module with save_pretrained
CONVERTERS = {
    "clip4idc": "lightning_idc.methods.clip4idc.convert.convert",
    "procap": "lightning_idc.methods.procap.official.convert.convert",
    "procap_stage1": "lightning_idc.methods.procap.official.convert.convert_procedure",
    "vqgan": "lightning_idc.methods.procap.official.convert.convert_tokenizer",
}


def convert(
    method: Literal["clip4idc", "procap", "procap_stage1", "vqgan"], checkpoint: Path, *, out: Path, **keys: Any
) -> int:
    """Convert a checkpoint of a method's official code to a checkpoint of this library.

    Further options are settings that the official file lacks, for example --intra_layers 9, --vocabulary
    clevr_word2idx.json (required for procap), or --procedures FOLDER (required for procap_stage1). vqgan is the image
    tokenizer of procap and namc.

    Args:
        method: the method; vqgan and procap_stage1 can only be written to a .ckpt.
        checkpoint: the official file.
        out: .ckpt file for training and testing, or folder in the format of save_pretrained; `describe --model` takes
            both.
    """
    from lightning_idc.cli.signatures import check_arguments
    from lightning_idc.models.module import PairModule
    from lightning_idc.utils.names import class_of

    if os.path.lexists(out):
        raise ConfigError(f"--out {str(out)!r} exists; choose another file or folder")
    check_arguments(keys, CONVERTERS[method], f"convert {method}")
    converter = class_of(CONVERTERS[method])
    needed = [p.name for p in inspect.signature(converter).parameters.values() if p.default is p.empty][1:]
    if absent := [name for name in needed if name not in keys]:
        raise ConfigError(f"convert {method} needs --{absent[0]} VALUE; `lightning-idc convert --help`")
    module = converter(checkpoint, **keys)
    if out.suffix == ".ckpt":
        _save(module, out)
    elif isinstance(module, PairModule):
        module.save_pretrained(out)
    else:
        raise ConfigError(f"--out is {str(out)!r}; a {type(module).__name__} needs a file that ends in .ckpt")
    count = sum(parameter.numel() for parameter in module.parameters())
    print(f"{type(module).__name__} with {count / 1e6:.1f} M parameters: {out}")
    return 0


def _save(module: Any, target: Path) -> None:
    """Write a module in the format of Lightning, without an optimizer."""
    import lightning.pytorch as pl

    from lightning_idc.checkpoints.checkpoint_io import write_checkpoint
    from lightning_idc.utils.names import public_name

    checkpoint = {
        "pytorch-lightning_version": pl.__version__,
        "epoch": 0,
        "global_step": 0,
        "state_dict": module.state_dict(),
        "hyper_parameters": dict(module.hparams),
        "class_path": public_name(type(module)),
    }
    module.on_save_checkpoint(checkpoint)  # adds further keys
    write_checkpoint(checkpoint, target)
