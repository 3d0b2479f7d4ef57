"""PairModule: base class of everything trainable in this library, captioners and pre-training tasks.

A subclass builds its network in :meth:`PairModule.make_net` and computes its loss in :meth:`PairModule.training_loss`.
This class provides add-ons, adapters, parameter groups, schedules, sharding and checkpoints of plain types.

A training step (:meth:`PairModule.training_step`): add-ons change the batch -> :meth:`PairModule.encode` -> add-ons
change the features -> the objective of an add-on, or :meth:`PairModule.training_loss` -> plus the losses of the
add-ons.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from lightning_idc.checkpoints.folders import CONFIG, read_config, read_weights, write_folder
from lightning_idc.checkpoints.reading import (
    TRAINING_ONLY,
    check_loadable_hparams,
    check_no_nan,
    check_same_computation,
    class_named,
    plain_hparams,
)
from lightning_idc.checkpoints.resolve import read_named
from lightning_idc.models.adapter import Adapter
from lightning_idc.models.adapters import AdapterSet
from lightning_idc.models.addon import AUX, AddonSteps, addons_of, reconcile_addons
from lightning_idc.models.distributed import all_gather_object, full_state_dict, is_rank_zero, shard
from lightning_idc.models.loss_check import (
    GradientCheck,
    LossCheck,
    check_weights,
    gradient_norm,
    nonfinite_values,
)
from lightning_idc.models.parameter_groups import (
    NO_DECAY,
    check_groups,
    check_trainable_precision,
    clip_separately,
    group_parameters,
    split_by_decay,
)
from lightning_idc.models.random_state import random_state, set_random_state
from lightning_idc.models.schedules import Constant, Schedule, scheduled
from lightning_idc.utils.bounds import NonNegativeFloat, check_arguments, register_bounds
from lightning_idc.utils.errors import ConfigError, IDCError, reading, reads_file
from lightning_idc.utils.names import public_name

if TYPE_CHECKING:
    from typing_extensions import Self

register_bounds()  # here, so that a LightningCLI in user code knows the bounded types


class PairModule(LightningModule):
    """Trains a network on pairs of images.

    Args:
        learning_rates: factor of the learning rate by parameter group: ``vision``, ``language``,
            ``adapters.<name>``, ``addons.<name>``.
        adapters: record (``class_path``, ``init_args``) of each adapter by name; set by callbacks and checkpoints.
        init_from: weights that training starts from, with their vocabulary and adapters: a checkpoint, a folder of
            ``save_pretrained``, the name of a captioner that comes with the library (``pcb``), or a hub id.
        merge_adapters: make the adapters of ``init_from`` part of the network, so that disabling later adapters
            gives back the weights that training started from.
        optimizer: creates the optimizer from parameter groups.
        schedule: multiplier of the learning rate over the run.
        schedules: schedules of single parameter groups, which override ``schedule``.
        no_decay: suffixes of the names of parameters without weight decay, such as ``bias``.
    """

    vision_modules: tuple[str, ...] = ("net.backbone",)
    """Paths of the sub-modules whose parameters form the group ``vision``."""
    token_hparams: tuple[str, ...] = ()
    """Hyper-parameters that define the token ids; their values in loaded weights override the arguments."""
    computation_hparams: tuple[str, ...] = ()
    """Hyper-parameters that must equal those of loaded weights, such as the number of heads, which no shape shows."""
    not_stored: tuple[str, ...] = ()
    """Arguments that are left out of checkpoints, such as files of initial weights: a checkpoint has all weights."""
    sharded_methods: tuple[str, ...] = ()
    """Methods of ``net`` that every process calls equally often in a step; they gather sharded weights."""

    def __init__(
        self,
        learning_rates: dict[str, NonNegativeFloat] | None = None,
        adapters: dict[str, dict[str, Any]] | None = None,
        init_from: str | None = None,
        merge_adapters: bool = False,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        schedule: Schedule = Constant(),  # noqa: B008 - frozen
        schedules: dict[str, Schedule] | None = None,
        no_decay: Sequence[str] = (),
    ) -> None:
        check_arguments(PairModule.__init__, locals())
        super().__init__()
        # the arguments of the outermost subclass, which a checkpoint stores
        self.save_hyperparameters(ignore=[*TRAINING_ONLY, *self.not_stored])
        self.optimizer, self.schedule, self.schedules = optimizer, schedule, dict(schedules or {})
        if isinstance(no_decay, str):
            raise ConfigError(f"no_decay is {no_decay!r}; expected a list of suffixes, such as [{no_decay!r}]")
        self.no_decay = tuple(no_decay)
        self.lr: float | None = None
        """Learning rate in place of the optimizer's; Lightning's learning rate finder sets it."""
        self._lr_of_optimizer: float | None = None
        self.init_from: str | None = init_from
        self._merges_adapters = merge_adapters
        self.net: nn.Module | None = None
        self.adapters = AdapterSet(self.hparams)
        self.loss_check, self.gradient_check = LossCheck(), GradientCheck()
        self._nonfinite_at_start: list[str] = []
        self._rng: list[dict[str, Tensor]] | None = None
        cast(Any, self).register_load_state_dict_pre_hook(reconcile_addons)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy of the module for reference policies and weight averaging; what only training needs is shared.

        An optimizer from LightningCLI refers to the CLI, whose trainer has started the other processes of the run.
        """
        for name in TRAINING_ONLY:
            shared = self.__dict__.get(name)
            memo[id(shared)] = shared
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        clone.__setstate__(copy.deepcopy(self.__getstate__(), memo))  # type: ignore[no-untyped-call]
        return clone

    # ---- to be implemented by subclasses ----------------------------------------------------------------

    def make_net(self) -> nn.Module | None:
        """Build the network; None if it depends on hyper-parameters that only a checkpoint will provide."""
        raise ConfigError(f"{type(self).__name__} has no make_net; implement it")

    def encode(self, batch: Any) -> Any:
        """Features that add-ons and the loss read; the batch itself by default."""
        return batch

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        """Loss of a batch, a scalar; add-ons may replace it and add to it."""
        raise ConfigError(f"{type(self).__name__} has no training_loss; implement it")

    def batch_ids(self, batch: Any) -> list[str]:
        """Ids of the pairs of a batch, for messages."""
        return list(batch["ids"]) if isinstance(batch, dict) and "ids" in batch else []

    def store_hparams(self, **values: Any) -> None:
        """Store values that come from the data or from other weights in ``hparams``, for checkpoints.

        Only this method writes to ``hparams``.
        """
        self.hparams.update(values)

    # ---- training ---------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        steps = AddonSteps(self, batch, batch_idx)
        batch = steps.change_batch()
        features = steps.change_features(self.encode(batch))
        loss = steps.objective()
        if loss is None:
            loss = self.training_loss(features, batch)
        loss = steps.total(loss)
        ids = self.batch_ids(batch)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=max(1, len(ids) or len(batch)))
        self.loss_check.update(loss, ids)
        return loss

    # ---- building, sharding, optimising -----------------------------------------------------------------

    @property
    def data(self) -> Any:
        """Data module of the run, or None."""
        trainer = self._trainer
        return None if trainer is None else cast(Any, trainer).datamodule

    @property
    def is_fitting(self) -> bool:
        """Whether a Trainer is fitting this module."""
        return self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING

    @property
    def built_net(self) -> Any:
        """The network.

        Raises:
            ConfigError: the network is not built yet.
        """
        if self.net is None:
            raise ConfigError(
                f"{type(self).__name__} has no network yet: set `vocabulary`, load a checkpoint, or fit it with a "
                "data module that has train_captions()"
            )
        return self.net

    def build(self) -> None:
        """Build the network with its adapters, once, from hyper-parameters, ``init_from`` or the data."""
        if self.net is None:
            requested = self.adapters.clear_records()
            initial_weights = self.load_initial_weights()
            self.net = self.make_net()
            if self.net is not None and initial_weights is not None:
                self.adapters.install(self.net, self.device)  # adapters of the checkpoint
                self.load_state_dict(self.fit_weights(initial_weights))
                if self._merges_adapters:
                    self.merge_adapters()
            self.adapters.record(requested)
        if self.net is not None:
            self.adapters.install(self.net, self.device)

    def load_initial_weights(self) -> dict[str, Tensor] | None:
        """Weights of ``init_from``, after taking over the hyper-parameters they were trained with; None without it.

        Raises:
            CheckpointError: the file cannot be used, or its weights are for another computation.
        """
        if self.init_from is None:
            return None
        checkpoint = read_named(self.init_from)
        with reading(self.init_from):
            hparams = plain_hparams(checkpoint, self.init_from)
            self.check_same_computation(hparams, self.init_from)
            self.adopt_hparams(hparams)
            state: dict[str, Tensor] = checkpoint["state_dict"]
            check_no_nan(state, self.init_from)
        return state

    def fit_weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights of ``init_from`` for the network, which may differ from theirs in what comes from the data."""
        return state

    @classmethod
    def computation(cls, hparams: Mapping[str, Any]) -> dict[str, Any]:
        """The hyper-parameters that must equal those of loaded weights, by name."""
        return {name: hparams[name] for name in cls.computation_hparams if name in hparams}

    def check_same_computation(self, hparams: Mapping[str, Any], path: str | Path) -> None:
        """Check that the weights of a checkpoint belong to the same computation.

        Raises:
            CheckpointError: its hyper-parameters differ in :meth:`computation`; missing ones are not compared.
        """
        check_same_computation(self.computation(self.hparams), self.computation(hparams), path)

    def adopt_hparams(self, hparams: dict[str, Any]) -> None:
        """Take over the hyper-parameters of a checkpoint that belong to its weights."""
        self.store_hparams(**{name: hparams[name] for name in self.token_hparams if hparams.get(name) is not None})
        self.adapters.record(hparams.get("adapters"))

    def configure_model(self) -> None:
        self.build()
        if self.is_fitting and self.device_mesh is None:
            self._copy_for_averages()
        if self.device_mesh is not None and self.net is not None:
            shard(self.net, self.device_mesh, self.sharded_methods)
            for adapter in self.adapters.values():
                shard(adapter, self.device_mesh, ())
            for addon in addons_of(self).values():
                for part in addon.modules():
                    if isinstance(part, PairModule):
                        self._shard_copy(part)
                shard(addon, self.device_mesh, addon.sharded_methods)

    def _copy_for_averages(self) -> None:
        """Call the setup of weight averaging again: it copied this module before the network was built."""
        for callback in cast(Any, self.trainer).callbacks:
            if isinstance(callback, StochasticWeightAveraging):
                callback.setup(self.trainer, self, "fit")

    def _shard_copy(self, part: PairModule) -> None:
        """Shard a copy of this module, such as a frozen reference, in the same units as this module."""
        part._device_mesh, part._trainer = self.device_mesh, self._trainer
        part.configure_model()
        part._trainer = None

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the optimizer: ``vision``, ``language``, ``adapters.<name>``, ``addons.<name>``."""
        groups = group_parameters(self.named_parameters(), self.group_of)
        check_groups("learning_rates", self.hparams["learning_rates"] or {}, groups)
        check_groups("schedules", self.schedules, groups)
        no_decay = {id(p) for path, p in self.named_parameters() if path.endswith(self.no_decay)}
        return [part for name, parameters in groups.items() for part in split_by_decay(name, parameters, no_decay)]

    def group_of(self, path: str) -> str:
        """Name of the group of a parameter."""
        if path.startswith(f"{AUX}."):
            return f"addons.{path.split('.')[1]}"
        if path.startswith("adapters."):
            return f"adapters.{path.split('.')[1]}"
        return "vision" if path.startswith(tuple(f"{module}." for module in self.vision_modules)) else "language"

    def configure_optimizers(self) -> Any:
        assert self.built_net is not None
        optimizer = cast(Any, self.optimizer)(self.parameter_groups())
        check_trainable_precision(self, optimizer)
        self._lr_of_optimizer = self.lr
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] if self.lr is None else self.lr
            group["lr"] *= (self.hparams["learning_rates"] or {}).get(group["name"].removesuffix(NO_DECAY), 1.0)
        schedules = [self.schedule_of(group["name"].removesuffix(NO_DECAY)) for group in optimizer.param_groups]
        return scheduled(optimizer, schedules, self.trainer)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip gradients; those of an add-on with ``clip_separately`` separately, as with two optimizers.

        Raises:
            ConfigError: their norm is not finite, on an accelerator that of the step before.
        """
        if getattr(self.trainer.precision_plugin, "scaler", None) is None:  # a scaler skips such steps itself
            self.gradient_check.update(gradient_norm(optimizer), [f"step {self.trainer.global_step}"])
        separate = {f"addons.{name}" for name, addon in addons_of(self).items() if addon.clip_separately}
        by_value = gradient_clip_algorithm == "value"
        if gradient_clip_val and clip_separately(optimizer, gradient_clip_val, by_value, separate):
            return
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def schedule_of(self, group: str) -> Schedule:
        """Schedule of a parameter group."""
        return self.schedules.get(group, self.schedule)

    # ---- adapters ---------------------------------------------------------------------------------------

    def add_adapter(self, name: str, adapter_class: type[Adapter], **options: Any) -> None:
        """Add an adapter to the network, or record it until the network is built. Adding it twice has no effect.

        Args:
            name: name of the adapter, also in checkpoints.
            adapter_class: class of the adapter.
            options: arguments of the class, plain values.

        Raises:
            ConfigError: another adapter has this name, or the network has no layer that this adapter fits.
        """
        self.build()
        before = self.adapters.recorded
        self.adapters.record({name: {"class_path": public_name(adapter_class), "init_args": options}})
        if self.net is not None:
            try:
                self.adapters.install(self.net, self.device)
            except IDCError:
                self.adapters.replace_records(before)
                raise

    def merge_adapters(self) -> None:
        """Make all adapters part of the network, which is then what remains when later adapters are disabled."""
        self.adapters.merge(self.built_net)

    @contextmanager
    def disable_adapters(self) -> Iterator[None]:
        """Context manager in which the adapters that are not merged have no effect."""
        with self.adapters.disabled():
            yield

    def trainable_non_adapter_parameters(self) -> list[str]:
        """Paths of the trainable parameters of the network that do not belong to an adapter."""
        adapter_ids = self.adapters.trained_parameter_ids(self.built_net)
        return [path for path, p in self.built_net.named_parameters() if p.requires_grad and id(p) not in adapter_ids]

    def save_adapters(self, folder: str | Path) -> Path:
        """Write records and weights of the adapters, each in a folder with its name.

        The folder of a LoRA has the layout of peft. Merged adapters belong to the network and are not written. In a
        distributed run all processes must call this; sharded weights are gathered and rank 0 writes.
        """
        self.adapters.save(self.built_net, Path(folder))
        return Path(folder)

    @reads_file("folder")
    def load_adapters(self, folder: str | Path) -> None:
        """Install the adapters that :meth:`save_adapters` wrote, with their weights.

        Raises:
            CheckpointError: the folder was not written by :meth:`save_adapters`, or does not fit the network.
        """
        self.adapters.load(self.built_net, Path(folder), self.device)

    # ---- checkpoints ------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.check_finite(checkpoint)
        check_loadable_hparams(self.hparams, type(self).__name__)
        checkpoint["rng"] = all_gather_object(random_state(self.device))
        checkpoint["class_path"] = public_name(type(self))

    def check_finite(self, checkpoint: Mapping[str, Any]) -> None:
        """Refuse to save a state of the training that is not finite; all processes must call this.

        Args:
            checkpoint: checkpoint to save.

        Raises:
            ConfigError: the last loss or gradient is not finite.
            CheckpointError: a weight, a buffer or a state of the optimizer is not finite.
        """
        self.loss_check.check()
        self.gradient_check.check()
        # WeightAveraging has put the averages in the place of the weights
        averages = checkpoint["state_dict"] if "current_model_state" in checkpoint else None
        optimizers = self._trainer.optimizers if self._trainer is not None else []
        check_weights(self, optimizers, averages, self._nonfinite_at_start)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_no_nan(checkpoint.get("state_dict", {}), "the checkpoint")
        hparams = plain_hparams(checkpoint, "the checkpoint")
        self.check_same_computation(hparams, "the checkpoint")
        words = {name: hparams[name] for name in self.token_hparams if hparams.get(name) is not None}
        if self.net is None or any(words[name] != self.hparams[name] for name in words):
            self.adopt_hparams(hparams)
            self.rebuild()
        elif hparams.get("adapters"):
            self.adapters.record(hparams["adapters"])
            self.adapters.install(self.net, self.device)
        self._rng = checkpoint.get("rng")

    def rebuild(self) -> None:
        """Build the network again for a checkpoint that has all of its weights."""
        self.net, self.init_from = None, None
        self.adapters.clear()
        self.build()
        if self.net is not None and self._trainer is not None and self.device_mesh is None:
            self.net.to(self.device)

    def on_fit_start(self) -> None:
        """Switch a loaded module to training mode: Lightning leaves modules in eval mode as they are."""
        if self.trainer.checkpoint_callback is not None:
            check_loadable_hparams(self.hparams, type(self).__name__)  # now rather than after hours of training
        self._nonfinite_at_start = nonfinite_values(self)
        if not self.training:
            self.train()
        if self.lr != self._lr_of_optimizer:
            # the callback LearningRateFinder has just run: factors and schedules of the groups start from its result
            self.trainer.strategy.setup_optimizers(self.trainer)

    def on_train_end(self) -> None:
        """Check the weights of the last step, which no checkpoint may hold."""
        self.check_finite({})

    def on_train_start(self) -> None:
        """Restore the random state of the checkpoint, one per rank."""
        states, self._rng = self._rng, None
        if states is None or len(states) != self.trainer.world_size:
            return
        set_random_state(states[self.trainer.global_rank], self.device)

    # ---- folders to share -------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write ``config.json`` and ``model.safetensors``, without add-ons, and return the folder.

        In a distributed run all processes must call this; sharded weights are gathered and rank 0 writes.

        Raises:
            CheckpointError: a weight is not finite.
            ConfigError: the folder has other files with these names.
        """
        check_weights(self, exempt=self._nonfinite_at_start)
        folder = Path(folder)
        hparams = {k: v for k, v in dict(self.hparams).items() if not k.startswith("_")}
        config = {"class_path": public_name(type(self)), "init_args": hparams}
        state = full_state_dict({k: v for k, v in self.state_dict().items() if not k.startswith(f"{AUX}.")})
        if is_rank_zero():
            write_folder(folder, config, state)
        all_gather_object(None)  # a barrier: no process reads the files before they are written
        return folder

    @classmethod
    @reads_file("folder")
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Load what :meth:`save_pretrained` wrote; runs no code from the folder.

        Raises:
            CheckpointError: a file is missing, or the folder holds another class.
        """
        folder = Path(folder)
        config = read_config(folder)
        options = plain_hparams({"hyper_parameters": config["init_args"]}, folder / CONFIG)
        model: Self = class_named(config["class_path"], cls)(**options)
        model.build_from(folder)
        model.load_state_dict(read_weights(folder, config))
        return model.eval()

    def build_from(self, folder: Path) -> None:
        """Build the network for a folder of :meth:`save_pretrained`; overridden by classes whose folder holds more."""
        self.build()
