"""Benchmark: official annotation files with known counts, images in a known layout, pairs found by id."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from lightning_idc.data.annotations import find
from lightning_idc.data.datamodule import SPLITS, PairDataModule, Split
from lightning_idc.data.loading import PairDataset
from lightning_idc.data.source import PairSource
from lightning_idc.data.tables.files import FileSource, Record, Root
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

_SHOWN = 5


class LayoutError(DataError):
    """A folder that does not hold a benchmark as its authors lay it out."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a split holds; None for what is not counted.

    Args:
        pairs: in the annotation file.
        sentences: of all pairs, empty ones included.
        empty: sentences without a word.
        silent: pairs without any sentence that has one; they are left out.
        records: entries of the annotation file, where several may speak of one pair.
    """

    pairs: int | None = None
    sentences: int | None = None
    empty: int | None = None
    silent: int | None = None
    records: int | None = None

    def __str__(self) -> str:
        words = {"empty": "empty sentences", "silent": "pairs without a sentence"}
        numbers = [(words.get(f.name, f.name), getattr(self, f.name)) for f in fields(self)]
        return ", ".join(f"{number:,} {name}" for name, number in numbers if number is not None)

    def differs(self, other: Counts) -> bool:
        """Whether anything that is known here is otherwise there."""
        numbers = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return any(number is not None and number != counted for number, counted in numbers)


@dataclass(frozen=True, slots=True)
class Remote:
    """A file of a benchmark that can be downloaded, or has to be fetched by hand.

    Args:
        path: where it belongs below the root.
        url: where it is; for a page that must be visited, ``page`` is True.
        size: bytes, where known.
        sha256: digest, where known.
        page: no direct download: a web page with a login, a form or a licence.
    """

    path: str
    url: str
    size: int | None = None
    sha256: str | None = None
    page: bool = False


class Benchmark(PairDataModule):
    """Base of the data modules that read a published benchmark.

    A subclass names its layout and writes :meth:`annotations` and :meth:`read`. What annotation files hold is
    compared with what is known of the official ones. Sentences without a word are left out, and pairs without
    any other; both are counted. Images are found by id, never by their place in a listing, so a folder that is
    incomplete cannot shift pairs.

    Args:
        root: folder of the benchmark, outside of which nothing is read; None for ``data/`` and its name.
        official: insist on the official counts.
        follow_links: read what links below the root lead to, wherever that is.
        on_missing: what happens to pairs whose images are not there; ``skip`` leaves them out and counts them.
        options: of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Raises:
        ConfigError: an argument is not one of its choices.
    """

    folder: ClassVar[str]
    """Where it lies below ``data`` unless told otherwise, and its name on the command line."""
    title: ClassVar[str]
    """Name that people know it by."""
    scale_after: ClassVar[bool] = False
    """Whether a second image of another size is scaled to that of the first where no ``image_size`` is named."""
    tree: ClassVar[str]
    """The official layout below the root, one path with its explanation per line."""
    steps: ClassVar[str]
    """What to do to get it."""
    remotes: ClassVar[tuple[Remote, ...]] = ()
    """Files that `lightning-idc data prepare` fetches or asks for."""

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
        self._read: dict[str, list[Record]] = {}

    # ---- what a benchmark writes ------------------------------------------------------------------------

    @abstractmethod
    def annotations(self, split: Split) -> Sequence[Sequence[str]]:
        """Files that :meth:`read` needs for a split, each as the names that it may have below the root."""

    @abstractmethod
    def read(self, split: Split) -> list[Record]:
        """All pairs of a split as the annotation files tell them, empty sentences as ""."""

    def expected(self, split: Split) -> Counts:
        """What the official annotation files hold, with these arguments."""
        return Counts()

    def found(self, split: Split) -> Counts:
        """What the annotation files hold."""
        return count(self.records(split))

    # ---- pairs ------------------------------------------------------------------------------------------

    def records(self, split: Split) -> list[Record]:
        """All pairs of a split, read once.

        Raises:
            ConfigError: the benchmark has no such split.
            LayoutError: an annotation file is missing.
            DataError: one cannot be understood.
        """
        name: Split = "test" if split == "predict" else split
        if name not in self.labelled:
            raise ConfigError(f"{self.title} has no split {name!r}; it has {', '.join(self.labelled)}")
        if name not in self._read:
            missing = [names[0] for names in self.annotations(name) if find(self.root, *names) is None]
            if missing:
                raise self.layout_error(missing)
            self._read[name] = self.read(name)
        return self._read[name]

    def file(self, *names: str) -> Path:
        """The annotation file of the first of these names that is there, perhaps with ``.gz``."""
        path = find(self.root, *names)
        if path is None:
            raise self.layout_error([names[0]])
        return path

    def source(self, split: Split) -> PairSource:
        records = self.records(split)
        self.check_counts(split)
        captioned = records if self.keeps(split) else [record for record in records if any(record.captions)]
        return self.source_of(self.present(split, captioned))

    def present(self, split: Split, records: list[Record], beside: str | None = None) -> list[Record]:
        """Records whose files are there; of the others it warns where they are to be skipped.

        Args:
            split: for the messages.
            records: of the split.
            beside: name of a file that has to lie beside the images.

        Raises:
            LayoutError: some are missing and not to be skipped, or all are.
        """
        more = [] if beside is None else [beside]
        needed = [(it.before, it.after, *(it.before.parent / name for name in more)) for it in records]
        absent = set(self.files.absent(path for paths in needed for path in paths))
        if not absent:
            return records
        present = [record for record, paths in zip(records, needed, strict=True) if absent.isdisjoint(paths)]
        if self.on_missing == "raise" or not present:
            raise self.images_error(split, absent)
        left, what = len(records) - len(present), "files" if more else "images"
        warnings.warn(
            f"{self.title} {split}: left out {left} of {len(records)} pairs whose {what} are missing", stacklevel=3
        )
        return present

    def source_of(self, records: Sequence[Record]) -> PairSource:
        """Pairs of records, without their empty sentences."""
        captioned = [
            replace(record, captions=list(filter(None, record.captions)) or [""]) if "" in record.captions else record
            for record in records
        ]
        return FileSource(captioned, self.image_size, self.interpolation, self.image_options, self.scale_after)

    def prepare_data(self) -> None:
        """Tell what is missing before anything else is built."""
        missing = [names[0] for names in self.annotations(self.labelled[0]) if find(self.root, *names) is None]
        if missing:
            raise self.layout_error(missing)

    @classmethod
    def split(cls, root: str | Path, split: Split, **options: Any) -> PairDataset:
        """One split as a torch dataset: ``CLEVRChange.split(root, "test")[0]`` is a :class:`PairSample`.

        Args:
            root: folder of the benchmark.
            split: train, val or test.
            options: of the class.
        """
        return cls(root, **options).dataset(split)

    # ---- what is wrong ----------------------------------------------------------------------------------

    def miscount(self, split: Split) -> str | None:
        """What differs from the official counts; None where nothing does."""
        name: Split = "test" if split == "predict" else split
        expected, counts = self.expected(name), self.found(name)
        if not expected.differs(counts):
            return None
        return f"{self.heading()} {name}: expected {expected}; found {counts}"

    def check_counts(self, split: Split) -> None:
        """Check the official counts, unless ``official`` is False.

        Raises:
            DataError: the annotation files differ from the official ones.
        """
        problem = self.miscount(split) if self.official else None
        if problem:
            raise DataError(f"{problem}. Fetch the annotation files again, or set official: false if they are your own")

    def heading(self) -> str:
        """Name of the benchmark, and what of it these arguments choose."""
        return self.title

    def remarks(self) -> list[str]:
        """What else a reader of its counts has to know, for ``data check``."""
        return []

    def keeps(self, split: Split) -> bool:
        """Whether pairs of a split without any sentence stay, with an empty one."""
        return False

    def uncaptioned(self, split: Split, change_type: str | None) -> bool:
        return self.keeps(split)

    def layout_error(self, missing: Sequence[str]) -> LayoutError:
        """The error that shows the layout, what of it is missing, and what to do."""
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        return LayoutError(f"{str(self.root)!r} does not hold {self.title}; missing: {shown}.{self.layout()}")

    def images_error(self, split: Split, absent: set[Path]) -> LayoutError:
        """The error for images that are not there."""
        return LayoutError(
            f"{self.missing_images(split, absent)}. With on_missing: skip their pairs are left out.{self.layout()}"
        )

    def missing_images(self, split: Split, absent: set[Path]) -> str:
        """How many images are not there, and the first of them."""
        base = self.root.resolve()
        names = sorted(str(path.relative_to(base)) for path in absent)
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        return f"{len(names):,} images of the {split} split of {self.title} are missing in {str(self.root)!r}: {shown}"

    def layout(self) -> str:
        """The official layout and the manual steps, for messages."""
        lines = "\n".join(f"    {line}" for line in self.tree.strip("\n").splitlines())
        return f" Expected:\n\n  {self.root}/\n{lines}\n\nWhat to do: {self.steps}"


def check_split(name: str | None, where: str) -> None:
    """Refuse a split that an annotation file names and no data module has, whose pairs would be in none.

    Raises:
        DataError: it is unknown.
    """
    if name not in SPLITS:
        raise DataError(f"{where}: the split is {name!r}; expected {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")


def count(records: Sequence[Record], entries: int | None = None) -> Counts:
    """Counts of some pairs.

    Args:
        records: with their empty sentences.
        entries: records of the annotation file.
    """
    texts = [caption for record in records for caption in record.captions]
    silent = sum(not any(record.captions) for record in records)
    return Counts(len(records), len(texts), sum(not text for text in texts), silent, entries)
