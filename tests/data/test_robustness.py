"""Corruptions. Oracle: the numbers of ImageNet-C, and diamond-square written out point by point."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.source import PairSource
from lightning_idc.data.transforms.robustness import (
    FOG,
    NOISE,
    Corrupted,
    Corruption,
    Fog,
    GaussianNoise,
    ReplaceWords,
    Severity,
    VagueCaptions,
    plasma,
)
from lightning_idc.images.types import PairSample
from lightning_idc.utils.errors import ConfigError

WORDS = [f"w{number}" for number in range(12)]


class Fixed(PairSource):
    def __init__(self, image: torch.Tensor, captions: list[list[str]]) -> None:
        self.image, self._captions = image, captions
        self.ids = [f"pair{number}" for number in range(len(captions))]

    def load(self, index: int) -> PairSample:
        return PairSample(self.ids[index], self.image, self.image, list(self._captions[index]))

    def captions(self, index: int) -> list[str]:
        return self._captions[index]

    def change_type(self, index: int) -> str | None:
        return None


def grey(value: int = 128, size: int = 64) -> torch.Tensor:
    return torch.full((3, size, size), value, dtype=torch.uint8)


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8])
def test_fraction_of_replaced_words(share: float) -> None:
    captions = [[" ".join(WORDS[:10]), " ".join(WORDS[2:12])] for _ in range(50)]
    source = Corrupted(Fixed(grey(), captions), ReplaceWords(share), None)
    for index in range(50):
        for clean, noisy in zip(captions[index], source.captions(index), strict=True):
            pairs = list(zip(clean.split(), noisy.split(), strict=True))
            assert sum(first != second for first, second in pairs) == round(share * 10)
    assert source.captions(0) == source.load(0).captions == source.captions(0)
    assert source.captions(0) != source.captions(1)  # the id is the seed


def test_replacements_are_uniform_over_other_words() -> None:
    replaced = Corrupted(Fixed(grey(), [["a b c d"]] * 3 + [["a"]] * 6000), ReplaceWords(1.0), None)
    drawn = Counter(replaced.captions(index)[0] for index in range(3, 6003))
    assert set(drawn) == {"b", "c", "d"}
    # three sigma of a binomial with p = 1/3
    assert all(abs(count - 2000) < 3 * (6000 * 2 / 9) ** 0.5 for count in drawn.values())


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_noise_deviation_by_severity(severity: Severity) -> None:
    # few values of a middle grey are clipped at 0 and 255
    sample = Corrupted(Fixed(grey(128, 200), [["x"]]), GaussianNoise(severity), None).load(0)
    values = sample.before.double().flatten()
    middle = values[(values > 0) & (values < 255)]
    deviation = 255 * NOISE[severity - 1]
    expected = torch.distributions.Normal(127.5, deviation)
    # fractions below fixed values, where nothing is clipped
    for bound in (64, 128, 192):
        share = float((values < bound).double().mean())
        assert abs(share - float(expected.cdf(torch.tensor(float(bound) - 0.5)))) < 0.01
    assert len(middle) < len(values) or severity == 1
    assert not torch.equal(sample.before, sample.after)


def test_plasma_equals_diamond_square() -> None:
    levels, decay = 3, 1.4
    size = 2**levels
    got = plasma(levels, decay, torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(7)
    grid = {(0, 0): 0.0}
    step, amplitude = size, 1.0
    while step >= 2:
        half, count = step // 2, size // step
        wobble = [
            ((2 * torch.rand(count, count, generator=generator, dtype=torch.float64) - 1) * amplitude).tolist()
            for _ in range(3)
        ]
        corners = [(y, x) for y in range(0, size, step) for x in range(0, size, step)]
        for y, x in corners:
            around = [grid[(y + dy) % size, (x + dx) % size] for dy in (0, step) for dx in (0, step)]
            grid[y + half, x + half] = sum(around) / 4 + wobble[0][y // step][x // step]
        for kind, (oy, ox) in ((1, (0, half)), (2, (half, 0))):
            for y, x in corners:
                py, px = y + oy, x + ox
                neighbours = [
                    ((py + dy) % size, (px + dx) % size) for dy, dx in ((half, 0), (-half, 0), (0, half), (0, -half))
                ]
                assert all(point in grid for point in neighbours)
                grid[py, px] = sum(grid[point] for point in neighbours) / 4 + wobble[kind][y // step][x // step]
        step, amplitude = half, amplitude / decay**2
    expected = torch.tensor([[grid[y, x] for x in range(size)] for y in range(size)], dtype=torch.float64)
    expected = (expected - expected.min()) / (expected.max() - expected.min())
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_fog_is_within_its_thickness_range() -> None:
    thickness, _ = FOG[4]
    assert thickness == 3.0
    image = torch.randint(0, 200, (3, 60, 100), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    image[0, 0, 0] = 200
    foggy = Corrupted(Fixed(image, [["x"]]), Fog(), None).load(0)
    brightest = 200 / 255
    thin = image.double() / 255 * brightest / (brightest + thickness)
    thick = (image.double() / 255 + thickness) * brightest / (brightest + thickness)
    values = foggy.before.double()
    assert (values >= (thin * 255).floor() - 1e-9).all() and (values <= (thick * 255).clamp(max=255) + 1e-9).all()
    assert not torch.equal(foggy.before, foggy.after)


def test_black_images_stay_black_in_fog() -> None:
    # the fog is as bright as the image's brightest value
    assert Fog().image(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.Generator()).max() == 0


def test_one_option_of_any_data_module(tmp_path: Path) -> None:
    rows = ["before,after,caption,split"]
    for number, split in enumerate(["train", "train", "val", "test"]):
        Image.new("RGB", (64, 64), (100 + number,) * 3).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{number}.png,a b c d e f g h i j,{split}")
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    noisy = FolderPairs(tmp_path, corruption=GaussianNoise(), image_size=32)
    clean = FolderPairs(tmp_path, image_size=32)
    for split, same in (("train", True), ("val", True), ("test", False), ("predict", False)):
        ours, theirs = noisy.pairs_of(split).load(0), clean.pairs_of(split).load(0)
        assert torch.equal(ours.before, theirs.before) is same and ours.captions == theirs.captions
        assert ours.before.shape == (3, 32, 32)
    words = FolderPairs(tmp_path, corruption=ReplaceWords(0.5))
    assert words.train_captions() != clean.train_captions()
    assert words.pairs_of("test").captions(0) == clean.pairs_of("test").captions(0)
    first = next(iter(words.loader("train")))
    assert sorted(map(tuple, first["captions"])) == sorted((text,) for text in words.train_captions())


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="severity is 6; expected one of 1, 2, 3, 4, 5"):
        Fog(severity=6)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="from 0 to 1"):
        ReplaceWords(ratio=1.2)
    with pytest.raises(ConfigError, match="'testing'"):
        Corruption(splits=["testing"])


def test_vague_captions_replace_those_of_changed_pairs_only() -> None:
    vague = VagueCaptions(0.6)
    generators = [torch.Generator().manual_seed(seed) for seed in range(300)]
    captions_by_seed = [
        vague.captions(["a cube moved", "a ball went away"], list, generator) for generator in generators
    ]
    replaced = [own for own in captions_by_seed if own != ["a cube moved", "a ball went away"]]
    # 300 draws with probability 0.6; 4.5 standard deviations are 0.13
    assert abs(len(replaced) / 300 - 0.6) < 0.13
    assert {text for own in replaced for text in own} == set(vague.sentences)
    assert all(len(own) == len(set(own)) for own in replaced)
    unchanged = ["nothing was changed in the scene"]
    assert all(vague.captions(unchanged, list, generator) == unchanged for generator in generators)
    with pytest.raises(ConfigError, match="ratio is 2"):
        VagueCaptions(2.0)


@pytest.mark.parametrize(
    ("captions", "change_type", "changed"),
    [
        (["the red cube is no longer there"], None, True),
        (["the small cube that is the same color as the big ball has moved"], None, True),
        (["No, the car left"], None, True),
        (["there is no change", "the car is gone"], None, True),
        (["there is no change", "the two pictures are identical"], None, False),
        (["both look alike"], None, False),
        (["there is no difference"], "move", True),
        (["the door was always open"], "no_change", False),
    ],
)
def test_changed_pairs_are_detected_by_type_or_captions(
    captions: list[str], change_type: str | None, changed: bool
) -> None:
    corrupted = VagueCaptions(1.0).captions(captions, list, torch.Generator(), change_type)
    assert (corrupted != captions) == changed


def test_ratio_1_makes_every_changed_pair_vague(shared: Path) -> None:
    path = shared / "realdata" / "annotations" / "spot_the_diff" / "test.json"
    if not path.is_file():
        pytest.skip("the genuine annotations of Spot-the-Diff are not in the shared folder")
    vague, unchanged_captions = VagueCaptions(1.0), []
    for row in json.loads(path.read_text(encoding="utf-8")):
        own = [sentence for sentence in row["sentences"] if sentence]
        if vague.captions(own, list, torch.Generator()) == own:
            unchanged_captions.append(own)
    assert not [own for own in unchanged_captions if any("no longer" in sentence.lower() for sentence in own)]
    assert 0 < len(unchanged_captions) < 100


class Typed(Fixed):
    def change_type(self, index: int) -> str | None:
        return ("no_change", "move")[index]


def test_change_type_is_used_through_a_data_module() -> None:
    source = Corrupted(Typed(grey(), [["as it was"], ["no longer as it was"]]), VagueCaptions(1.0), None)
    assert source.captions(0) == source.load(0).captions == ["as it was"]
    assert source.captions(1) == source.load(1).captions and source.captions(1)[0] in VagueCaptions().sentences
