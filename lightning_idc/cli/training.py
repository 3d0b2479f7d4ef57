"""fit, validate, test and predict: a LightningCLI that checks its keys first and leaves optimizers to the model."""

from __future__ import annotations

import json
import logging
import os
import warnings
from argparse import ArgumentError
from pathlib import Path
from typing import Any

from jsonargparse import set_parsing_settings
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lightning_idc.callbacks.interrupt import StopCleanly
from lightning_idc.callbacks.progress import default_progress
from lightning_idc.callbacks.resume import resume_point
from lightning_idc.callbacks.selection import ValidationSelection
from lightning_idc.callbacks.write_predictions import WritePredictions
from lightning_idc.cli.errors import parse_error
from lightning_idc.cli.keys import arguments_of, check, class_of
from lightning_idc.cli.memory import keep_freed_memory
from lightning_idc.cli.processes import RESULT, end_with_parent
from lightning_idc.cli.recipe import VERBS, merge, parse_yaml, read_yaml, set_key
from lightning_idc.core.checkpoint_io import AtomicCheckpointIO
from lightning_idc.core.distributed import destroy_process_group
from lightning_idc.core.io import plain_hparams, read_checkpoint
from lightning_idc.core.module import PairModule
from lightning_idc.errors import PairError
from lightning_idc.files import atomic_write


def run(given: list[str]) -> int:
    """Run a LightningCLI verb with its own arguments."""
    if RESULT in os.environ:
        end_with_parent()
    _quieten()
    keep_freed_memory()
    if given[0] != "fit":
        # callbacks that watch training come with the checkpoint and have nothing to do
        warnings.filterwarnings("ignore", message="The dirpath has changed from")
        warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`, callbacks")
    if any(name in ("--help_all", "--print_config") or name.endswith(".help") for name in given):
        PairCLI(["--help" if name == "--help_all" else name for name in given])
        return 0
    explicit = gather(given[1:])
    check(explicit)
    if explicit.get("ckpt_path"):
        read_checkpoint(explicit["ckpt_path"])
    _write_result(PairCLI(given, explicit))
    destroy_process_group()
    return 0


def gather(given: list[str]) -> dict[str, Any]:
    """Merge the configuration files and ``--key value`` of a command, as LightningCLI will."""
    config: dict[str, Any] = {}
    rest = list(given)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        if name in ("--config", "-c"):
            config = merge(config, _read(Path(value)))
            continue
        path = name.lstrip("-").removesuffix("+").split(".")
        if path in (["model"], ["data"]):
            config.setdefault(path[0], {})["class_path"] = value
        elif len(path) > 2 and path[0] == "trainer":
            continue  # parts of the callback, logger or strategy named last, which LightningCLI knows to place
        elif not name.endswith("+"):
            set_key(config, path, parse_yaml(value))
    return config


def _read(path: Path) -> dict[str, Any]:
    config = read_yaml(path)
    if "stages" in config:
        raise PairError(f"{path} is a recipe of stages; run it with: lightning-idc run {path}")
    return config


class PairCLI(LightningCLI):
    """LightningCLI of this library.

    Args:
        args: command line or configuration.
        explicit: what was asked for, which wins over the hyper-parameters of a checkpoint.
    """

    def __init__(self, args: Any, explicit: dict[str, Any] | None = None) -> None:
        self.explicit = explicit or {}
        # a value typed Any must never become an object of a class that it names
        set_parsing_settings(instantiate_subclass_spec_in_any=False)
        errors: dict[str, Any] = {"exit_on_error": False}
        try:
            super().__init__(
                LightningModule,
                LightningDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                # a top-level optimizer would be built before add-ons bring their parameters
                auto_configure_optimizers=False,
                # every run has a folder of its own; resuming in it must not stumble over its own file
                save_config_kwargs={"overwrite": True},
                seed_everything_default=0,
                parser_kwargs={**errors, **{verb: dict(errors) for verb in VERBS}},
                args=args,
            )
        except ArgumentError as error:
            raise PairError(parse_error(str(error))) from error

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        parser.set_defaults({"weights_only": True})  # a checkpoint must not run code
        return parser

    def _parse_ckpt_path(self) -> None:
        """Take the checkpoint's hyper-parameters where nothing was asked for; Lightning would let them win always."""
        verb = self.config.get("subcommand")
        path = self.config[verb].get("ckpt_path") if verb else None
        if not path or not Path(path).is_file():
            return
        checkpoint = read_checkpoint(path)
        model = self.config[verb].get("model")
        stored = (checkpoint.get("hyper_parameters") or {}).get("_class_path")
        # plain save_hyperparameters() leaves no class; then the keys alone decide
        if model is None or (stored is not None and stored != model.class_path):
            return
        asked = (self.explicit.get("model") or {}).get("init_args") or {}
        kind = class_of(model.class_path)
        known = arguments_of(kind)
        # the checkpoint brings the words when it is loaded; as an argument all of them would be validated one by one
        words = kind.word_hparams if isinstance(kind, type) and issubclass(kind, PairModule) else ()
        for name, value in plain_hparams(checkpoint, path).items():
            if name not in asked and name not in words and known is not None and name in known:
                # set as they are: parsing would build whatever class a value names
                model.init_args[name] = value

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        config = self._get(self.config_init, "trainer")
        extra: list[Any] = default_progress(config)
        if self.subcommand == "fit":
            extra.append(StopCleanly())
            extra.append(ValidationSelection())
        elif self.subcommand == "predict" and WritePredictions.fits(self.model, self.datamodule):
            extra.append(WritePredictions())
        # those that were chosen, with options of their own, take the place of these
        chosen = config.get("callbacks") or []
        extra = [own for own in extra if not any(isinstance(callback, type(own)) for callback in chosen)]
        trainer = self._instantiate_trainer(
            {
                **config,
                **kwargs,
                # Lightning's bar would stand beside the lines
                **({"enable_progress_bar": False} if default_progress(config) else {}),
            },
            extra,
        )
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        if RESULT in os.environ:
            point = resume_point(trainer.checkpoint_callbacks) if self.subcommand == "fit" else None
            trainer.callbacks += [] if point is None else [point]  # type: ignore[attr-defined]
            # a resumed stage finds its checkpoints, and which was best, in the same place
            for saver in trainer.checkpoint_callbacks:
                if isinstance(saver, ModelCheckpoint) and saver.dirpath is None:
                    saver.dirpath = str(Path(trainer.default_root_dir).resolve() / "checkpoints")
        return trainer


class _ParseOnly(PairCLI):
    """Parses and types a configuration, and stops there."""

    def _parse_ckpt_path(self) -> None:
        pass

    def _set_seed(self) -> None:
        pass

    def instantiate_classes(self) -> None:
        pass

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def check_types(verb: str, config: dict[str, Any], where: str) -> None:
    """Refuse values of the wrong type in a LightningCLI configuration, before anything is built.

    Raises:
        PairError: a value has another type than its argument.
    """
    _quieten()
    try:
        _ParseOnly({"subcommand": verb, verb: config})
    except PairError as error:
        raise PairError(f"{where}: {error}") from error


def _quieten() -> None:
    # Lightning's own use of torch's pytree, and advice on products; nothing a user can act on
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*`isinstance.treespec.*")
    # a frozen backbone is meant to be in eval mode
    warnings.filterwarnings("ignore", message=".*module.s. in eval mode at the start of training.*")
    # a run is always started as arguments, from the command line too
    warnings.filterwarnings("ignore", message=".*LightningCLI's args parameter is intended.*")
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    if not any(isinstance(old, _NoAdvice) for old in log.filters):
        log.addFilter(_NoAdvice())


class _NoAdvice(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "💡" not in record.getMessage()


def _write_result(cli: PairCLI) -> None:
    target = os.environ.get(RESULT)
    trainer = cli.trainer
    if not target or not trainer.is_global_zero:
        return
    saver = trainer.checkpoint_callback
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    best = ""
    # a test takes over what its checkpoint says of the best one, which is not its own
    if isinstance(saver, ModelCheckpoint) and cli.subcommand == "fit":
        savers = [other for other in trainer.checkpoint_callbacks if isinstance(other, ModelCheckpoint)]
        last = [other.best_model_path for other in savers if other.monitor is None]
        best = saver.best_model_path or saver.last_model_path or "".join(last[-1:])
        if saver.monitor is not None and not saver.best_model_path and best:
            print(f"{saver.monitor} was never measured, so the last checkpoint is handed on as the best", flush=True)
    atomic_write(Path(target), json.dumps({"best": best, "metrics": metrics}, indent=2))
