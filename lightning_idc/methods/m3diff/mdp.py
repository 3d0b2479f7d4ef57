"""Multi-scale differential perception (MDP) of M3Diff (OmniDiff, section 4.2).

MDP reads the features of both images at several depths of a vision tower and refines the deepest ones:

1. :meth:`DifferentialPerception.difference` computes a gated difference at each depth (Eq. 1 to 3),
2. :class:`DifferentialLayer` refines difference and images by attention (Eq. 4 to 6), twice,
3. :meth:`DifferentialPerception.forward` scores the depth (Eq. 7), and
4. :meth:`MultiScaleDifferentialPerception.fuse` sums the depths by their scores (Eq. 8).

Shapes: ``(B, 2, L, D)`` are B pairs, the before and the after image, L patches, D channels. ``images`` are always the
features F_1 and F_2 of both images in this shape, and ``delta`` is their difference ``(B, L, D)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lightning_idc.methods.m3diff.cost import measure_forward
from lightning_idc.models.adapter import SwitchedAdapter, VisionTower, channels_for, submodule_for
from lightning_idc.nn.attention import attend
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.nn.transformer import FeedForward, merge_heads, split_heads
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, check_arguments, check_fields
from lightning_idc.utils.errors import ConfigError

# layers of SigLIP that the paper reads, of the 26 layers that LLaVA-OneVision uses (section 5.2)
PAPER_LAYERS, PAPER_DEPTH = (17, 20, 23, 26), 26


def matching_layers(depth: int) -> list[int]:
    """Layers of a tower of ``depth`` layers at the relative depths of 17, 20, 23 and 26 of 26, without duplicates."""
    return sorted({max(1, round(depth * layer / PAPER_DEPTH)) for layer in PAPER_LAYERS})


class Attention(nn.Module):
    """Multi-head attention of queries ``(B, N, D)`` to a source ``(B, M, D)``, without normalisation or residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in (self.query(x), *self.key_value(source).chunk(2, -1)))
        return self.out(merge_heads(attend(q, k, v)))


class DifferentialLayer(nn.Module):
    """The difference attends to itself and to both images, then each image attends to the difference.

    M3Diff Eq. 4
    M3Diff Eq. 5
    M3Diff Eq. 6

    The equations have neither residuals nor norms. Both are added here, as in a pre-norm transformer layer.

    Args:
        width: D.
        heads: number of attention heads.
        hidden: hidden width of the MLP of Eq. 5.
        as_printed: whether residuals and norms are left out.
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
        """Refined images ``(B, 2, L, D)`` and refined difference ``(B, L, D)``."""
        normed = self.norm_delta(delta)
        delta = self._add_residual(delta, self.self_attn(normed, normed))  # Eq. 4

        context = self.norm_images(images)  # (B, 2, L, D)
        query = self.norm_query(delta)
        source = torch.cat([context.flatten(1, 2), query], 1)  # (B, 3L, D)
        delta = self._add_residual(delta, self.cross_attn(query, source))
        delta = self._add_residual(delta, self.mlp(self.norm_feed(delta)))  # Eq. 5

        refined = self.norm_refined(delta)[:, None].expand_as(images)  # (B, 2, L, D)
        source = torch.cat([context, refined], 2).flatten(0, 1)  # (2B, 2L, D)
        attended = self.image_cross_attn(context.flatten(0, 1), source).view(images.shape)
        return self._add_residual(images, attended), delta  # Eq. 6

    def _add_residual(self, x: Tensor, update: Tensor) -> Tensor:
        return update if self.as_printed else x + update


class DifferentialPerception(nn.Module):
    """Eq. 1 to 7 for one depth: gated difference, its refinement, and the score of the depth.

    Args:
        width: D.
        heads: number of attention heads.
        hidden: hidden width of the MLP of Eq. 5.
        depth: number of layers of Eq. 4 to 6.
        as_printed: as in :class:`DifferentialLayer`.
    """

    def __init__(self, width: int, heads: int, hidden: int, depth: int, as_printed: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * width, width, bias=False)  # W_m
        self.combine = nn.Linear(3 * width, width, bias=False)  # W_p
        self.layers = nn.ModuleList(DifferentialLayer(width, heads, hidden, as_printed) for _ in range(depth))
        self.score = nn.Sequential(nn.Linear(3 * width, width), nn.GELU(), nn.Linear(width, width))

    def difference(self, images: Tensor) -> Tensor:
        """Gated difference ``(B, L, D)`` of the images ``(B, 2, L, D)``.

        M3Diff Eq. 1
        M3Diff Eq. 2
        M3Diff Eq. 3
        """
        # (B, 2, L, 2D): F_1 || F_2 for the first image and F_2 || F_1 for the second
        concatenated = torch.stack([images.transpose(1, 2).flatten(2), images.flip(1).transpose(1, 2).flatten(2)], 1)
        gated = images * self.gate(concatenated).sigmoid()  # Eq. 1 and 2
        before, after = gated.unbind(1)
        return self.combine(torch.cat([before, after, before - after], -1))  # Eq. 3

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Refined images ``(B, 2, L, D)`` and logits of the fusion score ``(B, D)``.

        M3Diff Eq. 7
        """
        delta = self.difference(images)
        refined = delta
        for layer in self.layers:
            images, refined = layer(images, refined)
        pooled = torch.cat([images[:, 0], images[:, 1], delta], -1).mean(1)  # (B, 3D)
        return images, self.score(pooled)  # Eq. 7 before sigma


@dataclass(frozen=True, slots=True)
class MDPOptions:
    """Options of :class:`MultiScaleDifferentialPerception`.

    Args:
        heads: number of attention heads; the largest divisor of the features' width up to 16 when None.
        hidden: hidden width of the MLP of Eq. 5; twice the features' width when None.
        stacked: number of layers of Eq. 4 to 6; two in section 5.2.
        shared: whether all depths share weights. The paper calls the module lightweight, and no weight of Eq. 1 to 7
            has the index of its depth.
        softmax: whether sigma of Eq. 7 is a softmax over depths; if not, it is the sigmoid of Eq. 1.
        as_printed: whether residuals, norms and the linear layer after Eq. 8 are left out. An untrained module then
            changes the features of a trained model.
        control: whether each image is compared with itself in place of the other one: a control with equally many
            parameters and no view of the other image. Not in the paper.
    """

    heads: PositiveInt | None = None
    hidden: PositiveInt | None = None
    stacked: NonNegativeInt = 2
    shared: bool = True
    softmax: bool = False
    as_printed: bool = False
    control: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


class MultiScaleDifferentialPerception(nn.Module):
    """MDP: refines the features of both images by their difference, at several depths (Eq. 1 to 8).

    Args:
        width: D.
        scales: number of depths.
        options: fields of :class:`MDPOptions`.

    Raises:
        ConfigError: an argument is out of range, ``softmax`` or ``shared`` is set with one depth, or ``heads`` does not
            divide ``width``.
    """

    def __init__(self, width: PositiveInt, scales: PositiveInt, **options: Any) -> None:
        check_arguments(MultiScaleDifferentialPerception.__init__, locals())
        super().__init__()
        settings = MDPOptions(**options)
        if settings.softmax and scales == 1:
            raise ConfigError(
                "softmax is true with one depth, where it is always 1; use more depths, or leave out softmax"
            )
        if not settings.shared and scales == 1:
            raise ConfigError(
                "shared is false with one depth, which shares its weights with no other; leave out shared"
            )
        heads = settings.heads or max(h for h in range(1, 17) if width % h == 0)
        if width % heads:
            raise ConfigError(f"features of width {width} cannot be split among {heads} heads; choose a divisor")
        self.softmax, self.as_printed, self.control = settings.softmax, settings.as_printed, settings.control
        self.recomputes = False
        """Whether activations of each depth are recomputed in the backward pass (activation checkpointing)."""
        # features of different depths differ in scale by orders of magnitude, too much for shared weights
        self.norms = nn.ModuleList(nn.Identity() if self.as_printed else nn.LayerNorm(width) for _ in range(scales))
        hidden = settings.hidden or 2 * width
        self.scales = nn.ModuleList(
            DifferentialPerception(width, heads, hidden=hidden, depth=settings.stacked, as_printed=self.as_printed)
            for _ in range(1 if settings.shared else scales)
        )
        if self.as_printed:
            return
        self.out = nn.Linear(width, width)
        # not in the paper: with an output of 0, an untrained module leaves the trained model unchanged
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def fuse(self, features: Sequence[Tensor]) -> Tensor:
        """Sum over depths of the refined images, weighted by their scores, ``(B, 2, L, D)``.

        M3Diff Eq. 8
        """
        stores_activations = not (self.recomputes and torch.is_grad_enabled())
        outputs = [
            self._depth(i, images) if stores_activations else checkpoint(self._depth, i, images, use_reentrant=False)
            for i, images in enumerate(features)
        ]
        logits = torch.stack([logits for _, logits in outputs])  # (depths, B, D)
        scores = logits.softmax(0) if self.softmax else logits.sigmoid()
        return sum(score[:, None, None] * images for score, (images, _) in zip(scores, outputs, strict=True))  # type: ignore[return-value]

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Refined features of the deepest layer, ``(B, 2, L, D)``.

        Args:
            features: features ``(B, 2, L, D)`` of each depth, the deepest last.
        """
        if self.control:
            # each image paired with itself, (2 B, 2, L, D)
            doubled = [images.flatten(0, 1)[:, None].expand(-1, 2, -1, -1) for images in features]
            fused = self.fuse(doubled)[:, 0].unflatten(0, (-1, 2))
        else:
            fused = self.fuse(features)
        return fused if self.as_printed else features[-1] + self.out(fused)

    def _depth(self, index: int, images: Tensor) -> tuple[Tensor, Tensor]:
        perception: DifferentialPerception = self.scales[index % len(self.scales)]  # type: ignore[assignment]
        return perception(self.norms[index](images))


FeatureRewrite = Callable[[list[Tensor]], Tensor]
"""Function from the features ``(B, 2, L, D)`` of several depths to new features ``(B, 2, L, D)``."""


@runtime_checkable
class PairTower(VisionTower, Protocol):
    """Interface of networks whose image features can be read at several depths and replaced."""

    def rewrite_features(self, layers: Sequence[int], rewrite: FeatureRewrite) -> None:
        """Replace the last features by ``rewrite(features of the layers)``, each ``(B, 2, L, D)``."""


class MDP(SwitchedAdapter):
    """Adds :class:`MultiScaleDifferentialPerception` to a network.

    In a :class:`~lightning_idc.nn.grid_backbone.GridBackbone` the depths differ in channels and size: those before the
    last are averaged to its cells and projected to its channels.

    Args:
        layers: layers of the vision tower to read; the output of the last one is replaced. When None, the layers at
            the relative depths of the paper's 17, 20, 23 and 26 of 26.
        at: in networks that are not a :class:`PairTower`, path of the module whose output is a grid ``(2B, D, h, w)``,
            before and after images alternating; ``backbone`` when None.
        options: fields of :class:`MDPOptions`.
    """

    mdp: MultiScaleDifferentialPerception

    def __init__(self, layers: Sequence[int] | None = None, at: str | None = None, **options: Any) -> None:
        super().__init__()
        self.projections = nn.ModuleList()
        self.layers, self.at, self.options = layers, at, options

    def install(self, net: nn.Module) -> None:
        tower = next((part for part in (net, *net.children()) if isinstance(part, PairTower)), None)
        if tower is not None:
            if self.at is not None:
                raise ConfigError(
                    f"MDP reads the vision tower of {type(net).__name__}, and `at` is {self.at!r}; leave `at` out"
                )
            layers = self._depths(tower.feature_depth)
            self.mdp = MultiScaleDifferentialPerception(tower.feature_width, len(layers), **self.options)
            self.mdp.recomputes = tower.recomputes
            tower.rewrite_features(layers, self.rewrite)
            return
        path = self.at or "backbone"
        module = submodule_for(self, net, path)
        if isinstance(module, GridBackbone):
            if module.reads_pairs:
                raise ConfigError(
                    f"MDP compares the features of two images, and {type(module).__name__} reads the pair as one; "
                    "choose another backbone"
                )
            widths = module.depth_widths
            layers = self._depths(len(widths))
            self.mdp = MultiScaleDifferentialPerception(module.width, len(layers), **self.options)
            self.projections = nn.ModuleList(nn.Linear(widths[layer - 1], module.width) for layer in layers[:-1])
            module.rewrite_features(layers, self.rewrite_grids)
            return
        channels = channels_for(self, module, path)
        self._depths(1)
        self.mdp = MultiScaleDifferentialPerception(channels, 1, **self.options)
        module.register_forward_hook(self.rewrite_grid)

    def _depths(self, available: int) -> list[int]:
        """Layers to read of a tower with ``available`` layers."""
        if available < 1:
            raise ConfigError("MDP needs a layer that encodes each image separately, and the vision tower has none")
        layers = list(self.layers or matching_layers(available))
        is_valid = all(isinstance(layer, int) and 1 <= layer <= available for layer in layers)
        if not is_valid or layers[-1] != available or sorted(set(layers)) != layers:
            raise ConfigError(
                f"MDP cannot read the layers {layers}: expected increasing numbers from 1 to {available} that end with "
                f"{available}"
            )
        return layers

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.mdp(features)

    def rewrite(self, features: list[Tensor]) -> Tensor:
        """Features refined by MDP; the last features while the adapter is disabled."""
        return self(features) if self.is_enabled else features[-1]

    def forward_cost(self, num_patches: int, bytes_per_value: int) -> tuple[float, int]:
        heads = next(module.heads for module in self.mdp.modules() if isinstance(module, Attention))
        # the first linear layer is the gate, whose input is both images
        width = next(module.in_features for module in self.mdp.modules() if isinstance(module, nn.Linear)) // 2
        features = [torch.empty(1, 2, num_patches // 2, width, device="meta").requires_grad_() for _ in self.mdp.norms]
        recomputes, self.mdp.recomputes = self.mdp.recomputes, False
        try:
            flops, size = measure_forward(self.mdp, features, heads)
        finally:
            self.mdp.recomputes = recomputes
        return flops, size * bytes_per_value // torch.float32.itemsize

    def rewrite_grids(self, grids: list[Tensor]) -> Tensor:
        """New grid ``(2B, D, h, w)`` from the grids of every depth, before and after images alternating."""
        last = grids[-1]
        if not self.is_enabled:
            return last
        # a frozen backbone runs without gradients, but MDP is trained
        with torch.set_grad_enabled(torch.is_grad_enabled() or self.training):
            size = (last.shape[-2], last.shape[-1])
            pooled = [F.adaptive_avg_pool2d(grid, size).flatten(2).mT for grid in grids]
            inner = [project(cells) for project, cells in zip(self.projections, pooled[:-1], strict=True)]
            pairs = [cells.unflatten(0, (-1, 2)) for cells in (*inner, pooled[-1])]
            return self(pairs).flatten(0, 1).mT.reshape(last.shape)

    def rewrite_grid(self, module: nn.Module, inputs: object, grid: Tensor) -> Tensor:
        """Forward hook on a module whose output is a grid."""
        return self.rewrite_grids([grid])
