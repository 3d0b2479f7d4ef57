"""Data modules of image pairs: one file per benchmark, folders, and a rendered world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_idc.data.birds_to_words import BirdsToWords as BirdsToWords
    from lightning_idc.data.clevr_change import CLEVRChange as CLEVRChange
    from lightning_idc.data.clevr_dc import CLEVRDC as CLEVRDC
    from lightning_idc.data.datamodule import PairDataModule as PairDataModule
    from lightning_idc.data.deeppcb import DeepPCB as DeepPCB
    from lightning_idc.data.folder import FolderPairs as FolderPairs
    from lightning_idc.data.hf_table import HuggingFaceTable as HuggingFaceTable
    from lightning_idc.data.image_editing_request import ImageEditingRequest as ImageEditingRequest
    from lightning_idc.data.img_diff import ImgDiff as ImgDiff
    from lightning_idc.data.instructpix2pix import InstructPix2Pix as InstructPix2Pix
    from lightning_idc.data.levir_cc import LEVIRCC as LEVIRCC
    from lightning_idc.data.magicbrush import MagicBrush as MagicBrush
    from lightning_idc.data.mixture import Mixture as Mixture
    from lightning_idc.data.omnidiff import OmniDiff as OmniDiff
    from lightning_idc.data.source import PairSource as PairSource
    from lightning_idc.data.spot_the_diff import SpotTheDiff as SpotTheDiff
    from lightning_idc.data.synthetic import SyntheticPairs as SyntheticPairs

_HOMES = {
    "BirdsToWords": "birds_to_words",
    "CLEVRChange": "clevr_change",
    "CLEVRDC": "clevr_dc",
    "DeepPCB": "deeppcb",
    "FolderPairs": "folder",
    "HuggingFaceTable": "hf_table",
    "ImageEditingRequest": "image_editing_request",
    "ImgDiff": "img_diff",
    "InstructPix2Pix": "instructpix2pix",
    "LEVIRCC": "levir_cc",
    "MagicBrush": "magicbrush",
    "Mixture": "mixture",
    "OmniDiff": "omnidiff",
    "PairDataModule": "datamodule",
    "PairSource": "source",
    "SpotTheDiff": "spot_the_diff",
    "SyntheticPairs": "synthetic",
}
__all__ = [
    "CLEVRDC",
    "LEVIRCC",
    "BirdsToWords",
    "CLEVRChange",
    "DeepPCB",
    "FolderPairs",
    "HuggingFaceTable",
    "ImageEditingRequest",
    "ImgDiff",
    "InstructPix2Pix",
    "MagicBrush",
    "Mixture",
    "OmniDiff",
    "PairDataModule",
    "PairSource",
    "SpotTheDiff",
    "SyntheticPairs",
]


def __getattr__(name: str) -> Any:
    # reading captions back needs neither Lightning nor a data loader
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
