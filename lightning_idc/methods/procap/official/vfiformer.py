"""VFIformer (Lu et al. 2022), the frame interpolator of the authors' first stage, with the weights of its authors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.methods.procap.flow import Midpoint, warp
from lightning_idc.methods.procap.official.encoder import read_weights, renamed
from lightning_idc.methods.procap.official.vfiformer_windows import FusionTransformer, leaky
from lightning_idc.utils.errors import CheckpointError

DIVISOR = 64
"""Sides are padded to multiples of it: eight pixels of a window at an eighth of the resolution."""

_PARTS = (
    (r"^transformer\.layers(\d)\.(\d)\.residual_group\.", r"transformer.scales.\1.\2."),
    (r"^transformer\.layers(\d)\.", r"transformer.scales.\1."),
    (r"^transformer\.patch_embed\.norm\.", "transformer.norm_in."),
    (r"^transformer\.conv_after_body(\d)\.", r"transformer.down.\1."),
    (r"^transformer\.conv_up(\d)\.", r"transformer.up.\1."),
    (r"bias_table_x$", "bias_table"),
    (r"relative_position_bias_table_y$", "other_table"),
)


def _convs(kernel: int, *widths: int, stride: int = 1, open_end: bool = False) -> nn.Sequential:
    """Convolutions, each but an open end followed by a PReLU."""
    steps: list[nn.Module] = []
    for start, end in pairwise(widths):
        steps += [nn.Conv2d(start, end, kernel, stride, kernel // 2), nn.PReLU(end)]
    return nn.Sequential(*steps[: len(steps) - open_end])


def _resized(x: Tensor, scale: float) -> Tensor:
    return F.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=False)


def _flow_at(flow: Tensor, scale: float) -> Tensor:
    """Flow for images of another scale: its arrows grow with them."""
    return _resized(flow, scale) * scale


class FlowBlock(nn.Module):
    """Flow from the middle to both ends, at half the resolution of what comes in.

    Args:
        channels: of the input.
        width: of the convolutions.
        scale: by which the input is reduced first.
    """

    def __init__(self, channels: int, width: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.conv0 = nn.Sequential(_convs(3, channels, width // 2, stride=2), _convs(3, width // 2, width, stride=2))
        self.convblock = nn.Sequential(*(_convs(3, width, width) for _ in range(8)))
        self.conv1 = nn.ConvTranspose2d(width, 4, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv0(_resized(x, 1 / self.scale))
        return _resized(self.conv1(self.convblock(x) + x), self.scale)


class FlowNet(nn.Module):
    """Flow from coarse to fine, each step on images that the step before has warped.

    Args:
        widths: widths of the three blocks.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.block0, self.block1, self.block2 = (
            FlowBlock(6 if index == 0 else 10, width, 4 // 2**index) for index, width in enumerate(widths)
        )

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """``(N, 4, H / 2, W / 2)``: x and y to the before image, x and y to the after image."""
        flow: Tensor = self.block0(torch.cat([before, after], 1))
        for block in (self.block1, self.block2):
            full = _flow_at(flow, 2)
            flow = flow + block(torch.cat([warp(before, full[:, :2]), warp(after, full[:, 2:]), full], 1))
        return flow


class FlowUpdate(nn.Module):
    """Corrects both flows by the correlation of features with those around their counterpart.

    Args:
        width: width of the features.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.occl_convs = nn.Sequential(*_convs(1, 2 * width, width, width, 1, open_end=True), nn.Sigmoid())
        self.corr_convs = _convs(1, 9, width, width)
        self.flow_convs = _convs(3, 2, width, width)
        self.motion_convs = _convs(3, 2 * width, width)
        self.gru = _convs(3, 3 * width + 2, width, width)
        self.flow_head = _convs(3, width, width, 2, open_end=True)

    def forward(self, before: Tensor, after: Tensor, flow: Tensor) -> Tensor:
        flows = flow.split(2, 1)
        around = [
            warp(F.unfold(x, 3, padding=1).unflatten(-1, x.shape[2:]), image_flow).unflatten(1, (-1, 9))
            for x, image_flow in zip((before, after), flows, strict=True)
        ]
        centres = [x[:, :, 4] for x in around]
        occlusion = self.occl_convs(torch.cat(centres, 1))
        blended = centres[0] * occlusion + centres[1] * (1 - occlusion)
        updated = []
        for image_flow, neighbours, middle in zip(flows, around, centres, strict=True):
            likeness = (_unit(blended)[:, :, None] * _unit(neighbours)).sum(1)
            motion = self.motion_convs(torch.cat([self.corr_convs(likeness), self.flow_convs(image_flow)], 1))
            updated.append(image_flow + self.flow_head(self.gru(torch.cat([blended, middle, motion, image_flow], 1))))
        return torch.cat(updated, 1)


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(1, keepdim=True) + 1e-12).sqrt()


class Features(nn.Module):
    """Two convolutions of a scale.

    Args:
        start: channels of the input.
        width: of the output.
        stride: of the first convolution.
    """

    def __init__(self, start: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = _convs(3, start, width, stride=stride), _convs(3, width, width)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.conv2(self.conv1(x))
        return features


class FlowRefinement(nn.Module):
    """Features of both images at four scales, and the flow, corrected at each of them or left as it is.

    Args:
        width: of the features at full resolution.
        update: whether the flow is corrected; VFIformerSmall's is not.
    """

    def __init__(self, width: int, update: bool) -> None:
        super().__init__()
        widths = [3, *(width * 2**scale for scale in range(4))]
        self.conv1, self.conv2, self.conv3, self.conv4 = (
            Features(widths[scale], widths[scale + 1], 2 if scale else 1) for scale in range(4)
        )
        self.update = update
        if update:
            self.rf_block1, self.rf_block2, self.rf_block3, self.rf_block4 = map(FlowUpdate, widths[1:])

    def forward(self, before: Tensor, after: Tensor, flow: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Flow at full resolution, and at each scale the warped features of both images side by side."""
        x = torch.cat([before, after])
        scales = [x := conv(x) for conv in (self.conv1, self.conv2, self.conv3, self.conv4)]
        if self.update:
            flow = self.rf_block4(*scales[-1].chunk(2), _flow_at(flow, 0.25))
            for block, features in zip((self.rf_block3, self.rf_block2, self.rf_block1), scales[2::-1], strict=True):
                flow = block(*features.chunk(2), _flow_at(flow, 2))
        else:
            flow = _flow_at(flow, 2)
        contexts, scaled_flow = [], flow
        for features in scales:
            sides = zip(features.chunk(2), scaled_flow.split(2, 1), strict=True)
            contexts.append(torch.cat([warp(side, arrows) for side, arrows in sides], 1))
            scaled_flow = _flow_at(scaled_flow, 0.5)
        return flow, contexts


class VFIformer(nn.Module):
    """Frame halfway between two (Lu et al. 2022, "Video Frame Interpolation with Transformer"); the published sizes.

    Args:
        context: channels of the features at full resolution.
        width: of the transformer.
        window: pixels of a window's side.
        flow_widths: of the three blocks that find the flow.
        update: whether the flow is corrected at each scale; VFIformerSmall's is not.
    """

    def __init__(
        self,
        context: int = 24,
        width: int = 160,
        window: int = 8,
        flow_widths: Sequence[int] = (240, 150, 90),
        update: bool = True,
    ) -> None:
        super().__init__()
        self.flownet = FlowNet(flow_widths)
        self.refinenet = FlowRefinement(context, update)
        self.fuse_block = nn.Sequential(
            nn.Conv2d(12, 2 * context, 3, padding=1),
            leaky(),
            nn.Conv2d(2 * context, 2 * context, 3, padding=1),
            leaky(),
        )
        self.transformer = FusionTransformer(context, width, window)

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """``(N, 3, H, W)`` from two such, values 0 to 1, blue first; sides are multiples of 64."""
        flow, contexts = self.refinenet(before, after, self.flownet(before, after))
        warped = [warp(before, flow[:, :2]), warp(after, flow[:, 2:])]
        fused = self.transformer(self.fuse_block(torch.cat([before, after, *warped], 1)), contexts).sigmoid()
        residual, mask = 2 * fused[:, :3] - 1, fused[:, 3:]
        return (warped[0] * mask + warped[1] * (1 - mask) + residual).clamp(0, 1)


def vfiformer_state(state: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Sizes and weights of a :class:`VFIformer` from those of its authors, VFIformerSmall's included.

    Args:
        state: by the official names; buffers that follow from the sizes are left out.

    Raises:
        CheckpointError: the state dict is that of another network.
    """
    tables = [key for key in state if key.endswith("attn.relative_position_bias_table")]
    needed = ["refinenet.conv1.conv1.0.weight", "transformer.conv_first.weight"]
    needed += [f"flownet.block{index}.conv1.weight" for index in range(3)]
    missing = [name for name in needed if name not in state] or ([] if tables else ["a relative_position_bias_table"])
    if missing:
        raise CheckpointError(f"this is not a VFIformer: it has no {missing[0]}; expected its authors' net_220.pth")
    config = {
        "context": len(state[needed[0]]),
        "width": len(state[needed[1]]),
        "window": (round(len(state[tables[0]]) ** 0.5) + 1) // 2,
        "flow_widths": [len(state[name]) for name in needed[2:]],
        "update": any(key.startswith("refinenet.rf_block") for key in state),
    }
    followed = re.compile(r"\.(attn_mask(_[xy])?|relative_position_index)$")
    return config, {renamed(key, _PARTS): value for key, value in state.items() if not followed.search(key)}


class VFIformerMidpoint(Midpoint):
    """The paper's interpolator, with the file of its authors (dvlab-research/VFIformer, MIT), as it is or small.

    Args:
        weights: ``net_220.pth``.

    Raises:
        CheckpointError: there is no such file, or it holds another network.
    """

    def __init__(self, weights: str) -> None:
        super().__init__()
        config, state = vfiformer_state(read_weights(weights))
        self.net = VFIformer(**config)
        try:
            self.net.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"{weights!r} is not a VFIformer that can be loaded: {error}") from error
        self.net.requires_grad_(False).eval()

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        height, width = before.shape[-2:]
        # as in its demo: zero padding, the odd pixel below and to the right, and channels in BGR order
        top_pad, left_pad = ((-side % DIVISOR) // 2 for side in (height, width))
        padding = (left_pad, -width % DIVISOR - left_pad, top_pad, -height % DIVISOR - top_pad)
        frame = self.net(*(F.pad(images, padding).flip(1) / 255 for images in (before, after)))
        return frame[..., top_pad : top_pad + height, left_pad : left_pad + width].flip(1) * 255
