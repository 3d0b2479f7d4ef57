"""unpack_packages: pages of Debian and npm packages, by name and version."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lightning_idc.utils.errors import ConfigError, DataError

TIMEOUT = 600
"""Limit of one download in seconds."""
_DEBIAN = re.compile(r"deb:([a-z0-9][a-z0-9.+-]*)=([A-Za-z0-9.+:~-]+)")
_NPM = re.compile(r"npm:((?:@[a-z0-9._-]+/)?[a-z0-9][a-z0-9._-]*)=([A-Za-z0-9.+-]+)")


def unpack_packages(packages: Sequence[str], root: Path) -> None:
    """Download packages with the clients of the machine and unpack those that are not yet in the folder.

    Nothing is installed, and no script of a package runs. Debian packages are unpacked together, since their pages link
    to style sheets of other packages; npm packages get a folder each next to the documentation, ``usr/share/doc/NAME``.

    Args:
        packages: ``deb:NAME=VERSION`` or ``npm:NAME=VERSION``.
        root: folder, created if needed.

    Raises:
        ConfigError: a name is malformed, or a client is not installed.
        DataError: a package cannot be downloaded or unpacked.

    Example:
        >>> unpack_packages(["deb:sqlite3-doc=3.40.1-2+deb12u2"], Path("debian"))  # doctest: +SKIP
    """
    for package in packages:
        marker = root / "packages" / re.sub(r"[^A-Za-z0-9.+~=-]", "_", package)
        if marker.is_file():
            continue
        debian, npm = _DEBIAN.fullmatch(package), _NPM.fullmatch(package)
        if debian is None and npm is None:
            raise ConfigError(f"packages has {package!r}; expected deb:NAME=VERSION or npm:NAME=VERSION")
        with tempfile.TemporaryDirectory() as folder:
            if debian is not None:
                _run(["apt-get", "download", f"{debian[1]}={debian[2]}"], Path(folder), package)
                _run(["dpkg-deb", "-x", str(_only_file(Path(folder), package)), str(root.absolute())], root, package)
            elif npm is not None:
                command = ["npm", "pack", f"{npm[1]}@{npm[2]}", "--silent", "--ignore-scripts"]
                _run(command, Path(folder), package)
                target = root / "usr" / "share" / "doc" / npm[1].replace("/", "-")
                _unpack_npm(_only_file(Path(folder), package), target, package)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def _run(command: list[str], folder: Path, package: str) -> None:
    if shutil.which(command[0]) is None:
        raise ConfigError(f"{package!r} needs {command[0]}, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=TIMEOUT)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
        raise DataError(f"{package!r}: {command[0]} failed: {lines[-1] if lines else 'no message'}") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"{package!r}: {command[0]} took more than {TIMEOUT} s") from None


def _only_file(folder: Path, package: str) -> Path:
    files = list(folder.iterdir())
    if len(files) != 1:
        raise DataError(f"{package!r}: the download has {len(files)} files; expected one")
    return files[0]


def _unpack_npm(archive: Path, target: Path, package: str) -> None:
    try:
        with tarfile.open(archive) as bundle:
            bundle.extractall(target, filter="data")  # no links, devices or paths out of the folder
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{package!r} cannot be unpacked: {error}") from None
