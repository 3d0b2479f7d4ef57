"""fit, validate, test and predict: a LightningCLI that checks its keys first and leaves optimizers to the model."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

RESULT = "LIGHTNING_IDC_RESULT"
"""Environment variable naming the file that a stage writes its best checkpoint and metrics to."""


def run(given: list[str]) -> int:
    """Run a LightningCLI verb with its own arguments."""
    import warnings

    # Lightning's own use of torch's pytree; nothing a user can act on
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*args parameter is intended to run from within Python.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*`isinstance.treespec.*")
    import logging

    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: not record.getMessage().startswith(("💡", "GPU available", "TPU available"))
    )
    if not any(argument in ("-h", "--help", "--print_config") for argument in given):
        _check_files(given)
    cli = _cli()(args=given)
    _write_result(cli)
    return 0


def _check_files(given: list[str]) -> None:
    """Check the configuration files of a command before anything is built."""
    import yaml

    from lightning_idc.checkpoint import read_checkpoint
    from lightning_idc.cli.keys import check
    from lightning_idc.errors import PairError

    for flag, value in zip(given, [*given[1:], ""], strict=True):
        name, _, inline = flag.partition("=")
        if name in ("--config", "-c"):
            path = Path(inline or value)
            if not path.is_file():
                raise PairError(f"there is no configuration {str(path)!r}")
            config = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            check(config, path.name)
            if config.get("ckpt_path"):
                read_checkpoint(config["ckpt_path"])
        elif name == "--ckpt_path":
            read_checkpoint(inline or value)


def _cli() -> Any:
    from lightning.pytorch import LightningDataModule, LightningModule
    from lightning.pytorch.cli import LightningCLI

    from lightning_idc.callbacks.progress import default_progress

    class PairCLI(LightningCLI):
        def __init__(self, args: list[str]) -> None:
            super().__init__(
                LightningModule,
                LightningDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                # a top-level optimizer would be built before add-ons bring their parameters
                auto_configure_optimizers=False,
                save_config_kwargs={"overwrite": True},
                seed_everything_default=0,
                args=args,
            )

        def _parse_ckpt_path(self) -> None:
            """Leave the configuration as it is: Lightning would let the checkpoint's hyper-parameters win over it."""

        def instantiate_trainer(self, **kwargs: Any) -> Any:
            config = self._get(self.config_init, "trainer")
            return self._instantiate_trainer({**config, **kwargs, **default_progress(config)}, [])

    return PairCLI


def _write_result(cli: Any) -> None:
    target = os.environ.get(RESULT)
    trainer = cli.trainer
    if not target or not trainer.is_global_zero:
        return
    saver = trainer.checkpoint_callback
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    result = {"best": saver.best_model_path if saver is not None else "", "metrics": metrics}
    partial = f"{target}.partial"
    Path(partial).write_text(json.dumps(result, indent=2), encoding="utf-8")
    os.replace(partial, target)
    sys.stdout.flush()
