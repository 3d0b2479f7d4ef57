"""How much time and memory does each callback of NAMC add to a pre-training step?

    python -m benchmarks.noise_overhead [--batch 32] [--steps 8] [--full] [--out FILE]

One process and one thread; four variants alternate: neither callback, `NoiseMasking`, `MaskedReconstruction`, both. A
step is forward and backward of `training_step`; its time is the minimum and the median of its CPU seconds. Memory is
that of tensors saved for the backward pass (distinct storages that autograd saves, without parameters), which does not
depend on the allocator, and that of all parameters. By default NAMC has width 128 and 64 pixels; --full uses the
paper's sizes (ResNet-101, CLIP ViT-B/16, a 16-fold VQGAN, all with random weights).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402 - after the number of threads is set
from lightning.pytorch import Callback, LightningModule, seed_everything  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from benchmarks.harness import quiet_trainer  # noqa: E402
from lightning_idc.data.benchmarks.implicit_change import compose  # noqa: E402
from lightning_idc.images.types import PairSample  # noqa: E402
from lightning_idc.methods.namc.dual_encoder import (  # noqa: E402
    ClipDualEncoder,
    DualEncoder,
    SmallDualEncoder,
    vocabulary_with_mask,
)
from lightning_idc.methods.namc.masked_reconstruction import MaskedReconstruction  # noqa: E402
from lightning_idc.methods.namc.module import NAMC  # noqa: E402
from lightning_idc.methods.namc.noise_masking import NoiseMasking  # noqa: E402
from lightning_idc.nn.image_tokenizer import ImageTokenizer  # noqa: E402
from lightning_idc.nn.vocabulary import Vocabulary  # noqa: E402

WAYS = ("neither", "NoiseMasking", "MaskedReconstruction", "both")
CAPTION = compose("a large red rubber cube left of a small blue metal sphere", "a small blue metal sphere alone")


class Measured(Callback):
    """CPU seconds from the start of each training step to the end of its backward pass."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_train_batch_start(self, *unused: Any) -> None:
        self._began = time.process_time()

    def on_after_backward(self, *unused: Any) -> None:
        self.seconds.append(time.process_time() - self._began)


def parts(full: bool, vocabulary: Vocabulary) -> tuple[NAMC, DualEncoder, ImageTokenizer]:
    """Captioner, encoders and tokenizer with random weights."""
    seed_everything(0, verbose=False)
    if full:
        sizes: dict[str, Any] = dict(backbone="resnet101", width=768, heads=12, hidden=3072, image_size=(224, 224))
        encoder: DualEncoder = ClipDualEncoder("ViT-B-16-quickgelu", None)
        tokenizer = ImageTokenizer()
    else:
        sizes = dict(hidden=256, dropout=0.0, image_size=(64, 64))
        encoder = SmallDualEncoder(vocabulary_with_mask(vocabulary.words), (8, 8), freeze_backbone=True)
        tokenizer = ImageTokenizer(128, 16, 24, (1, 2), 1, 4)
    model = NAMC(captions_per_pair=1, vocabulary=vocabulary.words, max_length=64, **sizes)
    return model, encoder, tokenizer


def measure(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of every step, bytes saved for the backward pass, bytes of parameters."""
    vocabulary = Vocabulary.build([CAPTION])
    model, encoder, tokenizer = parts(options.full, vocabulary)
    size = 224 if options.full else 64
    callbacks: list[Callback] = []
    if way in ("NoiseMasking", "both"):
        callbacks.append(NoiseMasking(encoder, fill_masked=False))
    if way in ("MaskedReconstruction", "both"):
        callbacks.append(MaskedReconstruction(tokenizer, encoder="net.encoder"))
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (options.batch, 2, 3, size, size), dtype=torch.uint8, generator=generator)
    samples = [PairSample(str(i), pair[0], pair[1], [CAPTION]) for i, pair in enumerate(images)]
    loader: Any = DataLoader([0] * (options.steps + 1), collate_fn=lambda _: model.collate(samples))  # type: ignore[arg-type]
    timer = Measured()
    trainer = quiet_trainer(callbacks=[*callbacks, timer], max_epochs=1)
    kept = SavedBytes(model)
    model.training_step = kept.around(model.training_step)  # type: ignore[method-assign]
    trainer.fit(model, loader)
    return {
        "seconds": timer.seconds[1:],  # the first one makes the optimizer's state and warms caches
        "saved_bytes": kept.bytes,
        "parameter_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
    }


class SavedBytes:
    """Counts the distinct storages that autograd saves in a step, without those of parameters."""

    def __init__(self, model: LightningModule) -> None:
        self.model, self.bytes = model, 0

    def around(self, step: Any) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            own = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
            seen: dict[int, int] = {}

            def pack(tensor: Tensor) -> Tensor:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in own:
                    seen[storage.data_ptr()] = storage.nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                output = step(*arguments, **named)
            self.bytes = sum(seen.values())
            return output

        return counted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8, help="of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="the paper's sizes; minutes per step on a CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from benchmarks.harness import report

    torch.set_num_threads(1)
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(options.turns):
        for way in WAYS:
            results[way].append(measure(way, options))
    seconds = {way: [s for run in runs for s in run["seconds"]] for way, runs in results.items()}
    least = {way: min(values) for way, values in seconds.items()}
    result: dict[str, Any] = {
        "question": "time and memory of a pre-training step with each callback of NAMC",
        "size": "full" if options.full else "small",
        "batch": options.batch,
        "step_cpu_s": {
            way: {"least": least[way], "median": statistics.median(values), "steps": len(values)}
            for way, values in seconds.items()
        },
        "times_slower": {way: least[way] / least["neither"] for way in WAYS},
        "saved_for_backward_mb": {way: results[way][0]["saved_bytes"] / 1e6 for way in WAYS},
        "parameters_mb": {way: results[way][0]["parameter_bytes"] / 1e6 for way in WAYS},
    }
    report(result, options.out, "lightning", "open_clip_torch", seeds=[0, 1])


if __name__ == "__main__":
    main()
