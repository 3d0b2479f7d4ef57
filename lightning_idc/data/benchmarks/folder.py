"""FolderPairs: your own pairs, as two folders of images or as a table."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from lightning_idc.core.paths import inside
from lightning_idc.core.types import PairError
from lightning_idc.data.core.datamodule import PairDataModule, Split
from lightning_idc.data.io.files import FileSource, Record, fault_of, progress, split_by_hash
from lightning_idc.data.io.tables import KINDS, Row, is_caption_column, read_table, require

OnBad = Literal["raise", "skip"]
SPLITS = ("train", "val", "test", "predict")
_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_SAME = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}
_SHOWN = 5


class FolderPairs(PairDataModule):
    """Your own pairs: two folders ``before/`` and ``after/`` with equal file names, or a CSV or JSONL file.

    A table has the columns before, after and captions (or caption, or caption_1 to caption_n, or one row for each
    caption), and perhaps id, split, change_type. Beside two folders, ``captions.csv`` or ``captions.jsonl`` has the
    columns id (the file name without its ending) and captions. Splits are those of the column split, of the files
    ``train.csv``, ``val.csv`` and ``test.csv``, or else drawn by a hash of the id, which does not change when pairs
    are added. What is predicted are the pairs of a split ``predict``, else all when there are no captions, else the
    test split.

    Args:
        root: folder that all paths are relative to, and never leave.
        annotations: the table, relative to the root; None looks for one.
        shares: of train, val and test, where nothing names the split.
        on_empty: what happens to empty captions; ``skip`` leaves them out, and pairs without any other.
        on_bad: what happens to pairs whose images are missing or cannot be read; ``skip`` opens every image once at the
            start and leaves those pairs out. Either way they are counted and named.
        options: of :class:`~lightning_idc.data.core.datamodule.PairDataModule`.

    Raises:
        PairError: an argument is not one of its choices.
    """

    def __init__(
        self,
        root: str | Path = "data",
        annotations: str | None = None,
        shares: tuple[float, float, float] = (0.8, 0.1, 0.1),
        on_empty: OnBad = "raise",
        on_bad: OnBad = "raise",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise PairError(f"shares is {tuple(shares)}; expected three numbers for train, val and test that sum to 1")
        for name, value in (("on_empty", on_empty), ("on_bad", on_bad)):
            if value not in ("raise", "skip"):
                raise PairError(f"{name} is {value!r}; expected 'raise' or 'skip'")
        self.root, self.annotations, self.shares = Path(root).expanduser(), annotations, tuple(shares)
        self.on_empty, self.on_bad = on_empty, on_bad
        self._records: dict[str, list[Record]] | None = None
        self._no_captions: str | None = None

    def source(self, split: Split) -> FileSource:
        by_split = self._read()
        if split == "predict":
            everything = [record for records in by_split.values() for record in records]
            records = by_split["predict"] or (everything if self._no_captions else by_split["test"])
        else:
            if self._no_captions and by_split[split]:
                raise PairError(self._no_captions)
            records = self._with_captions(by_split[split], split)
        records = self._with_images(records, split)
        if not records:
            there = ", ".join(f"{len(found)} {name}" for name, found in by_split.items() if found) or "none at all"
            raise PairError(
                f"{self.root}: the split {split!r} has no pairs left to use; read were {there}. Name it in a column "
                f"split, add a table {split}.csv, or, where nothing names splits, give it more of shares"
            )
        return FileSource(records, self.image_size, self.interpolation, self.image_options)

    # ---- what may be wrong with records -----------------------------------------------------------------

    def _with_captions(self, records: list[Record], split: str) -> list[Record]:
        empty = [record for record in records if not record.captions or "" in record.captions]
        if not empty:
            return records
        told = f"{len(empty)} of {len(records)} {split} pairs have an empty caption: {_named(empty)}"
        if self.on_empty == "raise":
            raise PairError(f"{told}. Write them, or leave them out with on_empty: skip")
        for record in empty:
            record.captions = [caption for caption in record.captions if caption]
        kept = [record for record in records if record.captions]
        warnings.warn(f"{told}. Left out: {len(records) - len(kept)} pairs without any caption", stacklevel=2)
        return kept

    def _with_images(self, records: list[Record], split: str) -> list[Record]:
        if self.on_bad == "raise":
            absent = [(r, path) for r in records for path in (r.before, r.after) if not os.path.isfile(path)]
            if absent:
                shown = "; ".join(f"{record.where}: {str(path)!r}" for record, path in absent[:_SHOWN])
                raise PairError(
                    f"{len(absent)} images of the {split} split are not there: {shown}"
                    f"{'; ...' if len(absent) > _SHOWN else ''}. Fetch them, or leave these pairs out with on_bad: skip"
                )
            return records
        sized = self.image_size is not None
        options = self.image_options
        faults = [
            (record, fault_of(record, sized, options)) for record in progress(records, f"looking at the {split} images")
        ]
        bad = [(record, fault) for record, fault in faults if fault is not None]
        if bad:
            shown = "; ".join(f"{record.name}: {fault}" for record, fault in bad[:_SHOWN])
            more = f"; and {', '.join(record.id for record, _ in bad[_SHOWN:])}" if len(bad) > _SHOWN else ""
            warnings.warn(f"left out {len(bad)} of {len(records)} {split} pairs: {shown}{more}", stacklevel=2)
        return [record for record, fault in faults if fault is None]

    # ---- reading ----------------------------------------------------------------------------------------

    def _read(self) -> dict[str, list[Record]]:
        """Records by split; read once."""
        if self._records is None:
            records = self._two_folders() if (tables := self._tables()) is None else self._from_tables(tables)
            self._records = {split: [] for split in SPLITS}
            for record in records:
                self._records[record.split or split_by_hash(record.id, self.shares)].append(record)
        return self._records

    def _tables(self) -> list[tuple[Path, str | None]] | None:
        """Tables with the split that each holds; None for two folders."""
        if not self.root.is_dir():
            raise PairError(f"there is no folder {str(self.root)!r}.{_EXPECTED}")
        if self.annotations is not None:
            path = inside(self.root, self.annotations, "annotations")
            if not path.is_file() or path.suffix.lower() not in KINDS:
                raise PairError(f"annotations is {str(path)!r}; expected a CSV or JSONL file that is there")
            return [(path, None)]
        files = sorted(path for path in self.root.iterdir() if path.suffix.lower() in KINDS and path.is_file())
        parts = [(path, split) for path in files if (split := _SAME.get(path.stem, path.stem)) in SPLITS]
        if parts:
            return list(parts)
        two_folders = all((self.root / side).is_dir() for side in ("before", "after"))
        others = [path for path in files if not (two_folders and path.stem == "captions")]
        if len(others) == 1:
            return [(others[0], None)]
        if others:
            names = ", ".join(path.name for path in others)
            raise PairError(f"{self.root} holds several tables ({names}); say which with annotations: NAME")
        if not two_folders:
            raise PairError(f"{self.root} holds neither a table nor the folders before/ and after/.{_EXPECTED}")
        return None

    def _from_tables(self, tables: list[tuple[Path, str | None]]) -> list[Record]:
        records: list[Record] = []
        captioned = False
        for path, split in tables:
            columns, rows = read_table(path)
            for needed in ("before", "after"):
                if needed not in columns:
                    raise PairError(require(columns, needed, path, "the path of an image"))
            if any(is_caption_column(column) for column in columns):
                captioned = True
            elif self._no_captions is None:
                self._no_captions = require(columns, "captions", path, "or 'caption', or 'caption_1' to 'caption_n'")
            records += self._merged(rows, split)
        if captioned:
            self._no_captions = None  # a table without them, as for predict, then has empty captions
        return records

    def _merged(self, rows: list[Row], split: str | None) -> list[Record]:
        """One record per pair; rows of the same pair give their captions together."""
        records: dict[str, Record] = {}
        for row in rows:
            before, after = (self._path(row, side) for side in ("before", "after"))
            name = row.text("id") or _id_of(str(row.values["before"]).strip(), str(row.values["after"]).strip())
            record = Record(
                name, row.where, before, after, row.captions(), split or _split(row), row.text("change_type")
            )
            first = records.setdefault(name, record)
            if first is record:
                continue
            if (first.before, first.after) != (before, after):
                raise PairError(
                    f"{row.where}: the id {name!r} is taken by other images ({first.where}); ids must be unique. "
                    + ("" if row.text("id") else "Give the pairs ids of their own in a column id")
                )
            for what in ("split", "change_type"):
                if getattr(first, what) != getattr(record, what):
                    raise PairError(
                        f"{row.where}: pair {name!r} has the {what} {getattr(record, what)!r}, but "
                        f"{getattr(first, what)!r} in {first.where}"
                    )
            first.captions += record.captions
        return list(records.values())

    def _path(self, row: Row, side: str) -> Path:
        relative = row.text(side)
        if relative is None:
            raise PairError(f"{row.where}: {side} is empty; expected the path of an image, relative to {self.root}")
        return inside(self.root, relative, row.where)

    def _two_folders(self) -> list[Record]:
        """Pairs of two folders, with what a table of captions says of them."""
        sides = [_images_in(self.root / side) for side in ("before", "after")]
        lonely = sorted(sides[0].keys() ^ sides[1].keys())
        if lonely:
            shown = ", ".join(f"{'before' if name in sides[0] else 'after'}/{name}" for name in lonely[:_SHOWN])
            raise PairError(
                f"{len(lonely)} images in {self.root} have no partner of the same name on the other side: {shown}"
                f"{', ...' if len(lonely) > _SHOWN else ''}"
            )
        before, after = (
            {name: inside(self.root, f"{side}/{file}", name) for name, file in sorted(found.items())}
            for side, found in zip(("before", "after"), sides, strict=True)
        )
        records = {name: Record(name, str(self.root), before[name], after[name]) for name in before}
        table = next((path for kind in KINDS if (path := self.root / f"captions{kind}").is_file()), None)
        if table is None:
            self._no_captions = (
                f"{self.root} has no captions.csv or captions.jsonl (columns id and captions), so there is nothing to "
                "learn from or to compare with; without captions it can be predicted only"
            )
            return list(records.values())
        columns, rows = read_table(table)
        if "id" not in columns:
            raise PairError(require(columns, "id", table, "the name of the images without their ending"))
        if not any(is_caption_column(column) for column in columns):
            raise PairError(require(columns, "captions", table, "or 'caption', or 'caption_1' to 'caption_n'"))
        for row in rows:
            record = records.get(row.text("id") or "")
            if record is None:
                raise PairError(f"{row.where}: there are no images called {row.text('id')!r} in before/ and after/")
            record.where = row.where
            record.captions += row.captions()
            record.split = _split(row) or record.split
            record.change_type = row.text("change_type") or record.change_type
        return list(records.values())


_EXPECTED = """ Expected one of:

  before/NAME.png, after/NAME.png, captions.csv     columns id (NAME), captions; perhaps split, change_type
  pairs.csv or pairs.jsonl                          columns before, after, captions; perhaps id, split, change_type
  train.csv, val.csv, test.csv                      the same columns, one file per split

Paths in a table are relative to the folder itself."""


def _images_in(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in _IMAGES:
            if path.stem in found:
                raise PairError(
                    f"{folder} holds {found[path.stem]!r} and {path.name!r}; names must differ before the ending"
                )
            found[path.stem] = path.name
    return found


def _id_of(before: str, after: str) -> str:
    """Id of a pair without one; made of its own paths only, so that other pairs never change it."""
    first, second = PurePosixPath(before), PurePosixPath(after)
    name = str(first.parent / first.stem)
    return name if first.stem == second.stem else f"{name}..{second.parent / second.stem}"


def _split(row: Row) -> str | None:
    named = row.text("split")
    if named is None:
        return None
    split = _SAME.get(named.lower(), named.lower())
    if split not in SPLITS:
        raise PairError(f"{row.where}: the split {named!r} is unknown; expected one of {', '.join(SPLITS)}")
    return split


def _named(records: Sequence[Record]) -> str:
    shown = ", ".join(record.name for record in records[:_SHOWN])
    return shown + (", ..." if len(records) > _SHOWN else "")
