"""All functions of the library that read a weight file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lightning_idc.checkpoints.reading import read_checkpoint
from lightning_idc.checkpoints.restricted import read_foreign_checkpoint, read_state_dict, read_torchscript
from lightning_idc.methods.clip4idc.convert import convert
from lightning_idc.methods.namc.dual_encoder import load_dual_encoder
from lightning_idc.methods.policy.cached_scores import read_scores
from lightning_idc.methods.procap.official.convert import convert_tokenizer
from lightning_idc.models.loading import load_captioner, load_module, strip_aux
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.nn.backbones import load_backbone
from lightning_idc.nn.clip import build_clip
from lightning_idc.nn.image_tokenizer import load_image_tokenizer
from lightning_idc.nn.vocabulary import ClipVocabulary

Reader = Callable[[Path], Any]
WEIGHT_READERS: dict[str, Reader] = {
    "checkpoint": read_checkpoint,
    "captioner": load_captioner,
    "module": lambda path: load_module(PairTransformer, path),
    "add-ons": lambda path: strip_aux(path, path.with_name("out.ckpt")),
    "image tokenizer": load_image_tokenizer,
    "dual encoder": load_dual_encoder,
    "backbone": lambda path: load_backbone(torch.nn.Linear(1, 1), path),
    "CLIP4IDC": convert,
    "VQGAN": convert_tokenizer,
    "ProCap": read_foreign_checkpoint,
    "weights": read_state_dict,
    "CLIP": lambda path: build_clip("tiny", ClipVocabulary(), str(path)),
    "TorchScript": read_torchscript,
    "scores": lambda path: read_scores(path, "weights"),
}
