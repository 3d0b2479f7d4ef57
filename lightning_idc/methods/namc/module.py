"""NAMC: noise-aware modelling and captioning (Guo et al. 2025).

Pre-training has three modules, in this order in each step:

1. NIM (``noise_masking.py``) masks noise in images and captions and sets ``batch.noise``; its loss is L_NIM,
2. MIR (``masked_reconstruction.py``) reconstructs the masked cells with ``net.encoder``; its loss is L_MIR,
3. FDG (:meth:`NAMC.encode`, then the caption loss of the captioner) generates the denoised caption.

The sum of the three losses is in ``models/addon.py``. Fine-tuning and inference use :class:`NAMC` without the
callbacks.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from lightning_idc.images.types import PairBatch, PairFeatures
from lightning_idc.methods.namc.net import NamcNet
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.nn.backbones import build_backbone, grid_of, load_backbone
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, ShareBelowOne, check_arguments


class NAMC(PairCaptioner):
    """Captions a pair with cross-attention between the cells of both images.

    Args:
        backbone: ``cnn``, ``residual``, or the name of a timm model; ``resnet101`` in the paper.
        stage: index of the feature map of a timm model; -2 is the third stage of a ResNet, with 14 x 14 cells of 1024
            channels at 224 pixels.
        pretrained_backbone: whether timm's pretrained weights are loaded.
        backbone_weights: checkpoint of ObjectNaming, PairTransformer or NAMC with the initial weights of the backbone.
        freeze_backbone: whether the backbone is frozen, as in the paper.
        width: width of all tokens.
        encoder_layers: number of layers of the masked image encoder.
        decoder_layers: number of layers of the decoder.
        heads: number of attention heads.
        hidden: hidden width of the feed-forward layers; four times ``width`` when None.
        dropout: dropout probability.
        options: further arguments of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    reads_noise = True
    computation_hparams = ("heads",)
    not_stored = ("backbone_weights", "pretrained_backbone")

    def __init__(
        self,
        backbone: str = "cnn",
        stage: int = -2,
        pretrained_backbone: bool = False,
        backbone_weights: str | None = None,
        freeze_backbone: bool = True,
        width: PositiveInt = 128,
        encoder_layers: NonNegativeInt = 2,
        decoder_layers: PositiveInt = 2,
        heads: PositiveInt = 4,
        hidden: PositiveInt | None = None,
        dropout: ShareBelowOne = 0.1,
        **options: Any,
    ) -> None:
        check_arguments(NAMC.__init__, locals())
        super().__init__(**options)
        self._backbone_init = (pretrained_backbone, backbone_weights)

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        pretrained, weights = self._backbone_init
        options = self.hparams
        backbone = build_backbone(options["backbone"], pretrained, options["stage"])
        if weights is not None:
            load_backbone(backbone, weights)
        return NamcNet(
            backbone,
            grid=grid_of(backbone, options["image_size"] or (64, 64)),
            vocabulary=len(vocabulary),
            width=options["width"],
            encoder_layers=options["encoder_layers"],
            decoder_layers=options["decoder_layers"],
            heads=options["heads"],
            hidden=options["hidden"] or 4 * options["width"],
            dropout=options["dropout"],
            freeze_backbone=options["freeze_backbone"],
        )

    def encode(self, batch: PairBatch) -> PairFeatures:
        """Features of a batch; patches that ``batch.noise`` masks are replaced and not attended to."""
        return self.built_net.encode(batch.images, None if batch.noise is None else batch.noise.patches)
