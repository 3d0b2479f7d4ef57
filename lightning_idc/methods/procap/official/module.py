"""Both stages of ProCap as the authors' code computes them, which is not what their paper says.

README.md lists every difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from lightning_idc.models.captions import refuse_without_caption


class OfficialProcedureModel(ProcedureModel):
    """The first stage of the authors' code.

    Args:
        options: of :class:`~lightning_idc.methods.procap.procedure.ProcedureModel`.
    """

    edition = "official"
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
        options: of :class:`~lightning_idc.methods.procap.module.ProCap`.
    """

    edition = "official"
    encoder_class = OfficialEncoder
    decoder_class = OfficialDecoder
    net_class = OfficialNet

    def tokenize(self, captions: Sequence[str]) -> list[list[int]]:
        """Token ids of captions, cut to the 24 places that the code has, begin and end tokens included."""
        rows = super().tokenize(captions)
        return [ids if len(ids) <= TEXT_SLOTS else [*ids[: TEXT_SLOTS - 1], ids[-1]] for ids in rows]

    def caption_loss(self, features: PairFeatures, batch: PairBatch) -> Tensor:
        refuse_without_caption(batch)
        logits = self.built_net.logits(features, batch.tokens[..., :-1])
        return smoothed_divergence(logits, batch.tokens[..., 1:], batch.caption_mask[..., 1:])

    def beside_encoder(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tables = (state[f"net.{name}"] for name in ("words.weight", "special", "word_places", "special_places"))
        words, places = control_tables(*tables)
        return {"control_words": words, "control_places": places}
