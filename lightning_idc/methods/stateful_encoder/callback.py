"""StatefulEncoderAdapter: a stateful visual encoder on any captioner."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lightning_idc.methods.stateful_encoder.adapter import StatefulEncoder
from lightning_idc.methods.stateful_encoder.net import StatefulEncoderOptions
from lightning_idc.models.adapter_callback import AdapterCallback


class StatefulEncoderAdapter(AdapterCallback):
    """Adds cross-attention from the second to the first image to each layer of the vision tower.

    Untrained, it changes nothing. In captioners on a grid of features it is one layer after the backbone.

    Args:
        layers: layers of the vision tower, counted from 1; all of them when None.
        at: path of the backbone within the network of a grid captioner; ``backbone`` when None.
        name: name of the adapter in checkpoints.
        options: fields of :class:`~lightning_idc.methods.stateful_encoder.net.StatefulEncoderOptions`.
    """

    options_class = StatefulEncoderOptions

    def __init__(
        self, layers: list[int] | None = None, at: str | None = None, name: str = "stateful_encoder", **options: Any
    ) -> None:
        settings = StatefulEncoderOptions(**options)
        super().__init__(name, StatefulEncoder, layers=layers, at=at, **asdict(settings))
