"""Rendered pairs: ground truth against images, the cache on disk, the data module. Oracle: brute force over pixels."""

from __future__ import annotations

import errno
import pickle
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.processes import forking_python

from lightning_idc.data.store.manifest import Manifest
from lightning_idc.data.synthetic import ObjectCells, SyntheticCells, SyntheticPairs, SyntheticSource
from lightning_idc.data.synthetic import cache as cache_module
from lightning_idc.data.synthetic.cache import Key, draw_pair, ensure
from lightning_idc.data.synthetic.cells import CELL_CLASSES
from lightning_idc.data.synthetic.geometry import outlines, view_of
from lightning_idc.data.synthetic.modes import MODES, load_mode
from lightning_idc.data.synthetic.truth import ATTRIBUTE_WORDS, cell_labels
from lightning_idc.utils.errors import ConfigError, StoreError


def key_of(mode: str = "clevr_change", pairs: int = 24, size: int = 48, split: str = "train", seed: int = 0) -> Key:
    return Key(mode, split, pairs, size, size, seed, load_mode(mode).WORLD)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rendered")


@pytest.fixture(scope="module", params=MODES)
def source(request: pytest.FixtureRequest, root: Path) -> SyntheticSource:
    return SyntheticSource(key_of(request.param), root, progress=False)


def test_boxes_and_masks_match_object_maps(source: SyntheticSource) -> None:
    for index in range(len(source)):
        sample = source.load(index)
        changes = sample.meta["changes"]
        assert sample.boxes.shape == (len(changes), 2, 4)
        assert sample.masks.shape == (2, 48, 48) and sample.masks.dtype == torch.bool
        expected = np.zeros((2, 48, 48), bool)
        for change, boxes in zip(changes, sample.boxes, strict=True):
            for side, name in enumerate(("before", "after")):
                mask = np.zeros((48, 48), bool)
                for thing in change[name]:
                    mask |= np.asarray(source.seen[index][side]) == thing
                expected[side] |= mask
                if mask.any():
                    rows, columns = np.where(mask)
                    box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
                    assert boxes[side].tolist() == box
                else:
                    assert boxes[side].isnan().all()
        assert np.array_equal(sample.masks.numpy(), expected)


def test_changed_objects_are_visible(source: SyntheticSource) -> None:
    for index in range(len(source)):
        meta = source.ground_truth(index)
        for change in meta["changes"]:
            for side in ("before", "after"):
                for thing in change[side]:
                    assert meta[side]["things"][thing]["pixels"] >= (
                        12 if meta[side]["things"][thing]["size"] == "large" else 3
                    )


def test_objects_have_a_minimum_visible_fraction(source: SyntheticSource) -> None:
    for index in range(len(source)):
        pair = draw_pair(source.key, index)
        for scene, seen in zip((pair.before, pair.after), source.seen[index], strict=True):
            shapes = outlines(scene.things, view_of(scene.camera))
            for thing, (half_width, half_height) in enumerate(shapes.half):
                box_area = 4 * half_width * half_height * 48 * 48
                assert (seen == thing).sum() > 0.2 * box_area  # an object that is not hidden fills about 3/4 of its box


def test_outlines_agree_with_the_renderer(source: SyntheticSource) -> None:
    """The outlines projected by the scene code agree with the renderer's object maps, for each shape."""
    errors: dict[str, list[float]] = {}
    for index in range(len(source)):
        pair = draw_pair(source.key, index)
        for scene, name in ((pair.before, "before"), (pair.after, "after")):
            shapes = outlines(scene.things, view_of(scene.camera))
            for thing, plain in enumerate(source.ground_truth(index)[name]["things"]):
                middle, half = shapes.centre[thing], shapes.half[thing]
                expected = np.concatenate([middle - half, middle + half])
                errors.setdefault(plain["shape"], []).append(np.abs(expected * 48 - plain["box"]).max())
    assert all(np.median(values) < 0.8 for values in errors.values())  # pixels; hidden parts make boxes smaller


def test_distractors_change_pixels_but_not_objects(root: Path) -> None:
    source = SyntheticSource(key_of(), root, progress=False)
    plain = [index for index in range(len(source)) if source.change_type(index) == "no_change"]
    assert plain
    for index in plain:
        sample = source.load(index)
        positions = [
            [(t["shape"], t["color"], t["x"], t["y"]) for t in sample.meta[side]["things"]]
            for side in ("before", "after")
        ]
        assert positions[0] == positions[1]
        assert not torch.equal(sample.before, sample.after)
        assert sample.masks.sum() == 0 and len(sample.boxes) == 0


def test_view_overlap_is_mean_iou_of_unmoved_objects(root: Path) -> None:
    source = SyntheticSource(key_of(), root, progress=False)
    for index in range(len(source)):
        meta, overlaps = source.ground_truth(index), []
        moved = {thing for change in meta["changes"] for thing in change["before"]}
        for i, j in meta["same"]:
            if i not in moved:
                grids = []
                for side, thing in (("before", i), ("after", j)):
                    x1, y1, x2, y2 = map(int, meta[side]["things"][thing]["box"])
                    grid = np.zeros((48, 48), bool)
                    grid[y1:y2, x1:x2] = True
                    grids.append(grid)
                overlaps.append((grids[0] & grids[1]).sum() / (grids[0] | grids[1]).sum())
        assert meta["iou"] == pytest.approx(np.mean(overlaps))


def test_cell_label_is_the_object_with_most_pixels(source: SyntheticSource) -> None:
    dataset = ObjectCells(source, grid=8)
    assert len(dataset) == 2 * len(source)
    for index in range(0, 12):
        image, labels = dataset[index]
        assert image.dtype == torch.uint8 and labels.shape == (4, 8, 8) and labels.dtype == torch.int64
        assert torch.equal(dataset[index][1], labels)  # the cached labels
        seen = source.seen[index // 2][index % 2]
        things = source.ground_truth(index // 2)["after" if index % 2 else "before"]["things"]
        for row in range(8):
            for column in range(8):
                block = seen[row * 6 : row * 6 + 6, column * 6 : column * 6 + 6]
                counts = [(block == thing).sum() for thing in range(len(things))]
                best = int(np.argmax(counts))
                named = labels[:, row, column].tolist()
                if counts[best] < 0.08 * 36:
                    assert named == [0, 0, 0, 0]
                else:
                    words = [
                        ATTRIBUTE_WORDS[name][label - 1] for name, label in zip(ATTRIBUTE_WORDS, named, strict=True)
                    ]
                    assert words == [things[best][name] for name in ATTRIBUTE_WORDS]


def test_cells_of_a_non_square_image() -> None:
    seen = np.full((12, 18), -1)
    seen[8:10, 2:4] = 0
    thing = {name: words[0] for name, words in ATTRIBUTE_WORDS.items()}
    labels = cell_labels(seen, [thing], grid=(6, 9))
    assert labels.shape == (4, 6, 9) and np.argwhere(labels[0]).tolist() == [[4, 1]] and (labels[:, 4, 1] == 1).all()


def test_cells_of_an_empty_image() -> None:
    assert not cell_labels(np.full((10, 14), -1), [], grid=4).any()


def test_number_of_threads_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "CHUNK", 5)
    folders = [ensure(key_of(size=32), tmp_path / str(workers), False, workers) for workers in (1, 3)]
    names = sorted(path.name for path in folders[0].iterdir())
    assert [name.partition("-")[0] for name in names] == ["manifest.json", "pairs", "texts"]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


RACE = """
import sys
from pathlib import Path
from lightning_idc.data.synthetic import cache
from lightning_idc.data.synthetic.modes import load_mode
made = []
render = cache._render
def counted(*args):
    made.append(1)
    return render(*args)
cache._render = counted
key = cache.Key("clevr_change", "val", 70, 32, 32, 0, load_mode("clevr_change").WORLD)
cache.ensure(key, Path(sys.argv[1]), progress=False, workers=1)
print(len(made))
"""


@pytest.mark.slow
def test_two_processes_render_once(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen([forking_python(), "-c", RACE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    rendered = [int(racer.communicate(timeout=120)[0]) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert sorted(rendered) == [0, 1]
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_damaged_or_different_pairs_are_rendered_again(tmp_path: Path) -> None:
    key = key_of(pairs=3, size=32)
    folder = ensure(key, tmp_path, progress=False)
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest, (pixels,) = folder / "manifest.json", folder.glob("pairs-*")
    for damage in (
        lambda: Manifest({**key.to_dict(), "seed": 99}, {}).write(folder),
        lambda: manifest.write_bytes(written["manifest.json"][:20]),
        lambda: pixels.write_bytes(written[pixels.name][:-7]),
        pixels.unlink,
    ):
        damage()
        assert ensure(key, tmp_path, progress=False) == folder
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == written


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_interruption_and_full_disk_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    real = cache_module._chunk

    def fails_late(key: Key, start: int) -> object:
        if start:
            raise error
        return real(key, start)

    monkeypatch.setattr(cache_module, "CHUNK", 2)
    monkeypatch.setattr(cache_module, "_chunk", fails_late)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else StoreError
    with pytest.raises(expected) as caught:
        ensure(key_of(pairs=6, size=32), tmp_path, progress=False)
    if expected is StoreError:
        assert "MB are free" in str(caught.value) and "cache_dir" in str(caught.value)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    key = key_of(pairs=2, size=32)
    stale = tmp_path / f".{key.folder}.abc"
    stale.mkdir()
    (stale / "images.npy").write_bytes(b"half")
    ensure(key, tmp_path, progress=False)
    assert not stale.exists()


def test_full_disk_is_detected_before_rendering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    monkeypatch.setattr(cache_module, "_chunk", lambda *args: pytest.fail("rendered"))
    with pytest.raises(StoreError, match="needs"):
        ensure(key_of(pairs=2, size=32), tmp_path, progress=False)


def test_read_only_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cache_dir"):
        ensure(key_of(pairs=2, size=32), tmp_path / "file", progress=False)


def test_pickled_source_opens_its_own_files(root: Path) -> None:
    source = SyntheticSource(key_of(), root, progress=False)
    packed = pickle.dumps(source)
    assert len(packed) < 5000
    again = pickle.loads(packed)
    assert torch.equal(again.load(3).after, source.load(3).after) and again.captions(3) == source.captions(3)


def test_cache_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIGHTNING_IDC_CACHE", str(tmp_path))
    data = SyntheticPairs(train_pairs=2, val_pairs=1, test_pairs=1, render_size=32, progress=False)
    assert data.source("val").folder.parent == tmp_path


def test_data_module_gives_the_splits(root: Path) -> None:
    data = SyntheticPairs(
        train_pairs=24, val_pairs=3, test_pairs=5, render_size=(32, 48), cache_dir=root, progress=False, batch_size=4
    )
    data.prepare_data()
    assert [len(data.pairs_of(split)) for split in ("train", "val", "test", "predict")] == [24, 3, 5, 5]
    assert len(data.train_captions()) == 120
    assert len(data.no_change_captions()) == 5
    assert not set(data.pairs_of("val").ids) & set(data.pairs_of("test").ids)
    batch = next(iter(data.val_dataloader()))
    assert batch["images"].shape == (3, 2, 3, 32, 48)
    test = data.pairs_of("test")
    verdicts = data.facts("test", test.ids[2], test.captions(2)[0])
    assert verdicts["type"] is True and False not in verdicts.values()


def test_cell_batches(root: Path) -> None:
    data = SyntheticCells(
        train_pairs=24, val_pairs=3, test_pairs=5, render_size=(32, 48), cache_dir=root, progress=False, batch_size=10
    )
    images, labels = next(iter(data.train_dataloader()))
    assert images.shape == (10, 3, 32, 48) and labels.shape == (10, 4, 8, 8)
    assert all(0 < labels[:, i].max() < count for i, count in enumerate(CELL_CLASSES.values()))
    again = next(iter(data.train_dataloader()))
    assert torch.equal(images, again[0])
    data.limit = 4
    assert sum(len(images) for images, _ in data.train_dataloader()) == 8
    data.pairs = True
    both, of_both = next(iter(data.val_dataloader()))
    assert both.shape == (3, 2, 3, 32, 48) and of_both.shape == (3, 2, 4, 8, 8)
    data.pairs = False
    single, of_single = next(iter(data.val_dataloader()))
    assert torch.equal(both.flatten(0, 1), single) and torch.equal(of_both.flatten(0, 1), of_single)
    data.pairs = True
    assert sum(len(images) for images, _ in data.train_dataloader()) == 4
    with pytest.raises(ConfigError, match="render_size"):
        SyntheticCells(image_size=32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "clever"}, "clevr_change"),
        ({"train_pairs": 0}, "train_pairs is 0"),
        ({"render_size": 8}, "at least 16"),
        ({"no_change": 1.5}, "from 0 to 1"),
        ({"things": (5, 2)}, "minimum of at least 2 and a maximum"),
    ],
)
def test_invalid_arguments_are_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SyntheticPairs(**arguments)
