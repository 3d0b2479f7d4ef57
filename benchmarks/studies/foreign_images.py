"""What does a captioner generate for images outside of its domain?

    python -m benchmarks.studies.foreign_images FOLDER... [--model clevr] [--out FILE]

Each FOLDER contains a manifest of changed pairs (before, after, captions, mask). The control of a pair is its first
image with itself. Measured per folder are the fractions of pairs and of controls that the captioner calls changed (if
it has a change score), distinct captions, CIDEr-D compared with a constant caption selected on the same references and
captions that are given to other pairs, and, where there are masks, how often the most important place lies in the mask,
beside the mean share of the image that the mask covers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import report
from benchmarks.studies.real_clevr import cider_d
from benchmarks.studies.where import interval
from lightning_idc import load
from lightning_idc.images.read import read_image
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.location import locate


def measure(captioner: PairCaptioner, folder: Path) -> dict[str, Any]:
    pairs = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["pairs"]
    texts, scores, controls, hits, covered = [], [], [], [], []
    for pair in pairs:
        before, after = folder / pair["before"], folder / pair["after"]
        sample = captioner.input_spec.read(before, after)
        caption = captioner.describe_all([sample])[0]
        texts.append(caption.text)
        scores.append(caption.change_score)
        controls.append(captioner.describe(before, before).change_score)
        if "mask" in pair:
            mask = read_image(folder / pair["mask"])[0] > 127
            peak = locate(captioner, sample, caption.text).peak
            row, column = (0, 0) if peak is None else (int(peak[1] * mask.shape[0]), int(peak[0] * mask.shape[1]))
            hits.append(peak is not None and bool(mask[row, column]))
            covered.append(float(mask.float().mean()))
    results: dict[str, Any] = {"pairs": len(pairs), "distinct": len(set(texts)), "first": texts[:3]}
    if None not in scores:
        for name, values in (("called_changed", scores), ("controls_called_changed", controls)):
            count = sum((value or 0.0) >= 0.5 for value in values)
            results[name] = {"share": round(count / len(values), 3), "interval": interval(count, len(values))}
    if hits:
        results["pointing"] = {"share": round(sum(hits) / len(hits), 3), "interval": interval(sum(hits), len(hits))}
        results["mask_covers"] = round(sum(covered) / len(covered), 3)
    references = [pair["captions"] for pair in pairs]
    if all(references):
        constants = [cider_d([text] * len(pairs), references) for text in sorted({row[0] for row in references})]
        results |= {"CIDEr-D": cider_d(texts, references), "constant": max(constants)}
        results["dealt"] = cider_d(texts[1:] + texts[:1], references)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--model", default="clevr")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    captioner = load(options.model, device="cpu")
    results = {folder.name: measure(captioner, folder) for folder in options.folders}
    report({"model": options.model, "folders": results}, options.out, "lightning_idc", seeds=[0])


if __name__ == "__main__":
    main()
