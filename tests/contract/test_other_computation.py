"""Weights load only into a module with the same computation; matching shapes do not ensure the same number of heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.procap_tiny import QUIET, first_stage, second_stage, tokenizer
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringDataModule

from lightning_idc.methods import NAMC, Clip4Idc, Clip4IdcRetrieval, PairNaming
from lightning_idc.models import PairTransformer
from lightning_idc.models.module import PairModule
from lightning_idc.nn.vocabulary import SPECIALS
from lightning_idc.utils.errors import CheckpointError
from lightning_idc.utils.names import public_name

WORDS = [*SPECIALS, "nothing", "moved"]
CAPTIONER: dict[str, Any] = {"vocabulary": WORDS, "image_size": (16, 16), "max_length": 4, "width": 24}
TINY: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 32, "head_width": 16, "layers": 3},
    "text_cfg": {"context_length": 12, "width": 32, "heads": 2, "layers": 1},
}
DECODER: dict[str, Any] = {"decoder_layers": 1, "heads": 2}


def clip(kind: type[Any], config: dict[str, Any] | str = TINY, intra_layers: int = 1, **options: Any) -> Any:
    return kind(clip=config, intra_layers=intra_layers, **options)


def naming(config: dict[str, Any] = TINY, intra_layers: int = 1, **options: Any) -> PairNaming:
    return clip(PairNaming, config, intra_layers, classes=[3], **options)


def retrieval(config: dict[str, Any] = TINY, intra_layers: int = 1, **options: Any) -> Clip4IdcRetrieval:
    return clip(Clip4IdcRetrieval, config, intra_layers, vocabulary=WORDS, **options)


def captioner(config: dict[str, Any] = TINY, intra_layers: int = 1, **options: Any) -> Clip4Idc:
    return clip(Clip4Idc, config, intra_layers, vocabulary=WORDS, **{**DECODER, **options})


QUICK = {**TINY, "quick_gelu": True}
WIDE = {**TINY, "vision_cfg": {**TINY["vision_cfg"], "head_width": 8}}
MANY = {**TINY, "text_cfg": {**TINY["text_cfg"], "heads": 4}}


def saved(model: PairModule, path: Path, without: str | None = None) -> str:
    """Save a checkpoint as the Trainer writes it, optionally without one of the hyper-parameters."""
    model.build()
    hparams = {name: value for name, value in dict(model.hparams).items() if name != without}
    checkpoint = {"state_dict": model.state_dict(), "hyper_parameters": hparams, "class_path": public_name(type(model))}
    torch.save(checkpoint, path)
    return str(path)


STARTS: dict[str, tuple[Callable[[], PairModule], Callable[[str], PairModule], str]] = {
    "NAMC": (
        lambda: NAMC(**CAPTIONER, heads=12),
        lambda path: NAMC(**CAPTIONER, heads=2, init_from=path),
        "was trained with heads: 12, but this model has heads: 2",
    ),
    "PairTransformer": (
        lambda: PairTransformer(**CAPTIONER, heads=12),
        lambda path: PairTransformer(**CAPTIONER, heads=2, init_from=path),
        "heads: 12, but this model has heads: 2",
    ),
    "shapes of PairTransformer": (
        lambda: PairTransformer(**CAPTIONER, heads=2, backbone="residual", decoder_layers=1),
        lambda path: PairTransformer(**CAPTIONER, heads=2, init_from=path),
        "backbone: residual, decoder_layers: 1, but this model has backbone: cnn, decoder_layers: 2",
    ),
    "blocks of adaptation": (
        lambda: retrieval(intra_layers=0),
        lambda path: captioner(intra_layers=2, encoder_weights=path),
        "intra_layers: 0, but this model has intra_layers: 2",
    ),
    "GELU of adaptation": (
        retrieval,
        lambda path: captioner(QUICK, encoder_weights=path),
        "clip.quick_gelu: False, but this model has clip.quick_gelu: True",
    ),
    "text tower of adaptation": (
        lambda: retrieval(MANY),
        lambda path: captioner(encoder_weights=path),
        "clip.text_cfg.heads: 4, but",
    ),
    "again adapted": (lambda: retrieval(WIDE), lambda path: retrieval(init_from=path), "clip.vision_cfg.head_width: 8"),
    "decoder": (
        lambda: captioner(heads=4),
        lambda path: captioner(init_from=path),
        "heads: 4, but this model has heads: 2",
    ),
    "tower": (lambda: naming(intra_layers=2), lambda path: retrieval(tower_weights=path), "intra_layers: 2, but"),
    "tower of the captioner": (lambda: naming(QUICK), lambda path: captioner(tower_weights=path), "quick_gelu: True"),
    "again named": (lambda: naming(WIDE), lambda path: naming(init_from=path), "head_width: 8"),
}


@pytest.mark.parametrize("name", STARTS)
def test_weights_of_another_computation_are_refused(name: str, tmp_path: Path) -> None:
    if name not in ("NAMC", "PairTransformer"):
        pytest.importorskip("open_clip")
    trained, started, said = STARTS[name]
    path = saved(trained(), tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match=f"a.ckpt' .*{said}.*; set "):
        started(path).build()


def test_what_takes_no_part_is_not_compared(tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    # the heads of a decoder that is not loaded, and the text tower when only the image tower is loaded
    captioner(encoder_weights=saved(captioner(heads=4), tmp_path / "a.ckpt")).build()
    retrieval(tower_weights=saved(naming(MANY), tmp_path / "b.ckpt")).build()
    # nor are hyper-parameters that are missing in the checkpoint
    NAMC(**CAPTIONER, heads=2, init_from=saved(NAMC(**CAPTIONER), tmp_path / "c.ckpt", without="heads")).build()


def test_a_configuration_is_the_same_by_name_and_written_out() -> None:
    open_clip = pytest.importorskip("open_clip")
    name = "ViT-B-32-quickgelu"
    written = Clip4Idc.computation({"clip": open_clip.get_model_config(name), "intra_layers": 9})
    assert Clip4Idc.computation({"clip": name, "intra_layers": 9}) == written
    assert written["clip.quick_gelu"] and not Clip4Idc.computation({"clip": "ViT-B-32"})["clip.quick_gelu"]


def test_training_goes_on_with_the_same_computation_alone(tmp_path: Path) -> None:
    def fit(heads: int, start: Path | None = None) -> Trainer:
        trainer = Trainer(**QUIET, max_steps=0, default_root_dir=tmp_path)
        model = PairTransformer(**CAPTIONER, heads=heads)
        trainer.fit(model, BoringDataModule(), ckpt_path=start, weights_only=True)
        return trainer

    fit(12).save_checkpoint(tmp_path / "a.ckpt")
    fit(12, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="heads: 12, but this model has heads: 2"):
        fit(2, tmp_path / "a.ckpt")


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_both_stages_of_procap_have_the_same_heads(variant: str, tmp_path: Path) -> None:
    tokenizer(tmp_path)
    first = first_stage(tmp_path, variant=variant, heads=4, vocabulary=[*WORDS, *(f"w{n}" for n in range(30))])
    path = saved(first, tmp_path / "first.ckpt")
    second_stage(tmp_path, variant=variant, heads=4, procedure=path, vocabulary=WORDS).build()
    with pytest.raises(CheckpointError, match="heads: 4, but this model has heads: 2"):
        second_stage(tmp_path, variant=variant, procedure=path, vocabulary=WORDS).build()
