"""`relative_position_bias`: both stages learn a bias for the relative position of patches, in a compatible form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.procap_tiny import QUIET, data, first_stage, prepared, second_stage
from lightning.pytorch import Trainer, seed_everything

from lightning_idc.methods.procap.net import ProcedureEncoder
from lightning_idc.models.loading import load_captioner
from lightning_idc.utils.errors import ConfigError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = prepared(tmp_path_factory.mktemp("procap"))
    seed_everything(1, verbose=False)
    trainer = Trainer(**QUIET, max_epochs=1, enable_checkpointing=False)
    trainer.fit(first_stage(path, relative_position_bias=True), data(path))
    trainer.save_checkpoint(path / "first.ckpt")
    return path


def encoder(frames: int = 3, **options: bool) -> ProcedureEncoder:
    seed_everything(1, verbose=False)
    return ProcedureEncoder(8, (2, 3), frames, width=16, layers=2, heads=2, **options).eval()


def test_default_has_no_relative_bias() -> None:
    plain, zero = encoder(), encoder(relative_position_bias=True)
    assert plain.relative_bias() is None and not any("relative" in name for name in plain.state_dict())
    assert zero.relative is not None
    torch.nn.init.zeros_(zero.relative.table)
    zero.load_state_dict(plain.state_dict(), strict=False)
    tokens = torch.randn(2, 18, 16)
    assert torch.allclose(plain(tokens), zero(tokens), atol=1e-6)


def test_relative_bias_depends_on_frames_and_offset() -> None:
    one = encoder(relative_position_bias=True)
    assert one.relative is not None
    torch.nn.init.normal_(one.relative.table)
    bias = one.relative_bias()
    assert bias is not None and bias.shape == (2, 18, 18)
    by_place = bias.view(2, 3, 2, 3, 3, 2, 3)  # head, frame, row, column of the query; frame, row, column of the key
    # from the first frame to the last, one column to the right
    assert torch.equal(by_place[:, 0, 0, 0, 2, 0, 1], by_place[:, 0, 1, 1, 2, 1, 2])
    assert not torch.equal(by_place[:, 0, 0, 0, 2, 0, 1], by_place[:, 2, 0, 0, 0, 0, 1])
    before = one.relative_bias(4)
    assert before is not None and torch.equal(before[:, 4:, 4:], bias)
    assert not before[:, :4].any() and not before[:, :, :4].any()


@pytest.mark.slow
def test_padding_is_not_attended_to(folder: Path) -> None:
    seed_everything(1, verbose=False)
    model = first_stage(folder, relative_position_bias=True)
    model.hparams["vocabulary"] = ["<pad>", "<bos>", "<eos>", "<unk>", "the", "cube", "moved"]
    model.build()
    net = model.eval().built_net
    features, masked = torch.randn(2, 4, 8, 4, 4), torch.rand(2, 64) < 0.4
    words = torch.tensor([[4, 5, 6, 2], [4, 5, 2, 0]])
    short = net(features[1:], masked[1:], words[1:, :3], torch.ones(1, 3, dtype=torch.bool))
    batch = net(features, masked, words, words > 0)
    other = net(features, masked, words.masked_fill(words == 0, 6), words > 0)
    for name in ("align", "consistency", "visual"):
        assert torch.allclose(getattr(short, name)[0], getattr(batch, name)[1], atol=1e-5), name
        assert torch.equal(getattr(other, name), getattr(batch, name)), name


@pytest.mark.slow
def test_second_stage_loads_the_relative_bias(folder: Path, tmp_path: Path) -> None:
    theirs = torch.load(folder / "first.ckpt", weights_only=True)["state_dict"]
    start = {"procedure": str(folder / "first.ckpt"), "tokenizer": None}
    settings: dict = {"vocabulary": ["<pad>", "<bos>", "<eos>", "<unk>", "the"], "max_length": 6, **start}
    for k, frames in ((2, [0, 1, 2, 3]), (0, [0, 3])):
        model = second_stage(folder, relative_position_bias=True, queries=k, **settings)
        model.build()
        table = model.built_net.encoder.get_parameter("relative.table")
        expected = theirs["net.encoder.relative.table"].view(4, 4, -1, 2)[frames][:, frames].reshape(-1, 2)
        assert torch.equal(table, expected)
    with pytest.raises(Exception, match=r"relative_position_bias,? .*must be equal"):
        second_stage(folder, **settings).build()

    seed_everything(1, verbose=False)
    trained = second_stage(folder, relative_position_bias=True, **start)
    trainer = Trainer(**QUIET, max_epochs=1, enable_checkpointing=False, limit_val_batches=0)
    trainer.fit(trained, data(folder))
    table = trained.built_net.encoder.get_parameter("relative.table")
    assert table.grad is not None and table.grad.abs().sum() > 0
    trainer.save_checkpoint(tmp_path / "second.ckpt")
    again = load_captioner(tmp_path / "second.ckpt")
    assert torch.equal(again.built_net.encoder.get_parameter("relative.table"), table)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [first_stage, second_stage])
def test_official_variant_rejects_relative_bias(folder: Path, stage: object) -> None:
    model = stage(folder, variant="official", relative_position_bias=True)  # type: ignore[operator]
    model.hparams["vocabulary"] = ["<pad>", "<bos>", "<eos>", "<unk>", "the"]
    with pytest.raises(ConfigError, match="relative_position_bias"):
        model.build()
