"""Files that the authors' code writes can be loaded unmodified. Oracles: ../shared/parity, created with that code."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lightning_idc.checkpoints.restricted import Inert, read_foreign_checkpoint
from lightning_idc.cli import main
from lightning_idc.methods.procap.official.convert import convert, convert_tokenizer
from lightning_idc.nn.image_tokenizer import load_image_tokenizer
from lightning_idc.utils.errors import CheckpointError


@pytest.mark.slow
@pytest.mark.parametrize("case", ["attention_224", "attention_256", "dropped_224", "dropped_256"])
def test_vqgan_ids_equal_the_official_code(case: str, shared: Path, tmp_path: Path) -> None:
    folder = shared / "parity" / "vqgan_256"
    if not folder.is_dir():
        pytest.skip("parity/vqgan_256 is not in the shared folder")
    weights = {key: value.float() for key, value in load_file(folder / "weights.safetensors").items()}
    save_file(weights, tmp_path / "vqgan.safetensors")
    tokenizer = convert_tokenizer(tmp_path / "vqgan.safetensors", drop_attention=case.startswith("dropped")).tokenizer
    io = load_file(folder / "io.safetensors")
    image = io[f"image_{case[-3:]}"].float() / 255 * 2 - 1
    with torch.no_grad():
        features = tokenizer.features(image)
        assert torch.equal(tokenizer.ids_of(features), io[f"{case}.ids"].long())
        torch.testing.assert_close(features, io[f"{case}.encoder"].float(), atol=2e-3, rtol=2e-3)
        if f"{case}.reconstruction" in io:
            vectors = tokenizer.codebook(io[f"{case}.ids"].long()).movedim(-1, 1)
            torch.testing.assert_close(
                tokenizer.pixels_of(vectors), io[f"{case}.reconstruction"].float(), atol=2e-3, rtol=2e-3
            )


@pytest.mark.slow
def test_convert_vqgan_command(shared: Path, tmp_path: Path) -> None:
    folder = shared / "parity" / "vqgan_256"
    if not folder.is_dir():
        pytest.skip("parity/vqgan_256 is not in the shared folder")
    weights = {key: value.float() for key, value in load_file(folder / "weights.safetensors").items()}
    torch.save({"state_dict": weights}, tmp_path / "vqgan.ckpt")
    for options, attention in (([], True), (["--drop_attention", "true"], False)):
        target = tmp_path / f"tokenizer_{attention}.ckpt"
        assert main(["convert", "vqgan", str(tmp_path / "vqgan.ckpt"), "--out", str(target), *options]) == 0
        assert load_image_tokenizer(str(target)).config["attention"] is attention


@pytest.mark.parametrize(
    ("method", "weight", "options"),
    [
        ("vqgan", {"quantize.embedding.weight": torch.zeros(2, 2)}, []),
        ("procap", {"intermediate_generator.image_mask": torch.zeros(1)}, ["--vocabulary", "words.json"]),
        ("procap_stage1", {"text_emb.weight": torch.zeros(49408 + 25, 1)}, ["--procedures", "folder"]),
    ],
)
def test_rejects_incomplete_weights_in_one_line(
    method: str, weight: dict[str, torch.Tensor], options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "cut.pt"
    torch.save(weight, source)
    assert main(["convert", method, str(source), "--out", str(tmp_path / "out.ckpt"), *options]) == 1
    said = capsys.readouterr().err
    assert f"{str(source)!r} is damaged, or was written by another program or version" in said


@pytest.mark.parametrize("name", ["model.chkpt", "model_exact.chkpt"])
def test_second_stage_files_with_pickled_objects_are_read(name: str, shared: Path) -> None:
    folder = shared / "parity" / "procap_stage2_file"
    if not folder.is_dir():
        pytest.skip("parity/procap_stage2_file is not in the shared folder")
    heads = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["decoder_heads"]
    model = convert(folder / name, vocabulary=str(folder / "word2idx.json"), decoder_heads=heads)
    io = load_file(folder / "io.safetensors")
    theirs = json.loads((folder / "word2idx.json").read_text(encoding="utf-8"))
    numbers = {word: index for index, word in enumerate(sorted(theirs, key=theirs.__getitem__))}
    ours = [f"[{word[1:-1].upper()}]" if word[0] == "<" else word for word in model.vocabulary.words]
    rows = [numbers[word] for word in ours]
    images = (io["video"].movedim(2, 1)[:, [0, -1]] * 255).round().byte()
    with torch.no_grad():
        tokens = torch.tensor([[rows.index(int(i)) for i in row] for row in io["input_ids"]])
        scores = model.net.logits(model.net.encode(images), tokens[:, None])[:, 0]
    # rounding the fixture's float images to bytes changes its scores far less than the scores of its words differ
    assert float((scores - io["scores"][..., rows]).abs().max()) < 0.05 * float(io["scores"].std())


class Hostile:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_reading_a_file_runs_no_code(zipped: bool, tmp_path: Path) -> None:
    trace = tmp_path / "PWNED"
    content = {"model": {"a": torch.ones(2)}, "opt": Hostile(trace), "more": [Hostile(trace)]}
    torch.save(content, tmp_path / "file.pt", _use_new_zipfile_serialization=zipped)
    found = read_foreign_checkpoint(tmp_path / "file.pt")
    assert not trace.exists()
    assert torch.equal(found["model"]["a"], torch.ones(2)) and isinstance(found["opt"], Inert)
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Hostile(trace)))
    with pytest.raises(CheckpointError):
        read_foreign_checkpoint(tmp_path / "raw.pt")
    assert not trace.exists()
