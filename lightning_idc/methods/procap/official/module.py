"""Both stages of ProCap as in the authors' code, which differs from their paper; README.md lists the differences.

Each class inherits the training step of the paper's class and replaces

| part | paper | authors' code |
|---|---|---|
| encoder, stage 1 / 2 | ``ProcedureEncoder`` | ``OfficialTrunk`` / ``OfficialEncoder`` (control tokens) |
| network of stage 1 | ``ProcedureNet`` | ``OfficialProcedureNet`` (24 word slots, separator token) |
| loss weights, masks, color shift | ``losses.py``, ``masks.py``, ``warps.py`` | ``official/procedure.py`` |
| negative captions | next caption that is not a reference | caption half a batch away |
| consistency loss | mean | sum over all samples |
| decoder of stage 2 | ``Decoder`` | ``OfficialDecoder`` (post-norm) |
| caption loss | cross entropy | KL divergence from smoothed targets, summed |
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lightning_idc.images.types import PairBatch, PairFeatures
from lightning_idc.methods.procap.module import ProCap
from lightning_idc.methods.procap.official.encoder import (
    TEXT_SLOTS,
    OfficialDecoder,
    OfficialEncoder,
    OfficialNet,
    OfficialTrunk,
    control_tables,
    smoothed_divergence,
)
from lightning_idc.methods.procap.official.procedure import (
    LOSS_WEIGHTS,
    MASK_RULES,
    OfficialProcedureNet,
    shifted_frame,
    summed_consistency_loss,
    swapped_halves,
)
from lightning_idc.methods.procap.procedure import ProcedureModel
from lightning_idc.models.captions import check_captions


class OfficialProcedureModel(ProcedureModel):
    """The first stage of the authors' code.

    Args:
        options: arguments of :class:`~lightning_idc.methods.procap.procedure.ProcedureModel`.
    """

    variant = "official"
    encoder_class = OfficialTrunk
    net_class = OfficialProcedureNet
    default_loss_weights = LOSS_WEIGHTS
    mask_rules = MASK_RULES
    color_shift = staticmethod(shifted_frame)
    captions_of_others = staticmethod(swapped_halves)
    consistency_loss = staticmethod(summed_consistency_loss)


class OfficialProCap(ProCap):
    """The second stage of the authors' code.

    Args:
        options: arguments of :class:`~lightning_idc.methods.procap.module.ProCap`.
    """

    variant = "official"
    encoder_class = OfficialEncoder
    decoder_class = OfficialDecoder
    net_class = OfficialNet
    max_caption_tokens = TEXT_SLOTS

    def caption_loss(self, features: PairFeatures, batch: PairBatch) -> Tensor:
        check_captions(batch)
        logits = self.built_net.logits(features, batch.tokens[..., :-1])
        return smoothed_divergence(logits, batch.tokens[..., 1:], batch.caption_mask[..., 1:])

    def extra_encoder_weights(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tables = (state[f"net.{name}"] for name in ("words.weight", "special", "word_positions", "special_positions"))
        words, positions = control_tables(*tables)
        return {"control_words": words, "control_positions": positions}
