"""Recipes of recipes/paper whose stages name several devices, trained in two processes on a CPU.

Stages with one device run in the process of the test. ``--trainer.devices 2`` reduces eight devices to two.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paper import best, run
from helpers.stages_here import run_stages_of_two_devices
from helpers.vlm_tiny import architecture

sys.path.insert(0, str(Path(__file__).parent))
from test_paper_captioners import check_scores, described, made, namc_keys, procap_keys, without_devices
from test_paper_captioners import files as files
from test_paper_captioners import here as here

pytestmark = [pytest.mark.slow, pytest.mark.dist, pytest.mark.timeout(400)]
CPU: dict[str, Any] = {"trainer.accelerator": "cpu", "trainer.precision": "32-true", "data.num_workers": 0}


@pytest.fixture(autouse=True)
def two_processes(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return run_stages_of_two_devices(monkeypatch)


def steps(out: Path, stage: str) -> int:
    """Optimizer steps of a training stage: half as many as one process would need for the same batches."""
    count: int = torch.load(best(out, stage), weights_only=True)["global_step"]
    return count


def by_tokenizer(files: dict[str, Path], keys: dict[str, Any]) -> dict[str, Any]:
    """Keys that compare frames with the image tokenizer instead of an adapted CLIP4IDC, on the recipe's devices."""
    keys = without_devices(keys)
    del keys["stages.frames.model.similarity.encoder"]
    return keys | {"stages.frames.model.similarity": {"class": "TokenizerSimilarity", "tokenizer": str(files["vqgan"])}}


def test_explicit_captioning_of_procap(here: Path, files: dict[str, Path], two_processes: list[str]) -> None:
    """Table 14: the captioner also reads the frames of the test split."""
    named = made(here, "clevr_change")
    keys = by_tokenizer(files, procap_keys(files, here / "none.ckpt", named["data.root"]))
    chosen = {"matrix.dataset": "clevr_change", "matrix.ablation": "table14_explicit"}
    run("procap_ablations", here / "out", **chosen, **named, **keys)
    check_scores(here / "out")
    assert two_processes == ["procedure"] and steps(here / "out", "procedure") == 2, "max_steps"


def test_keyframes_chosen_by_two_similarities(here: Path, files: dict[str, Path], two_processes: list[str]) -> None:
    """`mixed` of Figure 4, with the cells of the tokenizer and thumbnails as the two encoders."""
    named = made(here, "clevr_change")
    keys = by_tokenizer(files, procap_keys(files, here / "none.ckpt", named["data.root"]))
    keys |= {key.replace("frames.data", "likeness.data"): value for key, value in keys.items() if "frames.data" in key}
    keys["stages.likeness.model.similarity.encoder"] = {"class": "PixelEncoder"}
    chosen = {"matrix.dataset": "clevr_change", "matrix.strategy": "mixed", "matrix.frames": "l15"}
    run("procap_keyframes", here / "out", **chosen, **named, **keys)
    check_scores(here / "out")
    assert two_processes == ["procedure"] and steps(here / "out", "procedure") == 2, "max_steps"


def test_adpo(here: Path, two_processes: list[str]) -> None:
    """Sharded weights, a frozen copy of them as the reference, and the retriever: the stage of every entry of adpo."""
    policy = {"model.model": None, "model.architecture": architecture("qwen2_5_vl"), "model.max_length": 4}
    start = {"model.init_from": None, "stages.adpo.trainer.callbacks.AdversarialRetriever.encoder": None}
    chosen = {"matrix.dataset": "spot_the_diff", "matrix.candidates": "128", "matrix.temperature": "2"}
    short = {"trainer.max_epochs": 1, "data.batch_size": 3}
    run("adpo_figure4", here / "out", **chosen, **made(here, "spot_the_diff"), **CPU, **policy, **start, **short)
    check_scores(here / "out")
    assert two_processes == ["adpo"] and steps(here / "out", "adpo") == 1, "6 pairs"


def test_namc(here: Path, files: dict[str, Path], two_processes: list[str]) -> None:
    root = str(described(here / "pairs", "train"))
    pairs = {f"data.parts.{name}.root": root for name in ("spot_the_diff", "instruct_pix2pix", "cc3m")}
    keys = {**without_devices(namc_keys(here, files, "pretrain")), "data.batch_size": 2, "trainer.devices": 2}
    run("namc", here / "out", **{"matrix.phase": "pretrain"}, **pairs, **keys)
    (checkpoint,) = (here / "out").rglob("*.ckpt")
    trained = torch.load(checkpoint, weights_only=True)
    assert two_processes == ["pretrain"] and trained["global_step"] == 3, "12 pairs"
    trained_parts = {name.split(".")[1] for name in trained["state_dict"] if name.startswith("aux_addons.")}
    assert trained_parts == {"noise_masking", "masked_reconstruction"}
