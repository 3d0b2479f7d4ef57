"""Is the same pair described alike whatever size its files have?

    python benchmarks/sizes.py [--model clevr] [--pairs 100] [--out results/sizes.json]

Rendered test pairs as files of the captioner's own size and 2, 4 and 8 times as large (by Lanczos). Counted are
pairs that get the same caption as at their own size, and the same answer to whether anything changed.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from _harness import report
from PIL import Image

from lightning_idc import load
from lightning_idc.data import SyntheticPairs

FACTORS = (1, 2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="clevr")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # that files are far larger than the training is what is tested
    captioner, source = load(options.model), SyntheticPairs().pairs_of("test")
    said: dict[int, list[Any]] = {factor: [] for factor in FACTORS}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(options.pairs):
            sample = source.load(index)
            for factor in FACTORS:
                files = []
                for side, image in (("before", sample.before), ("after", sample.after)):
                    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
                    size = (picture.width * factor, picture.height * factor)
                    files.append(Path(folder, f"{side}.png"))
                    picture.resize(size, Image.Resampling.LANCZOS).save(files[-1])
                said[factor].append(captioner.describe(*files))
    own = said[1]
    result = {
        "model": options.model,
        "pairs": options.pairs,
        **{
            f"x{factor}": {
                "same_caption": sum(one.text == other.text for one, other in zip(own, said[factor], strict=True)),
                "same_change": sum(
                    (one.change_score >= 0.5) == (other.change_score >= 0.5)
                    for one, other in zip(own, said[factor], strict=True)
                ),
            }
            for factor in FACTORS
        },
    }
    report(result, options.out, "pillow", seeds=[0])


if __name__ == "__main__":
    main()
