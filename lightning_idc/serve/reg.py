"""Output for reg-cli: ``reg.json`` and the difference images that its HTML report shows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lightning_idc.images.options import ImageOptions
from lightning_idc.images.read import read_image
from lightning_idc.serve.gate import Gate
from lightning_idc.serve.pairs import FilePair, Ignored
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import is_device
from lightning_idc.utils.outputs import Output, file_output

_RED = (255, 0, 0)


def diff_folder(target: Path) -> Path:
    """Folder of the difference images of a ``reg.json``: ``reg_diff`` next to it."""
    return target.with_name(f"{target.stem}_diff")


def check_reg(target: Path, pairs: Sequence[FilePair], overwrite: bool, inputs: Iterable[str | Path]) -> None:
    """Check that ``reg.json`` can be written, before images are compared.

    Args:
        target: file to write.
        pairs: pairs of images.
        overwrite: whether existing files may be replaced.
        inputs: input files and folders.

    Raises:
        ConfigError: the file or its folder cannot be written, or the two files of a pair have different endings.
    """
    for pair in pairs:
        if pair.before is not None and pair.after is not None and pair.before.suffix != pair.after.suffix:
            raise ConfigError(
                f"--reg: {pair.before.name} and {pair.after.name} are a pair; reg-cli expects equal names with endings"
            )
    if is_device(target):
        raise ConfigError(f"--reg {str(target)!r} is a device; expected the path of a file")
    _output(target, overwrite, inputs).check(target.name)


def write_reg(
    records: Sequence[Mapping[str, Any]],
    before: str | Path,
    after: str | Path,
    target: Path,
    overwrite: bool = False,
    *,
    inputs: Iterable[str | Path] = (),
    options: ImageOptions | None = None,
    ignored: Ignored | None = None,
    gate: Gate | None = None,
) -> None:
    """Write records as reg-cli's ``reg.json``, and an image of the differing pixels for each changed pair.

    As in the files of reg-cli, folders are relative to the file, and images are named relative to their folder.
    Difference images show the second image in grey with differing pixels in red. The key ``captions`` is an addition.

    Args:
        records: records of :func:`~lightning_idc.serve.batch.run_batch`.
        before: folder of the first images.
        after: folder of the second images.
        target: output file.
        overwrite: whether existing files may be replaced.
        inputs: input files and folders, which are not overwritten.
        options: options for reading images.
        ignored: parts of images that do not count.
        gate: gate that compared the pairs.
    """
    target = target.expanduser()
    roots = {"before": Path(before).expanduser().resolve(), "after": Path(after).expanduser().resolve()}

    def name(record: Mapping[str, Any], side: str) -> str:
        return Path(os.path.relpath(record[side], roots[side])).as_posix()

    def names(*states: str, side: str = "after") -> list[str]:
        return [name(record, side) for record in records if record["status"] in states and record[side]]

    def folder(path: Path) -> str:
        return Path(os.path.relpath(path, target.parent.resolve())).as_posix()

    different = [record for record in records if record["status"] in ("changed", "differs")]
    value = {
        "failedItems": names("changed", "differs", "failed"),
        "newItems": names("new"),
        "deletedItems": names("deleted", side="before"),
        "passedItems": names("unchanged"),
        "expectedItems": names("changed", "differs", "failed", "unchanged", "deleted", side="before"),
        "actualItems": names("changed", "differs", "failed", "unchanged", "new"),
        "diffItems": [name(record, "after") for record in different],
        "actualDir": folder(roots["after"]),
        "expectedDir": folder(roots["before"]),
        "diffDir": diff_folder(target).name,
        "captions": {name(record, "after"): record["caption"] for record in records if record["caption"]},
    }
    with _output(target, overwrite, inputs) as draft:
        text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        (draft / target.name).write_bytes(text.encode("utf-8", "replace"))
        for record in different:
            file = draft / diff_folder(target).name / name(record, "after")
            file.parent.mkdir(parents=True, exist_ok=True)
            image = draw_difference(record, options or ImageOptions(), ignored, gate or Gate())
            image.save(file, format="PNG")  # browsers go by the content, whatever the ending


def draw_difference(
    record: Mapping[str, Any], options: ImageOptions, ignored: Ignored | None, gate: Gate
) -> Image.Image:
    """Draw the second image of a pair in pale grey, with the pixels whose stored values differ in red.

    Args:
        record: record of a pair.
        options: options for reading images.
        ignored: parts of images that do not count.
        gate: gate that compared the pair; of a file with several images, the first differing one is drawn.
    """
    pair = FilePair(record["id"], Path(record["before"]), Path(record["after"]))
    ignore = None if ignored is None else partial(ignored.mask, pair.id)
    verdict = gate.check(pair, ignore)
    height, width = verdict.comparison.sizes[1]
    mask = np.ones((height, width), bool) if verdict.comparison.mask is None else verdict.comparison.mask
    canvas = np.full(mask.shape, 255, np.float32)
    page = options.page if options.page is not None else verdict.page
    grey = read_image(record["after"], replace(options, page=page), pair.id).numpy().mean(0)
    grey = grey[: mask.shape[0], : mask.shape[1]]
    canvas[: grey.shape[0], : grey.shape[1]] = 255 - (255 - grey) * 0.3
    pixels = np.repeat(canvas.astype(np.uint8)[..., None], 3, axis=2)
    pixels[mask] = _RED
    return Image.fromarray(pixels)


def _output(target: Path, overwrite: bool, inputs: Iterable[str | Path]) -> Output:
    target = target.expanduser()
    return file_output(target, overwrite, inputs, [diff_folder(target).name], "--reg")
