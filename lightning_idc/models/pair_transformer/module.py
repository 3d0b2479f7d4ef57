"""PairTransformer: the baseline captioner, and the default for new users."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from lightning_idc.checkpoints.resolve import read_named
from lightning_idc.images.types import PairBatch, PairFeatures
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.pair_transformer.net import PairTransformerNet
from lightning_idc.nn.backbones import build_backbone, grid_of, load_backbone
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, ShareBelowOne, TwoOrMore, check_arguments


class PairTransformer(PairCaptioner):
    """Captions a pair from grid features of both images.

    Args:
        backbone: ``cnn`` (small), ``residual`` (a larger receptive field), ``difference`` (compares aligned images at
            full resolution), or the name of a timm model.
        pretrained_backbone: load timm's weights; `backbone_weights` come first.
        backbone_weights: weights that the backbone starts from: a checkpoint of ObjectNaming or PairTransformer, the
            name of a captioner that comes with the library, or, for a timm model, a file or hub id of timm's weights.
        freeze_backbone: do not train the backbone.
        grid: cells per side that the features are pooled to; None takes the grid of the backbone for ``image_size``.
        width: channels of all tokens.
        encoder_layers: self-attention layers over the grid.
        decoder_layers: layers of the caption decoder.
        heads: attention heads.
        dropout: dropout probability.
        counts: number of classes, "nothing changed" included, of the ``ChangeNaming`` in ``backbone_weights``. The
            decoder then reads the number of changed cells of each class instead of the grid, and the classifier is
            frozen. Needs ``backbone="difference"``. 0 decodes from the grid.
        in_channels: channels of the images, 3 unless the data module's ``bands`` chooses others.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    computation_hparams = ("heads", "backbone", "width", "encoder_layers", "decoder_layers", "counts", "in_channels")
    not_stored = ("backbone_weights", "pretrained_backbone")

    def __init__(
        self,
        backbone: str = "cnn",
        pretrained_backbone: bool = False,
        backbone_weights: str | None = None,
        freeze_backbone: bool = False,
        grid: PositiveInt | None = None,
        width: PositiveInt = 128,
        encoder_layers: NonNegativeInt = 2,
        decoder_layers: PositiveInt = 2,
        heads: PositiveInt = 4,
        dropout: ShareBelowOne = 0.1,
        counts: Literal[0] | TwoOrMore = 0,
        in_channels: PositiveInt = 3,
        **options: Any,
    ) -> None:
        check_arguments(PairTransformer.__init__, locals())
        super().__init__(**options)
        self._initial_weights = (pretrained_backbone, backbone_weights)

    def encode_repeated(self, batch: PairBatch) -> PairFeatures:
        with self.built_net.backbone.each_image_once():
            return self.encode(batch)

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        pretrained, weights = self._initial_weights
        options = self.hparams
        backbone = build_backbone(
            options["backbone"], pretrained and weights is None, in_channels=options["in_channels"], pairs=True
        )
        if weights is not None:
            load_backbone(backbone, weights)
        side = options["grid"]
        shape = grid_of(backbone, options["image_size"] or (64, 64)) if side is None else (side, side)
        net = PairTransformerNet(
            backbone=backbone,
            grid=shape,
            vocabulary=len(vocabulary),
            width=options["width"],
            encoder_layers=options["encoder_layers"],
            decoder_layers=options["decoder_layers"],
            heads=options["heads"],
            dropout=options["dropout"],
            freeze_backbone=options["freeze_backbone"],
            counts=options["counts"],
        )
        if weights is not None and net.counts is not None:
            net.counts.load_head(read_named(weights)["state_dict"], weights)
        return net

    def changed_cells(self, batch: PairBatch) -> Tensor | None:
        return self.encode(batch).extras["cells"].sum(1) if self.hparams["counts"] else None
