"""PairRecord and FileSource: pairs of image files, read on access, below the root folder of a data set."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lightning_idc.data.source import PairSource
from lightning_idc.images.decode import size_of_image
from lightning_idc.images.options import PLAIN, ImageOptions
from lightning_idc.images.read import read_image, read_pair
from lightning_idc.images.resize import Interpolation, resize
from lightning_idc.images.types import PairSample
from lightning_idc.utils.errors import ConfigError, DataError, IDCError
from lightning_idc.utils.files import digest_of_all
from lightning_idc.utils.jsonfiles import short
from lightning_idc.utils.paths import MAX_NAME_BYTES, fits, inside

_ScanResult = tuple[int, int] | str
_ALWAYS_FITS = MAX_NAME_BYTES // 4  # characters; one takes at most four bytes in UTF-8
# cache: (path, modification time, bytes, options) of a scanned image to its height and width, or to an error message
_scanned: dict[tuple[str, int, int, str], _ScanResult] = {}


@dataclass(slots=True)
class PairRecord:
    """One pair of image files, from a table or a folder.

    Args:
        id: id of the pair.
        where: source of the record (file and line), for error messages.
        before: path of the first image.
        after: path of the second image.
        captions: all captions, "" for an empty one.
        split: name of the split; None if it is not specified.
        change_type: label of the change.
        meta: other metadata of the pair.
    """

    id: str
    where: str
    before: Path
    after: Path
    captions: list[str] = field(default_factory=list)
    split: str | None = None
    change_type: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"pair {self.id!r} ({self.where})"


class FileSource(PairSource):
    """Source of pairs of image files.

    Args:
        records: one record per pair.
        size: height and width of the resized images; None keeps the original sizes.
        interpolation: interpolation for resizing.
        options: decoding options: value range, bands, page.
        scale_after: whether the second image is scaled to the size of the first, as for edits that crop the image.
    """

    def __init__(
        self,
        records: Sequence[PairRecord],
        size: tuple[int, int] | None,
        interpolation: Interpolation = "bilinear",
        options: ImageOptions = PLAIN,
        scale_after: bool = False,
    ) -> None:
        self.records, self.size, self.interpolation, self.options = records, size, interpolation, options
        self.scale_after = scale_after
        self.ids = self._ids()

    def _ids(self) -> Sequence[str]:
        return [record.id for record in self.records]

    def captions(self, index: int) -> list[str]:
        return self.records[index].captions

    def change_type(self, index: int) -> str | None:
        return self.records[index].change_type

    def meta(self, index: int) -> dict[str, Any]:
        return self.records[index].meta

    def fingerprint(self) -> str:
        return digest_of_all(self._fingerprint_parts())

    def _fingerprint_parts(self) -> Iterator[str]:
        yield f"{type(self).__qualname__}/{self.size}/{self.interpolation}"
        yield "" if self.options == PLAIN else f"/{self.options.to_dict()}"
        for record in self.records:
            for path in (record.before, record.after):
                yield f"\0{record.id}\0{file_state(path, record.name)}"

    def image_size(self, index: int) -> tuple[int, int]:
        record = self.records[index]
        return self.size or size_of_image(record.before, record.name) or super().image_size(index)

    def original(self, index: int) -> tuple[Tensor, Tensor]:
        record = self.records[index]
        return read_pair(record.before, record.after, self.options, record.name)

    def load(self, index: int) -> PairSample:
        record = self.records[index]
        before, after = self.original(index)
        if self.size is not None:
            before, after = (resize(image, self.size, self.interpolation) for image in (before, after))
        elif self.scale_after:
            after = resize(after, (before.shape[1], before.shape[2]), self.interpolation)
        return PairSample(record.id, before, after, list(record.captions), record.change_type, meta=record.meta)


def file_state(path: Path, record: str) -> str:
    """Combine path, times and size of a file into a string that changes when the file changes.

    Args:
        path: path of the file.
        record: name of the pair, for the error message.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"{record}: {str(path)!r} cannot be read ({error})") from error
    # mtime can be set by any program, ctime cannot
    return f"{path}\0{status.st_mtime_ns}\0{status.st_ctime_ns}\0{status.st_size}"


class Root:
    """Root folder of a data set; each folder below it is resolved once, for any number of files.

    Args:
        path: root folder; no file outside it is read.
        follow_links: whether symbolic links below the root are followed to files outside it.
    """

    def __init__(self, path: str | Path, follow_links: bool = False) -> None:
        self.path, self.follow_links = Path(path).expanduser(), follow_links
        self._folders: dict[str, Path] = {}

    def file(self, relative: str, record: str) -> Path:
        """Return the path of a file, which need not exist.

        Raises:
            DataError: the path is absolute, leaves the root or is invalid.
        """
        folder, name = self.parts(relative, record)
        return self._folders[folder] / name

    def parts(self, relative: str, record: str) -> tuple[str, str]:
        """Split the path of a file, which need not exist, into folder and name; cheaper than :meth:`file`.

        Raises:
            DataError: the path is absolute, leaves the root or is invalid.
        """
        folder, _, name = (relative.replace("\\", "/") if "\\" in relative else relative).rpartition("/")
        if folder not in self._folders or relative[:1] == "/":
            # the first file of a folder is checked by its full path, so that the error message shows it
            inside(self.path, relative, record, self.follow_links)
            self._folders[folder] = inside(self.path, f"{folder}/" if folder else ".", record, self.follow_links)
        if name in ("", ".", "..") or "\0" in name or (len(name) > _ALWAYS_FITS and not fits(name, MAX_NAME_BYTES)):
            raise DataError(f"{record}: {short(relative)} is not a valid path of a file below the data folder")
        return folder, name

    def folder(self, name: str) -> Path:
        """Return the path of a folder, which need not exist; "" is the root.

        Raises:
            DataError: the path is absolute or leaves the root.
        """
        return inside(self.path, name or ".", "", self.follow_links)

    def path_error(self, relative: str, is_folder: bool = False) -> str | None:
        """Describe why a path is rejected: it is absolute, leaves the root or is invalid; None for a valid path."""
        try:
            self.folder(relative) if is_folder else self.parts(relative, "")
        except DataError as error:
            return str(error).removeprefix(": ")
        return None

    def absent(self, paths: Iterable[Path]) -> list[Path]:
        """Select the paths of files that do not exist; every folder is listed once.

        Raises:
            DataError: a file is a link that leaves the root.
        """
        listed: dict[Path, set[str]] = {}
        missing = []
        for path in paths:
            folder = path.parent
            if folder not in listed:
                listed[folder] = self._files_in(folder)
            if path.name not in listed[folder]:
                missing.append(path)
        return missing

    def files_in(self, folder: str) -> set[str]:
        """Return the names of the files in a folder.

        Raises:
            DataError: the folder or a file in it is a link that leaves the root.
        """
        return self._files_in(self.folder(folder))

    def _files_in(self, folder: Path) -> set[str]:
        base = self.path.resolve()
        names: set[str] = set()
        if not folder.is_dir():
            return names
        with os.scandir(folder) as entries:
            for entry in entries:
                is_unfollowed_link = entry.is_symlink() and not self.follow_links
                if is_unfollowed_link and not Path(entry.path).resolve().is_relative_to(base):
                    raise DataError(
                        f"{entry.path!r} is a link to a file outside the data folder {self.path}; set "
                        "follow_links: true to read it"
                    )
                if entry.is_file():
                    names.add(entry.name)
        return names


def folders_of(paths: Any) -> Any:
    """Return the folders of an Arrow array of paths, with the final slash, as a dictionary array."""
    import pyarrow.compute as pc

    return pc.replace_substring_regex(paths, r"[^/]*\z", "").dictionary_encode()


def check_shares(shares: Sequence[float]) -> None:
    """Check that the fractions of train, val and test, each in [0, 1], sum to 1.

    Raises:
        ConfigError: there are not three fractions, or they do not sum to 1.
    """
    if len(shares) != 3 or abs(sum(shares) - 1) > 1e-6:
        raise ConfigError(f"shares is {tuple(shares)}; expected three numbers for train, val and test that sum to 1")


def splits_by_hash(names: Iterable[str], shares: Sequence[float]) -> list[str]:
    """Assign each name to a split: the distinct names are ordered by a hash and cut at the shares.

    The order of a table has no effect, and adding names moves only the few others at the cuts: to the next split, never
    between train and test unless the share of val is close to 0.

    Args:
        names: names; equal ones are in one split.
        shares: fractions of train, val and test, which are met up to one name.

    Example:
        >>> from collections import Counter
        >>> sorted(Counter(splits_by_hash(map(str, range(300)), (0.8, 0.1, 0.1))).items())
        [('test', 30), ('train', 240), ('val', 30)]
    """
    hashes = np.fromiter(map(_hash_of, names), np.uint64)
    ordered = np.unique(hashes)
    numbers = np.zeros(len(hashes), int)
    for share in (shares[0], shares[0] + shares[1]):
        if (cut := round(len(ordered) * share)) < len(ordered):
            numbers += hashes >= ordered[cut]
    return [("train", "val", "test")[number] for number in numbers]


def _hash_of(name: str) -> int:
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def progress(records: Sequence[PairRecord], title: str) -> Sequence[PairRecord]:
    from tqdm.auto import tqdm

    return tqdm(records, title, delay=2.0, leave=False)  # type: ignore[return-value]


def image_error(record: PairRecord, is_resized: bool, options: ImageOptions = PLAIN) -> str | None:
    """Describe why the images of a pair cannot be used; None if they can. Sizes may differ if both are resized."""
    before, after = _scan(record.before, options), _scan(record.after, options)
    for size in (before, after):
        if isinstance(size, str):
            return size
    if before == after or is_resized:
        return None
    return f"before is {before[0]}x{before[1]} and after is {after[0]}x{after[1]}; set image_size to resize both"


def _scan(path: Path, options: ImageOptions) -> _ScanResult:
    """Return height and width of an image, or an error message."""
    try:
        stat = os.stat(path)
    except OSError:
        return f"no such image file: {str(path)!r}"
    key = (str(path), stat.st_mtime_ns, stat.st_size, repr(options))
    if key not in _scanned:
        try:
            height, width = read_image(path, options).shape[1:]
            _scanned[key] = height, width
        except IDCError as error:
            _scanned[key] = str(error)
    return _scanned[key]
