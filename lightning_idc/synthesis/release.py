"""Release the result of a pipeline as a folder of training pairs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from lightning_idc.data.splits import ANNOTATED_SPLITS
from lightning_idc.data.tables.files import check_shares
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.synthesis.export import suffix_of
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import Output

LONGEST_NAME = 200
"""Largest number of characters of a name; file systems allow 255 bytes including the suffix."""


class ReleasePairs(PipelineStage):
    """Writes the kept pairs as images and a table ``pairs.jsonl``, the format of `FolderPairs`.

    Args:
        folder: output folder; files of an earlier release are replaced.
        caption: name of the fact with the caption.
        shares: fractions of train, val and test.
        together: key of pairs that stay in one split: ``file`` for all pairs of an image file, ``site`` for all pages
            of a web site, ``style`` for all web sites that share a style sheet, or ``id`` for single pairs. With few
            files or sites, a split may be empty.
        splits: values of the key ``together`` by split, such as ``{"val": ["mkdocs"], "test": ["apache2-doc"]}``;
            ``shares`` divides the others.
        seed: seed of the split.
        overwrite: whether other files in the folder may be replaced.

    Raises:
        ConfigError: a record lacks the caption, another file would be overwritten, or ``splits`` is no table of splits.
        DataError: pairs of ``splits`` share a style sheet with pairs of another split, or a split of it has no pair.
    """

    def __init__(
        self,
        folder: str,
        caption: str = "summary",
        shares: tuple[Share, Share, Share] = (0.8, 0.1, 0.1),
        together: Literal["file", "site", "style", "id"] = "file",
        splits: dict[str, list[str]] | None = None,
        seed: int = 0,
        overwrite: bool = False,
    ) -> None:
        check_arguments(ReleasePairs.__init__, locals())
        super().__init__(seed)
        check_shares(shares)
        self.folder, self.caption, self.shares, self.together = Path(folder).expanduser(), caption, shares, together
        self.overwrite = overwrite
        self.splits = {value: split for split, values in (splits or {}).items() for value in values}
        if unknown := (splits or {}).keys() - set(ANNOTATED_SPLITS):
            raise ConfigError(
                f"splits has {', '.join(sorted(unknown))}; expected some of {', '.join(ANNOTATED_SPLITS)}"
            )
        if len(self.splits) < sum(map(len, (splits or {}).values())):
            raise ConfigError(f"splits is {splits!r}; expected each value once")

    def settings(self) -> dict[str, Any]:
        splits = {"splits": self.splits} if self.splits else {}
        return {"caption": self.caption, "shares": list(self.shares), "together": self.together, **splits}

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            if self.caption not in record.facts:
                raise ConfigError(
                    f"record {record.id} has no fact {self.caption!r} for its caption; it has "
                    f"{', '.join(record.facts) or 'none'}"
                )
        return records

    def finish(self, store: RecordStore) -> None:
        _check_names(store)
        if self.splits:
            self._check_splits(store)
        with Output(self.folder, "release", self.overwrite, [store.folder]) as draft:
            self.write(store, draft)

    def write(self, store: RecordStore, folder: Path) -> None:
        """Write the files of the release.

        Args:
            store: store of the records.
            folder: empty draft folder.
        """
        (folder / "images").mkdir()
        lines: list[str] = []
        for record in store:
            if record.dropped is None:
                paths = []
                for number, side in enumerate(("before", "after")):
                    data = record.encoded(side)
                    paths.append(f"images/{file_name(record.id)}_{number}.{suffix_of(data)}")
                    write_content(folder / paths[-1], data)
                lines.append(json.dumps(self._row(record, *paths), ensure_ascii=False))
        write_content(folder / "pairs.jsonl", "".join(f"{line}\n" for line in lines))
        print(f"{len(lines)} training pairs: {self.folder}", flush=True)

    def _row(self, record: Record, before: str, after: str) -> dict[str, Any]:
        return {
            "id": record.id,
            "before": before,
            "after": after,
            "captions": [record.facts[self.caption]],
            "change_type": record.facts.get("edit"),
            "split": self._split(record),
            **({"change": change} if (change := change_of(record)) else {}),
        }

    def _check_splits(self, store: RecordStore) -> None:
        """Raise an error if a split has no pairs, or if pairs of two splits share a style sheet."""
        split_of_style: dict[str, str] = {}
        splits = set()
        for record in store:
            if record.dropped is None:
                splits.add(split := self._split(record))
                style = record.facts.get("style")
                if style is not None and split_of_style.setdefault(style, split) != split:
                    raise DataError(
                        f"sites that share a style sheet with {style} are in {split} and {split_of_style[style]}; "
                        "expected them in one split"
                    )
        if missing := set(self.splits.values()) - splits:
            raise DataError(f"no pair is in the split {min(missing)}; has the source its sites?")

    def _split(self, record: Record) -> str:
        group = record.id if self.together == "id" else record.facts.get(self.together)
        if group in self.splits:
            return self.splits[group]
        fraction = record_generator(self.seed, group or record.id).random()
        return "train" if fraction < self.shares[0] else "val" if fraction < self.shares[0] + self.shares[1] else "test"


def change_of(record: Record) -> dict[str, Any] | None:
    """Facts of a change of a web page for the protocol diffspot; None for other records and unchanged pages."""
    facts = record.facts
    if facts.get("tier") is None or facts.get("edit") in (None, NO_CHANGE):
        return None
    return {
        "operator": facts["edit"],
        "tier": facts["tier"],
        "boxes": [box for box in facts["true_boxes"][0] if box is not None],
        **{name: facts[name] for name in ("property", "old", "new", "element", "text", "reflows")},
    }


def _check_names(store: RecordStore) -> None:
    """Raise an error if the images of two records would have the same file name."""
    names: set[str] = set()
    ids, dropped = store.column("id"), store.column("dropped")
    for index in range(len(store)):
        if dropped[index] is None:
            id = ids[index]
            name = file_name(id)
            if name in names:
                raise DataError(
                    f"the image file name {name!r} is not unique: record {id!r} has it, too; rename the record"
                )
            names.add(name)


def file_name(id: str) -> str:
    """Build a unique file name from the id of a record; a digest replaces the end of long names."""
    escaped = (c if c.isascii() and (c.isalnum() or c in "._-") else f"%{ord(c):x}" for c in id)
    name = "".join(escaped).lstrip(".") or "record"
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{name[: LONGEST_NAME - 17]}-{digest}"
