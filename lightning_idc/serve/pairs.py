"""Pairs of image files: two folders, a folder of pairs, a table or a list, and what does not count in them."""

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
from lightning_idc.data.tables.pair_columns import SIDES, is_pair_column, pairs_of
from lightning_idc.data.tables.pair_folders import images_below
from lightning_idc.data.tables.tables import Faults, read_table, table_ending
from lightning_idc.images.decode import decode
from lightning_idc.images.raw import opaque
from lightning_idc.images.resize import resize
from lightning_idc.images.to_uint8 import to_uint8
from lightning_idc.utils.errors import ConfigError, DataError, DatasetNotFoundError
from lightning_idc.utils.jsonfiles import lines_of, read_text

EXPECTED = (
    "expected two folders, a folder that holds before/ and after/, a .csv, .tsv or .jsonl table with the columns "
    "before and after, or a .txt list with two paths a line"
)


@dataclass(frozen=True, slots=True)
class FilePair:
    """One pair of image files.

    Args:
        id: its name: the path below the folders, or the id of the table.
        before: file; None for an image that is new.
        after: file; None for an image that is gone.
    """

    id: str
    before: Path | None
    after: Path | None


def list_pairs(paths: Sequence[str | Path]) -> list[FilePair]:
    """Pairs that one or two paths name, in the order of their names or rows.

    Args:
        paths: two folders, a folder with ``before/`` and ``after/``, or a table or list.

    Raises:
        ConfigError: it is none of these.
        DatasetNotFoundError: nothing is there.
        DataError: a table cannot be read, names a pair twice, or there are no pairs.
    """
    given = [Path(path).expanduser() for path in paths]
    missing = [str(path) for path in given if not path.exists()]
    if missing:
        raise DatasetNotFoundError(f"there is no {missing[0]!r}; {EXPECTED}")
    if len(given) == 1 and given[0].is_dir():
        given = sides_of(given[0]) or given
    if len(given) == 2 and all(path.is_dir() for path in given):
        found = _of_folders(*given)
    elif len(given) == 1 and table_ending(given[0]) is not None:
        records, _ = pairs_of(Root(given[0].parent), read_table(given[0], is_pair_column), None)
        found = [FilePair(record.id, record.before, record.after) for record in records]
    elif len(given) == 1 and given[0].suffix.lower() == ".txt":
        found = _of_list(given[0])
    else:
        raise ConfigError(f"{' and '.join(map(repr, map(str, given)))}: {EXPECTED}")
    if not found:
        raise DataError(f"{' and '.join(map(repr, map(str, given)))}: no pairs of images; {EXPECTED}")
    return found


def sides_of(folder: Path) -> list[Path]:
    """The folders ``before`` and ``after`` below a folder; empty where one is missing."""
    sides = [folder / side for side in SIDES]
    return sides if all(side.is_dir() for side in sides) else []


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
            faults.add(number, f"the pair {name!r} comes twice")
        else:
            faults.add(
                number,
                f"the pair {name!r} is of other files than one above; names must differ before the ending, or be given "
                "in a table with the columns id, before and after",
            )
    faults.check()
    return list(pairs.values())


class Ignored:
    """Parts of every pair that do not count: there the second image is taken for equal to the first.

    Args:
        given: ``X1,Y1,X2,Y2`` in pixels; image files, ignored where they are brighter than half and not transparent;
            or folders of such images by the name of the pair.

    Raises:
        ConfigError: one is none of these, or holds no pixel.
    """

    def __init__(self, given: Sequence[str] = ()) -> None:
        self.given = list(given)
        self.boxes: list[list[int]] = []
        self.masks: list[Tensor] = []
        self.folders: list[dict[str, Path]] = []
        for text in given:
            path = Path(text).expanduser()
            numbers = text.split(",")
            if path.is_dir():
                found = images_below(Root(path.resolve().parent), path.resolve().name)
                self.folders.append({stem: path.resolve().parent / file for stem, file in found.items()})
            elif path.is_file():
                self.masks.append(_mask(path))
            elif len(numbers) == 4 and all(number.strip().isdecimal() for number in numbers):
                left, top, right, bottom = map(int, numbers)
                if right <= left or bottom <= top:
                    raise ConfigError(
                        f"--ignore {text!r} holds no pixel; expected X1,Y1,X2,Y2 with X1 below X2 and Y1 below Y2"
                    )
                self.boxes.append([left, top, right, bottom])
            else:
                raise ConfigError(f"--ignore {text!r}: expected X1,Y1,X2,Y2 in pixels, an image, or a folder of images")

    def apply(self, id: str, before: Tensor, after: Tensor) -> Tensor:
        """The second image ``(C, H, W)`` with the first one's pixels where nothing counts."""
        mask = self.mask(id, (before.shape[1], before.shape[2]))
        return after if mask is None else torch.where(torch.from_numpy(mask), before, after)

    def mask(self, id: str, size: tuple[int, int]) -> np.ndarray | None:
        """Pixels of a pair that do not count, bool ``(H, W)``; None where all count.

        Args:
            id: Name of the pair.
            size: Height and width of its images.
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
                    f"a mask of --ignore is {mask.shape[1]}x{mask.shape[0]} and the images are {size[1]}x{size[0]} "
                    "pixels; it is scaled",
                    stacklevel=2,
                )
                mask = resize(mask[None].to(torch.uint8) * 255, size)[0] > 127
            ignored |= mask
        return ignored.numpy()


def _mask(path: Path) -> Tensor:
    raw = decode(path)
    shades = to_uint8([raw], name=repr(str(path)))[0]
    bright = shades.mean(0, dtype="f4") > 127
    # images lie over white, where a mask on an empty layer would be bright all over and hide every change
    solid = bright if raw.alpha is None else bright & (raw.alpha > opaque(raw.alpha.dtype) // 2)
    return torch.from_numpy(solid)
