"""NAMC and its two callbacks, on NAMC and on other captioners. Oracles: direct computations of the paper's losses."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from helpers.captioners import SIDE, Foreign, RejectedPairs
from helpers.processes import launch
from helpers.training import QUIET
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringDataModule
from torch import Tensor, nn

from lightning_idc.cli import main
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.data.synthetic.descriptions import SyntheticDescriptions
from lightning_idc.images.types import PairBatch, PairFeatures
from lightning_idc.methods.clip4idc.module import Clip4Idc
from lightning_idc.methods.namc.dual_encoder import SmallDualEncoder, vocabulary_with_mask
from lightning_idc.methods.namc.losses import info_nce, sdm
from lightning_idc.methods.namc.masked_encoder import MaskedImageEncoder
from lightning_idc.methods.namc.masked_reconstruction import MaskedReconstruction
from lightning_idc.methods.namc.module import NAMC
from lightning_idc.methods.namc.net import NamcNet
from lightning_idc.methods.namc.noise import fill_masked_patches, random_probabilities
from lightning_idc.methods.namc.noise_masking import NoiseMasking, NoiseMaskingAddon
from lightning_idc.methods.namc.reconstruction import ImageTokens, MaskedReconstructionAddon
from lightning_idc.methods.namc.reconstruction_quality import ReconstructionQuality, masked_quality
from lightning_idc.methods.procap.module import ProCap
from lightning_idc.models.addon import AddonSteps, TrainingStep, addons_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.nn.backbones import SmallCNN
from lightning_idc.nn.decoding.decoding import greedy, greedy_uncached
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.nn.image_tokenizer import CONFIG_KEY, ImageTokenizer
from lightning_idc.nn.vocabulary import (
    BERT_SPECIALS,
    SPECIALS,
    UNK,
    BertVocabulary,
    ClipVocabulary,
    Vocabulary,
    words_of,
)
from lightning_idc.utils.errors import CheckpointError, ConfigError, DataError, IDCError

CAPTIONERS: dict[str, Any] = {
    "namc": lambda **options: NAMC(width=32, heads=2, freeze_backbone=False, **options),
    "pair_transformer": lambda **options: PairTransformer(width=32, heads=2, encoder_layers=1, **options),
}
ENCODERS: dict[str, Any] = {"namc": {"encoder": "net.encoder"}, "pair_transformer": {"width": 16, "heads": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def descriptions_data(folder: Path, **options: Any) -> SyntheticDescriptions:
    sizes = dict(train_pairs=16, val_pairs=4, test_pairs=4, render_size=16, image_size=64, batch_size=4)
    return SyntheticDescriptions(**{**sizes, **options}, cache_dir=folder, progress=False)  # type: ignore[arg-type]


def encoder_for(data: SyntheticDescriptions) -> SmallDualEncoder:
    torch.manual_seed(0)
    words = vocabulary_with_mask(Vocabulary.build(data.train_captions()).words)
    return SmallDualEncoder(words, (8, 8), width=24)


def tokenizer() -> ImageTokenizer:
    torch.manual_seed(0)
    return ImageTokenizer(codebook_size=16, latent=4, width=4, multipliers=(1, 1), blocks=1, patch_size=4)


def fit(model: LightningModule, callbacks: list[Callback], data: Any, tmp_path: Path, **options: Any) -> Trainer:
    seed_everything(3, verbose=False)
    defaults = dict(max_epochs=1, limit_val_batches=0, enable_checkpointing=False, default_root_dir=tmp_path)
    trainer = Trainer(callbacks=callbacks, **{**QUIET, **defaults, **options})
    trainer.fit(model, data)
    return trainer


def collated(model: PairCaptioner, data: SyntheticDescriptions, count: int) -> PairBatch:
    """Collate the first pairs of the training split at the image size of the captioner's training."""
    resize = data.loader("train").dataset.transforms[0]
    return model.collate([resize(data.source("train").load(i), torch.Generator()) for i in range(count)])


def addon_losses(model: PairCaptioner, batch: PairBatch) -> dict[str, Tensor]:
    """Return the losses of all add-ons in one training step; every call uses the same random numbers."""
    steps = AddonSteps(model, batch, 0)
    steps.change_features(model.encode(steps.change_batch()))
    return {
        name: value for name, addon in steps.addons.items() for value in addon.losses(steps.contexts[name]).values()
    }


class Recorder(Callback):
    """Records the batches that the captioner encodes and the names of parameters without a gradient."""

    def __init__(self) -> None:
        self.batches: list[PairBatch] = []
        self.without_gradient: set[str] = set()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, PairCaptioner)
        encode = pl_module.encode

        def recorded_encode(batch: PairBatch) -> PairFeatures:
            self.batches.append(batch)
            return encode(batch)

        pl_module.encode = recorded_encode  # type: ignore[method-assign]

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: object) -> None:
        self.without_gradient |= {
            name for name, p in pl_module.named_parameters() if p.requires_grad and p.grad is None
        }


def both_callbacks(data: SyntheticDescriptions, kind: str, **noise: Any) -> list[Callback]:
    return [
        NoiseMasking(encoder_for(data), **noise),
        MaskedReconstruction(tokenizer(), **ENCODERS[kind]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAPTIONERS)
def test_both_callbacks_train_every_parameter_and_are_not_in_the_captioner(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    data, recorder = descriptions_data(folder), Recorder()
    model = CAPTIONERS[kind]()
    trainer = fit(model, [*both_callbacks(data, kind), recorder], data, tmp_path)
    assert recorder.without_gradient == set()
    assert {"noise_masking", "masked_reconstruction"} == set(addons_of(model))
    for name in ("train/noise_masking/match", "train/masked_reconstruction/rebuild"):
        assert torch.isfinite(trainer.callback_metrics[name])
    trainer.save_checkpoint(tmp_path / "with.ckpt")
    alone = type(model).load_from_checkpoint(tmp_path / "with.ckpt")
    assert not any(key.startswith("aux_addons") for key in alone.state_dict())
    for key, value in alone.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key
    # fine-tuning on ordinary captions starts from these weights, and its vocabulary includes their words
    tuned = CAPTIONERS[kind](init_from=str(tmp_path / "with.ckpt"))
    plain = SyntheticPairs(
        train_pairs=16, val_pairs=4, test_pairs=4, render_size=16, image_size=64, cache_dir=folder, progress=False
    )
    fit(tuned, [], plain, tmp_path, max_steps=0)
    assert torch.equal(tuned.net.decoder.embedding.weight, model.net.decoder.embedding.weight)
    assert all(UNK not in ids for caption in plain.train_captions() for ids in [tuned.vocabulary.encode(caption)])
    assert tuned.hparams["no_change_captions"] == plain.no_change_captions()


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAPTIONERS)
def test_weight_zero_equals_absent_bit_for_bit(kind: str, folder: Path, tmp_path: Path) -> None:
    data = descriptions_data(folder)
    absent, off = CAPTIONERS[kind](), CAPTIONERS[kind]()
    fit(absent, [], data, tmp_path)
    callbacks = both_callbacks(data, kind)
    for callback in callbacks:
        callback.weight = 0.0  # type: ignore[attr-defined]
    fit(off, callbacks, data, tmp_path)
    for key, value in absent.state_dict().items():
        assert torch.equal(off.state_dict()[key], value), key


@pytest.mark.slow
@pytest.mark.parametrize("target", ["tokenizer", "distance"])
def test_noise_masking_of_weight_zero_does_not_affect_reconstruction(target: str, folder: Path, tmp_path: Path) -> None:
    data = descriptions_data(folder)
    absent, off = (CAPTIONERS["pair_transformer"]() for _ in range(2))
    options = {"tokenizer": tokenizer()} if target == "tokenizer" else {"distance": nn.functional.l1_loss}
    fit(absent, [MaskedReconstruction(**options)], data, tmp_path, max_steps=2)
    fit(
        off, [NoiseMasking(encoder_for(data), weight=0.0), MaskedReconstruction(**options)], data, tmp_path, max_steps=2
    )
    for key, value in absent.state_dict().items():
        assert torch.equal(off.state_dict()[key], value), key


@pytest.mark.slow
def test_masked_words_are_replaced_and_not_predicted(folder: Path, tmp_path: Path) -> None:
    data, recorder = descriptions_data(folder), Recorder()
    model = CAPTIONERS["pair_transformer"]()
    fit(model, [NoiseMasking(encoder_for(data), word_mask_ratio=0.5), recorder], data, tmp_path)
    assert model.vocabulary is not None
    hidden = 0
    for batch in recorder.batches:
        for name, references, tokens, mask in zip(
            batch.ids, batch.references, batch.tokens[:, 0], batch.caption_mask[:, 0], strict=True
        ):
            true = torch.tensor(model.vocabulary.encode(references[0]))
            masked = tokens[: len(true)] == UNK
            assert torch.equal(tokens[: len(true)][~masked], true[~masked])
            assert torch.equal(mask[1 : len(true)], ~masked[1:]), "exactly the words that are not masked are predicted"
            assert not mask[len(true) :].any() and mask[len(true) - 1], "the end token is predicted, padding is not"
            inside = [False, *(described_attribute(data, name, i) for i in range(len(true) - 2)), False]
            assert not (masked & ~torch.tensor(inside)).any(), "the template is never masked"
            hidden += int(masked.sum())
    assert hidden > 50


def described_attribute(data: SyntheticDescriptions, name: str, index: int) -> bool:
    from lightning_idc.data.benchmarks.implicit_change import component_spans

    spans = component_spans(words_of(data.planted("train", name).text))
    assert spans is not None
    return any(index in span for span in spans)


@pytest.mark.slow
@pytest.mark.parametrize("is_filled", [True, False])
def test_captioner_gets_masked_patches(is_filled: bool, folder: Path, tmp_path: Path) -> None:
    data, recorder = descriptions_data(folder), Recorder()
    masking = NoiseMasking(encoder_for(data), fill_masked=is_filled, probabilities=random_probabilities)
    fit(CAPTIONERS["namc"](), [masking, recorder], data, tmp_path)
    shares = []
    for batch in recorder.batches:
        grid = batch.noise.patches
        assert grid.shape == (4, 2, 8, 8) and batch.noise.descriptions.shape[:2] == (4, 2)
        shares.append(grid.float().mean())
        index = [data.source("train").ids.index(name) for name in batch.ids]
        samples = [
            data.loader("train").dataset.transforms[0](data.source("train").load(i), torch.Generator()) for i in index
        ]
        true = torch.stack([torch.stack([sample.before, sample.after]) for sample in samples])
        assert torch.equal(batch.images, fill_masked_patches(true, grid) if is_filled else true)
    assert torch.stack(shares).mean().item() == pytest.approx(0.2, abs=0.04)


@pytest.mark.slow
def test_ordinary_captions_are_compared_with_both_images(folder: Path, tmp_path: Path) -> None:
    data = descriptions_data(folder)
    plain = SyntheticPairs(
        train_pairs=16, val_pairs=4, render_size=16, image_size=64, batch_size=4, cache_dir=folder, progress=False
    )
    recorder = Recorder()
    model = CAPTIONERS["pair_transformer"](captions_per_pair=3)
    fit(model, [NoiseMasking(encoder_for(data), word_mask_ratio=0.4), recorder], plain, tmp_path)
    masked = torch.cat([(batch.tokens == UNK).flatten() for batch in recorder.batches])
    words = torch.cat([batch.caption_mask.flatten() for batch in recorder.batches]).sum() + masked.sum() - 16 * 3
    assert masked.sum().item() / words.item() == pytest.approx(0.4, abs=0.08)


def test_nim_loss_equals_its_formula(folder: Path, tmp_path: Path) -> None:
    """Direct computation of L_NIM (Eq. 16), for both alignment losses."""
    data = descriptions_data(folder)
    for matching in (sdm, info_nce):
        model = CAPTIONERS["pair_transformer"]()
        fit(model, [NoiseMasking(encoder_for(data), alignment_loss=matching)], data, tmp_path, max_steps=0)
        addon = addons_of(model)["noise_masking"]
        assert isinstance(addon, NoiseMaskingAddon)
        addon.eval()
        samples = [data.source("train").load(i) for i in range(4)]
        step = TrainingStep(model, model.collate(samples), 0)
        torch.manual_seed(5)
        step.batch = addon.batch(step)
        grid = step.batch.noise.patches
        images = torch.stack([torch.stack([s.before, s.after]) for s in samples])
        total = torch.zeros(())
        for side in range(2):
            image_embeddings = addon.encoder.encode_image(images[:, side], grid[:, side].flatten(1))
            words = []
            for b, row in enumerate(step.batch.tokens[:, 0].tolist()):
                words_of_caption = [model.vocabulary.words[i] for i in row[1 : step.batch.tokens.shape[-1]]]
                spans = _spans(data, samples[b].id)
                words.append(["[MASK]" if words_of_caption[i] == "<unk>" else words_of_caption[i] for i in spans[side]])
            total = total + matching(image_embeddings.pooled, addon.encoder.encode_text(words).pooled)
        torch.testing.assert_close(addon.losses(step)["match"], total, rtol=1e-5, atol=1e-5)
        assert addon.losses(step) == {}, "the state of a step is used once"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", CAPTIONERS)
def test_losses_and_gradients_are_finite_under_autocast(
    kind: str, dtype: torch.dtype, folder: Path, tmp_path: Path
) -> None:
    """With 16-mixed and bf16-mixed (the paper's recipe), although the true distribution of L_NIM contains zeros."""
    data = descriptions_data(folder)
    for options in ({}, {"tokenizer": None, "distance": nn.functional.l1_loss}):
        model = CAPTIONERS[kind](dropout=0.0)
        rebuild = MaskedReconstruction(**{"tokenizer": tokenizer(), **ENCODERS[kind], **options})
        fit(model, [NoiseMasking(encoder_for(data)), rebuild], data, tmp_path, max_steps=0)
        batch = collated(model, data, 2)
        expected = addon_losses(model, batch)
        with torch.autocast("cpu", dtype):
            actual = addon_losses(model, batch)
            target = reconstruction_addon(model).target
            ids = target.true_ids(batch.images.flatten(0, 1)) if isinstance(target, ImageTokens) else None
        assert ids is None or torch.equal(ids, tokenizer().encode(batch.images.flatten(0, 1))), "ids of float32"
        torch.testing.assert_close(actual, expected, rtol=0.1, atol=0.1)
        sum(actual.values(), torch.zeros(())).backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def _spans(data: SyntheticDescriptions, name: str) -> tuple[range, range]:
    from lightning_idc.data.benchmarks.implicit_change import component_spans

    spans = component_spans(words_of(data.planted("train", name).text))
    assert spans is not None
    return spans


def reconstruction_addon(model: PairCaptioner) -> MaskedReconstructionAddon:
    addon = addons_of(model)["masked_reconstruction"]
    assert isinstance(addon, MaskedReconstructionAddon)
    return addon


@pytest.mark.parametrize("patch_size", [2, 4])
def test_mir_loss_equals_its_formula(patch_size: int, folder: Path, tmp_path: Path) -> None:
    """Direct computation of L_MIR (Eq. 17 and 18) by cell; with patches of 2, each feature cell has several tokens."""
    data = descriptions_data(folder)
    torch.manual_seed(0)
    tokens = ImageTokenizer(codebook_size=16, latent=4, width=4, multipliers=(1, 1), blocks=1, patch_size=patch_size)
    model = CAPTIONERS["namc"](dropout=0.0)
    callback = MaskedReconstruction(tokens, encoder="net.encoder")
    fit(model, [callback], data, tmp_path, max_steps=0)
    addon = reconstruction_addon(model)
    batch = next(iter(data.train_dataloader()))
    batch = model.collate(
        [data.loader("train").dataset.transforms[0](data.source("train").load(i), None) for i in range(2)]
    )
    step = TrainingStep(model, batch, 0)
    torch.manual_seed(6)
    step.batch = addon.batch(step)
    step.features = model.encode(step.batch)
    loss = addon.losses(step)["rebuild"]
    grid = step.batch.noise.patches
    encoder: MaskedImageEncoder = model.net.encoder
    means = []
    for b in range(2):
        total, count = torch.zeros(()), 0
        ids = tokens.encode(batch.images[b])
        sides = [
            encoder.embed(step.features.extras[name][b : b + 1], grid[b, i].flatten()[None])
            for i, name in enumerate(("before", "after"))
        ]
        for side in range(2):
            out = addon.target.head(encoder(sides[side], sides[1 - side]))[0].view(8, 8, -1, 16).log_softmax(-1)
            per = ids.shape[-1] // 8
            for y, x in grid[b, side].nonzero().tolist():
                true_ids = [ids[side, y * per + i, x * per + j] for i in range(per) for j in range(per)]
                total = total - torch.stack([out[y, x, t, v] for t, v in enumerate(true_ids)]).mean()
                count += 1
        means.append(total / count)
    assert grid.flatten(1).sum(1).unique().numel() == 2, "the mean over pairs differs from the mean over cells here"
    torch.testing.assert_close(loss, torch.stack(means).mean(), rtol=1e-4, atol=1e-5)
    assert not any("tokenizer" in key for key in addon.state_dict()), "a frozen tokenizer is not saved"


@pytest.mark.parametrize("noise_first", [True, False])
@pytest.mark.parametrize("is_filled", [True, False])
def test_mir_target_is_the_original_image(is_filled: bool, noise_first: bool, folder: Path, tmp_path: Path) -> None:
    """In the paper, z_i are the ids of the original image I_i, not of the image with filled masks."""
    data = descriptions_data(folder)
    kinds = {"ids": {"tokenizer": tokenizer()}, "raw": {"distance": nn.functional.l1_loss}}
    reconstruction = [MaskedReconstruction(**options, name=name) for name, options in kinds.items()]
    masking = NoiseMasking(encoder_for(data), image_mask_ratio=0.5, fill_masked=is_filled)
    model = CAPTIONERS["pair_transformer"]()
    fit(model, [masking, *reconstruction] if noise_first else [*reconstruction, masking], data, tmp_path, max_steps=0)
    target_inputs: dict[str, tuple[Tensor, ...]] = {}
    for name in kinds:
        addon = addons_of(model)[name]
        assert isinstance(addon, MaskedReconstructionAddon)
        addon.target.register_forward_pre_hook(lambda _, inputs, name=name: target_inputs.update({name: inputs}))
    batch = collated(model, data, 4)
    model.train()
    losses = addon_losses(model, batch)
    assert losses["ids"] > 0 and losses["raw"] > 0
    assert torch.equal(target_inputs["ids"][1], batch.images.flatten(0, 1))
    assert model.training, "the mode is unchanged"
    # filled images are encoded a second time in eval mode; without filling, the features of the step are used
    extras = model.train(not is_filled).encode(batch).extras
    features = torch.stack([extras["before"], extras["after"]], 1).flatten(0, 1)
    torch.testing.assert_close(target_inputs["raw"][2], features)


class Norms(Callback):
    """Records the gradient norms of the captioner and of NoiseMasking after clipping."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        parts: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is not None:
                parts["noise_masking" in name].append(parameter.grad.flatten())
        self.norms = [float(torch.cat(parts[is_noise_masking]).norm()) for is_noise_masking in (False, True)]


def test_gradients_of_captioner_and_noise_masking_are_clipped_separately(folder: Path, tmp_path: Path) -> None:
    data, norms = descriptions_data(folder), Norms()
    fit(
        CAPTIONERS["namc"](),
        [NoiseMasking(encoder_for(data)), norms],
        data,
        tmp_path,
        max_steps=1,
        gradient_clip_val=1e-3,
    )
    assert norms.norms == pytest.approx([1e-3, 1e-3], rel=1e-2)


@pytest.mark.slow
def test_reconstruction_quality(folder: Path, tmp_path: Path) -> None:
    """The scores of Table 9; with the true ids as predictions, the patches of MIR equal those of the tokenizer."""
    data, model = descriptions_data(folder), CAPTIONERS["namc"](dropout=0.0)
    torch.manual_seed(0)
    tokens = ImageTokenizer(codebook_size=16, latent=4, width=4, multipliers=(1, 1), blocks=1, patch_size=2)
    callbacks = [MaskedReconstruction(tokens, encoder="net.encoder"), ReconstructionQuality()]
    trainer = fit(model, callbacks, data, tmp_path, max_steps=1)
    trainer.limit_val_batches = 1
    scores = trainer.validate(model, data, verbose=False)[0]
    names = {f"val/{row}/{score}" for row in ("mir_vqgan", "vqgan_raw", "mir_raw") for score in ("psnr", "ssim")}
    assert names <= set(scores)
    assert all(math.isfinite(scores[name]) for name in names) and scores["val/mir_vqgan/psnr"] < 60
    target = reconstruction_addon(model).target
    images = next(iter(data.val_dataloader())).images.flatten(0, 1)
    true = target.true_ids(images)
    side = target.per_side
    cells = true.unflatten(1, (-1, side)).unflatten(3, (-1, side)).transpose(2, 3).flatten(3).flatten(1, 2)
    logits = nn.functional.one_hot(cells, 16).float().flatten(2)
    target.head = nn.Identity()  # returns its input
    assert torch.equal(target.predicted_ids(logits, (8, 8)), true)
    everything = torch.ones(len(images), *images.shape[-2:], dtype=torch.bool)
    raw = images / 255
    assert torch.allclose(masked_quality(raw, raw, everything), torch.tensor([100.0, 1.0]).expand(len(raw), 2))
    gray = masked_quality(raw * 0 + 0.5, raw * 0 + 0.6, everything)
    assert torch.allclose(gray[:, 0], torch.tensor(20.0), atol=1e-3), "10 log10(1 / 0.01)"


@pytest.mark.dist
def test_reconstruction_quality_in_two_processes(tmp_path: Path) -> None:
    """Three pairs on two processes, so one pair is on both. The tokenizer's scores do not depend on random weights."""
    for processes in (1, 2):
        launch(Path(__file__).with_name("quality_processes.py"), str(processes), tmp_path, processes=processes)
    alone, joined = (json.loads((tmp_path / f"{processes}.json").read_text()) for processes in (1, 2))
    for score in ("psnr", "ssim"):
        assert joined[f"val/vqgan_raw/{score}"] == pytest.approx(alone[f"val/vqgan_raw/{score}"], rel=1e-5)


@pytest.mark.slow
def test_fitting_again_with_or_without_descriptions(folder: Path, tmp_path: Path) -> None:
    """The same captioner is fitted again with another weight of NoiseMasking; a weight of 0 equals no callback."""
    data, model = descriptions_data(folder), CAPTIONERS["namc"]()
    for weight in (1.0, 0.0, 1.0):
        noise = NoiseMasking(encoder_for(data), weight=weight)
        rebuild = MaskedReconstruction(tokenizer(), encoder="net.encoder")
        trainer = fit(model, [noise, rebuild], data, tmp_path, max_steps=1)
        assert torch.isfinite(trainer.callback_metrics["train/masked_reconstruction/rebuild"])
        assert (reconstruction_addon(model).text is not None) == bool(weight)


@pytest.mark.slow
def test_reconstruction_quality_rejects_untrained_weights(folder: Path, tmp_path: Path) -> None:
    """A checkpoint without the add-on is rejected, because the add-on would keep its random initial weights."""
    data = descriptions_data(folder)
    fit(CAPTIONERS["namc"](), [], data, tmp_path, max_steps=1).save_checkpoint(tmp_path / "without.ckpt")
    rebuild = MaskedReconstruction(tokenizer(), encoder="net.encoder")
    fit(CAPTIONERS["namc"](), [rebuild], data, tmp_path, max_steps=1).save_checkpoint(tmp_path / "with.ckpt")
    rebuild = MaskedReconstruction(tokenizer(), encoder="net.encoder")
    trainer = Trainer(callbacks=[rebuild, ReconstructionQuality()], default_root_dir=tmp_path, **QUIET)
    with pytest.raises(CheckpointError, match=r"without\.ckpt holds no weights of 'masked_reconstruction'"):
        trainer.validate(
            CAPTIONERS["namc"](), data, ckpt_path=tmp_path / "without.ckpt", verbose=False, weights_only=True
        )
    metrics = trainer.validate(
        CAPTIONERS["namc"](), data, ckpt_path=tmp_path / "with.ckpt", verbose=False, weights_only=True
    )
    assert "val/mir_raw/psnr" in metrics[0]


@pytest.mark.slow
@pytest.mark.parametrize("distance", [nn.functional.l1_loss, nn.functional.mse_loss])
def test_raw_feature_targets(distance: Any, folder: Path, tmp_path: Path) -> None:
    model = CAPTIONERS["namc"]()
    data = descriptions_data(folder)
    trainer = fit(model, [MaskedReconstruction(distance=distance, encoder="net.encoder")], data, tmp_path)
    assert torch.isfinite(trainer.callback_metrics["train/masked_reconstruction/rebuild"])
    assert reconstruction_addon(model).target.head.out_features == model.net.backbone.width


def test_rejects_incompatible_options(folder: Path, tmp_path: Path) -> None:
    data = descriptions_data(folder)
    with pytest.raises(ConfigError, match="either tokens or features"):
        MaskedReconstruction()
    for ratio in (3.0, 1.01, 0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match=f"mask_ratio is {ratio}; expected a number above 0"):
            MaskedReconstruction(tokenizer(), mask_ratio=ratio)
    MaskedReconstruction(tokenizer(), mask_ratio=1.0)
    with pytest.raises(IDCError, match="word_mask_ratio is 2"):
        NoiseMasking("x.ckpt", word_mask_ratio=2)
    with pytest.raises(ConfigError, match=r"'net.gone' is not a MaskedImageEncoder of NAMC, which has net\.encoder"):
        fit(CAPTIONERS["namc"](), [MaskedReconstruction(tokenizer(), encoder="net.gone")], data, tmp_path)
    with pytest.raises(ConfigError, match="would train no weight of the captioner"):
        fit(PairTransformer(width=32, freeze_backbone=True), [MaskedReconstruction(tokenizer())], data, tmp_path)
    odd = ImageTokenizer(codebook_size=8, latent=4, width=4, multipliers=(1, 1, 1), blocks=1, patch_size=4)
    with pytest.raises(ConfigError, match="do not line up"):
        fit(CAPTIONERS["namc"](), [MaskedReconstruction(odd, encoder="net.encoder")], data, tmp_path)


def test_mir_loss_of_another_lightning_module_equals_its_formula(tmp_path: Path) -> None:
    """Direct computation by cell, in a grid that is not square."""
    data, model = RejectedPairs(image_size=(SIDE, 2 * SIDE)), Foreign()
    callback = MaskedReconstruction(distance=nn.functional.l1_loss, at="backbone", mask_ratio=0.5, width=8, heads=2)
    fit(model, [callback], data, tmp_path, max_steps=0)
    addon = addons_of(model)["masked_reconstruction"]
    assert isinstance(addon, MaskedReconstructionAddon) and addon.separate_encoder is not None
    encoder, batch = addon.separate_encoder, next(iter(data.train_dataloader()))
    features = model.backbone(batch["images"].float() / 255)  # (B, 2, C, 4, 8)
    with patch.object(encoder, "embed", side_effect=encoder.embed) as embed:
        loss = addon.losses(TrainingStep(model, batch, 0, features=features))["rebuild"]
    masks = embed.call_args.args[1].view(-1, 2, 4, 8)
    means = []
    for pair, mask in zip(features, masks, strict=True):
        cells = [torch.stack([side[:, y, x] for y in range(4) for x in range(8)])[None] for side in pair]
        tokens = [encoder.embed(cells[side], mask[side].flatten()[None]) for side in range(2)]
        rebuilt = [addon.target.head(encoder(tokens[side], tokens[1 - side]))[0] for side in range(2)]
        distances = [
            (rebuilt[side][8 * y + x] - pair[side, :, y, x]).abs().mean() for side, y, x in mask.nonzero().tolist()
        ]
        means.append(torch.stack(distances).mean())
    torch.testing.assert_close(loss, torch.stack(means).mean(), rtol=1e-4, atol=1e-6)


def test_mir_on_another_lightning_module_needs_a_sub_module_that_reads_pairs(tmp_path: Path) -> None:
    def train(at: str | None, data: Any = None, **options: Any) -> None:
        callback = MaskedReconstruction(tokenizer(), at=at, **options)
        fit(Foreign(), [callback], data or RejectedPairs(), tmp_path, max_steps=1)

    with pytest.raises(ConfigError, match="needs the features of a PairCaptioner, or `at`"):
        train(None)
    with pytest.raises(ConfigError, match="Foreign has no sub-module 'encoder'; it has backbone, head"):
        train("encoder")
    with pytest.raises(ConfigError, match=r"'head' of Foreign maps images \(1, 2, 3, 32, 32\) to RuntimeError"):
        train("head")
    with pytest.raises(ConfigError, match="Foreign has no PairFeatures; leave extras out"):
        train("backbone", extras=("a", "b"))
    with pytest.raises(ConfigError, match="reads the images of a PairDataModule; the data are BoringDataModule"):
        train("backbone", BoringDataModule())


class Validated(Foreign):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


def test_reconstruction_quality_needs_a_captioner(tmp_path: Path) -> None:
    callbacks = [MaskedReconstruction(tokenizer(), at="backbone"), ReconstructionQuality()]
    with pytest.raises(ConfigError, match="ReconstructionQuality measures a PairCaptioner; this is a Validated"):
        fit(Validated(), callbacks, RejectedPairs(), tmp_path, limit_val_batches=1)


class Overlooks(Foreign):
    """Encodes only some of the pairs."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step({**batch, "images": batch["images"][:3]}, batch_idx)


def test_mir_needs_the_features_of_all_pairs(tmp_path: Path) -> None:
    callback = MaskedReconstruction(tokenizer(), at="backbone")
    with pytest.raises(DataError, match=r"returned \(3, 2, 8, 4, 4\) in a training step of 4 pairs"):
        fit(Overlooks(), [callback], RejectedPairs(), tmp_path)


# ---- the network --------------------------------------------------------------------------------------------


def test_masked_cells_are_not_attended_to() -> None:
    torch.manual_seed(0)
    net = NamcNet(SmallCNN(), (8, 8), 20, width=32, heads=2, hidden=64, dropout=0.0).eval()
    images = torch.randint(0, 256, (2, 2, 3, 64, 64), dtype=torch.uint8)
    noise = torch.zeros(2, 2, 8, 8, dtype=torch.bool)
    noise[:, 0, 2:4, 2:4] = True
    changed = net.encoder.embed(net.grids(images)[:, 0], noise[:, 0].flatten(1))
    other = net.encoder.embed(net.grids(images)[:, 1], None)
    is_masked = noise[:, 0].flatten(1)
    valid = ~is_masked
    base = net.encoder.encode_pair(changed, other, valid, None)
    shifted = net.encoder.encode_pair(changed + 9 * is_masked[..., None], other, valid, None)
    torch.testing.assert_close(base[0][valid], shifted[0][valid])
    torch.testing.assert_close(base[1], shifted[1])
    # masked features are replaced before they are encoded
    masked = net.encoder.embed(torch.full((2, 64, net.backbone.width), 7.0), is_masked)
    again = net.encoder.embed(
        torch.where(is_masked[..., None], -3.0, torch.full((2, 64, net.backbone.width), 7.0)), is_masked
    )
    torch.testing.assert_close(masked, again)


def test_fully_masked_images_are_finite() -> None:
    torch.manual_seed(0)
    net = NamcNet(SmallCNN(), (8, 8), 20, width=32, heads=2, hidden=64).eval()
    images = torch.randint(0, 256, (1, 2, 3, 64, 64), dtype=torch.uint8)
    assert torch.isfinite(net.encode(images, torch.ones(1, 2, 8, 8, dtype=torch.bool)).memory).all()


def test_both_streams_share_weights() -> None:
    """Swapping the images swaps the streams; only the fusion depends on the order."""
    torch.manual_seed(0)
    net = NamcNet(SmallCNN(), (8, 8), 20, width=32, heads=2, hidden=64).eval()
    a, b = torch.randn(1, 64, 32), torch.randn(1, 64, 32)
    one, two = net.encoder.encode_pair(a, b)
    two_again, one_again = net.encoder.encode_pair(b, a)
    torch.testing.assert_close((one, two), (one_again, two_again))


def test_cached_decoding_equals_uncached() -> None:
    torch.manual_seed(0)
    net = NamcNet(SmallCNN(), (8, 8), 30, width=32, heads=2, hidden=64).eval()
    nn.init.normal_(net.decoder.position)
    net.decoder.norm.weight.data *= 3
    features = net.encode(torch.randint(0, 256, (4, 2, 3, 64, 64), dtype=torch.uint8))
    assert greedy(net, features, 12).ids == greedy_uncached(net, features, 12).ids


class StoredFeatures(GridBackbone):
    """Stands in for ResNet-101's third stage: feature maps of its size, without its layers."""

    def __init__(self) -> None:
        super().__init__(1024)

    def grid(self, images: Tensor) -> Tensor:
        return images.new_zeros(len(images), 1024, 14, 14)


def test_number_of_parameters_equals_table_5() -> None:
    """64.2 M (Table 5) with BERT's vocabulary, the codebook head and stored grid features; research/peers.md 1.2."""
    with torch.device("meta"):
        net = NamcNet(StoredFeatures(), (14, 14), 30522)
        head = nn.Linear(768, 1024)
    count = sum(p.numel() for module in (net, head) for p in module.parameters())
    assert count / 1e6 == pytest.approx(64.2, abs=0.25)


@pytest.mark.slow
def test_bert_vocabulary(folder: Path, tmp_path: Path) -> None:
    """With BERT's vocabulary file: 30,522 pieces, 64.2 M parameters, and [MASK] for all pieces of a masked word."""
    data, recorder = descriptions_data(folder), Recorder()
    training_words = sorted(
        {word for caption in data.train_captions() for word in words_of(caption)} - {"sphere", "cylinder"}
    )
    pieces = [*BERT_SPECIALS, "sph", "##ere", "cyl", "##ind", "##er", *training_words]
    pieces += [f"[unused{number}]" for number in range(30522 - len(pieces))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    model = NAMC(width=16, heads=2, vocabulary=str(tmp_path), captions_per_pair=1)
    trainer = fit(model, [NoiseMasking(encoder_for(data), word_mask_ratio=0.4), recorder], data, tmp_path, max_steps=3)
    assert model.hparams["max_length"] is not None and model.hparams["no_change_captions"]
    mask, cut = BERT_SPECIALS.index("[MASK]"), 0
    for batch in recorder.batches:
        for references, tokens in zip(batch.references, batch.tokens[:, 0].tolist(), strict=True):
            true = model.vocabulary.encode(references[0])
            assert all(now in (was, mask) for now, was in zip(tokens, true, strict=False))
            for at, was in enumerate(true):
                if pieces[was] in ("##ere", "##ind", "##er"):
                    assert (tokens[at] == mask) == (tokens[at - 1] == mask), "pieces of a word are masked together"
                    cut += tokens[at] == mask
    assert cut > 0
    trainer.save_checkpoint(tmp_path / "with.ckpt")
    (tmp_path / "vocab.txt").unlink()  # the checkpoint holds the words
    alone = NAMC.load_from_checkpoint(tmp_path / "with.ckpt", weights_only=True)
    assert isinstance(alone.vocabulary, BertVocabulary) and len(alone.vocabulary) == 30522

    with torch.device("meta"):
        full = NAMC(width=768, hidden=3072, heads=12, backbone="resnet101", image_size=(224, 224), vocabulary=pieces)
        full.build()
        count = sum(p.numel() for part in (full, nn.Linear(768, 1024)) for p in part.parameters() if p.requires_grad)
    assert count / 1e6 == pytest.approx(64.2, abs=0.25)


@pytest.mark.slow
def test_resnet101_grid_equals_the_paper() -> None:
    pytest.importorskip("timm")
    model = NAMC(
        backbone="resnet101", image_size=(224, 224), width=24, heads=2, vocabulary=[*Vocabulary.build(["a b"]).words]
    )
    model.build()
    assert model.net.grid == (14, 14) and model.net.backbone.width == 1024
    assert not any(p.requires_grad for p in model.net.backbone.parameters())


# ---- on other captioners --------------------------------------------------------------------------------------


def test_clip_vocabulary_groups_subwords() -> None:
    pytest.importorskip("open_clip")
    vocabulary = ClipVocabulary()
    ids = vocabulary.encode("the first image shows an unquestionableword, eagle")[1:-1]
    grouped = vocabulary.grouped(ids)
    assert [word for word, _ in grouped] == ["the", "first", "image", "shows", "an", "unquestionableword", ",", "eagle"]
    assert sum(count for _, count in grouped) == len(ids) and dict(grouped)["unquestionableword"] > 1


@pytest.mark.slow
def test_noise_masking_on_procap(folder: Path, tmp_path: Path) -> None:
    data, recorder = descriptions_data(folder), Recorder()
    state = {f"net.tokenizer.{name}": value for name, value in tokenizer().state_dict().items()}
    torch.save({"state_dict": state, CONFIG_KEY: tokenizer().config}, tmp_path / "tokens.ckpt")
    sizes: dict[str, Any] = dict(width=16, layers=2, heads=2, decoder_width=16, decoder_layers=1, decoder_heads=2)
    model = ProCap(tokenizer=str(tmp_path / "tokens.ckpt"), image_size=(64, 64), **sizes)
    trainer = fit(model, [NoiseMasking(encoder_for(data)), recorder], data, tmp_path)
    assert recorder.without_gradient == set() and any((batch.tokens == UNK).any() for batch in recorder.batches)
    trainer.save_checkpoint(tmp_path / "with.ckpt")
    alone = ProCap.load_from_checkpoint(tmp_path / "with.ckpt")
    assert not any(key.startswith("aux_addons") for key in alone.state_dict())


@pytest.mark.slow
def test_both_callbacks_on_clip4idc(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    tiny = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 64, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    }
    data, recorder = descriptions_data(folder), Recorder()
    model = Clip4Idc(clip=tiny, intra_layers=1, decoder_layers=1, heads=2, max_length=None, captions_per_pair=1)
    # the tokenizer's grid is 8 x 8 and CLIP's 4 x 4, so each patch has four ids
    trainer = fit(model, [*both_callbacks(data, "pair_transformer"), recorder], data, tmp_path)
    assert recorder.without_gradient == set()
    assert torch.isfinite(trainer.callback_metrics["train/masked_reconstruction/rebuild"])
    assert isinstance(model.vocabulary, ClipVocabulary)
    masked = 0
    for batch in recorder.batches:
        for references, tokens in zip(batch.references, batch.tokens[:, 0].tolist(), strict=True):
            true = model.vocabulary.encode(references[0])
            assert all(now in (was, model.vocabulary.special.bos) for now, was in zip(tokens, true, strict=False))
            masked += sum(now != was for now, was in zip(tokens, true, strict=False))
    assert masked > 10
    trainer.save_checkpoint(tmp_path / "with.ckpt")
    alone = Clip4Idc.load_from_checkpoint(tmp_path / "with.ckpt")
    assert not any(key.startswith("aux_addons") for key in alone.state_dict())


@pytest.mark.slow
def test_testing_a_checkpoint_with_30000_words_is_fast(tmp_path: Path) -> None:
    """Regression: jsonargparse copied the whole word list once per word, which took 810 s for BERT's vocabulary."""
    words = [*SPECIALS, "the", "cube", *(f"w{i}" for i in range(30_500))]
    model = PairTransformer(
        width=8,
        encoder_layers=1,
        decoder_layers=1,
        heads=1,
        max_length=4,
        vocabulary=words,
        image_size=(16, 16),
        no_change_captions=["the cube"],
    )
    trainer = Trainer(max_steps=0, default_root_dir=tmp_path, **QUIET)
    data = {"train_pairs": 4, "val_pairs": 4, "test_pairs": 4, "render_size": 16, "cache_dir": str(tmp_path)}
    trainer.fit(model, SyntheticPairs(**data, progress=False))
    trainer.save_checkpoint(tmp_path / "words.ckpt")
    command = ["test", "--model", "lightning_idc.models.pair_transformer.module.PairTransformer"]
    command += ["--data", "lightning_idc.data.synthetic.SyntheticPairs", "--ckpt_path", str(tmp_path / "words.ckpt")]
    command += [f"--data.{name}={value}" for name, value in data.items()]
    command += ["--trainer.accelerator=cpu", "--trainer.logger=false", f"--trainer.default_root_dir={tmp_path}"]
    began = time.process_time()
    assert main(command) == 0
    assert time.process_time() - began < 20
