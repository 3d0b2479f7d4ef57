"""Cached features. Oracle: the encoder itself, run without a store."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_idc.data.store.feature_store import FeatureCache, folder_of, image_digest, weights_digest
from lightning_idc.data.store.growing import KeyedStore
from lightning_idc.utils.errors import IDCError, StoreError


class Encoder(nn.Module):
    def __init__(self, seed: int = 0, seconds: float = 0.0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layer = nn.Conv2d(3, 4, 32, 32)
        self.norm = nn.BatchNorm2d(4)
        self.seconds, self.images = seconds, 0

    def forward(self, images: Tensor) -> Tensor:
        self.images += len(images)
        time.sleep(self.seconds * len(images))
        return self.norm(self.layer(images))


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, 3, 40, 60), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)


def cached(encoder: nn.Module, root: Path, dtype: np.dtype = FLOAT, always: bool = True) -> FeatureCache:
    folder = folder_of(root, encoder.eval(), "Encoder", dtype.name)
    return FeatureCache(lambda images: encoder(images.float() / 255), folder, dtype, always)


def test_features_equal_the_encoder_and_are_computed_once(tmp_path: Path) -> None:
    encoder, batch = Encoder(), images(5)
    cache = cached(encoder, tmp_path)
    expected = encoder(batch / 255)
    encoder.images = 0
    torch.testing.assert_close(cache(batch), expected)
    assert encoder.images == 5
    torch.testing.assert_close(cache(batch[[3, 1, 3]]), expected[[3, 1, 3]])
    other = Encoder()
    torch.testing.assert_close(cached(other, tmp_path)(batch.flip(0)), expected.flip(0), rtol=0, atol=1e-6)
    assert encoder.images == 5 and other.images == 0
    mixed = torch.cat([batch[:1], images(1, seed=9), images(1, seed=9)])
    torch.testing.assert_close(cache(mixed), encoder(mixed / 255))
    assert len(cache.store) == 6, "an image that comes twice is stored once"


def test_other_weights_or_settings_use_another_folder(tmp_path: Path) -> None:
    for encoder, dtype in ((Encoder(), FLOAT), (Encoder(seed=1), FLOAT), (Encoder(), HALF)):
        cache = cached(encoder, tmp_path, dtype)
        assert len(cache.store) == 0
        cache(images(2))
    assert len(list(tmp_path.iterdir())) == 3
    encoder = Encoder()
    before = weights_digest(encoder)
    encoder.norm.running_mean += 1
    assert weights_digest(encoder) != before


def test_half_precision_rounds_cached_and_computed_features(tmp_path: Path) -> None:
    first, second = (
        cached(Encoder(), tmp_path, HALF, always=False)(images(3)),
        cached(Encoder(), tmp_path, HALF)(images(3)),
    )
    assert torch.equal(first, second) and torch.equal(first, first.half().float())


def test_cache_is_used_only_if_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = cached(Encoder(seconds=0.05), tmp_path / "a", always=False)
    slow(images(3))
    assert slow.used and slow.seconds["read"] < slow.seconds["encode"]
    read = KeyedStore.value
    monkeypatch.setattr(KeyedStore, "value", lambda self, *cell: (time.sleep(0.1), read(self, *cell))[1])
    encoder = Encoder()
    fast = cached(encoder, tmp_path / "b", always=False)
    fast(images(3))
    assert fast.used is False
    count = encoder.images
    fast(images(3))
    assert encoder.images == count + 3


def test_features_of_another_shape_are_errors(tmp_path: Path) -> None:
    FeatureCache(lambda images: images.float().mean((2, 3)), tmp_path, FLOAT, True)(images(2))
    with pytest.raises(StoreError, match=r"holds features of shape \(3,\), these are \(3, 40\)"):
        FeatureCache(lambda images: images.float().mean(3), tmp_path, FLOAT, True)(images(2, seed=1))


def test_damaged_features_are_recomputed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch, encoder = images(4), Encoder()
    expected = cached(encoder, tmp_path)(batch)
    for where in (-1, 700, 2000):
        (data,) = tmp_path.glob("*/rows-*.arrow")
        content = bytearray(data.read_bytes())
        content[where % len(content)] ^= 4
        data.write_bytes(content)
        encoder.images = 0
        assert torch.equal(cached(encoder, tmp_path)(batch), expected)
        assert encoder.images == 4 and "recomputing features: " in capsys.readouterr().out
        again = cached(encoder, tmp_path)
        assert torch.equal(again(batch), expected) and encoder.images == 4


def test_non_persistent_buffers_change_the_digest() -> None:
    one, two = Encoder(), Encoder()
    for module, mean in ((one, 0.0), (two, 1.0)):
        module.register_buffer("mean", torch.tensor(mean), persistent=False)
    assert weights_digest(one) != weights_digest(two)


def test_image_digests_are_stable_and_depend_on_dtype() -> None:
    image = torch.arange(60).view(3, 4, 5)
    digests = {kind: image_digest(image.to(kind)) for kind in (torch.uint8, torch.float16, torch.float32)}
    assert digests == {
        torch.uint8: "384ce6860fbf3a4cf27665d21e7348bd",
        torch.float16: "1bef671477c21a73543a1fba1784ba82",
        torch.float32: "945ff3d51855496ed3387067e6606303",
    }, "features that were kept before are found"
    half = image.half()
    assert image_digest(half.view(torch.bfloat16)) != image_digest(half), "equal bytes of another type"
    assert image_digest(image.bfloat16()) == image_digest(image.bfloat16().mT.contiguous().mT)


def test_encoder_must_return_one_row_per_image(tmp_path: Path) -> None:
    class Other(nn.Module):
        def __init__(self, make: object) -> None:
            super().__init__()
            self.make = make

        def forward(self, images: Tensor) -> object:
            return self.make(images)  # type: ignore[operator]

    for make, message in (
        (lambda images: images.mean(0), "returned .3, 40, 60. for 1 images"),
        (lambda images: (images, images), "returned a tuple"),
        (lambda images: images - images.mean(0), "depend on the other images of the batch"),
    ):
        with pytest.raises(IDCError, match=message):
            cached(Other(make), tmp_path, always=False)(images(3))
