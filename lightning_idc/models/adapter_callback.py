"""AdapterCallback: adds an adapter to the module that is trained or tested."""

from __future__ import annotations

from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.models.adapter import Adapter
from lightning_idc.models.addon_callback import check_order, check_processes
from lightning_idc.models.module import PairModule
from lightning_idc.utils.errors import ConfigError


class AdapterCallback(Callback):
    """Adds an adapter to the module that is trained or tested.

    Args:
        name: name of the adapter; two adapters of one class need different names.
        adapter_class: class of the adapter.
        options: arguments of the class, plain values.
    """

    options_class: ClassVar[type[Any] | None] = None
    """Dataclass of the adapter's options, whose fields the constructor takes as keyword arguments."""

    def __init__(self, name: str, adapter_class: type[Adapter], **options: Any) -> None:
        self.name, self.adapter_class, self.options = name, adapter_class, options

    @property
    def state_key(self) -> str:
        return f"{type(self).__qualname__}[{self.name}]"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, PairModule):
            raise ConfigError(
                f"{type(self).__name__} needs a PairCaptioner or another PairModule; "
                f"{type(pl_module).__name__} is not one"
            )
        check_order(trainer, self, "adapter")
        if stage == "fit":
            check_processes(trainer, self)
        pl_module.add_adapter(self.name, self.adapter_class, **self.options)
