"""Where a pipeline begins: folders of images, the pairs of a data module, sentences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from lightning_idc.data.datamodule import PairDataModule, Split
from lightning_idc.synthesis.records import Record, encode_png
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import DataError, DatasetNotFoundError
from lightning_idc.utils.files import file_digest, fingerprint
from lightning_idc.utils.paths import inside

_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


class ImageFolder:
    """All images below a folder, one record each, with the image ``image``.

    Args:
        root: of the images; the ids are the paths below it without their endings.
        pattern: of the files, as for `Path.rglob`.
        copies: records made of each image, for stages that draw something new for each; their ids end in ``#0``, ``#1``
            and so on.

    Raises:
        ConfigError: copies is below 1.
        DatasetNotFoundError: there is no such folder, or no image in it.
    """

    def __init__(self, root: str, pattern: str = "*", copies: PositiveInt = 1) -> None:
        check_arguments(ImageFolder.__init__, locals())
        self.root = Path(root).expanduser()
        if not self.root.is_dir():
            raise DatasetNotFoundError(f"there is no folder {root!r}; name one with images")
        files = (path for path in self.root.rglob(pattern) if path.suffix.lower() in _IMAGES and path.is_file())
        self.names = sorted(path.relative_to(self.root).as_posix() for path in files)
        if not self.names:
            raise DatasetNotFoundError(f"{root} holds no images that match {pattern!r} ({', '.join(sorted(_IMAGES))})")
        self.copies = copies

    @cached_property
    def fingerprint(self) -> str:
        """Of the files' content, not their times: a folder may be moved or copied between two runs."""
        return fingerprint([self.copies, [[name, file_digest(self.path(name))] for name in self.names]])

    def __len__(self) -> int:
        return len(self.names) * self.copies

    def record(self, index: int) -> Record:
        name, copy = self.names[index // self.copies], index % self.copies
        id = name if self.copies == 1 else f"{name}#{copy}"
        return Record(id, {"file": name}, images={"image": self.path(name).read_bytes()})

    def path(self, name: str) -> Path:
        """Of an image."""
        return inside(self.root, name, name)


class Pairs:
    """Pairs of a data module, one record each with the images ``before`` and ``after``.

    Args:
        data: whose pairs.
        split: which of them.
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
            # what the data set says of the change; stages that describe each image replace `captions`
            facts["difference"] = pair.captions[0]
        if pair.boxes is not None:
            sides = [[None if any(v != v for v in box) else box for box in both] for both in pair.boxes.tolist()]
            facts["true_boxes"] = sides
        images = {"before": encode_png(pair.before), "after": encode_png(pair.after)}
        return Record(pair.id, facts, images=images)


class Sentences:
    """Captions, one record each with the fact ``caption``.

    Args:
        texts: the captions, or the path of a text file with one per line, local or a URL of fsspec.

    Raises:
        DatasetNotFoundError: there is no such file.
        DataError: there is nothing in it.
    """

    def __init__(self, texts: str | Sequence[str]) -> None:
        if isinstance(texts, str):
            import fsspec

            try:
                with fsspec.open(texts, encoding="utf-8-sig", mode="r") as file:
                    texts = file.read().split("\n")  # str.splitlines would cut captions at U+2028
            except (OSError, ValueError, ImportError) as error:
                raise DatasetNotFoundError(f"{texts!r} cannot be read ({error}); expected a text file") from error
        self.texts = [text.strip() for text in texts if text.strip()]
        if not self.texts:
            raise DataError("there is no caption; expected one per line")

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
    """Photographs that come with scikit-image and scikit-learn: six real pictures for trying a pipeline out.

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
            spec = find_spec(package)  # its folder is enough: importing it costs seconds
            for folder in (spec.submodule_search_locations or [])[:1] if spec is not None else []:
                paths = [Path(folder) / file for file in files]
                self._paths.update({path.name: path for path in paths if path.is_file()})
        self.names, self.copies = sorted(self._paths), copies
        if not self.names:
            raise DatasetNotFoundError(
                "there are no sample photographs; install scikit-image, or name a folder with ImageFolder"
            )

    def path(self, name: str) -> Path:
        return self._paths[name]
