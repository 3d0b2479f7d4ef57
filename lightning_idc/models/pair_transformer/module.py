"""PairTransformer: the baseline captioner, and the default for new users."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lightning_idc.checkpoints.reading import read_checkpoint
from lightning_idc.images.types import PairBatch, PairFeatures
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.pair_transformer.net import PairTransformerNet
from lightning_idc.nn.backbones import build_backbone, grid_of, load_backbone
from lightning_idc.nn.vocabulary import Vocabulary


class PairTransformer(PairCaptioner):
    """Captions a pair from grid features of both images.

    Args:
        backbone: ``cnn`` for the small one, ``residual`` for one that sees more around each cell, ``difference`` for
            one that reads pairs from almost the same place at full resolution, or the name of a timm model.
        pretrained_backbone: load timm's weights.
        backbone_weights: checkpoint of ObjectNaming or PairTransformer that the backbone starts from.
        freeze_backbone: train everything else only.
        grid: cells per side that the features are pooled to; None takes what the backbone gives for ``image_size``.
        width: of all tokens.
        encoder_layers: layers that look across the grid.
        decoder_layers: layers that write.
        heads: attention heads.
        dropout: share of activations dropped in training.
        counts: classes of the `ChangeNaming` in ``backbone_weights``, "nothing changed" included, whose cells are
            counted for the decoder; with ``difference`` only. 0 leaves counting out. What names them is not trained.
        in_channels: channels of the images, 3 unless the data module's ``bands`` chooses others.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    computation_hparams = ("heads",)

    def __init__(
        self,
        backbone: str = "cnn",
        pretrained_backbone: bool = False,
        backbone_weights: str | None = None,
        freeze_backbone: bool = False,
        grid: int | None = None,
        width: int = 128,
        encoder_layers: int = 2,
        decoder_layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
        counts: int = 0,
        in_channels: int = 3,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # a checkpoint brings all weights, so it must not ask for these files again
        for name in ("backbone_weights", "pretrained_backbone"):
            self.hparams.pop(name, None)
        self._start = (pretrained_backbone, backbone_weights)

    def encode_repeated(self, batch: PairBatch) -> PairFeatures:
        with self.built_net.backbone.each_image_once():
            return self.encode(batch)

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        pretrained, weights = self._start
        options = self.hparams
        backbone = build_backbone(options["backbone"], pretrained, in_channels=options["in_channels"], pairs=True)
        if weights is not None:
            load_backbone(backbone, weights)
        side = options["grid"]
        shape = grid_of(backbone, options["image_size"] or (64, 64)) if side is None else (side, side)
        net = PairTransformerNet(
            backbone,
            shape,
            len(vocabulary),
            options["width"],
            options["encoder_layers"],
            options["decoder_layers"],
            options["heads"],
            options["dropout"],
            options["freeze_backbone"],
            options["counts"],
        )
        if weights is not None and net.counts is not None:
            net.counts.load_head(read_checkpoint(weights)["state_dict"], weights)
        return net

    def changed_cells(self, batch: PairBatch) -> Tensor | None:
        return self.encode(batch).extras["cells"].sum(1) if self.hparams["counts"] else None
