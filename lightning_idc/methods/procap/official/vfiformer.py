"""VFIformer (Lu et al. 2022), the frame interpolator of ProCap's first stage, with the official weights.

:meth:`VFIformer.forward`:

1. :class:`FlowNet` estimates the flow from the middle to both images, from coarse to fine,
2. :class:`FlowRefinement` corrects it and warps features of both images at four scales,
3. :class:`FusionTransformer` combines warped images and features, and
4. the output is a residual image and a mask that blends the warped images.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.checkpoints.restricted import read_state_dict
from lightning_idc.methods.procap.flow import Midpoint, warp
from lightning_idc.methods.procap.official.encoder import renamed
from lightning_idc.methods.procap.official.vfiformer_windows import FusionTransformer, leaky
from lightning_idc.utils.errors import CheckpointError

DIVISOR = 64
"""Images are padded to multiples of this size, a window of 8 pixels at an eighth of the resolution."""

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
    """Convolutions between ``widths``, each followed by a PReLU; with ``open_end`` the last one is not."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2), nn.PReLU(outputs)]
    return nn.Sequential(*layers[: len(layers) - open_end])


def _resized(x: Tensor, scale: float) -> Tensor:
    return F.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=False)


def _flow_at(flow: Tensor, scale: float) -> Tensor:
    """Flow ``(N, 2 or 4, H, W)`` resized by a factor; its vectors, in pixels, are multiplied by the same factor."""
    return _resized(flow, scale) * scale


class FlowBlock(nn.Module):
    """Estimates the flow from the middle to both ends, at half the resolution of the input.

    Args:
        channels: channels of the input.
        width: channels of the convolutions.
        scale: factor by which the input is reduced first.
    """

    def __init__(self, channels: int, width: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.conv0 = nn.Sequential(_convs(3, channels, width // 2, stride=2), _convs(3, width // 2, width, stride=2))
        self.convblock = nn.Sequential(*(_convs(3, width, width) for _ in range(8)))
        self.conv1 = nn.ConvTranspose2d(width, 4, kernel_size=4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv0(_resized(x, 1 / self.scale))
        return _resized(self.conv1(self.convblock(x) + x), self.scale)


class FlowNet(nn.Module):
    """Estimates the flow from coarse to fine; each block gets the images warped by the flow of the previous one.

    Args:
        widths: channels of the three blocks.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.block0, self.block1, self.block2 = (
            FlowBlock(6 if index == 0 else 10, width, 4 // 2**index) for index, width in enumerate(widths)
        )

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """Flow ``(N, 4, H / 2, W / 2)``: x and y to the before image, x and y to the after image."""
        flow: Tensor = self.block0(torch.cat([before, after], 1))
        for block in (self.block1, self.block2):
            full_flow = _flow_at(flow, 2)  # (N, 4, H, W)
            warped = [warp(before, full_flow[:, :2]), warp(after, full_flow[:, 2:])]
            flow = flow + block(torch.cat([*warped, full_flow], 1))
        return flow


class FlowUpdate(nn.Module):
    """Corrects both flows by the correlation of features with the 3 x 3 features around their counterparts.

    Args:
        width: channels of the features.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        occlusion_widths = (2 * width, width, width, 1)
        self.occl_convs = nn.Sequential(*_convs(1, *occlusion_widths, open_end=True), nn.Sigmoid())
        self.corr_convs = _convs(1, 9, width, width)
        self.flow_convs = _convs(3, 2, width, width)
        self.motion_convs = _convs(3, 2 * width, width)
        self.gru = _convs(3, 3 * width + 2, width, width)
        self.flow_head = _convs(3, width, width, 2, open_end=True)

    def forward(self, before: Tensor, after: Tensor, flow: Tensor) -> Tensor:
        """Corrected flow ``(N, 4, H, W)`` from features ``(N, C, H, W)`` of both images and a flow."""
        flows = flow.split(2, 1)
        # (N, C, 9, H, W): 3 x 3 neighbours of each warped feature
        neighbourhoods = [
            warp(F.unfold(x, 3, padding=1).unflatten(-1, x.shape[2:]), image_flow).unflatten(1, (-1, 9))
            for x, image_flow in zip((before, after), flows, strict=True)
        ]
        centres = [x[:, :, 4] for x in neighbourhoods]
        occlusion = self.occl_convs(torch.cat(centres, 1))
        blended = centres[0] * occlusion + centres[1] * (1 - occlusion)
        updated = []
        for image_flow, neighbours, centre in zip(flows, neighbourhoods, centres, strict=True):
            correlation = (_unit(blended)[:, :, None] * _unit(neighbours)).sum(1)  # (N, 9, H, W)
            motion = self.motion_convs(torch.cat([self.corr_convs(correlation), self.flow_convs(image_flow)], 1))
            updated.append(image_flow + self.flow_head(self.gru(torch.cat([blended, centre, motion, image_flow], 1))))
        return torch.cat(updated, 1)


def _unit(x: Tensor) -> Tensor:
    """Unit vectors along the channels."""
    return x / (x.square().sum(1, keepdim=True) + 1e-12).sqrt()


class Features(nn.Module):
    """Two convolutions that compute the features of one scale.

    Args:
        start: channels of the input.
        width: channels of the output.
        stride: stride of the first convolution.
    """

    def __init__(self, start: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = _convs(3, start, width, stride=stride), _convs(3, width, width)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.conv2(self.conv1(x))
        return features


class FlowRefinement(nn.Module):
    """Corrects the flow at four scales and warps features of both images.

    Args:
        width: channels of the features at full resolution; doubled at each further scale.
        update: whether the flow is corrected; it is not in VFIformerSmall.
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
        """Flow ``(N, 4, H, W)`` and, for each scale, the warped features of both images, concatenated."""
        x = torch.cat([before, after])  # (2N, 3, H, W)
        scales = [x := conv(x) for conv in (self.conv1, self.conv2, self.conv3, self.conv4)]
        if self.update:
            flow = self.rf_block4(*scales[-1].chunk(2), _flow_at(flow, 0.25))
            for block, features in zip((self.rf_block3, self.rf_block2, self.rf_block1), scales[2::-1], strict=True):
                flow = block(*features.chunk(2), _flow_at(flow, 2))
        else:
            flow = _flow_at(flow, 2)
        contexts, scaled_flow = [], flow
        for features in scales:
            image_flows = zip(features.chunk(2), scaled_flow.split(2, 1), strict=True)
            contexts.append(
                torch.cat([warp(image_features, image_flow) for image_features, image_flow in image_flows], 1)
            )
            scaled_flow = _flow_at(scaled_flow, 0.5)
        return flow, contexts


class VFIformer(nn.Module):
    """Computes the frame halfway between two images (Lu et al. 2022, "Video Frame Interpolation with Transformer").

    The default sizes are the published ones.

    Args:
        context: channels of the features at full resolution.
        width: channels of the transformer.
        window: side of a window in pixels.
        flow_widths: channels of the three blocks of :class:`FlowNet`.
        update: whether the flow is corrected at each scale; it is not in VFIformerSmall.
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
        """Frame ``(N, 3, H, W)`` halfway between two images ``(N, 3, H, W)``.

        Values are from 0 to 1, channels in BGR order, height and width multiples of 64.
        """
        flow, contexts = self.refinenet(before, after, self.flownet(before, after))
        warped = [warp(before, flow[:, :2]), warp(after, flow[:, 2:])]
        fused = self.transformer(self.fuse_block(torch.cat([before, after, *warped], 1)), contexts).sigmoid()
        residual, mask = 2 * fused[:, :3] - 1, fused[:, 3:]
        return (warped[0] * mask + warped[1] * (1 - mask) + residual).clamp(0, 1)


def vfiformer_state(state: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and weights of a :class:`VFIformer` from official weights of VFIformer or VFIformerSmall.

    Args:
        state: state dict with official names. Buffers that follow from the configuration are left out.

    Raises:
        CheckpointError: the state dict is of another network.
    """
    tables = [key for key in state if key.endswith("attn.relative_position_bias_table")]
    required = ["refinenet.conv1.conv1.0.weight", "transformer.conv_first.weight"]
    required += [f"flownet.block{index}.conv1.weight" for index in range(3)]
    missing = [name for name in required if name not in state] or ([] if tables else ["a relative_position_bias_table"])
    if missing:
        raise CheckpointError(f"this is not a VFIformer: it has no {missing[0]}; expected the official net_220.pth")
    config = {
        "context": len(state[required[0]]),
        "width": len(state[required[1]]),
        "window": (round(len(state[tables[0]]) ** 0.5) + 1) // 2,
        "flow_widths": [len(state[name]) for name in required[2:]],
        "update": any(key.startswith("refinenet.rf_block") for key in state),
    }
    buffers = re.compile(r"\.(attn_mask(_[xy])?|relative_position_index)$")
    return config, {renamed(key, _PARTS): value for key, value in state.items() if not buffers.search(key)}


class VFIformerMidpoint(Midpoint):
    """The paper's interpolator: VFIformer or VFIformerSmall with official weights (dvlab-research/VFIformer, MIT).

    Args:
        weights: file of the weights, ``net_220.pth``.

    Raises:
        CheckpointError: the file is missing, or its weights are of another network.
    """

    def __init__(self, weights: str) -> None:
        super().__init__()
        config, state = vfiformer_state(read_state_dict(weights))
        self.net = VFIformer(**config)
        try:
            self.net.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"{weights!r} cannot be loaded as a VFIformer: {error}") from error
        self.net.requires_grad_(False).eval()

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        height, width = before.shape[-2:]
        # as in the official demo: zero padding, the odd pixel at the bottom and the right, channels in BGR order
        top_pad, left_pad = ((-side % DIVISOR) // 2 for side in (height, width))
        padding = (left_pad, -width % DIVISOR - left_pad, top_pad, -height % DIVISOR - top_pad)
        frame = self.net(*(F.pad(images, padding).flip(1) / 255 for images in (before, after)))
        return frame[..., top_pad : top_pad + height, left_pad : left_pad + width].flip(1) * 255
