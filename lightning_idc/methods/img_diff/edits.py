"""Pairs by editing photographs: things are pasted, replaced, recoloured, removed and moved, and the truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_idc.data.synthetic.geometry import box_iou
from lightning_idc.data.synthetic.scene import COLORS
from lightning_idc.images.resize import resize
from lightning_idc.synthesis.library import Cutout, cutouts, library_identity
from lightning_idc.synthesis.records import Record, record_seed
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.utils.errors import ConfigError, check_choice, check_number

Kind = Literal["replace", "recolor", "remove", "add", "move"]
KINDS: tuple[Kind, ...] = ("replace", "recolor", "remove", "add", "move")
_TRIES = 60


class PasteEdits(PipelineStage):
    """Makes a pair of a photograph: things are blended into it, and one of them differs between before and after.

    Reads ``image``; writes ``before`` and ``after``, the facts ``nouns`` (what stands at the changed place in either
    picture, None for nothing), ``captions`` of either picture, ``edit``, ``true_boxes`` and ``library``.

    Args:
        size: height and width of the pictures, pixels.
        kinds: edits, all equally likely.
        things: least and greatest number of things in a picture.
        scale: least and greatest side of a thing, as a share of the picture's.
        library: folder of cut-outs with transparency; None for rendered things.
        blend: OpenCV's seamless cloning, which takes on the light of the photograph, or plain pasting.
        noise: standard deviation of the noise that both pictures get, each its own, in steps of 255.
        seed: see `PipelineStage`.

    Raises:
        ConfigError: a kind is unknown, or sizes are out of range.
    """

    reads = ("image",)

    def __init__(
        self,
        size: int = 192,
        kinds: Sequence[Kind] = KINDS,
        things: tuple[int, int] = (2, 3),
        scale: tuple[float, float] = (0.2, 0.34),
        library: str | None = None,
        blend: Literal["paste", "clone"] = "paste",
        noise: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown or not kinds:
            raise ConfigError(f"kinds is {list(kinds)}; expected some of {', '.join(KINDS)}")
        if not (0 < scale[0] <= scale[1] < 0.5 and 1 <= things[0] <= things[1]):
            raise ConfigError(
                f"things is {tuple(things)} and scale {tuple(scale)}; expected rising and below half a side"
            )
        check_choice("blend", blend, ("paste", "clone"))
        check_number("noise", noise, minimum=0)
        largest = round(size * scale[1])
        if size - largest < 5:  # two pixels at either side, and a place to choose
            raise ConfigError(
                f"size is {size}; expected at least 5 pixels more than the {largest} of the largest thing; take a "
                "larger size"
            )
        self.size, self.kinds, self.things, self.scale = size, tuple(kinds), tuple(things), tuple(scale)
        self.library, self.blend, self.noise = library, blend, noise
        self._cutouts: tuple[Cutout, ...] = ()
        self._identity = ""

    def settings(self) -> dict[str, Any]:
        return {
            "model": "PasteEdits",
            "size": self.size,
            "kinds": list(self.kinds),
            "things": list(self.things),
            "scale": list(self.scale),
            "library": library_identity(self.library),
            "blend": self.blend,
            "noise": self.noise,
        }

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self._cutouts, self._identity = cutouts(self.library), library_identity(self.library)
        needed = self.things[1] + 1  # one for each place, and one that comes instead
        if len(self._cutouts) < needed:
            raise ConfigError(
                f"{self.library or 'the library of rendered things'} holds {len(self._cutouts)} cut-outs, and a pair "
                f"needs {needed}; add some, or let things end at {len(self._cutouts) - 1}"
            )

    def pixels_per_record(self) -> int:
        return 2 * self.size**2

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            self._edit(record, record_seed(self.seed, record.id))
        return records

    def _edit(self, record: Record, rng: np.random.Generator) -> None:
        kind = self.kinds[int(rng.integers(len(self.kinds)))]
        count = int(rng.integers(self.things[0], self.things[1] + 1))
        places = self._places(rng, count + 1)
        if len(places) < 2:
            record.drop("no room for things", len(places), "2 places")
            return
        spare = places.pop()  # where a thing moves to
        things = [self._cutouts[int(i)] for i in rng.choice(len(self._cutouts), len(places) + 1, replace=False)]
        old, new = things[0], things.pop()
        if kind == "recolor":
            new = _recolored(old, rng)
        first = None if kind == "add" else old
        second = {"remove": None, "move": old, "add": old}.get(kind, new)
        others = list(zip(things[1:], places[1:], strict=True))
        targets = places[0], spare if kind == "move" else places[0]
        ground = _cropped(record.image("image"), self.size, rng)
        pictures, boxes = [], []
        for thing, place in zip((first, second), targets, strict=True):
            picture, box = ground, None
            for cutout, spot in others:
                picture, _ = self._paste(picture, cutout, spot)
            if thing is not None:
                picture, box = self._paste(picture, thing, place)
            pictures.append(_noisy(picture, self.noise, rng))
            boxes.append(box)
        record.put("before", pictures[0])
        record.put("after", pictures[1])
        record.remove("image")  # the photograph itself is not needed again
        around = [cutout.name for cutout, _ in others]
        names = [None if thing is None else thing.name for thing in (first, second)]
        record.facts["edit"], record.facts["library"] = kind, self._identity
        record.facts["nouns"] = names
        record.facts["captions"] = [_sentence([name, *around]) for name in names]
        moved = kind == "move"
        record.facts["true_boxes"] = [[boxes[0], None], [None, boxes[1]]] if moved else [[boxes[0], boxes[1]]]

    def _places(self, rng: np.random.Generator, count: int) -> list[tuple[int, int, int]]:
        """Squares x, y, side that do not touch."""
        found: list[tuple[int, int, int]] = []
        for _ in range(_TRIES):
            side = round(self.size * rng.uniform(self.scale[0], self.scale[1]))
            x, y = (int(rng.integers(2, self.size - side - 2)) for _ in range(2))
            grown = (x - 6, y - 6, x + side + 6, y + side + 6)
            if all(box_iou(grown, (a, b, a + s, b + s)) == 0 for a, b, s in found):
                found.append((x, y, side))
            if len(found) == count:
                break
        return found

    def _paste(self, picture: Tensor, cutout: Cutout, place: tuple[int, int, int]) -> tuple[Tensor, list[int]]:
        x, y, side = place
        thing = cutout.scaled(side)
        height, width = thing.image.shape[1:]
        box = [x, y, x + width, y + height]
        part = slice(None), slice(y, y + height), slice(x, x + width)
        result = picture.clone()
        if self.blend == "clone":
            result = _cloned(picture, thing, x, y)
        else:
            mixed = thing.alpha * thing.image + (1 - thing.alpha) * picture[part]
            result[part] = mixed.round().to(torch.uint8)
        return result, box


class RandomCrops(PipelineStage):
    """Takes a random square out of each photograph, sometimes mirrored; the picture ``image`` is replaced.

    Args:
        size: height and width of the pictures, pixels.
        seed: see `PipelineStage`.
    """

    reads = ("image",)

    def __init__(self, size: int = 192, seed: int = 0) -> None:
        super().__init__(seed)
        self.size = size

    def settings(self) -> dict[str, Any]:
        return {"size": self.size}

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            record.put("image", _cropped(record.image("image"), self.size, record_seed(self.seed, record.id)))
        return records


def _cloned(picture: Tensor, thing: Cutout, x: int, y: int) -> Tensor:
    import cv2

    height, width = thing.image.shape[1:]
    mask = ((thing.alpha > 0.5).numpy() * 255).astype(np.uint8)
    source = np.ascontiguousarray(thing.image.permute(1, 2, 0).numpy())
    target = np.ascontiguousarray(picture.permute(1, 2, 0).numpy())
    centre = (x + width // 2, y + height // 2)
    # mixed gradients would let the ground shine through; MONOCHROME would lose the colour
    return torch.from_numpy(cv2.seamlessClone(source, target, mask, centre, cv2.NORMAL_CLONE)).permute(2, 0, 1)


def _cropped(image: Tensor, size: int, rng: np.random.Generator) -> Tensor:
    """A random square of a photograph, at least half its shorter side, sometimes mirrored."""
    height, width = image.shape[1:]
    side = round(min(height, width) * rng.uniform(0.5, 1.0))
    y, x = int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1))
    part = resize(image[:, y : y + side, x : x + side], (size, size))
    return part.flip(2) if rng.random() < 0.5 else part


def _noisy(picture: Tensor, deviation: float, rng: np.random.Generator) -> Tensor:
    noise = torch.from_numpy(rng.normal(0, 1, tuple(picture.shape)).astype(np.float32)) * deviation
    return (picture + noise).round().clamp(0, 255).to(torch.uint8)


def _recolored(cutout: Cutout, rng: np.random.Generator) -> Cutout:
    """The thing with another named colour: each channel scaled by what lies between the two names."""
    words = cutout.name.split()
    old = next((word for word in words if word in COLORS), None)
    names = [name for name in COLORS if name != old]
    new = names[int(rng.integers(len(names)))]
    source = torch.tensor(COLORS[old], dtype=torch.float32) if old else cutout.image.float().mean((1, 2))
    target = torch.tensor(COLORS[new], dtype=torch.float32)
    gray = cutout.image.float().mean(0)
    # the shading of the thing in the new colour; scaling the old channels would leave dark ones dark
    shaded = gray / source.mean().clamp(min=1) * target[:, None, None]
    image = shaded.round().clamp(0, 255).to(torch.uint8)
    name = cutout.name.replace(old, new) if old else f"{new} {cutout.name}"
    return Cutout(name, image, cutout.alpha)


def _sentence(names: Sequence[str | None]) -> str:
    present = [name for name in names if name is not None]
    listed = ", ".join(f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in present)
    return f"a photo with {listed}" if present else "a photo"
