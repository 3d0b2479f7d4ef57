"""Base class of published benchmarks: official annotation files and counts, a fixed layout, images matched by id."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from lightning_idc.data.annotations import find_file
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.loading import PairDataset
from lightning_idc.data.source import PairSource
from lightning_idc.data.splits import ANNOTATED_SPLITS, Split
from lightning_idc.data.tables.files import FileSource, PairRecord, Root
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

_MAX_LISTED = 5


class LayoutError(DataError):
    """Raised when a folder does not have the official layout of a benchmark."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of pairs and sentences of a split; None for a quantity that is not counted.

    Args:
        pairs: number of pairs in the annotation file.
        sentences: number of sentences, empty ones included.
        empty: number of sentences without a word.
        uncaptioned: number of pairs whose sentences are all empty; these pairs are left out.
        records: number of entries of the annotation file, where several entries may describe one pair.
    """

    pairs: int | None = None
    sentences: int | None = None
    empty: int | None = None
    uncaptioned: int | None = None
    records: int | None = None

    def __str__(self) -> str:
        words = {"empty": "empty sentences", "uncaptioned": "pairs without a sentence"}
        counts = [(words.get(f.name, f.name), getattr(self, f.name)) for f in fields(self)]
        return ", ".join(f"{number:,} {name}" for name, number in counts if number is not None)

    def differs(self, other: Counts) -> bool:
        """Whether any quantity that these counts specify has another value in ``other``."""
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return any(expected is not None and expected != actual for expected, actual in pairs)


@dataclass(frozen=True, slots=True)
class Remote:
    """A benchmark file that is downloaded automatically or by hand.

    Args:
        path: destination, relative to the root.
        url: URL of the file, or of a web page if ``page`` is True.
        size: size in bytes; None if unknown.
        sha256: SHA-256 digest; None if unknown.
        page: whether ``url`` is a web page with a login, a form or a licence instead of a direct download.
    """

    path: str
    url: str
    size: int | None = None
    sha256: str | None = None
    page: bool = False


class Benchmark(PairDataModule):
    """Base class of data modules for published benchmarks.

    A subclass declares its layout and implements :meth:`annotations` and :meth:`read`. The annotation files are
    checked against the official counts. Empty sentences are left out, and so are pairs that have only empty
    sentences; both are counted. Images are matched by id, never by their position in a directory listing, so a
    missing image cannot shift the pairs.

    Args:
        root: folder of the benchmark; no file outside it is read. None for ``data/`` and the benchmark's name.
        official: whether counts that differ from the official ones are an error.
        follow_links: whether symbolic links below the root are followed to files outside it.
        on_missing: treatment of pairs with missing images: ``raise`` an error, or ``skip`` them with a warning.
        options: arguments of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Raises:
        ConfigError: an argument is not one of its choices.
    """

    folder: ClassVar[str]
    """Default folder below ``data``, and name on the command line."""
    title: ClassVar[str]
    """Display name."""
    scale_after: ClassVar[bool] = False
    """Whether the second image is scaled to the size of the first if ``image_size`` is None."""
    tree: ClassVar[str]
    """Official layout below the root: one path per line, with an explanation."""
    steps: ClassVar[str]
    """Instructions for obtaining the benchmark."""
    remotes: ClassVar[tuple[Remote, ...]] = ()
    """Files that `lightning-idc data prepare` downloads or lists for manual download."""

    def __init__(
        self,
        root: str | Path | None = None,
        official: bool = True,
        on_missing: Literal["raise", "skip"] = "raise",
        follow_links: bool = False,
        **options: Any,
    ) -> None:
        check_arguments(Benchmark.__init__, locals())
        super().__init__(**options)
        self.files = Root(Path("data") / self.folder if root is None else root, follow_links)
        self.root, self.official, self.on_missing = self.files.path, official, on_missing
        self.domain = self.title
        self._read: dict[str, list[PairRecord]] = {}

    # ---- implemented by each benchmark -------------------------------------------------------------------

    @abstractmethod
    def annotations(self, split: Split) -> Sequence[Sequence[str]]:
        """Annotation files of a split, each as a sequence of alternative names relative to the root."""

    @abstractmethod
    def read(self, split: Split) -> list[PairRecord]:
        """Read all pairs of a split from the annotation files; an empty sentence is ""."""

    def expected(self, split: Split) -> Counts:
        """Return the official counts, for the arguments of this data module."""
        return Counts()

    def counts(self, split: Split) -> Counts:
        """Count the pairs and sentences of the annotation files on disk."""
        return count(self.records(split))

    # ---- pairs ------------------------------------------------------------------------------------------

    def records(self, split: Split) -> list[PairRecord]:
        """Return all pairs of a split; the annotation files are read once.

        Raises:
            ConfigError: the benchmark has no such split.
            LayoutError: an annotation file is missing.
            DataError: an annotation file is malformed.
        """
        name: Split = "test" if split == "predict" else split
        if name not in self.available_splits:
            raise ConfigError(f"{self.title} has no split {name!r}; it has {', '.join(self.available_splits)}")
        if name not in self._read:
            missing = [names[0] for names in self.annotations(name) if find_file(self.root, *names) is None]
            if missing:
                raise self.layout_error(missing)
            self._read[name] = self.read(name)
        return self._read[name]

    def file(self, *names: str) -> Path:
        """Return the path of the first annotation file that exists, under its name or with ``.gz`` appended."""
        path = find_file(self.root, *names)
        if path is None:
            raise self.layout_error([names[0]])
        return path

    def source(self, split: Split) -> PairSource:
        records = self.records(split)
        self.check_counts(split)
        captioned = records if self.keeps_uncaptioned(split) else [record for record in records if any(record.captions)]
        return self.source_of(self.with_existing_files(split, captioned))

    def with_existing_files(
        self, split: Split, records: list[PairRecord], sidecar: str | None = None
    ) -> list[PairRecord]:
        """Select the records whose files exist; a warning reports the others.

        Args:
            split: name of the split, for messages.
            records: records of the split.
            sidecar: name of another required file in the folder of the images.

        Raises:
            LayoutError: all files are missing, or some are and ``on_missing`` is ``raise``.
        """
        sidecars = [] if sidecar is None else [sidecar]
        needed = [
            (record.before, record.after, *(record.before.parent / name for name in sidecars)) for record in records
        ]
        absent = set(self.files.absent(path for paths in needed for path in paths))
        if not absent:
            return records
        present = [record for record, paths in zip(records, needed, strict=True) if absent.isdisjoint(paths)]
        if self.on_missing == "raise" or not present:
            raise self.images_error(split, absent)
        num_skipped, kind = len(records) - len(present), "files" if sidecars else "images"
        warnings.warn(
            f"{self.title} {split}: skipped {num_skipped} of {len(records)} pairs with missing {kind}", stacklevel=3
        )
        return present

    def source_of(self, records: Sequence[PairRecord]) -> PairSource:
        """Build the source of records, without empty sentences."""
        captioned = [
            replace(record, captions=list(filter(None, record.captions)) or [""]) if "" in record.captions else record
            for record in records
        ]
        return FileSource(captioned, self.image_size, self.interpolation, self.image_options, self.scale_after)

    def prepare_data(self) -> None:
        """Report missing annotation files before the model is built."""
        missing = [
            names[0] for names in self.annotations(self.available_splits[0]) if find_file(self.root, *names) is None
        ]
        if missing:
            raise self.layout_error(missing)

    @classmethod
    def split(cls, root: str | Path, split: Split, **options: Any) -> PairDataset:
        """Return a split as a torch dataset: ``CLEVRChange.split(root, "test")[0]`` is a :class:`PairSample`.

        Args:
            root: folder of the benchmark.
            split: train, val or test.
            options: other arguments of the class.
        """
        return cls(root, **options).dataset(split)

    # ---- checks and messages ----------------------------------------------------------------------------

    def miscount(self, split: Split) -> str | None:
        """Describe the difference from the official counts; None if they agree."""
        name: Split = "test" if split == "predict" else split
        expected, counts = self.expected(name), self.counts(name)
        if not expected.differs(counts):
            return None
        return f"{self.heading()} {name}: expected {expected}; found {counts}"

    def check_counts(self, split: Split) -> None:
        """Compare the counts with the official ones, unless ``official`` is False.

        Raises:
            DataError: the counts differ.
        """
        problem = self.miscount(split) if self.official else None
        if problem:
            raise DataError(f"{problem}. Download the annotation files again, or set official: false for custom files")

    def heading(self) -> str:
        """Return the name of the benchmark and of the selected variant."""
        return self.title

    def remarks(self) -> list[str]:
        """Return further remarks on the counts, printed by ``data check``."""
        return []

    def keeps_uncaptioned(self, split: Split) -> bool:
        """Whether a split keeps pairs that have no sentence; their caption is then empty."""
        return False

    def may_be_uncaptioned(self, split: Split, change_type: str | None) -> bool:
        return self.keeps_uncaptioned(split)

    def layout_error(self, missing: Sequence[str]) -> LayoutError:
        """Build an error that lists the missing annotation files, the expected layout and the instructions."""
        examples = ", ".join(missing[:_MAX_LISTED]) + (", ..." if len(missing) > _MAX_LISTED else "")
        return LayoutError(f"{str(self.root)!r} does not contain {self.title}; missing: {examples}.{self.layout()}")

    def images_error(self, split: Split, absent: set[Path]) -> LayoutError:
        """Build an error that lists missing images."""
        return LayoutError(
            f"{self.missing_images(split, absent)}. Set on_missing: skip to leave out their pairs.{self.layout()}"
        )

    def missing_images(self, split: Split, absent: set[Path]) -> str:
        """Describe missing images: their number and the first names."""
        base = self.root.resolve()
        names = sorted(str(path.relative_to(base)) for path in absent)
        examples = ", ".join(names[:_MAX_LISTED]) + (", ..." if len(names) > _MAX_LISTED else "")
        return (
            f"{len(names):,} images of the {split} split of {self.title} are missing in {str(self.root)!r}: {examples}"
        )

    def layout(self) -> str:
        """Format the official layout and the instructions, for error messages."""
        lines = "\n".join(f"    {line}" for line in self.tree.strip("\n").splitlines())
        return f" Expected:\n\n  {self.root}/\n{lines}\n\nWhat to do: {self.steps}"


def check_split(name: str | None, where: str) -> None:
    """Check that a split named in an annotation file exists; pairs of an unknown split would be lost silently.

    Raises:
        DataError: the split is unknown.
    """
    if name not in ANNOTATED_SPLITS:
        raise DataError(f"{where}: the split is {name!r}; expected train, val or test")


def count(records: Sequence[PairRecord], entries: int | None = None) -> Counts:
    """Count pairs and sentences.

    Args:
        records: records with their empty sentences.
        entries: number of entries of the annotation file.
    """
    texts = [caption for record in records for caption in record.captions]
    uncaptioned = sum(not any(record.captions) for record in records)
    return Counts(
        pairs=len(records),
        sentences=len(texts),
        empty=sum(not text for text in texts),
        uncaptioned=uncaptioned,
        records=entries,
    )
