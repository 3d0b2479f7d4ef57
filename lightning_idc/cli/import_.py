"""import: official checkpoints of a method as checkpoints of this library."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import ConfigError

# method -> function(path of the official checkpoint, **options) -> module with save_pretrained
CONVERTERS = {
    "clip4idc": "lightning_idc.methods.clip4idc.convert.convert",
    "procap": "lightning_idc.methods.procap.official.convert.convert",
    "procap_stage1": "lightning_idc.methods.procap.official.convert.convert_procedure",
    "vqgan": "lightning_idc.methods.procap.official.convert.convert_tokenizer",
}
_HELP = f"""usage: lightning-idc import METHOD CHECKPOINT OUT [--key value ...]

Converts a checkpoint of a method's official code. OUT is a file that ends in .ckpt, to train from or to test, or a
folder as save_pretrained writes it; `lightning-idc describe --model OUT` takes both.

METHOD is one of {", ".join(CONVERTERS)}; keys are what its file does not tell, for example --intra_layers 9,
--vocabulary clevr_word2idx.json, which procap needs, or --procedures FOLDER, which procap_stage1 needs. vqgan is the
image tokenizer of procap and namc. It and procap_stage1 are kept as a .ckpt."""


def run(given: list[str]) -> int:
    """The verb `import`."""
    rest = given[1:]
    wants_help = any(argument in ("-h", "--help") for argument in rest)
    if wants_help or len(rest) < 3 or any(argument.startswith("--") for argument in rest[:3]):
        print(_HELP, file=sys.stdout if wants_help else sys.stderr)
        return 0 if wants_help else 2
    from lightning_idc.cli.configuration import parse_overrides
    from lightning_idc.cli.errors import check_names
    from lightning_idc.models.module import PairModule
    from lightning_idc.utils.names import class_of, nearest

    method, source, target = rest[0], Path(rest[1]), Path(rest[2])
    if method not in CONVERTERS:
        raise ConfigError(f"no converter for {method!r}; {nearest(method, CONVERTERS)}")
    if os.path.lexists(target):
        raise ConfigError(f"{str(target)!r} exists; name another file or folder")
    convert = class_of(CONVERTERS[method])
    options = parse_overrides(rest[3:])
    check_names(options, convert, f"import {method}")
    needed = [p.name for p in inspect.signature(convert).parameters.values() if p.default is p.empty][1:]
    if absent := [name for name in needed if name not in options]:
        raise ConfigError(f"import {method} needs --{absent[0]} VALUE; `lightning-idc import --help`")
    module = convert(source, **options)
    if target.suffix == ".ckpt":
        _save(module, target)
    elif isinstance(module, PairModule):
        module.save_pretrained(target)
    else:
        raise ConfigError(f"a {type(module).__name__} is kept as a file that ends in .ckpt; OUT is {str(target)!r}")
    count = sum(parameter.numel() for parameter in module.parameters())
    print(f"{type(module).__name__} with {count / 1e6:.1f} M parameters: {target}")
    return 0


def _save(module: Any, target: Path) -> None:
    """Write a module as Lightning would, without an optimizer."""
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
    module.on_save_checkpoint(checkpoint)  # what it describes itself with
    write_checkpoint(checkpoint, target)
