"""Stateful encoder. Oracles: its layer in float64 loops, and features before and after one image is changed."""

from __future__ import annotations

import pytest
import torch
from helpers.plugins import GridCaptioner
from helpers.vlm_tiny import ARCHITECTURES, captioner, samples
from torch import Tensor

from lightning_idc.images.types import PairSample
from lightning_idc.methods.m3diff.mdp import MDP
from lightning_idc.methods.stateful_encoder.adapter import StatefulEncoder
from lightning_idc.methods.stateful_encoder.net import CrossImageLayer, StatefulEncoderOptions
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.utils.errors import ConfigError

TOWERS = [name for name in ARCHITECTURES if name != "llava"]  # this family joins both images


def perturb(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("control", [False, True])
def test_layer_equals_equations(control: bool) -> None:
    layer = CrossImageLayer(12, StatefulEncoderOptions(heads=3, hidden=20, control=control)).double()
    images = torch.randn(2, 2, 5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(layer(images), images), "untrained, it changes nothing"
    perturb(layer)
    w = dict(layer.named_parameters())

    def norm(x: Tensor, name: str) -> Tensor:
        x = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    for b in range(2):
        first, second = images[b]
        source = second if control else first
        keys, values = zip(
            *(linear(norm(x, "norm_previous"), "attention.key_value").chunk(2) for x in source), strict=True
        )
        for patch, x in enumerate(second):
            query, heads = linear(norm(x, "norm_query"), "attention.query"), []
            for h in range(0, 12, 4):
                logits = torch.stack([query[h : h + 4] @ key[h : h + 4] / 2 for key in keys])
                heads.append(sum(p * v[h : h + 4] for p, v in zip(logits.softmax(0), values, strict=True)))
            y = x + linear(torch.cat(heads), "attention.out")
            hidden = linear(norm(y, "norm_feed"), "feed.0")
            gelu = 0.5 * hidden * (1 + torch.erf(hidden / 2**0.5))
            torch.testing.assert_close(layer(images)[b, 1, patch], y + linear(gelu, "feed.2"), rtol=1e-9, atol=1e-9)
        assert torch.equal(layer(images)[b, 0], first)


def memory(model: VLMCaptioner, pairs: list[PairSample]) -> tuple[Tensor, Tensor]:
    """Return the features of the first and of the second image of each pair."""
    with torch.no_grad():
        first, second = model.eval().encode(model.collate(pairs)).memory.chunk(2, 1)
    return first, second


def mirror_image(pairs: list[PairSample], side: str) -> list[PairSample]:
    """Copy the pairs with one image mirrored."""
    return [
        PairSample(p.id, **{"before": p.before, "after": p.after, side: getattr(p, side).flip(-1)}, captions=p.captions)
        for p in pairs
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOWERS)
def test_second_image_depends_on_first_image(kind: str) -> None:
    model = captioner(kind)
    pairs = samples()
    plain = memory(model, pairs)
    model.add_adapter("stateful", StatefulEncoder)
    adapter = model.adapters.installed()["stateful"]
    assert all(torch.equal(a, b) for a, b in zip(memory(model, pairs), plain, strict=True))
    batch = model.collate(pairs)
    perturb(adapter)
    model.caption_loss(model.encode(batch), batch).backward()
    assert [name for name, p in adapter.named_parameters() if p.grad is None or not p.grad.any()] == []
    first, second = memory(model, pairs)
    assert torch.equal(first, plain[0]) and not torch.allclose(second, plain[1], atol=1e-2)
    with model.disable_adapters():
        assert torch.equal(memory(model, pairs)[1], plain[1])
    # features of the first image do not depend on the second one, but those of the second image depend on the first
    assert torch.equal(memory(model, mirror_image(pairs, "after"))[0], first)
    assert not torch.allclose(memory(model, mirror_image(pairs, "before"))[1], second, atol=1e-3)
    adapter.options = StatefulEncoderOptions(control=True)
    for block in adapter.blocks:
        block.options = adapter.options  # type: ignore[assignment]
    torch.testing.assert_close(memory(model, mirror_image(pairs, "before"))[1], memory(model, pairs)[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava_onevision"])
def test_pairs_of_mixed_sizes_equal_single_pairs(kind: str) -> None:
    model = captioner(kind)
    model.add_adapter("stateful", StatefulEncoder, layers=[1, 2])
    perturb(model.adapters)
    pairs = [samples(1, size)[0] for size in (48, 96, 48)]
    batch = model.collate(pairs)
    with torch.no_grad():
        scores = model.score(model.encode(batch), batch.tokens, batch.caption_mask)
        for index, pair in enumerate(pairs):
            alone = model.collate([pair])
            score = model.score(model.encode(alone), alone.tokens, alone.caption_mask)
            torch.testing.assert_close(scores[index], score[0], rtol=1e-3, atol=1e-4)


def test_stateful_encoder_with_mdp() -> None:
    model = captioner("llava_onevision")
    plain = memory(model, samples())
    model.add_adapter("mdp", MDP)
    model.add_adapter("stateful", StatefulEncoder)
    perturb(model.adapters)
    assert not torch.allclose(memory(model, samples())[0], plain[0], atol=1e-2)
    with model.disable_adapters():
        assert all(torch.equal(a, b) for a, b in zip(memory(model, samples()), plain, strict=True))


def test_control_of_mdp_sees_one_image() -> None:
    model = captioner("llava_onevision")
    model.add_adapter("mdp", MDP, control=True)
    perturb(model.adapters)
    sizes = [sum(p.numel() for p in adapter.parameters()) for adapter in model.adapters.installed().values()]
    pairs = samples()
    first, second = memory(model, pairs)
    torch.testing.assert_close(memory(model, mirror_image(pairs, "after"))[0], first)
    torch.testing.assert_close(memory(model, mirror_image(pairs, "before"))[1], second)
    full = captioner("llava_onevision")
    full.add_adapter("mdp", MDP)
    perturb(full.adapters)
    assert sizes == [sum(p.numel() for p in adapter.parameters()) for adapter in full.adapters.installed().values()]
    assert not torch.allclose(memory(full, mirror_image(pairs, "before"))[1], memory(full, pairs)[1], atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("qwen2_vl", {"layers": [2, 1]}, r"layers is \[2, 1\]; expected increasing numbers from 1 to 3"),
        ("qwen2_vl", {"layers": [4]}, "expected increasing numbers from 1 to 3"),
        ("qwen2_vl", {"at": "model"}, "leave `at` out"),
        ("qwen2_vl", {"heads": 5}, "cannot be split among 5 heads"),
        ("llava", {}, "reads the pair as one image"),
        ("grid", {"layers": [1]}, "has a single layer, after 'backbone'"),
        ("grid", {"at": "nowhere"}, "no module 'nowhere'"),
        ("grid", {"at": "cell"}, "has no `width`"),
    ],
)
def test_rejects_options_of_other_networks(kind: str, options: dict[str, object], message: str) -> None:
    model = GridCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>"]) if kind == "grid" else captioner(kind)
    model.build()
    with pytest.raises(ConfigError, match=message):
        model.add_adapter("stateful", StatefulEncoder, **options)


def test_rejects_activation_checkpointing() -> None:
    model = captioner("llava_onevision", activation_checkpointing=True)
    with pytest.raises(ConfigError, match="set activation_checkpointing to false"):
        model.add_adapter("stateful", StatefulEncoder)


def test_forward_cost_counts_all_layers() -> None:
    model = captioner("llava_onevision")
    with torch.device("meta"):
        adapter = StatefulEncoder(hidden=16)
        adapter.install(model.built_net)
    length, width = 30, model.built_net.feature_width
    projections = 2 * length * width * 4 * width  # query, key, value, output
    attention = 2 * 2 * length * length * width
    feed = 2 * 2 * length * width * 16
    flops, size = adapter.forward_cost(2 * length, 2)
    assert flops == len(adapter.blocks) * (projections + attention + feed) and size > 0
