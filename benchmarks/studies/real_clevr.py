"""Does a captioner that was trained on rendered images work on CLEVR-Change's own images?

    python -m benchmarks.studies.real_clevr FOLDER [--model clevr] [--out FILE]

FOLDER contains a manifest of pairs (id, before, after, captions, change_type); each pair of the type "no_change"
shares its before image with a changed pair. Measured are

- ``auc``: how often a changed pair gets a higher change score than an unchanged one,
- ``unchanged_right``: unchanged pairs with a score below one half,
- ``type``, ``attributes``, ``value``: changed pairs whose kind of change, changed thing (all four attributes), or new
  color or material the caption has right, by the references' words,
- ``CIDEr-D`` of the changed pairs against their references, beside that of the constant caption that scores highest
  and of captions that are given to other pairs.

Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import report
from benchmarks.studies.where import interval
from lightning_idc import load
from lightning_idc.data.synthetic.grammar import parse
from lightning_idc.metrics import score_captions


def judged(caption: str, reference: str) -> dict[str, bool | None]:
    """Which facts of a reference a caption has right; None for facts that the reference lacks."""
    said, true = parse(caption), parse(reference)
    thing = true.thing
    known = thing is not None and None not in thing
    return {
        "type": said.kind == true.kind,
        "attributes": said.thing == thing if known else None,
        "value": said.value == true.value,
        "both": said.thing == thing and said.value == true.value if known else None,
    }


def cider_d(texts: list[str], references: list[list[str]]) -> float:
    """CIDEr-D of captions, times 100."""
    ids = [str(place) for place in range(len(texts))]
    scores = score_captions(dict(zip(ids, texts, strict=True)), dict(zip(ids, references, strict=True)), ("CIDEr-D",))
    return round(scores.values["CIDEr-D"], 1)


def share(verdicts: list[bool]) -> dict[str, Any]:
    return {"share": round(sum(verdicts) / len(verdicts), 3), "interval": interval(sum(verdicts), len(verdicts))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="clevr")
    parser.add_argument("--show", action="store_true", help="print captions and references")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    captioner = load(options.model, device="cpu")
    pairs = json.loads((options.folder / "manifest.json").read_text(encoding="utf-8"))["pairs"]
    said = [captioner.describe(options.folder / pair["before"], options.folder / pair["after"]) for pair in pairs]
    changed = [(pair, caption) for pair, caption in zip(pairs, said, strict=True) if pair["change_type"] != "no_change"]
    unchanged = [caption for pair, caption in zip(pairs, said, strict=True) if pair["change_type"] == "no_change"]
    high, low = ([caption.change_score or 0.0 for caption in group] for group in ([c for _, c in changed], unchanged))
    wins = sum((a > b) + 0.5 * (a == b) for a in high for b in low)
    verdicts = [judged(caption.text, pair["captions"][0]) for pair, caption in changed]
    texts, references = [caption.text for _, caption in changed], [pair["captions"] for pair, _ in changed]
    if options.show:
        for (pair, caption), score in zip(changed, low, strict=False):
            print(f"{caption.change_score:.2f} {score:.2f}  {caption.text}  |  {pair['captions'][0]}")
    constants = [
        cider_d([text] * len(texts), references) for text in sorted({text for row in references for text in row})
    ]
    result = {
        "model": options.model,
        "changed": len(changed),
        "unchanged": len(unchanged),
        "auc": round(wins / (len(high) * len(low)), 3),
        "unchanged_right": share([score < 0.5 for score in low]),
        "changed_right": share([score >= 0.5 for score in high]),
        **{
            name: share([verdict for row in verdicts if (verdict := row[name]) is not None])
            for name in ("type", "attributes", "value", "both")
        },
        "CIDEr-D": cider_d(texts, references),
        "constant": max(constants),
        "dealt": cider_d(texts[1:] + texts[:1], references),
    }
    report(result, options.out, "lightning_idc", seeds=[0])


if __name__ == "__main__":
    main()
