"""OmniDiff: photographs and renders of real scenes with long descriptions of all changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lightning_idc.data.annotations import AnnotationRow, sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.data.tables.tables import read_objects
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import short

Subset = Literal["real", "render"]
Field = Literal["id", "before", "after", "caption", "types"]
PAIRS = {
    "real": {"train": 7_007, "val": 799, "test": 803},
    "render": {"train": 5_445, "val": 777, "test": 767},
}
"""8,609 + 6,989 = 15,598 pairs with one description each (Table 2 and Section 5.1)."""
FIELDS = {"id": "id", "before": "image1", "after": "image2", "caption": "caption", "types": "types"}
"""Default field names of a record; they are a guess, as the public files are not documented."""


class OmniDiff(Benchmark):
    """OmniDiff: 15,598 pairs of 324 scenes with descriptions of 60 words; twelve types of change, often combined.

    The layout of the public files is not documented. The default layout follows the paper, and ``fields`` adapts it:
    each value is the path of a field in a record, with dots and list indices, such as ``{"before": "image.0", "after":
    "image.1", "caption": "conversations.1.value"}`` for M3Diff's training conversations. A field set to "" is not
    read; without an id field, ids are made of the image paths. ``change_type`` is the type of the change, ``mixed``
    for several.

    Features: photographs and renders of real scenes; one description of 60 words per pair; twelve types of change.
    Format: not documented; here images and JSON.
    Splits: 7,007 train, 799 val and 803 test pairs of photographs; 5,445, 777 and 767 of renders.
    Licence: stated as "other".
    Cite: Liu et al.: OmniDiff: A Comprehensive Benchmark for Fine-grained Image Difference Captioning (2025),
        https://yuan-liu-omnidiff.github.io

    Args:
        subset: photographs or renders; the paper evaluates them separately.
        fields: field names of records that override :data:`FIELDS`.
        annotations_file: name pattern of the annotation files, with ``{subset}`` and ``{split}``.
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = OmniDiff.split("data/omnidiff", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "omnidiff"
    title = "OmniDiff"
    protocol = "omnidiff/multi"
    tree = """
real/train.json          [{"id", "image1", "image2", "caption", "types": ["addition", ...]}, ...] or one object per line
real/val.json, real/test.json, render/train.json, ...
*                        images, named by the records relative to the root"""
    steps = (
        "request OmniDiff from its authors (yuan-liu-omnidiff.github.io; M3Diff's training data are the Hugging Face "
        "dataset IVC-liuyuan/training_m3diff). If its fields have other names, set `fields` and `annotations_file`."
    )
    remotes = (Remote("real", "https://yuan-liu-omnidiff.github.io", page=True),)

    def __init__(
        self,
        root: str | Path | None = None,
        subset: Subset = "real",
        fields: Mapping[Field, str] | None = None,
        annotations_file: str = "{subset}/{split}.json",
        **options: Any,
    ) -> None:
        check_arguments(OmniDiff.__init__, locals())
        super().__init__(root, **options)
        self.subset: Subset = subset
        self.fields: dict[str, str] = {**FIELDS, **{str(name): column for name, column in (fields or {}).items()}}
        self.annotations_file = annotations_file

    def heading(self) -> str:
        return f"{self.title} ({self.subset})"

    def annotations(self, split: Split) -> list[list[str]]:
        # not str.format, which would evaluate attribute access in the pattern
        return [[self.annotations_file.replace("{subset}", self.subset).replace("{split}", split)]]

    def expected(self, split: Split) -> Counts:
        pairs = PAIRS[self.subset][split]
        return Counts(pairs, pairs, 0, 0)

    def read(self, split: Split) -> list[PairRecord]:
        name = self.annotations(split)[0][0]
        self.files.file(name, "annotations_file")
        records = []
        for row in read_objects(self.file(name)):
            sides = [self._path(row, side) for side in ("before", "after")]
            before, after = (self.files.file(side, row.where) for side in sides)
            id = self._value(row, "id") if self.fields["id"] else f"{sides[0]}..{sides[1]}"
            if isinstance(id, bool) or not isinstance(id, (str, int)) or id == "":
                raise DataError(f"{row.where}: {self.fields['id']} is {short(id)}; expected a name")
            texts = sentences(self._value(row, "caption"), row.where)
            records.append(PairRecord(str(id), row.where, before, after, texts, change_type=self._type(row)))
        return records

    def _value(self, row: AnnotationRow, name: str) -> Any:
        """Return the value of a field of a record.

        Raises:
            DataError: the record lacks the field.
        """
        path = self.fields[name]
        value: Any = row.values
        for step in path.split("."):
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and step.isascii() and step.isdecimal() and int(step[:9]) < len(value):
                value = value[int(step[:9])]
            else:
                raise DataError(
                    f"{row.where}: no field {path!r} for {name}; the record has "
                    f"{', '.join(map(repr, row.values)) or 'nothing'}. Set its path with fields: {{{name}: ...}}"
                )
        return value

    def _path(self, row: AnnotationRow, side: str) -> str:
        value = self._value(row, side)
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{row.where}: {self.fields[side]} is {short(value)}; expected the path of an image")
        return value.strip()

    def _type(self, row: AnnotationRow) -> str | None:
        """Return the type of change, ``mixed`` for several, None if the record has no types."""
        top = self.fields["types"].split(".")[0]
        if not top or top not in row.values:
            return None
        value = self._value(row, "types")
        types = value if isinstance(value, list) else [value]
        if not all(isinstance(kind, str) for kind in types):
            raise DataError(f"{row.where}: {self.fields['types']} is {short(value)}; expected names of types")
        return types[0] if len(types) == 1 else "mixed" if types else None
