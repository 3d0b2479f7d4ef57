"""Watch for side effects of hostile files with Python's audit hooks, ignoring what a reader has to do.

Side effects are programs, connections, imports or scripts from the file's folder, writes outside the folder, and reads
of the secrets next to it. Hooks cannot be removed, so one is installed once and is idle between tests.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "subprocess.Popen", "pty.spawn")
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown")
PICKLED = ("os", "posix", "nt", "subprocess", "builtins", "runpy", "sys", "importlib", "shutil", "pty", "socket")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
TEMPORARY = Path(tempfile.gettempdir()).resolve()


class Watch:
    """Records side effects while an untrusted file is read.

    Args:
        folder: folder in which the reader may write.
        secrets: neighbouring folder that must not be read or written.
    """

    def __init__(self, folder: Path, secrets: Path) -> None:
        self.folder, self.secrets, self.seen = folder.resolve(), secrets.resolve(), []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        found = self._judge(event, args)
        if found is not None:
            self.seen.append(f"{event}: {found}")

    def _judge(self, event: str, args: tuple[Any, ...]) -> str | None:
        if event in PROGRAMS or event in NETWORK:
            return repr(args[:2])
        if event == "import":
            return args[0] if args[0].startswith("evil") else None
        if event == "exec":
            file = getattr(args[0], "co_filename", "<")
            inside = file[:1] != "<" and Path(os.path.realpath(file)).is_relative_to(self.folder)
            return file if inside else None
        if event == "pickle.find_class":
            return ".".join(args) if args[0].split(".")[0] in PICKLED or args[0].startswith("evil") else None
        if event == "open" and isinstance(args[0], (str, bytes)):
            path = Path(os.path.realpath(os.fsdecode(args[0])))
            if path.is_relative_to(self.secrets):
                return str(path)
            return self._outside(path) if isinstance(args[2], int) and args[2] & WRITES else None
        if event in CHANGES:
            names = [name for name in args[:2] if isinstance(name, (str, bytes))]
            return next(
                filter(None, (self._outside(Path(os.path.realpath(os.fsdecode(name)))) for name in names)), None
            )
        return None

    def _outside(self, path: Path) -> str | None:
        # unpackers may write to the temporary folder, but not to pytest's folders within it, such as the secrets
        mine = path.is_relative_to(self.folder) or path == Path(os.devnull) or "__pycache__" in path.parts
        temporary = path.is_relative_to(TEMPORARY) and not path.is_relative_to(self.folder.parent)
        return None if mine or temporary else str(path)


_watch: Watch | None = None
_installed = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    global _watch
    if _watch is not None:
        watch, _watch = _watch, None  # the watcher's own events are not recorded
        try:
            watch(event, args)
        finally:
            _watch = watch


@contextmanager
def watched(folder: Path, secrets: Path) -> Iterator[list[str]]:
    """Yield a list to which side effects are added while the body runs."""
    global _watch, _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    watch = Watch(folder, secrets)
    before = _contents(secrets)
    _watch = watch
    try:
        yield watch.seen
    finally:
        _watch = None
    if _contents(secrets) != before:
        watch.seen.append(f"files: what lies in {secrets} is different now")


def _contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder and the names next to it, since native code opens files without an audit event."""
    beside = {str(path): b"" for path in folder.parent.iterdir()}
    return beside | {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
