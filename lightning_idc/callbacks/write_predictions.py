"""WritePredictions: what a captioner predicts goes into a file as it comes, and an interrupted prediction goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.checkpoints.reading import TRAINING_ONLY
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_object
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.files import atomic_write, digest_of_all, finite
from lightning_idc.utils.outputs import check_file, write_file

_START = b'{"prediction":'
"""Of the file of an unfinished run."""


class WritePredictions(Callback):
    """Writes what ``predict`` says of each pair into a file of one JSON object per line, in the order of the pairs.

    An object has ``id``, ``caption``, ``log_prob`` and ``change_score``. While the prediction goes on its lines are
    beside the file, as ``<name>.rank0.part`` and so on; the file itself appears when all pairs are done. After a stop
    or a kill the same command takes over what is there and captions the other pairs only. ``lightning-idc predict``
    adds this callback by itself.

    Args:
        path: the file; None for ``predictions.jsonl`` in the trainer's ``default_root_dir``.
        overwrite: whether it may replace a file that this callback did not write.

    Raises:
        ConfigError: the model is not a PairCaptioner, its data are not a PairDataModule, or a file of others is there.
        DataError: an interrupted prediction of another checkpoint, or of other pairs, lies there.
    """

    def __init__(self, path: str | Path | None = None, overwrite: bool = False) -> None:
        self.path = None if path is None else Path(path)
        self.overwrite = overwrite
        self._ids: list[str] = []
        self._key: str | None = None
        self._file: IO[str] | None = None

    @staticmethod
    def fits(model: Any, data: Any) -> bool:
        """Whether there are predictions that can be written."""
        return isinstance(model, PairCaptioner) and isinstance(data, PairDataModule)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "predict":
            return
        data = getattr(trainer, "datamodule", None)  # absent where loaders were given
        if not isinstance(data, PairDataModule) or not self.fits(pl_module, data):
            raise ConfigError(
                "WritePredictions writes what a PairCaptioner says of a PairDataModule; found a "
                f"{type(pl_module).__name__} with {type(data).__name__}"
            )
        if trainer.is_global_zero:
            check_file("WritePredictions:", self._target(trainer), overwrite=self.overwrite)
        self._ids = list(data.pairs_of("predict").ids)
        # the first process reads: the others may see its folder later
        nothing: tuple[str | None, set[str]] = (None, set())
        self._key, done = trainer.strategy.broadcast(self._take_over(trainer) if trainer.is_global_zero else nothing)
        if done:
            # without any pair Lightning would skip the prediction and its end
            data.leave_out("predict", done - {self._ids[-1]})
            _say(trainer, f"{len(done)} of {len(self._ids)} pairs were captioned before; going on with the others")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # only now are the weights those of the checkpoint
        key = trainer.strategy.broadcast(prediction_key(pl_module, [*self._ids, str(trainer.precision)]))
        if self._key not in (None, key):
            raise DataError(
                f"{str(self._part(trainer, 0))!r} is an interrupted prediction of another checkpoint, of other "
                "settings or of other pairs; finish that one, remove it, or name another folder with "
                "--trainer.default_root_dir"
            )
        part = self._part(trainer, trainer.global_rank)
        check_part(part)
        self._file = part.open("a", encoding="utf-8")
        if not part.stat().st_size:
            self._write_lines([{"prediction": key}])

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        self._write_lines(outputs)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()
        self._key = None
        all_gather_object(None)  # until all processes have written
        if not trainer.is_global_zero:
            return
        target, said = self._target(trainer), {}
        for part in self._parts(trainer):
            said.update({record["id"]: record for record in records_of(part) if "id" in record})
        write_file(target, "".join(line_of(said[id]) for id in self._ids if id in said), self.overwrite)
        for part in self._parts(trainer):
            remove_part(part)
        _say(trainer, f"\npredictions of {len(said)} pairs: {os.path.relpath(target)}")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._file is not None:
            self._close()
            _say(trainer, "\nwhat was predicted so far is kept; the same command goes on with it")

    def _take_over(self, trainer: Trainer) -> tuple[str | None, set[str]]:
        """Key and ids of an interrupted prediction; a line that was cut off is taken away."""
        self._target(trainer).parent.mkdir(parents=True, exist_ok=True)
        key: str | None = None
        done: set[str] = set()
        for part in self._parts(trainer):
            check_part(part)
            found = list(records_of(part))
            atomic_write(part, "".join(map(line_of, found)))
            keys = [record["prediction"] for record in found if "prediction" in record]
            key = key or next(iter(keys), None)
            done.update(record["id"] for record in found if "id" in record and keys == [key])
        return key, done & set(self._ids)

    def _write_lines(self, records: list[dict[str, Any]]) -> None:
        assert self._file is not None
        self._file.write("".join(map(line_of, records)))
        self._file.flush()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _target(self, trainer: Trainer) -> Path:
        return Path(trainer.default_root_dir) / "predictions.jsonl" if self.path is None else self.path

    def _part(self, trainer: Trainer, rank: int) -> Path:
        target = self._target(trainer)
        return target.with_name(f"{target.name}.rank{rank}.part")

    def _parts(self, trainer: Trainer) -> list[Path]:
        target = self._target(trainer)
        return sorted(target.parent.glob(f"{target.name}.rank*.part"))


def prediction_key(module: LightningModule, ids: list[str]) -> str:
    """Digest of what decides the predictions, apart from the images; weights that are sharded count on one process."""
    from torch.distributed.tensor import DTensor

    hparams = {name: value for name, value in module.hparams.items() if name not in TRAINING_ONLY}
    facts = [type(module).__qualname__, hparams, ids]

    def parts() -> Iterator[Any]:
        yield json.dumps(facts, sort_keys=True, default=lambda value: type(value).__qualname__)
        for name, value in module.state_dict().items():
            own = value.to_local() if isinstance(value, DTensor) else value
            yield name
            yield own.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data

    return digest_of_all(parts())


def line_of(record: dict[str, Any]) -> str:
    # halves of surrogates cannot be written in UTF-8
    text = json.dumps(finite(record), ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")


def check_part(part: Path) -> None:
    """Refuse to go on from, or to write over, a file that does not begin as those of an unfinished run.

    Raises:
        ConfigError: it is another file, a link or a folder.
    """
    if not os.path.lexists(part):
        return
    if part.is_file() and not part.is_symlink():
        with part.open("rb") as file:
            start = file.read(len(_START))
        if _START.startswith(start):  # a full disk may leave none of it
            return
    raise ConfigError(f"{str(part)!r} is not of an unfinished run; move it away, or name another output")


def remove_part(part: Path) -> None:
    """Remove the file of an unfinished run."""
    check_part(part)
    part.unlink(missing_ok=True)


def records_of(part: Path) -> Iterator[dict[str, Any]]:
    """Records of a file up to the first line that was not written to its end."""
    with part.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                return
            if not line.endswith(b"\n") or not isinstance(record, dict) or not {"id", "prediction"} & set(record):
                return
            yield record


def _say(trainer: Trainer, sentence: str) -> None:
    if trainer.is_global_zero:
        print(sentence, flush=True)
