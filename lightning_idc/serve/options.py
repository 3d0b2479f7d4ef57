"""Options for answering many pairs; without heavy imports, since the command-line help reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, Share, check_fields

if TYPE_CHECKING:
    from lightning_idc.serve.gate import Gate


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


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Options for which pairs count as changed.

    Args:
        tolerance: maximum difference of values that count as equal, such as 4 of 255.
        allow_pixels: maximum number of differing pixels of an unchanged pair.
        allow_share: maximum fraction of differing pixels of an unchanged pair, such as 0.001.
        perceptual: maximum perceived colour distance of equal pixels, 0 to 1, such as 0.1; replaces --tolerance for
            grey and RGB images.
        antialiasing: whether differing pixels that are anti-aliased count (count) or not (ignore).
        align: top-left compares what images of unequal sizes have in common, and the rest differs; register estimates a
            shift of the whole image first; none calls images of unequal sizes changed. Masks of --ignore are applied
            afterwards.
        noise: whether differences between two captures of one page (rounding, a text cursor, a scrolled view, another
            encoding, redrawn glyphs) count (count) or not (ignore); lenient also ignores what may as well be a
            change, such as all text set at other positions by the fonts of another machine.
    """

    tolerance: NonNegativeFloat = 0.0
    allow_pixels: NonNegativeInt = 0
    allow_share: Share = 0.0
    perceptual: Share | None = None
    antialiasing: Literal["count", "ignore"] = "count"
    align: Literal["top-left", "register", "none"] = "top-left"
    noise: Literal["ignore", "lenient", "count"] = "ignore"

    def __post_init__(self) -> None:
        check_fields(self)

    def gate(self) -> Gate:
        """The gate with these options."""
        from lightning_idc.images.tolerance import Tolerance
        from lightning_idc.serve.gate import Gate

        tolerance = Tolerance(
            value=self.tolerance,
            pixels=self.allow_pixels,
            share=self.allow_share,
            perceptual=self.perceptual,
            antialiasing=self.antialiasing == "count",
        )
        return Gate(tolerance, self.align, self.noise)
