"""Options for answering many pairs; without heavy imports, since the command-line help reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, check_fields


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options for answering many pairs.

    Args:
        out: output file, .jsonl, .csv or .parquet; an interrupted run is resumed from its .part file. In .csv, texts
            that a spreadsheet would run as formulas are prefixed with '.
        overwrite: replace files that this command did not write.
        batch_size: pairs per batch.
        workers: processes for reading images; 0 reads them in the main process.
        where: locate each change, with boxes in pixels; costs up to 128 further encodings of each pair.
        ignore: parts to ignore: X1,Y1,X2,Y2 in pixels, a mask image (bright pixels are ignored), or a folder of mask
            images by the names of the pairs.
        engine: ray distributes batches to actors, on this machine or on a cluster.
        actors: number of Ray actors, each with its captioner.
        tile: height and width of the tiles in which large scenes are described, in pixels; see `describe`.
        stride: distance of neighbouring tiles; three quarters of the tile by default.
        gpus: GPUs per Ray actor; with a fraction, several actors share one.
    """

    out: Path | None = None
    overwrite: bool = False
    batch_size: PositiveInt = 16
    workers: NonNegativeInt = 0
    where: bool = False
    ignore: Sequence[str] = ()
    engine: Literal["process", "ray"] = "process"
    actors: PositiveInt = 2
    gpus: NonNegativeFloat = 0
    tile: PositiveInt | None = None
    stride: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields(self)
