"""Corruptions of captions and images, to test the robustness of captioners and their training.

NAMC's Table 10 replaces 20, 40, 60 or 80 % of the words of training captions, and adds the Gaussian noise or fog of
ImageNet-C at severity 5 to images (Hendrycks and Dietterich: Benchmarking Neural Network Robustness, ICLR 2019).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from lightning_idc.data.source import PairSource, View
from lightning_idc.data.splits import SPLITS
from lightning_idc.images.resize import Interpolation
from lightning_idc.images.types import PairSample
from lightning_idc.metrics.no_change import NO_CHANGE, says_nothing_changed
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.reprs import arguments_repr

Severity = Literal[1, 2, 3, 4, 5]
NOISE = (0.08, 0.12, 0.18, 0.26, 0.38)
"""Standard deviations of ImageNet-C's Gaussian noise, of values in [0, 1], by severity."""
FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
"""Thickness of ImageNet-C's fog and decay of its noise with scale, by severity."""


VAGUE = (
    "something changed",
    "there is a change",
    "one thing is different",
    "the scene has changed",
    "an object is not as it was",
)
"""Sentences that are true of every changed pair."""


class Corruption:
    """Base class of corruptions of the pairs of some splits, determined by id, side and ``seed`` only.

    A corrupted data set is therefore the same in every epoch, process and run. Subclasses override :meth:`image` or
    :meth:`captions`; the defaults change nothing.

    Args:
        splits: corrupted splits.
        seed: random seed.

    Raises:
        ConfigError: a split is unknown.
    """

    def __init__(self, splits: Sequence[str], seed: int = 0) -> None:
        unknown = [split for split in splits if split not in SPLITS]
        if unknown:
            raise ConfigError(f"splits contains {unknown[0]!r}; expected some of {', '.join(SPLITS)}")
        self.splits, self.seed = tuple(splits), seed

    def __repr__(self) -> str:
        return arguments_repr(self)

    def image(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Corrupt a uint8 image ``(3, H, W)``."""
        return image

    def captions(
        self,
        captions: list[str],
        vocabulary: Callable[[], Sequence[str]],
        generator: torch.Generator,
        change_type: str | None = None,
    ) -> list[str]:
        """Corrupt the captions of a pair.

        Args:
            captions: captions of the pair.
            vocabulary: function that returns all words of the split's captions, sorted.
            generator: source of all randomness.
            change_type: type of change of the pair; None if unknown.
        """
        return captions


class ReplaceWords(Corruption):
    """Replace words of captions by other words of the split's captions.

    The paper does not specify the replacements; here each is drawn uniformly from the other words.

    Args:
        ratio: fraction of the words of each caption; the number of words is rounded.
        splits: corrupted splits.
        seed: random seed.

    Raises:
        ConfigError: the ratio is not between 0 and 1.
    """

    def __init__(self, ratio: Share = 0.2, splits: Sequence[str] = ("train",), seed: int = 0) -> None:
        check_arguments(ReplaceWords.__init__, locals())
        super().__init__(splits, seed)
        self.ratio = ratio

    def captions(
        self,
        captions: list[str],
        vocabulary: Callable[[], Sequence[str]],
        generator: torch.Generator,
        change_type: str | None = None,
    ) -> list[str]:
        words = vocabulary()
        if len(words) < 2:
            return captions
        return [" ".join(self._corrupt(caption.split(), words, generator)) for caption in captions]

    def _corrupt(self, words: list[str], vocabulary: Sequence[str], generator: torch.Generator) -> list[str]:
        corrupted = list(words)
        for position in torch.randperm(len(words), generator=generator)[: round(self.ratio * len(words))].tolist():
            # uniform over the other words: the word itself stands for the last word of the vocabulary
            index_of_word = int(torch.randint(len(vocabulary) - 1, (), generator=generator))
            corrupted[position] = (
                vocabulary[index_of_word] if vocabulary[index_of_word] != words[position] else vocabulary[-1]
            )
        return corrupted


class VagueCaptions(Corruption):
    """Replace the captions of some changed pairs by vague ones, as written by careless annotators.

    A vague caption is true of every changed pair, so a captioner trained by likelihood alone learns to generate it for
    all of them. Unchanged pairs are not affected: pairs of the type ``no_change`` or, if the type is unknown, pairs
    with captions that all say that nothing changed.

    Args:
        ratio: fraction of the changed pairs that get vague captions.
        sentences: vague sentences; each caption of a pair is replaced by one of them.
        splits: corrupted splits.
        seed: random seed.

    Raises:
        ConfigError: the ratio is not between 0 and 1, or there are no sentences.
    """

    def __init__(
        self,
        ratio: Share = 0.6,
        sentences: Sequence[str] = VAGUE,
        splits: Sequence[str] = ("train",),
        seed: int = 0,
    ) -> None:
        check_arguments(VagueCaptions.__init__, locals())
        super().__init__(splits, seed)
        if not sentences:
            raise ConfigError("sentences is empty; expected at least one vague sentence")
        self.ratio, self.sentences = ratio, list(sentences)

    def captions(
        self,
        captions: list[str],
        vocabulary: Callable[[], Sequence[str]],
        generator: torch.Generator,
        change_type: str | None = None,
    ) -> list[str]:
        vague = float(torch.rand((), generator=generator)) < self.ratio
        unchanged = all(map(says_nothing_changed, captions)) if change_type is None else change_type == NO_CHANGE
        if not vague or unchanged:
            return captions
        drawn = torch.randint(len(self.sentences), (len(captions),), generator=generator).tolist()
        # without duplicates
        return list(dict.fromkeys(self.sentences[index] for index in drawn))


class GaussianNoise(Corruption):
    """ImageNet-C's Gaussian noise, independent for the two images of a pair.

    Args:
        severity: severity from 1 to 5.
        splits: corrupted splits.
        seed: random seed.
    """

    def __init__(self, severity: Severity = 5, splits: Sequence[str] = ("test", "predict"), seed: int = 0) -> None:
        check_arguments(GaussianNoise.__init__, locals())
        super().__init__(splits, seed)
        self.deviation = NOISE[severity - 1]

    def image(self, image: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(image.shape, generator=generator) * (255 * self.deviation)
        # truncated as in ImageNet-C, not rounded
        return (image.float() + noise).clamp(0, 255).to(torch.uint8)


class Fog(Corruption):
    """ImageNet-C's fog, independent for the two images of a pair; the fog map has the size of the image.

    Args:
        severity: severity from 1 to 5.
        splits: corrupted splits.
        seed: random seed.
    """

    def __init__(self, severity: Severity = 5, splits: Sequence[str] = ("test", "predict"), seed: int = 0) -> None:
        check_arguments(Fog.__init__, locals())
        super().__init__(splits, seed)
        self.thickness, self.decay = FOG[severity - 1]

    def image(self, image: Tensor, generator: torch.Generator) -> Tensor:
        height, width = image.shape[1:]
        levels = max(1, (max(height, width) - 1).bit_length())
        fog = plasma(levels, self.decay, generator)[:height, :width]
        values = image.double() / 255
        brightest = values.max()
        thick = (values + self.thickness * fog) * brightest / (brightest + self.thickness)
        return (thick.clamp(0, 1) * 255).to(torch.uint8)


def plasma(levels: int, decay: float, generator: torch.Generator) -> Tensor:
    """Cloud-like values in [0, 1] by the diamond-square algorithm on a torus, ``(2 ** levels, 2 ** levels)``, float64.

    Args:
        levels: number of halvings of the distance between points.
        decay: decay of the noise, of which the amplitude is divided by ``decay ** 2`` per level, as in ImageNet-C.
        generator: source of all randomness.
    """
    points = torch.zeros(1, 1, dtype=torch.float64)
    for level in range(levels):
        amplitude = decay ** (-2 * level)

        def noise(like: Tensor, amplitude: float = amplitude) -> Tensor:
            return (2 * torch.rand(like.shape, generator=generator, dtype=torch.float64) - 1) * amplitude

        right, below = points.roll(-1, 1), points.roll(-1, 0)
        middles = (points + right + below + below.roll(-1, 1)) / 4 + noise(points)
        # an edge point is the mean of its two end points and of the centres of the two adjacent squares
        across = (points + right + middles + middles.roll(1, 0)) / 4 + noise(points)
        down = (points + below + middles + middles.roll(1, 1)) / 4 + noise(points)
        rows = torch.stack([torch.stack([points, across], -1), torch.stack([down, middles], -1)], 1)
        points = rows.reshape(2 * len(points), 2 * len(points))
    lowest, highest = points.min(), points.max()
    return (points - lowest) / (highest - lowest)


class Corrupted(View):
    """View of a source with corrupted images and captions.

    Args:
        source: source of the pairs.
        corruption: corruption of the pairs.
        size: height and width to which images are resized before the corruption; None keeps the original sizes.
        interpolation: interpolation for resizing.
    """

    def __init__(
        self,
        source: PairSource,
        corruption: Corruption,
        size: tuple[int, int] | None,
        interpolation: Interpolation = "bilinear",
    ) -> None:
        super().__init__(source)
        self._corruption = corruption
        self._size, self._interpolation = size, interpolation
        self._vocabulary: list[str] | None = None

    def captions(self, index: int) -> list[str]:
        captions = list(super().captions(index))
        return self._corruption.captions(
            captions, self._words, self._generator(index, "captions"), self.change_type(index)
        )

    def load(self, index: int) -> PairSample:
        from lightning_idc.data.transforms.pairs import Resize

        sample = super().load(index)
        if self._size is not None:
            sample = Resize(self._size, self._interpolation)(sample, torch.Generator())
        before, after = (
            self._corruption.image(image, self._generator(index, side))
            for side, image in (("before", sample.before), ("after", sample.after))
        )
        return replace(sample, before=before, after=after, captions=self.captions(index))

    def original(self, index: int) -> tuple[Tensor, Tensor]:
        return PairSource.original(self, index)  # corrupted, as the captioner sees them

    def _words(self) -> list[str]:
        if self._vocabulary is None:
            texts = (caption for index in range(len(self)) for caption in self.source.captions(index))
            self._vocabulary = sorted({word for text in texts for word in text.split()})
        return self._vocabulary

    def _generator(self, index: int, purpose: str) -> torch.Generator:
        text = f"{self._corruption.seed}/{self.ids[index]}/{purpose}"
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
