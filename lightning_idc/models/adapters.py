"""AdapterSet: the adapters of a module, recorded by name in its checkpoint and rebuilt on load without a Trainer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_idc.checkpoints.reading import class_named
from lightning_idc.models.adapter import Adapter
from lightning_idc.models.distributed import all_gather_object, is_rank_zero, is_sharded
from lightning_idc.models.loss_check import check_weights
from lightning_idc.utils.errors import CheckpointError, ConfigError
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import Output

RECORDS = "adapters.json"


class AdapterSet(nn.ModuleDict):
    """Adapters that are installed on a network, by name.

    Args:
        hparams: hyper-parameters of the module that holds this set; ``hparams["adapters"]`` has the record of each
            adapter (``class_path``, ``init_args`` and, once it is part of the network, ``merged``).
    """

    def __init__(self, hparams: MutableMapping[str, Any]) -> None:
        super().__init__()
        self._hparams = hparams

    @property
    def recorded(self) -> dict[str, dict[str, Any]]:
        """Record (``class_path``, ``init_args``) of each adapter by name."""
        return dict(self._hparams.get("adapters") or {})

    def record(self, records: dict[str, dict[str, Any]] | None) -> None:
        """Add records; an adapter that is recorded already keeps its record.

        Raises:
            ConfigError: an adapter is recorded under this name with other options.
        """
        merged = self.recorded
        for name, record in (records or {}).items():
            if not {"class_path", "init_args"} <= set(record):
                raise ConfigError(f"the record of the adapter {name!r} is {record}; expected class_path and init_args")
            if any(merged.get(name, record)[key] != record[key] for key in ("class_path", "init_args")):
                raise ConfigError(
                    f"the captioner has an adapter {name!r} with the record {merged[name]}, which differs from "
                    f"{record}; give the new one another name"
                )
            merged.setdefault(name, record)
        self.replace_records(merged)

    def clear_records(self) -> dict[str, dict[str, Any]]:
        """Remove all records and return them."""
        records = self.recorded
        self.replace_records({})
        return records

    def replace_records(self, records: dict[str, dict[str, Any]]) -> None:
        """Replace all records."""
        self._hparams["adapters"] = records or None

    def installed(self) -> dict[str, Adapter]:
        """Installed adapters by name."""
        return {name: adapter for name, adapter in self.items() if isinstance(adapter, Adapter)}

    def install(self, net: nn.Module, device: torch.device) -> None:
        """Install every recorded adapter that is not yet on the network."""
        for name, record in self.recorded.items():
            if name in self:
                continue
            if is_sharded(net):
                raise ConfigError(
                    f"the adapter {name!r} comes after the network was sharded; list its callback in the configuration"
                )
            # building draws random numbers; without the fork it would shift the module's dropout and data order
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(zlib.crc32(f"{name}/{torch.initial_seed()}".encode()))
                adapter: Adapter = class_named(record["class_path"], Adapter)(**record["init_args"])
                adapter.install(net)
            if record.get("merged"):
                adapter.merge(net)
            adapter.train(self.training)
            self[name] = adapter.to(device)

    def merge(self, net: nn.Module) -> None:
        """Make all adapters part of the network, which is then what remains when later adapters are disabled."""
        records = self.recorded
        for name, adapter in self.installed().items():
            if adapter.merge(net):
                del self[name], records[name]
            else:
                records[name] = {**records[name], "merged": True}
        self.replace_records(records)

    def save(self, net: nn.Module, folder: Path) -> None:
        """Write records and weights of the adapters that are not merged; all processes must call this.

        Raises:
            CheckpointError: a weight is not finite.
        """
        check_weights(net)
        unmerged = {name: adapter for name, adapter in self.installed().items() if not adapter.merged}
        with ExitStack() as stack:
            draft = stack.enter_context(Output(folder, "adapters")) if is_rank_zero() else folder
            for name, adapter in unmerged.items():
                adapter.save(net, draft / name)
            if is_rank_zero():
                write_content(draft / RECORDS, json.dumps({name: self.recorded[name] for name in unmerged}, indent=2))
        all_gather_object(None)  # a barrier: no process reads the files before they are written

    def load(self, net: nn.Module, folder: Path, device: torch.device) -> None:
        """Install the adapters that :meth:`save` wrote, with their weights.

        Raises:
            CheckpointError: the folder was not written by :meth:`save`, or does not fit the network.
        """
        if not (folder / RECORDS).is_file():
            raise CheckpointError(f"{str(folder)!r} has no {RECORDS}; expected a folder that save_adapters wrote")
        try:
            records = json.loads((folder / RECORDS).read_text(encoding="utf-8"))
            self.record(records)
        except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, KeyError, TypeError) as error:
            raise CheckpointError(f"{str(folder / RECORDS)!r} is damaged ({error}); save the adapters again") from error
        self.install(net, device)
        for name in records:
            self.installed()[name].load(net, folder / name)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Context manager in which the adapters that are not merged have no effect."""
        with ExitStack() as stack:
            for adapter in self.installed().values():
                if not adapter.merged:
                    stack.enter_context(adapter.disabled())
            yield

    def trained_parameter_ids(self, net: nn.Module) -> set[int]:
        """``id()`` of the parameters that have no effect within :meth:`disabled`."""
        return {id(p) for adapter in self.installed().values() for p in adapter.trained_parameters(net)}
