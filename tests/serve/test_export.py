"""`export`: graphs give the same words as Python when run by the code of the documentation."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lightning_idc
from lightning_idc.cli import main
from lightning_idc.data import SyntheticPairs
from lightning_idc.images.types import stack_images
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.nn import registration
from lightning_idc.nn.decoding.decoding import greedy
from lightning_idc.serve.export import Encoder, write_graphs

ROOT = Path(__file__).resolve().parents[2]
PAIRS = 40


@cache
def rendered() -> torch.Tensor:
    """Return rendered pairs of the kind that the included captioner was trained on, ``(PAIRS, 2, 3, 96, 144)``."""
    source = SyntheticPairs("clevr_wide", test_pairs=PAIRS, render_size=(96, 144)).pairs_of("test")
    return stack_images([source.load(index) for index in range(PAIRS)])


@torch.no_grad()
def said_by_python(captioner: PairCaptioner, images: torch.Tensor) -> list[list[int]]:
    net = captioner.built_net
    return greedy(net, net.encode(images), captioner.hparams["max_length"]).ids


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    folder = tmp_path_factory.mktemp("export")
    assert main(["export", "onnx", "--out", str(folder / "clevr_onnx"), "--model", "clevr"]) == 0
    return folder


@pytest.mark.slow
def test_the_code_of_the_documentation_equals_the_captioner(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(exported)
    for path in lightning_idc.sample_pair():
        shutil.copy(path, exported)
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/tasks/export.md").read_text("utf-8"), re.S | re.M)
    names: dict[str, Any] = {}
    exec(compile(code, "export.md", "exec"), names)
    captioner = lightning_idc.load("clevr", device="cpu")
    assert capsys.readouterr().out.strip() == captioner.describe(*lightning_idc.sample_pair()).text
    wanted = said_by_python(captioner, rendered())
    assert names["caption_ids"](rendered().numpy()) == wanted
    assert names["caption_ids"](rendered()[:1].numpy()) == wanted[:1], "one pair alone"
    assert len({tuple(ids) for ids in wanted}) > PAIRS / 2 and len({len(ids) for ids in wanted}) > 2


@pytest.mark.slow
def test_probabilities_of_sentences_equal_those_of_the_change_score(exported: Path) -> None:
    import onnxruntime

    folder = exported / "clevr_onnx"
    about = json.loads((folder / "captioner.json").read_text(encoding="utf-8"))
    encoder, step = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "step"))
    memory = encoder.run(None, {"images": rendered()[:8].numpy()})[0]
    mass = np.zeros(8)
    for ids in about["no_change"]:
        past, sums = memory[..., :0, :], np.zeros(8)
        for before, after in itertools.pairwise(ids):
            result, past = step.run(None, {"tokens": np.full(8, before), "memory": memory, "past": past})
            sums += result[:, after]
        mass += np.exp(sums)
    captioner = lightning_idc.load("clevr", device="cpu")
    with torch.no_grad():
        wanted = captioner.change_scores(captioner.built_net.encode(rendered()[:8]))
    np.testing.assert_allclose(1 - mass, np.asarray(wanted, float), atol=1e-4)


@pytest.mark.slow
def test_a_captioner_that_registers_and_counts_equals_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    import onnxruntime

    monkeypatch.setattr(registration, "STEPS", 1)  # the graph repeats the nodes of a step; all steps take a minute
    captioner = lightning_idc.load("pcb", device="cpu")
    net = captioner.built_net
    net.encoder, net.decoder.layers = net.encoder[:1], net.decoder.layers[:1]  # further layers repeat these nodes
    write_graphs(captioner, tmp_path / "pcb_onnx")
    encoder = onnxruntime.InferenceSession(tmp_path / "pcb_onnx" / "encoder.onnx")
    before, after = (Image.open(path).convert("L") for path in lightning_idc.sample_pair("pcb"))
    moved = before.rotate(0.6, Image.Resampling.BICUBIC, translate=(5, -4), fillcolor=255)
    images = stack_images([captioner.input_spec.read(first, after) for first in (before, moved)])
    memory = encoder.run(None, {"images": images.numpy()})[0]
    with torch.no_grad():
        expected = Encoder(captioner.built_net)(images)
    np.testing.assert_allclose(memory, expected, atol=1e-4)


@pytest.mark.slow
def test_graphs_of_torch_run_without_the_classes_of_the_network(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["export", "torch", "--out", str(tmp_path / "out"), "--model", str(model)]) == 0
    assert not [line for line in caplog.messages if "archive" in line], "nothing is said of names that nobody sees"
    encoder, step = (torch.export.load(tmp_path / "out" / f"{name}.pt2").module() for name in ("encoder", "step"))
    captioner = lightning_idc.load(model, device="cpu")
    images = torch.nn.functional.interpolate(rendered()[:5].flatten(0, 1), (32, 32)).view(5, 2, 3, 32, 32)
    for pairs in (images, images[:1]):
        memory, said = encoder(pairs), []
        tokens, past = torch.full((len(pairs),), 1), memory[..., :0, :]
        for _ in range(captioner.hparams["max_length"]):
            scores, past = step(tokens, memory, past)
            scores[:, [0, 1, 3]] = float("-inf")
            tokens = scores.argmax(-1)
            said.append(tokens)
        for ids, wanted in zip(torch.stack(said, 1).tolist(), said_by_python(captioner, pairs), strict=True):
            assert ids[: len(wanted)] == wanted


def test_a_folder_for_the_hub_is_read_again(model: Path, tmp_path: Path) -> None:
    pair = lightning_idc.sample_pair()
    assert main(["export", "hf", "--out", str(tmp_path / "mine"), "--model", str(model)]) == 0
    card = (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n") and "| images | 32x32 pixels |" in card and "PairTransformer" in card
    wanted = lightning_idc.load(model, device="cpu").describe(*pair)
    assert lightning_idc.load(tmp_path / "mine", device="cpu").describe(*pair) == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["onnx", "--out", "out", "--layout", "model"], "--layout is an option of `export hf`"),
        (["hf", "--out", "out", "--layout", "model"], "for vision-language models, not for a PairTransformer"),
    ],
)
def test_invalid_exports_raise_an_error(
    arguments: list[str],
    message: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", *arguments, "--model", str(model)]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_captioner_of_many_sizes_is_refused(model: Path, tmp_path: Path) -> None:
    from lightning_idc.serve.export import write_graphs
    from lightning_idc.utils.errors import ConfigError

    captioner = lightning_idc.load(model, device="cpu")
    captioner.hparams["image_size"] = captioner.hparams["input_spec"] = None
    with pytest.raises(ConfigError, match="a graph has one"):
        write_graphs(captioner, tmp_path / "out", "torch")


@pytest.mark.parametrize("kind", ["torch", "hf"])
def test_a_file_instead_of_the_folder_raises_an_error(
    kind: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert main(["export", kind, "--out", str(taken), "--model", str(model)]) == 1
    assert capsys.readouterr().err.startswith(f"error: --out {str(taken)!r} is a file; name a folder")
    assert taken.read_text() == "mine"
