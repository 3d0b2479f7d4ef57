"""With planted noise in pre-training descriptions: is it detected, and do noise masking and reconstruction help?

    python -m benchmarks.studies.noise [--seeds 1 2 3 4 5] [--work FOLDER] [--out FILE] [--smallest]
    python -m benchmarks.studies.noise --seeds 3 --only neither noise --part parts/noise-3.json  # and merge.py

Per seed a pair of encoders is trained on noisy implicit-change descriptions, and NAMC is pre-trained: not at all
(scratch), on the noisy descriptions as they are (neither), with random masking, with noise masking, with noise masking
and reconstruction, with exactly the planted words masked (oracle), and on descriptions without noise (clean). As in
Table 8, noise masking is also trained with an L_NIM that aligns original images and descriptions (align_originals),
masked images and original descriptions (align_image), or original images and masked descriptions (align_description).
Random masking masks as many words and patches as noise masking does in fact, which is more than asked for, since
probabilities are cut at 0. Each is measured twice: as pre-trained, by the share of attribute words that it gets right
in descriptions of held-out pairs without noise and by the share of images beside which it names more things than the
description does, and after fine-tuning on a few clean captions. Fine-tuning has few pairs and many epochs, since with
400 pairs pre-training without any noise gains nothing either. Object naming and the image tokenizer are trained once
for all seeds, in a world of two or three objects and a fixed camera (--things, --camera_jitter), since the default
world takes too long for five seeds. With --host pair_transformer the baseline is pre-trained instead, which learns
faster; its backbone is frozen, so reconstruction is omitted. ``--word_noise 0 --description_noise 0.2
--hallucinations 0.6`` plants the kind of noise that language models make. With ``--judge clean`` the encoders that
detect the noise are trained on clean descriptions, since CLIP was not trained on the paper's either. ``--shift
words40 fog`` fine-tunes and tests each pre-trained captioner on corrupted data as in Table 10, a world each.
``harness.py`` describes the baselines and intervals of every score.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402 - after the number of threads is set
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything  # noqa: E402

from benchmarks.harness import adamw, quiet_trainer  # noqa: E402
from benchmarks.studies.harness import (  # noqa: E402
    Study,
    Tested,
    arguments,
    figures_of,
    load_or_test,
    print_summaries,
    save_results,
    selected_rows,
    test_captions,
    work_folder,
)
from benchmarks.studies.noise_parts import IMAGE_SHARE, WORD_SHARE, MaskPlanted, attributes_right, ceiling, planted  # noqa: E402
from lightning_idc.data.synthetic import SyntheticCells, SyntheticPairs  # noqa: E402
from lightning_idc.data.synthetic.descriptions import DescribedSource, SyntheticDescriptions  # noqa: E402
from lightning_idc.data.transforms.robustness import Corruption, Fog, GaussianNoise, ReplaceWords  # noqa: E402
from lightning_idc.methods.namc.dual_encoder import load_dual_encoder  # noqa: E402
from lightning_idc.methods.namc.masked_reconstruction import MaskedReconstruction  # noqa: E402
from lightning_idc.methods.namc.module import NAMC  # noqa: E402
from lightning_idc.methods.namc.noise import random_probabilities  # noqa: E402
from lightning_idc.methods.namc.noise_masking import NoiseMasking, NoiseMaskingAddon  # noqa: E402
from lightning_idc.methods.namc.relevance import RelevancePretraining  # noqa: E402
from lightning_idc.methods.procap.tokenizer import TokenizerTraining  # noqa: E402
from lightning_idc.models.addon import addons_of  # noqa: E402
from lightning_idc.models.captioner import PairCaptioner  # noqa: E402
from lightning_idc.models.pair_transformer.module import PairTransformer  # noqa: E402
from lightning_idc.models.pretraining.cell_classification import ObjectNaming  # noqa: E402
from lightning_idc.models.schedules import WarmupCosine, WarmupLinear  # noqa: E402

ALIGNED = {"align_originals": (False, False), "align_image": (True, False), "align_description": (False, True)}
"""Of NAMC's Table 8: whether L_NIM compares the masked image, and the masked description."""
ARMS = ("scratch", "neither", "random", "noise", "noise+reconstruction", *ALIGNED, "oracle", "clean")
CONTROL = "neither"
TEST_BATCH = 250
MASKING = ("random", "noise", "noise+reconstruction", *ALIGNED)
EVERYWHERE = ("train", "val", "test")
SHIFTS: dict[str, Callable[[], Corruption] | None] = {
    "clean": None,
    **{f"words{percent}": partial(ReplaceWords, percent / 100) for percent in (20, 40, 60, 80)},
    "noise": GaussianNoise,
    "fog": Fog,
    "noise_everywhere": partial(GaussianNoise, splits=EVERYWHERE),
    "fog_everywhere": partial(Fog, splits=EVERYWHERE),
}
"""Of NAMC's Table 10: words of the fine-tuning captions are replaced, or images are corrupted: those of the test, or
those of all splits, between which the paper does not choose."""


def trained(model: LightningModule, data: Any, epochs: int, callbacks: list[Callback] | None = None) -> Trainer:
    # without clipping, whose norm L_NIM would dominate: it is tens where the caption loss is one
    trainer = quiet_trainer(callbacks=callbacks or [], max_epochs=epochs, limit_val_batches=0)
    trainer.fit(model, data)
    return trainer


class Runs:
    """All training runs of this script.

    Args:
        options: arguments of the command line.
        work: folder of checkpoints.
    """

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work = options, work
        self.paint = options.host != "namc"  # which reads the masks themselves
        self.sizes = dict(
            mode="clevr_change",
            train_pairs=options.rendered,
            val_pairs=options.held_out,
            test_pairs=options.held_out,
            render_size=64,
            things=tuple(options.things),
            camera_jitter=options.camera_jitter,
            cache_dir=options.cache,
            progress=False,
        )

    def descriptions(self, seed: int, limit: int | None = None, noisy: bool = True) -> SyntheticDescriptions:
        options = self.options
        return SyntheticDescriptions(
            options.word_noise if noisy else 0.0,
            options.description_noise if noisy else 0.0,
            hallucinations=options.hallucinations if noisy else 0.0,
            noise_seed=seed,
            seed=seed,
            batch_size=self.options.batch,
            limit=limit,
            **self.sizes,
        )

    def held_out(self, seed: int) -> DescribedSource:
        whole = self.descriptions(seed)
        return whole.source("val")

    def load_or_train(self, name: str, make: Any) -> Path:
        path = self.work / f"{name}.ckpt"
        if not path.is_file():
            make().save_checkpoint(path)
        return path

    def look(self) -> Path:
        def make() -> Trainer:
            seed_everything(0, verbose=False)
            model = ObjectNaming(optimizer=adamw(1e-2), schedule=WarmupLinear(0.1))
            return trained(model, SyntheticCells(batch_size=64, **self.sizes), self.options.look_epochs)

        return self.load_or_train("look", make)

    def tokens(self) -> Path:
        def make() -> Trainer:
            seed_everything(0, verbose=False)
            model = TokenizerTraining(128, 16, 24, (1, 2), 1, 4, optimizer=adamw(2e-3))
            return trained(model, self.descriptions(0), self.options.token_epochs)

        return self.load_or_train("tokens", make)

    def relevance(self, seed: int) -> Path:
        def make() -> Trainer:
            look = str(self.look())  # which seeds for itself where it is not there yet
            seed_everything(seed, verbose=False)
            model = RelevancePretraining(
                backbone_weights=look,
                freeze_backbone=True,
                optimizer=adamw(3e-3),
                schedule=WarmupCosine(0.1),
            )
            data = self.descriptions(seed, noisy=self.options.judge == "noisy")
            return trained(model, data, self.options.relevance_epochs)

        return self.load_or_train(f"relevance-{self.options.judge}-{seed}", make)

    def host(self, **options: Any) -> PairCaptioner:
        rates: dict[str, Any] = dict(optimizer=adamw(1.5e-3), schedule=WarmupCosine(0.1))
        if self.options.host == "namc":
            return NAMC(width=96, hidden=192, dropout=0.0, **rates, **options)
        return PairTransformer(width=96, dropout=0.0, freeze_backbone=True, **rates, **options)

    def arm(self, arm: str, seed: int, shift: str, shares: tuple[float, float]) -> Tested:
        """What one way of pre-training ends in: captions of the test pairs, and figures."""
        result: dict[str, float] = {}
        start = self.work / f"pretrained-{arm}-{seed}.ckpt"
        if arm != "scratch":
            # for all shifts once
            result = figures_of(start, partial(self.pretrain, arm, seed, shares))
        options, look, corruption = self.options, str(self.look()), SHIFTS[shift]
        own: dict[str, Any] = {**self.sizes, "corruption": corruption() if corruption else None}
        seed_everything(seed, verbose=False)
        few = SyntheticPairs(seed=seed, batch_size=options.batch, limit=options.finetune_pairs, **own)
        begun: dict[str, Any] = {"backbone_weights": look} if arm == "scratch" else {"init_from": str(start)}
        tuned = self.host(**begun, captions_per_pair=3)
        trained(tuned, few, options.finetune_epochs)
        said, _ = test_captions(
            quiet_trainer(default_root_dir=self.work), tuned, SyntheticPairs(**own, batch_size=TEST_BATCH)
        )
        return said, result

    def pretrain(self, arm: str, seed: int, shares: tuple[float, float], start: Path) -> dict[str, float]:
        """Pre-train in one way, keep the captioner in ``start``, and measure its descriptions."""
        options = self.options
        data = self.descriptions(seed, options.pretrain_pairs, arm != "clean")
        look = str(self.look())
        seed_everything(seed, verbose=False)
        model = self.host(
            backbone_weights=look,
            captions_per_pair=1,
            learning_rates={"addons.noise_masking": 0.1} if arm in MASKING else None,
        )
        callbacks: list[Callback] = []
        if arm == "random":
            callbacks.append(
                NoiseMasking(
                    str(self.relevance(seed)),
                    image_mask_ratio=shares[0],
                    word_mask_ratio=shares[1],
                    probabilities=random_probabilities,
                    fill_masked=self.paint,
                )
            )
        elif arm in MASKING:
            callbacks.append(
                NoiseMasking(
                    str(self.relevance(seed)),
                    image_mask_ratio=IMAGE_SHARE,
                    word_mask_ratio=WORD_SHARE,
                    fill_masked=self.paint,
                    align_masked=ALIGNED.get(arm, (True, True)),
                )
            )
        elif arm == "oracle":
            callbacks.append(MaskPlanted(data.source("train")))
        if arm.endswith("reconstruction"):
            callbacks.append(MaskedReconstruction(str(self.tokens()), encoder="net.encoder"))
        began = time.process_time()
        trainer = trained(model, data, options.pretrain_epochs, callbacks)
        result = {"pretrain_cpu_s": time.process_time() - began}
        result.update({name.removeprefix("train/"): float(v) for name, v in trainer.callback_metrics.items()})
        trainer.save_checkpoint(start)
        quiet_trainer().validate(model, SyntheticDescriptions(0.0, 0.0, noise_seed=seed, **self.sizes), verbose=False)
        result.update(attributes_right(model.predictions))
        addon = addons_of(model).get("noise_masking")
        if isinstance(addon, NoiseMaskingAddon):
            result["auc_after"] = planted(addon.encoder.eval(), self.held_out(seed))["auc"]
        return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", choices=("namc", "pair_transformer"), default="namc")
    parser.add_argument("--shift", choices=list(SHIFTS), nargs="+", default=["clean"], help="of NAMC's Table 10")
    parser.add_argument("--things", type=int, nargs=2, default=[2, 3], help="fewest and most things of a scene")
    parser.add_argument("--camera_jitter", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rendered", type=int, default=3000)
    parser.add_argument("--held_out", type=int, default=1000)
    parser.add_argument("--pretrain_pairs", type=int, default=800)
    parser.add_argument("--finetune_pairs", type=int, default=100)
    parser.add_argument("--word_noise", type=float, default=0.3)
    parser.add_argument("--description_noise", type=float, default=0.05)
    parser.add_argument("--hallucinations", type=float, default=0.0)
    parser.add_argument("--judge", choices=("noisy", "clean"), default="noisy", help="what the encoders have read")
    parser.add_argument("--look_epochs", type=int, default=4)
    parser.add_argument("--token_epochs", type=int, default=1)
    parser.add_argument("--relevance_epochs", type=int, default=3)
    parser.add_argument("--pretrain_epochs", type=int, default=20)
    parser.add_argument("--finetune_epochs", type=int, default=48)
    parser.add_argument("--smallest", action="store_true", help="only to see that it runs")
    arguments(parser, (1, 2, 3, 4, 5))
    options = parser.parse_args()
    if options.smallest:
        options.rendered, options.held_out = 48, 8
        options.pretrain_pairs = options.finetune_pairs = 48
        for name in ("look", "token", "relevance", "pretrain", "finetune"):
            setattr(options, f"{name}_epochs", 1)
        options.seeds = options.seeds[:1]
    arms = selected_rows(options, ARMS)
    if options.host != "namc" and "noise+reconstruction" in arms:
        parser.error("reconstruction needs --host namc: the other host's backbone is frozen here; see --only")
    torch.set_num_threads(1)
    worlds: dict[str, Study] = {}
    with work_folder(options) as work:
        runs = Runs(options, work)
        names = {shift: options.host if shift == "clean" else f"{options.host}, {shift}" for shift in options.shift}
        begin = time.process_time()
        for seed in options.seeds:
            held_out = runs.held_out(seed)
            noise = planted(load_dual_encoder(runs.relevance(seed)), held_out) | ceiling(held_out)
            print({"seed": seed, "relevance": noise}, flush=True)
            shares = noise["image_share"], noise["word_share"]
            for shift, name in names.items():
                results = {
                    arm: load_or_test(work / f"{arm}-{shift}-{seed}.json", partial(runs.arm, arm, seed, shift, shares))
                    for arm in arms
                }
                if name not in worlds:
                    worlds[name] = Study.of(SyntheticPairs(**runs.sizes), ARMS, CONTROL)
                worlds[name].add(seed, results, relevance=noise, seconds=time.process_time() - begin)
                begin = time.process_time()
            save_results(options, worlds, "lightning")
    print_summaries(worlds)


if __name__ == "__main__":
    main()
