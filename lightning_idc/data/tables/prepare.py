"""Prepare a benchmark: download and verify files, unpack archives, and list the remaining manual steps."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lightning_idc.utils import http
from lightning_idc.utils.errors import ConfigError, DataError, IDCError
from lightning_idc.utils.outputs import new_file
from lightning_idc.utils.paths import describe_start, inside, is_web_page

if TYPE_CHECKING:
    from lightning_idc.data.benchmark import Benchmark, Remote

_log = logging.getLogger(__name__)
TIMEOUT = 30
"""Maximum seconds without data from the server."""
_MAX_SECONDS = 24 * 3600
"""Maximum duration of a download."""
_CHUNK = 1 << 20
_MAGIC = {
    ".gz": (b"\x1f\x8b",),
    ".jpg": (b"\xff\xd8\xff",),
    ".json": (b"{", b"["),
    ".parquet": (b"PAR1",),
    ".png": (b"\x89PNG",),
    ".tgz": (b"\x1f\x8b",),
    ".zip": (b"PK\x03\x04", b"PK\x05\x06"),
}

_ENCRYPTED = 1  # flag bit of an encrypted zip member


def prepare(
    data: Benchmark,
    archives: list[Path] | None = None,
    log: Callable[[str], object] = _log.info,
    overwrite: bool = False,
) -> list[str]:
    """Download and verify the files of a benchmark, and return the remaining manual steps.

    Args:
        data: benchmark.
        archives: manually downloaded archives to unpack below the root.
        log: callback for each line of progress.
        overwrite: whether files of an archive may replace existing files.

    Raises:
        DataError: a file is not an archive, is damaged, or holds paths that leave the root.
    """
    for archive in archives or []:
        count = unpack(archive, data.root, overwrite)
        log(f"unpacked {count:,} files of {archive} to {data.root}")
    manual_steps = []
    for remote in data.remotes:
        data.root.mkdir(parents=True, exist_ok=True)
        target = inside(data.root, remote.path, str(data.root))
        if target.is_dir():
            log(f"exists      {remote.path}/")
        elif target.is_file():
            problem = verify_file(target, remote)
            log(f"{'invalid   ' if problem else 'verified  '}  {remote.path}")
            if problem:
                manual_steps.append(f"{problem}; delete it and run this again")
        elif remote.page and (folder := _folder_of(remote.path, data.root)):
            manual_steps.append(f"{remote.path} is in {str(folder)!r}; set root to that folder")
        elif remote.page:
            manual_steps.append(f"{remote.path} must be downloaded by hand from {remote.url}")
        else:
            problem = download(remote, target)
            if problem is None:
                log(f"downloaded  {remote.path}")
            else:
                manual_steps.append(
                    f"{remote.path} cannot be downloaded ({problem}); save {remote.url} by hand as {target}"
                )
    if manual_steps:
        log(f"{data.title}:{data.layout()}")
    return manual_steps


def _folder_of(path: str, root: Path) -> Path | None:
    """Find a folder up to two levels below the root that contains a path; many archives add a top-level folder."""
    for pattern in ("*/", "*/*/"):
        for folder in sorted(path_of_folder.relative_to(root) for path_of_folder in root.glob(pattern)):
            hidden = any(draft.startswith((".", "__MACOSX")) for draft in folder.parts)
            if not hidden and (root / folder / path).exists():
                return root / folder
    return None


def verify_file(path: Path, remote: Remote) -> str | None:
    """Verify size, first bytes and checksum of a file; return an error message, or None if all are right."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(64)
        if is_web_page(start):
            return f"{path}: {describe_start(start)}"
        if remote.size is not None and size != remote.size:
            return f"{path} has {size:,} bytes; expected {remote.size:,}"
        magic = _MAGIC.get(Path(remote.path).suffix.lower())
        if magic and not start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(magic):
            return f"{path} is not a {Path(remote.path).suffix} file: {describe_start(start)}"
        if remote.sha256 is not None:
            file.seek(0)
            digest = hashlib.sha256()
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            if digest.hexdigest() != remote.sha256:
                return f"{path} has the SHA-256 {digest.hexdigest()[:16]}...; expected {remote.sha256[:16]}..."
    return None


def download(remote: Remote, target: Path) -> str | None:
    """Download and verify a file; the target is written only on success. Return an error message or None.

    Args:
        remote: file to download.
        target: destination path.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        limit = shutil.disk_usage(target.parent).free if remote.size is None else remote.size
        with new_file(target) as draft:
            with open(draft, "wb") as file:
                http.download(remote.url, file, max_bytes=limit, silence=TIMEOUT, timeout=_MAX_SECONDS)
            if problem := verify_file(draft, remote):
                raise DataError(problem)
    except IDCError as error:
        return str(error)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _copy(source: IO[bytes], target: IO[bytes], max_bytes: int) -> int:
    copied = 0
    while chunk := source.read(_CHUNK):
        copied += len(chunk)
        if copied > max_bytes:
            raise ValueError(f"more than the {max_bytes:,} bytes expected")
        target.write(chunk)
    return copied


# ---- archives ---------------------------------------------------------------------------------------------------


def unpack(archive: Path, root: Path, overwrite: bool = False) -> int:
    """Unpack a zip or tar archive below a root and return the number of its files.

    All members are checked first: nothing is written if one leaves the root, is a link or a device, or would replace
    another file, or if the disk is too small.

    Args:
        archive: path of the archive.
        root: destination folder, created if it is missing.
        overwrite: whether members may replace existing files.

    Raises:
        DataError: the file is not an archive, or cannot be unpacked.
    """
    if not archive.is_file():
        raise ConfigError(f"no such archive: {str(archive)!r}")
    root.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                return _write(_zip_members(packed, root), root, archive, overwrite)
        if tarfile.is_tarfile(archive):
            with tarfile.open(archive) as bundle:
                return _write(_tar_members(bundle), root, archive, overwrite)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}); download it again") from error
    with open(archive, "rb") as file:
        start = file.read(64)
    if start.startswith(_MAGIC[".zip"]):
        raise DataError(
            f"{archive} is an incomplete zip archive: the download stopped, or it is one of several parts. Download "
            "it again, or join the parts first"
        )
    advice = "" if is_web_page(start) else f"; unpack it by hand below {root} if it is another kind of archive"
    raise DataError(f"{archive} is neither a zip nor a tar archive: {describe_start(start)}{advice}")


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file in an archive.

    Args:
        name: path in the archive.
        size: unpacked size in bytes.
        open: function that opens the contents.
    """

    name: str
    size: int
    open: Callable[[], IO[bytes]]


def _zip_members(packed: zipfile.ZipFile, root: Path) -> Iterator[Member]:
    for info in packed.infolist():
        if info.flag_bits & _ENCRYPTED:
            raise DataError(
                f"{packed.filename} contains the password-protected file {info.filename!r}; unpack it by hand below "
                f"{root}"
            )
        if stat.S_ISLNK(info.external_attr >> 16):
            raise DataError(f"{packed.filename} contains the link {info.filename!r}; only files are unpacked")
        if not info.is_dir():
            yield Member(info.filename, info.file_size, partial(packed.open, info))


def _tar_members(bundle: tarfile.TarFile) -> Iterator[Member]:
    for info in bundle.getmembers():
        if not info.isreg() and not info.isdir():
            raise DataError(f"{bundle.name!s} contains {info.name!r}, a link or device; only files are unpacked")
        if info.isreg():
            yield Member(info.name, info.size, partial(_extracted, bundle, info))


def _extracted(bundle: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = bundle.extractfile(info)
    assert file is not None  # _of_tar passes regular files only
    return file


def _write(members: Iterable[Member], root: Path, archive: Path, overwrite: bool) -> int:
    """Write members below the root after checking all of them; identical existing files are kept."""
    listed = [(member, inside(root, member.name, str(archive))) for member in members]
    missing = [(member, target) for member, target in listed if not _is_unpacked(member, target)]
    existing = [] if overwrite else [target for _, target in missing if os.path.lexists(target)]
    if existing:
        raise DataError(
            f"{archive} holds {len(existing)} files that would replace existing ones, such as {str(existing[0])!r}; "
            "choose an empty folder, or replace them with --overwrite true"
        )
    num_bytes, free = sum(member.size for member, _ in missing), shutil.disk_usage(root).free
    if num_bytes > free:
        raise DataError(f"{archive} needs {num_bytes:,} bytes in {root}, where {free:,} are free")
    for member, target in missing:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with new_file(target, overwrite) as draft, member.open() as source, open(draft, "wb") as file:
                _copy(source, file, member.size)
        except ValueError as error:
            raise DataError(f"{archive}: {member.name!r} is larger than its declared size") from error
    return len(listed)


def _is_unpacked(member: Member, target: Path) -> bool:
    """Whether the target exists with the member's content, for example from an interrupted run."""
    if not target.is_file() or target.stat().st_size != member.size:
        return False
    with member.open() as packed, target.open("rb") as file:
        while chunk := packed.read(_CHUNK):
            if file.read(len(chunk)) != chunk:
                return False
        return not file.read(1)
