"""Does the caption of a pair depend on the size and the borders of its files?

    python -m benchmarks.studies.sizes [--model clevr] [--pairs 100] [--out FILE]

Rendered test pairs as files of the captioner's own size and 2, 4 and 8 times as large (by Lanczos), and twice as large
on a canvas of another aspect ratio: 16:9 in black with the image in the centre, 3:4 in white with the image at the top,
and the first one again as JPEG. Measured are the pairs with the same caption, and with the same decision whether
anything changed, as at their original size.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.harness import report
from lightning_idc import load
from lightning_idc.data import SyntheticPairs

FACTORS = (1, 2, 4, 8)
PADDED = {"16:9 black": (16 / 9, "black", 0.5), "3:4 white": (3 / 4, "white", 0.0), "16:9 JPEG": (16 / 9, "black", 0.5)}
"""Aspect, colour, and which share of the border stands before the picture."""


def scaled(picture: Image.Image, factor: int) -> Image.Image:
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.LANCZOS)


def padded(picture: Image.Image, aspect: float, colour: str, before: float) -> Image.Image:
    """An image on a canvas of another aspect ratio."""
    size = max(picture.width, round(picture.height * aspect)), max(picture.height, round(picture.width / aspect))
    canvas = Image.new("RGB", size, colour)
    canvas.paste(picture, (round((size[0] - picture.width) * before), round((size[1] - picture.height) * before)))
    return canvas


def forms(picture: Image.Image) -> Iterator[tuple[str, Image.Image, str]]:
    """Name, image and suffix of every kind of file."""
    for factor in FACTORS:
        yield f"x{factor}", scaled(picture, factor), "png"
    for name, how in PADDED.items():
        yield name, padded(scaled(picture, 2), *how), "jpg" if name.endswith("JPEG") else "png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="clevr")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # that files are far larger than the training is what is tested
    captioner = load(options.model)
    world = SyntheticPairs("clevr_wide", test_pairs=options.pairs, render_size=captioner.input_spec.size or 64)
    source = world.pairs_of("test")
    captions: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(options.pairs):
            sample = source.load(index)
            sides = [
                forms(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()))
                for image in (sample.before, sample.after)
            ]
            for (name, before, ending), (_, after, _) in zip(*sides, strict=True):
                files = [Path(folder, f"{side}.{ending}") for side in ("before", "after")]
                for file, picture in zip(files, (before, after), strict=True):
                    picture.save(file, **({"quality": 92} if ending == "jpg" else {}))
                captions.setdefault(name, []).append(captioner.describe(*files))
    own = captions["x1"]
    result = {
        "model": options.model,
        "pairs": options.pairs,
        **{
            name: {
                "same_caption": sum(one.text == other.text for one, other in zip(own, results, strict=True)),
                "same_change": sum(
                    (one.change_score >= 0.5) == (other.change_score >= 0.5)
                    for one, other in zip(own, results, strict=True)
                ),
            }
            for name, results in captions.items()
        },
    }
    report(result, options.out, "pillow", seeds=[0])


if __name__ == "__main__":
    main()
