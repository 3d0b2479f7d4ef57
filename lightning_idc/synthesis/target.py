"""What a stage is to make and what is there of it: source, folder, manifest, and what a stopped run left."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_idc.data.store.shards import adopt_shard, remove_shard
from lightning_idc.data.store.store import MANIFEST, fingerprint_of, read_manifest, shard_name, write_manifest
from lightning_idc.synthesis.claims import forget_claims
from lightning_idc.synthesis.progress import Progress
from lightning_idc.synthesis.provenance import stored_provenance
from lightning_idc.synthesis.records import ImageFormat, KeepDropped
from lightning_idc.synthesis.shards import REMEDY, described_shard, finished_shards, remove_damaged
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.synthesis.store import (
    RecordSource,
    RecordStore,
    UnfinishedStore,
    has_grown_from,
    lineage_of,
)
from lightning_idc.utils.errors import ConfigError, DataError, check_number
from lightning_idc.utils.files import fingerprint, remove_partials


class Target:
    """From which source a stage makes which store, in which pieces, and what is there of it.

    Args:
        source: a finished store or its folder, or another source of records.
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
        for name, value in (("batch_size", batch_size), ("shard_size", shard_size), ("limit", limit)):
            if value is not None:
                check_number(name, value, minimum=1)
        check_number("num_workers", num_workers, minimum=0)
        check_number("max_failures", max_failures, minimum=0)
        if keep_dropped not in ("all", "thumbnails", "none") or image_format not in ("png", "jpeg", "webp"):
            raise ConfigError(
                f"keep_dropped is {keep_dropped!r} and image_format {image_format!r}; expected all, thumbnails or "
                "none, and png, jpeg or webp"
            )
        # a store is its folder: where later stages look its images up, and what processes of their own open
        given = str(source.folder) if isinstance(source, RecordStore) else source
        # the same for processes with another current folder
        self._given = str(Path(given).resolve()) if isinstance(given, str) else given
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
            before, now = known.get("shard_size"), identity["shard_size"]
            if not changed and before != now:
                raise ConfigError(
                    f"{self.target} was begun with shard_size that is {now} now and was {before}; give that one, name "
                    "another target, or remove that folder to begin anew"
                )
            raise ConfigError(
                f"{self.target} was begun with {' and '.join(changed) or 'records of the source'} that are "
                "different now; name another target, or remove that folder to begin anew"
            )

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

    @property
    def completed(self) -> bool:
        """Whether the target was marked as finished."""
        return bool(read_manifest(self.target, "records", REMEDY).get("complete"))

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
