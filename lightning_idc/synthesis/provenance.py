"""Record provenance: model commits, digests of weights, package versions, device and dtypes."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lightning_idc.utils.errors import StoreError
from lightning_idc.utils.files import atomic_write

if TYPE_CHECKING:
    from lightning_idc.synthesis.stages import BasePipelineStage

_PACKAGES = ("lightning_idc", "torch", "transformers", "diffusers", "numpy", "pillow", "opencv-python-headless")
_BLOCK = 1 << 22
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


def weights_digest(files: Iterable[Path]) -> str | None:
    """Compute one digest of weight files from their names and contents; None without weight files.

    A file in the hub's cache links to a blob named by its SHA-256, which is used instead of reading the file.

    Args:
        files: files in any order; other files than weights are ignored.
    """
    weights = sorted(path for path in files if path.suffix in _WEIGHTS and path.is_file())
    if not weights:
        return None
    state = hashlib.sha256()
    for path in weights:
        state.update(f"{path.name}:{_file_digest(path)}\n".encode())
    return state.hexdigest()


def _file_digest(path: Path) -> str:
    blob = path.resolve().name
    if path.is_symlink() and len(blob) == 64 and set(blob) <= set("0123456789abcdef"):
        return blob
    state = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def model_provenance(name: str, revision: str | None) -> dict[str, Any]:
    """Return the commit and weights digest of a model in a folder or in the hub's cache.

    Args:
        name: folder or name on the hub.
        revision: branch, tag or commit.
    """
    folder = Path(name)
    if folder.is_dir():
        return {"commit": None, "weights": weights_digest(folder.rglob("*"))}
    from huggingface_hub import snapshot_download

    # the loaded model is in the cache, in a folder named after the commit
    folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
    return {"commit": folder.name, "weights": weights_digest(folder.rglob("*"))}


def environment() -> dict[str, Any]:
    """Return the package versions and the device of this process."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {"versions": versions, "device": device, "cuda": torch.version.cuda}


def record_provenance(target: Path, stage: BasePipelineStage) -> None:
    """Store the provenance of this process with the shards, and compare it with that of earlier processes.

    Args:
        target: folder of the store.
        stage: stage with loaded models.

    Raises:
        StoreError: the weights or the commit of a model differ from those of an earlier process.
    """
    names = {id(module): name for name, module in stage.named_modules()}
    models = {names[id(part)]: part.provenance() for part in stage.interfaces()}
    models = {name: entry for name, entry in models.items() if entry}
    folder = target / "provenance"
    folder.mkdir(exist_ok=True)
    for earlier in stored_provenance(target):
        for name in models.keys() & earlier["models"].keys():
            now, then = models[name], earlier["models"][name]
            changed = [key for key in ("commit", "weights") if now.get(key) != then.get(key)]
            if changed:
                raise StoreError(
                    f"{target} was created with another {' and '.join(changed)} of the model in "
                    f"{name!r} ({then}, now {now}); choose another target, or restore the old model"
                )
    value = {"models": models, **environment()}
    text = json.dumps(value, indent=1, sort_keys=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.is_file():
        atomic_write(path, text)


def stored_provenance(target: Path) -> list[dict[str, Any]]:
    """Read the distinct provenance entries of the processes that wrote a store."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((target / "provenance").glob("*.json"))]
