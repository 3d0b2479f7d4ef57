"""Backbones: shapes, receptive fields, gradients and loading of weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.timm_weights import hub_repository, timm_state
from safetensors.torch import save_file

from lightning_idc.nn.backbones import SmallCNN, TimmGrid, build_backbone, load_backbone
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.utils.errors import CheckpointError, ConfigError, DataError


def noise(height: int, width: int, count: int = 2) -> torch.Tensor:
    return torch.randint(
        0, 256, (count, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def test_small_cnn_parameters_and_grid_sizes() -> None:
    backbone = SmallCNN()
    assert 150_000 < sum(p.numel() for p in backbone.parameters()) < 170_000
    assert backbone(noise(64, 64)).shape == (2, 96, 8, 8)
    assert backbone(noise(96, 136)).shape == (2, 96, 12, 17)


def test_receptive_fields_of_small_and_residual_cnn() -> None:
    """Large receptive fields: occluded objects are recognised by their context, and objects can exceed 31 pixels."""
    for name, receptive_field in (("cnn", 31), ("residual", 87)):
        backbone = build_backbone(name).eval()
        pixels = noise(256, 256, 1).float().requires_grad_()
        backbone.grid(pixels)[0, :, 16, 16].sum().backward()
        rows = pixels.grad.abs().sum((0, 1, 3)).nonzero()  # type: ignore[union-attr]
        assert int(rows.max() - rows.min()) + 1 == receptive_field


def test_residual_cnn_grid_size_and_gradients() -> None:
    backbone = build_backbone("residual", in_channels=4)
    grid = backbone(torch.cat([noise(96, 136), noise(96, 136)[:, :1]], 1))
    assert grid.shape == (2, 96, 12, 17) and sum(p.numel() for p in backbone.parameters()) < 400_000
    grid.square().sum().backward()
    assert [key for key, p in backbone.named_parameters() if p.grad is None] == []


def test_images_are_normalised_by_mean_and_standard_deviation() -> None:
    class Identity(GridBackbone):
        def grid(self, images: torch.Tensor) -> torch.Tensor:
            return images

    backbone = Identity(3, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 1.0))
    pixels = torch.tensor([255, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    torch.testing.assert_close(backbone(pixels).flatten(), torch.tensor([1.0, 3.0, 0.2]))


# tiny models with random weights; the families differ in the layers after the last feature map
@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
@pytest.mark.parametrize("stage", [-1, 1])
def test_timm_feature_maps_and_gradients_of_all_parameters(name: str, stage: int) -> None:
    backbone = TimmGrid(name, stage=stage)
    grid = backbone(noise(96, 64))
    assert grid.shape[:2] == (2, backbone.width) and grid.ndim == 4
    assert grid.shape[2] * 2 == grid.shape[3] * 3
    grid.square().sum().backward()
    assert [key for key, p in backbone.named_parameters() if p.grad is None] == []


def test_timm_models_use_their_own_mean_and_standard_deviation() -> None:
    import timm

    backbone = TimmGrid("test_vit")
    config = timm.create_model("test_vit").pretrained_cfg
    torch.testing.assert_close(backbone.mean.flatten(), 255 * torch.tensor(config["mean"]))
    torch.testing.assert_close(backbone.std.flatten(), 255 * torch.tensor(config["std"]))


def test_unknown_backbone_names_similar_models() -> None:
    names = "'cnn', 'residual', 'difference' or a timm name"
    with pytest.raises(ConfigError, match=rf"timm has no model 'resnet19x'.*{names}"):
        build_backbone("resnet19x")


def test_unavailable_weights_raise_checkpoint_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    def offline(*args: object, **options: object) -> None:
        raise OSError("no connection")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(CheckpointError, match=r"are not available \(no connection\).*pretrained_backbone to false"):
        build_backbone("test_resnet", pretrained=True)


def test_rejects_image_sizes_of_fixed_size_models() -> None:
    with pytest.raises(DataError, match=r"does not take images of 96x64.*image_size"):
        build_backbone("vit_tiny_patch16_224")(noise(96, 64))


def test_load_backbone_is_strict(tmp_path: Path) -> None:
    source, target = SmallCNN(), SmallCNN()
    state = {f"net.backbone.{key}": value for key, value in source.state_dict().items()}
    torch.save({"state_dict": {**state, "net.head.weight": torch.ones(1)}}, tmp_path / "a.ckpt")
    load_backbone(target, tmp_path / "a.ckpt")
    assert all(torch.equal(value, target.state_dict()[key]) for key, value in source.state_dict().items())
    with pytest.raises(CheckpointError, match="holds another backbone"):  # a backbone of another width
        load_backbone(SmallCNN(width=48), tmp_path / "a.ckpt")
    torch.save({"state_dict": {"head.weight": torch.ones(1)}}, tmp_path / "b.ckpt")
    with pytest.raises(CheckpointError, match=r"no weights under 'net\.backbone\.'"):
        load_backbone(target, tmp_path / "b.ckpt")
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_backbone(target, tmp_path / "nowhere.ckpt")


@pytest.mark.parametrize("kind", ["file.safetensors", "file.pth", "folder", "hub id"])
def test_a_timm_backbone_starts_from_timm_weights(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the feature map of the timm model whose state dict, including the classifier, was saved."""
    state, model = timm_state("test_resnet")
    target = tmp_path / kind
    if kind == "hub id":
        target = Path(hub_repository(tmp_path, monkeypatch, state))
    elif kind == "folder":
        target.mkdir()
        save_file(state, target / "model.safetensors")
    elif kind == "file.pth":
        torch.save(state, target)
    else:
        save_file(state, target)
    backbone = TimmGrid("test_resnet").eval()
    load_backbone(backbone, str(target))
    images = noise(64, 64)
    expected = model.eval().forward_features(backbone.normalised(images))
    torch.testing.assert_close(backbone(images), expected)


def test_timm_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    state, _ = timm_state("test_resnet")
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks \d+ of the \d+ weights of timm's 'test_convnext'"):
        load_backbone(TimmGrid("test_convnext"), tmp_path / "a.safetensors")
    save_file({**state, next(iter(state)): torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match="weights of another model than 'test_resnet'"):
        load_backbone(TimmGrid("test_resnet"), tmp_path / "b.safetensors")


def test_another_backbone_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"'clevr' holds another backbone \('residual'\)"):
        load_backbone(SmallCNN(), "clevr")
