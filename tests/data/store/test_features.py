"""Kept features. Oracle: the encoder itself, run without a store."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from lightning_idc.data.store.feature_store import FeatureStore, image_digest, weights_digest
from lightning_idc.data.store.features import PREPROCESSING, CachedEncoder
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


def test_features_are_the_encoders_and_computed_once(tmp_path: Path) -> None:
    encoder = Encoder()
    cached = CachedEncoder(encoder, "imagenet", tmp_path, always=True).train()
    batch = images(5)
    expected = encoder(PREPROCESSING["imagenet"](batch))
    encoder.images = 0
    torch.testing.assert_close(cached(batch), expected)
    assert encoder.images == 5
    torch.testing.assert_close(cached(batch[[3, 1, 3]]), expected[[3, 1, 3]])
    again = CachedEncoder(Encoder(), "imagenet", tmp_path, always=True)
    torch.testing.assert_close(again(batch.flip(0)), expected.flip(0), rtol=0, atol=1e-6)
    assert encoder.images == 5 and again.encoder.images == 0
    assert not cached(batch).requires_grad and not encoder.training
    mixed = torch.cat([batch[:1], images(1, seed=9)])
    torch.testing.assert_close(cached(mixed), encoder(PREPROCESSING["imagenet"](mixed)))


def test_other_weights_or_preparation_share_nothing(tmp_path: Path) -> None:
    for encoder, preparation in ((Encoder(), "imagenet"), (Encoder(seed=1), "imagenet"), (Encoder(), "grid-features")):
        cached = CachedEncoder(encoder, preparation, tmp_path, always=True)
        assert len(cached.store) == 0
        cached(images(2))
    assert len(list(tmp_path.iterdir())) == 3
    encoder = Encoder()
    before = weights_digest(encoder)
    encoder.norm.running_mean += 1
    assert weights_digest(encoder) != before


def test_half_precision_is_the_same_from_disk_and_from_the_encoder(tmp_path: Path) -> None:
    cached = CachedEncoder(Encoder(), "imagenet", tmp_path, half=True)
    first, second = cached(images(3)), CachedEncoder(Encoder(), "imagenet", tmp_path, half=True, always=True)(images(3))
    assert torch.equal(first, second) and torch.equal(first, first.half().float())


def test_the_disk_is_used_only_where_it_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = CachedEncoder(Encoder(seconds=0.05), "imagenet", tmp_path / "a")
    slow(images(3))
    assert slow.used and slow.seconds["read"] < slow.seconds["encode"]
    read = FeatureStore.read
    monkeypatch.setattr(FeatureStore, "read", lambda self, digests: (time.sleep(0.2), read(self, digests))[1])
    fast = CachedEncoder(Encoder(), "imagenet", tmp_path / "b")
    fast(images(3))
    assert fast.used is False
    count = fast.encoder.images
    fast(images(3))
    assert fast.encoder.images == count + 3


def test_features_that_were_not_written_whole_are_not_read(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, np.dtype(np.float32))
    digests = [bytes([n]) * 16 for n in range(3)]
    values = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    store.add(digests[:2], values[:2])
    store.add(digests[2:], values[2:])
    other = FeatureStore(tmp_path, np.dtype(np.float32))
    other.add([b"x" * 16], np.full((1, 2, 2), 7, np.float32))
    sorted(tmp_path.glob("keys-*"))[1].unlink()  # a kill falls between features and their keys
    reopened = pickle.loads(pickle.dumps(store))
    assert len(reopened) == 3 and digests[2] not in reopened
    assert reopened.read([digests[1], b"x" * 16]).tolist() == [[[4, 5], [6, 7]], [[7, 7], [7, 7]]]
    with pytest.raises(StoreError, match="of shape"):
        reopened.add([b"y" * 16], np.zeros((1, 5), np.float32))


def test_damaged_features_are_computed_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch, encoder = images(4), Encoder()
    expected = CachedEncoder(encoder, "imagenet", tmp_path, always=True)(batch)
    for where in (-1, 700, 2000):
        (data,) = tmp_path.glob("*/rows-*.arrow")
        content = bytearray(data.read_bytes())
        content[where % len(content)] ^= 4
        data.write_bytes(content)
        encoder.images = 0
        assert torch.equal(CachedEncoder(encoder, "imagenet", tmp_path, always=True)(batch), expected)
        assert encoder.images == 4 and "computed anew: " in capsys.readouterr().out
        again = CachedEncoder(encoder, "imagenet", tmp_path, always=True)
        assert torch.equal(again(batch), expected) and encoder.images == 4


def test_processes_add_to_one_store_at_once(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, np.dtype(np.float32))
    store.add([b"shared".ljust(16)], np.full((1, 3), 9, np.float32))

    def work(number: int) -> None:
        for place in range(20):  # the store was forked with a file of its own open
            store.add([bytes([number, place]).ljust(16)], np.full((1, 3), 100 * number + place, np.float32))

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(number,)) for number in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    found = FeatureStore(tmp_path, np.dtype(np.float32))
    assert len(found) == 41
    for number in (1, 2):
        digests = [bytes([number, place]).ljust(16) for place in range(20)]
        assert found.read(digests)[:, 0].tolist() == [100 * number + place for place in range(20)]


def test_grid_features_are_prepared_as_by_the_reference_extractor() -> None:
    # resize((224, 224), bicubic), then the means and deviations that it writes, 0.224 twice
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    scaled = np.asarray(Image.fromarray(pixels).resize((224, 224), Image.Resampling.BICUBIC)) / 255.0
    expected = (scaled - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.224]
    got = PREPROCESSING["grid-features"](torch.from_numpy(pixels).permute(2, 0, 1)[None])[0].permute(1, 2, 0).numpy()
    assert np.abs(got - expected).max() < 1.01 / 255 / 0.224


def test_unknown_preparation(tmp_path: Path) -> None:
    with pytest.raises(IDCError, match="expected one of grid-features"):
        CachedEncoder(Encoder(), "resnet", tmp_path)


def test_what_no_checkpoint_keeps_counts_for_the_digest() -> None:
    one, two = Encoder(), Encoder()
    for module, mean in ((one, 0.0), (two, 1.0)):
        module.register_buffer("mean", torch.tensor(mean), persistent=False)
    assert weights_digest(one) != weights_digest(two)


def test_digests_of_images_stay_what_they_are_and_tell_types_apart() -> None:
    image = torch.arange(60).view(3, 4, 5)
    kept = {kind: image_digest(image.to(kind)).hex() for kind in (torch.uint8, torch.float16, torch.float32)}
    assert kept == {
        torch.uint8: "384ce6860fbf3a4cf27665d21e7348bd",
        torch.float16: "1bef671477c21a73543a1fba1784ba82",
        torch.float32: "945ff3d51855496ed3387067e6606303",
    }, "features that were kept before are found"
    half = image.half()
    assert image_digest(half.view(torch.bfloat16)) != image_digest(half), "equal bytes of another type"
    assert image_digest(image.bfloat16()) == image_digest(image.bfloat16().mT.contiguous().mT)


def test_only_one_tensor_with_a_row_per_image_is_kept(tmp_path: Path) -> None:
    class Other(nn.Module):
        def __init__(self, make: object) -> None:
            super().__init__()
            self.make = make

        def forward(self, images: Tensor) -> object:
            return self.make(images)  # type: ignore[operator]

    for make, told in (
        (lambda images: images.mean(0), "made .3, 224, 224. of 1 images"),
        (lambda images: (images, images), "made a tuple"),
        (lambda images: images - images.mean(0), "depend on the images beside it"),
    ):
        with pytest.raises(IDCError, match=told):
            CachedEncoder(Other(make), "imagenet", tmp_path)(images(3))
