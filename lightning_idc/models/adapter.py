"""Parts that are put onto a finished network and that inference needs too, such as LoRA or MDP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from torch import nn

from lightning_idc.models.distributed import full_state_dict, is_rank_zero
from lightning_idc.utils.errors import CheckpointError, ConfigError

WEIGHTS = "adapter.safetensors"


class Adapter(nn.Module):
    """Changes a network from outside; built from plain values, which a checkpoint keeps to build it again.

    Freshly installed it must leave the network's output as it was.
    """

    merged: bool = False
    """Part of the network for good: neither switched off nor trained any more."""

    @abstractmethod
    def install(self, net: nn.Module) -> None:
        """Make the parameters and connect them with the network, whose layers exist.

        Raises:
            ConfigError: the network offers no place for this adapter.
        """

    @abstractmethod
    def disabled(self) -> AbstractContextManager[None]:
        """While it is open the network computes what it would without this adapter."""

    def keep_copy(self) -> None:
        """Keep the parameters as they are now, beside those that train.

        Raises:
            ConfigError: this kind of adapter cannot.
        """
        raise ConfigError(f"{type(self).__name__} keeps no copy of itself; take FrozenCopy as the reference")

    def copied(self) -> AbstractContextManager[None]:
        """While it is open the network computes with what :meth:`keep_copy` kept."""
        raise ConfigError(f"{type(self).__name__} keeps no copy of itself; take FrozenCopy as the reference")

    def trained(self, net: nn.Module) -> Iterator[nn.Parameter]:
        """Parameters that :meth:`disabled` takes out of play, wherever they are kept."""
        return self.parameters()

    def forward_cost(self, num_patches: int, bytes_per_value: int) -> tuple[float, int]:
        """What the adapter's own layers behind a vision tower cost per pair; nothing where it has none.

        Args:
            num_patches: of both images together.
            bytes_per_value: of an activation.

        Returns:
            floating-point operations of a forward pass, and bytes that it saves for the backward pass.
        """
        return 0.0, 0

    def save(self, net: nn.Module, folder: Path) -> None:
        """Write the weights into a new folder of their own; all processes must call this, the first one writes."""
        from safetensors.torch import save_file

        state = full_state_dict(self.state_dict())
        if is_rank_zero():
            folder.mkdir(parents=True, exist_ok=True)
            save_file(state, folder / WEIGHTS)

    def load(self, net: nn.Module, folder: Path) -> None:
        """Read what :meth:`save` wrote.

        Raises:
            CheckpointError: the folder holds another adapter.
        """
        from safetensors.torch import load_file

        try:
            self.load_state_dict(load_file(folder / WEIGHTS))
        except RuntimeError as error:
            raise CheckpointError(f"{str(folder)!r} holds another adapter: {error}") from error

    def merge(self, net: nn.Module) -> bool:
        """Become part of the network for good.

        Returns:
            True when the network now holds all of it, so that nothing is left to install again.
        """
        self.requires_grad_(False)
        self.merged = True
        return False
