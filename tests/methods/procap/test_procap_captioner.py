"""The second stage: queries, initialisation from the first stage, explicit frames, checkpoints."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers.procap_tiny import QUIET, data, first_stage, prepared, second_stage
from lightning.pytorch import Callback, Trainer, seed_everything

from lightning_idc.callbacks import CacheFeatures, UnchangedControl
from lightning_idc.methods.namc.dual_encoder import SmallDualEncoder, vocabulary_with_mask
from lightning_idc.methods.namc.noise_masking import NoiseMasking
from lightning_idc.methods.procap.module import ProCap
from lightning_idc.methods.procap.procedures import ProcedureFolder
from lightning_idc.models.loading import load_captioner
from lightning_idc.models.schedules import Constant, WarmupLinear
from lightning_idc.nn.decoding.decoding import greedy, greedy_uncached
from lightning_idc.nn.image_tokenizer import ConvEncoder
from lightning_idc.nn.vocabulary import Vocabulary, words_of
from lightning_idc.utils.errors import CheckpointError, ConfigError, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = prepared(tmp_path_factory.mktemp("procap"))
    seed_everything(1, verbose=False)
    trainer = Trainer(**QUIET, max_epochs=1, enable_checkpointing=False)
    trainer.fit(first_stage(path), data(path))
    trainer.save_checkpoint(path / "first.ckpt")
    return path


WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "the", "cube", "moved"]


def built(folder: Path, **options: object) -> ProCap:
    seed_everything(1, verbose=False)
    model = second_stage(folder, vocabulary=WORDS, max_length=6, **options)
    model.build()
    return model.eval()


def images(count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 256, (count, 2, 3, 16, 16), generator=generator, dtype=torch.uint8)


@pytest.mark.slow
def test_queries_are_mask_embeddings_with_positions(folder: Path) -> None:
    encoder = built(folder, queries=2).net.encoder
    ends = torch.randn(2, 2, 16, 16)
    torch.nn.init.normal_(encoder.mask_embedding)
    tokens = encoder.queries(ends) - encoder.position_embeddings()
    assert torch.allclose(tokens[:, :16], ends[:, 0], atol=1e-6) and torch.allclose(
        tokens[:, 48:], ends[:, 1], atol=1e-6
    )
    assert torch.allclose(tokens[:, 16:48], encoder.mask_embedding.expand(2, 32, -1), atol=1e-6)
    # in Eq. 9, tokens are ordered by frame, then by row
    positions = encoder.position_embeddings().view(4, 4, 4, -1)
    assert torch.allclose(
        positions[2, 1, 3], encoder.frame_embed[2, 0, 0] + encoder.row_embed[1, 0] + encoder.column_embed[3]
    )


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize("queries", [0, 1, 3])
def test_cached_decoding_equals_uncached(folder: Path, variant: str, queries: int) -> None:
    net = built(folder, queries=queries, variant=variant).net
    torch.nn.init.normal_(net.decoder.get_parameter("bias" if variant == "paper" else "words.bias"))
    features = net.encode(images())
    assert features.memory.shape == (3, (queries + 2) * 16, 16)
    cached, plain = greedy(net, features, 6), greedy_uncached(net, features, 6)
    assert cached.ids == plain.ids
    assert torch.allclose(torch.tensor(cached.mean_log_probs), torch.tensor(plain.mean_log_probs), atol=1e-5)


@pytest.mark.slow
def test_tokenizer_is_frozen_and_all_other_parameters_learn(folder: Path) -> None:
    model = built(folder).train()
    model.score(
        model.net.encode(images()), torch.tensor([[[1, 4, 5, 2]]]).expand(3, 1, 4), torch.ones(3, 1, 4)
    ).sum().backward()
    lost = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert lost == []
    assert not any(p.requires_grad for p in model.net.tokenizer.parameters())
    assert {group["name"] for group in model.parameter_groups()} == {"vision", "language"}


@pytest.mark.slow
def test_loads_the_encoder_of_the_first_stage(folder: Path) -> None:
    expected = torch.load(folder / "first.ckpt", weights_only=True)["state_dict"]
    model = built(folder, tokenizer=None, procedure=str(folder / "first.ckpt"))
    for name, value in model.net.encoder.state_dict().items():
        assert torch.equal(value, expected[f"net.encoder.{name}"])
    for name, value in model.net.tokenizer.state_dict().items():
        assert torch.equal(value, expected[f"net.tokenizer.{name}"])
    static = built(folder, procedure=str(folder / "first.ckpt"), queries=0).net.encoder
    assert torch.equal(static.frame_embed, expected["net.encoder.frame_embed"][[0, 3]])
    with pytest.raises(CheckpointError, match="another shape"):
        built(folder, procedure=str(folder / "first.ckpt"), queries=1)
    with pytest.raises(CheckpointError, match="no procedure encoder"):
        built(folder, procedure=str(folder / "tokenizer.ckpt"))


def test_rejects_a_first_stage_of_another_tokenizer(folder: Path, tmp_path: Path) -> None:
    other = torch.load(folder / "tokenizer.ckpt", weights_only=True)
    for name, value in other["state_dict"].items():
        if "encoder" in name:
            other["state_dict"][name] = value + 0.01
    torch.save(other, tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match="was trained with a different tokenizer"):
        built(folder, tokenizer=str(tmp_path / "other.ckpt"), procedure=str(folder / "first.ckpt"))


def test_rejects_missing_files(folder: Path) -> None:
    with pytest.raises(ConfigError, match="needs an image tokenizer"):
        built(folder, tokenizer=None)
    with pytest.raises(ConfigError, match="size of the images"):
        built(folder, image_size=None)
    with pytest.raises(CheckpointError, match="has the variant 'paper'"):
        built(folder, variant="official", procedure=str(folder / "first.ckpt"))
    with pytest.raises(ConfigError, match="queries is -1"):
        second_stage(folder, queries=-1)
    with pytest.raises(DataError, match="expected 16x16"):
        built(folder).net.encode(torch.zeros(1, 2, 3, 24, 24, dtype=torch.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"variant": "official", "queries": 1}], ids=["paper", "official"])
def test_trained_checkpoint_is_self_contained(folder: Path, tmp_path: Path, options: dict[str, object]) -> None:
    seed_everything(2, verbose=False)
    # a copy that the test can delete
    (tmp_path / "tokenizer.ckpt").write_bytes((folder / "tokenizer.ckpt").read_bytes())
    model = second_stage(folder, **{"tokenizer": str(tmp_path / "tokenizer.ckpt"), **options})
    trainer = Trainer(**QUIET, max_epochs=1, enable_checkpointing=False)
    trainer.fit(model, data(folder))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    (tmp_path / "tokenizer.ckpt").unlink()
    model.save_pretrained(tmp_path / "shared")
    sample = data(folder).pairs_of("test").load(0)
    said = model.describe(sample.before, sample.after)
    for again in (load_captioner(tmp_path / "last.ckpt"), ProCap.from_pretrained(tmp_path / "shared")):
        assert again.describe(sample.before, sample.after) == said
    assert "test/CIDEr-D" in Trainer(**QUIET).test(again, data(folder), verbose=False)[0]


@pytest.mark.slow
def test_explicit_frames_replace_queries(folder: Path) -> None:
    seed_everything(2, verbose=False)
    model = second_stage(folder, explicit_frames=str(folder / "procedures"))
    Trainer(**QUIET, max_epochs=1, enable_checkpointing=False).fit(model, data(folder))
    source = data(folder).pairs_of("val")
    batch = model.collate([source.load(0), source.load(1)])
    frames = batch.model_inputs["frames"]
    assert frames.shape == (2, 4, 3, 16, 16) and torch.equal(frames[:, [0, 3]], batch.images)
    with torch.no_grad():
        explicit = model.eval().encode(batch).memory
        assert not torch.allclose(explicit, model.net.encode(batch.images).memory)
    kept = ProcedureFolder(folder / "procedures")
    for row, own in enumerate(frames):
        assert torch.equal(own[1:3], kept.of(batch.ids[row], own[0], own[3]).frames[[2, 4]]), "evenly spaced"
    assert not model.net.encoder.mask_embedding.requires_grad, "it stands nowhere"
    with pytest.raises(DataError, match="no procedure of the pair"):
        model.describe(batch.images[0, 0], batch.images[0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_explicit_frames_of_equal_images(folder: Path, variant: str, tmp_path: Path) -> None:
    seed_everything(2, verbose=False)
    model = second_stage(folder, variant=variant, explicit_frames=str(folder / "procedures"))
    Trainer(**QUIET, max_epochs=1, enable_checkpointing=False).fit(model, data(folder))
    source = data(folder).pairs_of("test")
    batch = model.eval().collate([source.load(0), source.load(1)])
    same = batch.images[:, :1].expand_as(batch.images)
    shown = model.with_images(batch, same)
    assert torch.equal(shown.model_inputs["frames"], same[:, :1].expand(-1, 4, -1, -1, -1))
    with torch.no_grad():
        seen = model.net.encode_frames(torch.stack([same[:, 0]] * 4, 1)).memory
        assert torch.equal(model.encode(shown).memory, seen)
        assert not torch.allclose(model.encode(batch).memory, seen), "the batch itself is as it was"
    seen_by: list[torch.Tensor] = []
    encode = model.encode
    model.encode = lambda batch: (seen_by.append(batch.model_inputs["frames"]), encode(batch))[1]  # type: ignore
    trainer = Trainer(**QUIET, callbacks=[UnchangedControl()], default_root_dir=tmp_path)
    trainer.test(model, data(folder), verbose=False)
    asked, control = seen_by
    assert torch.equal(control, asked[:, :1].expand_as(asked)) and not torch.equal(control, asked)
    with pytest.raises(ConfigError, match=r"reads the frames in .*`fill_masked: false`"):
        model.with_images(batch, batch.images.flip(1))


@pytest.mark.slow
def test_noise_masking_rejects_explicit_frames(folder: Path, tmp_path: Path) -> None:
    words = Vocabulary.build(data(folder).train_captions()).words
    encoder = SmallDualEncoder(vocabulary_with_mask(words), (4, 4), width=8)
    for model in (second_stage(folder, explicit_frames=str(folder / "procedures")), first_stage(folder)):
        for paint in (True, False):
            masking = NoiseMasking(encoder, image_mask_ratio=0.5 if paint else 0.0, fill_masked=paint)
            options = {**QUIET, "max_steps": 1, "limit_val_batches": 0, "enable_checkpointing": False}
            trainer = Trainer(**options, callbacks=[masking], default_root_dir=tmp_path)
            if paint:
                with pytest.raises(ConfigError, match="an add-on that changes images has no effect"):
                    trainer.fit(copy.deepcopy(model), data(folder))
            else:
                trainer.fit(copy.deepcopy(model), data(folder))


def test_encoder_schedule(folder: Path) -> None:
    seed_everything(2, verbose=False)
    model = second_stage(
        folder,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3),
        schedule=WarmupLinear(warmup=0.5, floor=1.0),
        encoder_schedule=Constant(),
        learning_rates={"vision": 0.4},
    )
    trainer = Trainer(**QUIET, max_steps=1, enable_checkpointing=False, limit_val_batches=0)
    trainer.fit(model, data(folder))
    rates = {group["name"]: group["lr"] for group in trainer.optimizers[0].param_groups}
    assert rates["vision"] == pytest.approx(4e-4) and rates["language"] == pytest.approx(1e-3)
    assert trainer.optimizers[0].param_groups[0]["initial_lr"] in (pytest.approx(4e-4), pytest.approx(1e-3))


def test_encoder_init_from_clip(folder: Path, tmp_path: Path) -> None:
    blocks = {name: value for name, value in built(folder).net.encoder.state_dict().items() if name[:7] == "layers."}
    theirs = {f"visual.transformer.resblocks.{theirs_of(name[7:])}": value + 1 for name, value in blocks.items()}
    torch.save(theirs, tmp_path / "clip.pt")
    model = built(folder, encoder_init=str(tmp_path / "clip.pt"))
    found = model.net.encoder.state_dict()
    assert all(torch.equal(found[name], value + 1) for name, value in blocks.items())
    assert "encoder_init" not in model.hparams


def theirs_of(name: str) -> str:
    """Map the name of a weight of our layer to its name in OpenAI's CLIP."""
    layer, _, rest = name.partition(".")
    for ours, clip in (("qkv.", "attn.in_proj_"), ("out.", "attn.out_proj."), ("norm_attention.", "ln_1.")):
        rest = rest.replace(ours, clip)
    for ours, clip in (("norm_feed.", "ln_2."), ("feed.0.", "mlp.c_fc."), ("feed.2.", "mlp.c_proj.")):
        rest = rest.replace(ours, clip)
    return f"{layer}.{rest}"


def test_min_word_count_and_no_decay(folder: Path) -> None:
    model = second_stage(folder, variant="official", min_word_count=4, no_decay=["bias"])
    trainer = Trainer(**QUIET, max_steps=1, enable_checkpointing=False, limit_val_batches=0)
    trainer.fit(model, data(folder))
    counts = Counter(word for caption in data(folder).train_captions() for word in words_of(caption))
    assert set(model.vocabulary.words[4:]) == {word for word, count in counts.items() if count > 3} < set(counts)
    decay = {group["name"]: group["weight_decay"] for group in trainer.optimizers[0].param_groups}
    assert decay["vision"] == decay["language"] > decay["vision.no_decay"] == decay["language.no_decay"] == 0
    spared = [p for group in trainer.optimizers[0].param_groups if not group["weight_decay"] for p in group["params"]]
    biases = [p for name, p in model.named_parameters() if name.endswith("bias") and p.requires_grad]
    assert biases and set(map(id, spared)) == set(map(id, biases))


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_rejects_training_pairs_without_captions(folder: Path, variant: str) -> None:
    model = built(folder, variant=variant)
    samples = [data(folder).pairs_of("train").load(index) for index in range(2)]
    samples[1].captions = []
    batch = model.collate(samples)
    with pytest.raises(DataError, match=f"no caption to train on for {samples[1].id}"):
        model.caption_loss(model.encode(batch), batch)


def test_official_captions_have_at_most_24_tokens(folder: Path) -> None:
    words = ["the"] * 40
    rows = {kind: built(folder, variant=kind).tokenize([" ".join(words)])[0] for kind in ("paper", "official")}
    assert len(rows["paper"]) == 42 and rows["official"] == [*rows["paper"][:23], rows["paper"][-1]]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_cached_features_encode_each_image_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    counts: list[int] = []
    forward = ConvEncoder.forward
    monkeypatch.setattr(ConvEncoder, "forward", lambda self, x: (counts.append(len(x)), forward(self, x))[1])

    def fitted(*callbacks: Callback) -> ProCap:
        seed_everything(1, verbose=False)
        counts.clear()
        trainer = Trainer(
            **QUIET, max_epochs=3, limit_val_batches=0, enable_checkpointing=False, callbacks=list(callbacks)
        )
        trainer.fit(model := second_stage(folder, variant=variant), data(folder))
        return model

    plain = fitted()
    assert sum(counts) == 3 * 2 * 10 and not plain.train().net.tokenizer.training
    cached = fitted(CacheFeatures(tmp_path, module="net.tokenizer.encoder", always=True))
    assert sum(counts) == 2 * 10
    for name, value in cached.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-3, atol=1e-5)
    with pytest.raises(ConfigError, match=r"without a call of 'net.tokenizer'.*set `module` to.*net.tokenizer.encoder"):
        fitted(CacheFeatures(tmp_path, module="net.tokenizer", always=True))


@pytest.mark.slow
def test_cached_features_in_bfloat16(folder: Path, tmp_path: Path) -> None:
    def fitted(*callbacks: Callback) -> ProCap:
        seed_everything(4, verbose=False)
        trainer = Trainer(
            **QUIET, max_epochs=1, precision="bf16-mixed", enable_checkpointing=False, callbacks=list(callbacks)
        )
        trainer.fit(model := second_stage(folder), data(folder))
        return model

    plain = fitted()
    for state in ("computed", "read"):
        cached = fitted(CacheFeatures(tmp_path, module="net.tokenizer.encoder", always=True))
        for name, value in cached.state_dict().items():
            torch.testing.assert_close(value, plain.state_dict()[name], rtol=0.02, atol=2e-3, msg=f"{state}: {name}")
