"""Does preference optimisation teach a captioner anything, and does the adversary help? Three seeds, one SFT each.

    python benchmarks/preference_learning.py [--seeds 1 2 3] [--pairs 3000] [--out results/preference_learning.json]
    python benchmarks/preference_learning.py --sweep   # |N| in 16 to 256 and 1 / tau in 0.25 to 4 (Figure 4)

Rendered CLEVR-Change pairs of 64 pixels. A PairTransformer is trained as in recipes/adpo.yaml; from its checkpoint the
supervised training goes on (SFT+, the fair rival: as many steps on as many captions), or DPO, ADPO and DPO against
planted counterfactuals (which know the truth and so are no method, but say what perfect negatives would give) take
over. The SFT policy has had 3 epochs, and so still has something to learn; after 8 (--sft_epochs 8, one seed) nothing
that followed helped. Measured on held-out pairs: CIDEr-D, and the forced choice between the truth and planted
counterfactuals.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from training import quiet_trainer

from lightning_idc.callbacks.forced_choice import ForcedChoice
from lightning_idc.core.schedules import WarmupCosine
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.data.synthetic.cells import SyntheticCells
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.methods.adpo.negatives import Counterfactual
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.pair_transformer.module import PairTransformer
from lightning_idc.methods.pretraining.cell_classification import ObjectNaming

CANDIDATES = (16, 64, 128, 256)
SHARPNESS = (0.25, 0.5, 1.0, 2.0, 4.0)
METRICS = ("test/CIDEr-D", "test/forced_choice")


def adamw(rate: float) -> Any:
    return lambda groups: torch.optim.AdamW(groups, lr=rate, fused=True)


class Study:
    """All trainings of one seed.

    Args:
        given: command line.
        folder: for checkpoints.
        seed: of training.
    """

    def __init__(self, given: argparse.Namespace, folder: Path, seed: int) -> None:
        self.given, self.folder, self.seed = given, folder, seed
        self.sizes: dict[str, Any] = dict(
            train_pairs=given.pairs, val_pairs=8, test_pairs=given.test_pairs, cache_dir=given.cache, progress=False
        )

    def trainer(self, epochs: int, callbacks: list[Callback]) -> Trainer:
        seed_everything(self.seed, workers=True, verbose=False)
        return quiet_trainer(
            max_epochs=epochs,
            limit_val_batches=0,
            gradient_clip_val=1.0,
            callbacks=callbacks,
            enable_checkpointing=True,
            default_root_dir=self.folder,
        )

    def saver(self, name: str) -> ModelCheckpoint:
        return ModelCheckpoint(self.folder, filename=name, enable_version_counter=False)

    def supervised(self) -> str:
        """Checkpoint of the SFT policy."""
        data = SyntheticCells(**self.sizes, batch_size=64)
        seed_everything(self.seed, workers=True, verbose=False)  # the namer is made before its trainer
        namer = ObjectNaming(optimizer=adamw(1e-2))
        self.trainer(self.given.look_epochs, [self.saver("look")]).fit(namer, data)
        captioner = PairTransformer(
            backbone_weights=str(self.folder / "look.ckpt"),
            freeze_backbone=True,
            captions_per_pair=3,
            dropout=0.0,
            optimizer=adamw(1.5e-3),
            schedule=WarmupCosine(0.1),
        )
        self.trainer(self.given.sft_epochs, [self.saver("sft")]).fit(captioner, SyntheticPairs(**self.sizes))
        return str(self.folder / "sft.ckpt")

    def measured(self, captioner: PairTransformer) -> dict[str, float]:
        found = self.trainer(1, [ForcedChoice()]).test(captioner, SyntheticPairs(**self.sizes), verbose=False)[0]
        return {name.removeprefix("test/"): found[name] for name in METRICS}

    def continued(self, sft: str, callbacks: list[Callback]) -> dict[str, float]:
        """Scores after more training from the SFT policy."""
        captioner = PairTransformer(
            init_from=sft,
            freeze_backbone=True,
            captions_per_pair=2,
            dropout=0.0,
            learning_rates={"addons.retriever": 10.0} if len(callbacks) > 1 else None,
            optimizer=adamw(self.given.rate),
            schedule=WarmupCosine(0.1),
        )
        self.trainer(self.given.epochs, [*callbacks, self.saver("more")]).fit(captioner, SyntheticPairs(**self.sizes))
        return self.measured(captioner)

    def preference(self, **options: Any) -> PreferenceOptimization:
        return PreferenceOptimization(beta=self.given.beta, caption_weight=self.given.caption_weight, **options)

    def adversary(self, candidates: int = 128, sharpness: float = 1.0) -> AdversarialRetriever:
        return AdversarialRetriever(candidates=candidates, scale=10.0, temperature=1 / sharpness, alignment=1.0)

    def ways(self) -> dict[str, list[Callback]]:
        """Callbacks by name of the row."""
        if self.given.sweep:
            pools = {f"|N| = {n}": [self.preference(), self.adversary(candidates=n)] for n in CANDIDATES}
            return pools | {f"1/tau = {s}": [self.preference(), self.adversary(sharpness=s)] for s in SHARPNESS}
        return {
            "SFT+": [],
            "DPO": [self.preference()],
            "ADPO": [self.preference(), self.adversary()],
            "DPO, planted": [self.preference(negatives=Counterfactual())],
        }

    def results(self) -> dict[str, dict[str, float]]:
        sft = self.supervised()
        rows = {"SFT": self.measured(PairTransformer.load_from_checkpoint(sft))}
        print(self.seed, "SFT", rows["SFT"], flush=True)
        for name, callbacks in self.ways().items():
            rows[name] = self.continued(sft, callbacks)
            print(self.seed, name, rows[name], flush=True)
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--sweep", action="store_true", help="over the pool's size and the retriever's temperature")
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--test_pairs", type=int, default=300)
    parser.add_argument("--look_epochs", type=int, default=5)
    parser.add_argument("--sft_epochs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--caption_weight", type=float, default=1.0)
    parser.add_argument("--cache", help="folder for rendered pairs")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: list[dict[str, dict[str, float]]] = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            found.append(Study(given, Path(folder), seed).results())
    summary: dict[str, dict[str, list[float]]] = {}
    for way in found[0]:
        summary[way] = {}
        for name in found[0][way]:
            values = [rows[way][name] for rows in found]
            summary[way][name] = [statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0]
        shown = "  ".join(f"{name} {mean:6.1f} +- {spread:4.1f}" for name, (mean, spread) in summary[way].items())
        print(f"{way:<14} {shown}")
    if given.out:
        from environment import describe

        settings = {name: value for name, value in vars(given).items() if name not in ("cache", "out")}
        result = {"settings": settings, "environment": describe("lightning"), "mean_and_stdev": summary, "seeds": found}
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
