"""Multi-scale differential perception (OmniDiff / M3Diff, section 4.2): what differs between two images, by depth.

Tokens of one depth of a vision tower are written ``(B, 2, L, D)``: pairs, before and after, places, channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lightning_idc.methods.m3diff.cost import measure_forward
from lightning_idc.models.adapter import Adapter
from lightning_idc.nn.transformer import FeedForward, merge_heads, split_heads
from lightning_idc.utils.errors import ConfigError, check_number

# of SigLIP's 26 used layers, those that the paper reads (section 5.2)
PAPER_LAYERS, PAPER_DEPTH = (17, 20, 23, 26), 26


def matching_layers(depth: int) -> list[int]:
    """Depths of a tower of ``depth`` used layers that match 17, 20, 23 and 26 of SigLIP's 26, without repeats."""
    return sorted({max(1, round(depth * layer / PAPER_DEPTH)) for layer in PAPER_LAYERS})


class Attention(nn.Module):
    """Multi-head attention from ``(B, N, D)`` to ``(B, M, D)``; no normalisation, no residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in (self.query(x), *self.key_value(source).chunk(2, -1)))
        return self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class DifferentialLayer(nn.Module):
    """The difference looks at itself and at both images, then each image looks at the difference.

    M3Diff Eq. 4
    M3Diff Eq. 5
    M3Diff Eq. 6

    The paper writes neither residuals nor norms; both are here as in any pre-norm transformer layer.

    Args:
        width: D.
        heads: of the attention.
        hidden: width of the MLP of Eq. 5.
        as_printed: leave out residuals and norms.
    """

    def __init__(self, width: int, heads: int, hidden: int, as_printed: bool = False) -> None:
        super().__init__()
        self.as_printed = as_printed
        self.self_attn = Attention(width, heads)
        self.cross_attn = Attention(width, heads)
        self.mlp = FeedForward(width, hidden, 0.0)
        self.image_cross_attn = Attention(width, heads)
        norms: list[nn.Module] = [nn.Identity() if as_printed else nn.LayerNorm(width) for _ in range(5)]
        self.norm_delta, self.norm_query, self.norm_feed, self.norm_refined, self.norm_images = norms

    def forward(self, images: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Images ``(B, 2, L, D)`` and their difference ``(B, L, D)``, both refined."""
        own = self.norm_delta(delta)
        delta = self._onto(delta, self.self_attn(own, own))  # Eq. 4
        seen = self.norm_images(images)
        query = self.norm_query(delta)
        delta = self._onto(delta, self.cross_attn(query, torch.cat([seen.flatten(1, 2), query], 1)))
        delta = self._onto(delta, self.mlp(self.norm_feed(delta)))  # Eq. 5
        told = self.norm_refined(delta)[:, None].expand_as(images)
        source = torch.cat([seen, told], 2).flatten(0, 1)
        return self._onto(images, self.image_cross_attn(seen.flatten(0, 1), source).view(images.shape)), delta  # Eq. 6

    def _onto(self, before: Tensor, change: Tensor) -> Tensor:
        return change if self.as_printed else before + change


class DifferentialPerception(nn.Module):
    """Eq. 1 to 7 for one depth: gated difference, its layers, and how much this depth counts.

    Args:
        width: D.
        heads: of the attention.
        hidden: width of the MLPs.
        depth: stacked layers of Eq. 4 to 6.
        as_printed: of :class:`DifferentialLayer`.
    """

    def __init__(self, width: int, heads: int, hidden: int, depth: int, as_printed: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * width, width, bias=False)  # W_m
        self.combine = nn.Linear(3 * width, width, bias=False)  # W_p
        self.layers = nn.ModuleList(DifferentialLayer(width, heads, hidden, as_printed) for _ in range(depth))
        self.score = nn.Sequential(nn.Linear(3 * width, width), nn.GELU(), nn.Linear(width, width))

    def difference(self, images: Tensor) -> Tensor:
        """Gated difference ``(B, L, D)`` of ``(B, 2, L, D)``.

        M3Diff Eq. 1
        M3Diff Eq. 2
        M3Diff Eq. 3
        """
        both = torch.stack([images.transpose(1, 2).flatten(2), images.flip(1).transpose(1, 2).flatten(2)], 1)
        gated = images * self.gate(both).sigmoid()
        before, after = gated.unbind(1)
        return self.combine(torch.cat([before, after, before - after], -1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Refined images ``(B, 2, L, D)`` and logits of the fusion score ``(B, D)``.

        M3Diff Eq. 7
        """
        delta = self.difference(images)
        refined = delta
        for layer in self.layers:
            images, refined = layer(images, refined)
        # token-wise mean of the three side by side in the channels, the inner part of Eq. 7
        return images, self.score(torch.cat([images[:, 0], images[:, 1], delta], -1).mean(1))


class MultiScaleDifferentialPerception(nn.Module):
    """MDP: refines the features of both images by what differs between them, at several depths (Eq. 1 to 8).

    Args:
        width: D.
        scales: number of depths.
        heads: of the attention; the largest divisor of ``width`` up to 16 when None.
        hidden: width of the MLP of Eq. 5; ``2 * width`` when None.
        stacked: layers of Eq. 4 to 6 (section 5.2 says two).
        shared: one set of weights for all depths. The default, as no weight of Eq. 1 to 7 carries the index of its
            depth, and as the paper calls the module lightweight.
        softmax: reads sigma of Eq. 7 as a softmax over the depths; the sigmoid of Eq. 1 otherwise.
        as_printed: Eq. 4 to 8 and nothing else: no residuals, no norms, no layer behind Eq. 8. Untrained, it then
            replaces the features of a trained model by others.

    Raises:
        ConfigError: no depths, a negative number of layers, a softmax over one depth, or a ``width`` that cannot be
            split among ``heads``.
    """

    def __init__(
        self,
        width: int,
        scales: int,
        heads: int | None = None,
        hidden: int | None = None,
        stacked: int = 2,
        shared: bool = True,
        softmax: bool = False,
        as_printed: bool = False,
    ) -> None:
        super().__init__()
        check_number("scales", scales, minimum=1)
        check_number("stacked", stacked, minimum=0)
        if softmax and scales == 1:
            raise ConfigError("the softmax over one depth is always 1; choose more depths, or leave out softmax")
        heads = heads or max(h for h in range(1, 17) if width % h == 0)
        if width % heads:
            raise ConfigError(f"features of width {width} cannot be split among {heads} heads; choose a divisor")
        self.softmax, self.as_printed = softmax, as_printed
        self.recomputes = False
        """Whether the backward pass computes the activations of each depth again instead of keeping them."""
        # depths differ in scale by orders of magnitude, which shared weights cannot bridge
        self.norms = nn.ModuleList(nn.Identity() if as_printed else nn.LayerNorm(width) for _ in range(scales))
        count = 1 if shared else scales
        hidden = hidden or 2 * width
        self.scales = nn.ModuleList(
            DifferentialPerception(width, heads, hidden, stacked, as_printed) for _ in range(count)
        )
        if as_printed:
            return
        self.out = nn.Linear(width, width)
        # the paper adds nothing to Eq. 8; a residual that starts at nothing leaves the trained model as it was
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def fuse(self, features: Sequence[Tensor]) -> Tensor:
        """The weighted sum over depths, ``(B, 2, L, D)``.

        M3Diff Eq. 8
        """
        keeps = not (self.recomputes and torch.is_grad_enabled())
        parts = [
            self._depth(i, images) if keeps else checkpoint(self._depth, i, images, use_reentrant=False)
            for i, images in enumerate(features)
        ]
        logits = torch.stack([score for _, score in parts])
        scores = logits.softmax(0) if self.softmax else logits.sigmoid()
        return sum(score[:, None, None] * images for score, (images, _) in zip(scores, parts, strict=True))  # type: ignore[return-value]

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Features ``(B, 2, L, D)`` of every depth, the deepest last, to those that go on, ``(B, 2, L, D)``."""
        fused = self.fuse(features)
        return fused if self.as_printed else features[-1] + self.out(fused)

    def _depth(self, index: int, images: Tensor) -> tuple[Tensor, Tensor]:
        part: DifferentialPerception = self.scales[index % len(self.scales)]  # type: ignore[assignment]
        return part(self.norms[index](images))


Rewrite = Callable[[list[Tensor]], Tensor]


@runtime_checkable
class PairTower(Protocol):
    """A network that lets its image features be read at several depths and replaced on their way to the words."""

    @property
    def feature_width(self) -> int:
        """D of the features that can be replaced."""

    @property
    def feature_depth(self) -> int:
        """Number of layers before the place where they are replaced."""

    @property
    def recomputes(self) -> bool:
        """Whether activations are computed again in the backward pass."""

    def rewrite_features(self, layers: Sequence[int], rewrite: Rewrite) -> None:
        """Send ``rewrite(features of the layers)``, each ``(B, 2, L, D)``, on in place of the last features."""


class MDP(Adapter):
    """Puts :class:`MultiScaleDifferentialPerception` onto a network.

    Args:
        layers: depths of the vision tower to read, the last being the one that is replaced; those that match the
            paper's 17, 20, 23 and 26 of 26 when None.
        at: path of the module whose output is a grid ``(2B, D, h, w)`` with before and after in turn, on networks
            that are no :class:`PairTower`.
        options: of MultiScaleDifferentialPerception.
    """

    mdp: MultiScaleDifferentialPerception

    def __init__(self, layers: Sequence[int] | None = None, at: str = "backbone", **options: Any) -> None:
        super().__init__()
        self.reads, self.at, self.options = layers, at, options
        self.on = True

    def install(self, net: nn.Module) -> None:
        if isinstance(net, PairTower):
            width = net.feature_width
            reads = list(self.reads or matching_layers(net.feature_depth))
            wrong = [layer for layer in reads if not 1 <= layer <= net.feature_depth]
            if wrong or reads[-1] != net.feature_depth or sorted(set(reads)) != reads:
                raise ConfigError(
                    f"MDP cannot read the layers {reads}: expected rising depths from 1 to {net.feature_depth}, the "
                    "last of them included"
                )
            self.mdp = MultiScaleDifferentialPerception(width, len(reads), **self.options)
            self.mdp.recomputes = net.recomputes
            net.rewrite_features(reads, self.rewrite)
            return
        try:
            module = net.get_submodule(self.at)
        except AttributeError:
            paths = ", ".join(name for name, _ in net.named_children())
            raise ConfigError(
                f"MDP finds no module {self.at!r} in {type(net).__name__}; set `at` to one of {paths}"
            ) from None
        channels = getattr(module, "width", None)
        if not isinstance(channels, int):
            raise ConfigError(
                f"MDP needs the number of channels of {self.at!r}; {type(module).__name__} has no `width`"
            )
        self.mdp = MultiScaleDifferentialPerception(channels, 1, **self.options)
        module.register_forward_hook(self.rewrite_grid)

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.mdp(features)

    def rewrite(self, features: list[Tensor]) -> Tensor:
        """Features that go on: MDP's, or the last ones while it is switched off."""
        return self(features) if self.on else features[-1]

    def forward_cost(self, num_patches: int, bytes_per_value: int) -> tuple[float, int]:
        heads = next(part.heads for part in self.mdp.modules() if isinstance(part, Attention))
        # the first linear layer is the gate, which reads both images
        width = next(part.in_features for part in self.mdp.modules() if isinstance(part, nn.Linear)) // 2
        features = [torch.empty(1, 2, num_patches // 2, width, device="meta").requires_grad_() for _ in self.mdp.norms]
        recomputes, self.mdp.recomputes = self.mdp.recomputes, False
        try:
            flops, size = measure_forward(self.mdp, features, heads)
        finally:
            self.mdp.recomputes = recomputes
        return flops, size * bytes_per_value // torch.float32.itemsize

    def rewrite_grid(self, module: nn.Module, inputs: object, grid: Tensor) -> Tensor:
        """Forward hook on a grid backbone."""
        pairs = grid.flatten(2).mT.unflatten(0, (-1, 2))
        # a frozen backbone runs without a graph, which must not keep MDP from learning
        with torch.set_grad_enabled(torch.is_grad_enabled() or self.training):
            return self.rewrite([pairs]).flatten(0, 1).mT.reshape(grid.shape)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        self.on = False
        try:
            yield
        finally:
            self.on = True
