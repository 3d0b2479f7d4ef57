"""MDPAdapter: multi-scale differential perception on any captioner."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lightning_idc.methods.m3diff.mdp import MDP, MDPOptions
from lightning_idc.models.adapter_callback import AdapterCallback


class MDPAdapter(AdapterCallback):
    """Adds MDP (M3Diff, Eq. 1 to 8) after the vision tower. Before training, it leaves the captioner unchanged.

    Args:
        layers: layers of the vision tower to read, the last one included; those at the paper's relative depths when
            None.
        at: path of the backbone within the network of a grid captioner; ``backbone`` when None.
        name: name of the adapter in checkpoints.
        options: fields of :class:`~lightning_idc.methods.m3diff.mdp.MDPOptions`.
    """

    options_class = MDPOptions

    def __init__(
        self, layers: list[int] | None = None, at: str | None = None, name: str = "mdp", **options: Any
    ) -> None:
        settings = MDPOptions(**options)
        super().__init__(name, MDP, layers=layers, at=at, **asdict(settings))
