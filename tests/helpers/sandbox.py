"""A folder for reading untrusted files: the outcome must be a result or a one-line error, without side effects."""

from __future__ import annotations

import resource
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file

from helpers.hostile import watched
from lightning_idc.utils.errors import IDCError

PROGRAM = "import pathlib\npathlib.Path({trace!r}).touch()\ndef build(*a, **k):\n    pathlib.Path({trace!r}).touch()\n"
MAX_SECONDS, MAX_GROWTH = 30, 2**30
"""Limits for reading one file: seconds of CPU time, and bytes of additional memory."""


@dataclass(frozen=True)
class Sandbox:
    """The current folder, with programs that a reader must not run and a neighbouring folder of secrets.

    Args:
        folder: folder of the file to read.
    """

    folder: Path

    @classmethod
    def make(cls, root: Path) -> Sandbox:
        """Make the folders, a good pair of images, and the secrets."""
        folder, secrets = root / "x" / "download", root / "x" / "secrets"
        folder.mkdir(parents=True)
        secrets.mkdir()
        save_file({"w": torch.zeros(2)}, secrets / "w.safetensors")
        (secrets / "s.jsonl").write_text('{"before": "s.png", "after": "s.png", "caption": "secret"}\n')
        for name in ("evil_mod.py", "hubconf.py"):
            (folder / name).write_text(PROGRAM.format(trace=str(folder / "PWNED")))
        for path in (folder / "before.png", folder / "after.png", secrets / "s.png"):
            Image.new("RGB", (8, 8), "red").save(path)
        return cls(folder)

    @property
    def secrets(self) -> Path:
        return self.folder.parent / "secrets"

    def read(self, reader: Callable[[], Any]) -> str:
        """Run a reader; return the message it refuses the file with, or '' if it reads the file.

        Raises:
            AssertionError: the reader ran, wrote or read something else, took too long, or failed in another way.
        """
        message, before = "", self._files()
        began, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with watched(self.folder, self.secrets) as effects, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                reader()
            except IDCError as error:
                message = str(error) or "an error without a message"
        assert effects == []
        assert not (self.folder / "PWNED").exists(), "it ran code"
        assert time.process_time() - began < MAX_SECONDS
        scale = 1 if sys.platform == "darwin" else 1024
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * scale < MAX_GROWTH
        assert "\n" not in message and "Traceback" not in message, message
        assert "weights_only" not in message and "trust_remote_code" not in message, "advice to run the code"
        assert not message or self._files() == before, "an error leaves nothing behind"
        return message

    def clear(self, *names: str) -> None:
        """Remove files or folders of an earlier case."""
        for name in names:
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)

    def _files(self) -> set[str]:
        """Files of the folder, except caches."""
        paths = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
        return {path.as_posix() for path in paths if path.parts[0] != "cache" and "__pycache__" not in path.parts}
