"""The four captioners of ``combinations.py``, their pre-trained parts, and the real and produced pairs of all."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, seed_everything
from PIL import Image as ImageFile
from torch import nn

from benchmarks.harness import quiet_trainer
from benchmarks.studies.budget import Budget, ByClock
from benchmarks.studies.procap_parts import TOKENIZER
from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.synthetic import SyntheticCells, SyntheticPairs
from lightning_idc.data.transforms.robustness import ReplaceWords
from lightning_idc.methods.clip4idc.module import Clip4Idc, Clip4IdcRetrieval
from lightning_idc.methods.clip4idc.pretrain import PairNaming
from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
from lightning_idc.methods.img_diff.edits import PasteEdits
from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
from lightning_idc.methods.namc.module import NAMC
from lightning_idc.methods.namc.relevance import RelevancePretraining
from lightning_idc.methods.procap.module import ProCap
from lightning_idc.methods.procap.tokenizer import NamingTokenizer
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.models.pretraining.cell_classification import ObjectNaming
from lightning_idc.models.schedules import WarmupCosine
from lightning_idc.nn.vocabulary import Vocabulary, words_of
from lightning_idc.synthesis.release import ReleasePairs
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import ImageFolder
from lightning_idc.synthesis.stages import Sequential
from lightning_idc.utils.outputs import save_json

SIDE, EDITED = 64, 96
"""Sides of the pictures that captioners see, and of those that are pasted into, which the filters see."""
WORLD: dict[str, Any] = {"things": (2, 3), "camera_jitter": 0.0}
PROCEDURES: dict[str, Any] = {
    "queries": 1,
    "width": 96,
    "layers": 3,
    "heads": 4,
    "relative_position_bias": True,
    "decoder_width": 96,
    "decoder_heads": 4,
}
CLIP: dict[str, Any] = {
    "embed_dim": 64,
    "quick_gelu": True,
    "vision_cfg": {"image_size": SIDE, "patch_size": 8, "width": 64, "head_width": 32, "layers": 3},
    "text_cfg": {"context_length": 48, "width": 64, "heads": 2, "layers": 2},
}
TOWER: dict[str, Any] = {"clip": CLIP, "intra_layers": 1, "stem": True}
STEM = "net.encoder.clip.visual.conv1"
RATES = {"baseline": 1.5e-3, "namc": 1.5e-3, "procap": 1e-3, "clip4idc": 1.5e-3}
"""Learning rates of the first training, by captioner."""
FROZEN = {"baseline": "net.backbone", "namc": "net.backbone", "procap": "net.tokenizer.encoder", "clip4idc": STEM}
"""Modules whose features are kept on disk, as nothing trains them."""


def adamw(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda groups: torch.optim.AdamW(groups, lr=rate, fused=True)


class CaptionRelevance(RelevancePretraining):
    """Learns which words describe which patches, from captions that each describe both images."""

    def _texts(self, captions: list[list[str]], ids: list[str]) -> list[list[list[str]]]:
        words = [words_of(own[0]) for own in captions]
        return [words, words]


class SteadyClip4Idc(Clip4Idc):
    """CLIP4IDC with frozen first convolutions, like the backbones of the others."""

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        net = super().build_net(vocabulary)
        net.get_submodule(STEM.removeprefix("net.")).requires_grad_(False).eval()
        return net


CLASSES: dict[str, type[PairCaptioner]] = {
    "baseline": PairTransformer,
    "namc": NAMC,
    "procap": ProCap,
    "clip4idc": SteadyClip4Idc,
}


class World:
    """Pairs, produced pairs and pre-trained parts, shared by all seeds.

    Args:
        args: command line.
        folder: folder of these; existing ones are reused.
    """

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.sizes: dict[str, Any] = {
            "train_pairs": args.pairs,
            "val_pairs": 8,
            "test_pairs": args.test_pairs,
            "render_size": SIDE,
            "no_change": args.no_change,
            "cache_dir": args.cache,
            "progress": False,
            **WORLD,
        }

    def pairs(self, seed: int = 0, noise: float = 0.0) -> SyntheticPairs:
        """Real pairs; a share of the words of their training captions is replaced by others."""
        corruption = ReplaceWords(noise) if noise else None
        return SyntheticPairs(**self.sizes, seed=seed, batch_size=self.args.batch, corruption=corruption)

    def produced(self) -> tuple[PairDataModule, float]:
        """Pairs that were pasted together in other scenes, with the captions that the slots of Img-Diff wrote.

        Returns:
            them, and the seconds of the processor that they took.
        """
        target, record = self.folder / "produced", self.folder / "produced.json"
        if not record.is_file():
            began = time.process_time()
            edits = PasteEdits(EDITED, ["add", "remove", "replace", "recolor"], (1, 1), (0.12, 0.26), seed=1)
            slots = (PairSimilarity, DifferenceAreas, RegionCaptions)
            release = ReleasePairs(str(target / "release"), shares=(1.0, 0.0, 0.0))
            chain = Sequential([*(part(filters="embedded") for part in slots), DifferenceCaptions(), release])
            scenes = ImageFolder(str(self._scenes()), copies=-(-self.args.produced // self.args.scenes))
            run(edits, scenes, target / "edits", limit=self.args.produced)
            counts = run(chain, str(target / "edits"), target / "made").counts()
            save_json(record, {"seconds": time.process_time() - began, "counts": counts}, overwrite=True)
        results = json.loads(record.read_text(encoding="utf-8"))
        return FolderPairs(target / "release", shares=(1.0, 0.0, 0.0)), results["seconds"]

    def _scenes(self) -> Path:
        """Pictures of other scenes of the world, the after of no pair, without a label."""
        folder = self.folder / "scenes"
        sizes = {**self.sizes, "train_pairs": self.args.scenes, "val_pairs": 1, "test_pairs": 1}
        source = SyntheticPairs(**{**sizes, "render_size": EDITED}, data_seed=1).source("train")
        folder.mkdir(exist_ok=True)
        for number in range(len(source)):
            picture = np.array(source.images[number][0]).transpose(1, 2, 0)
            ImageFile.fromarray(picture).save(folder / f"{number}.png")
        return folder

    def words(self) -> list[str]:
        """Vocabulary of all captioners, which covers real and produced captions."""
        return Vocabulary.build([*self.pairs().train_captions(), *self.produced()[0].train_captions()]).words

    def _once(self, name: str, epochs: int, make: Callable[[], tuple[LightningModule, PairDataModule]]) -> str:
        path = self.folder / f"{name}.ckpt"
        if not path.is_file():
            seed_everything(0, workers=True, verbose=False)
            model, data = make()
            trainer = quiet_trainer(max_epochs=epochs, limit_val_batches=0, gradient_clip_val=1.0)
            trainer.fit(model, data)
            trainer.save_checkpoint(path)
        return str(path)

    def look(self) -> str:
        """A backbone that names objects."""

        def make() -> tuple[LightningModule, Any]:
            model = ObjectNaming(optimizer=adamw(1e-2), schedule=WarmupCosine(0.1))
            return model, SyntheticCells(**self.sizes, batch_size=64)

        return self._once("look", self.args.look_epochs, make)

    def tower(self) -> str:
        """CLIP4IDC's image tower, which names the objects of each patch of its own and of the other image."""
        look = self.look()

        def make() -> tuple[LightningModule, Any]:
            rate: dict[str, Any] = {"optimizer": adamw(2e-3), "schedule": WarmupCosine(0.1)}
            model = PairNaming(**TOWER, stem_weights=look, **rate)
            return model, SyntheticCells(**self.sizes, pairs=True, batch_size=32)

        return self._once("tower", self.args.tower_epochs, make)

    def adapted(self) -> str:
        """The same tower after its stage of retrieval between pairs and the captions that CLIP4IDC learns from."""
        tower = self.tower()

        def make() -> tuple[LightningModule, Any]:
            rate: dict[str, Any] = {"optimizer": adamw(1e-3), "schedule": WarmupCosine(0.1)}
            model = Clip4IdcRetrieval(**TOWER, tower_weights=tower, vocabulary=self.words(), mask_equal=True, **rate)
            return model, self.pairs(noise=self.args.noise)

        return self._once("adapted", self.args.adapt_epochs, make)

    def tokenizer(self) -> str:
        """ProCap's tokenizer, which also learned to name objects."""

        def make() -> tuple[LightningModule, Any]:
            model = NamingTokenizer(**TOKENIZER, optimizer=adamw(6e-3), schedule=WarmupCosine(0.1))
            return model, SyntheticCells(**self.sizes, grid=4, batch_size=16)

        return self._once("tokenizer", self.args.token_epochs, make)

    def prepare(self) -> None:
        """Make everything that the captioners start from."""
        self.adapted()
        self.tokenizer()
        self.produced()

    def captioner(self, name: str, budget: Budget, start: str | None, rate: float, **options: Any) -> PairCaptioner:
        """A captioner for a training that a budget ends.

        Args:
            name: of the captioner.
            budget: of its training.
            start: checkpoint to go on from; None for a new one on pre-trained parts.
            rate: of learning, at the top.
            options: of the captioner.
        """
        schedule = ByClock.over_the_rest(budget)
        shared: dict[str, Any] = {"captions_per_pair": 3, "optimizer": adamw(rate), "schedule": schedule, **options}
        shared |= {"vocabulary": self.words()} if start is None else {"init_from": start}
        if name == "procap":
            made = {**PROCEDURES, "tokenizer": self.tokenizer(), "image_size": (SIDE, SIDE)}
            return ProCap(**made, dropout=0.0, encoder_schedule=schedule, **shared)
        if name == "clip4idc":
            tower: dict[str, Any] = {"encoder_weights": self.adapted()} if start is None else {}
            return SteadyClip4Idc(**TOWER, **tower, decoder_layers=2, heads=4, dropout=0.0, **shared)
        look: dict[str, Any] = {"backbone_weights": self.look()} if start is None else {}
        if name == "namc":
            return NAMC(width=96, hidden=192, dropout=0.0, freeze_backbone=True, **look, **shared)
        return PairTransformer(width=96, dropout=0.0, freeze_backbone=True, **look, **shared)
