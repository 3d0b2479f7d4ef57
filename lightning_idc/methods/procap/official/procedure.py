"""Parts of the first stage as in the authors' code: network, masks, warps, losses, schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.methods.procap.masks import MaskRule, entire_mask, random_patch_mask
from lightning_idc.methods.procap.net import ProcedureEncoder
from lightning_idc.methods.procap.official.encoder import SPECIAL_TOKENS, TEXT_SLOTS, blind_rows
from lightning_idc.methods.procap.procedure_net import Hidden, ProcedureReader
from lightning_idc.models.schedules import Warmup
from lightning_idc.nn.image_tokenizer import ImageTokenizer

LOSS_WEIGHTS = (7.0, 0.5, 0.5)


class OfficialProcedureNet(ProcedureReader):
    """Encodes the sequence {alignment token, 24 word slots, separator, consistency token, procedure}.

    The consistency token does not attend to the words. Captions lose their end token and all words after the 24th; each
    empty slot has a separate embedding. Features are computed from pixels in [0, 1], and ids from pixels in [-1, 1].

    Args:
        tokenizer: image tokenizer of features and targets; frozen.
        encoder: encoder of caption and procedure.
        vocabulary: number of words.
    """

    def __init__(self, tokenizer: ImageTokenizer, encoder: ProcedureEncoder, vocabulary: int) -> None:
        super().__init__(tokenizer, encoder, vocabulary)
        width = encoder.width
        # the last row is unused; the table of the code has it
        self.words = nn.Embedding(vocabulary + TEXT_SLOTS + 1, width)
        self.word_positions = nn.Parameter(torch.randn(TEXT_SLOTS, width))
        self.special, self.special_positions = (nn.Parameter(torch.randn(SPECIAL_TOKENS, width)) for _ in range(2))
        length = SPECIAL_TOKENS + TEXT_SLOTS + encoder.frames * encoder.cells
        self.register_buffer("bias", blind_rows(length), persistent=False)

    @torch.no_grad()
    def tokenizer_features(self, frames: Tensor) -> Tensor:
        pixels = frames.flatten(0, 1).to(self.encoder.mask_embedding.dtype) / 255
        return self.tokenizer.features(pixels).unflatten(0, frames.shape[:2])

    @torch.no_grad()
    def targets(self, frames: Tensor, features: Tensor) -> Tensor:
        return self.tokenizer.encode(frames.flatten(0, 1)).view(len(frames), -1)

    def slots(self, words: Tensor, word_mask: Tensor) -> Tensor:
        """Rows of the table of words, ``(B, 24)``.

        Args:
            words: ids ``(B, T)`` with the end token.
            word_mask: bool ``(B, T)``, False at padding.
        """
        # the last token of a caption is the end token, so a token is a word if another token follows
        is_word = F.pad(word_mask[:, 1:], (0, TEXT_SLOTS))[:, :TEXT_SLOTS]
        words = F.pad(words, (0, TEXT_SLOTS))[:, :TEXT_SLOTS]
        return torch.where(is_word, words, self.vocabulary + torch.arange(TEXT_SLOTS, device=words.device))

    def forward(self, features: Tensor, masked: Tensor, words: Tensor, word_mask: Tensor) -> Hidden:
        visual = self.masked_tokens(features, masked)  # (B, F * n, D)
        text = self.words(self.slots(words, word_mask)) + self.word_positions  # (B, 24, D)
        align, separator, consistency = (self.special + self.special_positions).expand(len(words), -1, -1).split(1, 1)
        hidden = self.encoder.run(torch.cat([align, text, separator, consistency, visual], 1), self.bias)  # type: ignore[arg-type]
        first_patch = SPECIAL_TOKENS + TEXT_SLOTS
        return Hidden(hidden[:, 0], hidden[:, first_patch - 1], hidden[:, first_patch:])


def erased_mask(grid: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Mask a rectangle, at the same position in all frames, sampled as in torchvision's RandomErasing.

    Its area is uniform in [0.2, 0.8] of the grid, and the logarithm of its aspect ratio is uniform between 1 : 2 and
    2 : 1. A rectangle that is not smaller than the grid in both directions is sampled again, at most ten times.
    """
    _, height, width = grid
    mask = torch.zeros(height, width, dtype=torch.bool)
    for _ in range(10):
        area, logarithm = torch.rand(2, generator=generator).tolist()
        ratio = math.exp(math.log(0.5) + logarithm * math.log(4))
        target_area = (0.2 + 0.6 * area) * height * width
        rows, columns = round(math.sqrt(target_area * ratio)), round(math.sqrt(target_area / ratio))
        if rows < height and columns < width:
            top_edge = int(torch.randint(height - rows + 1, (), generator=generator))
            left_edge = int(torch.randint(width - columns + 1, (), generator=generator))
            mask[top_edge : top_edge + rows, left_edge : left_edge + columns] = True
            break
    return mask.expand(grid).clone()


def outside_mask(grid: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Mask all patches outside of the rectangle of :func:`erased_mask`."""
    return ~erased_mask(grid, generator)


MASK_RULES: tuple[MaskRule, ...] = (
    entire_mask,
    partial(random_patch_mask, interval=(0.8, 0.8)),  # in the code, 0.2 is the probability of being visible
    erased_mask,
    outside_mask,
)


def shifted_frame(frames: Tensor, generator: torch.Generator, max_shift: float = 0.5) -> Tensor:
    """Add a random number to one frame: to all channels with probability 1/4, else to one channel.

    Args:
        frames: uint8 ``(F, 3, H, W)``.
        generator: random generator.
        max_shift: maximum shift, as a fraction of the range of values.
    """
    warped = frames.float()
    shift = 255 * max_shift * (2 * float(torch.rand((), generator=generator)) - 1)
    index, channel = (int(torch.randint(count, (), generator=generator)) for count in (len(frames), 4))
    warped[index, slice(None) if channel == 3 else channel] += shift
    return warped.round().clamp(0, 255).to(torch.uint8)


def swapped_halves(captions: Sequence[list[int]], references: Sequence[Sequence[list[int]]]) -> list[int]:
    """Index of the negative caption of each pair: that of the pair half a batch away, even if the captions are equal.

    The code requires an even batch size. Here an odd batch is rolled by half of its size, and a single pair has no
    negative caption (-1).
    """
    count = len(captions)
    return [(row + count // 2) % count if count > 1 else -1 for row in range(count)]


def summed_consistency_loss(intact: Tensor, broken: Tensor, visible: Tensor) -> Tensor:
    """Consistency loss (Eq. 8): sum over all samples, divided by the number of samples that are not fully masked.

    Args:
        intact: logits of intact procedures, ``(B,)``.
        broken: logits of broken procedures, ``(B,)``.
        visible: bool ``(B,)``, False for fully masked procedures.

    Example:
        >>> summed_consistency_loss(torch.zeros(2), torch.zeros(2), torch.tensor([True, False]))  # 4 log 2 / 1
        tensor(2.7726)
    """
    return (F.softplus(-intact.float()) + F.softplus(broken.float())).sum() / visible.sum().clamp(min=1)


@dataclass(frozen=True)
class LogarithmicWarmup(Warmup):
    """Logarithmic warm-up, then constant: DeepSpeed's WarmupLR, the schedule of the authors' code.

    Args:
        warmup: fraction of the run that is warm-up.
        steps: number of steps of the warm-up.
        start: multiplier at the first step.
    """

    warmup: float = 0.025
    steps: int = 5000
    start: float = 0.01

    def __call__(self, progress: float) -> float:
        step = self.steps * progress / max(self.warmup, 1e-12)
        fraction = min(1.0, math.log(step + 1) / math.log(max(self.steps, 2)))
        return self.start + (1 - self.start) * fraction
