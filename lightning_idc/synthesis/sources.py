"""Sources of pipelines: folders of images, the pairs of a data module, sentences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.splits import Split
from lightning_idc.synthesis.records import Record, encode_png
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import DataError, DatasetNotFoundError
from lightning_idc.utils.files import file_digest, fingerprint
from lightning_idc.utils.paths import inside

_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


class ImageFolder:
    """Source with one record per image in a folder and its sub-folders; the image is named ``image``.

    Args:
        root: folder of the images; the ids are the relative paths.
        pattern: pattern of the files for `Path.rglob`.
        copies: number of records per image, for stages with random results; their ids end in ``#0``, ``#1`` and so on.

    Raises:
        ConfigError: copies is below 1.
        DatasetNotFoundError: there is no such folder, or no image in it.
    """

    def __init__(self, root: str, pattern: str = "*", copies: PositiveInt = 1) -> None:
        check_arguments(ImageFolder.__init__, locals())
        self.root = Path(root).expanduser()
        if not self.root.is_dir():
            raise DatasetNotFoundError(f"no such folder: {root!r}; expected a folder of images")
        files = (path for path in self.root.rglob(pattern) if path.suffix.lower() in _IMAGES and path.is_file())
        self.names = sorted(path.relative_to(self.root).as_posix() for path in files)
        if not self.names:
            raise DatasetNotFoundError(f"{root} has no images that match {pattern!r} ({', '.join(sorted(_IMAGES))})")
        self.copies = copies

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of file contents rather than times, so that a folder can be moved or copied between runs."""
        return fingerprint([self.copies, [[name, file_digest(self.path(name))] for name in self.names]])

    def __len__(self) -> int:
        return len(self.names) * self.copies

    def record(self, index: int) -> Record:
        name, copy = self.names[index // self.copies], index % self.copies
        id = name if self.copies == 1 else f"{name}#{copy}"
        return Record(id, {"file": name}, images={"image": self.path(name).read_bytes()})

    def path(self, name: str) -> Path:
        """Return the path of an image."""
        return inside(self.root, name, name)


class Pairs:
    """Source with one record per pair of a data module, with the images ``before`` and ``after``.

    Args:
        data: data module.
        split: split of the data module.
    """

    def __init__(self, data: PairDataModule, split: Split = "train") -> None:
        self.pairs = data.pairs_of(split)
        self.kind = type(data).__name__, split

    @property
    def fingerprint(self) -> str:
        return fingerprint([self.kind, list(self.pairs.ids), self.pairs.fingerprint()])

    def __len__(self) -> int:
        return len(self.pairs)

    def record(self, index: int) -> Record:
        pair = self.pairs.load(index)
        facts: dict[str, object] = {"captions": pair.captions, "change_type": pair.change_type}
        if pair.captions:
            # the reference; stages that describe each image replace `captions`
            facts["difference"] = pair.captions[0]
        if pair.boxes is not None:
            boxes = [
                [None if any(v != v for v in box) else box for box in pair_boxes] for pair_boxes in pair.boxes.tolist()
            ]
            facts["true_boxes"] = boxes
        images = {"before": encode_png(pair.before), "after": encode_png(pair.after)}
        return Record(pair.id, facts, images=images)


class Sentences:
    """Source with one record per caption, in the fact ``caption``.

    Args:
        texts: captions, or the local path or fsspec URL of a text file with one caption per line.

    Raises:
        DatasetNotFoundError: the file cannot be read.
        DataError: there are no captions.
    """

    def __init__(self, texts: str | Sequence[str]) -> None:
        if isinstance(texts, str):
            import fsspec

            try:
                with fsspec.open(texts, encoding="utf-8-sig", mode="r") as file:
                    texts = file.read().split("\n")  # str.splitlines would also split at U+2028
            except (OSError, ValueError, ImportError) as error:
                raise DatasetNotFoundError(f"{texts!r} cannot be read ({error}); expected a text file") from error
        self.texts = [text.strip() for text in texts if text.strip()]
        if not self.texts:
            raise DataError("expected one caption per line, found none")

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.texts)

    def __len__(self) -> int:
        return len(self.texts)

    def record(self, index: int) -> Record:
        return Record(f"{index:07}", {"caption": self.texts[index]})


_SAMPLES = {
    "skimage": ("data/astronaut.png", "data/chelsea.png", "data/coffee.png", "data/rocket.jpg"),
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
}


class SamplePhotos(ImageFolder):
    """Six photographs shipped with scikit-image and scikit-learn, for testing a pipeline.

    Args:
        copies: see `ImageFolder`.

    Raises:
        DatasetNotFoundError: neither package is installed.
    """

    def __init__(self, copies: PositiveInt = 1) -> None:
        check_arguments(SamplePhotos.__init__, locals())
        from importlib.util import find_spec

        self._paths: dict[str, Path] = {}
        for package, files in _SAMPLES.items():
            spec = find_spec(package)  # locates the folder without an import, which takes seconds
            for folder in (spec.submodule_search_locations or [])[:1] if spec is not None else []:
                paths = [Path(folder) / file for file in files]
                self._paths.update({path.name: path for path in paths if path.is_file()})
        self.names, self.copies = sorted(self._paths), copies
        if not self.names:
            raise DatasetNotFoundError("no sample photographs are installed; install scikit-image, or use ImageFolder")

    def path(self, name: str) -> Path:
        return self._paths[name]
