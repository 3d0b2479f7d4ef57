"""The captioner and the control of benchmarks/studies/mdp.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.studies.mdp_parts import STAGES, FrozenStages, PlainLayers, StagesBackbone, TwoImagesNet
from lightning_idc.methods.m3diff.mdp import MDP
from lightning_idc.models.adapter import Adapter

timm = pytest.importorskip("timm")
IMAGES = torch.randint(0, 256, (2, 2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def net_with(adapter: Adapter | None) -> TwoImagesNet:
    torch.manual_seed(0)
    net = TwoImagesNet(StagesBackbone(width=16, weights=None, cells=2), vocabulary=9, layers=1, heads=4)
    if adapter is not None:
        adapter.install(net)
    return net.eval()


def size(module: torch.nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


@pytest.mark.slow
def test_the_control_is_as_large_as_mdp_and_starts_as_the_same_captioner() -> None:
    mdp = MDP(list(range(1, len(STAGES) + 1)), heads=4)
    plain = net_with(mdp) and PlainLayers(size(mdp), layers=4, heads=4)
    bare, changed = net_with(None), net_with(plain)
    assert abs(size(plain) - size(mdp)) < 0.02 * size(mdp)
    with torch.no_grad():
        torch.testing.assert_close(changed.encode(IMAGES).memory, bare.encode(IMAGES).memory)
        torch.nn.init.eye_(plain.out.weight)
        first = changed.encode(IMAGES).memory
        other = torch.stack([IMAGES[:, 0], IMAGES[:, 0]], 1)
        assert not torch.allclose(first, bare.encode(IMAGES).memory)
        assert not torch.allclose(first[:, :4], changed.encode(other).memory[:, :4])  # it depends on both images
        with plain.disabled():
            torch.testing.assert_close(changed.encode(IMAGES).memory, bare.encode(IMAGES).memory)


@pytest.mark.slow
def test_weights_are_read_by_their_order_and_stay_frozen(tmp_path: Path) -> None:
    donor = FrozenStages(None, cells=2)
    state = timm.create_model("efficientnet_lite0").state_dict()
    own = donor.encoder.model.state_dict()
    renamed = {f"other.{index}": own.get(name, value) for index, (name, value) in enumerate(state.items())}
    torch.save(renamed, tmp_path / "weights.pth")
    stages = FrozenStages(str(tmp_path / "weights.pth"), cells=2).train()
    images = IMAGES.flatten(0, 1)
    torch.testing.assert_close(stages(images), donor(images))
    assert stages(images).shape == (4, sum(stages.widths), 2, 2)
    assert not stages.encoder.model.training and not any(value.requires_grad for value in stages.parameters())
    torch.save(dict(list(renamed.items())[1:]), tmp_path / "short.pth")
    with pytest.raises(SystemExit, match=r"short\.pth does not hold the weights of efficientnet_lite0"):
        FrozenStages(str(tmp_path / "short.pth"), cells=2)
