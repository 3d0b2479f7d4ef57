"""One-line messages for errors that a user can fix; other errors keep their traceback."""

from __future__ import annotations

import errno
import re
import tempfile
from pathlib import Path

from lightning_idc.utils.errors import IDCError

EXTRAS = {
    **dict.fromkeys(("skimage", "cv2", "faiss", "sklearn", "diffusers"), "synthesis"),
    **dict.fromkeys(("pydicom", "tifffile", "imagecodecs"), "scientific"),
    **dict.fromkeys(("tensorboard", "tensorboardX"), "report"),
    **dict.fromkeys(("fastapi", "uvicorn", "multipart", "python_multipart"), "serve"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "mcp": "mcp",
    "num2words": "vlm",
    "ray": "ray",
}
"""Name of the extra by package."""
_PERMISSION_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
_PATH_ERRORS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.ESTALE, errno.EISDIR, errno.EMFILE, errno.ENFILE)
_MISMATCH_MESSAGES = ("Error(s) in loading state_dict", "loaded state dict")
"""Beginnings of messages of torch if weights or optimizer states do not fit."""


def readable(error: BaseException) -> str | None:
    """Message for an error that the user can fix; None for a bug.

    Args:
        error: exception with its causes.
    """
    cause: BaseException | None = error
    while cause is not None:
        if message := _message(cause):
            return message
        cause = cause.__cause__ or cause.__context__
    return None


def _message(error: BaseException) -> str | None:
    """Message for one exception of a chain."""
    text = " ".join(str(error).split())
    if isinstance(error, IDCError):
        return str(error)
    if isinstance(error, OSError):
        return _os_error_message(error)
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is not None:
            return f"the package {error.name} is not installed: pip install 'lightning_idc[{extra}]'"
        # Lightning's message on a missing logger has the package and the command
        return text if "pip install" in text else None
    if type(error).__name__ == "MisconfigurationException":  # Lightning's; importing it costs seconds
        hint = "; `lightning-idc doctor` lists the available devices; --trainer.accelerator cpu needs none"
        return text + (hint if re.search("accelerator|backend|gpu|tpu|mps", text, re.IGNORECASE) else "")
    if not isinstance(error, RuntimeError | ValueError):
        return None
    if text.startswith(_MISMATCH_MESSAGES):
        return f"the checkpoint was written by another model or with other settings: {text[:500]}"
    if re.search("Connection (closed|reset) by peer", text):
        return "another process of this run has ended; see its output, then resume the run"
    if text.startswith("DataLoader worker"):
        return (
            "a data loader worker was killed, often because memory ran out; resume the run, with a "
            "smaller --data.num_workers or --data.batch_size if it happens again"
        )
    return None


def _os_error_message(error: OSError) -> str | None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"that of {error.filename!r}" if error.filename else f"perhaps that of {tempfile.gettempdir()!r}"
        return f"a disk is full ({where}); free some space there and start again; incomplete files are ignored"
    if error.errno in _PERMISSION_ERRORS and error.filename:
        return (
            f"{str(error.filename)!r} cannot be used ({error.strerror}); results are written to the current "
            "folder; start in a writable one, or set --trainer.default_root_dir (caches: LIGHTNING_IDC_CACHE)"
        )
    if error.errno in _PATH_ERRORS and error.filename:
        return f"{str(error.filename)[:300]!r} cannot be used ({error.strerror})"
    if isinstance(error, FileExistsError | NotADirectoryError):
        path = Path(str(error.filename or ""))
        file = next((parent for parent in (path, *path.parents) if parent.is_file()), None)
        if file is not None:
            return f"{str(file)!r} is a file; expected a folder ({error.filename!r}); choose another folder"
    return None
