"""What a benchmark ran on, without names of hosts or folders."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return name.group(1).strip() if name else platform.machine()


def _java() -> str | None:
    try:
        answer = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "([^"]+)"', answer)
    return version.group(1) if version else None


def describe(*packages: str, java: bool = False) -> dict[str, Any]:
    """Hardware and versions.

    Args:
        packages: distributions whose versions matter, besides torch and numpy.
        java: also ask for Java's version, which takes a moment.
    """
    versions = {}
    for package in dict.fromkeys(("torch", "numpy", *packages)):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": usable,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        facts["torch_threads"] = torch.get_num_threads()
        facts["gpu"] = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    if java:
        facts["java"] = _java()
    return facts
