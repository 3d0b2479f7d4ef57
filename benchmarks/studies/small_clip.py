"""A small CLIP of rendered images and texts, whose image blocks initialise a captioner in place of CLIP's.

It is trained on single images with texts that name all objects, without information about pairs or changes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, seed_everything
from open_clip.loss import ClipLoss
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness import quiet_trainer
from lightning_idc.data.synthetic.source import SyntheticSource
from lightning_idc.data.synthetic.truth import ATTRIBUTE_WORDS
from lightning_idc.models.schedules import WarmupCosine, scheduled
from lightning_idc.nn.image_tokenizer import as_pixels

WORDS = ("", "and", *(word for words in ATTRIBUTE_WORDS.values() for word in words), "end")
"""Words of the texts; the first fills up, the last, whose number is the highest, ends, as CLIP's does."""
CONTEXT = 24
PATCH = 16


class Scenes(Dataset[tuple[Tensor, Tensor]]):
    """One of the two images of each pair, and a text that names its objects in random order.

    Args:
        pairs: rendered.
        seed: of the draws; each epoch draws anew.
    """

    def __init__(self, pairs: SyntheticSource, seed: int = 0) -> None:
        self.pairs, self.draw = pairs, random.Random(seed)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        side = self.draw.randrange(2)
        things = self.pairs.ground_truth(index)[("before", "after")[side]]["things"]
        named = [[WORDS.index(thing[kind]) for kind in ATTRIBUTE_WORDS] for thing in things]
        self.draw.shuffle(named)
        text = [*[word for thing in named for word in (WORDS.index("and"), *thing)][1:], len(WORDS) - 1]
        image = torch.from_numpy(np.array(self.pairs.images[index][side]))
        return as_pixels(image), torch.tensor(text + [0] * (CONTEXT - len(text)))


class SmallCLIP(LightningModule):
    """CLIP with its own loss.

    Args:
        width: of both towers.
        layers: of the image tower.
        heads: attention heads.
        size: height and width of the images.
        rate: highest learning rate.
    """

    def __init__(self, width: int, layers: int, heads: int, size: Sequence[int], rate: float = 1e-3) -> None:
        super().__init__()
        self.rate, self.loss = rate, ClipLoss()
        look = CLIPVisionCfg(
            layers=layers, width=width, head_width=width // heads, patch_size=PATCH, image_size=tuple(size)
        )
        read = CLIPTextCfg(context_length=CONTEXT, vocab_size=len(WORDS), width=width, heads=heads, layers=2)
        self.clip = CLIP(width, look, read)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Tensor = self.loss(*self.clip(*batch))
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.rate)
        return scheduled(optimizer, WarmupCosine(0.1), self.trainer)


@torch.no_grad()
def recall(model: SmallCLIP, pairs: SyntheticSource) -> float:
    """Share of images, in %, beside which their own text is the nearest of all; by chance 100 over their number."""
    images, texts = (torch.stack(column) for column in zip(*list(Scenes(pairs)), strict=True))
    model.eval()
    likeness = model.clip.encode_image(images, normalize=True) @ model.clip.encode_text(texts, normalize=True).T
    return float(100 * (likeness.argmax(1) == torch.arange(len(images))).float().mean())


def train(path: Path, train: SyntheticSource, held_out: SyntheticSource, epochs: int, **sizes: Any) -> float:
    """Train a small CLIP, keep its state dict in ``path``, and return its recall of held-out texts."""
    seed_everything(0, verbose=False)
    model = SmallCLIP(**sizes)
    batches = DataLoader(Scenes(train), batch_size=min(64, len(train)), shuffle=True, drop_last=True)
    quiet_trainer(max_epochs=epochs, gradient_clip_val=1.0).fit(model, batches)
    torch.save(model.clip.state_dict(), path)
    return recall(model, held_out)
