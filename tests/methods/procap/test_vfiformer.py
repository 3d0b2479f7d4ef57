"""VFIformer compared with values of its authors' code (shared/parity/vfiformer), and ProCap's frames made with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lightning_idc.methods.procap.flow import warp
from lightning_idc.methods.procap.interpolation import interpolate
from lightning_idc.methods.procap.official.vfiformer import VFIformer, VFIformerMidpoint, vfiformer_state
from lightning_idc.utils.errors import CheckpointError


@pytest.fixture(scope="module")
def parity(shared: Path) -> Path:
    folder = shared / "parity/vfiformer"
    if not folder.is_dir():
        pytest.skip("parity/vfiformer is not in the shared folder")
    return folder


@pytest.fixture(scope="module")
def narrow(parity: Path) -> VFIformer:
    config, state = vfiformer_state(load_file(parity / "weights.safetensors"))
    net = VFIformer(**config)
    net.load_state_dict(state)
    return net.eval()


def official_file(parity: Path, path: Path) -> Path:
    """Save weights as the authors do from two processes: names with ``module.``, and buffers; return the path."""
    state = {f"module.{name}": value for name, value in load_file(parity / "weights.safetensors").items()}
    for name, shape in json.loads((parity / "meta.json").read_text())["buffers"].items():
        state[f"module.{name}"] = torch.zeros(shape)
    torch.save(state, path)
    return path


def close(found: Tensor, true: Tensor, tolerance: float = 1e-4) -> None:
    assert found.shape == true.shape
    assert float((found - true).abs().max()) < tolerance * max(1.0, float(true.abs().max()))


def test_warp_equals_the_official_code(parity: Path) -> None:
    io = load_file(parity / "warp.safetensors")
    close(warp(io["image"], io["flow"]), io["warped"], 1e-5)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("shape", ["square", "wide"])
def test_parts_equal_the_official_code(parity: Path, narrow: VFIformer, shape: str) -> None:
    io = {name.removeprefix(f"{shape}."): value for name, value in load_file(parity / "io.safetensors").items()}
    before, after = io["before"] / 255, io["after"] / 255
    half = narrow.flownet(before, after)
    close(half, io["flow_half"])
    flow, contexts = narrow.refinenet(before, after, half)
    close(flow, io["flow"])
    if shape == "square":
        for scale, context in enumerate(contexts):
            close(context, torch.cat([io[f"context0.{scale}"], io[f"context1.{scale}"]], 1))
        close(narrow.transformer(io["transformer_in"], contexts), io["transformer_out"])
    close(narrow(before, after), io["middle"])


@pytest.mark.slow
@torch.no_grad()
def test_published_size_equals_the_official_code(parity: Path) -> None:
    sizes = json.loads((parity / "names_full_size.json").read_text())
    names = {k: v for k, v in sizes["VFIformer"]["state_dict"].items() if v[2] == "parameter"}
    state = {}
    for i, name in enumerate(sorted(names)):
        shape = names[name][0]
        k = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
        wave = torch.sin(0.7390851 * k + 1.618034 * (i % 97)) * torch.cos(0.0123457 * k + i)
        if len(shape) > 1:
            value = wave * 2.1 / (wave.numel() / shape[0]) ** 0.5
        elif name.endswith("weight"):
            value = 1 + 0.1 * wave if re.search(r"norm\d?\.weight$", name) else 0.25 + 0.05 * wave
        else:
            value = 0.05 * wave
        state[name] = value.float().view(shape)
    config, own = vfiformer_state(state)
    net = VFIformer()  # the published size is the default
    net.load_state_dict(own)
    assert config["flow_widths"] == [240, 150, 90]
    assert sum(p.numel() for p in net.parameters()) == sizes["VFIformer"]["parameters"]
    io, true = load_file(parity / "io.safetensors"), load_file(parity / "full_size_io.safetensors")
    close(net.eval()(io["square.before"][:1] / 255, io["square.after"][:1] / 255), true["middle"])


def test_small_variant_has_the_official_names(parity: Path) -> None:
    sizes = json.loads((parity / "names_full_size.json").read_text())["VFIformerSmall"]
    with torch.device("meta"):
        state = {k: torch.empty(v[0]) for k, v in sizes["state_dict"].items()}
        config, own = vfiformer_state(state)
        net = VFIformer(**config)
    assert (config["window"], config["width"], config["update"]) == (4, 136, False)
    assert {k: v.shape for k, v in own.items()} == {k: v.shape for k, v in net.state_dict().items()}
    assert sum(p.numel() for p in net.parameters()) == sizes["parameters"]


@pytest.mark.slow
@torch.no_grad()
def test_midpoint_from_official_weights(parity: Path, narrow: VFIformer, tmp_path: Path) -> None:
    midpoint = VFIformerMidpoint(str(official_file(parity, tmp_path / "net_220.pth")))
    io = load_file(parity / "io.safetensors")
    before, after = (io[f"square.{side}"].float().flip(1) for side in ("before", "after"))  # our images are RGB
    close(midpoint(before, after), io["square.middle"].flip(1) * 255)
    # images of 44 x 50 pixels equal the centre of black images of 64 x 64
    cut = torch.stack([before, after], 1)[:1, :, :, 10:54, 7:57].byte()
    black = torch.zeros(1, 2, 3, 64, 64)
    black[..., 10:54, 7:57] = cut.float()
    true = midpoint(black[:, 0], black[:, 1])[..., 10:54, 7:57]
    assert torch.equal(interpolate(cut, 1, midpoint)[:, 0], true.round().clamp(0, 255).byte())


def test_rejects_other_files(tmp_path: Path) -> None:
    torch.save({"net.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="not a VFIformer"):
        VFIformerMidpoint(str(tmp_path / "other.pth"))
    with pytest.raises(CheckpointError, match="there is no"):
        VFIformerMidpoint(str(tmp_path / "absent.pth"))
