"""Images of procedures: what they show, and that both fit and validate write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.procap_tiny import QUIET, data, first_stage, prepared, tokenizer
from lightning.pytorch import Trainer, seed_everything

from lightning_idc.data.sampling import SampleIndex
from lightning_idc.methods.procap.log_procedures import LogProcedures, Strip, blanked, procedure_sheet, strips_of
from lightning_idc.utils.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("procap"))


def test_blanked_masks_patches_only() -> None:
    frames = torch.randint(1, 256, (2, 3, 8, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    masked = torch.zeros(2, 2, 3, dtype=torch.bool)
    masked[1, 0, 2] = True
    shown = blanked(frames, masked.flatten(), (2, 3))
    assert torch.equal(shown[0], frames[0])
    assert not shown[1, :, :4, 8:].any()
    shown[1, :, :4, 8:] = frames[1, :, :4, 8:]
    assert torch.equal(shown, frames)


def test_procedure_sheet_draws_every_frame() -> None:
    colors = torch.tensor([[250, 0, 0], [0, 250, 0], [0, 0, 250]], dtype=torch.uint8)
    frames = colors.view(3, 3, 1, 1).expand(3, 3, 16, 16)
    sheet = np.asarray(procedure_sheet([("it moved", [Strip("all", frames), Strip("two", frames[:2])])], side=32))
    areas = [int((sheet == color.numpy()).all(-1).sum()) for color in colors]
    assert areas == [2 * 32 * 32, 2 * 32 * 32, 32 * 32]
    with pytest.raises(DataError, match="no pairs"):
        procedure_sheet([])


@pytest.mark.slow
def test_log_procedures_draws_the_same_pairs(folder: Path, tmp_path: Path) -> None:
    seed_everything(1, verbose=False)
    model = first_stage(folder)
    trainer = Trainer(
        **QUIET, max_epochs=1, enable_checkpointing=False, default_root_dir=tmp_path, callbacks=[LogProcedures(2)]
    )
    trainer.fit(model, data(folder))
    (written,) = (tmp_path / "procedures").glob("step-*.png")
    assert written.stat().st_size > 1000
    written.unlink()
    trainer.validate(model, data(folder), verbose=False)
    assert written.is_file()
    sample = data(folder).loader("val").dataset[SampleIndex(0, 1)]
    strips = {strip.name: strip.frames for strip in strips_of(sample, model.keyframes, model.eval())}
    assert [len(frames) for frames in strips.values()] == [3, 9, 4, 4, 4, 4]
    assert torch.equal(strips["interpolated"][0], sample.before)
    pair = strips["pair, overlaid"].double()
    assert torch.equal(pair[2], (pair[0] + pair[1]).div(2).floor())
    ends = model.net.tokenizer.decode(model.net.tokenizer.encode(strips["keyframes"][[0, -1]]))
    # the values of another batch size may round differently
    assert float((strips["imagined"][[0, -1]] - ends * 255).abs().max()) < 0.6, "both images are given"


@pytest.mark.slow
def test_strips_without_keyframes(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    model = first_stage(tmp_path, keyframes=0)
    trainer = Trainer(
        **QUIET,
        max_epochs=1,
        enable_checkpointing=False,
        default_root_dir=tmp_path / "run",
        callbacks=[LogProcedures(2)],
    )
    trainer.fit(model, data(tmp_path))
    assert len(list((tmp_path / "run" / "procedures").glob("step-*.png"))) == 1
    assert not (tmp_path / "procedures").exists()
    sample = data(tmp_path).loader("val").dataset[SampleIndex(0, 1)]
    strips = {strip.name: strip.frames for strip in strips_of(sample, model.keyframes, model.eval())}
    assert {name: len(frames) for name, frames in strips.items()} == {
        "pair, overlaid": 3,
        "masked": 2,
        "reconstructed": 2,
    }
    assert torch.equal(strips["pair, overlaid"][:2], torch.stack([sample.before, sample.after]))


def test_log_procedures_requires_a_procedure_model() -> None:
    from lightning_idc.methods.procap.module import ProCap

    with pytest.raises(ConfigError, match="ProcedureModel"):
        LogProcedures().setup(Trainer(**QUIET), ProCap(), "fit")
    with pytest.raises(ConfigError, match="pairs is 0; expected at least 1"):
        LogProcedures(0)
