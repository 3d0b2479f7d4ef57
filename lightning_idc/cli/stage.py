"""fit, validate, test and predict: one LightningCLI for users and for the stages of a recipe."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import set_parsing_settings
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lightning_idc.callbacks.interrupt import StopCleanly
from lightning_idc.callbacks.progress import default_progress
from lightning_idc.callbacks.resume import resume_point
from lightning_idc.callbacks.selection import ValidationSelection
from lightning_idc.callbacks.write_predictions import WritePredictions
from lightning_idc.checkpoints.checkpoint_io import AtomicCheckpointIO, check_intact
from lightning_idc.checkpoints.reading import plain_hparams, read_checkpoint
from lightning_idc.cli.checkpoint_data import StoreData, check_content, is_path, with_checkpoint
from lightning_idc.cli.configuration import gather
from lightning_idc.cli.errors import readable
from lightning_idc.cli.precision import AUTO, hardware_precision
from lightning_idc.cli.recipes.plan import REFUSED, STAGE, Plan
from lightning_idc.cli.save_config import SaveConfig
from lightning_idc.cli.signatures import arguments_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import destroy_process_group
from lightning_idc.models.module import PairModule
from lightning_idc.utils.bounds import (
    AllOrCount,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    check_value,
    register_bounds,
)
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import atomic_write
from lightning_idc.utils.names import class_of, full_name
from lightning_idc.utils.process import collect_as_usual

_BOUNDS: dict[str, Any] = {
    **dict.fromkeys(("accumulate_grad_batches", "check_val_every_n_epoch", "num_nodes"), PositiveInt),
    "gradient_clip_val": NonNegativeFloat,
    "num_sanity_val_steps": AllOrCount,
    "val_check_interval": PositiveFloat,
    **dict.fromkeys(("log_every_n_steps", "min_epochs", "min_steps"), NonNegativeInt),
}
"""Bounds of the Trainer's arguments that it does not check itself."""
_NEED_A_FOLDER = tuple(f"lightning.pytorch.loggers.{name}" for name in ("CSVLogger", "TensorBoardLogger"))
_IGNORED_WARNINGS = (
    "LeafSpec",
    "isinstance.treespec",
    "does not have many workers",
    "module.s. in eval mode at the start of training",
    "LightningCLI's args parameter is intended",
    "The dirpath has changed from",
    "Be aware that when using `ckpt_path`, callbacks",
)
"""Warnings of Lightning that a user of this command line cannot act on."""


class InvalidStageError(ConfigError):
    """A configuration of a recipe that LightningCLI cannot parse."""

    status = REFUSED


def run_verb(verb: str, config: dict[str, Any], only_print: bool) -> int:
    """Run a verb for a user.

    Args:
        verb: fit, validate, test or predict.
        config: merged.
        only_print: only print the configuration.
    """
    collect_as_usual()
    _ignore_warnings()
    cli = PairCLI(verb, with_checkpoint(config))
    if only_print:
        print(cli.parser.dump(cli.config, skip_none=False), end="")
        return 0
    cli.run()
    # the first process of a recipe's stage is in `run_stage`; Lightning starts the others as verbs, which end here
    cli.trainer.strategy.barrier()
    destroy_process_group()
    return 0


def run_stage(plan: Plan) -> int:
    """Run a stage of a recipe in this process and write its record.

    Args:
        plan: plan of the stage.

    Raises:
        InvalidStageError: its configuration, or that of a later stage, is invalid.
    """
    collect_as_usual()
    _ignore_warnings()
    # Lightning starts further processes by the command of this one
    sys.argv = [sys.argv[0], plan.verb, "--config", plan.file]
    try:
        for name, verb, config in plan.later:  # before hours are spent on this one
            where = f"stage {name}"
            PairCLI(verb, config)
        where = f"stage {Path(plan.record).parent.name}"
        config = gather(["--config", plan.file])
        cli = PairCLI(plan.verb, with_checkpoint(config))
    except ConfigError as error:
        raise InvalidStageError(f"{where}: {error}") from error
    cli.run()
    if cli.trainer.is_global_zero and not (missing := _missing_shards(cli)):
        atomic_write(Path(plan.record), json.dumps({"key": plan.key, **_outcome(cli)}, indent=2))
    elif cli.trainer.is_global_zero:
        print(f"\n{where} is not finished: {missing}", flush=True)
    cli.trainer.strategy.barrier()  # each process reads the record before the next stage
    destroy_process_group()
    return 0


class PairCLI(LightningCLI):
    """LightningCLI of this library, for one verb; parses when it is created, and builds and runs on demand.

    Args:
        verb: fit, validate, test or predict.
        config: merged configuration, or help arguments.

    Raises:
        ConfigError: a value is invalid.
    """

    def __init__(self, verb: str, config: dict[str, Any] | list[str]) -> None:
        self.verb, self.source = verb, config
        # values of type Any must never be instantiated as classes
        set_parsing_settings(instantiate_subclass_spec_in_any=False)
        register_bounds()
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            # a top-level optimizer would be built before add-ons add their parameters
            auto_configure_optimizers=False,
            save_config_callback=SaveConfig,
            save_config_kwargs={"cli": self},
            seed_everything_default=0,
            parser_kwargs={"exit_on_error": False, "prog": f"lightning-idc {verb}"},
            args=config,
            run=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        self.of_verb = parser.add_method_arguments(Trainer, self.verb, skip=set(self.subcommands()[self.verb]))
        parser.set_defaults({"weights_only": True})  # a checkpoint must not run code

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        if isinstance(args, list):
            self.config = parser.parse_args(args)
            return
        try:
            # parse a copy, since jsonargparse modifies its input
            self.config = parser.parse_object(_for_lightning(args))
        except ArgumentError as error:
            raise ConfigError(_in_one_line(str(error))) from error

    def _set_seed(self) -> None:
        """Do nothing: `build` sets the seed."""

    def instantiate_classes(self) -> None:
        """Do nothing: `build` creates the objects."""

    def run(self) -> None:
        """Build everything and call the Trainer."""
        self.build()
        arguments = {name: self.config_init[name] for name in self.of_verb}
        with self._readable_errors():
            if not self._launched():
                getattr(self.trainer, self.verb)(self.model, datamodule=self.datamodule, **arguments)

    def _launched(self) -> bool:
        """Run a pipeline by the launcher of its data module, if it has one; return whether it has."""
        if self.verb != "predict":
            return False
        from lightning_idc.synthesis.pipeline import Records

        if not isinstance(self.datamodule, Records) or self.datamodule.launcher is None:
            return False
        self.datamodule.launcher.launch(self.model, self.datamodule.job)
        return True

    def build(self) -> None:
        """Build trainer, model and data."""
        if not isinstance(seed := self.config["seed_everything"], bool):
            check_value("seed_everything", seed, Seed)
        for name, bound in _BOUNDS.items():
            check_value(f"trainer.{name}", self.config["trainer"].get(name), bound | None)
        self._use_checkpoint_hparams()
        super()._set_seed()
        # what Lightning would dump itself, with another validation of what was just parsed
        dumped = self.parser.dump(self.config, skip_link_targets=False, skip_unset=False, skip_validation=True)
        self.config_dump = yaml.safe_load(dumped)
        with self._readable_errors():
            super().instantiate_classes()
        if self.verb != "fit" and not self.config.get("ckpt_path"):
            _check_has_weights(self.model, self.verb)

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Re-raise errors before the first batch, such as those of 0 heads, as a one-line ConfigError."""
        try:
            yield
        except (ValueError, TypeError, AssertionError, ArithmeticError, RuntimeError) as error:
            if readable(error) is not None or self._has_begun():
                raise
            text = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(f"this configuration cannot be run: {text} (--traceback shows where)") from error

    def _has_begun(self) -> bool:
        trainer: Trainer | None = vars(self).get("trainer")
        if trainer is None:
            return False
        fit = trainer.fit_loop.epoch_loop
        loops = (fit, fit.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
        return any(loop.batch_progress.total.ready > 0 for loop in loops)

    def _use_checkpoint_hparams(self) -> None:
        """Use hyper-parameters of the checkpoint that the configuration does not set."""
        path, model = self.config.get("ckpt_path"), self.config.get("model")
        if not is_path(path) or model is None:
            return
        checkpoint = read_checkpoint(path)
        check_content(checkpoint, self.verb, path)
        check_intact(Path(path), "remove it and train the stage that wrote it again")
        stored = checkpoint.get("class_path") or (checkpoint.get("hyper_parameters") or {}).get("_class_path")
        # plain save_hyperparameters() stores no class; then only the keys are compared
        if stored is not None and full_name(stored) != full_name(model.class_path):
            return
        configured = (self.source.get("model") or {}).get("init_args") or {} if isinstance(self.source, dict) else {}
        kind, argument_names = class_of(model.class_path), arguments_of(model.class_path) or ()
        # loading the checkpoint sets the vocabulary; as an argument, each word would be validated
        vocabulary_hparams = kind.token_hparams if isinstance(kind, type) and issubclass(kind, PairModule) else ()
        for name, value in plain_hparams(checkpoint, path).items():
            if name in argument_names and name not in configured and name not in vocabulary_hparams:
                # set without parsing, which would instantiate classes named in values
                model.init_args[name] = value

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        config = self._get(self.config_init, "trainer")
        progress = default_progress(config)
        if progress:  # avoid both a bar and lines
            kwargs["enable_progress_bar"] = False
        # callbacks of the configuration replace default ones of the same class
        chosen = config.get("callbacks") or []
        defaults = (*progress, *self._callbacks())
        extra = [callback for callback in defaults if not any(isinstance(c, type(callback)) for c in chosen)]
        trainer = self._instantiate_trainer({**config, **kwargs}, extra)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        if STAGE in os.environ:
            _add_resume_point(trainer, self.verb)
        return trainer

    def _callbacks(self) -> list[Callback]:
        """Default callbacks of a verb."""
        if self.verb == "fit":
            data = self.config.get("data")
            options = (self.source.get("data") or {}).get("init_args") if isinstance(self.source, dict) else None
            stored = [] if data is None else [StoreData(data.class_path, options)]
            return [StopCleanly(), ValidationSelection(), *stored]
        fits = self.verb == "predict" and WritePredictions.fits(self.model, self.datamodule)
        return [WritePredictions()] if fits else []


def _add_resume_point(trainer: Trainer, verb: str) -> None:
    """Add a callback for the last state of a stage, and set the folder of checkpoints for resuming."""
    point = resume_point(trainer.checkpoint_callbacks) if verb == "fit" else None
    if point is not None:
        # in the folder of the stage, also where the other checkpoints are in a folder of the user
        point.dirpath = str(Path(os.environ[STAGE]).parent / "checkpoints")
        trainer.callbacks.append(point)  # type: ignore[attr-defined]
    for saver in trainer.checkpoint_callbacks:
        if isinstance(saver, ModelCheckpoint) and saver.dirpath is None:
            saver.dirpath = str(Path(trainer.default_root_dir).resolve() / "checkpoints")


def _for_lightning(config: Mapping[str, Any]) -> dict[str, Any]:
    """Deep copy in which ``precision: auto`` is resolved, and loggers that need a folder have that of the run."""
    config = deepcopy(dict(config))
    trainer = config.get("trainer") or {}
    if trainer.get("precision") == AUTO:
        trainer["precision"] = hardware_precision(trainer.get("accelerator", ""))
    loggers = trainer.get("logger")
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        if isinstance(logger, dict) and logger.get("class_path") in _NEED_A_FOLDER:
            folder = {"save_dir": trainer.get("default_root_dir") or "."}
            logger["init_args"] = {**folder, **(logger.get("init_args") or {})}
    return {**config, "trainer": trainer} if trainer else {k: v for k, v in config.items() if k != "trainer"}


_NOISE = ("Errors:", "Subtypes", "Does not validate against any", "Expected a <class 'NoneType'>", "Given value type")
"""Beginnings of uninformative lines in messages of jsonargparse."""


def _in_one_line(message: str) -> str:
    """Message of jsonargparse as one line, from the outermost key to the expected value of the innermost one."""
    lines = [line.strip().lstrip("- ") for line in message.splitlines()]
    lines = [line for line in lines if line and not line.startswith(_NOISE)]
    # the value of the outermost key repeats what the user wrote
    inner = [line for line in lines if not line.startswith("Given value:")]
    return "; ".join(inner if any("Got value" in line for line in inner) else lines)


def _check_has_weights(model: LightningModule, verb: str) -> None:
    """Check that a captioner has trained weights, since random ones look like a bad captioner.

    Raises:
        ConfigError: the captioner would build its vocabulary and network from the data.
    """
    if not isinstance(model, PairCaptioner) or type(model).make_net is not PairCaptioner.make_net:
        return
    if model.init_from is None and model.hparams["vocabulary"] is None:
        raise ConfigError(
            f"{verb} needs weights, and the {type(model).__name__} has none yet: expected --ckpt_path FILE, the "
            "checkpoint of a fit"
        )


def _ignore_warnings() -> None:
    for text in _IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{text}")
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    if _is_no_advice not in log.filters:
        log.addFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "💡" not in record.getMessage()


def _outcome(cli: PairCLI) -> dict[str, Any]:
    """Best checkpoint of a stage, relative to the folder of the run, and its metrics."""
    trainer = cli.trainer
    saver = trainer.checkpoint_callback
    best = ""
    # a test restores best_model_path from its checkpoint, which is that of the training
    if isinstance(saver, ModelCheckpoint) and cli.verb == "fit":
        savers = [other for other in trainer.checkpoint_callbacks if isinstance(other, ModelCheckpoint)]
        last = [other.best_model_path for other in savers if other.monitor is None]
        best = saver.best_model_path or saver.last_model_path or "".join(last[-1:])
        if saver.monitor is not None and not saver.best_model_path and best:
            print(f"{saver.monitor} was never measured, so the last checkpoint is handed on as the best", flush=True)
    home = Path(os.environ[STAGE]).parent.parent
    if best and Path(best).resolve().is_relative_to(home):
        best = str(Path(best).resolve().relative_to(home))
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {"best": best, "metrics": metrics}


def _missing_shards(cli: PairCLI) -> str:
    """Message about missing shards that other processes, such as tasks of an array, have yet to make; empty if none."""
    if cli.verb != "predict":
        return ""
    from lightning_idc.synthesis.pipeline import Records

    if not isinstance(cli.datamodule, Records) or cli.datamodule.job.completed:
        return ""
    job = cli.datamodule.job
    return f"{job.num_shards - len(job.pending())} of {job.num_shards} shards are in {job.target}"
