"""How an adapter joins a captioner: recorded by name, strict in the checkpoint, rebuilt on load without a Trainer.

``captioner.adapter`` holds the installed adapters; ``captioner.hparams["adapters"]`` what they are made from. A
callback (:class:`AdapterCallback`) writes that record from YAML, and so does a checkpoint.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from torch import nn

from lightning_idc.core.adapter import Adapter
from lightning_idc.core.checkpoint import class_named
from lightning_idc.core.distributed import is_first, of_all_processes
from lightning_idc.core.types import PairError

RECORDS = "adapters.json"


class TakesAdapters:
    """The part of a PairCaptioner that carries adapters."""

    adapter: nn.ModuleDict

    def add_adapter(self: Any, name: str, kind: type[Adapter], **options: Any) -> None:
        """Put an adapter onto the network, or, before there is one, have it put on when there is. Twice is once.

        Args:
            name: of the adapter, under which checkpoints keep it.
            kind: its class.
            options: plain values that it is made from.

        Raises:
            PairError: another adapter has this name, or the network has no place for this one.
        """
        self.build()
        before = self.hparams["adapters"]
        self.record_adapters({name: {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": options}})
        if self.net is not None:
            try:
                self.install_adapters()
            except PairError:
                self.hparams["adapters"] = before
                raise

    def record_adapters(self: Any, records: dict[str, dict[str, Any]] | None) -> None:
        """Add to what the adapters are made from; one that is recorded already stays as it is.

        Raises:
            PairError: an adapter is recorded under this name with other options.
        """
        known = dict(self.hparams["adapters"] or {})
        for name, record in (records or {}).items():
            if any(known.get(name, record)[key] != record[key] for key in ("class_path", "init_args")):
                raise PairError(
                    f"the captioner has an adapter {name!r} made from {known[name]}, which does not go with {record}; "
                    "give the new one another name"
                )
            known.setdefault(name, record)
        self.hparams["adapters"] = known or None

    def install_adapters(self: Any) -> None:
        """Install every recorded adapter that is not yet on the network."""
        from torch.distributed.fsdp import FSDPModule

        for name, record in (self.hparams["adapters"] or {}).items():
            if name in self.adapter:
                continue
            if isinstance(self.net, FSDPModule):
                raise PairError(
                    f"the adapter {name!r} comes after the network was sharded; list its callback in the configuration"
                )
            # building draws random numbers; without the fork it would shift the host's dropout and data order
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(zlib.crc32(f"{name}/{torch.initial_seed()}".encode()))
                adapter: Adapter = class_named(record["class_path"], Adapter)(**record["init_args"])
                adapter.install(self.net)
            if record.get("settled"):
                adapter.settle(self.net)
            adapter.train(self.training)
            self.adapter[name] = adapter.to(self.device)

    def settle_adapters(self: Any) -> None:
        """Make all adapters part of the network, so that what is added later can be switched off to get back here."""
        records = dict(self.hparams["adapters"] or {})
        for name, adapter in list(self.adapter.items()):
            if adapter.settle(self.net):
                del self.adapter[name], records[name]
            else:
                records[name] = {**records[name], "settled": True}
        self.hparams["adapters"] = records or None

    def save_adapters(self: Any, folder: str | Path) -> Path:
        """Write what the adapters are made from and their weights, each in a folder of its name, and nothing else.

        A LoRA's folder has the layout of peft. Settled adapters belong to the network and are not written. In a
        distributed run all processes must call this; sharded weights are put together and the first process writes.
        """
        folder = Path(folder)
        loose = {name: adapter for name, adapter in self.adapter.items() if not adapter.settled}
        for name, adapter in loose.items():
            adapter.save(self.net, folder / name)
        records = {name: self.hparams["adapters"][name] for name in loose}
        if is_first():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / RECORDS).write_text(json.dumps(records, indent=2), encoding="utf-8")
        of_all_processes(None)  # nobody goes on to read what is not written yet
        return folder

    def load_adapters(self: Any, folder: str | Path) -> None:
        """Install the adapters that :meth:`save_adapters` wrote, with their weights.

        Raises:
            PairError: the folder is not one of those, or does not fit the network.
        """
        folder = Path(folder)
        if not (folder / RECORDS).is_file():
            raise PairError(f"{str(folder)!r} has no {RECORDS}; expected a folder that save_adapters wrote")
        records = json.loads((folder / RECORDS).read_text(encoding="utf-8"))
        self.record_adapters(records)
        self.install_adapters()
        for name in records:
            self.adapter[name].load(self.net, folder / name)

    @contextmanager
    def without_adapters(self: Any) -> Iterator[None]:
        """Switch off all adapters that are not settled: within, the captioner is what it was before they came."""
        with ExitStack() as stack:
            for adapter in self.adapter.values():
                if not adapter.settled:
                    stack.enter_context(adapter.disabled())
            yield

    def trained_besides_adapters(self: Any) -> list[str]:
        """Paths of trainable parameters of the network that :meth:`without_adapters` does not undo."""
        own = {id(p) for adapter in self.adapter.values() for p in adapter.trained(self.net)}
        return [path for path, p in self.net.named_parameters() if p.requires_grad and id(p) not in own]


class AdapterCallback(Callback):
    """Puts an adapter onto the captioner that is trained or tested.

    Args:
        name: of the adapter; two of one class need two names.
        kind: class of the adapter.
        options: plain values that it is made from.
    """

    def __init__(self, name: str, kind: type[Adapter], **options: Any) -> None:
        self.name, self.kind, self.options = name, kind, options

    @property
    def state_key(self) -> str:
        return f"{type(self).__qualname__}[{self.name}]"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        from lightning_idc.core.captioner import PairCaptioner  # which imports this module

        if not isinstance(pl_module, PairCaptioner):
            raise PairError(f"{type(self).__name__} goes onto a PairCaptioner; {type(pl_module).__name__} is none")
        if stage == "fit" and isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
            raise PairError(
                f"{type(self).__name__} cannot join a spawned or forked run: its parameters would be lost in the "
                "main process; use strategy=ddp"
            )
        pl_module.add_adapter(self.name, self.kind, **self.options)
