"""Starting points of a random vision-language model: a tower trained to classify cells, a trained language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.vlm_tiny import CAPTIONS, TEXT, architecture, samples, tokenizer
from torch import Tensor

from lightning_idc.models.loading import load_captioner
from lightning_idc.models.pretraining.cell_classification import naming_loss
from lightning_idc.models.vlm.loading import train_tokenizer
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.tower import TowerNaming, VisionTower
from lightning_idc.utils.errors import ConfigError

GRIDS = ["llava_onevision", "internvl", "idefics3"]


# ---- the tower -------------------------------------------------------------------------------------------


def naming_checkpoint(kind: str, path: Path) -> TowerNaming:
    torch.manual_seed(5)
    naming = TowerNaming(architecture(kind))
    for parameter in naming.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    torch.save({"state_dict": naming.state_dict()}, path)
    return naming.eval()


@pytest.mark.parametrize("kind", GRIDS)
def test_the_model_sees_with_the_tower_that_named_cells(kind: str, tmp_path: Path) -> None:
    naming = naming_checkpoint(kind, tmp_path / "tower.ckpt")
    model = VLMCaptioner(
        architecture=architecture(kind), tokenizer=tokenizer(kind), tower_weights=str(tmp_path / "tower.ckpt")
    )
    model.build()
    model.eval()
    (path,) = model.net.family.vision  # type: ignore[union-attr]
    tower: Any = model.net.model.get_submodule(path)  # type: ignore[union-attr]
    images = torch.stack([torch.stack([s.before, s.after]) for s in samples(2, 32)])
    pixels = model.net.family.pixels(model.net.model, model.net.processor, images)["pixel_values"]  # type: ignore[union-attr]
    with torch.no_grad():
        seen = tower(pixel_values=pixels.reshape(-1, *pixels.shape[-3:])).last_hidden_state[:, -16:]
        grid = naming.backbone(images.flatten(0, 1))
    assert grid.shape == (4, 24, 4, 4)
    torch.testing.assert_close(grid.flatten(2).mT, seen, rtol=1e-5, atol=1e-5)
    assert "tower_weights" not in model.hparams


def test_cells_are_named_row_by_row() -> None:
    """Without attention, a vertical edge changes the features of some columns, but the same in all rows."""
    torch.manual_seed(0)
    tower = VisionTower(architecture("llava_onevision")).eval()
    for layer in tower.tower.encoder.layers:
        torch.nn.init.zeros_(layer.self_attn.out_proj.weight)
    torch.nn.init.zeros_(tower.tower.embeddings.position_embedding.weight)
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    images[..., 24:] = 200
    with torch.no_grad():
        grid = tower(images)[0]
    assert torch.allclose(grid, grid[:, :1].expand_as(grid), atol=1e-5)
    assert torch.allclose(grid[..., 0], grid[..., 2], atol=1e-5)
    assert not torch.allclose(grid[..., 0], grid[..., 3], atol=1e-2)


def test_a_step_trains_the_whole_tower() -> None:
    naming = TowerNaming(architecture("llava_onevision"))
    cells = torch.randint(0, 3, (2, 4, 4, 4))
    naming_loss(naming(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)), cells).backward()
    assert [name for name, p in naming.named_parameters() if p.grad is None] == []


def test_towers_without_a_grid_and_images_of_another_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="by windows"):
        TowerNaming(architecture("qwen2_5_vl"))
    with pytest.raises(ConfigError, match="set the data module's render_size"):
        VisionTower(architecture("llava_onevision"))(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))


# ---- the language model ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small causal language model and its own tokenizer; return the folder."""
    from tokenizers import Tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("reader")
    known = Tokenizer.from_str(train_tokenizer(CAPTIONS, 300, ["<|done|>"]).replace("<end>", "<other>"))
    words = PreTrainedTokenizerFast(tokenizer_object=known, eos_token="<|done|>")
    torch.manual_seed(8)
    config = LlamaConfig(
        **{**TEXT, "vocab_size": len(words), "tie_word_embeddings": True}, eos_token_id=words.eos_token_id
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def with_reader(reader: Path, kind: str = "llava_onevision") -> VLMCaptioner:
    made = {name: value for name, value in architecture(kind).items() if name != "text_config"}
    model = VLMCaptioner(architecture=made, language_model=str(reader), captions_per_pair=3, max_length=6)
    model.build()
    return model.eval()


@pytest.mark.parametrize("kind", ["llava_onevision", "idefics3"])
def test_outputs_equal_those_of_the_language_model(reader: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = with_reader(reader, kind)
    words: Any = AutoTokenizer.from_pretrained(reader)
    ids = torch.tensor([words(CAPTIONS[0]).input_ids])
    assert model.tokenize([CAPTIONS[0]])[0][1:] == [*ids[0].tolist(), words.eos_token_id]
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(reader)(input_ids=ids).logits
        result = model.net.model(input_ids=ids).logits  # type: ignore[union-attr]
    # the vocabulary of the captioner also has the image tokens
    assert result.shape[-1] > expected.shape[-1]
    torch.testing.assert_close(result[..., : expected.shape[-1]], expected, rtol=1e-5, atol=1e-5)


def test_a_checkpoint_needs_the_language_model_no_more(reader: Path, tmp_path: Path) -> None:
    model = with_reader(reader)
    model.save_pretrained(tmp_path)
    again = load_captioner(tmp_path)
    assert "language_model" not in again.hparams and again.hparams["text_config"]["model_type"] == "llama"
    batch = model.collate(samples())

    def scores(of: Any) -> Tensor:
        with torch.no_grad():
            return of.score(of.encode(batch), batch.tokens, batch.caption_mask)

    assert torch.equal(scores(again), scores(model))
    assert again.vocabulary.special == model.vocabulary.special  # type: ignore[union-attr]


def test_a_later_stage_takes_the_language_model_from_its_checkpoint(reader: Path, tmp_path: Path) -> None:
    first = with_reader(reader)
    state = {"state_dict": first.state_dict(), "hyper_parameters": dict(first.hparams)}
    torch.save(state, tmp_path / "a.ckpt")
    made = {name: value for name, value in architecture("llava_onevision").items() if name != "text_config"}
    later = VLMCaptioner(architecture=made, language_model="gone/away", init_from=str(tmp_path / "a.ckpt"))
    later.build()
    # when testing, the command line takes from the checkpoint what the configuration does not specify
    told = {name: first.hparams[name] for name in ("tokenizer", "text_config")}
    tested = VLMCaptioner(architecture=made, language_model="gone/away", **told)
    tested.build()
    assert tested.state_dict().keys() == first.state_dict().keys()
    for name, value in first.state_dict().items():
        assert torch.equal(later.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "x", "language_model": "y"}, "initialize a random `architecture`"),
        ({"model": "x", "tower_weights": "y"}, "initialize a random `architecture`"),
    ],
)
def test_invalid_combinations_raise_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VLMCaptioner(**options)


def test_a_language_model_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_idc.models.vlm import loading

    made = architecture("llava_onevision")
    with pytest.raises(ConfigError, match="hf download nobody/no-such-model"):
        VLMCaptioner(architecture=made, language_model="nobody/no-such-model").build()
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install gguf"):
        VLMCaptioner(architecture=made, language_model="no_such/file.gguf").build()
    monkeypatch.setattr(loading, "find_spec", lambda name: True if name == "gguf" else None)
    with pytest.raises(ConfigError, match="no installed package 'no_such'"):
        VLMCaptioner(architecture=made, language_model="no_such/file.gguf").build()
