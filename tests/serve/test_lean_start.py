"""Locating the change encodes an unmasked image only once, with an equal result."""

from __future__ import annotations

import pytest
import torch

import lightning_idc
from lightning_idc.models.location import locate


@pytest.mark.slow
def test_where_is_the_same_though_each_image_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    captioner = lightning_idc.load("clevr", device="cpu")
    sample = captioner.input_spec.read(*lightning_idc.sample_pair())
    read: list[int] = []
    captioner.built_net.backbone.layers.register_forward_pre_hook(lambda _, images: read.append(len(images[0])))
    caption = captioner.describe(*lightning_idc.sample_pair()).text
    read.clear()
    once = locate(captioner, sample, caption)
    assert sum(read) <= 0.6 * 2 * 129
    monkeypatch.setattr(captioner, "encode_repeated", captioner.encode)
    read.clear()
    again = locate(captioner, sample, caption)
    assert sum(read) == 2 * 129 and once.boxes == again.boxes and once.peak == again.peak
    torch.testing.assert_close(once.map, again.map, atol=1e-4, rtol=0)
