"""Does training on produced pairs before the real ones improve a captioner, as in Img-Diff? Two sizes of real data.

    python -m benchmarks.studies.synthesis_training [--seeds 1 2 3] [--world 300 3000] [--out FILE]
    python -m benchmarks.studies.synthesis_training --world 300 --seeds 3 --only real produced --part parts/300-3.json

"Real" pairs are rendered CLEVR-Change pairs of 64 pixels, all of them changed, light and camera included. Produced ones
are made of other scenes of that world, of which no label is used: rendered things are pasted, removed, replaced or
recoloured there, the pair goes through the filters of Img-Diff with the embedded slots, and what is learned are the
captions that these slots write ("a red metal cube was removed"). A PairTransformer is trained on a backbone that names
objects, the same for all rows and frozen: it stands in for a pretrained encoder.

Every row is two trainings of ``--steps`` steps, the second on real pairs with the schedule and rate of the first. Rows
differ in the first: ``real`` trains on real pairs there as well, ``shuffled`` on produced images with captions of other
produced pairs, ``produced`` on produced pairs, and ``worded`` on the same pairs with sentences of the benchmark ("the
red metal cube has been removed"). So ``produced`` over ``shuffled`` is the effect of produced captions, and that of the
method at equal steps is ``produced`` over ``real``. All are tested on the same real pairs; the facts of captions do not
depend on the wording. ``harness.py`` describes the baselines and intervals of every score. ``--world 16 --produced 24
--steps 4 --naming_epochs 1 --test_pairs 16 --seeds 1`` is a smoke test.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402 - after the number of threads is set
import torch  # noqa: E402
from lightning.pytorch import LightningModule, Trainer, seed_everything  # noqa: E402
from PIL import Image as ImageFile  # noqa: E402

from benchmarks.harness import adamw, quiet_trainer  # noqa: E402
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
from lightning_idc.data.synthetic.claims import Attributes, ParsedChange  # noqa: E402
from lightning_idc.data.synthetic.phrases import sentences  # noqa: E402
from lightning_idc.data.synthetic.scene import COLORS, MATERIALS  # noqa: E402
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

ROWS = ("real", "shuffled", "produced", "worded")
SIDE = 64
EDITED = 96
"""Side of the pictures that are pasted into, which the filters see."""


class Recaptioned(PairDataModule):
    """Pairs of another data module with other captions.

    Args:
        data: source of the pairs.
        view: view of a split with the new captions.
        options: options of `PairDataModule`.
    """

    def __init__(self, data: PairDataModule, view: Callable[[PairSource], View], **options: Any) -> None:
        super().__init__(**options)
        self.data, self.view = data, view

    def prepare_data(self) -> None:
        self.data.prepare_data()

    def source(self, split: Split) -> PairSource:
        return self.view(self.data.pairs_of(split))


class NewCaptions(View):
    """Pairs whose samples have the captions of the view."""

    def load(self, index: int) -> PairSample:
        sample = super().load(index)
        sample.captions = self.captions(index)
        return sample


class ShuffledCaptions(NewCaptions):
    """Pairs with captions of other pairs."""

    def __init__(self, source: PairSource, seed: int) -> None:
        super().__init__(source)
        order = np.random.default_rng(seed).permutation(len(source))
        self.other = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))

    def captions(self, index: int) -> list[str]:
        return super().captions(self.other[index])


class BenchmarkWording(NewCaptions):
    """Pairs with the benchmark's sentences for the produced captions."""

    def captions(self, index: int) -> list[str]:
        return [sentence for caption in super().captions(index) for sentence in in_words_of_benchmark(caption)]


def in_words_of_benchmark(caption: str) -> list[str]:
    """Sentences of CLEVR-Change with the content of a sentence of `TemplateTeller`, which names no relation.

    >>> in_words_of_benchmark("a red metal cube was replaced by a blue metal cube")[1]
    'the red metal cube became blue'
    """
    pasted = re.fullmatch(r"an? (.+) was (removed|added|replaced by an? (.+))", caption)
    if pasted is None:
        return [caption]
    noun, change, other = pasted.groups()
    thing = Attributes(size=noun)  # the whole noun: its order of words is that of the benchmark
    if other is None:
        return sentences(ParsedChange("drop" if change == "removed" else "add", thing))
    new = set(other.split()) - set(noun.split())
    if len(new) == 1 and new <= {*COLORS, *MATERIALS}:
        (value,) = new
        return sentences(ParsedChange("color" if value in COLORS else "texture", thing, value=value))
    return [f"the {noun} was replaced by the {other}"]


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

    @cached_property
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
        trainer = quiet_trainer(limit_val_batches=0, gradient_clip_val=1.0, default_root_dir=self.folder, **length)
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

    def training(self, data: PairDataModule, **start: Any) -> tuple[Trainer, PairTransformer]:
        """Train on ``--steps`` batches of some pairs, from a backbone or a captioner."""
        draws = self.args.steps * self.args.batch
        mixture = Mixture({"pairs": data}, {"pairs": 1.0}, draws, batch_size=self.args.batch, image_size=SIDE)
        seed_everything(self.seed, workers=True, verbose=False)
        captioner = PairTransformer(
            freeze_backbone=True,
            captions_per_pair=3,
            optimizer=adamw(1.5e-3),
            schedule=WarmupCosine(0.1),
            **start,
        )
        return self.fitted(captioner, mixture, max_epochs=1), captioner

    def trained(self, name: str) -> Tested:
        """What a captioner says after two trainings, the second of which is on real pairs."""
        first = self.folder / f"{name}.ckpt"
        self.training(self.first(name), backbone_weights=self.backbone())[0].save_checkpoint(first)
        trainer, captioner = self.training(self.real(), init_from=str(first))
        return test_captions(trainer, captioner, self.real())[0], {}

    def first(self, name: str) -> PairDataModule:
        """Pairs of the first training of a row."""
        if name == "real":
            return self.real()
        pairs = self.produced[0]
        views = {"shuffled": partial(ShuffledCaptions, seed=self.seed), "worded": BenchmarkWording}
        return Recaptioned(pairs, views[name]) if name in views else pairs

    def rows(self, names: list[str]) -> tuple[dict[str, Tested], dict[str, Any]]:
        """What every row says, and what is known of the produced pairs."""
        about = self.produced[1] if set(names) - {"real"} else {}
        results = {
            name: load_or_test(self.folder / f"{name}-{self.world}.json", partial(self.trained, name)) for name in names
        }
        return results, about


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
    arguments(parser, (1, 2, 3))
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = selected_rows(args, ROWS)
    worlds: dict[str, Study] = {}
    for world, seed, folder in each_run(args):
        print(f"{world} real pairs, seed {seed}", flush=True)
        begin = time.process_time()
        run = Run(args, folder, seed, world)
        results, about = run.rows(names)
        study = worlds.setdefault(world, Study.of(run.real(), ROWS, "real", unchanged=0.0))
        study.add(seed, results, **about, seconds=time.process_time() - begin)
        save_results(args, worlds, "lightning")
    print_summaries(worlds)


if __name__ == "__main__":
    main()
