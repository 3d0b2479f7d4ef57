"""The verb doctor: installed versions, and problems."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

MIN_DISK = 2.0
"""Minimum free space in GiB for rendered data and checkpoints of a recipe."""
VULNERABILITIES = {
    "torch": ("2.10", "CVE-2026-24747: a checkpoint runs code in spite of weights_only"),
    "lightning": ("2.6.6", "CVE-2026-58659: hyper-parameters of a checkpoint name what is called"),
    "jsonargparse": ("4.53", "values become objects of classes that they name"),
    "pyarrow": ("14.0.1", "CVE-2023-47248: a Parquet or Arrow file runs code"),
    "pillow": ("11.3", "CVE-2023-50447 and CVE-2025-48379: ImageMath runs code, a DDS file overflows a buffer"),
    "jinja2": ("3.1.6", "CVE-2025-27516: the chat template of a model leaves its sandbox"),
    "ray": ("2.52", "CVE-2025-62593: a web page runs code on the machine of a cluster"),
}
"""By package: its first version without a known vulnerability that runs code, and the vulnerability."""


def doctor() -> int:
    """Show versions, devices and folders of this installation, and its problems.

    Returns:
        1 if there are problems.
    """
    from lightning_idc import __version__

    print(f"lightning_idc {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    problems = [*_packages(), *_holes(), *_devices(), *_scripts(), *_folders()]
    _extras()
    java = "found" if shutil.which("java") else "not found"
    _line("Java", f"{java}; needed only for SPICE and for LIGHTNING_IDC_METEOR=java")
    for problem in problems:
        print(f"problem: {problem}")
    print("no problems" if not problems else "1 problem" if len(problems) == 1 else f"{len(problems)} problems")
    return min(len(problems), 1)


def _line(name: str, value: str) -> None:
    print(f"  {name:<18} {value}")


def _packages() -> list[str]:
    """Show the versions of dependencies, and return problems with those that are missing or out of bounds."""
    from packaging.requirements import Requirement

    try:
        needs = [Requirement(need) for need in importlib.metadata.requires("lightning_idc") or ()]
    except importlib.metadata.PackageNotFoundError:
        return ["lightning_idc is imported from a folder and not installed: pip install --no-deps -e ."]
    problems = []
    for need in needs:
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{need.name} is not installed: pip install '{need.name}{need.specifier}'")
            continue
        _line(need.name, version)
        if not need.specifier.contains(version, prereleases=True):
            problems.append(
                f"{need.name} {version} is installed and {need.specifier} is expected, since others were not tested or "
                f"have known security holes: pip install '{need.name}{need.specifier}'"
            )
    return problems


def _holes() -> list[str]:
    """Problems with installed packages, indirect dependencies included, that have a known vulnerability."""
    from packaging.version import Version

    problems = []
    for name, (fixed, how) in VULNERABILITIES.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if Version(version) < Version(fixed):
            problems.append(f"{name} {version} has a known security hole ({how}): pip install '{name}>={fixed}'")
    return problems


def _extras() -> None:
    """Show which extras are installed; a missing one is not a problem."""
    from packaging.requirements import Requirement

    needs: dict[str, list[str]] = {}
    for text in importlib.metadata.requires("lightning_idc") or []:
        need = Requirement(text)
        if need.marker is None or "extra" not in str(need.marker):
            continue
        extra = str(need.marker).partition("extra ==")[2].strip().strip("\"'")
        needs.setdefault(extra, [])
        try:
            version = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if not version or not need.specifier.contains(version, prereleases=True):
            needs[extra].append(f"{need}".partition(";")[0].strip())
    for extra, missing in sorted(needs.items()):
        absent = f"absent ({', '.join(missing)}): pip install 'lightning_idc[{extra}]'"
        _line(f"extra {extra}", absent if missing else "installed")


def _devices() -> list[str]:
    try:
        import torch

        # torchvision itself takes longer to import than torch; a build for another torch fails in its operators
        spec = find_spec("torchvision")
        for library in Path(spec.origin).parent.glob("_C*.so") if spec is not None and spec.origin else ():
            torch.ops.load_library(str(library))
    except (ImportError, OSError, RuntimeError) as error:
        return [f"torch and torchvision cannot be loaded together ({error}); install both again, from the same source"]
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    _line("devices", f"{', '.join(devices) or 'CPU only'}, {os.cpu_count()} cores")
    return []


def _scripts() -> list[str]:
    """Check the script `lightning`: lightning-sdk has one as well, and the last installed package wins."""
    sibling = Path(sys.executable).with_name("lightning")
    script = shutil.which("lightning") or (str(sibling) if sibling.exists() else None)
    if script is None:
        _line("lightning", "not on the path; lightning-idc and python -m lightning_idc do the same")
        return []
    _line("lightning", script)
    if b"lightning_idc" in Path(script).read_bytes():
        if find_spec("lightning_sdk") is not None:
            _line("", "commands that are not of this library go to lightning-sdk; removing either removes the script")
        return []
    return [
        f"the script {script} belongs to another package (lightning-sdk has one, too): use lightning-idc instead, "
        "or reinstall lightning_idc, which forwards other commands to lightning-sdk"
    ]


def _folders() -> list[str]:
    from lightning_idc.utils.files import default_cache_dir

    cache = default_cache_dir()
    existing = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free / 2**30
    _line("cache", f"{cache}, {free:.0f} GiB free")
    problems = []
    if not os.access(existing, os.W_OK):
        problems.append(f"{existing} cannot be written to; set LIGHTNING_IDC_CACHE to a folder that can")
    if free < MIN_DISK:
        problems.append(
            f"only {free:.1f} GiB are free in {existing}; rendered data and checkpoints need {MIN_DISK:.0f}"
        )
    return problems
