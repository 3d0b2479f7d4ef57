"""Adapter: a part that is added to a finished network and that inference needs too, such as LoRA or MDP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from torch import nn

from lightning_idc.models.distributed import full_state_dict, is_rank_zero
from lightning_idc.utils.errors import CheckpointError, ConfigError

WEIGHTS = "adapter.safetensors"


class VisionTower(Protocol):
    """Interface of networks whose image features an adapter can replace."""

    @property
    def feature_width(self) -> int:
        """D, width of the features that can be replaced."""

    @property
    def feature_depth(self) -> int:
        """Number of layers of the vision tower that are used."""

    @property
    def recomputes(self) -> bool:
        """Whether activations are recomputed in the backward pass."""


class Adapter(nn.Module):
    """Changes a network from outside. Its arguments are plain values, so that a checkpoint can store and rebuild it.

    A newly installed adapter must not change the output of the network.
    """

    merged: bool = False
    """Whether the adapter has become part of the network: it is then neither disabled nor trained."""

    @abstractmethod
    def install(self, net: nn.Module) -> None:
        """Create the parameters and insert them into a network that is already built.

        Raises:
            ConfigError: the network has no layer that this adapter fits.
        """

    @abstractmethod
    def disabled(self) -> AbstractContextManager[None]:
        """Context manager in which the network computes its output without this adapter."""

    def save_copy(self) -> None:
        """Store a frozen copy of the current parameters, which :meth:`using_copy` activates.

        Raises:
            ConfigError: this class of adapter does not support copies.
        """
        raise ConfigError(f"{type(self).__name__} cannot store a frozen copy; use FrozenCopy as the reference")

    def using_copy(self) -> AbstractContextManager[None]:
        """Context manager in which the network computes with the copy that :meth:`save_copy` stored."""
        raise ConfigError(f"{type(self).__name__} cannot store a frozen copy; use FrozenCopy as the reference")

    def trained_parameters(self, net: nn.Module) -> Iterator[nn.Parameter]:
        """Parameters that have no effect within :meth:`disabled`, in this module or in the network."""
        return self.parameters()

    def forward_cost(self, num_patches: int, bytes_per_value: int) -> tuple[float, int]:
        """Cost per pair of the adapter's layers after the vision tower; zeros if it has none.

        Args:
            num_patches: number of patches of both images together.
            bytes_per_value: size of an activation.

        Returns:
            floating-point operations of a forward pass, and bytes saved for the backward pass.
        """
        return 0.0, 0

    def save(self, net: nn.Module, folder: Path) -> None:
        """Write the weights to a new folder. All processes must call this; rank 0 writes."""
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
        """Become a permanent part of the network.

        Returns:
            True if the weights of the network now contain the adapter, so that a checkpoint need not install it again.
        """
        self.requires_grad_(False)
        self.merged = True
        return False


class SwitchedAdapter(Adapter):
    """Adapter whose layers pass features on unchanged while ``is_enabled`` is False."""

    is_enabled: bool = True

    @contextmanager
    def disabled(self) -> Iterator[None]:
        self.is_enabled = False
        try:
            yield
        finally:
            self.is_enabled = True


def submodule_for(adapter: Adapter, net: nn.Module, path: str) -> nn.Module:
    """Module of a network that an adapter changes.

    Raises:
        ConfigError: the network has no module of this path.
    """
    try:
        return net.get_submodule(path)
    except AttributeError:
        paths = ", ".join(name for name, _ in net.named_children())
        raise ConfigError(
            f"{type(net).__name__} has no module {path!r} for {type(adapter).__name__}; set `at` to one of {paths}"
        ) from None


def channels_for(adapter: Adapter, module: nn.Module, path: str) -> int:
    """Number of channels of a module whose output is a grid of features.

    Raises:
        ConfigError: the module does not have it as ``width``.
    """
    width = getattr(module, "width", None)
    if not isinstance(width, int):
        raise ConfigError(
            f"{type(adapter).__name__} needs the number of channels of {path!r}; {type(module).__name__} has no `width`"
        )
    return width
