"""Options of answering many pairs; light, since the help of a verb reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How many pairs are answered.

    Args:
        out: file to write, .jsonl, .csv or .parquet; a run that was stopped goes on from what lies beside it. In .csv a
            text that a spreadsheet would take for a formula begins with '.
        overwrite: replace files that this command did not write.
        batch_size: pairs per batch.
        workers: processes that read images; 0 reads them in this one.
        where: also say where each change lies, with boxes in pixels; costs up to 128 further looks at each pair.
        ignore: what does not count: X1,Y1,X2,Y2 in pixels, an image that is bright there, or a folder of such images
            by the names of the pairs.
        engine: ray deals the batches to actors, on this machine or on a cluster.
        actors: of Ray, each with a captioner of its own.
        gpus: of each of Ray's actors; a fraction lets several share one.
    """

    out: Path | None = None
    overwrite: bool = False
    batch_size: int = 16
    workers: int = 0
    where: bool = False
    ignore: Sequence[str] = ()
    engine: Literal["process", "ray"] = "process"
    actors: int = 2
    gpus: float = 0
