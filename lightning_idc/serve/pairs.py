"""list_pairs: pairs of image files from folders, tables or lists. Ignored: parts of images that do not count."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_idc.data.tables.files import Root
from lightning_idc.data.tables.pair_columns import is_pair_column, pairs_of
from lightning_idc.data.tables.pair_folders import images_below, side_folders
from lightning_idc.data.tables.tables import Faults, read_table, table_ending
from lightning_idc.images.decode import decode
from lightning_idc.images.raw import max_alpha
from lightning_idc.images.resize import resize
from lightning_idc.images.to_uint8 import to_uint8
from lightning_idc.utils.errors import ConfigError, DataError, DatasetNotFoundError
from lightning_idc.utils.jsonfiles import lines_of, read_text

EXPECTED = (
    "expected two folders, a folder with before/ and after/ (or A/ and B/), a .csv, .tsv or .jsonl table with the "
    "columns before and after, or a .txt list with two paths per line"
)


@dataclass(frozen=True, slots=True)
class FilePair:
    """One pair of image files.

    Args:
        id: name of the pair: relative path below the folders, or id in the table.
        before: first image; None for a new image.
        after: second image; None for a deleted image.
    """

    id: str
    before: Path | None
    after: Path | None


def list_pairs(paths: Sequence[str | Path]) -> list[FilePair]:
    """Pairs of one or two paths, in the order of names or rows.

    Args:
        paths: two folders, a folder with ``before/`` and ``after/``, or a table or list.

    Raises:
        ConfigError: the paths are none of these.
        DatasetNotFoundError: a path does not exist.
        DataError: a table cannot be read, contains a pair twice, or there are no pairs.
    """
    inputs = [Path(path).expanduser() for path in paths]
    missing = [str(path) for path in inputs if not path.exists()]
    if missing:
        raise DatasetNotFoundError(f"there is no {missing[0]!r}; {EXPECTED}")
    if len(inputs) == 1 and inputs[0].is_dir():
        inputs = sides_of(inputs[0]) or inputs
    if len(inputs) == 2 and all(path.is_dir() for path in inputs):
        pairs = _of_folders(*inputs)
    elif len(inputs) == 1 and table_ending(inputs[0]) is not None:
        records, _ = pairs_of(Root(inputs[0].parent), read_table(inputs[0], is_pair_column), None)
        pairs = [FilePair(record.id, record.before, record.after) for record in records]
    elif len(inputs) == 1 and inputs[0].suffix.lower() == ".txt":
        pairs = _of_list(inputs[0])
    else:
        raise ConfigError(f"{' and '.join(map(repr, map(str, inputs)))}: {EXPECTED}")
    if not pairs:
        raise DataError(f"{' and '.join(map(repr, map(str, inputs)))}: no pairs of images; {EXPECTED}")
    return pairs


def sides_of(folder: Path) -> list[Path]:
    """The folders ``before`` and ``after`` in a folder, or those of another pair of names; empty if one is missing."""
    names = side_folders(folder).get(None, ())
    return [folder / name for name in names]


def _of_folders(before: Path, after: Path) -> list[FilePair]:
    sides: list[dict[str, Path]] = []
    for folder in (before, after):
        below = images_below(Root(folder.resolve().parent), folder.resolve().name)
        sides.append({stem: folder.resolve().parent / path for stem, path in below.items()})
    return [
        FilePair(name, sides[0].get(name), sides[1].get(name)) for name in sorted(sides[0].keys() | sides[1].keys())
    ]


def _of_list(path: Path) -> list[FilePair]:
    pairs: dict[str, FilePair] = {}
    faults = Faults(path)
    for number, line in lines_of(read_text(path)):
        if line.startswith("#"):
            continue
        parts = [part.strip() for part in (line.split("\t") if "\t" in line else line.split())]
        if len(parts) != 2:
            faults.add(number, f"{len(parts)} paths; expected two, with a tab or space between")
            continue
        name = parts[0] if parts[0] == parts[1] else "..".join(os.path.splitext(Path(part))[0] for part in parts)
        pair = FilePair(name, path.parent / parts[0], path.parent / parts[1])
        if name not in pairs:
            pairs[name] = pair
        elif pairs[name] == pair:
            faults.add(number, f"the pair {name!r} appears twice")
        else:
            faults.add(
                number,
                f"the pair {name!r} has other files than an earlier one of this name; names must differ before the "
                "suffix, or use a table with the columns id, before and after",
            )
    faults.check()
    return list(pairs.values())


class Ignored:
    """Ignored parts of pairs, in which the second image counts as equal to the first.

    Args:
        parts: ``X1,Y1,X2,Y2`` in pixels; mask images, whose bright and opaque pixels are ignored; or folders of mask
            images by the name of the pair.

    Raises:
        ConfigError: a part is none of these, or has no pixel.
    """

    def __init__(self, parts: Sequence[str] = ()) -> None:
        self.parts = list(parts)
        self.boxes: list[list[int]] = []
        self.masks: list[Tensor] = []
        self.folders: list[dict[str, Path]] = []
        for text in parts:
            path = Path(text).expanduser()
            coordinates = text.split(",")
            if path.is_dir():
                mask_files = images_below(Root(path.resolve().parent), path.resolve().name)
                self.folders.append({stem: path.resolve().parent / file for stem, file in mask_files.items()})
            elif path.is_file():
                self.masks.append(_mask(path))
            elif len(coordinates) == 4 and all(coordinate.strip().isdecimal() for coordinate in coordinates):
                left, top, right, bottom = map(int, coordinates)
                if right <= left or bottom <= top:
                    raise ConfigError(
                        f"--ignore {text!r} has no pixels; expected X1,Y1,X2,Y2 with X1 below X2 and Y1 below Y2"
                    )
                self.boxes.append([left, top, right, bottom])
            else:
                raise ConfigError(f"--ignore {text!r}: expected X1,Y1,X2,Y2 in pixels, an image, or a folder of images")

    def apply(self, id: str, before: Tensor, after: Tensor) -> Tensor:
        """The second image ``(C, H, W)`` with the pixels of the first one in ignored parts."""
        mask = self.mask(id, (before.shape[1], before.shape[2]))
        return after if mask is None else torch.where(torch.from_numpy(mask), before, after)

    def mask(self, id: str, size: tuple[int, int]) -> np.ndarray | None:
        """Ignored pixels of a pair, bool ``(H, W)``; None if there are none.

        Args:
            id: name of the pair.
            size: height and width of its images.
        """
        masks = [*self.masks, *(_mask(folder[id]) for folder in self.folders if id in folder)]
        if not masks and not self.boxes:
            return None
        ignored = torch.zeros(size, dtype=torch.bool)
        for left, top, right, bottom in self.boxes:
            ignored[top:bottom, left:right] = True
        for mask in masks:
            if mask.shape != ignored.shape:
                warnings.warn(
                    f"a mask of --ignore has {mask.shape[1]}x{mask.shape[0]} pixels and is scaled to the "
                    f"{size[1]}x{size[0]} pixels of the images",
                    stacklevel=2,
                )
                mask = resize(mask[None].to(torch.uint8) * 255, size)[0] > 127
            ignored |= mask
        return ignored.numpy()


def _mask(path: Path) -> Tensor:
    raw = decode(path)
    image = to_uint8([raw], name=repr(str(path)))[0]
    is_bright = image.mean(0, dtype="f4") > 127
    # images are composited on white, so a mask on a transparent layer would be bright everywhere
    mask = is_bright if raw.alpha is None else is_bright & (raw.alpha > max_alpha(raw.alpha.dtype) // 2)
    return torch.from_numpy(mask)
