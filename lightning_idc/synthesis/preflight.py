"""Check a pipeline before its first stage runs: packages, weights, templates, disk, memory, limits.

    python -m lightning_idc.synthesis.preflight STAGES.json

reads the stages of a recipe from a JSON file and prints one problem per line.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from lightning_idc.synthesis.stages import BasePipelineStage

_NUM_FILES = 256
"""Number of open files that a run needs for libraries, images and logs; shards are mapped and closed."""
_BYTES_PER_PIXEL = {"png": 1.8, "jpeg": 0.45, "webp": 0.4}
"""Of generated images; a pair of 1,024 x 1,024 pixels measured 3.56 MB as PNG and 0.78 MB as JPEG of quality 95."""
_MEMORY_MARGIN = 1.2
"""Minimum ratio of required memory to the size of the weights."""


def preflight(steps: Sequence[Mapping[str, Any]], folder: str | Path = ".") -> list[str]:
    """List the problems of the pipeline steps of a recipe.

    Args:
        steps: steps with ``name``, ``model``, ``data`` and optionally ``trainer``, as in the recipe.
        folder: folder of the run.
    """
    all_problems: list[str] = []
    num_bytes = 0.0
    records = math.inf
    for step in steps:
        problems, stage, source = _build(step)
        if stage is not None:
            problems += stage.requirements()
            problems += _memory(stage, dict(step.get("trainer") or {}))
        if source is not None:
            records = len(source)
        options = dict(step["data"].get("init_args") or {})
        limit = options.get("limit")
        records = records if limit is None else min(records, limit)
        if stage is not None and math.isfinite(records):
            num_bytes += records * stage.pixels_per_record() * _BYTES_PER_PIXEL[options.get("image_format", "png")]
        all_problems += [f"{step['name']}: {problem}" for problem in dict.fromkeys(problems)]
    return [*all_problems, *_limits(), *_disk(Path(folder), num_bytes)]


def _build(step: Mapping[str, Any]) -> tuple[list[str], BasePipelineStage | None, Any]:
    """Construct a stage and its source without reading weights; return problems, stage and source."""
    from jsonargparse import ArgumentParser, Namespace

    from lightning_idc.synthesis.store import RecordSource
    from lightning_idc.utils.bounds import register_bounds

    register_bounds()

    problems: list[str] = []
    instances_by_name: dict[str, Any] = {"model": None, "source": None}
    source = (step["data"].get("init_args") or {}).get("source")
    values = {"model": step["model"], "source": source if isinstance(source, Mapping) else None}
    for name, base_class in (("model", BasePipelineStage), ("source", RecordSource)):
        if values[name] is None:
            continue
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(base_class, name) if name == "model" else parser.add_argument(
            f"--{name}", type=base_class
        )
        try:
            instances: Namespace = parser.instantiate_classes(parser.parse_object({name: deepcopy(values[name])}))
            instances_by_name[name] = instances[name]
        except Exception as error:  # any error of a constructor would stop the run
            problems.append(" ".join(str(error).split()))
    return problems, instances_by_name["model"], instances_by_name["source"]


def _memory(stage: BasePipelineStage, trainer: dict[str, Any]) -> list[str]:
    weights = sum(part.weight_bytes() for part in stage.interfaces())
    if not weights:
        return []
    on_gpu = trainer.get("accelerator") in ("gpu", "cuda") or (
        trainer.get("accelerator") in (None, "auto") and torch.cuda.is_available()
    )
    if on_gpu and not torch.cuda.is_available():
        return ["a GPU is requested, but torch finds no GPU"]
    machine_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = torch.cuda.get_device_properties(0).total_memory if on_gpu else machine_memory
    if weights * _MEMORY_MARGIN <= available:
        return []
    return [
        f"the weights have {weights / 1e9:.1f} GB, the {'GPU' if on_gpu else 'machine'} {available / 1e9:.1f} GB; set "
        "loading to {quantization: int4} or {device_map: auto}, or use an endpoint"
    ]


def _limits() -> list[str]:
    try:
        import resource
    except ImportError:  # not on Windows
        return []
    max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    too_few = max_files != resource.RLIM_INFINITY and max_files < _NUM_FILES
    return [f"at most {max_files} files can be open at once, expected {_NUM_FILES}: ulimit -n 1024"] if too_few else []


def _disk(folder: Path, num_bytes: float) -> list[str]:
    existing = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if num_bytes <= free:
        return []
    return [
        f"the images need about {num_bytes / 1e9:,.0f} GB in {folder}, where {free / 1e9:,.0f} GB are free; set "
        "keep_dropped to thumbnails or none, image_format to jpeg, or a limit"
    ]


def main(arguments: Sequence[str]) -> int:
    """Print the problems of the steps in a file; the exit status is 1 if there are any."""
    steps = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    problems = preflight(steps["steps"], steps["folder"])
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
