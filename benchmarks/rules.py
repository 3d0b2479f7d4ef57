"""How often do the rules describe a change correctly, and what does an answer cost?

    python -m benchmarks.rules --data DIR [--pairs 200] [--boards 200] [--out FILE]

DIR contains folders `aurora_magicbrush`, `clevr_change`, `levir_cc`, `rs_change_masks` with a manifest.json each, and
`deeppcb` in its official layout; missing ones are skipped. The thresholds of the rules were chosen on the first 24
pairs of `aurora_magicbrush`, and on rendered pairs of the training split; the other 26 MagicBrush
pairs (other photographs) and the validation split of rendered pairs are held out.

- Nothing changed: the fraction of identical pairs, and of pairs of a PNG and its JPEG, without a detected region.
- MagicBrush: the fraction of edits with a region, and how often the largest region has the kind of
  the instruction, which rules infer from its verb (:func:`instruction_kind`); edits of another kind are not counted.
- Rendered pairs and CLEVR-Change: whether a pair changed, its kind, and whether a region overlaps the change.
- DeepPCB: the fraction of the defects that overlap a region, and of the regions that overlap a defect.
- Satellite pairs with a mask: the fraction of the changed parts that overlap a region.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402 - after the number of threads is set
from PIL import Image  # noqa: E402
from scipy import ndimage  # noqa: E402

from lightning_idc.rules import Description, describe_changes  # noqa: E402

TUNED = 24
"""Pairs of aurora_magicbrush, from the first one, on which the thresholds were chosen."""
COLOURS = "black|white|red|green|blue|brown|yellow|orange|pink|purple|gr[ae]y|silver|gold(?:en)?"
_VERBS = (
    ("removed", r"\b(?:remove|delete|erase|take away|get rid of)\b"),
    ("moved", r"\b(?:move|shift|swap)\b"),
    ("recoloured", rf"\b(?:make|let|change|turn|paint)\b.*\b(?:{COLOURS})\b(?!.*\b(?:sports|vr)\b)"),
    ("added", r"\b(?:add|insert)\b|^(?:give|have there be|let there be)\b"),
    ("added", r"^put (?!down|the|on)|\b(?:wear|using an?|have an?|hold)\b"),
)
RENDERED = {"add": "added", "drop": "removed", "move": "moved", "color": "recoloured", "texture": "texture"}
Box = Sequence[float]


def instruction_kind(instruction: str) -> str | None:
    """Kind of change of an instruction, inferred from its verb; None for other kinds, such as replacements."""
    text = instruction.lower().strip()
    return next((kind for kind, pattern in _VERBS if re.search(pattern, text)), None)


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes share a pixel."""
    return min(one[2], other[2]) > max(one[0], other[0]) and min(one[3], other[3]) > max(one[1], other[1])


def percent(hits: int, total: int) -> dict[str, Any]:
    """A fraction in percent with its counts."""
    return {"percent": round(100 * hits / total, 1) if total else None, "hits": hits, "of": total}


def boxes_of(answer: Description) -> list[Box]:
    """Boxes of all regions, before and after."""
    return [box for region in answer.regions for box in (region.box, region.box_after)]


def re_encoded(path: Path, quality: int) -> tuple[bytes, bytes]:
    """An image as PNG and as JPEG."""
    picture = Image.open(path).convert("RGB")
    streams = io.BytesIO(), io.BytesIO()
    picture.save(streams[0], "PNG")
    picture.save(streams[1], "JPEG", quality=quality)
    return streams[0].getvalue(), streams[1].getvalue()


def manifest(folder: Path) -> list[dict[str, Any]]:
    """Pairs of a folder with image paths."""
    pairs = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["pairs"]
    return [{**pair, **{name: folder / pair[name] for name in ("before", "after", "mask") if pair.get(name)}}
            for pair in pairs]  # fmt: skip


def magicbrush(folder: Path) -> dict[str, Any]:
    """Edits of photographs, separately for the pairs that thresholds were chosen on and the held-out pairs."""
    pairs = manifest(folder)
    return {"tuning": edits(pairs[:TUNED]), "held back": edits(pairs[TUNED:])}


def edits(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of one part of MagicBrush."""
    quiet: Counter[str] = Counter()
    kinds: Counter[tuple[str, str]] = Counter()
    regions = 0
    for pair in pairs:
        quiet["the same file"] += not describe_changes(pair["before"], pair["before"]).changed
        for quality in (95, 75):
            for side in ("before", "after"):
                quiet[f"JPEG {quality}"] += not describe_changes(*re_encoded(pair[side], quality)).changed
        answer = describe_changes(pair["before"], pair["after"], resize=True)
        regions += answer.changed
        if kind := instruction_kind(pair["captions"][0]):
            kinds[kind, answer.regions[0].kind if answer.changed else "nothing"] += 1
    return {
        "pairs": len(pairs),
        "nothing changed": {
            name: percent(count, len(pairs) * (1 if name == "the same file" else 2)) for name, count in quiet.items()
        },
        "region found": percent(regions, len(pairs)),
        **kinds_table(kinds),
    }


def kinds_table(kinds: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """Accuracy of kinds, overall and by kind, and the predicted kinds."""
    table: dict[str, Any] = {
        "kind right": percent(sum(n for (a, b), n in kinds.items() if a == b), sum(kinds.values()))
    }
    for kind in sorted({asked for asked, _ in kinds}):
        row = {named: count for (asked, named), count in kinds.items() if asked == kind}
        table[kind] = {**percent(row.get(kind, 0), sum(row.values())), "named": row}
    return table


def rendered(pairs: int, jitter: float, folder: Path, split: str) -> dict[str, Any]:
    """Rendered pairs of 320 by 240 pixels.

    Args:
        pairs: number of pairs.
        jitter: camera movement in world units; 0 also fixes the lights.
        folder: folder of the rendered data.
        split: split of the data.
    """
    from lightning_idc.data.synthetic.cache import Key
    from lightning_idc.data.synthetic.modes import load_mode
    from lightning_idc.data.synthetic.source import SyntheticSource

    world = replace(load_mode("clevr_change").WORLD, camera_jitter=jitter, light_jitter=jitter and 1.0)
    source = SyntheticSource(Key("clevr_change", split, pairs, 240, 320, 0, world), folder, progress=False, workers=1)
    kinds: Counter[tuple[str, str]] = Counter()
    changed = quiet = hits = unchanged = 0
    for index in range(pairs):
        sample = source.load(index)
        answer = describe_changes(sample.before, sample.after)
        if sample.change_type == "no_change":
            unchanged += 1
            quiet += not answer.changed
            continue
        changed += answer.changed
        kinds[RENDERED[str(sample.change_type)], answer.regions[0].kind if answer.changed else "nothing"] += 1
        truth = [box for box in np.asarray(sample.boxes).reshape(-1, 4) if not np.isnan(box).any()]
        hits += any(overlap(box, other) for box in boxes_of(answer)[:2] for other in truth)
    total = pairs - unchanged
    return {
        "pairs": pairs,
        "nothing changed": percent(quiet, unchanged),
        "region found": percent(changed, total),
        "largest region on the change": percent(hits, total),
        **kinds_table(kinds),
    }


def change_or_not(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Pairs of CLEVR-Change, whose ids encode whether they changed."""
    counts: Counter[str] = Counter()
    for pair in pairs:
        unchanged = str(pair["id"]).endswith("nochange")
        answer = describe_changes(pair["before"], pair["after"], resize=True)
        counts["unchanged" if unchanged else "changed"] += 1
        counts["quiet" if unchanged else "found"] += answer.changed != unchanged
        counts["recoloured"] += not unchanged and any(region.kind == "recoloured" for region in answer.regions)
    return {
        "nothing changed": percent(counts["quiet"], counts["unchanged"]),
        "region found": percent(counts["found"], counts["changed"]),
        "a region is recoloured": percent(counts["recoloured"], counts["changed"]),
    }


def deeppcb(folder: Path, boards: int) -> dict[str, Any]:
    """Boards at regular intervals of the official test list."""
    lines = (folder / "test.txt").read_text(encoding="utf-8").split("\n")
    entries = [line.split() for line in lines if line.strip()]
    entries = entries[:: max(1, len(entries) // boards)][:boards]
    counts: Counter[str] = Counter()
    for image, labels in entries:
        before, after = (_board(folder, image, side) for side in ("temp", "test"))
        answer = describe_changes(before, after)
        truth = [[int(value) for value in line.replace(",", " ").split()[:4]]
                 for line in (folder / labels).read_text(encoding="utf-8").splitlines() if line.strip()]  # fmt: skip
        boxes = boxes_of(answer)
        counts["boards"] += 1
        counts["changed"] += answer.changed
        counts["quiet"] += not describe_changes(before, before).changed
        counts["defects"] += len(truth)
        counts["found"] += sum(any(overlap(box, other) for other in boxes) for box in truth)
        counts["regions"] += len(answer.regions)
        counts["right"] += sum(any(overlap(region.box, box) for box in truth) for region in answer.regions)
    return {
        "boards": counts["boards"],
        "nothing changed on the template itself": percent(counts["quiet"], counts["boards"]),
        "region found": percent(counts["changed"], counts["boards"]),
        "defects in a region": percent(counts["found"], counts["defects"]),
        "regions on a defect": percent(counts["right"], counts["regions"]),
    }


def _board(folder: Path, image: str, side: str) -> Path:
    stem = folder / image
    names = [stem.with_name(f"{stem.stem}_{side}{ending}") for ending in (".png", ".jpg")]
    return next(name for name in names if name.is_file())


def satellite(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Satellite pairs with a mask of what changed, or with captions only."""
    counts: Counter[str] = Counter()
    for pair in pairs:
        answer = describe_changes(pair["before"], pair["after"], resize=True)
        counts["pairs"] += 1
        counts["changed"] += answer.changed
        if "mask" not in pair:
            continue
        width, height = answer.size
        mask = np.asarray(Image.open(pair["mask"]).convert("L").resize((width, height), Image.Resampling.NEAREST)) > 127
        inside = np.zeros_like(mask)
        for left, top, right, bottom in boxes_of(answer):
            inside[top:bottom, left:right] = True
        labels, count = ndimage.label(mask)
        counts["parts"] += count
        counts["found"] += len(set(np.unique(labels[inside])) - {0})
        counts["regions"] += len(answer.regions)
        counts["right"] += sum(bool(mask[y0:y1, x0:x1].any()) for x0, y0, x1, y1 in (r.box for r in answer.regions))
    rows = {"pairs": counts["pairs"], "region found": percent(counts["changed"], counts["pairs"])}
    if counts["parts"]:
        rows["changed parts in a region"] = percent(counts["found"], counts["parts"])
        rows["regions on a change"] = percent(counts["right"], counts["regions"])
    return rows


def cost(pictures: Sequence[tuple[Any, Any]], runs: int = 3) -> dict[str, float]:
    """CPU milliseconds per answer on one core, without image decoding; minimum over runs for each pair."""
    times = []
    for pair in pictures:
        arrays = [np.asarray(Image.open(side).convert("RGB").resize((512, 512))).transpose(2, 0, 1) for side in pair]
        spans = []
        for _ in range(runs):
            began = time.process_time()
            describe_changes(*arrays)
            spans.append(1000 * (time.process_time() - began))
        times.append(min(spans))
    return {"median": round(statistics.median(times), 1), "largest": round(max(times), 1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=200, help="rendered pairs of each world; 0 for none")
    parser.add_argument("--boards", type=int, default=200, help="boards of DeepPCB")
    parser.add_argument("--split", default="val", help="split of the rendered pairs; val is held back")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from benchmarks.harness import report

    result: dict[str, Any] = {"question": "how often the rules are right, in percent, and CPU milliseconds a pair"}
    data = options.data
    if (data / "aurora_magicbrush").is_dir():
        result["magicbrush"] = magicbrush(data / "aurora_magicbrush")
        photographs = manifest(data / "aurora_magicbrush")[TUNED:]
        result["ms a pair of 512 x 512"] = cost([(pair["before"], pair["after"]) for pair in photographs])
    with tempfile.TemporaryDirectory() as folder:
        worlds = (("fixed camera and light", 0.0), ("moving camera and light", 0.7))
        for name, jitter in worlds if options.pairs else ():
            result[f"rendered, {name}"] = rendered(options.pairs, jitter, Path(folder), options.split)
    if (data / "clevr_change").is_dir():
        result["clevr_change"] = change_or_not(manifest(data / "clevr_change"))
    if (data / "deeppcb").is_dir():
        result["deeppcb"] = deeppcb(data / "deeppcb", options.boards)
    for name in ("levir_cc", "rs_change_masks"):
        if (data / name).is_dir():
            result[name] = satellite(manifest(data / name))
    report(result, options.out, "scipy", "pillow", seeds=[0])


if __name__ == "__main__":
    main()
