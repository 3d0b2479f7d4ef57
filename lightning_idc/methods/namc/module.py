"""NAMC: noise-aware modelling and captioning (Guo et al. 2025).

Pre-trained with the callbacks `NoiseMasking` and `MaskedReconstruction`, fine-tuned and used without them.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from lightning_idc.images.types import PairBatch, PairFeatures
from lightning_idc.methods.namc.net import NamcNet
from lightning_idc.methods.namc.noise import NOISE_MASK
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.nn.backbones import build_backbone, grid_of, load_backbone
from lightning_idc.nn.vocabulary import Vocabulary


class NAMC(PairCaptioner):
    """Captions a pair whose images look at each other cell by cell.

    Args:
        backbone: ``cnn`` for the small one, ``residual``, or the name of a timm model; the paper's is ``resnet101``.
        stage: which feature map of a timm model, counted as timm does; -2 is the third stage of a ResNet, 14 x 14 x
            1024 at 224 pixels.
        pretrained_backbone: load timm's weights.
        backbone_weights: checkpoint of ObjectNaming, PairTransformer or NAMC that the backbone starts from.
        freeze_backbone: keep the backbone as it is, as the paper does.
        width: of all tokens.
        encoder_layers: of the masked image encoder.
        decoder_layers: layers that write.
        heads: attention heads.
        hidden: width of the feed-forward layers; four times ``width`` when None.
        dropout: share of activations dropped in training.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    computation_hparams = ("heads",)

    def __init__(
        self,
        backbone: str = "cnn",
        stage: int = -2,
        pretrained_backbone: bool = False,
        backbone_weights: str | None = None,
        freeze_backbone: bool = True,
        width: int = 128,
        encoder_layers: int = 2,
        decoder_layers: int = 2,
        heads: int = 4,
        hidden: int | None = None,
        dropout: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # a checkpoint brings all weights, so it must not ask for these files again
        for name in ("backbone_weights", "pretrained_backbone"):
            self.hparams.pop(name, None)
        self._start = (pretrained_backbone, backbone_weights)

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        pretrained, weights = self._start
        options = self.hparams
        backbone = build_backbone(options["backbone"], pretrained, options["stage"])
        if weights is not None:
            load_backbone(backbone, weights)
        return NamcNet(
            backbone,
            grid_of(backbone, options["image_size"] or (64, 64)),
            len(vocabulary),
            options["width"],
            options["encoder_layers"],
            options["decoder_layers"],
            options["heads"],
            options["hidden"] or 4 * options["width"],
            options["dropout"],
            options["freeze_backbone"],
        )

    def encode(self, batch: PairBatch) -> PairFeatures:
        """Look at a batch; patches in ``model_inputs["noise_mask"]`` are kept out of it."""
        return self.built_net.encode(batch.images, batch.model_inputs.get(NOISE_MASK))
