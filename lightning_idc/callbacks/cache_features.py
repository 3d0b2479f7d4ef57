"""CacheFeatures: computes the image features of a frozen backbone once and then reads them from disk."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_idc.data.store.feature_store import FeatureCache, folder_of
from lightning_idc.utils.bounds import NonNegativeFloat, check_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import default_cache_dir

DROPOUT = ("p", "dropout", "attention_dropout", "drop_path", "drop_prob", "hidden_dropout")
"""Attributes with the rate of a layer that drops values at random."""


@runtime_checkable
class HasImageEncoder(Protocol):
    """A network that encodes whole pairs, by modules which a cache can stand in for; a vision-language model."""

    feature_cache: FeatureCache | None
    rewriters: list[Any]

    @property
    def image_encoder(self) -> nn.Module: ...

    @property
    def image_settings(self) -> str: ...


class CacheFeatures(Callback):
    """Caches the features of a frozen module of a captioner on disk, and uses the cache if reading is faster.

    The key of a feature is a hash of the image after resizing and transforms; the folder depends on the module, its
    weights, precision and device. Computing and reading are timed at the first batch, and the choice is printed. The
    last digits of features can depend on the other images of a batch, so results with and without this callback agree
    up to rounding. Of a vision-language model, the tower and its projector are cached, pair by pair.

    Args:
        folder: folder of all caches; None for ``features`` in ``$LIGHTNING_IDC_CACHE`` or ``~/.cache/lightning_idc``.
        module: path of the frozen module, which maps images ``(N, 3, H, W)``, or pairs ``(N, 2, 3, H, W)``, to features
            ``(N, ...)``; ``net.tokenizer.encoder`` of a ProCap. None for ``net.backbone``, or for tower and projector
            of a vision-language model.
        half: whether to store features in 16 bits; computed features are then rounded as well.
        always: whether to use the cache without timing it.
        max_gb: maximum size of new features per process; further images, as with random crops, are not cached.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        module: str | None = None,
        half: bool = False,
        always: bool = False,
        max_gb: NonNegativeFloat = 20.0,
    ) -> None:
        check_arguments(CacheFeatures.__init__, locals())
        self.folder = default_cache_dir() / "features" if folder is None else Path(folder)
        self.module, self.half, self.always, self.max_gb = module or "net.backbone", half, always, max_gb
        self._takes_any = module is None
        self.cache: FeatureCache | None = None
        """Cache in use; None outside of a stage."""
        self._wrapped: nn.Module | None = None
        self._vision_language: HasImageEncoder | None = None
        self._frozen: nn.Module | None = None
        self._is_reported = self._fitting = self._called = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if isinstance(trainer.strategy, FSDPStrategy | ModelParallelStrategy):
            raise ConfigError("CacheFeatures needs unsharded weights; use DDP, or leave CacheFeatures out")
        self._fitting = stage == "fit"

    # the weights of a checkpoint are loaded only before these hooks
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
        """Report the choice of the first batch, and check that the module was called: nothing is cached otherwise."""
        assert self.cache is not None
        if not self._is_reported and self.cache.seconds:
            encode, read = (1 / self.cache.seconds[name] for name in ("encode", "read"))
            choice = "reading" if self.cache.used else "computing"
            items = "images" if self._vision_language is None else "pairs"
            rank_zero_info(f"CacheFeatures: {read:,.0f} {items}/s from the disk, {encode:,.0f} computed; {choice} them")
            self._is_reported = True
        if self._vision_language is not None:
            self._check_frozen("the vision tower with its projector")
        if not self._called:
            assert self._wrapped is not None
            inner = [f"{self.module}.{name}" for name, _ in self._wrapped.named_children()]
            raise ConfigError(
                f"a batch was processed without a call of {self.module!r}, so its features cannot be cached; set "
                f"`module` to one that is called with images, such as {', '.join(inner[:3]) or 'net.backbone'}"
            )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._remove()

    def _install(self, trainer: Trainer, captioner: LightningModule) -> None:
        net = getattr(captioner, "net", None)
        if self.cache is not None:
            return
        if self._takes_any and isinstance(net, HasImageEncoder):
            self._install_on_pairs(trainer, captioner, net)
            return
        try:
            module = captioner.get_submodule(self.module)
        except AttributeError:
            names = [name for name, _ in captioner.named_children()]
            raise ConfigError(
                f"{type(captioner).__name__} has no module {self.module!r} for CacheFeatures; it has "
                f"{', '.join(names)}; set `module` to its image encoder"
            ) from None
        self._frozen = module
        self._check_frozen(repr(self.module))
        inner = [part for part in module.modules() if part is not module]
        if any(part._forward_hooks or part._forward_pre_hooks for part in inner):
            raise ConfigError(
                f"an adapter or an add-on has hooks on layers within {self.module!r}, which do not run if the features "
                "are cached; leave it or CacheFeatures out"
            )
        self.cache = self._new_cache(trainer, captioner, module, type(module).__name__)
        self.cache.encode = module.forward
        # set on the instance, so that checkpoint keys and hooks of the module stay the same
        module.forward = self._forward  # type: ignore[method-assign]
        self._wrapped, self._is_reported, self._called = module, False, False

    def _install_on_pairs(self, trainer: Trainer, captioner: LightningModule, net: HasImageEncoder) -> None:
        self._frozen = encoder = net.image_encoder
        if net.rewriters:
            raise ConfigError(
                "an adapter changes features within the vision tower, which do not exist if its output is cached; "
                "leave the adapter or CacheFeatures out"
            )
        self._check_frozen("the vision tower with its projector")
        rates = (getattr(part, name, 0.0) for part in encoder.modules() for name in DROPOUT)
        if self._fitting and any(isinstance(rate, float) and rate > 0 for rate in rates):
            raise ConfigError(
                "the vision tower has dropout, so its features vary; set it to 0 or leave CacheFeatures out"
            )
        settings = hashlib.sha256(net.image_settings.encode()).hexdigest()[:8]
        self.cache = net.feature_cache = self._new_cache(trainer, captioner, encoder, "image_encoder", settings)
        self._vision_language, self._is_reported, self._called = net, False, True

    def _new_cache(
        self, trainer: Trainer, captioner: LightningModule, encoder: nn.Module, name: str, *settings: str
    ) -> FeatureCache:
        dtype = np.dtype(np.float16 if self.half else np.float32)
        settings = (*settings, str(trainer.precision), captioner.device.type, dtype.name)
        return FeatureCache(
            encoder.forward, folder_of(self.folder, encoder, name, *settings), dtype, self.always, self.max_gb * 1e9
        )

    def _remove(self) -> None:
        if self._wrapped is not None:
            del self._wrapped.forward
        if self._vision_language is not None:
            self._vision_language.feature_cache = None
        self._wrapped = self._vision_language = self._frozen = self.cache = None

    def _check_frozen(self, name: str) -> None:
        assert self._frozen is not None
        if self._fitting and any(parameter.requires_grad for parameter in self._frozen.parameters()):
            raise ConfigError(
                f"CacheFeatures needs frozen weights, but {name} is trained; freeze it "
                "(freeze_backbone: true, or `freeze` and `targets` of LoRA), or leave CacheFeatures out"
            )

    def _forward(self, images: Tensor, *others: Any, **options: Any) -> Tensor:
        assert self.cache is not None and self._wrapped is not None
        self._check_frozen(repr(self.module))
        self._called = True
        if self._wrapped.training:
            raise ConfigError(f"{self.module!r} is in training mode, so its features vary; set it to eval mode")
        if others or options:
            raise ConfigError(
                f"{self.module!r} has inputs other than images, so its features cannot be cached by image"
            )
        features = self.cache(images.detach())
        # later layers expect the dtype of the module
        dtype = next((p.dtype for p in self._wrapped.parameters() if p.is_floating_point()), features.dtype)
        return features.detach().to(dtype)
