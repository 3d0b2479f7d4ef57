"""What do DPO and ADPO cost compared with supervised training? Same captioner, data and batches.

    python -m benchmarks.preference [--runs 5] [--steps 30] [--batch 32] [--out FILE]
    python -m benchmarks.preference --policy qwen2_5_vl_3b --encoder vit_b_32 --device cuda --ways DPO ADPO \
        --runs 3 --steps 20 --batch 4 --out FILE  # a GPU of 80 GB
    python -m benchmarks.preference --policy tiny --encoder tiny --ways DPO ADPO --runs 1 --steps 7 --batch 2

The default PairTransformer on rendered CLEVR-Change pairs of 64 pixels, two captions per pair, random weights, as in
recipes/adpo.yaml. Every measurement runs in a separate process, and the methods alternate, so that other programs
slow all of them alike; figures are CPU seconds of one thread per step (median of the steps after the first five), the
peak memory of the process and its growth since before the first step. The paper (A6000, Qwen2.5-VL-3B): SFT 1.56,
DPO 1.14, ADPO 1.06 samples a second; 28.6, 39.0, 41.3 GB.

With ``--policy`` of a vision-language model (random weights of full shapes, LoRA on the language model, adapters off as
the reference; bf16 on a GPU) and ``--encoder`` the retriever encodes every pair with a frozen CLIP4IDC of that size
(random weights); the captions of the pool are embedded once, before the first step. On a GPU, seconds are wall time and
memory is the GPU's.

``two looks`` is the usual implementation of DPO: policy and reference encode the pair again for every chosen and
rejected caption. ``scores kept`` fills a CachedScores: the cost of writing scores before any is reused.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402 - after the number of threads is set
from lightning.pytorch import Callback, seed_everything  # noqa: E402

from benchmarks import steps as step_timing  # noqa: E402
from benchmarks import vlm_scoring  # noqa: E402
from benchmarks.harness import RowFailed, give_back, measure_apart, quiet_trainer, report  # noqa: E402
from lightning_idc.data.synthetic import SyntheticPairs  # noqa: E402
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever  # noqa: E402
from lightning_idc.methods.adpo.preference import PreferenceOptimization  # noqa: E402
from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval  # noqa: E402
from lightning_idc.methods.policy.cached_scores import CachedScores  # noqa: E402
from lightning_idc.methods.policy.references import AdaptersOff, FrozenCopy  # noqa: E402
from lightning_idc.models.captioner import PairCaptioner  # noqa: E402
from lightning_idc.models.pair_transformer.module import PairTransformer  # noqa: E402
from lightning_idc.models.vlm.lora import LoRA  # noqa: E402
from lightning_idc.models.vlm.module import VLMCaptioner  # noqa: E402

ADPO_TIME, ADPO_MEMORY = 1.03, 1.02
"""What ADPO may cost, as a factor of DPO."""
WITH_ENCODER = 1.05
"""The same of its time where the retriever has an encoder."""
ENCODERS: dict[str, dict[str, Any]] = {
    "vit_b_32": {},
    "tiny": {
        "vocabulary": None,
        "clip": {
            "embed_dim": 16,
            "quick_gelu": True,
            "vision_cfg": {"image_size": 8, "patch_size": 4, "width": 32, "head_width": 16, "layers": 2},
            "text_cfg": {"context_length": 12, "width": 32, "heads": 2, "layers": 1},
        },
        "intra_layers": 1,
    },
}
LANGUAGE = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


class TwoLooks(PairTransformer):
    """Encodes the pair again for every caption."""

    def score(self, features: Any, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        looks = []
        for k, (ids, kept) in enumerate(zip(tokens.split(1, 1), mask.split(1, 1), strict=True)):
            seen = features if k == 0 else self.encode(self.__dict__["_seen"])
            looks.append(super().score(seen, ids, kept))
        return torch.cat(looks, 1)

    def encode(self, batch: Any) -> Any:
        self.__dict__["_seen"] = batch
        return super().encode(batch)


def ways(encoder: str | None = None, adapters: bool = False) -> dict[str, tuple[bool, list[Callback]]]:
    """Whether the pair is encoded for every caption, and callbacks, by training method.

    Args:
        encoder: checkpoint of the retriever's encoder.
        adapters: callbacks of a policy of which only adapters are trained.
    """
    lora: list[Callback] = [LoRA(rank=16, alpha=32, targets=LANGUAGE, freeze=["model", "lm_head"])] if adapters else []

    def dpo() -> PreferenceOptimization:
        return PreferenceOptimization(reference=AdaptersOff() if adapters else FrozenCopy())

    return {
        "SFT": (False, lora),
        "DPO": (False, [*lora, dpo()]),
        "ADPO": (False, [*lora, dpo(), AdversarialRetriever(encoder)]),
        "DPO, scores kept": (False, [*lora, PreferenceOptimization(reference=CachedScores(FrozenCopy()))]),
        "DPO, two looks": (True, [*lora, dpo()]),
    }


def policy_of(args: argparse.Namespace, two_looks: bool) -> PairCaptioner:
    """Random captioner on the selected device."""
    if args.policy == "pair_transformer":
        return (TwoLooks if two_looks else PairTransformer)(captions_per_pair=2, dropout=0.0)
    cuda = args.device == "cuda"
    # drawn where it will be: billions of weights take minutes on one core
    torch.set_default_dtype(torch.bfloat16 if cuda else torch.float32)
    model = VLMCaptioner(
        architecture=vlm_scoring.SIZES[args.policy][1],
        tokenizer=vlm_scoring.tokenizer_of(args.policy),
        captions_per_pair=2,
        max_length=40,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-6),
    )
    with torch.device(args.device):
        model.build()
    torch.set_default_dtype(torch.float32)
    return model


def encoder_of(args: argparse.Namespace, data: SyntheticPairs, folder: Path) -> str | None:
    """Checkpoint of a random encoder; None for small heads on the policy's own features."""
    if args.encoder == "heads":
        return None
    trainer = quiet_trainer(max_steps=0, limit_val_batches=0, default_root_dir=folder)
    trainer.fit(Clip4IdcRetrieval(**ENCODERS[args.encoder]), data)
    trainer.save_checkpoint(folder / "encoder.ckpt")
    return str(folder / "encoder.ckpt")


class Clock(step_timing.Clock):
    """Stopwatch of training steps that stores the peak memory before the first."""

    def __init__(self, device: str) -> None:
        super().__init__(step_timing.Stopwatch(partial(step_timing.now, device)))
        self.device, self.before = device, 0

    def on_train_start(self, *unused: Any) -> None:
        self.before = step_timing.peak(self.device)


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Measure one training method in this process."""
    seed_everything(0, workers=True, verbose=False)
    cuda = args.device == "cuda"
    clock = Clock(args.device)
    side = None if args.policy == "pair_transformer" else vlm_scoring.SIZES[args.policy][0]
    data = SyntheticPairs(
        train_pairs=640,
        val_pairs=8,
        test_pairs=8,
        batch_size=args.batch,
        cache_dir=args.cache,
        progress=False,
        image_size=None if side is None else (side, side),
    )
    with tempfile.TemporaryDirectory() as folder:
        encoder = encoder_of(args, data, Path(folder))
        two_looks, callbacks = ways(encoder, side is not None)[args.way]
        trainer = quiet_trainer(
            accelerator="gpu" if cuda else "cpu",
            devices=1,
            precision="bf16-mixed" if cuda and side is not None else "32-true",
            max_steps=args.steps,
            max_epochs=-1,
            limit_val_batches=0,
            callbacks=[*callbacks, clock],
            default_root_dir=folder,
        )
        trainer.fit(policy_of(args, two_looks), data)
    most = step_timing.peak(args.device)
    return {"seconds": statistics.median(clock.watch.seconds[5:]), "bytes": most, "growth": most - clock.before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--policy", choices=("pair_transformer", *vlm_scoring.SIZES), default="pair_transformer")
    parser.add_argument("--encoder", choices=("heads", *ENCODERS), default="heads", help="of ADPO's retriever")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ways", nargs="+", choices=list(ways()), help="all, or three of a vision-language model")
    parser.add_argument("--cache", help="folder for rendered pairs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", choices=list(ways()), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        give_back(measure(args))
        return
    small = args.policy == "pair_transformer"
    chosen = args.ways or (list(ways()) if small else ["SFT", "DPO", "ADPO"])
    if not small and "DPO, two looks" in chosen:
        parser.error("DPO with two looks is there for --policy pair_transformer alone")
    rows: dict[str, list[dict[str, float]]] = {way: [] for way in chosen}
    names = ("steps", "batch", "policy", "encoder", "device")
    shared = [text for name in names for text in (f"--{name}", str(getattr(args, name)))]
    shared += ["--cache", args.cache] if args.cache else []
    for _ in range(args.runs):
        for way, results in rows.items():
            try:
                results.append(measure_apart("--way", way, *shared))
            except RowFailed as error:
                raise SystemExit(str(error)) from error
    table = {way: row_of(results, args.batch) for way, results in rows.items()}
    for way, row in table.items():
        print(f"{way:<18} {row['pairs_per_second']:7.1f} pairs/s  peak {row['peak_megabytes']:7.0f} MB")
    result: dict[str, Any] = {"settings": {name: getattr(args, name) for name in names}, "ways": table}
    if {"DPO", "ADPO"} <= rows.keys():
        # by turns: a ratio of neighbours in time is what a busy machine changes least
        pairs = list(zip(rows["ADPO"], rows["DPO"], strict=True))
        ratios = {
            "time": statistics.median(a["seconds"] / d["seconds"] for a, d in pairs),
            "memory": statistics.median(a["bytes"] / d["bytes"] for a, d in pairs),
        }
        result["adpo_over_dpo"] = ratios
        most = ADPO_TIME if args.encoder == "heads" else WITH_ENCODER
        print(
            f"ADPO / DPO: time {ratios['time']:.3f} (at most {most}), "
            f"memory {ratios['memory']:.3f} (at most {ADPO_MEMORY} with heads)"
        )
    report(result, args.out, "lightning", "transformers", seeds=[0], quiet=True)


def row_of(results: list[dict[str, float]], batch: int) -> dict[str, float]:
    """Medians over the runs of one method."""
    seconds, peak, growth = (statistics.median(run[name] for run in results) for name in ("seconds", "bytes", "growth"))
    return {
        "pairs_per_second": batch / seconds,
        "seconds": seconds,
        "peak_megabytes": peak / 2**20,
        "training_megabytes": growth / 2**20,
    }


if __name__ == "__main__":
    main()
