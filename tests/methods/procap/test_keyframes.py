"""Keyframes: Eq. 2 in float64, the frequency with which each frame is sampled, and the similarities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_idc.images.types import PairSample
from lightning_idc.methods.procap.flow import CrossFade
from lightning_idc.methods.procap.interpolation import FrameSimilarity, interpolate
from lightning_idc.methods.procap.keyframes import (
    Keyframes,
    TokenizerSimilarity,
    VisualSimilarity,
    VisualTextSimilarity,
    confidence,
    draw_keyframes,
    evenly_spaced,
    mixed_confidence,
)
from lightning_idc.methods.procap.procedures import ProcedureFolder
from lightning_idc.nn.image_tokenizer import CONFIG_KEY, ImageTokenizer, as_pixels
from lightning_idc.synthesis.models.pretrained import DinoImages
from lightning_idc.utils.errors import ConfigError, DataError

# cosines of a cross-fade: the first frame resembles the before image, the last one the after image
COSINES = torch.tensor([[0.99, 0.97, 0.95, 0.93, 0.91, 0.89, 0.86], [0.87, 0.89, 0.91, 0.93, 0.95, 0.97, 0.99]])


def test_confidence_equals_eq_2() -> None:
    before, after = COSINES.double()
    square = (3.0 * (before - after)) ** 2
    expected = 1 - square.exp() / square.exp().sum()
    assert torch.allclose(confidence(COSINES.double(), 3.0), expected)
    assert torch.allclose(confidence(COSINES.double()).sum(), torch.tensor(6.0).double())


def test_confidence_of_plain_and_scaled_cosines() -> None:
    plain, scaled = confidence(COSINES, 1.0), confidence(COSINES)
    assert float(plain.max() - plain.min()) < 0.005
    assert float(scaled.min()) < 0.2 and int(scaled.argmin()) == 6
    assert float(scaled[3]) > 0.99


def test_keyframes_are_sampled_by_confidence() -> None:
    weights = torch.tensor([0.9, 0.5, 0.1, 1.0])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([draw_keyframes(weights, 2, generator) for _ in range(4000)])
    assert bool((drawn[:, 0] < drawn[:, 1]).all())
    frequencies = torch.bincount(drawn.flatten(), minlength=4) / len(drawn)
    p = weights.double() / weights.double().sum()
    # sampled first, or second after any other frame
    expected = p + torch.stack([sum(p[j] * p[i] / (1 - p[j]) for j in range(4) if j != i) for i in range(4)])
    assert float((frequencies - expected).abs().max()) < 0.03


def test_frames_with_zero_confidence_can_be_sampled() -> None:
    assert draw_keyframes(torch.zeros(3), 3, torch.Generator().manual_seed(0)).tolist() == [0, 1, 2]


def sample(name: str = "pair", seed: int | None = None) -> PairSample:
    generator = torch.Generator().manual_seed(5)
    before, after = torch.randint(0, 256, (2, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return PairSample(name, before, after, ["it changed"], meta={} if seed is None else {"seed": seed})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pair = torch.stack([sample().before, sample().after])[None]
    frames = interpolate(pair, 7, CrossFade())
    procedures = ProcedureFolder(tmp_path)
    procedures.check_settings({"frames": 7})
    procedures.add(["pair"], pair, frames, COSINES[None])
    procedures.add(["plain"], pair, frames, None)
    return tmp_path


def test_keyframes_with_and_without_a_seed(folder: Path) -> None:
    keyframes = Keyframes(folder, 2)
    procedure = keyframes.procedures.of("pair", sample().before, sample().after)
    best = keyframes.of(sample())
    # most confidences round to 1 in float32; by the squared differences of Eq. 2, frame 3 is best, followed by 2 or 4
    ends = (sample().before[None], sample().after[None])
    expected = [torch.cat([ends[0], procedure.frames[[*chosen]], ends[1]]) for chosen in ((2, 3), (3, 4))]
    assert any(torch.equal(best, frames) for frames in expected)
    drawn = {keyframes.of(sample(seed=seed)).numpy().tobytes() for seed in range(30)}
    assert len(drawn) > 5, "another seed, as every epoch brings, draws other frames"
    assert torch.equal(keyframes.of(sample(seed=4)), keyframes.of(sample(seed=4)))
    assert keyframes.of(sample("plain", seed=1)).shape == (4, 3, 16, 16)


def test_rejects_too_many_keyframes_and_empty_folders(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(DataError, match="procedures have 7 frames; expected 8 or more"):
        Keyframes(folder, 8).of(sample())
    with pytest.raises(DataError, match="no procedures"):
        Keyframes(tmp_path_factory.mktemp("empty"), 2)


def test_rejects_missing_interpolator_similarity(folder: Path) -> None:
    assert len(Keyframes(folder, 2, similarity="own").of(sample())) == 4
    with pytest.raises(DataError, match="has no similarity 'own' of the pair 'plain'"):
        Keyframes(folder, 2, similarity="own").of(sample("plain"))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"count": -1}, "count is -1; expected at least 0"),
        ({"length": 0}, "length is 0; expected at least 1"),
        ({"length": -1}, "length is -1; expected at least 1"),
        ({"similarity": {}}, r"similarity is \{\}; expected"),
        ({"similarity": {"own": 0.0}}, "similarity is {'own': 0.0}; expected"),
        ({"scale": math.nan}, "scale is nan; expected at least 0"),
    ],
)
def test_rejects_invalid_arguments(folder: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Keyframes(folder, **{"count": 2, **options})


def test_zero_keyframes_are_the_two_images(tmp_path: Path) -> None:
    for seed in (None, 3):
        assert torch.equal(Keyframes(tmp_path, 0).of(sample(seed=seed)), torch.stack([sample().before, sample().after]))


def test_evenly_spaced_equals_the_official_code() -> None:
    # positions among nine frames (both images included) are round(i / (k + 1) * 8)
    assert [evenly_spaced(7, k) for k in (1, 2, 4, 7)] == [[3], [2, 4], [1, 2, 4, 5], [0, 1, 2, 3, 4, 5, 6]]


def test_length_selects_every_second_frame(folder: Path) -> None:
    frames = Keyframes(folder, 7).of(sample())[1:-1]
    assert torch.equal(Keyframes(folder, 3, length=3).of(sample("plain"))[1:-1], frames[[1, 3, 5]])
    chosen = confidence(COSINES[:, [1, 3, 5]]).topk(1).indices
    assert torch.equal(Keyframes(folder, 1, length=3).of(sample())[1], frames[[1, 3, 5]][chosen][0])
    with pytest.raises(ConfigError, match="expected a number of evenly spaced frames of a procedure of 7"):
        Keyframes(folder, 1, length=2).of(sample())


class Constant(nn.Module):
    """The middle frame is more similar to the before image than to the after image, so it has the lowest confidence."""

    def forward(self, pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        assert frames.dtype == torch.uint8 and all(captions)
        actual = torch.full((len(pairs), 2, frames.shape[1]), 0.5)
        actual[:, 0, 3] = 0.9
        return actual


def test_keyframes_by_another_similarity(folder: Path) -> None:
    pair = {"images": torch.stack([sample().before, sample().after])[None], "ids": ["pair"], "captions": [["it"]]}
    measure = FrameSimilarity(str(folder), Constant(), "constant")
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    assert trainer.predict(measure, DataLoader([pair, pair], batch_size=None)) == [["pair"], []]
    frames = Keyframes(folder, 7).of(sample())[1:-1]
    six = Keyframes(folder, 6, similarity="constant").of(sample())[1:-1]
    assert torch.equal(six, frames[[0, 1, 2, 4, 5, 6]]), "it left out the frame that this measure trusts least"
    flat = {tuple(Keyframes(folder, 6, similarity="random").of(sample(seed=n)).flatten().tolist()) for n in range(60)}
    assert len(flat) == 7, "any frame may be left out"
    Keyframes(folder, 2, similarity={"constant": 0.7, "own": 0.3}).of(sample())
    with pytest.raises(DataError, match="no similarity 'other'"):
        Keyframes(folder, 2, similarity="other").of(sample())


# similarities of the same cross-fade by an image network: the steps are not of equal size
VISUAL = torch.tensor([[0.97, 0.90, 0.82, 0.70, 0.55, 0.42, 0.35], [0.31, 0.40, 0.57, 0.72, 0.80, 0.91, 0.98]])
WEIGHTS = {"own": 0.7, "visual": 0.3}


def mixed_in_float64(similarities: dict[str, Tensor]) -> Tensor:
    """1 - softmax(0.7 a + 0.3 b) without a scale; a and b are squared differences rescaled to the range 0 to 1."""
    total = torch.zeros(similarities["own"].shape[1], dtype=torch.float64)
    for name, weight in WEIGHTS.items():
        before, after = similarities[name].double()
        squares = [float((x - y) ** 2) for x, y in zip(before, after, strict=True)]
        total += weight * torch.tensor([(x - min(squares)) / (max(squares) - min(squares)) for x in squares]).double()
    return 1 - total.exp() / total.exp().sum()


def test_mixed_confidence_equals_its_formula() -> None:
    actual = mixed_confidence({"own": COSINES.double(), "visual": VISUAL.double()}, WEIGHTS)
    expected = mixed_in_float64({"own": COSINES, "visual": VISUAL})
    assert torch.allclose(actual, expected, atol=1e-6)
    assert 0.75 < float(actual.min()) < 0.8 and 0.9 < float(actual.max()) < 0.92, "no frame is ruled out"
    even = torch.full((7,), 6 / 7)
    assert torch.allclose(mixed_confidence({"own": COSINES * 0, "visual": VISUAL * 0}, WEIGHTS), even)


def test_keyframes_by_mixed_confidence(folder: Path) -> None:
    store = ProcedureFolder(folder).similarities("visual")
    store.add(["pair", "plain"], scores=[VISUAL.tolist(), VISUAL.tolist()])
    keyframes = Keyframes(folder, 2, similarity=WEIGHTS)
    drawn = keyframes.procedures.of("pair", sample().before, sample().after).frames
    weights = mixed_in_float64({"own": COSINES, "visual": VISUAL})
    for seed in range(40):
        chosen = draw_keyframes(weights, 2, torch.Generator().manual_seed(seed))
        assert torch.equal(keyframes.of(sample(seed=seed))[1:-1], drawn[chosen])
    # frames that are not candidates do not affect the rescaling either
    three = mixed_in_float64({"own": COSINES[:, 1::2], "visual": VISUAL[:, 1::2]})
    best = three.topk(2).indices.sort().values
    assert torch.equal(Keyframes(folder, 2, length=3, similarity=WEIGHTS).of(sample())[1:-1], drawn[1::2][best])
    with pytest.raises(DataError, match="'own' of the pair 'plain'"):
        keyframes.of(sample("plain"))


def fade() -> tuple[Tensor, Tensor]:
    pairs = torch.stack([torch.stack([s.before, s.after]) for s in (sample(), sample())])
    return pairs, interpolate(pairs, 3, CrossFade())


def small_dino(folder: Path) -> DinoImages:
    """Save a small DINOv2 with random weights that accepts frames of any size, and load it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    transformers.Dinov2Model(transformers.Dinov2Config(**sizes, image_size=28, patch_size=14)).save_pretrained(folder)
    processor = transformers.BitImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor.save_pretrained(folder)
    return DinoImages(str(folder))


def dino_class_token(folder: Path, image: Tensor) -> Tensor:
    """Class token computed by transformers, one image at a time."""
    from transformers import AutoImageProcessor, AutoModel

    inputs = AutoImageProcessor.from_pretrained(folder)(images=image.permute(1, 2, 0).numpy(), return_tensors="pt")
    with torch.no_grad():
        return AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state[0, 0]


@pytest.mark.slow
def test_visual_similarity_equals_cosines(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = ImageTokenizer(16, latent=8, width=8, multipliers=[1, 2], blocks=1, patch_size=4)
    state = {f"net.tokenizer.{key}": value for key, value in tokenizer.state_dict().items()}
    torch.save({"state_dict": state, CONFIG_KEY: tokenizer.config}, tmp_path / "t.ckpt")
    by_tokenizer, dino = TokenizerSimilarity(str(tmp_path / "t.ckpt")), VisualSimilarity(small_dino(tmp_path / "dino"))
    feature_functions = {
        by_tokenizer: lambda image: tokenizer.features(as_pixels(image[None])).flatten(),
        dino: lambda image: dino_class_token(tmp_path / "dino", image),
    }
    pairs, frames = fade()
    for similarity, feature_function in feature_functions.items():
        actual = similarity(pairs, torch.cat([pairs[:, :1], frames], 1), [[], []])
        assert actual.shape == (2, 2, 4)
        assert torch.allclose(actual[:, 0, 0], torch.ones(2), atol=1e-5), "every image is like itself"
        with torch.no_grad():
            expected = torch.cosine_similarity(feature_function(pairs[1, 1]), feature_function(frames[1, 2]), dim=0)
        assert torch.allclose(actual[1, 1, 3], expected, atol=1e-5)


def test_tokenizer_similarity_in_bfloat16(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = ImageTokenizer(16, latent=8, width=8, multipliers=[1, 2], blocks=1, patch_size=4)
    state = {f"net.tokenizer.{key}": value for key, value in tokenizer.state_dict().items()}
    torch.save({"state_dict": state, CONFIG_KEY: tokenizer.config}, tmp_path / "t.ckpt")
    similarity = TokenizerSimilarity(str(tmp_path / "t.ckpt"))
    expected = similarity(*fade(), [[], []])
    assert torch.allclose(similarity.bfloat16()(*fade(), [[], []]).float(), expected, atol=0.02)


class Means(nn.Module):
    """Embeds a pair by the mean colours of both images, and a caption by its letter counts."""

    def embed_pairs(self, images: Tensor) -> Tensor:
        return nn.functional.normalize(images.float().mean((3, 4)).flatten(1) - 128, dim=-1)

    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        rows = [[float(caption.count(letter)) for letter in "abcdef"] for caption in captions]
        return nn.functional.normalize(torch.tensor(rows), dim=-1)


def test_visual_text_similarity_equals_the_mean_cosine() -> None:
    pairs, frames = fade()
    captions = [["a bad cab", "fed"], ["face"]]
    actual = VisualTextSimilarity(Means())(pairs, frames, captions)
    encoder = Means()
    for row in range(2):
        for frame in range(3):
            middle = frames[row, frame]
            halves = torch.stack([torch.stack([pairs[row, 0], middle]), torch.stack([middle, pairs[row, 1]])])
            expected = (encoder.embed_pairs(halves) @ encoder.embed_captions(captions[row]).T).mean(1)
            assert torch.allclose(actual[row, :, frame], expected, atol=1e-6)
    with pytest.raises(DataError, match="no caption"):
        VisualTextSimilarity(Means())(pairs, frames, [["a"], []])
    with pytest.raises(ConfigError, match="embed_pairs"):
        VisualTextSimilarity(nn.Linear(1, 1))
