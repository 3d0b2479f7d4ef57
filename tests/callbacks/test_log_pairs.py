"""LogPairs writes the same images and captions with every logger; they are read back from the logger's files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import QUIET
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from PIL import Image

from lightning_idc.callbacks.log_pairs import LogPairs


def fit(logger: Logger, folder: Path) -> Image.Image:
    """Train for two epochs and return the last image in the folder of the run."""
    options = {**QUIET, "logger": logger, "default_root_dir": folder, "enable_checkpointing": False}
    Trainer(max_epochs=2, callbacks=[LogPairs(pairs=2)], **options).fit(TinyCaptioner(), TinyPairs())
    files = sorted((folder / "pairs").glob("*.png"))
    assert len(files) == 2
    return Image.open(files[-1])


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra report")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path / "logs")
    expected = fit(logger, tmp_path)
    logger.finalize("success")
    kept = EventAccumulator(logger.log_dir).Reload()
    assert len(kept.Images("val/pairs")) == 2
    shown = Image.open(io.BytesIO(kept.Images("val/pairs")[-1].encoded_image_string))
    assert shown.size == expected.size and shown.tobytes() == expected.tobytes()
    text = kept.Tensors("val/captions/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text.startswith("| pair") and len(text.splitlines()) == 4


def test_csv(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "logs")
    expected = fit(logger, tmp_path)
    pictures = sorted(Path(logger.log_dir, "val", "pairs").glob("*.png"))
    assert len(pictures) == 2 and Image.open(pictures[-1]).tobytes() == expected.tobytes()
    table = sorted(Path(logger.log_dir, "val", "captions").glob("*.md"))[-1].read_text(encoding="utf-8")
    assert table.startswith("| pair") and len(table.splitlines()) == 4


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra loggers")
    for name in ("WANDB_SILENT", "WANDB_MODE", "WANDB_SERVICE"):  # wandb sets the last two itself
        monkeypatch.setenv(name, {"WANDB_SILENT": "true", "WANDB_MODE": "offline"}.get(name, ""))
    logger = WandbLogger(save_dir=tmp_path / "logs", offline=True)
    expected = fit(logger, tmp_path)
    files = Path(logger.experiment.dir)
    wandb.finish()
    pictures = sorted(files.glob("media/images/val/pairs_*.png"), key=lambda path: path.stat().st_mtime_ns)
    assert len(pictures) == 2 and Image.open(pictures[-1]).convert("RGB").tobytes() == expected.tobytes()
    assert len(list(files.glob("media/table/val/captions_*.table.json"))) == 2


def test_mlflow_file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="needs the extra loggers")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # MLflow sets this itself
    logger = MLFlowLogger(tracking_uri=f"file:{tmp_path / 'logs'}")
    expected = fit(logger, tmp_path)
    pictures = sorted((tmp_path / "logs").glob("*/*/artifacts/val/pairs/*.png"))
    assert len(pictures) == 2 and Image.open(pictures[-1]).tobytes() == expected.tobytes()
    assert len(list((tmp_path / "logs").glob("*/*/artifacts/val/captions/*.md"))) == 2
