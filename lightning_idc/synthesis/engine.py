"""The one unit of all pipelines: chunk k of a source goes through a stage and becomes shard k of a store.

A shard is made by one process from its beginning and moved into place as a whole, so neither kills nor the number of
processes nor the launcher change what is in it. A batch that fails is halved down to the record that is the cause.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lightning_idc.core.shards import adopt_shard, remove_shard
from lightning_idc.core.store import MANIFEST, fingerprint_of, read_manifest, shard_name, write_manifest
from lightning_idc.errors import ConfigError, DataError
from lightning_idc.files import fingerprint, remove_partials
from lightning_idc.synthesis.claims import claimed, forget_claims
from lightning_idc.synthesis.isolation import IsolatedStage, told
from lightning_idc.synthesis.progress import Progress, note_shard, rate
from lightning_idc.synthesis.provenance import record_provenance, stored_provenance
from lightning_idc.synthesis.reading import read_ahead
from lightning_idc.synthesis.records import ImageFormat, KeepDropped, Record, counted
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.synthesis.store import (
    REMEDY,
    RecordSource,
    RecordStore,
    UnfinishedStore,
    described_shard,
    finished_shards,
    has_grown_from,
    lineage_of,
    remove_damaged,
    write_shard,
)

_POLL = 0.2
"""Seconds between looks for shards that other processes make."""


class ShardJob:
    """What a stage is to make: from which source, into which store, in which pieces. No Trainer is needed.

    Args:
        source: the folder of a finished store, or a source of records.
        target: folder of the store that is made; one that was begun is continued.
        batch_size: records per step; it changes no outcome.
        shard_size: records of the source per shard: what is lost by a kill, and what one process takes at a time.
        num_workers: threads that read and decode images ahead.
        limit: only the first records of the source.
        keep_dropped: images that stay of dropped records: ``all``, ``thumbnails`` or ``none``.
        image_format: of images that the stage makes; PNG loses nothing, JPEG is about a quarter of it.
        max_failures: records that may be dropped since the stage raised an error, before the run ends.

    Raises:
        PairError: a number is out of range.
    """

    def __init__(
        self,
        source: str | RecordSource,
        target: str | Path,
        batch_size: int = 16,
        shard_size: int = 128,
        num_workers: int = 0,
        limit: int | None = None,
        keep_dropped: KeepDropped = "all",
        image_format: ImageFormat = "png",
        max_failures: int = 100,
    ) -> None:
        if batch_size < 1 or shard_size < 1:
            raise ConfigError(f"batch_size is {batch_size} and shard_size {shard_size}; expected at least 1")
        if keep_dropped not in ("all", "thumbnails", "none") or image_format not in ("png", "jpeg", "webp"):
            raise ConfigError(
                f"keep_dropped is {keep_dropped!r} and image_format {image_format!r}; expected all, thumbnails or "
                "none, and png, jpeg or webp"
            )
        # the same for processes with another current folder
        self._given = str(Path(source).resolve()) if isinstance(source, str) else source
        self._source: RecordSource | None = None
        self.target = Path(target)
        self.batch_size, self.shard_size, self.num_workers, self.limit = batch_size, shard_size, num_workers, limit
        self.keep_dropped, self.image_format, self.max_failures = keep_dropped, image_format, max_failures
        self.streamed = False
        self._progress = Progress()

    def __getstate__(self) -> dict[str, Any]:
        # a worker opens a store of its own
        return {**self.__dict__, "_source": None if isinstance(self._given, str) else self._source}

    @property
    def source(self) -> RecordSource:
        """Where the records come from; opened when first asked for, since an earlier stage may have to make it."""
        if self._source is None and self.streamed and self.source_folder is not None:
            self._source = UnfinishedStore(self.source_folder)
        elif self._source is None:
            self._source = RecordStore(self._given) if isinstance(self._given, str) else self._given
            if not len(self._source):
                raise DataError(f"the source {self._given!r} has no records, so there is nothing to make")
        return self._source

    @property
    def source_folder(self) -> Path | None:
        """Folder of the store that is the source; None where the source is none."""
        return Path(self._given) if isinstance(self._given, str) else None

    def __len__(self) -> int:
        return len(self.source) if self.limit is None else min(self.limit, len(self.source))

    @property
    def shards(self) -> int:
        """Number of shards that the target will have, or that can be made while the source is being made."""
        if isinstance(self.source, UnfinishedStore) and not self.source.complete and len(self) != self.limit:
            return len(self) // self.shard_size
        return -(-len(self) // self.shard_size)

    def pending(self) -> list[int]:
        """Shards that are not finished."""
        return [number for number, shard in enumerate(finished_shards(self.target, self.shards)) if shard is None]

    def begin(self, stage: BasePipelineStage) -> None:
        """Check the source, then begin the target, or check what a stopped run left there; any process may call it.

        Raises:
            PairError: the source is damaged, or the target was made by another stage, with other settings or from
                another source.
        """
        identity = self.identity(stage)
        if isinstance(self.source, RecordStore):
            self.source.check()
        self.target.mkdir(parents=True, exist_ok=True)
        remove_partials(self.target)
        if (self.target / MANIFEST).exists():
            if not self._extended(stage, identity):
                self._compare(identity)
            damaged = remove_damaged(self.target, self.shards)
            if damaged:
                print(f"{self.target}: damaged, made again: {', '.join(damaged)}", flush=True)
            return
        others = [path for path in self.target.iterdir() if not path.name.startswith(MANIFEST)]
        if others and not (self.target / MANIFEST).exists():  # another process may have begun it just now
            raise ConfigError(f"{self.target} is not empty and holds no store; name another target")
        self._write_manifest(stage, identity)

    def settle(self, stage: BasePipelineStage) -> None:
        """Begin anew with a source that was being made and is finished; what was made of it stays."""
        self.streamed, self._source = False, None
        self.begin(stage)

    def _extended(self, stage: BasePipelineStage, identity: dict[str, Any]) -> bool:
        """Go on with a target whose source has grown since: its whole shards stay, the last one is made again."""
        found = read_manifest(self.target, "records", REMEDY)
        known = found["identity"]
        if any(known.get(key) != identity[key] for key in ("stage", "settings", "shard_size")):
            return False
        if known["records"] is None:  # it was made while its source was
            if identity["records"] is None or known["source"] != lineage_of(self.source):
                return False
            self._adopt(found)
            self._write_manifest(stage, identity, adopts=found["fingerprint"])
            return True
        if identity["records"] is None or identity["records"] <= known["records"] or not stage.incremental:
            return False
        if not has_grown_from(self.source, known["source"], known["records"]):
            return False
        self._adopt(found)
        grown = found.get("grown", [])
        if found.get("complete"):  # later stages may have been made from what it was
            before = RecordStore(self.target)
            grown = [*grown, {"fingerprint": before.fingerprint, "rows": len(before)}]
        for number in range(known["records"] // self.shard_size, found["shards"]):
            remove_shard(self.target / f"{shard_name(number)}.arrow")
        self._write_manifest(stage, identity, grown=grown, adopts=found["fingerprint"])
        print(f"{self.target}: {identity['records'] - known['records']} records more than before", flush=True)
        return True

    def _adopt(self, found: Mapping[str, Any]) -> None:
        """Let the shards of what the target was before belong to what it is."""
        if found.get("adopts"):
            for path in self.target.glob("shard-*.arrow"):
                adopt_shard(path, found["adopts"], found["fingerprint"])

    def _compare(self, identity: dict[str, Any]) -> None:
        found = read_manifest(self.target, "records", REMEDY)
        if found["fingerprint"] != fingerprint_of(identity):
            known = found["identity"]
            changed = [key for key in ("stage", "settings", "records") if known.get(key) != identity[key]]
            raise ConfigError(
                f"{self.target} was begun with {' and '.join(changed) or 'records of the source'} that are "
                "different now; name another target, or remove that folder to begin anew"
            )

    def open(self, stage: BasePipelineStage) -> None:
        """Make a stage whose models are loaded ready for shards of this job.

        Raises:
            PairError: the target was begun with other weights of a model.
        """
        record_provenance(self.target, stage)
        stage.eval()
        stage.prepare(self.source)

    def make_shard(self, stage: BasePipelineStage, number: int) -> bool:
        """Make one shard, if nobody has made it and nobody is making it.

        Args:
            stage: ready, see `open`.
            number: of the shard.

        Returns:
            Whether this call made it.

        Raises:
            PairError: more than ``max_failures`` records failed, or all of a shard did.
        """
        if self.finished(number):
            return False
        with claimed(self.target, number) as mine:
            if not mine or self.finished(number):
                return False
            began = time.monotonic()
            records: list[Record] = []
            work = IsolatedStage(stage, self._record, self._seal, self.batch_size)
            end = self._end(number)
            with torch.inference_mode():
                for indices, batch in read_ahead(
                    range(number * self.shard_size, end), self.batch_size, self._record, stage.reads, self.num_workers
                ):
                    records += work.transform(indices, batch)
            self.batch_size = work.batch_size  # smaller where memory ran out
            work.check_not_all(number, records)
            self._check_failures(stage, work.failed)
            write_shard(self.target, number, records, len(work.failed))
            note_shard(self.target, number, len(records), time.monotonic() - began)
        self._progress.show(self)
        return True

    def _end(self, number: int) -> int:
        """Record of the source after the last one of a shard."""
        end = (number + 1) * self.shard_size
        if isinstance(self.source, UnfinishedStore) and end > len(self.source):
            self.source.refresh()
        if number >= self.shards:
            raise DataError(f"{self.target}: shard {number} cannot be made of {len(self)} records of the source")
        return min(end, len(self))

    def make_pending(self, stage: BasePipelineStage, wait: bool = True) -> None:
        """Make what nobody has made, taking over from processes that died.

        Args:
            stage: ready, see `open`.
            wait: until shards that other processes are making are there.
        """
        pending = self.pending()
        while pending:
            made = [self.make_shard(stage, number) for number in pending]
            pending = [number for number in pending if not self.finished(number)]
            if pending and not any(made):
                if not wait:
                    return
                time.sleep(_POLL)

    def complete(self, stage: BasePipelineStage) -> bool:
        """Mark the target as finished if all shards are there, and say whether they are."""
        if self.pending():
            return False
        found = read_manifest(self.target, "records", REMEDY)
        if not found.get("complete"):
            self._adopt(found)
            provenance, grown = stored_provenance(self.target), found.get("grown", [])
            self._write_manifest(stage, self.identity(stage), complete=True, provenance=provenance, grown=grown)
        forget_claims(self.target)
        return True

    def finish(self, stage: BasePipelineStage) -> bool:
        """Complete the target, say what is in it, and let the stage write its reports; see `complete`."""
        if not self.complete(stage):
            return False
        store = RecordStore(self.target)
        kept, reasons = store.counts()
        why = f": {counted(reasons)}" if reasons else ""
        found = f"{kept} records kept, {sum(reasons.values())} dropped{why}"
        print(f"{stage.name}: {found}; {rate(self.target)}", flush=True)
        stage.finish(store)
        return True

    def identity(self, stage: BasePipelineStage) -> dict[str, Any]:
        """All that decides the records of the target; without their number where the source is being made."""
        settings = {**stage.settings(), "seed": stage.seed}
        if self.keep_dropped != "all" or self.image_format != "png":
            settings["images"] = {"format": self.image_format, "keep_dropped": self.keep_dropped}
        return {
            "stage": f"{type(stage).__module__}.{type(stage).__qualname__}",
            "settings": json.loads(json.dumps(settings)),
            "source": self.source.fingerprint,
            "records": None if isinstance(self.source, UnfinishedStore) else len(self),
            "shard_size": self.shard_size,
        }

    def _write_manifest(
        self, stage: BasePipelineStage, identity: dict[str, Any], complete: bool = False, **extra: Any
    ) -> None:
        earlier = self.source_folder
        # relative, so that all folders of a run may be moved together
        source = None if earlier is None else os.path.relpath(earlier, self.target.resolve())
        made_by = [identity[key] for key in ("stage", "settings", "shard_size")]
        lineage = fingerprint([*made_by, lineage_of(self.source), self.limit])
        shards = None if identity["records"] is None else self.shards
        write_manifest(self.target, identity, shards, source=source, complete=complete, lineage=lineage, **extra)

    def finished(self, number: int) -> bool:
        """Whether a shard is there."""
        return described_shard(self.target, number, read_manifest(self.target, "records", REMEDY)) is not None

    def _record(self, index: int) -> Record:
        # what an earlier stage wrote is looked up there and not written again
        return self.source.linked(index) if isinstance(self.source, RecordStore) else self.source.record(index)

    def _seal(self, record: Record) -> None:
        record.seal(self.image_format, self.keep_dropped)

    def _check_failures(self, stage: BasePipelineStage, failed: list[Record]) -> None:
        if not failed:
            return
        done = (shard for shard in finished_shards(self.target, self.shards) if shard is not None)
        count = len(failed) + sum(shard.about.get("failed", 0) for shard in done)
        if count > self.max_failures:
            raise DataError(
                f"{count} records failed in {stage.name}, of which {self.max_failures} are allowed (max_failures); "
                f"{told(failed)}"
            )


def make_shard(
    stage: BasePipelineStage, source: str | RecordSource, number: int, target: str | Path, **options: Any
) -> bool:
    """Make one shard of a store with a stage, without a Trainer; nothing is done where it is there already.

    Args:
        stage: its models are loaded on the first call.
        source: see `ShardJob`, as for ``options``.
        number: of the shard.
        target: folder of the store.
        options: of `ShardJob`.

    Returns:
        Whether this call made it.
    """
    job = ShardJob(source, target, **options)
    job.begin(stage)
    stage.setup("predict")
    job.open(stage)
    return job.make_shard(stage, number)
