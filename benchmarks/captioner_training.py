"""How fast do the small captioners train and decode at the sizes of their papers, and how much memory do they need?

    python -m benchmarks.captioner_training --tiny  # smoke test on a CPU
    python -m benchmarks.captioner_training --device cuda [--batch 32] [--out FILE]

CLIP4IDC (ViT-B/32), NAMC (frozen ResNet-101, vocabulary size of BERT), ProCap's second stage (official
variant, k = 2) at 224 pixels, and this library's own PairTransformer at 64; random weights and pixels, captions of
about twelve words. Training steps run in a Trainer in each precision; decoding is greedy, for all pairs of a batch,
from pixels. Each row runs in a separate process; ratios are relative to 32-true.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import RowFailed, give_back, measure_apart, report
from benchmarks.steps import MadeUpPairs, line, now, time_steps
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


def measure(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Training steps and decoding of one captioner in one precision."""
    torch.set_num_threads(1)
    if args.device == "cuda":
        # what 32-true means on cards that have TF32
        torch.set_float32_matmul_precision("high")
    batch = 2 if args.tiny else args.batch
    options = {"captions_per_pair": 1, "optimizer": lambda groups: torch.optim.AdamW(groups, lr=1e-4)}
    captioner, side = CAPTIONERS[name](args.tiny, options)
    data = MadeUpPairs(side, texts_of(2 * batch), batch_size=batch)
    row = time_steps(captioner, data, args.steps, args.device, args.precision, [], folder)
    captioner.to(args.device).eval()
    pairs = captioner.collate([data.made_up.load(i) for i in range(batch)]).to(captioner.device)
    kind = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(args.precision)
    seconds, tokens, special = [], 0, captioner.built_vocabulary.special
    for _ in range(4):
        began = now(args.device)
        with torch.no_grad(), torch.autocast(args.device, kind, enabled=kind is not None):
            tokens = sum(map(len, greedy(captioner.built_net, captioner.encode(pairs), 24, special).ids))
        seconds.append(now(args.device) - began)
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
    args = parser.parse_args()
    if args.name:
        with tempfile.TemporaryDirectory() as folder:
            give_back(measure(args.name, args, Path(folder)))
        return
    results: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for name in args.captioners:
        for precision in args.precisions:
            label = f"{name}, {precision}"
            common = ["--device", args.device, "--batch", args.batch, "--steps", args.steps]
            try:
                row = measure_apart("--name", name, "--precision", precision, *common, *(["--tiny"] * args.tiny))
            except RowFailed as error:
                failed[label] = error.line
                print(f"{label} failed: {str(error)[-1500:]}", flush=True)
                continue
            results[label] = row
            row["times_faster"] = results.get(f"{name}, 32-true", row)["seconds_per_step"] / row["seconds_per_step"]
            print(line(label, row, row["batch"]), f"  {row['captions_per_s']:.0f} captions/s written", flush=True)
    settings = {name: getattr(args, name) for name in ("device", "tiny", "batch", "steps")}
    result = {"settings": settings, "rows": results, "failed": failed}
    report(result, args.out, "lightning", "timm", "open_clip_torch", seeds=[0, 1], quiet=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
