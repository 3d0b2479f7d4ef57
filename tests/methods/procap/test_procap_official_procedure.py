"""The official variant of the first stage, compared with measurements of the authors' code (research/peers.md, 1.1)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.procap_tiny import QUIET, data, first_stage, prepared, second_stage
from lightning.pytorch import Trainer, seed_everything
from safetensors.torch import load_file
from torch.nn import functional as F

from lightning_idc.cli.convert import convert
from lightning_idc.methods import OfficialProcedureModel
from lightning_idc.methods.procap.losses import discrimination_loss
from lightning_idc.methods.procap.official.bert_adam import BertAdam
from lightning_idc.methods.procap.official.convert import below
from lightning_idc.methods.procap.official.procedure import (
    MASK_RULES,
    LogarithmicWarmup,
    erased_mask,
    outside_mask,
    shifted_frame,
    summed_consistency_loss,
    swapped_halves,
)
from lightning_idc.methods.procap.procedure import ProcedureModel
from lightning_idc.models.loading import load_module
from lightning_idc.nn.image_tokenizer import as_pixels
from lightning_idc.utils.errors import CheckpointError, ConfigError

WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "the", "cube", "moved", "left", "is", "gone"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("procap"))


def dice(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def built(folder: Path, **options: object) -> ProcedureModel:
    seed_everything(1, verbose=False)
    model = first_stage(folder, variant="official", vocabulary=WORDS, dropout=0.0, **options)
    model.build()
    return model.eval()


def batch_of(model: ProcedureModel, folder: Path, captions: list[str]):
    source = data(folder).pairs_of("train")
    samples = [source.load(index) for index in range(len(captions))]
    for index, (sample, caption) in enumerate(zip(samples, captions, strict=True)):
        sample.meta["seed"], sample.captions = 10 + index, [caption]
    return model.collate(samples)


@pytest.mark.slow
def test_official_mask_statistics() -> None:
    generator = dice()
    _, random, block, outside = (rule((300, 14, 14), generator) for rule in MASK_RULES)
    assert float(random.float().mean()) == pytest.approx(0.8, abs=0.01)
    assert all(bool((mask == mask[:1]).all()) for mask in (block, outside)), "the same in all frames"
    assert torch.equal(outside_mask((2, 14, 14), dice(3)), ~erased_mask((2, 14, 14), dice(3)))
    shares = torch.stack([erased_mask((1, 14, 14), generator).float().mean() for _ in range(5000)])
    # measured in the authors' code: mean 0.442, fifth percentile 0.23, 95th 0.73, at least one rectangle
    assert float(shares.mean()) == pytest.approx(0.442, abs=0.01) and float(shares.min()) > 0
    assert float(shares.quantile(0.05)) == pytest.approx(0.23, abs=0.01)
    assert float(shares.quantile(0.95)) == pytest.approx(0.73, abs=0.01)


def test_shifted_frame() -> None:
    frames = torch.full((4, 3, 2, 2), 128, dtype=torch.uint8)
    moved = torch.stack([(shifted_frame(frames, dice(seed)) != frames).any(-1).any(-1) for seed in range(400)])
    channels = moved.sum((1, 2))
    assert bool((moved.any(2).sum(1) <= 1).all())
    assert float((channels == 3).float().mean()) == pytest.approx(0.25, abs=0.07)
    assert int((channels == 2).sum()) == 0


def test_swapped_halves() -> None:
    assert swapped_halves([[1], [1], [1], [1]], []) == [2, 3, 0, 1]
    assert swapped_halves([[1]] * 3, []) == [1, 2, 0]
    assert swapped_halves([[1]], []) == [-1]


def test_losses_of_fully_masked_procedures() -> None:
    none, zero = torch.zeros(2, dtype=torch.bool), torch.zeros(2)
    assert float(summed_consistency_loss(zero, zero, none)) == pytest.approx(2.78, abs=0.01)
    assert float(discrimination_loss(zero, zero, none, none)) == 0
    seen = torch.tensor([True, False])
    right, wrong = torch.tensor([0.3, -1.0]), torch.tensor([0.2, 2.0])
    by_hand = F.binary_cross_entropy_with_logits(right, torch.ones(2), reduction="sum")
    by_hand += F.binary_cross_entropy_with_logits(wrong, torch.zeros(2), reduction="sum")
    assert torch.allclose(summed_consistency_loss(right, wrong, seen), by_hand)


def test_word_slots(folder: Path) -> None:
    net = built(folder).net
    words = torch.tensor([[4, 5, 6, 2, 0], [4, 5, 6, 7, 2]])
    slots = net.slots(words, words != 0)
    empty = len(WORDS) + torch.arange(24)
    assert slots[0].tolist() == [4, 5, 6, *empty[3:].tolist()]
    assert slots[1].tolist() == [4, 5, 6, 7, *empty[4:].tolist()]
    long = torch.full((1, 40), 5)
    assert net.slots(long, long != 0).tolist() == [[5] * 24]
    bare = torch.tensor([[2]])
    assert net.slots(bare, bare != 0)[0].tolist() == empty.tolist()


def test_consistency_token_does_not_attend_to_the_caption(folder: Path) -> None:
    model = built(folder, layers=1)
    one, other = (batch_of(model, folder, [text, text]) for text in ("the cube moved", "the cube is gone left"))
    with torch.no_grad():
        hidden = []
        for batch in (one, other):
            features = model.net.tokenizer_features(one.model_inputs["frames"])
            hidden.append(
                model.net(features, one.model_inputs["masked"], batch.tokens[:, 0, 1:], batch.caption_mask[:, 0, 1:])
            )
    assert torch.equal(hidden[0].consistency, hidden[1].consistency)
    assert not torch.allclose(hidden[0].align, hidden[1].align)


def test_pixel_ranges_of_features_and_ids(folder: Path) -> None:
    model = built(folder)
    batch = batch_of(model, folder, ["the cube moved", "the cube is gone"])
    frames, net = batch.model_inputs["frames"], model.net
    flat = frames.flatten(0, 1)
    with torch.no_grad():
        found = model.encode(batch).extras["targets"]
    assert torch.equal(found.view(-1, 4, 4), net.tokenizer.encode(flat))
    assert torch.equal(net.tokenizer_features(frames).flatten(0, 1), net.tokenizer.features(flat.float() / 255))
    assert not torch.allclose(net.tokenizer_features(frames).flatten(0, 1), net.tokenizer.features(as_pixels(flat)))


def test_official_loss_weights_and_first_caption(folder: Path) -> None:
    assert built(folder).hparams["loss_weights"] == [7.0, 0.5, 0.5]
    model = built(folder, first_caption=True)
    source = data(folder).pairs_of("train")
    for seed in range(4):
        sample = source.load(0)
        sample.meta["seed"], sample.captions = seed, ["the cube moved", "gone", "left"]
        assert model.collate([sample]).tokens[0, 0].tolist() == model.tokenize(["the cube moved"])[0]


@pytest.mark.slow
def test_official_second_stage_loads_the_official_first_stage(folder: Path, tmp_path: Path) -> None:
    seed_everything(1, verbose=False)
    vocabulary = [*WORDS, *(f"w{number}" for number in range(20))]
    model = first_stage(folder, variant="official", vocabulary=vocabulary, optimizer=BertAdam)
    trainer = Trainer(**QUIET, max_epochs=1, enable_checkpointing=False)
    trainer.fit(model, data(folder, train_pairs=9))
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    again = type(model).load_from_checkpoint(tmp_path / "first.ckpt", weights_only=True)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())
    second = second_stage(folder, variant="official", procedure=str(tmp_path / "first.ckpt"), vocabulary=WORDS)
    second.build()
    encoder, first = second.net.encoder, model.net
    assert torch.equal(encoder.layers[0].qkv.weight, first.encoder.layers[0].qkv.weight)
    # the control words are the embeddings of the words 0 to 23, and the alignment token is left out
    assert torch.equal(encoder.control_words, torch.cat([first.words.weight[:24], first.special[1:]]))
    assert torch.equal(encoder.control_positions, torch.cat([first.word_positions, first.special_positions[1:]]))
    with pytest.raises(CheckpointError, match="has the variant 'official'"):
        second_stage(folder, procedure=str(tmp_path / "first.ckpt"), vocabulary=WORDS).build()


@pytest.mark.slow
def test_convert_first_stage(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("open_clip")
    path = shared / "parity" / "procap_stage2" / "weights.safetensors"
    if not path.is_file():
        pytest.skip("the parity fixture procap_stage2 is not in the shared folder")
    state = below(load_file(path), "intermediate_generator.")
    # the fixture belongs to the second stage, whose table has 24 words instead of CLIP's
    state["text_emb.weight"] = torch.randn(49408 + 25, 64, generator=dice())
    torch.save({"weights": state}, tmp_path / "stage1.pt")
    target = tmp_path / "first.ckpt"
    assert convert("procap_stage1", tmp_path / "stage1.pt", out=target, procedures=str(tmp_path)) == 0
    assert "ProcedureModel" in capsys.readouterr().out
    model = load_module(ProcedureModel, target)
    assert type(model) is OfficialProcedureModel
    assert len(model.tokenize(["a cube"])[0]) == 4
    assert torch.equal(model.net.consistency_head[1].weight, state["to_logits_vid.1.weight"])
    frames = torch.randint(0, 256, (1, 4, 3, 224, 224), generator=dice(), dtype=torch.uint8)
    words = torch.tensor([model.tokenize(["a cube"])[0][1:]])
    with torch.no_grad():
        hidden = model.net(
            model.net.tokenizer_features(frames), torch.zeros(1, 784).bool(), words, torch.ones_like(words).bool()
        )
    assert hidden.visual.shape == (1, 784, 64) and bool(torch.isfinite(hidden.align).all())
    del state["text_emb.weight"]
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="is not a first stage"):
        convert("procap_stage1", tmp_path / "other.pt", out=tmp_path / "x.ckpt", procedures="p")


def test_encoder_init_loads_clip_blocks(folder: Path, tmp_path: Path) -> None:
    shapes = {
        "attn.in_proj_weight": (48, 16),
        "attn.in_proj_bias": (48,),
        "attn.out_proj.weight": (16, 16),
        "attn.out_proj.bias": (16,),
        "ln_1.weight": (16,),
        "ln_1.bias": (16,),
        "ln_2.weight": (16,),
        "ln_2.bias": (16,),
        "mlp.c_fc.weight": (64, 16),
        "mlp.c_fc.bias": (64,),
        "mlp.c_proj.weight": (16, 64),
        "mlp.c_proj.bias": (16,),
    }
    state = {
        f"visual.transformer.resblocks.{layer}.{name}": torch.randn(shape, generator=dice(layer))
        for layer in range(3)
        for name, shape in shapes.items()
    }
    torch.save(state, tmp_path / "clip.pt")
    model = built(folder, encoder_init=str(tmp_path / "clip.pt"))
    for layer in range(2):
        prefix = f"visual.transformer.resblocks.{layer}"
        assert torch.equal(model.net.encoder.layers[layer].qkv.weight, state[f"{prefix}.attn.in_proj_weight"])
        assert torch.equal(model.net.encoder.layers[layer].feed[2].bias, state[f"{prefix}.mlp.c_proj.bias"])
    assert "encoder_init" not in model.hparams
    with pytest.raises(CheckpointError, match="at least 4 visual blocks"):
        built(folder, encoder_init=str(tmp_path / "clip.pt"), layers=4)
    with pytest.raises(CheckpointError, match="another width"):
        built(folder, encoder_init=str(tmp_path / "clip.pt"), width=32)


def test_encoder_init_reads_torchscript_clip(folder: Path, shared: Path) -> None:
    archive = shared / "parity" / "clip_torchscript" / "archive.pt"
    if not archive.is_file():
        pytest.skip("parity/clip_torchscript is not in the shared folder")
    true = load_file(archive.with_name("weights.safetensors"))["visual.transformer.resblocks.1.mlp.c_fc.weight"]
    model = built(folder, encoder_init=str(archive), width=64)
    assert torch.equal(model.net.encoder.layers[1].feed[0].weight, true.float())


def test_logarithmic_warmup() -> None:
    schedule = LogarithmicWarmup(warmup=0.025, steps=5000, start=0.01)
    total = 200_000
    for step in (0, 1, 100, 4999, 5000, 100_000):
        # DeepSpeed's WarmupLR from 1e-6 to 1e-4
        expected = 1e-6 + (1e-4 - 1e-6) * min(1.0, math.log(step + 1) / math.log(5000))
        assert 1e-4 * schedule(step / total) == pytest.approx(expected, rel=1e-3)


def test_bert_adam_equals_its_formula() -> None:
    start = torch.tensor([1.0, -2.0], dtype=torch.float64)
    parameter = start.clone().requires_grad_()
    untouched = torch.ones(1, requires_grad=True)
    optimizer = BertAdam([parameter, untouched], lr=0.1, weight_decay=0.01)
    expected, mean, square = start.clone(), torch.zeros(2).double(), torch.zeros(2).double()
    for gradient in ([3.0, 4.0], [0.1, -0.2], [0.0, 0.5]):
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        clipped = torch.tensor(gradient, dtype=torch.float64)
        clipped = clipped / max(1.0, math.hypot(*gradient))
        mean, square = 0.9 * mean + 0.1 * clipped, 0.999 * square + 0.001 * clipped**2
        expected = expected - 0.1 * (mean / (square.sqrt() + 1e-6) + 0.01 * expected)
    assert torch.allclose(parameter.detach(), expected, rtol=1e-5)
    assert untouched.tolist() == [1]
    resumed = BertAdam([parameter, untouched])
    resumed.load_state_dict(optimizer.state_dict())
    assert torch.equal(resumed.state[parameter]["mean_square"], optimizer.state[parameter]["mean_square"])
    with pytest.raises(ConfigError, match="betas"):
        BertAdam([parameter], betas=(1.0, 0.9))


@pytest.mark.parametrize(("beta", "smallest"), [(0.999, 5.46e-3), (0.98, 1.22e-3)])
def test_half_precision_underflow_of_squared_gradients(beta: float, smallest: float) -> None:
    for factor, seen in ((0.98, False), (1.02, True)):
        matrix = torch.zeros(1, 1, requires_grad=True)
        optimizer = BertAdam([{"name": "vision", "params": [matrix]}], betas=(0.9, beta), half_precision=["vision"])
        matrix.grad = torch.full((1, 1), factor * smallest)
        optimizer.step()
        assert bool(optimizer.state[matrix]["mean_square"] > 0) == seen


# the factors on the documentation page of CLIP4IDC: beta2 is 0.999 in captioning and 0.98 in adaptation
@pytest.mark.parametrize(
    ("beta", "size", "times"), [(0.999, 1e-4, 36), (0.98, 1e-4, 130), (0.999, 1e-3, 340), (0.98, 1e-3, 4.5)]
)
def test_half_precision_takes_larger_steps(beta: float, size: float, times: float) -> None:
    """CLIP4IDC's code stores CLIP's matrices in 16 bits, in which squares of small gradients underflow to 0."""
    generator, moved = dice(3), {}
    gradients = size * (torch.randn(16, 16, generator=generator) + torch.randn(100, 16, 16, generator=generator))
    start = (0.02 * torch.randn(16, 16, generator=generator)).half().float()
    for half in ((), ("vision",)):
        matrix, bias = start.clone().requires_grad_(), torch.zeros(16, requires_grad=True)
        group = {"name": "vision", "params": [matrix, bias]}
        optimizer = BertAdam([group], lr=1e-7, betas=(0.9, beta), weight_decay=0.0, half_precision=half)
        for gradient in gradients:
            matrix.grad, bias.grad = gradient.clone(), gradient[0].clone()
            optimizer.step()
        moved[half] = float((matrix.detach() - start).norm() / start.norm())
        assert optimizer.state[matrix]["mean_square"].dtype == (torch.float16 if half else torch.float32)
        assert torch.equal(matrix, matrix.half().float()) == bool(half)
        assert optimizer.state[bias]["mean"].dtype == torch.float32
    assert moved[("vision",)] / moved[()] == pytest.approx(times, rel=0.1)
    matrix.grad = torch.full_like(matrix, 1e6)  # above the range of float16
    optimizer.step()
    assert bool(matrix.isfinite().all())
    with pytest.raises(ConfigError, match="not the name of a parameter group"):
        BertAdam([{"name": "vision", "params": [matrix]}], half_precision=["text"])


def test_half_precision_resumes_bit_for_bit() -> None:
    gradients = 1e-3 * torch.randn(6, 4, 4, generator=dice(5))
    start = (0.02 * torch.randn(4, 4, generator=dice(6))).half().float()

    def stepped(matrix: torch.Tensor, saved: dict[str, Any] | None, part: slice) -> BertAdam:
        optimizer = BertAdam([{"name": "vision", "params": [matrix]}], lr=1e-4, half_precision=["vision"])
        if saved is not None:
            optimizer.load_state_dict(saved)
        for gradient in gradients[part]:
            matrix.grad = gradient.clone()
            optimizer.step()
        return optimizer

    whole, parts = start.clone().requires_grad_(), start.clone().requires_grad_()
    expected = stepped(whole, None, slice(None)).state[whole]
    found = stepped(parts, stepped(parts, None, slice(0, 3)).state_dict(), slice(3, None)).state[parts]
    assert torch.equal(whole, parts) and not torch.equal(whole, start)
    for name in ("mean", "mean_square"):
        assert found[name].dtype == torch.float16 and torch.equal(found[name], expected[name])
