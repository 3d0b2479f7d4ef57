"""PairDataModule: base class of all data modules. Subclasses implement :meth:`source`."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info

from lightning_idc.data.loading import Batches, PairDataset, PairLoader, Transform
from lightning_idc.data.sampling import PairSampler
from lightning_idc.data.source import PairSource, View
from lightning_idc.data.splits import ANNOTATED_SPLITS, SPLITS, Split
from lightning_idc.data.store.decoded import cache_decoded
from lightning_idc.data.tables.record_table import num_distinct
from lightning_idc.data.transforms.robustness import Corrupted, Corruption
from lightning_idc.images.options import PLAIN, Bands, ImageOptions, ValueRange
from lightning_idc.images.resize import Interpolation
from lightning_idc.images.types import PairSample, stack_images
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError, IDCError
from lightning_idc.utils.reprs import arguments_repr

MAX_NO_CHANGE_CAPTIONS = 64


class PairDataModule(LightningDataModule):
    """Base class of all data modules of image pairs.

    Args:
        batch_size: pairs per process and step.
        num_workers: number of loader processes; 0 loads in the main process. The samples do not depend on it.
        image_size: height and width of the resized images, or one number for both; None keeps the original sizes.
        transform: augmentation of training pairs, applied after resizing.
        seed: seed of the order, the augmentation and the sampled captions.
        limit: maximum number of pairs per split; the first ones are used.
        interpolation: interpolation for resizing; published feature extractors use bicubic.
        corruption: corruption of captions or images of some splits, for robustness tests.
        group_by_size: whether batches are made of images of similar size, for captioners that accept several sizes
            (``image_size: null``); evaluation then runs in order of size.
        group_by_length: whether training batches are made of captions of similar length in words, to reduce padding.
        cache_images: folder for a cache of images decoded at ``image_size``; used only where it is faster than the
            files.
        value_range: values that are mapped to 0 and 255 for images of more than 8 bits: ``[low, high]``, ``auto``
            (minimum and maximum of the pair), ``{percentile: [2, 98]}`` or ``{center: 40, width: 400}``. None rejects
            such images.
        bands: 0-based indices of the channels to read, or ``all``; None accepts grey and colour images only.
        page: index of the image in multi-page files; None rejects such files.
        fill_nan: replacement for NaN and missing data; None rejects images that contain any.
    """

    domain = "image pairs"
    """Image domain, stored with a captioner as a description of its training data."""
    protocol = "coco"
    """Scoring protocol of the published tables, see ``lightning_idc.metrics.protocols``."""
    available_splits: tuple[Split, ...] = ANNOTATED_SPLITS
    """Splits that the data set has."""

    def __init__(
        self,
        batch_size: PositiveInt = 32,
        num_workers: NonNegativeInt = 0,
        image_size: PositiveInt | tuple[PositiveInt, PositiveInt] | None = None,
        transform: Transform | None = None,
        seed: int = 0,
        limit: PositiveInt | None = None,
        interpolation: Interpolation = "bilinear",
        corruption: Corruption | None = None,
        cache_images: str | Path | None = None,
        value_range: ValueRange | None = None,
        bands: Bands | None = None,
        page: int | None = None,
        fill_nan: float | None = None,
        group_by_size: bool = False,
        group_by_length: bool = False,
    ) -> None:
        check_arguments(PairDataModule.__init__, locals())
        super().__init__()
        self.interpolation: Interpolation = interpolation
        self.batch_size, self.num_workers, self.seed, self.limit = batch_size, num_workers, seed, limit
        self.image_size: tuple[int, int] | None = (
            (image_size, image_size) if isinstance(image_size, int) else (tuple(image_size) if image_size else None)  # type: ignore[assignment]
        )
        if group_by_size and self.image_size is not None:
            raise ConfigError(
                "group_by_size and image_size exclude each other, as image_size gives all images one size; set only one"
            )
        if group_by_size and group_by_length:
            raise ConfigError("group_by_size and group_by_length exclude each other; set only one")
        self.group_by_size, self.group_by_length = group_by_size, group_by_length
        self.image_options = ImageOptions(value_range, bands, page, fill_nan)
        self.transform, self.corruption = transform, corruption
        self.cache_images = Path(cache_images).expanduser() if cache_images is not None else None
        if self.cache_images is not None and self.image_size is None:
            raise ConfigError("cache_images needs image_size, as all cached images have one size")
        self._sources: dict[str, PairSource] = {}
        self._train_loader: PairLoader | None = None
        self._resume_position: dict[str, int] = {}

    def __repr__(self) -> str:
        # splits are not read for this: the counts are those of the splits that were used already
        counts = {split: len(source) for split, source in self._sources.items()}
        options = {name: value for name, value in self.image_options.to_dict().items() if value}
        return arguments_repr(self, **options, **({"pairs": counts} if counts else {}))

    # LightningDataModule.__str__ builds all loaders
    __str__ = __repr__

    @abstractmethod
    def source(self, split: Split) -> PairSource:
        """Build the source of a split; called once per split."""

    def may_be_uncaptioned(self, split: Split, change_type: str | None) -> bool:
        """Whether pairs of this split and type of change may lack a caption."""
        return False

    def has_unique_ids(self) -> bool:
        """Whether ids are unique across splits; False if ids number the pairs of each split."""
        return True

    def pairs_of(self, split: Split) -> PairSource:
        """Return the pairs of a split, truncated to ``limit``, with cache and corruption applied.

        Raises:
            DataError: the split is empty or has a duplicate id.
        """
        if split not in self._sources:
            source = self.source(split)
            if not len(source):
                raise DataError(f"{type(self).__name__}: the split {split!r} has no pairs")
            if num_distinct(source.ids) < len(source):
                duplicates = [name for name, count in Counter(source.ids).items() if count > 1]
                raise DataError(
                    f"{type(self).__name__}: ids must be unique in {split!r}; duplicates: {', '.join(duplicates[:5])}"
                )
            if self.limit is not None:
                source = FirstPairs(source, self.limit)
            if self.cache_images is not None and self.image_size is not None:
                source = cache_decoded(source, self.cache_images, self.image_size, self.interpolation, rank_zero_info)
            if self.corruption is not None and split in self.corruption.splits:
                source = Corrupted(source, self.corruption, self.image_size, self.interpolation)
            self._sources[split] = source
        return self._sources[split]

    def native_size(self) -> tuple[int, int] | None:
        """Return height and width of the first readable pair before resizing; None if no pair can be read."""
        first = self.first_pair()
        return None if first is None else (int(first.before.shape[1]), int(first.before.shape[2]))

    def first_pair(self) -> PairSample | None:
        """Return the first readable pair, such as to measure a captioner's features; None if no pair can be read."""
        for split in SPLITS:
            try:
                return self.pairs_of(split).load(0)
            except IDCError:
                continue
        return None

    def input_spec(self) -> dict[str, Any]:
        """Describe the training images in plain values, which checkpoints store.

        Returns:
            ``image_size`` (height, width; that of the files if ``image_size`` is None), ``interpolation``,
            ``value_range``, ``bands``, ``page``, ``fill_nan``, ``channels`` and ``domain``.
        """
        size = self.image_size or self.native_size()
        bands = self.image_options.bands
        if bands == "all":
            first = self.first_pair()
            channels = None if first is None else len(first.before)
        else:
            channels = 3 if bands is None else len(bands)
        return {
            "image_size": None if size is None else list(size),
            "interpolation": self.interpolation,
            **self.image_options.to_dict(),
            "channels": channels,
            "domain": self.domain,
        }

    def exclude(self, split: Split, ids: Collection[str]) -> None:
        """Exclude pairs from a split, such as those that an interrupted prediction has already written."""
        source = self.pairs_of(split)
        self._sources[split] = View(source, [index for index, id in enumerate(source.ids) if id not in ids])

    def train_captions(self) -> list[str]:
        """Return all captions of the training split."""
        source = self.pairs_of("train")
        return [caption for index in range(len(source)) for caption in source.captions(index)]

    def no_change_captions(self) -> list[str]:
        """Return up to 64 distinct captions of unchanged training pairs; [] if no pair is labelled as unchanged."""
        source = self.pairs_of("train")
        unchanged = (index for index in range(len(source)) if source.change_type(index) == NO_CHANGE)
        distinct = dict.fromkeys(caption for index in unchanged for caption in source.captions(index))
        return list(distinct)[:MAX_NO_CHANGE_CAPTIONS]

    def facts(self, split: Split, id: str, caption: str) -> dict[str, bool | None]:
        """Check a generated caption: for each fact, whether it is right; None if the fact does not apply."""
        return {}

    def dataset(self, split: Split) -> PairDataset:
        """Return a split as a torch dataset, with resizing and augmentation: ``data.dataset("test")[0]`` is a pair.

        The dataset works without a trainer or captioner: ``DataLoader(data.dataset("test"), collate_fn=list)``.
        """
        from lightning_idc.data.transforms.pairs import Resize

        training = split == "train"
        transforms: list[Transform] = [Resize(self.image_size, self.interpolation)] if self.image_size else []
        if training and self.transform is not None:
            transforms.append(self.transform)
        return PairDataset(self.pairs_of(split), transforms, self.seed, sample_captions=training)

    def loader(self, split: Split) -> PairLoader:
        """Build the loader of a split; the captioner's ``collate`` makes the batches."""
        dataset = self.dataset(split)
        sampler = self.sampler(split, dataset.source)
        if self.group_by_size:
            sizes = [dataset.source.image_size(index) for index in range(len(dataset))]
            sampler.group_by_size(sizes, self.batch_size)
        if self.group_by_length and split == "train":
            sampler.group_by_length(caption_lengths(dataset.source), self.batch_size)
        return PairLoader(
            dataset,
            sampler,
            self.batch_size,
            num_workers=self.num_workers,
            collate_fn=self._collate(),
            persistent_workers=self.num_workers > 0,
            pin_memory=self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
        )

    def sampler(self, split: Split, source: PairSource) -> PairSampler:
        """Build the sampler that determines the order of a split."""
        return PairSampler(len(source), shuffle=split == "train", seed=self.seed)

    def _collate(self) -> Any:
        from lightning_idc.models.captioner import PairCaptioner

        model = self.trainer.lightning_module if self.trainer is not None else None
        return model.collate if isinstance(model, PairCaptioner) else stack_samples

    @property
    def _overfits(self) -> bool:
        """Whether ``overfit_batches`` is set; Lightning would then replace the samplers of the loaders."""
        trainer: Any = self.trainer
        return trainer is not None and trainer.overfit_batches > 0

    def train_dataloader(self) -> PairLoader | Batches:
        if self._overfits:
            # set_epoch is never called on this sampler, so every epoch has the same batches
            return Batches(self.loader("train"))
        self._train_loader = self.loader("train")
        if self._resume_position:
            self._train_loader.load_state_dict(self._resume_position)
            self._resume_position = {}
        return self._train_loader

    def state_dict(self) -> dict[str, int]:
        """Return the position within the epoch.

        Lightning also saves the loader's state, but does not restore it if the number of steps was computed first, as
        every learning rate schedule does.
        """
        return {} if self._train_loader is None else self._train_loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self._resume_position = dict(state_dict)

    def val_dataloader(self) -> PairLoader | Batches:
        return Batches(self.loader("val")) if self._overfits else self.loader("val")

    def test_dataloader(self) -> PairLoader:
        return self.loader("test")

    def predict_dataloader(self) -> Batches:
        return Batches(self.loader("predict"))


class FirstPairs(View):
    """The first ``limit`` pairs of another source."""

    def __init__(self, source: PairSource, limit: int) -> None:
        super().__init__(source, range(min(limit, len(source))))

    def fingerprint(self) -> str | None:
        fingerprint = self.source.fingerprint()
        return fingerprint and f"{fingerprint}/{len(self)}"


def caption_lengths(source: PairSource) -> list[int]:
    """Count the words of the longest caption of each pair."""
    return [
        max((caption.count(" ") + 1 for caption in source.captions(index)), default=0) for index in range(len(source))
    ]


def check_no_options(options: ImageOptions, reason: str) -> None:
    """Check that no decoding option is set for data of a fixed format.

    Raises:
        ConfigError: an option differs from its default.
    """
    names = [name for name, value in options.to_dict().items() if value != PLAIN.to_dict()[name]]
    if names:
        raise ConfigError(f"{reason}; remove {names[0]}, which has no effect")


def stack_samples(samples: Sequence[PairSample]) -> dict[str, Any]:
    """Default collate function for other modules: uint8 ``images (B, 2, 3, H, W)``, ``ids`` and ``captions``."""
    return {
        "images": stack_images(samples),
        "ids": [sample.id for sample in samples],
        "captions": [sample.captions for sample in samples],
    }
