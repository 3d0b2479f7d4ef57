"""Small versions of every captioner, a LightningModule from outside the library, and every part to add to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from helpers import vlm_tiny
from helpers.vlm_tiny import ColorPairs, ColorSource
from lightning_idc import callbacks
from lightning_idc.data.source import PairSource
from lightning_idc.images.types import PairSample
from lightning_idc.methods import NAMC, AdaptersOff, Clip4Idc, FrozenCopy, MovingAverage, ProCap, SmallDualEncoder
from lightning_idc.methods.adpo.negatives import FromData
from lightning_idc.methods.namc.dual_encoder import vocabulary_with_mask
from lightning_idc.methods.policy.rewards import LengthReward
from lightning_idc.models import PairTransformer, VLMCaptioner
from lightning_idc.models.addon_callback import AddonCallback
from lightning_idc.nn.image_tokenizer import ImageTokenizer
from lightning_idc.nn.vocabulary import Vocabulary

SIDE = 32
"""Height and width of the images."""
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


class RejectedSource(ColorSource):
    """Pairs that also have a wrong caption, in ``meta["rejected"]``."""

    def load(self, index: int) -> PairSample:
        sample = super().load(index)
        sample.meta = {**sample.meta, "rejected": f"the {('right', 'left')[index % 2]} half vanished"}
        return sample


class RejectedPairs(ColorPairs):
    """Eight pairs for training, four for validation and test."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"pairs": 8, "batch_size": 4, "seed": 1, "image_size": SIDE, **options})

    def source(self, split: str) -> PairSource:
        return RejectedSource(self.pairs if split == "train" else 4, 0 if split == "train" else 600)


# ---- captioners -----------------------------------------------------------------------------------------

CLIP: dict[str, Any] = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": SIDE, "patch_size": 8, "width": 16, "head_width": 8, "layers": 3},
    "text_cfg": {"context_length": 24, "width": 16, "heads": 2, "layers": 1},
}


class SiameseConv(nn.Conv2d):
    """A convolution of both images of each pair."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.flatten(0, 1)).unflatten(0, (-1, 2))


class Foreign(LightningModule):
    """A module from outside the library on the same data: its head predicts the brightness of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = SiameseConv(3, 8, 8, 8)
        self.head = nn.Linear(8, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images = batch["images"].float() / 255
        guess = self.head(self.backbone(images).mean((3, 4)))[..., 0]
        return (guess - images.mean((2, 3, 4))).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return SGD(self.parameters())


def vlm(kind: str) -> VLMCaptioner:
    texts = [text for index in range(6) for text in ColorSource(6, 0).captions(index)]
    tokenizer = vlm_tiny.train_tokenizer(texts, 320, vlm_tiny.family_of(kind).special_tokens.values())
    return VLMCaptioner(
        architecture=vlm_tiny.architecture(kind), tokenizer=tokenizer, prompt="what changed?", optimizer=SGD
    )


def procap() -> ProCap:
    sizes: dict[str, Any] = dict(width=16, layers=1, heads=2, decoder_width=16, decoder_layers=1, decoder_heads=2)
    return ProCap(tokenizer=image_tokenizer().config, queries=1, dropout=0.0, optimizer=SGD, **sizes)


CAPTIONERS: dict[str, Callable[[], LightningModule]] = {
    "PairTransformer": lambda: PairTransformer(
        width=16, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0, optimizer=SGD
    ),
    "NAMC": lambda: NAMC(
        width=16, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0, freeze_backbone=False, optimizer=SGD
    ),
    "ProCap": procap,
    "CLIP4IDC": lambda: Clip4Idc(
        CLIP, vocabulary=None, intra_layers=2, decoder_layers=1, heads=2, dropout=0.0, optimizer=SGD
    ),
    "Qwen2.5-VL": lambda: vlm("qwen2_5_vl"),
    "LLaVA-OneVision": lambda: vlm("llava_onevision"),
    "LLaVA-1.5": lambda: vlm("llava"),
    "another LightningModule": Foreign,
}

# ---- parts ----------------------------------------------------------------------------------------------

LORA: dict[str, list[str]] = {
    "PairTransformer": ["backbone", "fuse", "bias", "place", "encoder", "norm", "decoder"],
    "NAMC": ["backbone", "encoder", "fuse", "decoder"],
    "ProCap": ["encoder", "projector", "decoder"],
    "CLIP4IDC": [
        *("encoder.clip.visual", "encoder.ln_mid", "encoder.side", "encoder.joint_position"),
        *("encoder.clip.positional_embedding", "encoder.clip.token_embedding"),
        *("memory_layers", "decoder_layers", "norm_words", "transform", "bias"),
    ],
}
"""Modules that LoRA freezes in each captioner; vision-language models use its default."""
ENCODER = {"NAMC": "net.encoder"}
"""MaskedImageEncoder of each captioner that has one."""


class SteadyDualEncoder(SmallDualEncoder):
    """A dual encoder whose batch norms ignore the batch, which differs between one process and two."""

    def train(self, mode: bool = True) -> SteadyDualEncoder:
        super().train(mode)
        self.backbone.eval()
        return self


def dual_encoder() -> SmallDualEncoder:
    torch.manual_seed(0)
    words = vocabulary_with_mask(Vocabulary.build(RejectedPairs().train_captions()).words)
    return SteadyDualEncoder(words, (4, 4), (SIDE, SIDE), width=8, heads=2)


def image_tokenizer() -> ImageTokenizer:
    torch.manual_seed(0)
    return ImageTokenizer(codebook_size=16, latent=4, width=4, multipliers=(1, 1), blocks=1, patch_size=4)


def rebuild(captioner: str, **target: Any) -> Callback:
    encoder: dict[str, Any] = {"width": 8, "layers": 1, "heads": 2}
    if captioner in ENCODER:
        encoder = {"encoder": ENCODER[captioner]}
    if captioner == "another LightningModule":
        encoder["at"] = "backbone"
    return callbacks.MaskedReconstruction(**encoder, **target)


def lora(captioner: str, freeze_all: bool = False) -> Callback:
    everything = LORA.get(captioner, ["model", "lm_head"])
    return callbacks.LoRA(rank=2, alpha=4, freeze=everything if freeze_all else LORA.get(captioner))


def preference(**options: Any) -> Callback:
    return callbacks.PreferenceOptimization(**{"negatives": FromData(), "reference": FrozenCopy(), **options})


@dataclass(frozen=True)
class Part:
    """Callbacks that are added to a captioner.

    Args:
        own: makes the callbacks of the part for a captioner of :data:`CAPTIONERS`.
        needs: makes the other callbacks that the part requires.
    """

    own: Callable[[str], list[Callback]]
    needs: Callable[[str], list[Callback]] = lambda captioner: []

    def callbacks(self, captioner: str, weight: float = 1.0) -> list[Callback]:
        """New instances of all callbacks, with this weight for the part's add-ons."""
        own = self.own(captioner)
        for callback in own:
            if isinstance(callback, AddonCallback):
                callback.weight = weight
        return [*self.needs(captioner), *own]

    def is_addon(self, captioner: str) -> bool:
        """Whether the part consists of add-ons, whose weight may be 0."""
        return all(isinstance(callback, AddonCallback) for callback in self.own(captioner))


PARTS: dict[str, Part] = {
    "PreferenceOptimization": Part(lambda captioner: [preference()]),
    "PreferenceOptimization, AdaptersOff": Part(
        lambda captioner: [preference(reference=AdaptersOff())], lambda captioner: [lora(captioner, freeze_all=True)]
    ),
    "AdversarialRetriever": Part(
        lambda captioner: [preference(negatives=None), callbacks.AdversarialRetriever(candidates=6)]
    ),
    "GroupRelative": Part(
        lambda captioner: [
            callbacks.GroupRelative(LengthReward(2, 8), samples=2, beta=0.5, reference=MovingAverage(0.5))
        ]
    ),
    "SelfCritical": Part(lambda captioner: [callbacks.SelfCritical(samples=2, caption_weight=0.5)]),
    "NoiseMasking": Part(lambda captioner: [callbacks.NoiseMasking(dual_encoder())]),
    "MaskedReconstruction, tokens": Part(lambda captioner: [rebuild(captioner, tokenizer=image_tokenizer())]),
    "MaskedReconstruction, features": Part(lambda captioner: [rebuild(captioner, distance=nn.functional.l1_loss)]),
    "NoiseMasking and MaskedReconstruction": Part(
        lambda captioner: [callbacks.NoiseMasking(dual_encoder()), rebuild(captioner, tokenizer=image_tokenizer())]
    ),
    "MDPAdapter": Part(lambda captioner: [callbacks.MDPAdapter(stacked=1)]),
    "StatefulEncoderAdapter": Part(lambda captioner: [callbacks.StatefulEncoderAdapter()]),
    "LoRA": Part(lambda captioner: [lora(captioner)]),
}
