"""WritePredictions: writes predictions to a file batch by batch, and resumes an interrupted prediction."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from lightning_idc.checkpoints.reading import TRAINING_ONLY
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.metrics.results import PREDICTIONS
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_object
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.files import atomic_write, digest, digest_of_all, finite
from lightning_idc.utils.outputs import check_file, write_file

_BEGINNING = b'{"prediction": "'
_FIRST_LINE = re.compile(re.escape(_BEGINNING) + rb'[0-9a-f]{0,32}(?:"\}\n)?')
"""First line of the file of an unfinished run, which a full disk may cut off."""


class WritePredictions(Callback):
    """Writes the result of ``predict`` for each pair as JSON lines, in the order of the pairs.

    An object has ``id``, ``caption``, ``log_prob`` and ``change_score``. During the prediction, the lines are in
    ``<name>.rank0.part`` and so on in the same folder; the file itself is written when all pairs are done. After an
    interruption, the same command reuses these lines and captions the remaining pairs. ``lightning-idc predict`` adds
    this callback.

    Args:
        path: output file; None for ``predictions.jsonl`` in the trainer's ``default_root_dir``.
        overwrite: whether to replace a file that this callback did not write.

    Raises:
        ConfigError: the model is not a PairCaptioner, its data are not a PairDataModule, or the file exists.
        DataError: there is an interrupted prediction of another checkpoint or of other pairs.
    """

    def __init__(self, path: str | Path | None = None, overwrite: bool = False) -> None:
        self.path = None if path is None else Path(path)
        self.overwrite = overwrite
        self._ids: list[str] = []
        self._key: str | None = None
        self._file: IO[str] | None = None

    @staticmethod
    def fits(model: Any, data: Any) -> bool:
        """Whether the callback supports a model and its data."""
        return isinstance(model, PairCaptioner) and isinstance(data, PairDataModule)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "predict":
            return
        data = getattr(trainer, "datamodule", None)  # absent if loaders were passed
        if not isinstance(data, PairDataModule) or not self.fits(pl_module, data):
            raise ConfigError(
                "WritePredictions needs a PairCaptioner and a PairDataModule, not a "
                f"{type(pl_module).__name__} with {type(data).__name__}"
            )
        if trainer.is_global_zero:
            check_file("WritePredictions:", self._target(trainer), overwrite=self.overwrite)
        self._ids = list(data.pairs_of("predict").ids)
        # only rank 0 reads: on other nodes the files may appear later
        unread: tuple[str | None, set[str]] = (None, set())
        self._key, done = trainer.strategy.broadcast(self._read_parts(trainer) if trainer.is_global_zero else unread)
        if done:
            # one pair remains, since without any Lightning would skip on_predict_end
            data.exclude("predict", done - {self._ids[-1]})
            _say(trainer, f"{len(done)} of {len(self._ids)} pairs are captioned already; resuming with the others")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # the weights of the checkpoint are loaded only now
        key = trainer.strategy.broadcast(prediction_key(pl_module, [*self._ids, str(trainer.precision)]))
        if self._key not in (None, key):
            raise DataError(
                f"{str(self._part(trainer, 0))!r} is an interrupted prediction of another checkpoint, of other "
                "settings or of other pairs; finish that prediction, remove the file, or set another folder with "
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
        all_gather_object(None)  # barrier: all processes have written
        if not trainer.is_global_zero:
            return
        target, records = self._target(trainer), {}
        for part in self._parts(trainer):
            records.update({record["id"]: record for record in records_of(part) if "id" in record})
        write_file(target, "".join(line_of(records[id]) for id in self._ids if id in records), self.overwrite)
        for part in self._parts(trainer):
            remove_part(part)
        _say(trainer, f"\npredictions of {len(records)} pairs: {os.path.relpath(target)}")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._file is not None:
            self._close()
            _say(trainer, "\nthe predictions so far are saved; run the same command again to resume")

    def _read_parts(self, trainer: Trainer) -> tuple[str | None, set[str]]:
        """Key and ids of an interrupted prediction; removes an incomplete last line."""
        self._target(trainer).parent.mkdir(parents=True, exist_ok=True)
        key: str | None = None
        done: set[str] = set()
        for part in self._parts(trainer):
            check_part(part)
            records = list(records_of(part))
            atomic_write(part, "".join(map(line_of, records)))
            keys = [record["prediction"] for record in records if "prediction" in record]
            key = key or next(iter(keys), None)
            done.update(record["id"] for record in records if "id" in record and keys == [key])
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
        return Path(trainer.default_root_dir) / PREDICTIONS if self.path is None else self.path

    def _part(self, trainer: Trainer, rank: int) -> Path:
        target = self._target(trainer)
        return target.with_name(f"{target.name}.rank{rank}.part")

    def _parts(self, trainer: Trainer) -> list[Path]:
        target = self._target(trainer)
        return sorted(target.parent.glob(f"{target.name}.rank*.part"))


def prediction_key(module: LightningModule, ids: list[str]) -> str:
    """Digest of everything that determines the predictions, except the images.

    Args:
        module: captioner.
        ids: ids of the pairs, and further settings.
    """
    hparams = {name: value for name, value in module.hparams.items() if name not in TRAINING_ONLY}
    content = [type(module).__qualname__, hparams, ids, weights_digest(module)]
    return digest(json.dumps(content, sort_keys=True, default=lambda value: type(value).__qualname__))


def weights_digest(module: nn.Module) -> str:
    """Digest of parameters and buffers; with sharded weights, of the shards of this process.

    Args:
        module: module with weights.
    """
    from torch.distributed.tensor import DTensor

    def parts() -> Iterator[Any]:
        # state_dict() would gather sharded weights, which is a collective call
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            local = value.to_local() if isinstance(value, DTensor) else value
            yield name
            yield local.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data

    return digest_of_all(parts())


def line_of(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON."""
    # unpaired surrogates cannot be encoded in UTF-8
    text = json.dumps(finite(dict(record)), ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")


def check_part(part: Path) -> None:
    """Check that a path does not exist or is the file of an unfinished run.

    Raises:
        ConfigError: the path is another file, a link or a folder.
    """
    if not os.path.lexists(part):
        return
    if part.is_file() and not part.is_symlink():
        with part.open("rb") as file:
            start = file.readline(100)
        if _BEGINNING.startswith(start) or _FIRST_LINE.fullmatch(start):
            return
    raise ConfigError(f"{str(part)!r} is not a file of an unfinished run; move it away, or choose another output")


def remove_part(part: Path) -> None:
    """Remove the file of an unfinished run."""
    check_part(part)
    part.unlink(missing_ok=True)


def records_of(part: Path) -> Iterator[dict[str, Any]]:
    """Records of a file up to the first incomplete line."""
    with part.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                return
            if not line.endswith(b"\n") or not isinstance(record, dict) or not {"id", "prediction"} & set(record):
                return
            yield record


def _say(trainer: Trainer, message: str) -> None:
    if trainer.is_global_zero:
        print(message, flush=True)
