"""Do produced pairs help a captioner on real ones? Circuit boards of DeepPCB, with few of their captions.

    python benchmarks/synthesis_training.py --root FOLDER [--pairs 300] [--produced 900] [--epochs 6 14] [--out FILE]

Produced pairs come from the templates of the training boards, which show no defect: a dot, a bar or a wedge in black or
white is pasted into a random part of a template, and the pair goes through Img-Diff's similarity filter and its area
generator. No label of DeepPCB is used for that. A backbone learns to name what was pasted in the cells that the kept
boxes point at; then the baseline captioner is trained on real pairs and their captions.

Arms: ``real`` starts from random weights, ``produced`` from that backbone, and ``longer`` from random weights with as
many epochs more as the backbone took, counted in processor time. Every score is on the first 250 test pairs after the
last epoch.
``--pairs 16 --produced 48 --epochs 1 1 --seeds 1 --test_pairs 16`` tries the script.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from training import quiet_trainer

from lightning_idc.core.schedules import WarmupCosine
from lightning_idc.core.types import PairSample
from lightning_idc.data.benchmarks.deeppcb import DeepPCB
from lightning_idc.data.benchmarks.deeppcb_cells import change_cells
from lightning_idc.data.transforms.pairs import Flip
from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
from lightning_idc.methods.img_diff.edits import PasteEdits
from lightning_idc.methods.img_diff.filtering import kept
from lightning_idc.methods.pair_transformer.module import PairTransformer
from lightning_idc.methods.pretraining.cell_classification import ChangeNaming
from lightning_idc.synthesis.pipeline import run
from lightning_idc.synthesis.slots.contours import DifferenceContours
from lightning_idc.synthesis.slots.embedded import PixelEncoder
from lightning_idc.synthesis.sources import ImageFolder
from lightning_idc.synthesis.stages import Sequential
from lightning_idc.synthesis.store import RecordStore

SHAPES = ("dot", "bar", "wedge")
NAMES = [f"{color} {shape}" for color in ("black", "white") for shape in SHAPES]
METRICS = ("CIDEr-D", "METEOR", "types", "total")


def draw_library(folder: Path) -> None:
    """Cut-outs with the two colours of a board, none of them made from a defect."""
    from PIL import Image

    side = 48
    down, across = np.mgrid[:side, :side] / (side - 1) * 2 - 1
    shapes = {
        "dot": down**2 + across**2 < 0.9,
        "bar": np.abs(across) < 0.35,
        "wedge": (down + 1) / 2 > np.abs(across),
    }
    for name in NAMES:
        color, shape = name.split()
        inside = np.pad(shapes[shape], 2)
        pixels = np.zeros((*inside.shape, 4), np.uint8)
        pixels[..., :3] = 255 * (color == "white")
        pixels[..., 3] = 255 * inside
        Image.fromarray(pixels).save(folder / f"{name.replace(' ', '_')}.png")


def produce(root: str, folder: Path, count: int, size: int, seed: int) -> RecordStore:
    """Pairs from the templates of the training split, through the filters of Img-Diff."""
    templates = folder / "templates"
    templates.mkdir()
    boards = DeepPCB(root)
    for image, _ in boards.source("train").entries:
        stem = image.rsplit(".", 1)[0]
        found = next(path for kind in ("png", "jpg") if (path := Path(root) / f"{stem}_temp.{kind}").is_file())
        shutil.copy(found, templates)
    (folder / "library").mkdir()
    draw_library(folder / "library")
    edits = PasteEdits(size, ["add", "remove"], (1, 2), (0.04, 0.1), str(folder / "library"), noise=0.0, seed=seed)
    # a thing on a board is small, and its neighbours are other traces
    alike, regions = PixelEncoder(side=64), DifferenceContours(0.08, 0.1, least_area=1 / 4000, gap=1 / 24)
    chain = Sequential([PairSimilarity(alike, "embedded"), DifferenceAreas(regions, filters="embedded")])
    copies = -(-count // len(boards.source("train").entries))
    run(edits, ImageFolder(str(templates), copies=copies), folder / "edits", limit=count)
    return run(chain, str(folder / "edits"), folder / "made")


class Cells(Dataset[tuple[Tensor, Tensor]]):
    """Produced pairs with the name of what was pasted in the cell of each kept box, flipped at random."""

    def __init__(self, store: RecordStore) -> None:
        self.samples = [self._sample(record) for record in store if record.dropped is None]
        self.flip = Flip()

    def _sample(self, record: Any) -> PairSample:
        boxes = torch.tensor([[area["box"]] * 2 for area in kept(record.facts["areas"])], dtype=torch.float32)
        noun = next(noun for noun in record.facts["nouns"] if noun is not None)
        kinds = [NAMES.index(noun)] * len(boxes)
        return PairSample(
            record.id, record.image("before"), record.image("after"), [""], None, boxes, None, {"kinds": kinds}
        )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        sample = self.flip(self.samples[index], torch.default_generator)
        return torch.stack([sample.before, sample.after]), change_cells(sample, 8)


def fitted(model: LightningModule, data: LightningDataModule | DataLoader[Any], epochs: int) -> Trainer:
    trainer = quiet_trainer(max_epochs=epochs, devices=1, gradient_clip_val=1.0, limit_val_batches=0)
    trainer.fit(model, data)
    return trainer


def learning(rate: float) -> dict[str, Any]:
    return {"optimizer": lambda groups: torch.optim.AdamW(groups, lr=rate), "schedule": WarmupCosine(0.1)}


def captioned(options: argparse.Namespace, weights: str | None, epochs: int, seed: int) -> dict[str, float]:
    """Train on real pairs and return the test scores."""
    seed_everything(seed, verbose=False)
    size = {"image_size": options.size, "seed": seed}
    train = DeepPCB(options.root, batch_size=16, limit=options.pairs, transform=Flip(), **size)
    test = DeepPCB(options.root, batch_size=50, limit=options.test_pairs, **size)
    captioner = PairTransformer(backbone_weights=weights, captions_per_pair=3, dropout=0.0, **learning(1e-3))
    trainer = fitted(captioner, train, epochs)
    trainer.test(captioner, test, verbose=False)
    scores = {name: float(trainer.callback_metrics[f"test/{name}"]) for name in METRICS[:2]}
    facts = [test.facts("test", said["id"], said["caption"]) for said in captioner.predictions]
    return {**scores, **{name: 100 * statistics.fmean(bool(fact[name]) for fact in facts) for name in METRICS[2:]}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True, help="folder of DeepPCB")
    parser.add_argument("--pairs", type=int, default=300, help="real pairs to train on")
    parser.add_argument("--produced", type=int, default=900)
    parser.add_argument("--epochs", type=int, nargs=2, default=[6, 14], metavar=("PRODUCED", "REAL"))
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--test_pairs", type=int, default=250)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from _harness import report

    warnings.filterwarnings("ignore")
    began = time.monotonic()
    found: dict[str, list[dict[str, float]]] = {"real": [], "produced": [], "longer": []}
    epochs = options.epochs[1]
    about: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        store = produce(options.root, folder, options.produced, options.size, seed=0)
        about["kept"], about["dropped"] = store.counts()
        about["production_s"] = round(time.monotonic() - began)
        cells = Cells(store)
        for seed in options.seeds:
            start = time.process_time()
            seed_everything(seed, verbose=False)
            naming = ChangeNaming(classes=[len(NAMES) + 1], **learning(5e-3))
            loader = DataLoader(cells, 16, shuffle=True)
            fitted(naming, loader, options.epochs[0]).save_checkpoint(folder / "backbone.ckpt")
            spent = time.process_time() - start
            for name, weights in (("real", None), ("produced", str(folder / "backbone.ckpt"))):
                start = time.process_time()
                found[name].append(captioned(options, weights, epochs, seed))
                print(f"seed {seed}, {name}, {time.process_time() - start:.0f} s: {found[name][-1]}", flush=True)
            more = round(epochs * spent / (time.process_time() - start))
            found["longer"].append({**captioned(options, None, epochs + more, seed), "epochs": epochs + more})
            print(f"seed {seed}, longer: {found['longer'][-1]}", flush=True)
            # after each seed, so that a run that is stopped leaves what it has
            done = options.seeds[: len(found["real"])]
            report(result(options, about, found, began), options.out, "lightning", seeds=done)


def result(
    options: argparse.Namespace, produced: dict[str, Any], found: dict[str, list[dict[str, float]]], began: float
) -> dict[str, Any]:
    return {
        "question": "Does a backbone that learned on produced pairs help a captioner on few real ones?",
        "real pairs": options.pairs,
        "produced": produced,
        "epochs": options.epochs,
        "size": options.size,
        "test pairs": options.test_pairs,
        "scores": found,
        "mean": {
            name: {metric: statistics.fmean(run[metric] for run in scores) for metric in METRICS}
            for name, scores in found.items()
        },
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


if __name__ == "__main__":
    main()
