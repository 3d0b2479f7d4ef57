"""Pairs by editing photographs: objects are pasted, replaced, recoloured, removed and moved, with ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_idc.data.synthetic.scene import COLORS
from lightning_idc.images.resize import resize
from lightning_idc.synthesis.library import Cutout, cutouts, library_identity
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.utils.bounds import NonNegativeFloat, PositiveInt, check_arguments
from lightning_idc.utils.boxes import box_iou
from lightning_idc.utils.errors import ConfigError

Kind = Literal["replace", "recolor", "remove", "add", "move"]
KINDS: tuple[Kind, ...] = ("replace", "recolor", "remove", "add", "move")
_MAX_TRIES = 60


class PasteEdits(PipelineStage):
    """Makes a pair from one photograph: objects are blended into it, and one of them differs between both images.

    1. Crop the photograph at random, and draw squares that do not touch.
    2. Draw an edit, the object before and after it, and unchanged objects for the other squares.
    3. Paste the unchanged objects and the edited one into a copy of the crop for each image, and add noise.

    Reads ``image``; writes ``before`` and ``after``, and the facts ``nouns`` (the edited object in each image, or
    None), ``captions`` of each image, ``edit``, ``true_boxes`` and ``library``.

    Args:
        size: height and width of the images in pixels.
        kinds: edits, all equally likely.
        num_objects: minimum and maximum number of objects in an image.
        scale: minimum and maximum side of an object, as a fraction of the image's.
        library: folder of cut-outs with transparency; None for rendered objects.
        blend: OpenCV's seamless cloning, which adapts to the light of the photograph, or plain pasting.
        noise: standard deviation of independent noise of both images, in steps of 255.
        seed: random seed, as in `PipelineStage`.

    Raises:
        ConfigError: an edit is unknown, or sizes are out of range.
    """

    reads = ("image",)

    def __init__(
        self,
        size: PositiveInt = 192,
        kinds: Sequence[Kind] = KINDS,
        num_objects: tuple[PositiveInt, PositiveInt] = (2, 3),
        scale: tuple[float, float] = (0.2, 0.34),
        library: str | None = None,
        blend: Literal["paste", "clone"] = "paste",
        noise: NonNegativeFloat = 1.0,
        seed: int = 0,
    ) -> None:
        check_arguments(PasteEdits.__init__, locals())
        super().__init__(seed)
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown or not kinds:
            raise ConfigError(f"kinds is {list(kinds)}; expected one or more of {', '.join(KINDS)}")
        if not (0 < scale[0] <= scale[1] < 0.5 and 1 <= num_objects[0] <= num_objects[1]):
            raise ConfigError(
                f"num_objects is {tuple(num_objects)} and scale {tuple(scale)}; expected the minimum before the "
                "maximum, and a scale below 0.5"
            )
        largest = round(size * scale[1])
        if size - largest < 5:  # two pixels on each side, and one for the position to vary
            raise ConfigError(
                f"size is {size}; expected at least 5 pixels more than the {largest} of the largest object"
            )
        self.size, self.kinds, self.num_objects, self.scale = size, tuple(kinds), tuple(num_objects), tuple(scale)
        self.library, self.blend, self.noise = library, blend, noise
        self._cutouts: tuple[Cutout, ...] = ()
        self._identity = ""

    def settings(self) -> dict[str, Any]:
        return {
            "model": "PasteEdits",
            "size": self.size,
            "kinds": list(self.kinds),
            "num_objects": list(self.num_objects),
            "scale": list(self.scale),
            "library": library_identity(self.library),
            "blend": self.blend,
            "noise": self.noise,
        }

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self._cutouts, self._identity = cutouts(self.library), library_identity(self.library)
        needed = self.num_objects[1] + 1  # one per position, and a replacement
        if len(self._cutouts) < needed:
            raise ConfigError(
                f"{self.library or 'the library of rendered objects'} has {len(self._cutouts)} cut-outs, and a pair "
                f"needs {needed}; add some, or set the maximum of num_objects to {len(self._cutouts) - 1}"
            )

    def pixels_per_record(self) -> int:
        return 2 * self.size**2

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            self._edit(record, record_generator(self.seed, record.id))
        return records

    def _edit(self, record: Record, rng: np.random.Generator) -> None:
        kind = self.kinds[int(rng.integers(len(self.kinds)))]
        num_objects = int(rng.integers(self.num_objects[0], self.num_objects[1] + 1))
        squares = self._sample_squares(rng, num_objects + 1)
        if len(squares) < 2:
            record.drop("no room for objects", len(squares), "2 squares")
            return
        move_target = squares.pop()
        cutouts = [self._cutouts[int(i)] for i in rng.choice(len(self._cutouts), len(squares) + 1, replace=False)]
        old, new = cutouts[0], cutouts.pop()
        if kind == "recolor":
            new = _recolored(old, rng)
        objects = None if kind == "add" else old, {"remove": None, "move": old, "add": old}.get(kind, new)
        targets = squares[0], move_target if kind == "move" else squares[0]
        unchanged = list(zip(cutouts[1:], squares[1:], strict=True))
        background = _cropped(record.image("image"), self.size, rng)
        images: list[Tensor] = []
        boxes: list[list[int] | None] = []
        for edited, target in zip(objects, targets, strict=True):
            image, box = background, None
            for cutout, square in unchanged:
                image, _ = self._paste(image, cutout, square)
            if edited is not None:
                image, box = self._paste(image, edited, target)
            images.append(_noisy(image, self.noise, rng))
            boxes.append(box)
        record.put("before", images[0])
        record.put("after", images[1])
        record.remove("image")  # the photograph is not needed any more
        names = [None if edited is None else edited.name for edited in objects]
        record.facts["edit"], record.facts["library"], record.facts["nouns"] = kind, self._identity, names
        other_names = [cutout.name for cutout, _ in unchanged]
        record.facts["captions"] = [_sentence([name, *other_names]) for name in names]
        record.facts["true_boxes"] = [[boxes[0], None], [None, boxes[1]]] if kind == "move" else [boxes]

    def _sample_squares(self, rng: np.random.Generator, count: int) -> list[tuple[int, int, int]]:
        """Up to ``count`` squares (x, y, side) that do not touch."""
        squares: list[tuple[int, int, int]] = []
        for _ in range(_MAX_TRIES):
            side = round(self.size * rng.uniform(self.scale[0], self.scale[1]))
            x, y = (int(rng.integers(2, self.size - side - 2)) for _ in range(2))
            padded = (x - 6, y - 6, x + side + 6, y + side + 6)
            if all(box_iou(padded, (a, b, a + s, b + s)) == 0 for a, b, s in squares):
                squares.append((x, y, side))
            if len(squares) == count:
                break
        return squares

    def _paste(self, image: Tensor, cutout: Cutout, square: tuple[int, int, int]) -> tuple[Tensor, list[int]]:
        x, y, side = square
        scaled = cutout.scaled(side)
        height, width = scaled.image.shape[1:]
        box = [x, y, x + width, y + height]
        region = slice(None), slice(y, y + height), slice(x, x + width)
        result = image.clone()
        if self.blend == "clone":
            result = _cloned(image, scaled, x, y)
        else:
            blended = scaled.alpha * scaled.image + (1 - scaled.alpha) * image[region]
            result[region] = blended.round().to(torch.uint8)
        return result, box


class RandomCrops(PipelineStage):
    """Crops a random square of each photograph, sometimes mirrored; replaces ``image``.

    Args:
        size: height and width of the crop in pixels.
        seed: random seed, as in `PipelineStage`.
    """

    reads = ("image",)

    def __init__(self, size: PositiveInt = 192, seed: int = 0) -> None:
        check_arguments(RandomCrops.__init__, locals())
        super().__init__(seed)
        self.size = size

    def settings(self) -> dict[str, Any]:
        return {"size": self.size}

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            record.put("image", _cropped(record.image("image"), self.size, record_generator(self.seed, record.id)))
        return records


def _cloned(image: Tensor, cutout: Cutout, x: int, y: int) -> Tensor:
    import cv2

    height, width = cutout.image.shape[1:]
    mask = ((cutout.alpha > 0.5).numpy() * 255).astype(np.uint8)
    source = np.ascontiguousarray(cutout.image.permute(1, 2, 0).numpy())
    target = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    centre = (x + width // 2, y + height // 2)
    # mixed gradients would show the background; MONOCHROME would lose the colour
    return torch.from_numpy(cv2.seamlessClone(source, target, mask, centre, cv2.NORMAL_CLONE)).permute(2, 0, 1)


def _cropped(image: Tensor, size: int, rng: np.random.Generator) -> Tensor:
    """A random square of a photograph, its side at least half the shorter side, mirrored with probability 0.5."""
    height, width = image.shape[1:]
    side = round(min(height, width) * rng.uniform(0.5, 1.0))
    y, x = int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1))
    square = resize(image[:, y : y + side, x : x + side], (size, size))
    return square.flip(2) if rng.random() < 0.5 else square


def _noisy(image: Tensor, deviation: float, rng: np.random.Generator) -> Tensor:
    noise = torch.from_numpy(rng.normal(0, 1, tuple(image.shape)).astype(np.float32)) * deviation
    return (image + noise).round().clamp(0, 255).to(torch.uint8)


def _recolored(cutout: Cutout, rng: np.random.Generator) -> Cutout:
    """A cut-out in another named colour."""
    words = cutout.name.split()
    old = next((word for word in words if word in COLORS), None)
    names = [name for name in COLORS if name != old]
    new = names[int(rng.integers(len(names)))]
    source = torch.tensor(COLORS[old], dtype=torch.float32) if old else cutout.image.float().mean((1, 2))
    target = torch.tensor(COLORS[new], dtype=torch.float32)
    gray = cutout.image.float().mean(0)
    # keep the shading of the object; scaling each channel would leave a channel near zero dark
    shaded = gray / source.mean().clamp(min=1) * target[:, None, None]
    image = shaded.round().clamp(0, 255).to(torch.uint8)
    name = cutout.name.replace(old, new) if old else f"{new} {cutout.name}"
    return Cutout(name, image, cutout.alpha)


def _sentence(names: Sequence[str | None]) -> str:
    present = [name for name in names if name is not None]
    listed = ", ".join(f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in present)
    return f"a photo with {listed}" if present else "a photo"
