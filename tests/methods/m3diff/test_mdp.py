"""MDP against the paper's equations written out in float64, and as an adapter on a grid captioner."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from lightning_idc.images.types import PairSample
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.m3diff.mdp import (
    MDP,
    DifferentialPerception,
    MultiScaleDifferentialPerception,
    matching_layers,
)
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.nn.vocabulary import SPECIALS
from lightning_idc.utils.errors import ConfigError


def features(scales: int = 3, width: int = 12, num_patches: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, num_patches, width, generator=generator) for _ in range(scales)]


def test_difference_equals_eq_1_to_3() -> None:
    perception = DifferentialPerception(12, 3, 24, 1).double()
    images = features()[0].double()
    first, second = images[:, 0], images[:, 1]
    w_m, w_p = perception.gate.weight, perception.combine.weight
    gates = [torch.sigmoid(torch.cat(order, -1) @ w_m.T) for order in ([first, second], [second, first])]
    one, two = first * gates[0], second * gates[1]
    expected = torch.cat([one, two, one - two], -1) @ w_p.T
    torch.testing.assert_close(perception.difference(images), expected, rtol=1e-12, atol=1e-12)


def _attend(attention: nn.Module, query: Tensor, source: Tensor) -> Tensor:
    """Compute attention one head at a time, with an explicit softmax."""
    heads = attention.heads
    key, value = attention.key_value(source).chunk(2, -1)
    parts = []
    for q, k, v in zip(*(x.chunk(heads, -1) for x in (attention.query(query), key, value)), strict=True):
        parts.append(torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v)
    return attention.out(torch.cat(parts, -1))


def test_forward_equals_eq_4_to_8_with_residuals_and_norms() -> None:
    torch.manual_seed(1)
    mdp = MultiScaleDifferentialPerception(12, 3, heads=3, shared=False, stacked=2).double()
    nn.init.normal_(mdp.out.weight)
    inputs = [x.double() for x in features()]
    total = [torch.zeros_like(inputs[0][:, 0])] * 2
    for norm, perception, images in zip(mdp.norms, mdp.scales, inputs, strict=True):
        images = norm(images)
        delta = start = perception.difference(images)
        one, two = images[:, 0], images[:, 1]
        for layer in perception.layers:
            n = layer.norm_delta(delta)
            delta = delta + _attend(layer.self_attn, n, n)
            a, b, q = layer.norm_images(one), layer.norm_images(two), layer.norm_query(delta)
            delta = delta + _attend(layer.cross_attn, q, torch.cat([a, b, q], 1))
            delta = delta + layer.mlp(layer.norm_feed(delta))
            refined = layer.norm_refined(delta)
            one = one + _attend(layer.image_cross_attn, a, torch.cat([a, refined], 1))
            two = two + _attend(layer.image_cross_attn, b, torch.cat([b, refined], 1))
        score = torch.sigmoid(perception.score(torch.cat([one, two, start], -1).mean(1)))[:, None]
        total = [total[0] + score * one, total[1] + score * two]
    torch.testing.assert_close(mdp.fuse(inputs), torch.stack(total, 1), rtol=1e-10, atol=1e-10)
    expected = inputs[-1] + mdp.out(torch.stack(total, 1))
    torch.testing.assert_close(mdp(inputs), expected, rtol=1e-10, atol=1e-10)


def test_as_printed_equals_eq_4_to_8() -> None:
    torch.manual_seed(1)
    mdp = MultiScaleDifferentialPerception(12, 3, heads=3, stacked=2, as_printed=True).double()
    inputs = [x.double() for x in features()]
    perception = mdp.scales[0]
    total = [torch.zeros_like(inputs[0][:, 0])] * 2
    for images in inputs:
        delta = start = perception.difference(images)
        one, two = images[:, 0], images[:, 1]
        for layer in perception.layers:
            attended = _attend(layer.self_attn, delta, delta)
            delta = layer.mlp(_attend(layer.cross_attn, attended, torch.cat([one, two, attended], 1)))
            one, two = (_attend(layer.image_cross_attn, x, torch.cat([x, delta], 1)) for x in (one, two))
        score = torch.sigmoid(perception.score(torch.cat([one, two, start], -1).mean(1)))[:, None]
        total = [total[0] + score * one, total[1] + score * two]
    torch.testing.assert_close(mdp(inputs), torch.stack(total, 1), rtol=1e-10, atol=1e-10)
    mdp(inputs).square().sum().backward()
    assert [name for name, p in mdp.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []


@pytest.mark.parametrize("options", [{}, {"shared": False}, {"as_printed": True}])
def test_activation_checkpointing_has_equal_gradients(options: dict[str, bool]) -> None:
    def run(recomputes: bool) -> tuple[list[Tensor], int, int]:
        """Return the gradients, the number of calls of the scales, and the number of saved values."""
        torch.manual_seed(2)
        mdp = MultiScaleDifferentialPerception(12, 3, **options)
        for parameter in mdp.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape)
        mdp.recomputes = recomputes
        calls, saved = [], []
        for perception in mdp.scales:
            perception.register_forward_pre_hook(lambda *_: calls.append(1))
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
            loss = mdp(features()).square().sum()
        loss.backward()
        return [p.grad for p in mdp.parameters() if p.grad is not None], len(calls), sum(saved)

    gradients, num_calls, num_saved = run(False)
    recomputed_gradients, recomputed_calls, recomputed_saved = run(True)
    assert recomputed_calls == 2 * num_calls == 6 and recomputed_saved < num_saved / 5
    assert len(gradients) == len(recomputed_gradients)
    assert all(map(torch.equal, gradients, recomputed_gradients))


def test_gates_are_symmetric_in_the_images() -> None:
    perception = DifferentialPerception(12, 3, 24, 1)
    images = features()[0]
    perception.combine.weight.data = torch.cat([torch.eye(12), torch.eye(12), torch.zeros(12, 12)], 1)
    torch.testing.assert_close(perception.difference(images), perception.difference(images.flip(1)))


@pytest.mark.parametrize("options", [{}, {"shared": False}, {"softmax": True}])
def test_untrained_mdp_is_the_identity_and_all_parameters_learn(options: dict[str, bool]) -> None:
    mdp = MultiScaleDifferentialPerception(12, 3, **options)
    inputs = features()
    assert torch.equal(mdp(inputs), inputs[-1])
    nn.init.normal_(mdp.out.weight)
    mdp(inputs).square().sum().backward()
    assert [name for name, p in mdp.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []


def test_softmax_scores_sum_to_one() -> None:
    mdp = MultiScaleDifferentialPerception(12, 3, softmax=True, stacked=0)
    inputs = [features(1)[0]] * 3
    for norm in mdp.norms:
        norm.requires_grad_(False)
    torch.testing.assert_close(mdp.fuse(inputs), mdp.norms[0](inputs[0]))


def test_matching_layers() -> None:
    assert matching_layers(26) == [17, 20, 23, 26]
    assert matching_layers(32) == [21, 25, 28, 32]
    assert matching_layers(2) == [1, 2]


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ConfigError, match="choose a divisor"):
        MultiScaleDifferentialPerception(12, 1, heads=5)


def test_rejects_invalid_arguments() -> None:
    for arguments, message in (
        (dict(scales=0), "scales is 0"),
        (dict(scales=2, stacked=-1), "stacked is -1"),
        (dict(scales=1, softmax=True), "softmax is true with one depth"),
    ):
        with pytest.raises(ConfigError, match=message):
            MultiScaleDifferentialPerception(12, **arguments)  # type: ignore[arg-type]


# ---- on a grid captioner ---------------------------------------------------------------------------------


def grid_captioner(**options: object) -> PairTransformer:
    torch.manual_seed(0)
    model = PairTransformer(vocabulary=[*SPECIALS, "it", "moved"], width=16, heads=2, image_size=(32, 32), **options)  # type: ignore[arg-type]
    model.build()
    return model


def pair() -> PairSample:
    images = torch.randint(0, 255, (2, 3, 32, 32), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    return PairSample("a", images[0], images[1], ["it moved"])


@pytest.mark.parametrize("frozen", [False, True])
def test_mdp_on_a_grid_captioner(frozen: bool) -> None:
    model = grid_captioner(freeze_backbone=frozen).eval()
    batch = model.collate([pair(), pair()])
    before = model.encode(batch).memory
    model.add_adapter("mdp", MDP)
    assert torch.equal(model.encode(batch).memory, before)
    nn.init.normal_(model.adapters["mdp"].mdp.out.weight)
    changed = model.encode(batch).memory
    assert not torch.allclose(changed, before)
    with model.disable_adapters():
        assert torch.equal(model.encode(batch).memory, before)
    model.train()
    model.caption_loss(model.encode(batch), batch).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.adapters.parameters())


@pytest.mark.parametrize("frozen", [False, True])
def test_mdp_learns_in_preference_optimisation(frozen: bool) -> None:
    model = grid_captioner(freeze_backbone=frozen)
    model.add_adapter("mdp", MDP)
    nn.init.normal_(model.adapters["mdp"].mdp.out.weight)
    PreferenceOptimization().on_train_start(Trainer(logger=False, barebones=True), model)
    batch = model.collate([pair(), pair()])
    model.caption_loss(model.encode(batch), batch).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.adapters.parameters())
    with torch.no_grad():
        assert not model.encode(batch).memory.requires_grad


@pytest.mark.parametrize(
    ("backbone", "layers", "widths"),
    [("cnn", None, [96]), ("cnn", [1, 2, 4], [32, 64]), ("residual", [2, 3, 7], [64, 64])],
)
def test_a_grid_backbone_is_read_at_several_depths(
    backbone: str, layers: list[int] | None, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle runs the layers one by one, pools each depth to the grid of the last one and applies Eq. 1 to 8."""
    model = grid_captioner(backbone=backbone).eval()
    model.add_adapter("mdp", MDP, layers=layers)
    mdp: MDP = model.adapters["mdp"]  # type: ignore[assignment]
    nn.init.normal_(mdp.mdp.out.weight)
    assert [linear.in_features for linear in mdp.projections] == widths
    cnn = model.built_net.backbone
    images = torch.stack([pair().before, pair().after])
    x, outputs = cnn.normalised(images), []
    for layer in cnn.layers:
        x = layer(x)
        if isinstance(layer, nn.ReLU) or type(layer).__name__ == "Residual":
            outputs.append(x.clone())
    depths = [outputs[depth - 1] for depth in layers or [3, 4]]
    cells = [nn.functional.adaptive_avg_pool2d(maps, x.shape[-2:]).flatten(2).mT for maps in depths]
    cells = [*(linear(part) for linear, part in zip(mdp.projections, cells[:-1], strict=True)), cells[-1]]
    expected = mdp.mdp([part[None] for part in cells])[0].mT.reshape(x.shape)
    torch.testing.assert_close(cnn(images), expected, rtol=1e-4, atol=1e-4)
    with cnn.each_image_once():
        torch.testing.assert_close(cnn(images.repeat(2, 1, 1, 1)), expected.repeat(2, 1, 1, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [["nonsense"], [1, 2], [2, 1, 4], [0, 4], [4, 5]])
def test_layers_that_a_grid_backbone_does_not_have_are_refused(layers: list[Any]) -> None:
    with pytest.raises(ConfigError, match="increasing numbers from 1 to 4 that end with 4"):
        grid_captioner().add_adapter("mdp", MDP, layers=layers)


def test_a_backbone_that_reads_the_pair_as_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="DifferenceCNN reads the pair as one"):
        grid_captioner(backbone="difference").add_adapter("mdp", MDP)


@pytest.mark.slow
def test_a_timm_backbone_is_read_at_several_depths() -> None:
    model = grid_captioner(backbone="resnet10t").eval()
    model.add_adapter("mdp", MDP, layers=[2, 4, 5])
    mdp: MDP = model.adapters["mdp"]  # type: ignore[assignment]
    assert [linear.in_features for linear in mdp.projections] == [64, 256]
    batch = model.collate([pair()])
    nn.init.normal_(mdp.mdp.out.weight)
    changed = model.encode(batch).memory
    with model.disable_adapters():
        assert not torch.allclose(model.encode(batch).memory, changed)


def test_rejects_unknown_modules() -> None:
    with pytest.raises(ConfigError, match="set `at` to one of backbone"):
        grid_captioner().add_adapter("mdp", MDP, at="tower")
    with pytest.raises(ConfigError, match="number of channels"):
        grid_captioner().add_adapter("mdp", MDP, at="fuse")
