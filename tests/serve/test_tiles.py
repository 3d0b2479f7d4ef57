"""Scenes in tiles, and their boxes on a map. Oracles: coordinates by hand, and the rules on the whole scene."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

import lightning_idc
from lightning_idc.cli import main
from lightning_idc.images.georeference import georeference_of
from lightning_idc.rules import describe_changes
from lightning_idc.serve.answer import Answer
from lightning_idc.serve.tiles import TileOptions, join_boxes, merge, windows
from lightning_idc.utils.errors import ConfigError, DataError

UTM33 = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633)
"""GeoKeyDirectory: version and number of keys; projected, coordinates of pixel areas, EPSG 32633."""


def geotiff(path: Path, values: np.ndarray, keys: tuple[int, ...] = UTM33, **tags: Any) -> Path:
    """Write a GeoTIFF with half-metre pixels whose upper left corner is at 500,000 east and 4,600,000 north."""
    scale, tiepoint = (0.5, 0.5, 0.0), (0.0, 0.0, 0.0, 500_000.0, 4_600_000.0, 0.0)
    extra: list[Any] = [(33550, "d", 3, scale, True), (33922, "d", 6, tiepoint, True)]
    if "matrix" in tags:
        extra = [(34264, "d", 16, tags["matrix"], True)]
    tifffile.imwrite(path, values, photometric="rgb", extratags=[*extra, (34735, "H", len(keys), keys, True)])
    return path


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A scene of 300 x 400 pixels with a red and a blue object in the second image."""
    folder = tmp_path_factory.mktemp("scene")
    coarse = np.random.default_rng(0).integers(90, 150, (15, 20, 3), dtype=np.uint8)
    before = coarse.repeat(20, 0).repeat(20, 1)
    after = before.copy()
    after[40:60, 100:130], after[210:240, 300:330] = (220, 30, 30), (30, 30, 220)
    return str(geotiff(folder / "old.tif", before)), str(geotiff(folder / "new.tif", after))


@pytest.mark.parametrize(
    ("size", "tile", "stride"), [((10, 4), 4, 3), ((7, 9), 3, 3), ((5, 5), 8, 6), ((100, 30), 32, 24)]
)
def test_tiles_cover_every_pixel_and_do_not_leave_the_image(size: tuple[int, int], tile: int, stride: int) -> None:
    covered = np.zeros(size[::-1], int)
    for left, top, right, bottom in windows(size, tile, stride):
        assert (right - left, bottom - top) == (min(tile, size[0]), min(tile, size[1]))
        covered[top:bottom, left:right] += 1
    assert covered.min() >= 1 and covered.shape == (size[1], size[0])


def test_tiles_find_what_the_scene_as_one_shows(scene: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    expected = sorted(region.box for region in describe_changes(*scene).regions)
    assert main(["describe", *scene, "--tile", "128", "--stride", "96", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert sorted(map(tuple, answer["boxes"])) == expected == [(100, 40, 130, 60), (300, 210, 330, 240)]
    assert answer["changed"] and answer["size"] == [400, 300] and "of 12 tiles changed: " in answer["caption"]


def test_boxes_on_a_map(scene: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "changes.geojson"
    for tiles in ([], ["--tile", "128"]):
        assert main(["describe", *scene, "--out", str(out), "--overwrite", *tiles]) == 0
        collection = json.loads(out.read_text(encoding="utf-8"))
        assert collection["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32633"
        rings = {tuple(f["properties"]["pixels"]): f["geometry"]["coordinates"][0] for f in collection["features"]}
        # 100 pixels of half a metre to the east, 40 to the south
        assert rings[100, 40, 130, 60][0] == [500_050.0, 4_599_980.0] == rings[100, 40, 130, 60][-1]
        assert rings[100, 40, 130, 60][2] == [500_065.0, 4_599_970.0] and len(rings) == 2
        captions = {tuple(f["properties"]["pixels"]): f["properties"]["caption"] for f in collection["features"]}
        assert "red" in captions[100, 40, 130, 60] and "blue" in captions[300, 210, 330, 240]


def test_scenes_of_a_folder(scene: tuple[str, str], tmp_path: Path) -> None:
    for side, path in zip(("A", "B"), scene, strict=True):
        (tmp_path / side).mkdir()
        (tmp_path / side / "1.tif").write_bytes(Path(path).read_bytes())
    out = tmp_path / "out.jsonl"
    assert main(["predict", str(tmp_path), "--tile", "128", "--where", "--out", str(out)]) == 0
    (record,) = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert sorted(record["boxes"]) == [[100, 40, 130, 60], [300, 210, 330, 240]] and record["status"] == "changed"


def test_georeferences(tmp_path: Path) -> None:
    values = np.zeros((4, 4, 3), np.uint8)
    matrix = (0.0, 2.0, 0.0, 10.0, 3.0, 0.0, 0.0, 20.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    turned = georeference_of(geotiff(tmp_path / "turned.tif", values, matrix=matrix))
    assert turned.point(1, 2) == [2.0 * 2 + 10.0, 3.0 * 1 + 20.0]
    # coordinates of pixel centres, in degrees
    point = georeference_of(geotiff(tmp_path / "point.tif", values, (1, 1, 0, 2, 1025, 0, 1, 2, 2048, 0, 1, 4326)))
    assert point.point(0, 0) == [499_999.75, 4_600_000.25] and point.crs == "urn:ogc:def:crs:EPSG::4326"
    tifffile.imwrite(tmp_path / "plain.tif", values, photometric="rgb")
    with pytest.raises(DataError, match="has no georeference"):
        georeference_of(tmp_path / "plain.tif")
    (tmp_path / "text.tif").write_text("text")
    with pytest.raises(DataError, match="not a TIFF"):
        georeference_of(tmp_path / "text.tif")


def test_answers_of_tiles_are_merged() -> None:
    tiles = windows((20, 10), 10, 10)
    same, new = (
        Answer("0,0", "nothing changed", -0.5, 0.1, False),
        Answer("10,0", "a road", -0.2, 0.9, True, [[1, 2, 4, 5]], size=(10, 10)),
    )
    merged, changed = merge("scene", [same, new], tiles, (20, 10))
    assert (merged.caption, merged.change_score, merged.changed) == ("1 of 2 tiles changed: a road", 0.9, True)
    assert merged.boxes == [[11, 2, 14, 5]] == changed[0].boxes
    merged, changed = merge("scene", [same, same], tiles, (20, 10))
    assert (merged.caption, merged.changed, merged.boxes, changed) == ("nothing changed", False, [], [])
    # the third joins the first two
    assert join_boxes([[0, 0, 4, 4], [8, 0, 12, 4], [0, 0, 12, 4]]) == [[0, 0, 12, 4]]
    with pytest.raises(ConfigError, match="at most the size of a tile"):
        TileOptions(16, 20)


def test_boxes_of_any_describer_are_clipped_to_the_image() -> None:
    boxes = [[-4, 2, 6, 30], [12, 3, 8, 9], [20, 0, 40, 8], [5, 5, 5, 9], [1, 1, 3, 3]]
    answer = Answer("pair", "a road", None, None, True, boxes, size=(16, 12))
    assert answer.boxes == [[0, 2, 6, 12], [1, 1, 3, 3]]
    with pytest.raises(ValueError, match="5 boxes without a size"):
        Answer("pair", "a road", None, None, True, boxes)


@pytest.mark.parametrize("seed", range(6))
def test_boxes_of_rules_lie_in_the_view_of_the_first_image(seed: int) -> None:
    """Shifted views with objects at their borders; on the clevr sample in tiles, some boxes were outside."""
    random = np.random.default_rng(seed)
    large = random.integers(60, 200, (3, 14, 14), dtype=np.uint8).repeat(12, 1).repeat(12, 2)
    before, (dx, dy) = large[:, 24:120, 24:120], random.integers(-14, 15, 2)
    after = large[:, 24 - dy : 120 - dy, 24 - dx : 120 - dx].copy()
    for top, left in ((0, 0), (0, 84), (84, 0), (84, 84), (40, 0)):
        after[:, top : top + 12, left : left + 12] = random.integers(0, 256, (3, 1, 1))
    description = describe_changes(before, after)
    assert description.regions
    for left, top, right, bottom in (region.box for region in description.regions):
        assert 0 <= left < right <= 96 and 0 <= top < bottom <= 96


@pytest.mark.slow
def test_boxes_of_the_sample_by_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    samples = Path(lightning_idc.__file__).parent / "serve/samples/clevr"
    assert main(["describe", str(samples / "before.png"), str(samples / "after.png"), "--tile", "64", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["boxes"] and all(x1 < x2 and y1 < y2 for x1, y1, x2, y2 in answer["boxes"])
