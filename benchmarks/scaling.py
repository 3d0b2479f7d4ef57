"""How do costs grow with the number of pairs, caption length, image size, frames and captions per pair?

    python -m benchmarks.scaling [--pairs 1000 10000 100000] [--repeats 1] [--out FILE] [--plot docs/images/scaling.svg]

Each number of pairs has a separate process, since memory is measured: a table of that many pairs (which share 200 small
images) is read, checked and loaded; the same number of captions is scored, resampled, written to report pages and
compared. An operation that takes a minute at a tenth of a number is skipped (``--longest``). The other sizes are then
varied one at a time: words per caption, pixels per side, frames between the images (a tiny ProCap), and captions per
pair in training. Seconds are CPU seconds of one thread; the exponent is the slope of their logarithms between the two
largest sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402 - after the number of threads is set
import torch  # noqa: E402
from PIL import Image  # noqa: E402

from benchmarks.harness import give_back, measure_apart, report  # noqa: E402
from lightning_idc.data.benchmarks.folder import FolderPairs  # noqa: E402
from lightning_idc.data.checking import check_pairs  # noqa: E402
from lightning_idc.images.types import PairFeatures  # noqa: E402
from lightning_idc.metrics.bootstrap import bootstrap  # noqa: E402
from lightning_idc.metrics.captions import score_captions  # noqa: E402
from lightning_idc.metrics.grouping import ReferenceRecord  # noqa: E402
from lightning_idc.metrics.protocols import evaluate, protocol_named  # noqa: E402
from lightning_idc.metrics.results import METRICS, PREDICTIONS, Origin, make_result  # noqa: E402
from lightning_idc.report.html import Entry, write_report  # noqa: E402
from lightning_idc.report.leaderboard import boards  # noqa: E402
from lightning_idc.report.result_rows import read_results  # noqa: E402

PICTURES, DRAWS = 200, 200
WORDS = "the small large red blue green metal cube sphere moved left right behind in front of has no".split()  # noqa: SIM905 - more easily read
SIZES: dict[str, tuple[int, ...]] = {
    "words of a caption": (14, 60, 250, 500),
    "pixels of a side": (250, 500, 1000, 2000),
    "frames between (k)": (1, 2, 4, 8),
    "captions of a pair (K)": (1, 2, 4, 8),
}


def said(count: int, words: int = 12, seed: int = 0) -> list[str]:
    """Captions of random words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=words)) for _ in range(count)]


def seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write_table(root: Path, pairs: int) -> None:
    """A table of pairs, the last 64 of them for validation."""
    (root / "images").mkdir(parents=True)
    for number in range(PICTURES):
        pixels = np.full((16, 16, 3), number, np.uint8)
        Image.fromarray(pixels).save(root / f"images/{number:03d}.png")
    with open(root / "pairs.csv", "w", encoding="utf-8") as file:
        file.write("id,before,after,caption,split\n")
        for n, text in enumerate(said(pairs)):
            images = f"images/{n % PICTURES:03d}.png,images/{n * 7 % PICTURES:03d}.png"
            file.write(f"pair{n:07d},{images},{text},{'val' if n >= pairs - 64 else 'train'}\n")


def write_results(root: Path, pairs: int) -> None:
    """Two results with their captions, as written by two runs."""
    protocol = protocol_named("coco")
    truths = [ReferenceRecord(f"p{n}", (text,)) for n, text in enumerate(said(pairs))]
    for seed in (1, 2):
        captions = {truth.id: text for truth, text in zip(truths, said(pairs, seed=seed), strict=True)}
        folder = root / f"run{seed}"
        folder.mkdir(parents=True)
        records = [{"id": t.id, "caption": captions[t.id], "references": list(t.references)} for t in truths]
        (folder / PREDICTIONS).write_text("".join(json.dumps(record) + "\n" for record in records))
        parts = evaluate(protocol, captions, truths, ["ROUGE-L", "CIDEr-D"])
        result = make_result(protocol, parts, captions, truths, Origin("model", "data", "test", files={}))
        (folder / METRICS).write_text(json.dumps(result))


def of_pairs(pairs: int, longest: float) -> dict[str, float]:
    """Seconds of every operation for one number of pairs, and bytes per pair."""
    costs: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_table(root / "small", 1000)
        write_table(root / "data", pairs)
        FolderPairs(root / "small").pairs_of("train")  # what the first reading of all imports and keeps
        before = resident()
        data = FolderPairs(root / "data", batch_size=32)
        costs["set up"] = seconds(lambda: data.pairs_of("train"))
        costs["bytes of a pair"] = max(0, resident() - before) / pairs
        loader = data.loader("train")
        costs["first batch"] = seconds(lambda: next(iter(loader)))
        costs["start of a further epoch"] = seconds(lambda: next(iter(loader)))
        if pairs <= 10_000 * longest:
            costs["data check"] = seconds(lambda: check_pairs(data, ("train", "val"), log=lambda line: None))
        captions, references = said(pairs, seed=1), said(pairs)
        ids = [f"p{n}" for n in range(pairs)]
        scored: list[Any] = []
        wanted = dict(zip(ids, ([text] for text in references), strict=True))
        costs["scoring"] = seconds(lambda: scored.append(score_captions(dict(zip(ids, captions, strict=True)), wanted)))
        costs[f"bootstrap, {DRAWS} draws"] = seconds(lambda: bootstrap(scored[0], DRAWS))
        entries = (Entry(*row) for row in zip(ids, captions, wanted.values(), strict=True))
        target = root / "report.html"
        costs["report"] = seconds(lambda: write_report(target, "Report", entries))
        if pairs <= 10_000 * longest:
            write_results(root / "runs", pairs)
            costs["leaderboard"] = seconds(lambda: boards(read_results(root / "runs"), root / "runs", DRAWS))
    return costs


def of_words(words: int) -> float:
    """Scoring 1,000 long captions."""
    ids = [str(n) for n in range(1000)]
    captions = dict(zip(ids, said(1000, words, 1), strict=True))
    references = {id: [text] for id, text in zip(ids, said(1000, words), strict=True)}
    return seconds(lambda: score_captions(captions, references))


def of_pixels(side: int) -> float:
    """Reading four pairs of large images, resized to 224."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        noise = np.random.default_rng(0).integers(0, 256, (side // 4, side // 4, 3), np.uint8)
        picture = Image.fromarray(noise).resize((side, side))
        for which in ("before", "after"):
            (root / which).mkdir()
            for number in range(4):
                picture.save(root / which / f"{number}.jpg")
        source = FolderPairs(root, image_size=(224, 224)).pairs_of("predict")
        return seconds(lambda: [source.load(index) for index in range(4)])


def of_frames(queries: int) -> float:
    """Encoding four pairs with a tiny ProCap."""
    from benchmarks.procap_decode import made

    net = made(queries, small=True)
    images = torch.zeros(4, 2, 3, 224, 224, dtype=torch.uint8)
    with torch.no_grad():
        ends = net.encoder.embed(net.features(images))
        return seconds(lambda: [net.encoder(net.encoder.queries(ends)) for _ in range(3)])


def of_captions(count: int) -> float:
    """A forward and backward pass of the default captioner, with this number of captions for each of 32 pairs."""
    from benchmarks.decode import CELLS, WIDTH, sharpened

    net = sharpened()
    features, tokens = PairFeatures(torch.randn(32, CELLS, WIDTH)), torch.randint(4, 80, (32, count, 16))
    return seconds(lambda: [net.logits(features, tokens).float().logsumexp(-1).sum().backward() for _ in range(3)])


ALONE: dict[str, Callable[[int], float]] = dict(zip(SIZES, (of_words, of_pixels, of_frames, of_captions), strict=True))


def least(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(row[name] for row in rows) for name in rows[0]}


def exponents(costs: dict[int, dict[str, float]]) -> dict[str, float]:
    """Slope of the logarithms between the two largest measured sizes."""
    slopes = {}
    for name in dict.fromkeys(name for row in costs.values() for name in row):
        known = sorted((size, row[name]) for size, row in costs.items() if row.get(name))
        if len(known) > 1:
            (small, first), (large, last) = known[-2:]
            slopes[name] = round(math.log(last / first) / math.log(large / small), 2)
    return slopes


def plot(costs: dict[int, dict[str, float]]) -> str:
    """Seconds over pairs on logarithmic axes, as an SVG; thin lines show linear growth."""
    curves = {
        name: [(size, row[name]) for size, row in sorted(costs.items()) if row.get(name)]
        for name in dict.fromkeys(name for row in costs.values() for name in row)
        if "bytes" not in name and "files" not in name
    }
    times = [value for curve in curves.values() for _, value in curve]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    left, right = math.log10(min(costs)), math.log10(max(costs))

    def at(size: float, value: float) -> tuple[float, float]:
        x = 50 + 380 * (math.log10(size) - left) / max(right - left, 1e-9)
        return round(x, 1), round(20 + 300 * (high - math.log10(value)) / (high - low), 1)

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 360" font-family="sans-serif" font-size="11">']
    for power in range(low, high + 1):
        y = at(10**left, 10.0**power)[1]
        parts.append(
            f'<path d="M50 {y}H430" stroke="#ddd"/><text x="45" y="{y + 4}" text-anchor="end">1e{power} s</text>'
        )
    parts += [f'<text x="{at(size, 1)[0]}" y="340" text-anchor="middle">{size:,}</text>' for size in sorted(costs)]
    for number, (name, curve) in enumerate(sorted(curves.items(), key=lambda item: -item[1][-1][1])):
        colour = f"hsl({number * 360 // len(curves)} 70% 40%)"
        line = " ".join(f"{x},{y}" for x, y in (at(*point) for point in curve))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="445" y="{30 + 18 * number}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, '<text x="240" y="356" text-anchor="middle">pairs</text></svg>']) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=1, help="the minimum seconds count")
    parser.add_argument("--longest", type=float, default=10.0, help="of data check and leaderboard, in 10,000 pairs")
    parser.add_argument("--without-others", action="store_true", help="only the number of pairs")
    parser.add_argument("--note", help="stored with the result, such as other programs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.one:
        give_back(of_pairs(args.one, args.longest))
        return
    costs: dict[int, dict[str, float]] = {}
    others: dict[str, Any] = {}
    for name, sizes in ({} if args.without_others else SIZES).items():
        rows = {size: {"seconds": min(ALONE[name](size) for _ in range(2 + args.repeats))} for size in sizes}
        taken = {size: row["seconds"] for size, row in rows.items()}
        others[name] = {"seconds": taken, "exponent": exponents(rows)["seconds"]}
    for pairs in args.pairs:
        common = ("--one", pairs, "--longest", args.longest)
        costs[pairs] = least([measure_apart(*common) for _ in range(args.repeats)])
        # after each size, as the last one takes longer than all others
        result = {"note": args.note, "pairs": costs, "exponents": exponents(costs), "others": others}
        report(result, args.out, "pyarrow", seeds=[0, 1, 2], quiet=pairs != args.pairs[-1])
        if args.plot:
            args.plot.parent.mkdir(parents=True, exist_ok=True)
            args.plot.write_text(plot(costs), encoding="utf-8")


if __name__ == "__main__":
    main()
