"""Hyper-parameters, which checkpoints store: only two methods write them, and options of a call are not included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.sources import PACKAGE, trees
from helpers.tiny import TinyCaptioner, TinyNet, TinySource
from torch import nn

from lightning_idc.images.types import NoiseMask, PairBatch
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.arguments import accepted_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import class_of

WRITERS = {"store_hparams", "replace_records"}
CHANGES = {"pop", "update", "setdefault", "clear"}
WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "same"]


def is_hparams(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.endswith("hparams")


def writers(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the functions that change ``hparams``, except for the two that may change it."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in WRITERS:
            continue
        for node in ast.walk(function):
            changed = []
            if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, (ast.Store, ast.Del)):
                changed.append(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
                changed.append(node.func.value)
            if any(map(is_hparams, changed)):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno} {function.name}"


@pytest.mark.slow
def test_hparams_are_written_by_two_methods() -> None:
    assert [place for path, tree in trees().items() for place in writers(path, tree)] == []


class StartsFromFile(PairCaptioner):
    """Starts from a weights file whose path is not stored in checkpoints.

    Args:
        start: file of weights.
        width: width of the network.
        options: of PairCaptioner.
    """

    not_stored = ("start",)

    def __init__(self, start: str | None = None, width: int = 16, **options: Any) -> None:
        super().__init__(**options)

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        return TinyNet(len(vocabulary), self.hparams["width"])


def test_an_argument_that_is_not_stored_is_in_no_hparams() -> None:
    model = StartsFromFile("weights.ckpt", width=8)
    assert model.hparams["width"] == 8
    assert not {"start", "optimizer", "init_from"} & set(model.hparams)


def test_a_prompt_needs_a_captioner_that_reads_it() -> None:
    model = TinyCaptioner(vocabulary=WORDS, max_length=4).eval()
    model.build()
    sample = TinySource(1, 0).load(0)
    with pytest.raises(ConfigError, match="TinyCaptioner takes no prompt"):
        model.describe(sample.before, sample.after, prompt="What is new?")
    assert "prompt" not in model.hparams


@pytest.mark.parametrize(
    ("name", "own", "option"),
    [
        ("PreferenceOptimization", "reference", "beta"),
        ("NoiseMasking", "encoder", "fill_masked"),
        ("MaskedReconstruction", "tokenizer", "mask_ratio"),
        ("MDPAdapter", "layers", "stacked"),
        ("LoRA", "name", "rank"),
    ],
)
def test_options_of_an_addon_are_arguments_of_its_callback(name: str, own: str, option: str) -> None:
    from jsonargparse import ArgumentParser

    kind: Any = class_of(name)
    accepted = accepted_arguments(kind)
    assert accepted is not None and {own, option, "name"} <= accepted and not {"options", "kind"} & accepted
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "callback")
    assert {f"callback.{argument}" for argument in accepted} <= {action.dest for action in parser._actions}


def test_noise_moves_with_its_batch() -> None:
    model = TinyCaptioner(vocabulary=WORDS, max_length=4)
    model.build()
    batch = model.collate([TinySource(1, 0).load(0)])
    batch.noise = NoiseMask(torch.ones(1, 2, 2, 2, dtype=torch.bool), unpainted=batch.images)
    moved = batch.to("meta").noise
    assert moved is not None and moved.unpainted is not None and moved.descriptions is None
    assert moved.patches.is_meta and moved.unpainted.is_meta
    again = PairBatch.of_plain(batch.plain()).noise
    assert again is not None and torch.equal(again.patches, batch.noise.patches) and again.descriptions is None
