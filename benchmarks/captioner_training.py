"""How fast do the small captioners train and write at the sizes of their papers, by precision, and in how much memory?

    python benchmarks/captioner_training.py --tiny                       # tries the script on a CPU
    python benchmarks/captioner_training.py --device cuda [--batch 32] [--out results/gpu/captioner_training.json]

CLIP4IDC (ViT-B/32), NAMC (ResNet-101, which it keeps frozen, BERT's number of words), ProCap's second stage (official
edition, k = 2) at 224 pixels, and this library's own PairTransformer at 64; random weights and pixels, captions of
about twelve words. Training steps in a Trainer in each precision; writing is greedy, of all pairs of a batch, from
pixels. Each row is a process of its own; ratios are to 32-true.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _harness import RowFailed, give_back, measure_apart, report
from _steps import MadeUpPairs, line, now, time_steps

from lightning_idc.nn.decoding.decoding import greedy

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
CLIP_SMALL = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}
WORDS = tuple("the large red metal cube left of small blue rubber sphere has been moved and now is green".split())  # noqa: SIM905


def texts_of(pairs: int) -> list[list[str]]:
    generator = torch.Generator().manual_seed(0)
    return [[" ".join(WORDS[i] for i in torch.randint(len(WORDS), (12,), generator=generator))] for _ in range(pairs)]


def pair_transformer(tiny: bool, options: dict[str, Any]) -> Any:
    from lightning_idc.models.pair_transformer.module import PairTransformer

    return PairTransformer(**options), 64


def clip4idc(tiny: bool, options: dict[str, Any]) -> Any:
    from lightning_idc.methods.clip4idc.module import Clip4Idc

    return (Clip4Idc(CLIP_SMALL, intra_layers=1, **options), 32) if tiny else (Clip4Idc(**options), 224)


def namc(tiny: bool, options: dict[str, Any]) -> Any:
    from lightning_idc.methods.namc.module import NAMC

    if tiny:
        return NAMC(width=32, heads=2, **options), 64
    words = [f"word{i}" for i in range(30522 - len(WORDS) - 4)]
    full: dict[str, Any] = {"backbone": "resnet101", "width": 768, "heads": 12, "image_size": (224, 224)}
    from lightning_idc.nn.vocabulary import Vocabulary

    return NAMC(**full, **options, vocabulary=Vocabulary.build([*WORDS, *words]).words), 224


def procap(tiny: bool, options: dict[str, Any]) -> Any:
    from lightning_idc.methods.procap.official.module import OfficialProCap

    tokenizer = {"width": 32 if tiny else 128}
    sizes: dict[str, Any] = {"width": 64, "layers": 2, "heads": 1, "decoder_width": 64} if tiny else {}
    return OfficialProCap(tokenizer=tokenizer, image_size=(224, 224), **sizes, **options), 224


CAPTIONERS: dict[str, Callable[[bool, dict[str, Any]], Any]] = {
    "pair_transformer": pair_transformer,
    "clip4idc": clip4idc,
    "namc": namc,
    "procap": procap,
}


def measure(name: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Steps and writing of one captioner in one precision."""
    torch.set_num_threads(1)
    if given.device == "cuda":
        # what 32-true means on cards that have TF32
        torch.set_float32_matmul_precision("high")
    batch = 2 if given.tiny else given.batch
    options = {"captions_per_pair": 1, "optimizer": lambda groups: torch.optim.AdamW(groups, lr=1e-4)}
    captioner, side = CAPTIONERS[name](given.tiny, options)
    data = MadeUpPairs(side, texts_of(2 * batch), batch_size=batch)
    row = time_steps(captioner, data, given.steps, given.device, given.precision, [], folder)
    captioner.to(given.device).eval()
    pairs = captioner.collate([data.made_up.load(i) for i in range(batch)]).to(captioner.device)
    kind = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(given.precision)
    seconds, tokens, special = [], 0, captioner.built_vocabulary.special
    for _ in range(4):
        began = now(given.device)
        with torch.no_grad(), torch.autocast(given.device, kind, enabled=kind is not None):
            tokens = sum(map(len, greedy(captioner.built_net, captioner.encode(pairs), 24, special).ids))
        seconds.append(now(given.device) - began)
    writing = statistics.median(seconds[1:])
    return {
        **row,
        "batch": batch,
        "side": side,
        "parameters": sum(p.numel() for p in captioner.parameters()),
        "trained": sum(p.numel() for p in captioner.parameters() if p.requires_grad),
        "pairs_per_s": batch / row["seconds_per_step"],
        "captions_per_s": batch / writing,
        "tokens_per_s": tokens / writing,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny networks, to try the script")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--captioners", nargs="+", choices=list(CAPTIONERS), default=list(CAPTIONERS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.name:
        with tempfile.TemporaryDirectory() as folder:
            give_back(measure(given.name, given, Path(folder)))
        return
    found: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for name in given.captioners:
        for precision in given.precisions:
            label = f"{name}, {precision}"
            common = ["--device", given.device, "--batch", given.batch, "--steps", given.steps]
            try:
                row = measure_apart("--name", name, "--precision", precision, *common, *(["--tiny"] * given.tiny))
            except RowFailed as error:
                failed[label] = error.line
                print(f"{label} failed: {str(error)[-1500:]}", flush=True)
                continue
            found[label] = row
            row["times_faster"] = found.get(f"{name}, 32-true", row)["seconds_per_step"] / row["seconds_per_step"]
            print(line(label, row, row["batch"]), f"  {row['captions_per_s']:.0f} captions/s written", flush=True)
    settings = {name: getattr(given, name) for name in ("device", "tiny", "batch", "steps")}
    result = {"settings": settings, "rows": found, "failed": failed}
    report(result, given.out, "lightning", "timm", "open_clip_torch", seeds=[0, 1], quiet=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
