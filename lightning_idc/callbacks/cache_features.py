"""CacheFeatures: what a captioner's frozen backbone makes of an image is computed once and then read from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_idc.data.store.feature_store import FeatureCache, folder_of
from lightning_idc.utils.bounds import NonNegativeFloat, check_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import default_cache_dir


class CacheFeatures(Callback):
    """Keeps what a frozen module of a captioner makes of each image, and uses it where reading is faster.

    Features are known by their image's bytes, after resizing and transforms, below a folder named by the module, its
    weights, precision and device. Computing and reading are timed at the first batch, and the choice is told. A batch
    of other images beside an image may change the last digits of its features, so a run with this callback equals one
    without it up to such digits, not bit for bit.

    Args:
        folder: of all kept features; None for ``features`` in ``$LIGHTNING_IDC_CACHE`` or ``~/.cache/lightning_idc``.
        module: path of the frozen module, which maps images ``(N, 3, H, W)``, or pairs ``(N, 2, 3, H, W)``, to features
            ``(N, ...)``; ``net.tokenizer.encoder`` of a ProCap.
        half: keep 16-bit numbers; features are then rounded to them in any case.
        always: use the disk without timing it.
        max_gb: of new features per process; what does not fit, as with random crops, is computed every time.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        module: str = "net.backbone",
        half: bool = False,
        always: bool = False,
        max_gb: NonNegativeFloat = 20.0,
    ) -> None:
        check_arguments(CacheFeatures.__init__, locals())
        self.folder = default_cache_dir() / "features" if folder is None else Path(folder)
        self.module, self.half, self.always, self.max_gb = module, half, always, max_gb
        self.cache: FeatureCache | None = None
        """What is in use; None while no stage runs."""
        self._wrapped: nn.Module | None = None
        self._told = self._fitting = self._called = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if isinstance(trainer.strategy, FSDPStrategy | ModelParallelStrategy):
            raise ConfigError("CacheFeatures needs whole weights on every process; use DDP, or leave it out")
        self._fitting = stage == "fit"

    # the weights of a checkpoint are there only when these are called
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._install(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._install(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._install(trainer, pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._install(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._remove()

    def on_train_batch_end(self, *unused: Any) -> None:
        self._check_called()

    def on_validation_batch_end(self, *unused: Any) -> None:
        self._check_called()

    def on_test_batch_end(self, *unused: Any) -> None:
        self._check_called()

    def on_predict_batch_end(self, *unused: Any) -> None:
        self._check_called()

    def _check_called(self) -> None:
        """Refuse a module whose forward is not what makes the features: it would be accepted and nothing kept."""
        if not self._called:
            assert self._wrapped is not None
            inner = [f"{self.module}.{name}" for name, _ in self._wrapped.named_children()]
            raise ConfigError(
                f"a batch went by without a call of {self.module!r}, so nothing of it can be kept; name the part that "
                f"is called with images, such as {', '.join(inner[:3]) or 'net.backbone'}"
            )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._remove()

    def _install(self, trainer: Trainer, captioner: LightningModule) -> None:
        if self._wrapped is not None:
            return
        try:
            module = captioner.get_submodule(self.module)
        except AttributeError:
            names = [name for name, _ in captioner.named_children()]
            raise ConfigError(
                f"CacheFeatures finds no module {self.module!r} in {type(captioner).__name__}, which has "
                f"{', '.join(names)}; name its image encoder with `module`"
            ) from None
        self._check_frozen(module)
        inner = [part for part in module.modules() if part is not module]
        if any(part._forward_hooks or part._forward_pre_hooks for part in inner):
            raise ConfigError(
                f"an adapter or an add-on reads or changes layers within {self.module!r}, which no longer run once "
                "their result is kept; leave it or CacheFeatures out"
            )
        kind = np.dtype(np.float16 if self.half else np.float32)
        facts = (str(trainer.precision), captioner.device.type, kind.name)
        folder = folder_of(self.folder, module, type(module).__name__, *facts)
        self.cache = FeatureCache(module.forward, folder, kind, self.always, self.max_gb * 1e9)
        # an attribute of the instance: keys of checkpoints and the hooks of the module stay what they are
        module.forward = self._forward  # type: ignore[method-assign]
        self._wrapped, self._told, self._called = module, False, False

    def _remove(self) -> None:
        if self._wrapped is not None:
            del self._wrapped.forward
            self._wrapped = self.cache = None

    def _check_frozen(self, module: nn.Module) -> None:
        if self._fitting and any(parameter.requires_grad for parameter in module.parameters()):
            raise ConfigError(
                f"CacheFeatures keeps what {self.module!r} makes of images, but it is trained; freeze it "
                "(freeze_backbone: true), or leave CacheFeatures out"
            )

    def _forward(self, images: Tensor, *others: Any, **options: Any) -> Tensor:
        assert self.cache is not None and self._wrapped is not None
        self._check_frozen(self._wrapped)
        self._called = True
        if self._wrapped.training:
            raise ConfigError(f"{self.module!r} is in training mode, so its features change; keep it in eval mode")
        if others or options:
            raise ConfigError(f"{self.module!r} is given more than images, so its features cannot be kept by image")
        features = self.cache(images.detach())
        if not self._told and self.cache.seconds:
            encode, read = (1 / self.cache.seconds[name] for name in ("encode", "read"))
            choice = "reading" if self.cache.used else "computing"
            rank_zero_info(f"CacheFeatures: {read:,.0f} images/s from the disk, {encode:,.0f} computed; {choice} them")
            self._told = True
        # what follows expects the kind of numbers that the module computes with
        kind = next((p.dtype for p in self._wrapped.parameters() if p.is_floating_point()), features.dtype)
        return features.detach().to(kind)
