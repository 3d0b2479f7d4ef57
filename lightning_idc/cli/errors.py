"""Which errors a user can fix, and how they read."""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_idc.utils.arguments import accepted_arguments
from lightning_idc.utils.errors import ConfigError, IDCError
from lightning_idc.utils.names import class_of, full_name, nearest

TOP = ("seed_everything", "trainer", "model", "data", "ckpt_path", "verbose", "return_predictions", "weights_only")
"""Keys that a configuration may have at its top."""
_UNKNOWN = re.compile(r"(?:Option '([^']+)' is not accepted|Group '(\w+)' does not accept option '([^']+)')")
_CLASS = re.compile(r"given class_path '([^']+)'")
_BUILT_TOO_EARLY = (
    "a top-level `{key}:` is built before callbacks add their parameters, which would then never be trained; "
    "put it under model.init_args (optimizer: ..., schedule: ...)"
)

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_ANOTHER_MODEL = ("Error(s) in loading state_dict", "loaded state dict")
"""How torch begins when weights, or the state of an optimizer, do not fit."""


def readable(error: BaseException) -> str | None:
    """Message for an error that the user can fix; None for a fault of the program."""
    seen: BaseException | None = error
    while seen is not None:
        if message := _fixable(seen):
            return message
        seen = seen.__cause__ or seen.__context__
    return None


def _without_workers_traceback(message: str) -> str:
    """PyTorch puts the traceback of a loader's worker into the message of what it raised."""
    if not message.startswith("Caught ") or "\nOriginal Traceback" not in message:
        return message
    last = [*re.finditer(r"^[\w.]*Error: ", message, re.MULTILINE)]
    return message[last[-1].end() :].rstrip() if last else message


def _file_on_the_way(error: OSError) -> Path | None:
    """File that keeps a folder from being made."""
    path = Path(str(error.filename or ""))
    return next((place for place in (path, *path.parents) if place.is_file()), None)


def _fixable(error: BaseException) -> str | None:
    """Sentence for one error of a chain."""
    text = " ".join(str(error).split())
    if isinstance(error, IDCError):
        return _without_workers_traceback(str(error))
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = f"that of {error.filename!r}" if error.filename else f"perhaps that of {tempfile.gettempdir()!r}"
        return f"a disk is full ({where}); free some space there and start again: nothing half-written is used"
    if isinstance(error, OSError) and error.errno in _FORBIDDEN and error.filename:
        return (
            f"{str(error.filename)!r} cannot be used ({error.strerror}); results go into the current folder: start in "
            "one that can be written to, or name one with --trainer.default_root_dir (caches: LIGHTNING_IDC_CACHE)"
        )
    if isinstance(error, FileExistsError | NotADirectoryError) and (file := _file_on_the_way(error)) is not None:
        return f"{str(file)!r} is a file where a folder is to be made ({error.filename!r}); name another folder"
    if isinstance(error, RuntimeError) and re.search("Connection (closed|reset) by peer", text):
        return (
            "another process of this run has ended; what it printed says why, and one that printed nothing was ended "
            "from outside, often for want of memory: resume the run"
        )
    if isinstance(error, RuntimeError | ValueError) and text.startswith(_ANOTHER_MODEL):
        return f"the checkpoint is of another model, or of other settings: {text[:500]}"
    if isinstance(error, RuntimeError) and text.startswith("DataLoader worker"):
        return (
            "a process that loads data was ended from outside, often for want of memory; resume the run, with a "
            "smaller --data.num_workers or --data.batch_size if it happens again"
        )
    if type(error).__name__ == "MisconfigurationException":  # Lightning's; importing it costs seconds
        hint = "; see what there is with `lightning-idc doctor`, or give --trainer.accelerator cpu"
        return text + (hint if re.search("accelerator|backend|gpu|tpu|mps", text, re.IGNORECASE) else "")
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is not None:
            return f"the package {error.name} is not installed: pip install 'lightning_idc[{extra}]'"
        # Lightning names the package and the command where a logger's is missing
        return text if "pip install" in text else None
    return None


EXTRAS = {
    **dict.fromkeys(("skimage", "cv2", "faiss", "sklearn", "diffusers"), "synthesis"),
    **dict.fromkeys(("pydicom", "tifffile", "imagecodecs"), "scientific"),
    **dict.fromkeys(("tensorboard", "tensorboardX"), "report"),
    **dict.fromkeys(("litserve", "multipart", "python_multipart"), "serve"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "mcp": "mcp",
    "num2words": "vlm",
    "ray": "ray",
}
"""Package that an extra brings -> name of the extra."""


def unknown_key(name: str, keys: Sequence[str] = TOP) -> str:
    """Sentence for a key at the top of a configuration that does not exist."""
    if name in ("optimizer", "lr_scheduler"):
        return _BUILT_TOO_EARLY.format(key=name)
    return f"unknown key {name!r}; {nearest(name, keys)}"


def check_names(given: Mapping[str, Any], kind: Any, where: str) -> None:
    """Refuse keys that a class or a function, which a verb calls itself, has no argument of.

    Raises:
        ConfigError: the key, and the nearest one that exists.
    """
    valid = accepted_arguments(kind)
    for key in given:
        if valid is not None and key not in valid:
            raise ConfigError(f"{where}: {kind.__name__} has no argument {key!r}; {nearest(key, valid)}")


def explain(message: str, config: dict[str, Any], keys: Sequence[str]) -> str:
    """One sentence for what jsonargparse says in many lines: which key, what is expected, what was found.

    Args:
        message: of its ArgumentError.
        config: what was parsed.
        keys: that a configuration may have at its top.
    """
    part = (
        message.split("\n    - Expected a <class 'NoneType'>")[0]
        if "Problem with given class_path" in message
        else message
    )
    path = ".".join(re.findall(r'Parser key "([^"]+)"', part))
    inner = _innermost(part)
    if missing := re.match(r"the following arguments are required: (.+)", message):
        names = missing.group(1)
        return f"{names}: expected --{names.split(', ')[0]} NAME, or {names} in a file of --config; found nothing"
    if match := _UNKNOWN.search(part):
        return _unknown(match.group(1) or match.group(3), match.group(2), path, part, config, keys)
    if match := re.search(r"Import path (\S+) does not correspond to a subclass of (\w+)", part):
        return f"{path}: {match.group(1)} is not a {match.group(2)}"
    if classes := _CLASS.findall(part):
        try:
            class_of(classes[-1])
        except IDCError as error:
            return f"{path}: {error}"
    if sentence := _type(path, inner):
        return sentence
    if match := re.search(r"Expected a dot import path string: (\w+)$", inner, re.MULTILINE):
        try:
            full_name(match.group(1))
        except IDCError as error:
            return f"{path}: {error}"
    if "Not a valid subclass of" in inner or "Unable to load config" in inner:
        found = re.findall(r"Given value: (.*)", inner)
        kind = re.findall(r"Not a valid subclass of (\w+)", inner)
        shape = f"the name of a {kind[-1]}, or class_path and init_args" if kind else "keys with values"
        return f"{path}: expected {shape}, found {found[-1] if found else config.get(path)!r}"
    return message


def _unknown(name: str, group: str | None, path: str, part: str, config: dict[str, Any], keys: Sequence[str]) -> str:
    """Sentence for an argument that a class, the Trainer or the top of a configuration does not have.

    Args:
        name: of the argument.
        group: of keys that it stands in, where it is not alone; may be the argument that is not there.
        path: of what it was given to.
        part: of the message.
        config: what was parsed.
        keys: that a configuration may have at its top.
    """
    if "Group 'trainer'" in part:
        from lightning.pytorch import Trainer

        return f"trainer: Trainer has no argument {name!r}; {nearest(name, accepted_arguments(Trainer) or ())}"
    if not path:
        return unknown_key(name.split(".")[0], keys)
    given = config.get(path)
    if isinstance(given, dict) and "class_path" not in given:
        return f"{path}: expected class_path and init_args, found {given!r}"
    if isinstance(given, dict) and (extra := set(given) - {"class_path", "init_args", "dict_kwargs"}):
        return f"{path}: unknown key {min(extra)!r} beside class_path; arguments belong under init_args"
    before = part[: part.index(f"'{name}'")]
    of_callable = re.search(r"Got value: Namespace\(class_path='([^']+)'", part[len(before) :])
    kind = class_of(of_callable.group(1) if of_callable else _CLASS.findall(before)[-1])
    known = accepted_arguments(kind)
    if known is not None and name in known and group is not None:
        name = group
    return f"{path}: {kind.__name__} has no argument {name!r}; {nearest(name, known or ())}"


def _innermost(text: str) -> str:
    """What stands, indented, below the last key of a message."""
    lines = text.splitlines()
    at = next((number for number in range(len(lines) - 1, -1, -1) if "Parser key" in lines[number]), 0)
    indent = len(lines[at]) - len(lines[at].lstrip())
    inner = [lines[at]]
    for line in lines[at + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) < indent + 2:
            break
        inner.append(line)
    return "\n".join(inner)


def _type(path: str, inner: str) -> str | None:
    """Sentence for a value of another type."""
    kinds = re.findall(r"Expected an? <class '(?:[\w.]+\.)?(\w+)'>", inner)
    for options in re.findall(r"Expected a typing\.Literal\[([^\]]+)\]", inner):
        kinds += options.split(", ")
    kinds += [f"a list of {count} values" for count in re.findall(r"Expected a tuple with (\d+) elements", inner)]
    found = re.findall(r"(?:Got value|Given value): (.*?)(?:\. Got value: .*)?$", inner, re.MULTILINE)
    if not set(kinds) - {"NoneType"} or not found:
        return None
    expected = list(dict.fromkeys("None" if kind == "NoneType" else kind for kind in kinds))
    return f"{path}: expected {' or '.join(expected)}, found {found[0]!r}"
