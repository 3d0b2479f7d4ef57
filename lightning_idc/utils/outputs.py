"""Write the output files and folders that a user requests, without overwriting other files.

An output is a named set of files in a folder. They are written to a draft folder and then moved to their final paths.
A manifest in the cache folder lists the files of each output with their digests: a later run replaces or removes them
unless they were modified. Other files are never touched unless ``overwrite`` is set.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import file_digest, finite, flush, is_device, write_content
from lightning_idc.utils.manifest import (
    Manifest,
    is_as_written,
    is_below,
    is_same,
    locked,
    read_manifest,
    write_manifest,
)

WRITER: ContextVar[str] = ContextVar("writer", default="")
"""Name of the command that is running, whose files other commands do not replace; empty for calls from Python."""


class Output:
    """Named set of files in a folder; as a context manager, it returns a draft folder to write the files to.

    If the context ends without an error, the files of the draft move to their final paths, and files of a previous
    output of this name that are no longer part of it are removed. Otherwise the folder is left unchanged.

    Args:
        folder: target folder; created if missing.
        name: name of the output, which must be the same for runs that may replace each other's files.
        overwrite: whether other files may be replaced.
        inputs: input files and folders; an output must not be one of them or inside one of them.
        reserved: folders below ``folder`` that may contain only files of this output.
        option: command-line option that names the output, for messages.

    Raises:
        ConfigError: a file of the output would replace another file or an input.

    Example:
        >>> with Output("out", "table") as draft:  # doctest: +SKIP
        ...     table.save(draft / "table.csv")
    """

    def __init__(
        self,
        folder: str | Path,
        name: str,
        overwrite: bool = False,
        inputs: Iterable[str | Path] = (),
        reserved: Sequence[str] = (),
        option: str = "",
    ) -> None:
        self.folder, self.name, self.overwrite, self.reserved = Path(folder).expanduser(), name, overwrite, reserved
        self.inputs = [Path(path).expanduser() for path in inputs if os.path.exists(Path(path).expanduser())]
        self.option = f"{option} " if option else ""
        self._draft: Path | None = None
        self._is_new_folder = False

    def check(self, *files: str) -> None:
        """Raise an error for files that must not be written; called before the results are computed.

        Args:
            files: paths relative to the folder.
        """
        existing = next(path for path in (self.folder, *self.folder.absolute().parents) if os.path.lexists(path))
        if not existing.is_dir():
            raise ConfigError(f"{self.option}{str(self.folder)!r} cannot be written: {str(existing)!r} is not a folder")
        manifest = read_manifest(self.folder)
        for file in files:
            self._check_file(file, manifest)
        for name in self.reserved:
            self._check_reserved(name, manifest)

    def __enter__(self) -> Path:
        self.check()
        self._is_new_folder = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._draft = Path(tempfile.mkdtemp(prefix=".lightning_idc-", dir=self.folder))
        return self._draft

    def __exit__(self, kind: type[BaseException] | None, *unused: Any) -> None:
        assert self._draft is not None
        try:
            if kind is None:
                self._publish(self._draft)
        finally:
            shutil.rmtree(self._draft, ignore_errors=True)
            self._draft = None
            if self._is_new_folder:
                with suppress(OSError):  # not empty
                    self.folder.rmdir()

    def files(self) -> list[str]:
        """List the unmodified files of this output, as paths relative to the folder."""
        entries = read_manifest(self.folder).get(self.name, {})
        return [file for file, digests in entries.items() if is_as_written(self.folder / file, digests)]

    def remove(self) -> None:
        """Remove the files of this output, and the folder if it is then empty."""
        if not self.folder.is_dir():
            return
        with locked(self.folder):
            manifest = read_manifest(self.folder)
            for file, digests in manifest.pop(self.name, {}).items():
                self._remove_file(file, digests)
            write_manifest(self.folder, manifest)
        with suppress(OSError):  # it contains other files
            self.folder.rmdir()

    def _check_file(self, file: str, manifest: Manifest) -> None:
        path = self.folder / file
        where = f"{self.option}{str(path)!r}"
        for parent in [self.folder / above for above in Path(file).parents[:-1]]:
            if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
                raise ConfigError(f"{where} cannot be written: {str(parent)!r} is a link or a file; expected a folder")
        if path.is_dir() and not path.is_symlink():
            raise ConfigError(f"{where} is a folder; expected the path of a file")
        for source in self.inputs:
            if is_same(path, source):
                raise ConfigError(f"{where} is an input and would be overwritten; choose another file")
            if is_below(path, source):
                raise ConfigError(f"{where} is inside the input {str(source)!r}; choose another path")
        if not os.path.lexists(path) or self.overwrite:
            return
        if not is_as_written(path, manifest.get(self.name, {}).get(file, [])):
            raise ConfigError(
                f"{where} exists and was not written by this command, or was modified since; choose another path, or "
                "replace it with --overwrite"
            )

    def _check_reserved(self, name: str, manifest: Manifest) -> None:
        """Raise an error if a folder reserved for this output contains other files or inputs."""
        folder = self.folder / name
        where = f"{self.option}{str(folder)!r}"
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise ConfigError(f"{where} is a link or a file; expected a folder, or nothing")
        for source in self.inputs:
            if is_below(folder, source) or is_below(source, folder):
                raise ConfigError(
                    f"{where} would be written, but overlaps the input {str(source)!r}; choose another path"
                )
        if self.overwrite or not folder.is_dir():
            return
        entries = manifest.get(self.name, {})
        for path in folder.rglob("*"):
            file = path.relative_to(self.folder).as_posix()
            if (path.is_symlink() or not path.is_dir()) and not is_as_written(path, entries.get(file, [])):
                raise ConfigError(
                    f"{where} contains {path.name!r}, which this command did not write; choose another path, or add to "
                    "the folder with --overwrite"
                )

    def _publish(self, draft: Path) -> None:
        paths = [path for path in draft.rglob("*") if path.is_file()]
        files = {path.relative_to(draft).as_posix(): path for path in sorted(paths)}
        with locked(self.folder):
            self.check(*files)
            manifest = read_manifest(self.folder)
            previous = manifest.get(self.name, {})
            digests = {file: file_digest(path) for file, path in files.items()}
            for path in files.values():
                flush(path)  # otherwise a power cut could leave an empty file under the final name
            # until all files are moved, each may be the previous or the new version
            both = {file: [digest, *previous.get(file, [])] for file, digest in digests.items()}
            manifest[self.name] = {**previous, **both}
            write_manifest(self.folder, manifest)
            for file, path in files.items():
                (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, self.folder / file)
            for file in previous.keys() - files.keys():
                self._remove_file(file, previous[file])
            manifest[self.name] = {file: [digest] for file, digest in digests.items()}
            write_manifest(self.folder, manifest)

    def _remove_file(self, file: str, digests: list[str]) -> None:
        path = self.folder / file
        if not is_as_written(path, digests) or any(is_below(path, source) for source in self.inputs):
            return
        path.unlink()
        for above in Path(file).parents[:-1]:
            try:
                (self.folder / above).rmdir()
            except OSError:  # it contains other files
                return


def file_output(
    target: Path,
    overwrite: bool = False,
    inputs: Iterable[str | Path] = (),
    reserved: Sequence[str] = (),
    option: str = "",
) -> Output:
    """Return the output of one file, perhaps with folders and files next to it, that belongs to the running command."""
    writer = WRITER.get()
    name = f"{target.name} of {writer}" if writer else target.name
    return Output(target.parent, name, overwrite, inputs, reserved, option)


def write_file(
    target: str | Path,
    content: bytes | str | Callable[[Path], Any],
    overwrite: bool = False,
    inputs: Iterable[str | Path] = (),
) -> None:
    """Write one file atomically; devices and pipes are written to directly.

    Args:
        target: file to write; a link is followed.
        content: bytes, text (UTF-8), or a function that writes to the path it receives.
        overwrite: whether a file that this function did not write may be replaced.
        inputs: input files and folders.

    Raises:
        ConfigError: the target is a folder, an input, or an existing file.
        OSError: the file cannot be written.
    """
    path = Path(target).expanduser()
    if is_device(path):
        write_content(path, content)
        return
    path = _resolve_link(path)
    with file_output(path, overwrite, inputs) as draft:
        write_content(draft / path.name, content)


@contextmanager
def new_file(target: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary file that replaces the target if the context ends without an error.

    For files of data sets, which are identified by their checksums and not listed in a manifest.

    Args:
        target: file to write, in an existing folder.
        overwrite: whether an existing file may be replaced.

    Raises:
        ConfigError: the target exists.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}-", suffix=".part", dir=target.parent)
    os.close(descriptor)
    part = Path(name)
    try:
        part.chmod(0o666 & ~_umask())
        yield part
        if target.is_dir() or (os.path.lexists(target) and not overwrite):
            raise ConfigError(f"{str(target)!r} exists; move it away, or choose another folder")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def check_file(option: str, target: Path, inputs: Iterable[str | Path] = (), overwrite: bool = False) -> None:
    """Raise the error that :func:`write_file` would raise; called before the content is computed.

    Args:
        option: command-line option that names the target, for the message.
        target: file to write.
        inputs: input files and folders; missing ones are ignored.
        overwrite: whether an existing file may be replaced.

    Raises:
        ConfigError: the target is a folder, an input, or an existing file.
    """
    path = target.expanduser()
    if not is_device(path):
        path = _resolve_link(path)
        file_output(path, overwrite, inputs, option=option).check(path.name)


def check_disjoint(outputs: Mapping[str, Path | None]) -> None:
    """Raise an error if two outputs of a command are the same file, or one contains the other.

    Args:
        outputs: file or folder by option; None for options that are not set.

    Raises:
        ConfigError: two outputs overlap.
    """
    seen: dict[str, Path] = {}
    for option, target in outputs.items():
        if target is None or is_device(target):
            continue
        # some file systems do not distinguish upper and lower case
        path = Path(os.path.realpath(target.expanduser()).casefold())
        for other, previous in seen.items():
            if path.is_relative_to(previous) or previous.is_relative_to(path):
                raise ConfigError(f"{other} and {option} would both write {str(target)!r}; choose different paths")
        seen[option] = path


def save(target: Path, write: Callable[[Path], Any], overwrite: bool = False) -> bool:
    """Write a file like :func:`write_file`, but print a message instead of raising an error.

    A full disk at the end of a test must not abort it, since its scores are already on the screen.

    Args:
        target: file to write.
        write: function that writes to the path it receives.
        overwrite: whether an existing file may be replaced.

    Returns:
        Whether the file was written.
    """
    return saved(target, lambda: write_file(target, write, overwrite))


def save_json(target: Path, value: Any, overwrite: bool = False) -> bool:
    """Write plain values as JSON like :func:`save`; NaN and infinity become null."""
    return saved(target, lambda: write_file(target, json_text(value), overwrite))


def json_text(value: Any) -> str:
    """Format plain values as JSON; NaN and infinity become null, lone surrogates question marks."""
    text = json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "replace").decode()


def saved(target: Path, write: Callable[[], Any]) -> bool:
    """Call a function that writes a target; print its error, if any, and return whether it succeeded."""
    try:
        write()
    except OSError as error:
        reason = error.strerror or str(error)
        print(f"could not write {target}: {reason}; free some space, or choose another folder", file=sys.stderr)
        return False
    except ConfigError as error:
        print(f"could not write {target}: {error}", file=sys.stderr)
        return False
    return True


def _resolve_link(path: Path) -> Path:
    """Resolve a link; other paths are returned unchanged."""
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise ConfigError(f"{str(path)!r} is part of a loop of links; choose another file")
    return target
