"""The captioner of benchmarks/studies/mdp_smollm2.py, and the resumption of its trainings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("timm")
pytest.importorskip("peft")

from benchmarks.studies import mdp_smollm2
from benchmarks.studies.mdp_parts import StagesBackbone
from benchmarks.studies.mdp_smollm2_parts import PrefixCaptioner, PrefixNet, Progress, language_model
from lightning_idc.models.vlm.lora import LoraAdapter
from lightning_idc.nn.decoding.decoding import select_rows

IMAGES = torch.randint(0, 256, (3, 2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(0, 300, (3, 2, 5), generator=torch.Generator().manual_seed(1))
SMALL = "--train 8 --test 4 --size 32 --cells 1 --width 16 --epochs 3 --batch 4 --warm_epochs 1 --only depths --seeds 1"


def net_with_lora() -> PrefixNet:
    torch.manual_seed(0)
    model, _ = language_model(None, ["the cube is gone"])
    net = PrefixNet(StagesBackbone(width=16, weights=None, cells=2), model)
    adapter = LoraAdapter(rank=2, alpha=4, targets=r".*\.[qkvo]_proj", freeze=["language"])
    adapter.install(net)
    for name, value in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.1)
    return net.eval()


@pytest.mark.slow
@torch.no_grad()
def test_captions_that_share_a_prefix_score_as_alone_and_as_in_decoding() -> None:
    net = net_with_lora()
    features = net.encode(IMAGES)
    together = net.logits(features, TOKENS)
    # bfloat16 has 8 significant bits
    tolerance: dict[str, Any] = {"rtol": 0.02, "atol": 0.02 * together.abs().max().item()}
    alone = torch.cat([net.logits(features, caption[:, None]) for caption in TOKENS.unbind(1)], 1)
    torch.testing.assert_close(together, alone, **tolerance)
    state, rows = net.start(features), torch.tensor([2, 0])
    first = net.step(state, TOKENS[:, 1, 0])
    state = select_rows(state, rows)
    later = [net.step(state, TOKENS[rows, 1, position]) for position in range(1, 5)]
    torch.testing.assert_close(first, together[:, 1, 0], **tolerance)
    torch.testing.assert_close(torch.stack(later, 1), together[rows, 1, 1:], **tolerance)
    # the tolerance is far below the differences between captions and pairs
    assert (together[:, 0] - together[:, 1]).abs().max() > 10 * tolerance["atol"]


@pytest.mark.slow
def test_only_lora_is_trained_in_the_language_model() -> None:
    net = net_with_lora()
    net.hidden(net.encode(IMAGES), TOKENS).float().square().mean().backward()
    for name, value in net.named_parameters():
        inside = name.startswith("language.")
        assert value.requires_grad == (not name.startswith("backbone.stages.") and ("lora_" in name or not inside))
        assert value.dtype == (torch.bfloat16 if inside and "lora_" not in name else torch.float32)
        assert (value.grad is not None) == value.requires_grad, name


def trained(folder: Path, work: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, torch.Tensor]:
    """Run a training and return its final weights."""
    weights: dict[str, torch.Tensor] = {}

    def copy_weights(trainer: Any, captioner: PrefixCaptioner, *unused: Any) -> Any:
        weights.update({name: value.clone() for name, value in captioner.state_dict().items()})
        raise SystemExit("trained")

    monkeypatch.setattr(mdp_smollm2, "tested", copy_weights)
    command = [*SMALL.split(), *options, "--work", str(folder / work), "--cache", str(folder / "cache")]
    monkeypatch.setattr(sys, "argv", ["mdp_smollm2", *command])
    with pytest.raises(SystemExit) as stopped:
        mdp_smollm2.main()
    if str(stopped.value) != "trained":
        raise stopped.value
    return weights


@pytest.mark.slow
def test_the_weights_of_the_warm_up_are_those_at_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--warm_epochs", "20", "--rate", "1e-12", "--lora_rate", "1e-12"]
    weights = trained(tmp_path, "work", monkeypatch, *options)
    (file,) = tmp_path.glob("work/*/depths-1-warm.pt")
    state = torch.load(file, weights_only=True)
    assert {name.split(".")[0] for name in state} == {"net", "adapters"}
    assert state["adapters.mdp.mdp.out.weight"].abs().max() > 1e-3  # 0 before training
    for name, value in state.items():
        torch.testing.assert_close(weights[name], value, msg=name)


@pytest.mark.slow
def test_a_training_that_was_killed_continues_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    steps: list[int] = []

    class Killed(Progress):
        limit = 6

        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            steps.append(trainer.global_step)
            if trainer.global_step == self.limit:
                raise SystemExit("killed")
            super().on_train_batch_end(trainer, *others)

    monkeypatch.setattr(mdp_smollm2, "SAVE_EVERY", 2)
    monkeypatch.setattr(mdp_smollm2, "Progress", Killed)
    monkeypatch.setattr(Killed, "limit", 7)
    weights.append(trained(tmp_path, "whole", monkeypatch))
    monkeypatch.setattr(Killed, "limit", 5)
    with pytest.raises(SystemExit, match="killed"):
        trained(tmp_path, "killed", monkeypatch)
    monkeypatch.setattr(Killed, "limit", 7)
    weights.append(trained(tmp_path, "killed", monkeypatch))
    assert steps == [*range(1, 7), *range(1, 6), 5, 6]
    whole, resumed = weights
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)


def test_the_cpu_seconds_of_a_training_continue() -> None:
    progress = Progress("none-1", every=1)
    progress.load_state_dict({"seconds": 100.0})
    progress.on_train_start(*[argparse.Namespace()] * 2)  # type: ignore[arg-type]
    assert 100 <= progress.state_dict()["seconds"] < 101
