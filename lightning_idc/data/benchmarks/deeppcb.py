"""DeepPCB: pairs of circuit boards with captions generated from the official boxes and types of defects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.data.benchmarks.defects import (
    BOARD,
    TYPES,
    Defect,
    captions_of,
    change_type_of,
    parse_defects,
    parse_positions,
)
from lightning_idc.data.datamodule import PairDataModule, check_no_options
from lightning_idc.data.source import PairSource
from lightning_idc.data.splits import Split
from lightning_idc.images.read import read_image
from lightning_idc.images.resize import resize
from lightning_idc.images.types import PairSample
from lightning_idc.utils.bounds import NonNegativeInt, check_arguments
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.paths import inside

LISTED = {"trainval": 1000, "test": 500}


class BoardPairs(PairSource):
    """Pairs of one official list of DeepPCB.

    Args:
        root: folder of the lists.
        entries: paths of image and annotation of each pair, relative to the root, as in the lists.
        size: height and width of the resized boards; None keeps 640 x 640.
        long: whether captions give the position of every defect.
        cache: whether resized boards are cached in memory, one byte per pixel and image.
        repaired: number of defect-free pairs to append: the first pairs with the template's pixels in all boxes.
    """

    def __init__(
        self,
        root: Path,
        entries: Sequence[tuple[str, str]],
        size: tuple[int, int] | None,
        long: bool,
        cache: bool,
        repaired: int = 0,
    ) -> None:
        self.root, self.size, self.entries = root, size, list(entries)
        repaired_names = [Path(image).stem for image, _ in entries[:repaired]]
        self.ids = [*(Path(image).stem for image, _ in entries), *(f"{name}-repaired" for name in repaired_names)]
        self.defects = [read_defects(root, annotation) for _, annotation in entries] + [[] for _ in repaired_names]
        self._captions = [captions_of(defects, long) for defects in self.defects]
        self._cached: dict[int, tuple[Tensor, Tensor]] | None = {} if cache and size is not None else None

    def captions(self, index: int) -> list[str]:
        return self._captions[index]

    def change_type(self, index: int) -> str:
        return change_type_of(self.defects[index])

    def load(self, index: int) -> PairSample:
        cached = self._cached.get(index) if self._cached is not None else None
        images, masks = cached or self._read(index)
        if self._cached is not None:
            self._cached[index] = images, masks
        # boards are black and white: expand one channel to three without a copy
        before, after = images[:, None].expand(-1, 3, -1, -1)
        boxes = torch.tensor([defect.box for defect in self.defects[index]], dtype=torch.float32).reshape(-1, 1, 4)
        height, width = images.shape[1:]
        boxes = (boxes * torch.tensor([width / BOARD, height / BOARD] * 2)).repeat(1, 2, 1)
        kinds = [defect.kind for defect in self.defects[index]]
        return PairSample(
            id=self.ids[index],
            before=before,
            after=after,
            captions=list(self._captions[index]),
            change_type=self.change_type(index),
            boxes=boxes,
            masks=masks.clone(),
            meta={"kinds": kinds},
        )

    def _read(self, index: int) -> tuple[Tensor, Tensor]:
        """Read both boards ``(2, H, W)`` and the masks ``(2, H, W)`` of their differences within the boxes, resized."""
        sides = []
        original = index % len(self.entries)
        for path in find_images(self.root, self.entries[original][0]):
            image = read_image(path, name=f"pair {self.ids[index]!r}")
            if tuple(image.shape[1:]) != (BOARD, BOARD):
                raise DataError(
                    f"pair {self.ids[index]!r}: {str(path)!r} is {image.shape[2]}x{image.shape[1]}; expected "
                    f"{BOARD}x{BOARD} pixels, the coordinate system of the boxes"
                )
            sides.append(image)
        for defect in self.defects[original] if original != index else []:
            x1, y1, x2, y2 = defect.box
            sides[1][:, y1:y2, x1:x2] = sides[0][:, y1:y2, x1:x2]
        # a high threshold, as JPEG blurs the edges of the black and white boards
        is_different = (sides[0][0].short() - sides[1][0].short()).abs() > 127
        is_in_box = torch.zeros_like(is_different)
        for defect in self.defects[index]:
            x1, y1, x2, y2 = defect.box
            is_in_box[y1:y2, x1:x2] = True
        mask = is_different & is_in_box
        if self.size is None:
            return torch.stack([side[0] for side in sides]), mask.expand(2, -1, -1)
        resized_mask = F.adaptive_max_pool2d(mask[None].float(), self.size)[0] > 0
        return torch.stack([resize(side[:1], self.size)[0] for side in sides]), resized_mask.expand(2, -1, -1)


def read_defects(root: Path, annotation: str) -> list[Defect]:
    """Read the defects of an annotation file with lines ``x1 y1 x2 y2 type``.

    Raises:
        DataError: the file is missing, or a line is malformed.
    """
    path = inside(root, annotation, "DeepPCB")
    if not path.is_file():
        raise DataError(f"no such annotation file: {str(path)!r}; check that the download is complete")
    defects = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        fields = re.split(r"[\s,]+", line.strip())
        if fields == [""]:
            continue
        values = [int(field) for field in fields if re.fullmatch(r"[0-9]{1,4}", field)]
        if len(fields) != 5 or len(values) != 5:
            raise DataError(f"{path}, line {number}: expected x1 y1 x2 y2 type, found {line!r}")
        x1, y1, x2, y2, kind = values
        if not 1 <= kind <= len(TYPES):
            raise DataError(f"{path}, line {number}: type {kind} is unknown; expected 1 to {len(TYPES)}")
        if not (x1 < x2 <= BOARD and y1 < y2 <= BOARD):
            raise DataError(
                f"{path}, line {number}: the box {x1} {y1} {x2} {y2} is empty or leaves the {BOARD}x{BOARD} board"
            )
        defects.append(Defect(kind - 1, (x1, y1, x2, y2)))
    return defects


def find_images(root: Path, listed: str) -> tuple[Path, Path]:
    """Find the image files (JPEG or PNG) of the template and the tested board of an entry.

    Raises:
        DataError: a file is missing.
    """
    stem, extension = listed.rsplit(".", 1) if "." in listed else (listed, "jpg")
    paths = []
    for side in ("temp", "test"):
        options = [inside(root, f"{stem}_{side}.{kind}", "DeepPCB") for kind in (extension, "png")]
        paths.append(next((path for path in options if path.is_file()), options[0]))
    absent = [str(path) for path in paths if not path.is_file()]
    if absent:
        raise DataError(
            f"pair {Path(listed).stem!r}: no such image file: {absent[0]!r} (or .png); check that the download is "
            "complete"
        )
    return paths[0], paths[1]


class DeepPCB(PairDataModule):
    """DeepPCB: templates of circuit boards (before) and tested boards with six types of defects (after).

    The official test list is the test split. Every tenth pair of the official ``trainval.txt`` (1,000 pairs) is in the
    validation split, which therefore covers all boards. Captions are generated from the official boxes and types;
    masks mark the differing pixels within the boxes.

    Features: black and white images of boards, 640 x 640 pixels; boxes and types of defects; five generated sentences
        per pair.
    Format: JPEG or PNG, and text.
    Splits: 900 train, 100 val and 500 test pairs.
    Licence: MIT.
    Cite: Tang, He, Huang, Yang: Online PCB Defect Detector On A New PCB Defect Dataset (2019),
        https://github.com/tangsanli5201/DeepPCB

    Args:
        root: folder of ``trainval.txt``, ``test.txt`` and the folders ``group*``.
        long: whether captions give the position of every defect.
        cache: whether resized boards are cached in memory; only with ``image_size``.
        official: whether a number of pairs that differs from the official lists is an error.
        repaired: number of defect-free training pairs to add: tested boards of the first pairs with the template's
            pixels in the boxes. All official pairs have defects.
        options: arguments of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Example:
        >>> pair = DeepPCB("data/deeppcb").dataset("test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    domain = "circuit boards (DeepPCB)"

    def __init__(
        self,
        root: str | Path = "data/deeppcb",
        long: bool = False,
        cache: bool = True,
        official: bool = True,
        repaired: NonNegativeInt = 0,
        **options: Any,
    ) -> None:
        check_arguments(DeepPCB.__init__, locals())
        super().__init__(**options)
        check_no_options(self.image_options, "DeepPCB's boards are 8-bit images")
        self.repaired = repaired
        self.root, self.long, self.cache, self.official = Path(root).expanduser(), long, cache, official
        self._boards: dict[str, BoardPairs] = {}

    def prepare_data(self) -> None:
        self._entries("trainval"), self._entries("test")

    def source(self, split: Split) -> BoardPairs:
        name = "test" if split == "predict" else split
        if name not in self._boards:
            entries = self._entries("test" if name == "test" else "trainval")
            if name != "test":
                entries = [entry for number, entry in enumerate(entries) if (number % 10 == 9) == (name == "val")]
            repaired = self.repaired if name == "train" else 0
            self._boards[name] = BoardPairs(
                self.root, entries, size=self.image_size, long=self.long, cache=self.cache, repaired=repaired
            )
        return self._boards[name]

    def facts(self, split: Split, id: str, caption: str) -> dict[str, bool | None]:
        """Check types, counts, total number, and the positions of the most frequent type of defects in a caption."""
        board = self.source(split)
        defects = board.defects[board.ids.index(id)]
        actual = Counter(TYPES[defect.kind] for defect in defects)
        stated = parse_defects(caption)
        reference = parse_positions(captions_of(defects, self.long)[0])
        positions = parse_positions(caption)
        return {
            "types": set(stated) == set(actual),
            "counts": stated == actual,
            "total": sum(stated.values()) == len(defects),
            "positions": all(positions.get(kind) == names for kind, names in reference.items()) if reference else None,
        }

    def _entries(self, name: str) -> list[tuple[str, str]]:
        """Read the paths of images and annotations from an official list."""
        path = self.root / f"{name}.txt"
        folders = sorted(self.root.glob("group*")) if self.root.is_dir() else []
        missing = [f"{other}.txt" for other in LISTED if not (self.root / f"{other}.txt").is_file()]
        if missing or not folders:
            raise DataError(_layout(self.root, [*missing, *([] if folders else ["group*/"])]))
        entries = []
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            fields = line.split()
            if not fields:
                continue
            if len(fields) != 2:
                raise DataError(f"{path}, line {number}: expected an image and an annotation, found {line!r}")
            entries.append((fields[0], fields[1]))
        if self.official and len(entries) != LISTED[name]:
            raise DataError(
                f"{path} lists {len(entries)} pairs; the official list has {LISTED[name]:,}. Download it again, or "
                "set official: false for a custom list"
            )
        # report a missing folder now; single missing files are reported when they are read
        absent = sorted({image.rsplit("/", 1)[0] for image, _ in entries if "/" in image})
        absent = [folder for folder in absent if not inside(self.root, folder, str(path)).is_dir()]
        if absent:
            raise DataError(_layout(self.root, [f"{folder}/" for folder in absent]))
        return entries


def _layout(root: Path, missing: Sequence[str]) -> str:
    return f"""{str(root)!r} does not contain DeepPCB; missing: {", ".join(missing)}. Expected:

  {root}/
    trainval.txt                       1,000 lines: group20085/20085/20085000.jpg group20085/20085_not/20085000.txt
    test.txt                           500 lines
    group20085/
      20085/20085000_temp.jpg          the template; PNG is supported, too
      20085/20085000_test.jpg          the tested board
      20085_not/20085000.txt           lines of x1 y1 x2 y2 type
    ... ten more folders group*

What to do: clone the GitHub repository tangsanli5201/DeepPCB (MIT licence) and set root to its inner folder PCBData:
--data.root FOLDER on the command line, or `lightning-idc data check deeppcb --root FOLDER`."""
