"""fit, validate, test and predict: a LightningCLI that gets one merged configuration and leaves optimizers alone."""

from __future__ import annotations

import json
import logging
import os
import warnings
from argparse import ArgumentError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from jsonargparse import set_parsing_settings
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

from lightning_idc.callbacks.interrupt import StopCleanly
from lightning_idc.callbacks.progress import default_progress
from lightning_idc.callbacks.resume import resume_point
from lightning_idc.callbacks.selection import ValidationSelection
from lightning_idc.callbacks.write_predictions import WritePredictions
from lightning_idc.checkpoints.checkpoint_io import AtomicCheckpointIO
from lightning_idc.checkpoints.reading import plain_hparams, read_checkpoint
from lightning_idc.cli.checkpoint_data import StoreData, with_stored_data
from lightning_idc.cli.configuration import gather, with_log_folder
from lightning_idc.cli.errors import explain, readable
from lightning_idc.cli.memory import keep_freed_memory
from lightning_idc.cli.processes import RESULT, end_with_parent
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import destroy_process_group
from lightning_idc.models.module import PairModule
from lightning_idc.utils.arguments import accepted_arguments
from lightning_idc.utils.errors import CheckpointError, ConfigError, IDCError, check_number
from lightning_idc.utils.files import atomic_write
from lightning_idc.utils.names import class_of, full_name


def run(given: list[str]) -> int:
    """Run a LightningCLI verb with its own arguments."""
    if RESULT in os.environ:
        end_with_parent()
    _quieten()
    keep_freed_memory()
    verb, arguments = given[0], given[1:]
    if verb != "fit":
        # callbacks that watch training come with the checkpoint and have nothing to do
        warnings.filterwarnings("ignore", message="The dirpath has changed from")
        warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`, callbacks")
    if any(name == "--help_all" or name.partition("=")[0].endswith(".help") for name in arguments):
        PairCLI(verb, _for_help(arguments))
        return 0
    config = with_checkpoint(gather([name for name in arguments if name != "--print_config"]))
    files = [Path(value) for flag, value in pairwise(arguments) if flag in ("--config", "-c")]
    cli = PairCLI(verb, config, files)
    if "--print_config" in arguments:
        print(cli.parser.dump(cli.config, skip_none=False), end="")
        return 0
    cli.run()
    _write_result(cli)
    destroy_process_group()
    return 0


def _check_content(checkpoint: dict[str, Any], verb: str, path: str) -> None:
    """Refuse a checkpoint that lacks what Lightning asks of it by name, before anything is built.

    Raises:
        CheckpointError: something is missing.
    """
    needed = ["state_dict", "pytorch-lightning_version", "loops", "global_step"]
    needed += ["optimizer_states", "lr_schedulers", "callbacks"] if verb == "fit" else []
    missing = [name for name in needed if name not in checkpoint]
    if missing:
        use = "training cannot go on from it" if verb == "fit" else "it cannot be loaded"
        raise CheckpointError(f"{path!r} has no {missing[0]!r}, so {use}; expected a checkpoint that a Trainer wrote")


def _for_help(arguments: list[str]) -> list[str]:
    """Arguments of --help_all and --model.help NAME, with the full name of the class."""
    for number, name in enumerate(arguments):
        flag, equals, value = name.partition("=")
        if flag.endswith(".help"):
            value = value if equals else next(iter(arguments[number + 1 :]), "")
            return [f"{flag}={full_name(value)}" if value else flag]
    return ["--help"]


def with_checkpoint(config: dict[str, Any]) -> dict[str, Any]:
    """Configuration with the model, and the data where they are stored, of its checkpoint, where none is given.

    Raises:
        ConfigError: the checkpoint cannot be read, or does not say which class it holds.
    """
    path = config.get("ckpt_path")
    if not path or path in _KEYWORDS:
        return config
    if not isinstance(path, str):
        raise ConfigError(f"--ckpt_path {path!r}: expected the path of a checkpoint")
    checkpoint, found = read_checkpoint(path), dict(config)
    if not (found.get("model") or {}).get("class_path"):
        stored = checkpoint.get("class_path")
        if stored is None:
            raise CheckpointError(f"{str(path)!r} does not say which class it holds; give it with --model NAME")
        found["model"] = {**(found.get("model") or {}), "class_path": full_name(stored)}
    return with_stored_data(found, checkpoint)


_MINIMUM = {
    **dict.fromkeys(("accumulate_grad_batches", "check_val_every_n_epoch", "num_nodes"), 1),
    **dict.fromkeys(("gradient_clip_val", "log_every_n_steps", "min_epochs", "min_steps"), 0),
    "num_sanity_val_steps": -1,
    "val_check_interval": 1e-9,
}
"""Smallest values of the Trainer's arguments."""
_KEYWORDS = ("best", "last", "hpc", "registry")
"""What Lightning takes for a checkpoint instead of a path."""


class SaveConfig(SaveConfigCallback):
    """Writes the configuration of a run, under another name where that is a file which it was read from.

    Args:
        args: of Lightning's callback.
        files: that the configuration was read from.
        options: of Lightning's callback.
    """

    def __init__(self, *args: Any, files: Sequence[Path] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.files = files

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        target = Path(trainer.log_dir or ".", self.config_filename)
        if any(target.resolve() == file.resolve() for file in self.files):
            self.config_filename = f"{target.stem}_of_run{target.suffix}"
        super().setup(trainer, pl_module, stage)


class PairCLI(LightningCLI):
    """LightningCLI of this library, for one verb; parses when it is made, and runs when asked to.

    Args:
        verb: fit, validate, test or predict.
        config: merged configuration; or arguments that ask for help.
        files: that it was read from.

    Raises:
        ConfigError: a key, class or value that is not right; what was expected.
    """

    def __init__(self, verb: str, config: dict[str, Any] | list[str], files: Sequence[Path] = ()) -> None:
        self.verb, self.given = verb, config
        # a value typed Any must never become an object of a class that it names
        set_parsing_settings(instantiate_subclass_spec_in_any=False)
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            # a top-level optimizer would be built before add-ons bring their parameters
            auto_configure_optimizers=False,
            # every run has a folder of its own; resuming in it must not stumble over its own file
            save_config_callback=SaveConfig,
            save_config_kwargs={"overwrite": True, "files": files},
            seed_everything_default=0,
            parser_kwargs={"exit_on_error": False, "prog": f"lightning-idc {verb}"},
            args=config,
            run=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        self.own = parser.add_method_arguments(Trainer, self.verb, skip=set(self.subcommands()[self.verb]))
        parser.set_defaults({"weights_only": True})  # a checkpoint must not run code

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        if isinstance(args, list):
            self.config = parser.parse_args(args)
            return
        trainer = args.get("trainer") or {}
        if not isinstance(trainer, dict):
            raise ConfigError(f"trainer: expected keys with values, found {trainer!r}")
        try:
            # without anything in it, a key that does not exist would be passed over; a trainer exists
            given = {**args, "trainer": with_log_folder(trainer)}
            self.config = parser.parse_object(
                {k: v if v != {} else None for k, v in given.items() if k != "trainer" or trainer}
            )
        except ArgumentError as error:
            known = ["seed_everything", "trainer", "model", "data", *self.own]
            raise ConfigError(explain(str(error), args, known)) from error

    def _set_seed(self) -> None:
        """Seeding belongs to running."""

    def instantiate_classes(self) -> None:
        """Building belongs to running."""

    def run(self) -> None:
        """Build everything and call the Trainer."""
        self.build()
        arguments = {name: self.config_init[name] for name in self.own}
        with self._one_sentence():
            if not self._launched():
                getattr(self.trainer, self.verb)(self.model, datamodule=self.datamodule, **arguments)

    def _launched(self) -> bool:
        """Make records of a pipeline with the launcher that its data module names, if it names one."""
        if self.verb != "predict":
            return False
        from lightning_idc.synthesis.pipeline import Records

        if not isinstance(self.datamodule, Records) or self.datamodule.launcher is None:
            return False
        self.datamodule.launcher.launch(self.model, self.datamodule.job)
        return True

    def build(self) -> None:
        """Build trainer, model and data."""
        self._check_numbers()
        self._take_from_checkpoint()
        super()._set_seed()
        with self._one_sentence():
            super().instantiate_classes()
        if self.verb != "fit" and not self.config.get("ckpt_path"):
            _refuse_untrained(self.model, self.verb)

    def _check_numbers(self) -> None:
        """Refuse what Lightning accepts and fails at, or passes over, in the middle of a run.

        Raises:
            ConfigError: a number is out of range.
        """
        check_number("seed_everything", self.config["seed_everything"], minimum=0, below=2**32)
        for name, minimum in _MINIMUM.items():
            value = self.config["trainer"].get(name)
            if isinstance(value, int | float):
                check_number(f"trainer.{name}", value, minimum)

    @contextmanager
    def _one_sentence(self) -> Iterator[None]:
        """Say in one sentence what fails before the first batch: a value that no type excludes, such as 0 heads."""
        try:
            yield
        except (ValueError, TypeError, AssertionError, ArithmeticError, RuntimeError) as error:
            if readable(error) is not None or self._begun():
                raise
            text = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(f"{_place_of(error)} cannot be made: {text} (--traceback shows where)") from error

    def _begun(self) -> bool:
        trainer: Trainer | None = vars(self).get("trainer")
        if trainer is None:
            return False
        fit = trainer.fit_loop.epoch_loop
        loops = (fit, fit.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
        return any(loop.batch_progress.total.ready > 0 for loop in loops)

    def _take_from_checkpoint(self) -> None:
        """Take the checkpoint's hyper-parameters where nothing was asked for; Lightning would let them win always."""
        path, model = self.config.get("ckpt_path"), self.config.get("model")
        if not path or path in _KEYWORDS or model is None:
            return
        checkpoint = read_checkpoint(path)
        _check_content(checkpoint, self.verb, path)
        stored = checkpoint.get("class_path") or (checkpoint.get("hyper_parameters") or {}).get("_class_path")
        # plain save_hyperparameters() leaves no class; then the keys alone decide
        if stored is not None and full_name(stored) != full_name(model.class_path):
            return
        asked = (self.given.get("model") or {}).get("init_args") or {} if isinstance(self.given, dict) else {}
        kind = class_of(model.class_path)
        known = accepted_arguments(kind)
        # the checkpoint brings the words when it is loaded; as an argument all of them would be validated one by one
        words = kind.word_hparams if isinstance(kind, type) and issubclass(kind, PairModule) else ()
        for name, value in plain_hparams(checkpoint, path).items():
            if name not in asked and name not in words and known is not None and name in known:
                # set as they are: parsing would build whatever class a value names
                model.init_args[name] = value

    def _data_to_store(self) -> list[StoreData]:
        data = self.config.get("data")
        given = self.given.get("data") if isinstance(self.given, dict) else None
        return [] if data is None else [StoreData(data.class_path, (given or {}).get("init_args"))]

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        config = self._get(self.config_init, "trainer")
        extra: list[Any] = default_progress(config)
        if self.verb == "fit":
            extra.append(StopCleanly())
            extra.append(ValidationSelection())
            extra += self._data_to_store()
        elif self.verb == "predict" and WritePredictions.fits(self.model, self.datamodule):
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
            point = resume_point(trainer.checkpoint_callbacks) if self.verb == "fit" else None
            trainer.callbacks += [] if point is None else [point]  # type: ignore[attr-defined]
            # a resumed stage finds its checkpoints, and which was best, in the same place
            for saver in trainer.checkpoint_callbacks:
                if isinstance(saver, ModelCheckpoint) and saver.dirpath is None:
                    saver.dirpath = str(Path(trainer.default_root_dir).resolve() / "checkpoints")
        return trainer


def _refuse_untrained(model: LightningModule, verb: str) -> None:
    """Refuse a network with random weights, whose captions look like those of a bad captioner.

    Raises:
        ConfigError: the model is a captioner that would make its words, and so its network, from the data at hand.
    """
    if not isinstance(model, PairCaptioner) or type(model).make_net is not PairCaptioner.make_net:
        return
    if model.init_from is None and model.hparams["vocabulary"] is None:
        raise ConfigError(
            f"{verb} needs weights, and the {type(model).__name__} has none yet: expected --ckpt_path FILE, the "
            "checkpoint of a fit"
        )


def _place_of(error: BaseException) -> str:
    """Class whose making failed, as far as the traceback tells."""
    place, at = "the configuration", error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_name == "__init__" and "self" in at.tb_frame.f_locals:
            place = type(at.tb_frame.f_locals["self"]).__name__
            if place not in ("PairCLI", "LightningCLI"):
                return place
        at = at.tb_next
    return "the configuration" if place in ("PairCLI", "LightningCLI") else place


def check_config(verb: str, config: dict[str, Any], where: str) -> None:
    """Refuse a configuration that LightningCLI cannot parse, before anything is built.

    Raises:
        ConfigError: an unknown key or class, or a value of another type than its argument.
    """
    _quieten()
    try:
        PairCLI(verb, config)
    except IDCError as error:
        raise ConfigError(f"{where}: {error}") from error


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
    if isinstance(saver, ModelCheckpoint) and cli.verb == "fit":
        savers = [other for other in trainer.checkpoint_callbacks if isinstance(other, ModelCheckpoint)]
        last = [other.best_model_path for other in savers if other.monitor is None]
        best = saver.best_model_path or saver.last_model_path or "".join(last[-1:])
        if saver.monitor is not None and not saver.best_model_path and best:
            print(f"{saver.monitor} was never measured, so the last checkpoint is handed on as the best", flush=True)
    outcome = {"best": best, "metrics": metrics, **_unfinished(cli)}
    atomic_write(Path(target), json.dumps(outcome, indent=2))


def _unfinished(cli: PairCLI) -> dict[str, str]:
    """What there is of a store of records whose other shards other processes make, such as tasks of an array."""
    if cli.verb != "predict":
        return {}
    from lightning_idc.synthesis.pipeline import Records

    if not isinstance(cli.datamodule, Records) or cli.datamodule.job.completed:
        return {}
    job = cli.datamodule.job
    return {"unfinished": f"{job.shards - len(job.pending())} of {job.shards} shards are in {job.target}"}
