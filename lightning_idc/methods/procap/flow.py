"""Midpoint frames of two images (ProCap, section 3.1.1):

1. :meth:`FlowMidpoint.flow` estimates the optical flow in both directions,
2. :func:`warp` moves both images halfway along it, and
3. :func:`blend` combines them by a soft mask.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.checkpoints.reading import read_checkpoint
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import CheckpointError, ConfigError


class Midpoint(nn.Module, ABC):
    """Base class: computes the frame halfway between two images."""

    @abstractmethod
    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """Frames ``(N, 3, H, W)`` halfway between ``before`` and ``after``; all are float with values from 0 to 255."""


class CrossFade(Midpoint):
    """Mean of both images, without motion: the baseline of interpolation."""

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        return (before + after) / 2


class FlowMidpoint(Midpoint):
    """Warps both images halfway along the optical flow and blends them; subclasses implement :meth:`flow`."""

    @abstractmethod
    def flow(self, start: Tensor, end: Tensor) -> Tensor:
        """Optical flow ``(N, 2, H, W)`` in pixels, x and y: a point at p in ``start`` is at p + flow in ``end``."""

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        return blend(before, after, self.flow(before, after), self.flow(after, before))


class DISMidpoint(FlowMidpoint):
    """Optical flow by dense inverse search (Kroeger et al. 2016), from OpenCV; needs no weights.

    Args:
        preset: trade-off of speed and accuracy.

    Raises:
        ConfigError: OpenCV is not installed.
    """

    def __init__(self, preset: Literal["ultrafast", "fast", "medium"] = "medium") -> None:
        super().__init__()
        if importlib.util.find_spec("cv2") is None:
            raise ConfigError("DISMidpoint needs OpenCV; install opencv-python-headless, or use CrossFade")
        self.preset = preset

    def extra_repr(self) -> str:
        return f"preset={self.preset}"

    def flow(self, start: Tensor, end: Tensor) -> Tensor:
        import cv2

        search = cv2.DISOpticalFlow.create(getattr(cv2, f"DISOPTICAL_FLOW_PRESET_{self.preset.upper()}"))
        first, second = (_gray(images) for images in (start, end))
        flows = [search.calc(a, b, None) for a, b in zip(first, second, strict=True)]  # type: ignore[call-overload]
        return torch.from_numpy(np.stack(flows)).permute(0, 3, 1, 2).to(start)


class RAFTMidpoint(FlowMidpoint):
    """Optical flow by RAFT (Teed and Deng 2020), from torchvision, with weights from a file.

    Args:
        weights: state dict of torchvision's ``raft_small`` or ``raft_large``.
        size: size of the network.
        updates: number of refinement steps.

    Raises:
        CheckpointError: the file is missing, or its weights are of another network.
    """

    def __init__(self, weights: str, size: Literal["small", "large"] = "large", updates: PositiveInt = 12) -> None:
        check_arguments(RAFTMidpoint.__init__, locals())
        super().__init__()
        from torchvision.models import optical_flow

        if not Path(weights).is_file():
            raise CheckpointError(
                f"there are no RAFT weights at {weights!r}; download torchvision's state dict of raft_{size}, or use "
                "DISMidpoint"
            )
        self.net = {"small": optical_flow.raft_small, "large": optical_flow.raft_large}[size](weights=None)
        state = read_checkpoint(weights)
        try:
            self.net.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"{weights!r} does not hold the weights of raft_{size}: {error}") from error
        self.net.requires_grad_(False).eval()
        self.updates = updates

    def extra_repr(self) -> str:
        return f"updates={self.updates}"

    def flow(self, start: Tensor, end: Tensor) -> Tensor:
        height, width = start.shape[-2:]
        # the correlation pyramid needs at least 16 cells of 8 pixels in each direction
        size = tuple(max(128, 8 * round(side / 8)) for side in (height, width))
        scaled = [F.interpolate(images, size, mode="bilinear") / 127.5 - 1 for images in (start, end)]
        flow = self.net(*scaled, num_flow_updates=self.updates)[-1]
        resized = F.interpolate(flow, (height, width), mode="bilinear")
        return resized * resized.new_tensor([width / size[1], height / size[0]]).view(2, 1, 1)


def blend(before: Tensor, after: Tensor, forward_flow: Tensor, backward_flow: Tensor) -> Tensor:
    """Frame halfway between two images, from the optical flow between them.

    I = H * warped before + (1 - H) * warped after (ProCap, section 3.1.1). The flows from the middle to both ends are
    those of Jiang et al. 2018, Eq. 4, at t = 1/2. The mask H weighs each image by the agreement of forward and backward
    flow at the pixel, since a flow that does not lead back is wrong or ends at another object. The residual image of
    the paper is omitted, since a trained network predicts it.

    Args:
        before: ``(N, 3, H, W)``.
        after: ``(N, 3, H, W)``.
        forward_flow: flow from before to after, ``(N, 2, H, W)`` in pixels.
        backward_flow: flow from after to before, ``(N, 2, H, W)`` in pixels.
    """
    to_before = (backward_flow - forward_flow) / 4
    confidence_before = warp(torch.exp(-round_trip(forward_flow, backward_flow)), to_before)
    confidence_after = warp(torch.exp(-round_trip(backward_flow, forward_flow)), -to_before)
    mask = (confidence_before + 1e-6) / (confidence_before + confidence_after + 2e-6)
    return mask * warp(before, to_before) + (1 - mask) * warp(after, -to_before)


def round_trip(forward_flow: Tensor, backward_flow: Tensor) -> Tensor:
    """Forward-backward error of two flows, ``(N, 1, H, W)`` in pixels."""
    return (forward_flow + warp(backward_flow, forward_flow)).norm(dim=1, keepdim=True)


def warp(images: Tensor, flow: Tensor) -> Tensor:
    """Sample images ``(N, C, H, W)`` at p + flow for each pixel p; border pixels are repeated outside."""
    height, width = images.shape[-2:]
    y, x = torch.meshgrid(
        torch.arange(height, device=flow.device), torch.arange(width, device=flow.device), indexing="ij"
    )
    positions = torch.stack([x, y]).to(flow) + flow
    scale = flow.new_tensor([max(width - 1, 1), max(height - 1, 1)]).view(2, 1, 1)
    grid = (2 * positions / scale - 1).movedim(1, -1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=True)


def _gray(images: Tensor) -> np.ndarray:
    weights = images.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    return (images * weights).sum(1).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
