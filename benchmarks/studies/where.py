"""Does the map of `describe` locate the change?

    python -m benchmarks.studies.where [--model clevr] [--pairs 100] [--skip 130] [--out FILE]
    python -m benchmarks.studies.where --model pcb --deeppcb FOLDER --skip 0 --out FILE

Rendered test pairs, or circuit boards, with known boxes, which the captioner calls changed. Measured are

- ``pointing``: the peak of the map lies in a true box (one of the two of a thing that moved),
- ``box_recall``: true boxes that a box of the answer overlaps with an IoU of at least .3,
- ``box_precision``: boxes of the answer that a true box overlaps so.

Baselines without a captioner are the location with the largest pixel difference, and random pointing, which hits the
mean fraction of the image inside true boxes. Intervals are Wilson's, 95 %. The combination of cells and pixels was
chosen on the first 130 pairs of the split, which are skipped.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

from benchmarks.harness import report
from lightning_idc import load
from lightning_idc.data import DeepPCB, SyntheticPairs
from lightning_idc.images.types import PairSample
from lightning_idc.models.location import CELLS, Box, ChangeLocation, locate, refine
from lightning_idc.utils.boxes import box_iou

IOU = 0.3


def true_boxes(sample: PairSample) -> list[Box]:
    """Boxes of a change in both images, as fractions of width and height."""
    assert sample.boxes is not None
    height, width = sample.before.shape[1:]
    results = dict.fromkeys(tuple(box) for box in sample.boxes.reshape(-1, 4).tolist() if box[0] == box[0])
    return [(x1 / width, y1 / height, x2 / width, y2 / height) for x1, y1, x2, y2 in results]


def interval(hits: int, count: int) -> list[float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return [round(middle - half, 3), round(middle + half, 3)]


def pixels(sample: PairSample) -> ChangeLocation:
    """Baseline: all cells have equal weight, so that only pixels count."""
    return refine(torch.ones(CELLS, CELLS), sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="clevr")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--skip", type=int, default=130, help="of the first pairs, on which the method was chosen")
    parser.add_argument("--world", default="clevr_wide", help="mode of the rendered pairs")
    parser.add_argument("--deeppcb", type=Path, help="folder of DeepPCB: its test pairs in place of rendered ones")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    captioner = load(options.model, device="cpu")
    size = captioner.input_spec.size or (64, 64)
    data = DeepPCB(options.deeppcb) if options.deeppcb else SyntheticPairs(mode=options.world, render_size=size)
    source = data.pairs_of("test")
    counts = {name: {"pointing": 0, "recalled": 0, "precise": 0, "boxes": 0} for name in ("map", "pixels")}
    pairs = truths = 0
    anywhere = 0.0
    for index in range(options.skip, len(source)):
        sample = source.load(index)
        boxes = true_boxes(sample)
        if not boxes or pairs == options.pairs:
            continue
        caption = captioner.describe_all([sample])[0]
        if caption.change_score is not None and caption.change_score < 0.5:
            continue
        pairs, truths = pairs + 1, truths + len(boxes)
        anywhere += sum((box[2] - box[0]) * (box[3] - box[1]) for box in boxes)
        for name, results in (("map", locate(captioner, sample, caption.text)), ("pixels", pixels(sample))):
            count, peak = counts[name], results.peak
            count["pointing"] += peak is not None and any(
                box[0] <= peak[0] <= box[2] and box[1] <= peak[1] <= box[3] for box in boxes
            )
            count["recalled"] += sum(any(box_iou(box, other) >= IOU for other in results.boxes) for box in boxes)
            count["precise"] += sum(any(box_iou(box, other) >= IOU for other in boxes) for box in results.boxes)
            count["boxes"] += len(results.boxes)
    result = {
        "model": options.model,
        "pairs": pairs,
        "skipped": options.skip,
        "true_boxes": truths,
        "anywhere": round(anywhere / pairs, 3),
        **{
            name: {
                "pointing": round(count["pointing"] / pairs, 3),
                "pointing_interval": interval(count["pointing"], pairs),
                "box_recall": round(count["recalled"] / truths, 3),
                "box_precision": round(count["precise"] / max(1, count["boxes"]), 3),
            }
            for name, count in counts.items()
        },
    }
    report(result, options.out, "lightning_idc", seeds=[0])


if __name__ == "__main__":
    main()
