"""Parts of ProCap's study: targets that name objects, and the comparison of a first stage with copying.

The tokenizer's codes represent light and texture, not objects; the targets of the study's first stage are what the
tokenizer names in a cell: nothing, or an object of one of 96 kinds (2 sizes, 8 colors, 2 materials, 3 shapes). They are
predicted attribute by attribute, so that all objects with an attribute share its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.data.source import PairSource
from lightning_idc.methods.procap.net import ProcedureEncoder
from lightning_idc.methods.procap.procedure import ProcedureModel
from lightning_idc.methods.procap.procedure_net import ProcedureNet
from lightning_idc.nn.image_tokenizer import ImageTokenizer
from lightning_idc.nn.vocabulary import Vocabulary

TOKENIZER: dict[str, Any] = {
    "codebook_size": 256,
    "latent": 32,
    "width": 32,
    "multipliers": [1, 2, 2],
    "blocks": 1,
    "patch_size": 4,
    "squared": 20.0,
    "naming": 10.0,
}
"""Of the small tokenizer that all studies of ProCap share; it also names things."""
CLASSES = (3, 9, 3, 4)
"""Sizes, colors, materials and shapes, 0 for nothing, as the tokenizer names them."""
KINDS = (2, 8, 2, 3)
"""The same without nothing."""


class KindHead(nn.Sequential):
    """Log-probabilities of nothing and of every kind of thing, each the product of those of its attributes.

    Args:
        width: width of the hidden states.
    """

    def __init__(self, width: int) -> None:
        super().__init__(nn.LayerNorm(width), nn.Linear(width, 1 + sum(KINDS)))

    def attributes(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Logits of nothing ``(..., 1)`` and of the classes of each attribute."""
        results: Tensor = super().forward(hidden)
        return results.split((1, *KINDS), -1)

    def forward(self, hidden: Tensor) -> Tensor:
        """``(..., 97)`` of hidden states ``(..., D)``, nothing first."""
        empty, *parts = self.attributes(hidden)
        kinds = nn.functional.logsigmoid(-empty)
        for part in parts:
            kinds = (kinds[..., None] + part.log_softmax(-1)[..., None, :]).flatten(-2)
        return torch.cat([nn.functional.logsigmoid(empty), kinds], -1)


class NamedTargets(ProcedureNet):
    """First stage whose targets are 0 for nothing and a number for each kind of object."""

    def __init__(self, tokenizer: ImageTokenizer, encoder: ProcedureEncoder, vocabulary: int) -> None:
        super().__init__(tokenizer, encoder, vocabulary)
        self.code_head = KindHead(encoder.width)
        self.naming = nn.Conv2d(tokenizer.latent, sum(CLASSES), 1).requires_grad_(False)

    @torch.no_grad()
    def targets(self, frames: Tensor, features: Tensor) -> Tensor:
        named = [part.argmax(1) for part in self.naming(features.flatten(0, 1)).split(CLASSES, 1)]
        kind = torch.zeros_like(named[0])
        for part, count in zip(named, KINDS, strict=True):
            kind = kind * count + (part - 1).clamp(min=0)
        empty = torch.stack([part == 0 for part in named]).any(0)
        return torch.where(empty, 0, kind + 1).view(len(features), -1)


class NamedProcedures(ProcedureModel):
    """First stage with named targets; its tokenizer's checkpoint is one of ``NamingTokenizer``."""

    net_class = NamedTargets

    def build_net(self, vocabulary: Vocabulary) -> NamedTargets:
        source = self.hparams["tokenizer"]
        net = super().build_net(vocabulary)
        assert isinstance(net, NamedTargets)
        if isinstance(source, str):
            state = torch.load(source, weights_only=True)["state_dict"]
            net.naming.load_state_dict({name: state[f"net.head.{name}"] for name in ("weight", "bias")})
        return net


@dataclass
class AgainstCopying:
    """Reconstruction of masked cells with objects in unseen pairs, compared with copying.

    Args:
        patches: percentage of cells that it names correctly.
        copied: right by copying the same cell of an image where it is seen, the better of the two orders, in %.
        copied_unmasked: right by copying from images of which nothing is masked, which the first stage does not see.
        low: of the 95 % interval of ``patches`` minus ``copied``, over pairs.
        high: its other end.
    """

    patches: float
    copied: float
    copied_unmasked: float
    low: float
    high: float

    @property
    def above(self) -> bool:
        """Whether copying is beaten by more than chance."""
        return self.low > 0

    def __str__(self) -> str:
        return (
            f"{self.patches:.1f} % of masked things, copying what is seen {self.copied:.1f} % "
            f"(difference {self.low:+.1f} to {self.high:+.1f}), copying all {self.copied_unmasked:.1f} %"
        )


@torch.no_grad()
def against_copying(model: NamedProcedures, pairs: PairSource) -> AgainstCopying:
    """Compare a first stage with copying: at the frames in between, or, without any, at both images."""
    model.eval()
    results = [_counts(model, pairs, start) for start in range(0, len(pairs), 64)]
    model.train()
    counts = torch.cat(results).double()  # (pairs, asked | said | two orders | two orders unmasked)
    asked, right = counts[:, :1].sum().clamp(min=1), counts.sum(0)
    order = 2 + int(right[3] > right[2])
    # the ratio estimator's bootstrap: pairs are drawn, not cells
    draws = torch.randint(len(counts), (1000, len(counts)), generator=torch.Generator().manual_seed(0))
    gains = (counts[:, 1] - counts[:, order])[draws].sum(1) / counts[:, 0][draws].sum(1).clamp(min=1)
    low, high = (100 * gains.quantile(torch.tensor([0.025, 0.975], dtype=torch.double))).tolist()
    shares = (100 * right / asked).tolist()
    return AgainstCopying(shares[1], shares[order], max(shares[4:]), low, high)


def _counts(model: NamedProcedures, pairs: PairSource, start: int) -> Tensor:
    samples: list[Any] = [pairs.load(index) for index in range(start, min(start + 64, len(pairs)))]
    batch = model.collate(samples).to(model.device)
    features = model.encode(batch)
    true = features.extras["targets"].unflatten(1, (-1, model.built_net.encoder.cells))
    captions = model.built_net.code_head(features.memory).argmax(-1).view_as(true)
    masked = batch.model_inputs["masked"].view_as(true)
    guesses = [captions, *copies(true, masked), *copies(true, torch.zeros_like(masked))]
    where = slice(None) if true.shape[1] == 2 else slice(1, -1)
    asked = (masked & ((true[:, :1] > 0) | (true[:, -1:] > 0)))[:, where]
    return torch.stack([asked.sum((1, 2)), *(((one == true)[:, where] & asked).sum((1, 2)) for one in guesses)], 1)


def copies(true: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    """Names ``(B, F, n)`` copied from the same cell of an image that is seen: of the before image first, or the after.

    Args:
        true: names ``(B, F, n)``, 0 for nothing.
        masked: bool ``(B, F, n)``. With two frames, each is copied from the other.
    """
    ends, seen = (true[:, :1], true[:, -1:]), (~masked[:, :1], ~masked[:, -1:])
    if true.shape[1] == 2:
        other = torch.where(seen[1], ends[1], 0), torch.where(seen[0], ends[0], 0)
        swapped = torch.cat(other, 1)
        return swapped, swapped
    orders = []
    for first in (0, 1):
        rest = torch.where(seen[1 - first], ends[1 - first], 0)
        orders.append(torch.where(seen[first], ends[first], rest).expand_as(true))
    return orders[0], orders[1]
