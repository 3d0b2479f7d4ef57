"""Build the wheel ``idc-metrics``: lightning_idc/metrics and the utilities it imports; its only dependency is numpy.

    python .ci/idc_metrics/build.py --out dist

The modules are copied under other names (``idc_metrics``, ``idc_metrics._utils``), so that the wheel and lightning_idc
can be installed side by side.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
METRICS, UTILS = ROOT / "lightning_idc" / "metrics", ROOT / "lightning_idc" / "utils"
RENAMED = {"lightning_idc.metrics": "idc_metrics", "lightning_idc.utils": "idc_metrics._utils"}
UTIL_IMPORT = re.compile(r"^\s*from lightning_idc\.utils\.(\w+) import", re.MULTILINE)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the wheel")
    out = parser.parse_args(arguments).out
    with tempfile.TemporaryDirectory() as folder:
        write_sources(Path(folder))
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
        subprocess.run([*command, folder], check=True)


def write_sources(folder: Path) -> None:
    """Write the sources of the package and its pyproject.toml.

    Args:
        folder: empty folder to write to.
    """
    package = folder / "idc_metrics"
    shutil.copytree(METRICS, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "_utils").mkdir()
    (package / "_utils" / "__init__.py").touch()
    pending = _utilities(package)
    while pending:
        name = pending.pop()
        shutil.copy(UTILS / f"{name}.py", package / "_utils")
        pending |= _utilities(package / "_utils") - {path.stem for path in (package / "_utils").iterdir()}
    for path in [*package.rglob("*.py"), *package.rglob("*.pyi")]:
        source = path.read_text(encoding="utf-8")
        for name, renamed in RENAMED.items():
            source = source.replace(name, renamed)
        path.write_text(source.replace("from lightning_idc import", "from idc_metrics import"), encoding="utf-8")
    version = re.search(r'^__version__ = "(.*)"', (UTILS.parent / "__init__.py").read_text(), re.MULTILINE)
    assert version is not None
    with open(package / "__init__.py", "a", encoding="utf-8") as file:
        file.write(f'__version__ = "{version.group(1)}"\n')
    shutil.copy(METRICS / "README.md", folder)
    shutil.copy(ROOT / "LICENSE", folder)
    settings = (Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(settings.replace("0.0.0", version.group(1)), encoding="utf-8")


def _utilities(folder: Path) -> set[str]:
    """Names of the utility modules that the files of a folder import."""
    return {name for path in folder.rglob("*.py") for name in UTIL_IMPORT.findall(path.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    main()
