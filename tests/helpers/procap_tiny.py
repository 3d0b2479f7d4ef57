"""The smallest data, tokenizer and procedures on which both stages of ProCap run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from helpers.training import QUIET
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.methods import OfficialProCap, OfficialProcedureModel, ProCap, ProcedureModel
from lightning_idc.methods.procap.flow import CrossFade
from lightning_idc.methods.procap.interpolation import EveryPair, FrameInterpolator
from lightning_idc.nn.image_tokenizer import CONFIG_KEY, ImageTokenizer

SIZES: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "image_size": (16, 16)}
DECODER: dict[str, Any] = {"decoder_width": 16, "decoder_layers": 1, "decoder_heads": 2}


def data(folder: Path, **options: Any) -> SyntheticPairs:
    settings = {"train_pairs": 10, "val_pairs": 5, "test_pairs": 3, "batch_size": 4, **options}
    return SyntheticPairs(render_size=16, things=(2, 3), cache_dir=folder / "cache", progress=False, **settings)


def tokenizer(folder: Path) -> str:
    """Checkpoint of an untrained tokenizer with a 4 x 4 grid."""
    torch.manual_seed(0)
    net = ImageTokenizer(codebook_size=12, latent=8, width=8, multipliers=[1], blocks=1, patch_size=4)
    torch.nn.init.normal_(net.codebook.weight)
    state = {f"net.tokenizer.{name}": value for name, value in net.state_dict().items()}
    path = folder / "tokenizer.ckpt"
    torch.save({"state_dict": state, CONFIG_KEY: net.config}, path)
    return str(path)


def procedures(folder: Path) -> str:
    """Folder of cross-faded procedures of all splits."""
    path = folder / "procedures"
    Trainer(**QUIET, enable_checkpointing=False).predict(
        FrameInterpolator(str(path), 7, CrossFade()), EveryPair(data(folder)), return_predictions=False
    )
    return str(path)


def first_stage(folder: Path, **options: Any) -> ProcedureModel:
    settings = {**SIZES, "dropout": 0.1, **options}
    kind = OfficialProcedureModel if settings.pop("variant", "paper") == "official" else ProcedureModel
    return kind(procedures=str(folder / "procedures"), tokenizer=str(folder / "tokenizer.ckpt"), **settings)


def second_stage(folder: Path, **options: Any) -> ProCap:
    settings = {"tokenizer": str(folder / "tokenizer.ckpt"), **SIZES, **DECODER, **options}
    kind = OfficialProCap if settings.pop("variant", "paper") == "official" else ProCap
    return kind(**settings)


def prepared(folder: Path) -> Path:
    """Fill a folder with the tokenizer and the procedures, and return it."""
    tokenizer(folder)
    procedures(folder)
    return folder
