"""SaveConfig: writes the configuration of a run without replacing other files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

from lightning_idc.cli.recipes.plan import STAGE
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import write_file

_NAMES = ("config.yaml", "config_of_run.yaml", *(f"config_of_run_{number}.yaml" for number in range(2, 10)))


class SaveConfig(SaveConfigCallback):
    """Lightning's SaveConfigCallback, which writes to another name where a file of the user has the usual one.

    Lightning raises an error or replaces the file. In the folder of a recipe's stage the file is replaced, because a
    resumed stage writes it again.

    Args:
        parser: parser of the configuration.
        config: configuration.
        cli: command line whose ``config_dump`` is written, since it takes jsonargparse half a second to make another.
        options: arguments of Lightning's callback.
    """

    def __init__(self, parser: LightningArgumentParser, config: Namespace, cli: LightningCLI, **options: Any) -> None:
        super().__init__(parser, config, **options)
        self.cli = cli

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        folder = trainer.log_dir  # a collective call
        assert folder is not None
        if "://" in folder:
            super().setup(trainer, pl_module, stage)
        elif trainer.is_global_zero and not self.already_saved:
            self._write(Path(folder))
            self.already_saved = True

    def _write(self, folder: Path) -> None:
        header = "".join(f"# {line}\n" for line in self.parser.dump_header or ())  # the version of Lightning
        text = header + yaml.safe_dump(self.cli.config_dump, sort_keys=False, allow_unicode=True)
        record = os.environ.get(STAGE)
        in_stage = record is not None and folder.resolve().is_relative_to(Path(record).resolve().parent)
        for name in _NAMES:
            try:
                write_file(folder / name, text, overwrite=in_stage)
                return
            except ConfigError:
                if name == _NAMES[-1]:
                    raise
