"""Estimates for runs on 64 GPUs from published rates: hours, memory, traffic and the bottleneck. Nothing is run.

    python -m benchmarks.studies.scale_plan  # prints the tables of docs/notes/scale.md
    python -m benchmarks.studies.scale_plan --write  # writes them there

Every input is in this file with its source, or is marked as assumed. The efficiency of the
machine is taken from M3Diff's own report: 896,000 samples in 26 hours on 8 A100.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import filled

DOC = Path(__file__).parents[2] / "docs" / "notes" / "scale.md"
A100_BF16, H100_BF16 = 312e12, 989e12
"""Dense bf16 FLOP/s by NVIDIA's data sheets."""
GPUS = 64
NODE_LINK, NET_LINK = 450e9, 50e9
"""Bytes per second of one GPU, one way: NVLink of an H100, and InfiniBand NDR with 400 Gbit/s for each GPU."""
DISK = 10e9
"""Assumed: bytes per second that a parallel file system gives to all nodes together."""
CORES_PER_GPU = 14
DECODED_PER_CORE = 400
"""Assumed: JPEG pictures of about 500 pixels that one core decodes and resizes per second."""


@dataclass(frozen=True)
class Decoder:
    """A language model with a vision tower.

    Args:
        parameters: of the language model without its embeddings.
        tower: parameters of the vision tower.
        layers: of the language model.
        width: of the language model.
        tokens: of a pair: both images, prompt and answer.
        patches: of both images in the tower.
        extra: FLOP of the MDP adapter forward.
    """

    parameters: float
    tower: float
    layers: int
    width: int
    tokens: int
    patches: int
    extra: float

    @property
    def forward(self) -> float:
        """FLOP of a pair."""
        attention = 4 * self.layers * self.tokens**2 * self.width
        return 2 * self.parameters * self.tokens + attention + 2 * self.tower * self.patches + self.extra

    @property
    def step(self) -> float:
        """FLOP of a pair in training: LoRA on the language model, the tower whole, activations computed again."""
        tower = 2 * self.tower * self.patches
        language = self.forward - tower - self.extra
        # forward, again, backward to the activations; where weights train, backward to them, too
        return 3 * language + 4 * tower + 3 * self.extra


# LLaVA-OneVision-Qwen2-7B: 28 layers of 3584, SigLIP-SO400M on 2 x 729 patches; MDP as counted in the model's README
M3DIFF = Decoder(6.53e9, 0.41e9, 28, 3584, 2 * 729 + 80, 2 * 729, 0.65e12)
M3DIFF_SAMPLES, M3DIFF_HOURS, M3DIFF_GPUS, M3DIFF_BATCH = 896_000, 26.0, 8, 256
LORA_RANK = 128
LORA_PARAMETERS = LORA_RANK * 28 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))
"""q and o, k and v, the three of the MLP, in 28 layers."""
MDP_PARAMETERS = 50e6

NAMC_PAIRS, NAMC_EPOCHS = 770_000, 20
VIT_B16 = 35e9
"""FLOP of one 224-pixel image in CLIP's ViT-B/16, forward."""
NAMC_STEP = 3 * (2 * VIT_B16 + 2 * 86e6 * 77) + 3 * 2 * 45e6 * (2 * 196 + 30)
"""Dual encoder on two images and a text, and the masked encoder and decoder on stored grids, forward and backward."""
DECODED = 224 * 224 * 3
GRIDS = 14 * 14 * 1024 * 2
"""Bytes of ResNet-101's grid of an image, fp16."""

IMG_DIFF_PAIRS, IMG_DIFF_KEPT = 118_000, 13_000
PAINT_GPU_DAYS, DESCRIBE_GPU_DAYS = 4 * 4.5, 4 * 2.0
"""Four A100 for 4.5 days and about two days (supplement, section 18)."""
PNG_PAIR, JPEG_PAIR = 3.56e6, 0.78e6
"""Bytes of a pair of 1024 pixels; measured, PNG level 1 and JPEG 95."""


def efficiency() -> float:
    """Share of an A100's peak that M3Diff's report implies."""
    return M3DIFF_SAMPLES * M3DIFF.step / (M3DIFF_HOURS * 3600 * M3DIFF_GPUS * A100_BF16)


def m3diff() -> list[tuple[str, str]]:
    """M3Diff, 7B, one epoch of 896,000 pairs."""
    share = efficiency()
    each = M3DIFF_BATCH / GPUS
    compute = each * M3DIFF.step / (share * H100_BF16)
    weights = 2 * (M3DIFF.parameters + M3DIFF.tower + 1.09e9)  # with both embeddings, bf16
    trained = LORA_PARAMETERS + M3DIFF.tower + MDP_PARAMETERS
    steps = M3DIFF_SAMPLES / M3DIFF_BATCH
    # gathered for the forward pass, for its repetition and for the backward pass
    sharded_64, sharded_8 = 3 * weights / NET_LINK, 3 * weights / NODE_LINK
    reduced = 2 * 4 * trained / NET_LINK
    return [
        ("FLOP of a pair, forward and in training", f"{M3DIFF.forward / 1e12:.1f} and {M3DIFF.step / 1e12:.1f} TFLOP"),
        ("share of peak that the paper's 26 hours on 8 A100 imply", f"{share:.0%}"),
        ("pairs per GPU and step at the paper's batch of 256", f"{each:.0f}, without accumulation"),
        ("computing of a step at that share", f"{compute:.2f} s"),
        ("hours of the epoch, computing alone", f"{steps * compute / 3600:.1f}"),
        ("frozen weights in bf16", f"{weights / 1e9:.1f} GB"),
        ("trained parameters (LoRA 128, tower, MDP)", f"{trained / 1e9:.2f}e9"),
        ("their weights, gradients and Adam states in fp32", f"{16 * trained / 1e9:.1f} GB, unsharded"),
        ("gathering weights, sharded over all 64", f"{sharded_64:.2f} s a step"),
        ("gathering weights, sharded over the 8 of a node", f"{sharded_8:.2f} s a step"),
        ("reducing gradients of trained parameters alone", f"{reduced:.2f} s a step"),
        ("a checkpoint without frozen weights, with Adam states", f"{12 * trained / 1e9:.1f} GB"),
    ]


def namc() -> list[tuple[str, str]]:
    """NAMC, 770,000 pairs, 20 epochs."""
    share = efficiency()
    rate = GPUS * share * H100_BF16 / NAMC_STEP
    compute = NAMC_PAIRS * NAMC_EPOCHS / rate
    decoding = GPUS * CORES_PER_GPU * DECODED_PER_CORE / 2
    stored = DISK / (2 * DECODED + 2 * GRIDS)
    slowest = min(rate, stored)
    return [
        ("FLOP of a pair in training", f"{NAMC_STEP / 1e12:.2f} TFLOP"),
        ("pairs per second, computing alone", f"{rate:,.0f}"),
        ("hours of 20 epochs, computing alone", f"{compute / 3600:.2f}"),
        (f"pairs per second that {GPUS * CORES_PER_GPU} cores decode", f"{decoding:,.0f}"),
        ("stored grids of ResNet-101 of all images, fp16", f"{2 * NAMC_PAIRS * GRIDS / 1e9:,.0f} GB"),
        ("stored images of 224 pixels", f"{2 * NAMC_PAIRS * DECODED / 1e9:,.0f} GB"),
        ("pairs per second that the disk gives, both stored", f"{stored:,.0f}"),
        ("hours of 20 epochs at the slowest of these", f"{NAMC_PAIRS * NAMC_EPOCHS / slowest / 3600:.1f}"),
    ]


def img_diff() -> list[tuple[str, str]]:
    """Img-Diff, 118,000 painted pairs."""
    painting = PAINT_GPU_DAYS * 86400 / IMG_DIFF_PAIRS
    return [
        ("A100 seconds to paint a pair, of the paper's days", f"{painting:.1f}"),
        ("hours to paint on 64 GPUs of that speed", f"{PAINT_GPU_DAYS * 24 / GPUS:.1f}"),
        ("hours to filter and describe", f"{DESCRIBE_GPU_DAYS * 24 / GPUS:.1f}"),
        ("pictures as PNG, dropped ones kept", f"{IMG_DIFF_PAIRS * PNG_PAIR / 1e9:,.0f} GB"),
        ("pictures as JPEG, dropped ones kept", f"{IMG_DIFF_PAIRS * JPEG_PAIR / 1e9:,.0f} GB"),
        ("boxes that the paper keeps of them", f"{IMG_DIFF_KEPT:,}"),
        ("shards of 64 pairs", f"{IMG_DIFF_PAIRS / 64:,.0f}, {IMG_DIFF_PAIRS / 64 / GPUS:.0f} for each GPU"),
        (
            "work lost when a GPU dies in the middle of one",
            f"{32 * painting / 60:.0f} min",
        ),
    ]


TABLES = {"m3diff": m3diff, "namc": namc, "img_diff": img_diff}


def table(name: str) -> str:
    """Rows of one run as Markdown."""
    rows = TABLES[name]()
    return "\n".join(["| | |", "|---|---:|", *(f"| {what} | {value} |" for what, value in rows)])


def tables() -> dict[str, str]:
    """All tables by name."""
    return {name: table(name) for name in TABLES}


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="put the tables into docs/notes/scale.md")
    if arguments.parse_args().write:
        DOC.write_text(filled(DOC.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    for name, text in tables().items():
        print(f"\n{name}\n{text}")
