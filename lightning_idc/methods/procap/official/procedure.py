"""The first stage as the authors' code computes it; README.md lists every difference."""

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
    """Encodes {alignment token, 24 words, separator, consistency token, procedure}; the consistency token sees no word.

    Captions lose their end token and all words after the 24th; each empty slot has a separate embedding. Features are
    computed from pixels in [0, 1], and ids from pixels in [-1, 1].

    Args:
        tokenizer: image tokenizer of features and targets; frozen.
        encoder: encoder of caption and procedure.
        vocabulary: number of words.
    """

    def __init__(self, tokenizer: ImageTokenizer, encoder: ProcedureEncoder, vocabulary: int) -> None:
        super().__init__(tokenizer, encoder, vocabulary)
        width = encoder.width
        # the last row is unused; the code's table has it
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
        """Rows ``(B, 24)`` of the table of words for ids ``(B, T)`` that may end with an end token."""
        # the last word of a caption is its end token, so a word is a position that is followed by another one
        is_word = F.pad(word_mask[:, 1:], (0, TEXT_SLOTS))[:, :TEXT_SLOTS]
        words = F.pad(words, (0, TEXT_SLOTS))[:, :TEXT_SLOTS]
        return torch.where(is_word, words, self.vocabulary + torch.arange(TEXT_SLOTS, device=words.device))

    def forward(self, features: Tensor, masked: Tensor, words: Tensor, word_mask: Tensor) -> Hidden:
        visual = self.masked_tokens(features, masked)
        text = self.words(self.slots(words, word_mask)) + self.word_positions
        align, separator, consistency = (self.special + self.special_positions).expand(len(words), -1, -1).split(1, 1)
        hidden = self.encoder.run(torch.cat([align, text, separator, consistency, visual], 1), self.bias)  # type: ignore[arg-type]
        first = SPECIAL_TOKENS + TEXT_SLOTS
        return Hidden(hidden[:, 0], hidden[:, first - 1], hidden[:, first:])


def erased_mask(grid: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Mask a rectangle, the same in all frames, as torchvision's RandomErasing draws it.

    Its area is uniform in [0.2, 0.8] of the grid and the logarithm of its aspect ratio uniform between 1 : 2 and 2 : 1;
    one as long as a side of the grid is drawn again, at most ten times.
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
    """Mask all but a rectangle of :func:`erased_mask`."""
    return ~erased_mask(grid, generator)


MASK_RULES: tuple[MaskRule, ...] = (
    entire_mask,
    partial(random_patch_mask, interval=(0.8, 0.8)),  # 0.2 is the probability to be visible
    erased_mask,
    outside_mask,
)


def shifted_frame(frames: Tensor, generator: torch.Generator, reach: float = 0.5) -> Tensor:
    """Add one random number to one frame, with probability 1/4 to all channels, else to one.

    Args:
        frames: uint8 ``(F, 3, H, W)``.
        generator: random numbers.
        reach: maximum shift, as a fraction of the range of values.
    """
    warped = frames.float()
    shift = 255 * reach * (2 * float(torch.rand((), generator=generator)) - 1)
    chosen, channel = (int(torch.randint(count, (), generator=generator)) for count in (len(frames), 4))
    warped[chosen, slice(None) if channel == 3 else channel] += shift
    return warped.round().clamp(0, 255).to(torch.uint8)


def swapped_halves(captions: Sequence[list[int]], references: Sequence[Sequence[list[int]]]) -> list[int]:
    """Index of the pair in the other half of the batch for each pair, even if its caption is the same.

    The code asserts an even batch; here an odd one is rolled by half of it, and a single pair has no other caption.
    """
    count = len(captions)
    return [(row + count // 2) % count if count > 1 else -1 for row in range(count)]


def summed_consistency_loss(intact: Tensor, broken: Tensor, visible: Tensor) -> Tensor:
    """Eq. 8 summed over all samples, fully masked ones included, divided by the number of those that are not.

    Args:
        intact: logits of intact procedures, ``(B,)``.
        broken: logits of broken procedures, ``(B,)``.
        visible: bool ``(B,)``, False where everything is masked.

    Example:
        >>> summed_consistency_loss(torch.zeros(2), torch.zeros(2), torch.tensor([True, False]))  # 4 log 2 / 1
        tensor(2.7726)
    """
    return (F.softplus(-intact.float()) + F.softplus(broken.float())).sum() / visible.sum().clamp(min=1)


@dataclass(frozen=True)
class LogarithmicWarmup(Warmup):
    """Logarithmic warm-up, then constant: DeepSpeed's WarmupLR, which the code uses.

    Args:
        warmup: fraction of the run of the warm-up.
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
