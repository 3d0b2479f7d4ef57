"""doctor: what is installed, and what stands in the way."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from pathlib import Path

PACKAGES = (
    "lightning", "torch", "torchvision", "torchmetrics", "transformers", "peft", "timm", "open_clip_torch",
    "pycocoevalcap", "datasets", "jsonargparse", "numba", "pillow", "rich",
)  # fmt: skip


def run(given: list[str]) -> int:
    """The verb `doctor`; the status is the number of problems."""
    from lightning_idc import __version__
    from lightning_idc.cli import parser

    parser("doctor", "Look at this installation.").parse_args(given[1:])
    problems: list[str] = []
    print(f"lightning_idc {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name in PACKAGES:
        try:
            print(f"  {name:<18} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name} is not installed: pip install {name}")
    try:
        import torch
        import torchvision  # noqa: F401 - a build that does not fit torch fails here

        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        print(f"  devices            {', '.join(devices) or 'CPU only'}, {os.cpu_count()} cores")
    except (ImportError, RuntimeError) as error:
        problems.append(f"torch and torchvision do not load together ({error}); install both from one place")
    java = shutil.which("java")
    print(f"  Java               {'found: METEOR can be computed' if java else 'not found: METEOR and SPICE are not computed'}")
    ours = shutil.which("lightning")
    expected = Path(sys.executable).with_name("lightning")
    if ours is not None and expected.exists() and b"lightning_idc" not in expected.read_bytes():
        problems.append("the script `lightning` belongs to another package; use `lightning-idc`, or reinstall lightning_idc last")
    free = shutil.disk_usage(Path.home()).free / 2**30
    print(f"  free disk          {free:.0f} GiB")
    if free < 2:
        problems.append(f"only {free:.1f} GiB of disk are free; the rendered data and checkpoints need about 2")
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{len(problems)} problems")
    return min(len(problems), 1)
