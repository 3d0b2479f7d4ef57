"""Writing what a person will look at: as a whole or not at all, and never at the price of the run."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def save(target: Path, write: Callable[[Path], Any]) -> bool:
    """Write a file beside its place and move it there; say so, and go on, where that is impossible.

    A full disk at the end of a test must not take the scores with it, which are on the screen by then.

    Args:
        target: the file.
        write: writes the path it is given.

    Returns:
        Whether the file was written.
    """
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        os.replace(partial, target)
    except OSError as error:
        reason = error.strerror or str(error)
        print(f"could not write {target}: {reason}; make room there, or name another folder", file=sys.stderr)
        return False
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return True


def save_json(target: Path, value: Any) -> bool:
    """Write plain values; numbers that JSON does not know become null."""
    text = json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False)
    # halves of surrogates cannot be written in UTF-8
    return save(target, lambda path: path.write_text(text + "\n", encoding="utf-8", errors="replace"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
