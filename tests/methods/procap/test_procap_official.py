"""The official variant compared with values of the authors' code, and its cached decoding compared with theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lightning_idc.cli.convert import convert as convert_file
from lightning_idc.methods.procap.module import ProCap
from lightning_idc.methods.procap.official.convert import (
    below,
    convert,
    decoder_state,
    encoder_state,
    tokenizer_state,
    word_order,
)
from lightning_idc.methods.procap.official.encoder import (
    OfficialDecoder,
    OfficialEncoder,
    OfficialNet,
    smoothed_divergence,
)
from lightning_idc.nn.image_tokenizer import ImageTokenizer, load_image_tokenizer
from lightning_idc.utils.errors import CheckpointError, DataError

Fixture = tuple[dict[str, Tensor], dict[str, Tensor]]


def fixture(shared: Path, name: str) -> Fixture:
    folder = shared / "parity" / name
    if not folder.is_dir():
        pytest.skip(f"the parity fixture {name} is not in the shared folder")
    return load_file(folder / "weights.safetensors"), load_file(folder / "io.safetensors")


@pytest.fixture(scope="module")
def decoder(shared: Path) -> tuple[OfficialDecoder, dict[str, Tensor]]:
    weights, io = fixture(shared, "procap_decoder")
    net = OfficialDecoder(vocabulary=80, width=64, layers=2, heads=8, hidden=256, dropout=0.1).eval()
    net.load_state_dict(decoder_state(below(weights, "decoder.")))
    return net, io


def close(actual: Tensor, expected: Tensor) -> bool:
    return bool((actual - expected).abs().max() <= 1e-4 * max(1.0, float(expected.abs().max())))


def test_decoder_equals_the_official_code(decoder: tuple[OfficialDecoder, dict[str, Tensor]]) -> None:
    net, io = decoder
    scores = net(io["memory"], None, io["input_ids"][:, None])[:, 0]
    assert close(scores, io["scores"])
    loss = smoothed_divergence(scores, io["labels"].clamp(min=0), io["labels"] != -1)
    assert close(loss, io["loss"])
    net.zero_grad()
    loss.backward()
    expected = decoder_state(below(io, "grad.decoder."))
    actual = dict(net.named_parameters())
    assert set(expected) == set(actual)
    assert all(close(actual[name].grad, expected[name]) for name in actual)


def test_greedy_ids_equal_the_official_code(decoder: tuple[OfficialDecoder, dict[str, Tensor]]) -> None:
    net, io = decoder
    begin, unknown = 4, 6
    ids = io["greedy_ids"]
    with torch.no_grad():
        state = net.start(io["memory"], None)
        said = [torch.full((len(ids),), begin)]
        for _ in range(ids.shape[1] - 1):
            logits = net.step(state, said[-1])
            logits[:, unknown] = float("-inf")
            said.append(logits.argmax(-1))
    assert torch.equal(torch.stack(said, 1), ids)


def test_captions_share_one_memory(decoder: tuple[OfficialDecoder, dict[str, Tensor]]) -> None:
    net, io = decoder
    tokens = io["input_ids"].view(2, 3, -1)
    memory = io["memory"][[0, 3]]
    with torch.no_grad():
        together = net(memory, None, tokens)
        apart = net(memory.repeat_interleave(3, 0), None, tokens.flatten(0, 1)[:, None]).view_as(together)
    assert torch.allclose(together, apart, atol=1e-4)


@pytest.mark.slow
def test_second_stage_equals_the_official_code(shared: Path) -> None:
    weights, io = fixture(shared, "procap_stage2")
    trunk = below(weights, "intermediate_generator.")
    config, state = tokenizer_state(below(trunk, "vae.model."))
    tokenizer = ImageTokenizer(**config)
    tokenizer.load_state_dict(state)
    encoder = OfficialEncoder(256, grid=(14, 14), frames=4, width=64, layers=2, heads=1)
    decoder = OfficialDecoder(vocabulary=80, width=64, layers=2, heads=8, hidden=256, dropout=0.1)
    net = OfficialNet(tokenizer, encoder, decoder, 64).eval()
    net.encoder.load_state_dict(encoder_state(trunk))
    net.projector.load_state_dict(below(weights, "mlp."))
    net.decoder.load_state_dict(decoder_state(below(weights, "text_decoder.decoder.")))
    ends = io["video"].movedim(2, 1)[:, [0, -1]]
    with torch.no_grad():
        features = tokenizer.features(ends.flatten(0, 1)).unflatten(0, ends.shape[:2])
        memory = net.projector(net.encoder(net.encoder.queries(net.encoder.embed(features))))
        scores = net.decoder(memory, None, io["input_ids"][:, None])[:, 0]
    assert close(memory, io["memory"]) and close(scores, io["scores"])
    assert close(smoothed_divergence(scores, io["labels"].clamp(min=0), io["labels"] != -1), io["loss"])


def test_smoothed_divergence_equals_torch() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 5, 7, dtype=torch.float64), torch.randint(7, (2, 5))
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]]).bool()
    wanted = torch.full((2, 5, 7), 0.1 / 6, dtype=torch.float64).scatter(-1, targets[..., None], 0.9)
    expected = torch.nn.functional.kl_div(logits.log_softmax(-1)[mask], wanted[mask], reduction="sum")
    assert torch.allclose(smoothed_divergence(logits, targets, mask), expected)
    rounded = logits.bfloat16()
    assert torch.equal(smoothed_divergence(rounded, targets, mask), smoothed_divergence(rounded.float(), targets, mask))
    plain = torch.nn.functional.cross_entropy(logits[mask], targets[mask], reduction="sum")
    assert torch.allclose(smoothed_divergence(logits, targets, mask, smoothing=0.0), plain)


def test_word_order_begins_with_special_words() -> None:
    theirs = ["[PAD]", "[CLS]", "[SEP]", "[VID]", "[BOS]", "[EOS]", "[UNK]", "[MASK]", "cube", "sphere"]
    names, rows = word_order({word: index for index, word in enumerate(theirs)})
    assert names == ["<pad>", "<bos>", "<eos>", "<unk>", "<cls>", "<sep>", "<vid>", "<mask>", "cube", "sphere"]
    assert rows == [0, 4, 5, 6, 1, 2, 3, 7, 8, 9]
    with pytest.raises(DataError, match="begins with"):
        word_order({"cube": 0, "[PAD]": 1})


@pytest.mark.slow
def test_convert_second_stage(shared: Path, tmp_path: Path) -> None:
    weights, io = fixture(shared, "procap_stage2")
    words = ["[PAD]", "[CLS]", "[SEP]", "[VID]", "[BOS]", "[EOS]", "[UNK]", "[MASK]", *(f"w{i}" for i in range(72))]
    (tmp_path / "words.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    torch.save(
        {"model": {f"module.{key}": value for key, value in weights.items()}, "epoch": 3}, tmp_path / "last.chkpt"
    )
    model = convert(tmp_path / "last.chkpt", vocabulary=str(tmp_path / "words.json"))
    rows = [words.index(f"[{word[1:-1].upper()}]" if word[0] == "<" else word) for word in model.vocabulary.words]
    images = (io["video"].movedim(2, 1)[:2, [0, -1]] * 255).round().byte()
    with torch.no_grad():
        features = model.net.encode(images)
        ours = torch.tensor([[rows.index(int(i)) for i in row] for row in io["input_ids"][:2]])
        scores = model.net.logits(features, ours[:, None])[:, 0]
    # rounding the fixture's float images to bytes changes its scores far less than the scores of its words differ
    assert float((scores - io["scores"][:2][..., rows]).abs().max()) < 0.05 * float(io["scores"].std())
    model.save_pretrained(tmp_path / "out")
    again = ProCap.from_pretrained(tmp_path / "out")
    assert again.describe(images[0, 0], images[0, 1]) == model.describe(images[0, 0], images[0, 1])
    with pytest.raises(CheckpointError, match="has 80 words"):
        (tmp_path / "few.json").write_text(json.dumps({word: index for index, word in enumerate(words[:20])}))
        convert(tmp_path / "last.chkpt", vocabulary=str(tmp_path / "few.json"))
    torch.save({"model": {}}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="is not a second stage"):
        convert(tmp_path / "other.pt", vocabulary=str(tmp_path / "words.json"))


@pytest.mark.slow
def test_convert_vqgan(shared: Path, tmp_path: Path) -> None:
    weights, io = fixture(shared, "procap_stage2")
    state = below(weights, "intermediate_generator.vae.model.")
    torch.save({"state_dict": {**state, "loss.discriminator.weight": torch.zeros(1)}}, tmp_path / "vqgan.ckpt")
    assert convert_file("vqgan", tmp_path / "vqgan.ckpt", out=tmp_path / "tokenizer.ckpt") == 0
    tokenizer = load_image_tokenizer(tmp_path / "tokenizer.ckpt")
    assert torch.equal(tokenizer.codebook.weight, state["quantize.embedding.weight"])
    assert tokenizer.stride == 16 and tokenizer.codebook_size == 1024
    image = io["video"][:1, :, 0] * 2 - 1
    with torch.no_grad():
        ids = tokenizer.ids_of(tokenizer.features(image))
    assert ids.shape == (1, 14, 14) and len(ids.unique()) > 1
    with pytest.raises(CheckpointError, match="is not a VQGAN"):
        torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
        convert_file("vqgan", tmp_path / "other.ckpt", out=tmp_path / "x.ckpt")
