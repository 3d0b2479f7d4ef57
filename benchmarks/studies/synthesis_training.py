"""Do produced pairs improve a captioner of real pairs when mixed into its training data? Two sizes of real data.

    python -m benchmarks.studies.synthesis_training [--seeds 1 2 3 4 5] [--world 300 3000] [--out FILE]
    python -m benchmarks.studies.synthesis_training --world 300 --seeds 3 --only blind real --part parts/300-3-a.json

"Real" pairs are rendered CLEVR-Change pairs of 64 pixels, all of them changed, light and camera included. Produced ones
are made of other scenes of that world, of which no label is used: rendered things are pasted, removed, replaced or
recoloured there, the pair goes through the filters of Img-Diff with the embedded slots, and what is learned are the
captions that these slots write ("a red metal cube was removed"). A PairTransformer is trained on a backbone that names
objects, the same for all rows and frozen: it stands in for a pretrained encoder.

Rows, all of equally many steps of equally many pairs: ``blind`` trains on real captions with images of other pairs;
``real`` on real pairs; in ``real+dealt`` half of every epoch are produced images with captions of other produced pairs,
in ``real+produced`` with their own. The difference between the last two is the effect of produced captions; that
between ``real+produced`` and ``real`` is the total effect of mixing. All are tested on the same real pairs; the facts
of captions do not depend on the wording. ``harness.py`` describes the baselines and intervals of every score. ``--world
16 --produced 24 --steps 4 --naming_epochs 1 --test_pairs 16 --seeds 1`` is a smoke test.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402 - after the number of threads is set
import torch  # noqa: E402
from lightning.pytorch import LightningModule, Trainer, seed_everything  # noqa: E402
from PIL import Image as ImageFile  # noqa: E402

from benchmarks.harness import quiet_trainer  # noqa: E402
from benchmarks.studies.harness import (  # noqa: E402
    Study,
    Tested,
    arguments,
    each_run,
    load_or_test,
    print_summaries,
    save_results,
    selected_rows,
    test_captions,
)
from lightning_idc.data.benchmarks.folder import FolderPairs  # noqa: E402
from lightning_idc.data.datamodule import PairDataModule, Split  # noqa: E402
from lightning_idc.data.mixture import Mixture  # noqa: E402
from lightning_idc.data.source import PairSource, View  # noqa: E402
from lightning_idc.data.synthetic import SyntheticCells, SyntheticPairs  # noqa: E402
from lightning_idc.images.types import PairSample  # noqa: E402
from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity, box_scores  # noqa: E402
from lightning_idc.methods.img_diff.edits import PasteEdits  # noqa: E402
from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions  # noqa: E402
from lightning_idc.models.pair_transformer.module import PairTransformer  # noqa: E402
from lightning_idc.models.pretraining.cell_classification import ObjectNaming  # noqa: E402
from lightning_idc.models.schedules import WarmupCosine  # noqa: E402
from lightning_idc.synthesis.release import ReleasePairs  # noqa: E402
from lightning_idc.synthesis.run import run  # noqa: E402
from lightning_idc.synthesis.sources import ImageFolder  # noqa: E402
from lightning_idc.synthesis.stages import Sequential  # noqa: E402
from lightning_idc.synthesis.store import RecordStore  # noqa: E402

ROWS = ("blind", "real", "real+dealt", "real+produced")
SIDE = 64
EDITED = 96
"""Side of the pictures that are pasted into, which the filters see."""


class Dealt(PairDataModule):
    """Training pairs of another data module, each with the captions of another pair.

    Args:
        data: source of the pairs.
        options: options of `PairDataModule`.
    """

    def __init__(self, data: PairDataModule, **options: Any) -> None:
        super().__init__(**options)
        self.data = data

    def prepare_data(self) -> None:
        self.data.prepare_data()

    def source(self, split: Split) -> PairSource:
        return DealtCaptions(self.data.pairs_of(split), self.seed)


class DealtCaptions(View):
    """Pairs with captions of other pairs."""

    def __init__(self, source: PairSource, seed: int) -> None:
        super().__init__(source)
        order = np.random.default_rng(seed).permutation(len(source))
        self.other = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))

    def load(self, index: int) -> PairSample:
        sample = super().load(index)
        sample.captions = self.captions(index)
        return sample

    def captions(self, index: int) -> list[str]:
        return super().captions(self.other[index])


class Run:
    """All training runs of one seed with one number of real pairs.

    Args:
        args: command line.
        folder: folder of the backbone, the produced pairs and finished rows; existing files are reused.
        seed: seed of training and of the pasted objects.
        world: number of real pairs.
    """

    def __init__(self, args: argparse.Namespace, folder: Path, seed: int, world: str) -> None:
        self.args, self.folder, self.seed, self.world = args, folder, seed, world
        folder.mkdir(parents=True, exist_ok=True)
        self.rendered: dict[str, Any] = dict(no_change=0.0, cache_dir=args.cache, progress=False)

    def real(self) -> SyntheticPairs:
        count = int(self.world)
        return SyntheticPairs(train_pairs=count, val_pairs=8, test_pairs=self.args.test_pairs, **self.rendered)

    def scenes(self) -> Path:
        """Pictures of other scenes of the world, the after of no pair, without a label."""
        folder = self.folder / "scenes"
        if not folder.is_dir():
            sizes = {"train_pairs": self.args.scenes, "val_pairs": 1, "test_pairs": 1, "render_size": EDITED}
            source = SyntheticPairs(data_seed=1, **sizes, **self.rendered).source("train")
            begun = self.folder / "scenes.begun"
            begun.mkdir(exist_ok=True)
            for number in range(len(source)):
                picture = np.array(source.images[number][0]).transpose(1, 2, 0)
                ImageFile.fromarray(picture).save(begun / f"{number}.png")
            begun.rename(folder)
        return folder

    def produced(self) -> tuple[FolderPairs, dict[str, Any]]:
        """Produced pairs with the captions of the embedded slots, and what is known of them."""
        target, count = self.folder / "produced", self.args.produced
        edits = PasteEdits(EDITED, ["add", "remove", "replace", "recolor"], (1, 1), (0.12, 0.26), seed=self.seed)
        chain = Sequential(
            [
                *(part(filters="embedded") for part in (PairSimilarity, DifferenceAreas, RegionCaptions)),
                DifferenceCaptions(),
                ReleasePairs(str(target / "release"), shares=(1.0, 0.0, 0.0)),
            ]
        )
        source = ImageFolder(str(self.scenes()), copies=-(-count // self.args.scenes))
        run(edits, source, target / "edits", limit=count)
        store = run(chain, str(target / "edits"), target / "made")
        data = FolderPairs(target / "release", shares=(1.0, 0.0, 0.0))
        return data, {"produced": store.counts(), "boxes": box_scores(list(store)), **right(store)}

    def fitted(self, model: LightningModule, data: Any, **length: int) -> Trainer:
        trainer = quiet_trainer(limit_val_batches=0, gradient_clip_val=1.0, **length)
        trainer.fit(model, data)
        return trainer

    def backbone(self) -> str:
        """Checkpoint of the backbone that names objects."""
        path = self.folder / "naming.ckpt"
        if not path.is_file():
            sizes = {"train_pairs": self.args.named, "val_pairs": 1, "test_pairs": 1}
            seed_everything(self.seed, workers=True, verbose=False)
            namer = ObjectNaming(optimizer=adamw(1e-2))
            data = SyntheticCells(data_seed=2, **sizes, **self.rendered, batch_size=64)
            self.fitted(namer, data, max_epochs=self.args.naming_epochs).save_checkpoint(path)
        return str(path)

    def trained(self, parts: dict[str, PairDataModule]) -> Tested:
        """What a captioner says that was trained on equal shares of the parts."""
        draws = self.args.steps * self.args.batch
        data = Mixture(parts, dict.fromkeys(parts, 1.0), draws, batch_size=self.args.batch, image_size=SIDE)
        seed_everything(self.seed, workers=True, verbose=False)
        captioner = PairTransformer(
            backbone_weights=self.backbone(),
            freeze_backbone=True,
            captions_per_pair=3,
            optimizer=adamw(1.5e-3),
            schedule=WarmupCosine(0.1),
        )
        trainer = self.fitted(captioner, data, max_epochs=1)
        return test_captions(trainer, captioner, self.real())[0], {}

    def rows(self, names: list[str]) -> tuple[dict[str, Tested], dict[str, Any]]:
        """What every row says, and what is known of the produced pairs."""
        produced, about = self.produced() if {"real+dealt", "real+produced"} & set(names) else (None, {})
        results = {}
        for name in names:
            parts: dict[str, PairDataModule] = {"real": Dealt(self.real()) if name == "blind" else self.real()}
            if name.startswith("real+"):
                assert produced is not None
                parts["produced"] = produced if name == "real+produced" else Dealt(produced)
            path = self.folder / f"{name}-{self.world}.json"
            results[name] = load_or_test(path, partial(self.trained, parts))
        return results, about


def adamw(rate: float) -> Any:
    return lambda groups: torch.optim.AdamW(groups, lr=rate, fused=True)


def right(store: RecordStore) -> dict[str, Any]:
    """Fraction of the accepted records whose caption exactly describes the pasted object."""
    said = expected = 0
    for record in store:
        if record.dropped is None:
            first, second = (f"a {noun}" if noun else None for noun in record.facts["nouns"])
            known = f"{first} was removed" if second is None else f"{second} was added"
            known = known if None in (first, second) else f"{first} was replaced by {second}"
            said, expected = said + (record.facts["summary"] == known), expected + 1
    return {"captions right": said / max(expected, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", nargs="+", default=["300", "3000"], help="numbers of real pairs")
    parser.add_argument("--produced", type=int, default=800)
    parser.add_argument("--scenes", type=int, default=500, help="pictures that are pasted into")
    parser.add_argument("--named", type=int, default=1500, help="pairs of pictures that the backbone learns from")
    parser.add_argument("--naming_epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--test_pairs", type=int, default=300)
    arguments(parser, (1, 2, 3, 4, 5))
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = selected_rows(args, ROWS)
    worlds: dict[str, Study] = {}
    for world, seed, folder in each_run(args):
        print(f"{world} real pairs, seed {seed}", flush=True)
        begin = time.process_time()
        run = Run(args, folder, seed, world)
        results, about = run.rows(names)
        study = worlds.setdefault(world, Study.of(run.real(), ROWS, "real"))
        study.add(seed, results, **about, seconds=time.process_time() - begin)
        save_results(args, worlds, "lightning")
    print_summaries(worlds)


if __name__ == "__main__":
    main()
