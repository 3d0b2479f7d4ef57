"""LoRA on the language model of any captioner."""

from __future__ import annotations

from lightning_idc.core.adapter_callback import AdapterCallback
from lightning_idc.methods.vlm.lora_adapter import LINEARS, LowRank


class LoRA(AdapterCallback):
    """Puts low-rank updates into the language model and freezes the rest of it; untrained, they change nothing.

    Args:
        rank: of the updates (M3Diff, table 10: 128).
        alpha: their scale is ``alpha / rank`` (M3Diff: 256).
        dropout: of their input.
        targets: regular expression of the paths of the linear layers.
        freeze: paths of the parts that get the updates and are frozen; the language model when None.
        modules_to_save: paths of parts that are trained as copies, so that switching off gives the original back.
        name: of the adapter in checkpoints.
    """

    def __init__(
        self,
        rank: int = 128,
        alpha: float = 256,
        dropout: float = 0.0,
        targets: str = LINEARS,
        freeze: list[str] | None = None,
        modules_to_save: list[str] | None = None,
        name: str = "lora",
    ) -> None:
        super().__init__(
            name,
            LowRank,
            rank=rank,
            alpha=alpha,
            dropout=dropout,
            targets=targets,
            freeze=freeze,
            modules_to_save=modules_to_save or [],
        )
