"""MDPAdapter: multi-scale differential perception on any captioner."""

from __future__ import annotations

from lightning_idc.methods.m3diff.mdp import MDP
from lightning_idc.models.adapter_callback import AdapterCallback


class MDPAdapter(AdapterCallback):
    """Puts MDP (M3Diff, Eq. 1 to 8) between the vision tower and what follows it; untrained, it changes nothing.

    Args:
        layers: depths of the vision tower to read, the last one included; those that match the paper's when None.
        at: path of the backbone within the network of a grid captioner.
        heads: of the attention; the largest divisor of the features' width up to 16 when None.
        hidden: width of the MLP of Eq. 5; twice the features' width when None.
        stacked: layers of Eq. 4 to 6.
        shared: one set of weights for all depths.
        softmax: reads sigma of Eq. 7 as a softmax over the depths instead of a sigmoid.
        as_printed: Eq. 4 to 8 and nothing else, which changes a model before it is trained.
        name: of the adapter in checkpoints.
    """

    def __init__(
        self,
        layers: list[int] | None = None,
        at: str = "backbone",
        heads: int | None = None,
        hidden: int | None = None,
        stacked: int = 2,
        shared: bool = True,
        softmax: bool = False,
        as_printed: bool = False,
        name: str = "mdp",
    ) -> None:
        options = {"heads": heads, "hidden": hidden, "stacked": stacked, "shared": shared, "softmax": softmax}
        options["as_printed"] = as_printed
        super().__init__(name, MDP, layers=layers, at=at, **options)
