"""Corruptions of captions and images, as one option of any data module: how robust is a captioner, and its training?

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
from lightning_idc.images.resize import Interpolation
from lightning_idc.images.types import PairSample
from lightning_idc.metrics.no_change import NO_CHANGE, says_nothing_changed
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import ConfigError

Severity = Literal[1, 2, 3, 4, 5]
SPLITS = ("train", "val", "test", "predict")
NOISE = (0.08, 0.12, 0.18, 0.26, 0.38)
"""Standard deviations of ImageNet-C's Gaussian noise, of values in [0, 1], by severity."""
FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
"""Thickness of ImageNet-C's fog, and how fast it smooths with scale, by severity."""


VAGUE = (
    "something changed",
    "there is a change",
    "one thing is different",
    "the scene has changed",
    "an object is not as it was",
)
"""Sentences that are true of every changed pair."""


class Corruption:
    """Corrupts the pairs of some splits, each in a way that depends on its id, its side and ``seed`` alone.

    So a corrupted data set is the same in every epoch, process and run. Subclasses write :meth:`image`, or
    :meth:`captions`; as they stand here they change nothing.

    Args:
        splits: that are corrupted.
        seed: of all chance.

    Raises:
        ConfigError: a split is unknown.
    """

    def __init__(self, splits: Sequence[str], seed: int = 0) -> None:
        unknown = [split for split in splits if split not in SPLITS]
        if unknown:
            raise ConfigError(f"splits names {unknown[0]!r}; expected some of {', '.join(SPLITS)}")
        self.splits, self.seed = tuple(splits), seed

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
            captions: of the pair.
            vocabulary: gives all words of the split's captions, in order.
            generator: of all chance.
            change_type: of the pair; None where it is not known.
        """
        return captions


class ReplaceWords(Corruption):
    """Replaces words of captions by others that the split's captions use.

    The paper says how many tokens are replaced, not by what: here each is drawn evenly from the other words.

    Args:
        ratio: of the words of each caption, rounded to whole ones.
        splits: that are corrupted.
        seed: of all chance.

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
        known = vocabulary()
        if len(known) < 2:
            return captions
        return [" ".join(self._corrupt(caption.split(), known, generator)) for caption in captions]

    def _corrupt(self, words: list[str], vocabulary: Sequence[str], generator: torch.Generator) -> list[str]:
        corrupted = list(words)
        for place in torch.randperm(len(words), generator=generator)[: round(self.ratio * len(words))].tolist():
            # one of the others: the word itself changes places with the last of the vocabulary
            drawn = int(torch.randint(len(vocabulary) - 1, (), generator=generator))
            corrupted[place] = vocabulary[drawn] if vocabulary[drawn] != words[place] else vocabulary[-1]
        return corrupted


class VagueCaptions(Corruption):
    """Replaces the captions of some changed pairs by vague ones, as careless annotators write them.

    A vague caption is true of every changed pair, so a captioner that learns from likelihood alone says it of all of
    them. Unchanged pairs are left as they are: those of the type ``no_change``, and, where the type of a pair is not
    known, those whose captions all say that nothing changed.

    Args:
        ratio: of the changed pairs that become vague.
        sentences: vague ones; each caption of a pair becomes one of them.
        splits: that are corrupted.
        seed: of all chance.

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
            raise ConfigError("sentences is empty; give at least one vague sentence")
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
        places = torch.randint(len(self.sentences), (len(captions),), generator=generator).tolist()
        # a pair names no caption twice
        return list(dict.fromkeys(self.sentences[place] for place in places))


class GaussianNoise(Corruption):
    """ImageNet-C's Gaussian noise, drawn for each image of a pair on its own.

    Args:
        severity: 1 to 5.
        splits: that are corrupted.
        seed: of all chance.
    """

    def __init__(self, severity: Severity = 5, splits: Sequence[str] = ("test", "predict"), seed: int = 0) -> None:
        check_arguments(GaussianNoise.__init__, locals())
        super().__init__(splits, seed)
        self.deviation = NOISE[severity - 1]

    def image(self, image: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(image.shape, generator=generator) * (255 * self.deviation)
        # ImageNet-C cuts off the fraction when it stores bytes
        return (image.float() + noise).clamp(0, 255).to(torch.uint8)


class Fog(Corruption):
    """ImageNet-C's fog, drawn for each image of a pair on its own; its map is as large as the image needs.

    Args:
        severity: 1 to 5.
        splits: that are corrupted.
        seed: of all chance.
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
        levels: halvings of the distance between points.
        decay: the noise of each level is this factor squared below that of the level before, as in ImageNet-C.
        generator: of all chance.
    """
    points = torch.zeros(1, 1, dtype=torch.float64)
    for level in range(levels):
        amplitude = decay ** (-2 * level)

        def wobble(like: Tensor, amplitude: float = amplitude) -> Tensor:
            return (2 * torch.rand(like.shape, generator=generator, dtype=torch.float64) - 1) * amplitude

        right, below = points.roll(-1, 1), points.roll(-1, 0)
        middles = (points + right + below + below.roll(-1, 1)) / 4 + wobble(points)
        # a point between two others also has the middles of the squares on both sides of it
        across = (points + right + middles + middles.roll(1, 0)) / 4 + wobble(points)
        down = (points + below + middles + middles.roll(1, 1)) / 4 + wobble(points)
        rows = torch.stack([torch.stack([points, across], -1), torch.stack([down, middles], -1)], 1)
        points = rows.reshape(2 * len(points), 2 * len(points))
    lowest, highest = points.min(), points.max()
    return (points - lowest) / (highest - lowest)


class Corrupted(View):
    """The pairs of another source, corrupted.

    Args:
        source: of the pairs.
        corruption: what is done to them.
        size: height and width that images have before they are corrupted; None leaves them.
        interpolation: how images are scaled.
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
        own = list(super().captions(index))
        return self._corruption.captions(own, self._words, self._generator(index, "captions"), self.change_type(index))

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

    def _words(self) -> list[str]:
        if self._vocabulary is None:
            texts = (caption for place in range(len(self)) for caption in self.source.captions(place))
            self._vocabulary = sorted({word for text in texts for word in text.split()})
        return self._vocabulary

    def _generator(self, index: int, what: str) -> torch.Generator:
        text = f"{self._corruption.seed}/{self.ids[index]}/{what}"
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
