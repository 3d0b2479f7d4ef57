"""LogProcedures: draws interpolated frames, keyframes, masked and reconstructed frames (ProCap, Figures 9 to 13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from lightning_idc.data.sampling import SampleIndex
from lightning_idc.images.types import PairSample
from lightning_idc.methods.procap.keyframes import Keyframes
from lightning_idc.methods.procap.procedure import ProcedureModel
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.outputs import save
from lightning_idc.utils.text import plain

if TYPE_CHECKING:
    from PIL.Image import Image

INK, GRAY, PAPER = (28, 28, 30), (112, 112, 118), (255, 255, 255)
SIDE, GAP, MARGIN, LINE = 96, 4, 16, 18
MASK_VALUE = 0
"""Pixel value of a masked patch."""


@dataclass
class Strip:
    """One row of frames with a label.

    Args:
        name: label of the row.
        frames: uint8 ``(F, 3, H, W)``.
    """

    name: str
    frames: Tensor


def procedure_sheet(pairs: Sequence[tuple[str, Sequence[Strip]]], side: int = SIDE) -> Image:
    """Draw the strips of each pair below its caption.

    Args:
        pairs: caption and strips of each pair.
        side: height of a frame in pixels.

    Raises:
        DataError: there is nothing to draw.
    """
    from PIL import Image, ImageDraw, ImageFont

    if not pairs:
        raise DataError("there are no pairs whose procedures could be drawn")
    font, small = ImageFont.load_default(14), ImageFont.load_default(12)
    height, width = pairs[0][1][0].frames.shape[-2:]
    size = (max(1, round(side * width / height)), side)
    longest = max(len(strip.frames) for _, strips in pairs for strip in strips)
    name_width = round(max(small.getlength(strip.name) for _, strips in pairs for strip in strips)) + 8
    heights = [LINE + sum(side + GAP for _ in strips) + MARGIN for _, strips in pairs]
    sheet = Image.new("RGB", (2 * MARGIN + name_width + longest * (size[0] + GAP), MARGIN + sum(heights)), PAPER)
    draw, top = ImageDraw.Draw(sheet), MARGIN
    for (caption, strips), block_height in zip(pairs, heights, strict=True):
        draw.text((MARGIN, top), plain(caption)[:160], INK, font)
        y = top + LINE
        for strip in strips:
            draw.text((MARGIN, y + side // 2 - 6), strip.name, GRAY, small)
            for column, frame in enumerate(strip.frames):
                image = Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy())
                sheet.paste(image.resize(size), (MARGIN + name_width + column * (size[0] + GAP), y))
            y += side + GAP
        top += block_height
    return sheet


def strips_of(sample: PairSample, keyframes: Keyframes, model: ProcedureModel | None = None) -> list[Strip]:
    """Strips of one pair: all frames, the keyframes, and the reconstructions of a model.

    Args:
        sample: the pair.
        keyframes: sampler of keyframes; with k = 0 no procedure is drawn.
        model: first stage whose masked input and reconstructions are drawn; none are drawn when None.
    """
    ends = sample.before[None], sample.after[None]
    # as in Figure 13: the overlay is sharp where both images agree
    strips = [Strip("pair, overlaid", torch.cat([*ends, overlaid(sample.before, sample.after)[None]]))]
    if keyframes.count:
        procedure = keyframes.procedures.of(sample.id, sample.before, sample.after)
        strips.append(Strip("interpolated", torch.cat([ends[0], procedure.frames, ends[1]])))
        strips.append(Strip("keyframes", keyframes.of(sample)))
    return strips if model is None else [*strips, *filled_in(sample, model)]


def filled_in(sample: PairSample, model: ProcedureModel) -> list[Strip]:
    """Strips of a first stage: masked input, reconstruction, and the frames that it predicts from both images alone."""
    batch = model.collate([sample]).to(model.device)
    frames, masked = batch.model_inputs["frames"][0].cpu(), batch.model_inputs["masked"][0].cpu()
    strips = [
        Strip("masked", blanked(frames, masked, model.grid)),
        Strip("reconstructed", model.reconstruct(batch)[0].cpu()),
    ]
    if len(frames) > 2:
        # as in Figure 9: both images are visible, and all frames between them are masked
        all_between = torch.ones_like(batch.model_inputs["masked"]).view(1, len(frames), -1)
        all_between[:, [0, -1]] = False
        batch.model_inputs["masked"] = all_between.flatten(1)
        strips.append(Strip("imagined", model.reconstruct(batch)[0].cpu()))
    return strips


def overlaid(before: Tensor, after: Tensor) -> Tensor:
    """Mean of two uint8 images ``(3, H, W)``."""
    return ((before.int() + after.int()) // 2).to(torch.uint8)


def blanked(frames: Tensor, masked: Tensor, grid: tuple[int, int]) -> Tensor:
    """Frames, uint8 ``(F, 3, H, W)``, with the patches of a mask ``(F * n,)`` in one colour."""
    height, width = frames.shape[-2:]
    cells = masked.view(-1, 1, *grid)  # (F, 1, h, w)
    pixel_mask = cells.repeat_interleave(height // grid[0], 2).repeat_interleave(width // grid[1], 3)
    return torch.where(pixel_mask, frames.new_tensor(MASK_VALUE), frames)


class LogProcedures(Callback):
    """Draws the procedures and reconstructions of the same few pairs after each validation of the first stage.

    ``lightning-idc validate --config RUN/procedure/stage.yaml --ckpt_path CHECKPOINT`` draws them without training.
    Writes files such as ``procedures/step-00001500.png`` in the trainer's ``default_root_dir``, and logs the image as
    ``val/procedures`` if there is a TensorBoard logger.

    Args:
        pairs: number of pairs.
    """

    def __init__(self, pairs: PositiveInt = 4) -> None:
        check_arguments(LogProcedures.__init__, locals())
        self.pairs = pairs

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, ProcedureModel):
            raise ConfigError(f"LogProcedures needs a ProcedureModel; this is a {type(pl_module).__name__}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, ProcedureModel)
        dataset = trainer.datamodule.loader("val").dataset  # type: ignore[attr-defined]
        samples = [dataset[SampleIndex(0, index)] for index in range(min(self.pairs, len(dataset)))]
        sheet = sheet_of(samples, pl_module.keyframes, pl_module)
        target = Path(trainer.default_root_dir) / "procedures" / f"step-{trainer.global_step:08d}.png"
        save(target, lambda path: sheet.save(path, format="PNG"))
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_image("val/procedures", np.asarray(sheet), trainer.global_step, dataformats="HWC")


def sheet_of(samples: Sequence[PairSample], keyframes: Keyframes, model: ProcedureModel | None = None) -> Image:
    """Sheet of the procedures of some pairs, each below its first caption."""
    return procedure_sheet(
        [
            (sample.captions[0] if sample.captions else sample.id, strips_of(sample, keyframes, model))
            for sample in samples
        ]
    )
