"""DeepPCB. Oracle: the official annotation files, parsed by the test, and a board painted by the test."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lightning_idc.data.benchmarks.deeppcb import DeepPCB
from lightning_idc.data.benchmarks.deeppcb_cells import DeepPCBCells, change_cells
from lightning_idc.data.benchmarks.defects import (
    TYPES,
    Defect,
    captions_of,
    change_type_of,
    parse_defects,
    parse_positions,
)
from lightning_idc.data.checking import check
from lightning_idc.data.transforms.pairs import swap_sides
from lightning_idc.utils.errors import DataError

LINES = {  # per pair: x1 y1 x2 y2 type
    "00001000": "10 20 40 60 1\n300 300 340 330 3\n310 20 330 50 3\n",
    "00001001": "600 600 630 635 6\n",
    "00001002": "",
}


def mini(root: Path) -> Path:
    """Write a small data set in the official layout: 10 training and validation pairs, one test pair."""
    names = [f"0000{number}" for number in range(1000, 1011)]
    (root / "group00001/00001").mkdir(parents=True)
    (root / "group00001/00001_not").mkdir()
    for name in names:
        board = np.zeros((640, 640), np.uint8)
        board[:, ::16] = 255
        board[639, : int(name) - 999] = 255  # no two boards are alike
        Image.fromarray(board).convert("1").save(root / f"group00001/00001/{name}_temp.png")
        text = LINES.get(name, "1 1 9 9 2\n")
        for line in text.splitlines():
            x1, y1, x2, y2, _ = map(int, line.split())
            board[y1 + 2 : y2 - 2, x1 + 2 : x2 - 2] ^= 255
        board[400:420, 400:420] ^= 255  # a difference without an annotation
        Image.fromarray(board).convert("1").save(root / f"group00001/00001/{name}_test.png")
        (root / f"group00001/00001_not/{name}.txt").write_text(text)
    entry = "group00001/00001/{0}.jpg group00001/00001_not/{0}.txt"
    (root / "trainval.txt").write_text("\n".join(entry.format(name) for name in names[:10]) + "\n")
    (root / "test.txt").write_text(entry.format(names[10]))  # no newline at the end, as in the official lists
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mini(tmp_path_factory.mktemp("pcb"))


def test_images_boxes_and_masks_of_a_synthetic_board(root: Path) -> None:
    sample = DeepPCB(root, official=False).pairs_of("train").load(0)
    assert sample.before.shape == (3, 640, 640)
    expected = [[10, 20, 40, 60], [300, 300, 340, 330], [310, 20, 330, 50]]
    assert sample.boxes[:, 0].tolist() == expected and torch.equal(sample.boxes[:, 0], sample.boxes[:, 1])
    mask = torch.zeros(640, 640, dtype=torch.bool)
    for x1, y1, x2, y2 in expected:
        mask[y1 + 2 : y2 - 2, x1 + 2 : x2 - 2] = True
    assert torch.equal(sample.masks[0], mask) and torch.equal(sample.masks[1], mask)
    assert sample.change_type == "mousebite"


@pytest.mark.parametrize("cache", [True, False])
def test_resized_boards(root: Path, cache: bool) -> None:
    source = DeepPCB(root, official=False, image_size=(160, 320), cache=cache).pairs_of("train")
    first, again = source.load(0), source.load(0)
    assert first.before.shape == (3, 160, 320) and first.masks.shape == (2, 160, 320)
    assert first.boxes[0, 0].tolist() == [5, 5, 20, 15]
    assert torch.equal(first.before, again.before) and torch.equal(first.masks, again.masks)
    first.before.zero_(), first.masks.zero_()
    assert torch.equal(source.load(0).before, again.before) and torch.equal(source.load(0).masks, again.masks)


def test_a_board_without_defects(root: Path) -> None:
    data = DeepPCB(root, official=False)
    sample = data.pairs_of("train").load(2)
    assert sample.change_type == "no_change" and sample.boxes.shape == (0, 2, 4) and not sample.masks.any()
    assert set(data.no_change_captions()) == set(sample.captions)
    assert all(parse_defects(caption) == {} for caption in sample.captions)
    assert check(data, print) == []


def test_repaired_boards_keep_other_differences(root: Path) -> None:
    data = DeepPCB(root, official=False, repaired=2)
    source = data.pairs_of("train")
    assert source.ids[-2:] == ["00001000-repaired", "00001001-repaired"] and len(data.pairs_of("val")) == 1
    whole, repaired = source.load(0), source.load(9)
    assert torch.equal(whole.before, repaired.before) and repaired.change_type == "no_change"
    assert repaired.boxes.shape == (0, 2, 4) and not repaired.masks.any()
    differs = (repaired.before != repaired.after).any(0)
    assert bool(differs[400:420, 400:420].all()) and int(differs.sum()) == 400
    assert bool(whole.masks[0].any()) and set(data.no_change_captions()) == set(repaired.captions)


def test_cells_of_boards_and_of_windows(root: Path) -> None:
    cells = next(iter(DeepPCBCells(root=root, official=False, batch_size=9).test_dataloader()))[1]
    assert cells.shape == (1, 1, 80, 80) and int((cells > 0).sum()) == 4  # a corner
    sample = DeepPCB(root, official=False).pairs_of("train").load(0)
    cells = change_cells(sample, 8)
    kinds = {(5, 3): 1, (39, 40): 3, (4, 40): 3}  # rows and columns of the centres of LINES
    for (row, column), kind in kinds.items():
        assert (cells[0, row - 1 : row + 2, column - 1 : column + 2] == kind).all()
        assert int((cells[0, row - 2 : row + 3, column - 2 : column + 3] == -100).sum()) == 16
    assert int((cells > 0).sum()) == 27 and int((cells == -100).sum()) == 48
    boxes = sample.boxes - torch.tensor([325.0, 0.0, 325.0, 0.0])  # a window that starts right of a centre
    boxes[0] = torch.nan
    window = replace(sample, boxes=boxes, before=sample.before[:, :64, 325:389], after=sample.after[:, :64, 325:389])
    assert (change_cells(window, 8) > 0).nonzero().tolist() == [[0, row, 0] for row in (3, 4, 5)]
    close = replace(sample, boxes=sample.boxes[:2] * 0 + torch.tensor([[[0.0, 0, 24, 24]], [[8.0, 0, 32, 24]]]))
    close = replace(close, meta={"kinds": [0, 4]})
    assert change_cells(close, 8)[0, 1, :5].tolist() == [1, 1, 5, 5, -100]


def test_captions_equal_expected_text() -> None:
    defects = [Defect(0, (10, 20, 40, 60)), Defect(2, (300, 300, 340, 330)), Defect(2, (310, 20, 330, 50))]
    assert captions_of(defects)[0] == "the board has one open and two mousebites at the top and the centre"
    assert captions_of(defects, long=True)[0] == (
        "the board has one open at the top left, one mousebite at the top and one mousebite at the centre"
    )
    assert change_type_of(defects) == "mousebite" and change_type_of(defects[:2]) == "mixed"


defects_of = st.lists(
    st.builds(
        lambda kind, x, y: Defect(kind, (x, y, x + 20, y + 20)),
        st.integers(0, 5), st.integers(0, 619), st.integers(0, 619),
    ),
    max_size=20,
)  # fmt: skip


@pytest.mark.slow
@given(defects_of, st.booleans())
def test_captions_parse_to_their_defects(defects: list[Defect], long: bool) -> None:
    captions = captions_of(defects, long)
    assert len(set(captions)) == 5 and captions == captions_of(list(defects), long)
    counts = Counter(TYPES[defect.kind] for defect in defects)
    names = {
        (row, column): f"{r} {c}".strip() or "centre"
        for row, r in enumerate(("top", "", "bottom"))
        for column, c in enumerate(("left", "", "right"))
    }
    for caption in captions:
        assert parse_defects(caption) == counts
        positions = parse_positions(caption)
        assert set(positions) == (set(counts) if long else set(list(positions)[:1]))
        for kind, cells in positions.items():
            centres = [((d.box[1] + d.box[3]) / 2, (d.box[0] + d.box[2]) / 2) for d in defects if TYPES[d.kind] == kind]
            assert cells == {names[int(y // (640 / 3)), int(x // (640 / 3))] for y, x in centres}
        assert parse_defects(swap_sides(caption)) == counts, "flipped pairs keep their defects"


@given(st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    assert set(parse_defects(text)) <= set(TYPES) and set(parse_positions(text)) <= set(TYPES)


def test_facts(root: Path) -> None:
    data = DeepPCB(root, official=False)
    name = "00001000"  # one open, two mousebites at the top and the centre

    def facts(caption: str) -> list[bool | None]:
        return list(data.facts("train", name, caption).values())

    assert list(data.facts("train", name, "")) == ["types", "counts", "total", "positions"]
    assert all(all(facts(caption)) for caption in data.pairs_of("train").captions(0))
    assert facts("the board has 1 open and two mousebites at the top") == [True, True, True, False]
    assert facts("two opens and a mousebite at the top and the centre") == [True, False, True, True]
    assert facts("three shorts") == [False, False, True, False]
    assert facts("one open") == [False, False, False, False]
    assert data.facts("train", "00001002", "no defect")["positions"] is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2 3 4", "expected x1 y1 x2 y2 type"),
        ("9 9 5 20 1", "empty"),
        ("1 1 9 9 7", "type 7"),
        ("1 1 700 9 1", "leaves"),
    ],
)
def test_invalid_annotations_are_errors(tmp_path: Path, line: str, message: str) -> None:
    mini(tmp_path)
    (tmp_path / "group00001/00001_not/00001001.txt").write_text(f"1 1 9 9 1\n{line}\n")
    with pytest.raises(DataError, match=rf"00001001\.txt, line 2: .*{message}"):
        DeepPCB(tmp_path, official=False).pairs_of("train")


def test_missing_data_show_the_expected_tree(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            DataError, match=r"missing: trainval.txt, test.txt, group\*/(.|\n)*20085000_temp(.|\n)*What to do"
        ):
            DeepPCB(folder).prepare_data()
    mini(tmp_path)
    with pytest.raises(DataError, match="lists 10 pairs; the official list has 1,000"):
        DeepPCB(tmp_path).prepare_data()
    (tmp_path / "group00001/00001").rename(tmp_path / "group00001/elsewhere")
    with pytest.raises(DataError, match="missing: group00001/00001/"):
        DeepPCB(tmp_path, official=False).pairs_of("test")


def test_missing_damaged_and_resized_images_are_errors(tmp_path: Path) -> None:
    mini(tmp_path)
    images = tmp_path / "group00001/00001"
    (images / "00001000_temp.png").unlink()
    (images / "00001001_test.png").write_bytes(b"<html>")
    Image.new("1", (64, 64)).save(images / "00001003_temp.png")
    source = DeepPCB(tmp_path, official=False).pairs_of("train")
    for index, message in ((0, "no such image file: .*00001000_temp"), (1, "web page"), (3, "64x64")):
        with pytest.raises(DataError, match=message):
            source.load(index)
    problems = check(DeepPCB(tmp_path, official=False), print)
    assert len(problems) == 3, "one per cause"
    assert all(problem.startswith("1 train pairs cannot be read") for problem in problems)


def test_lists_cannot_leave_the_root(tmp_path: Path) -> None:
    mini(tmp_path)
    (tmp_path / "test.txt").write_text("../x/a.jpg ../x/a.txt")
    with pytest.raises(DataError, match="leaves the data folder"):
        DeepPCB(tmp_path, official=False).pairs_of("test")


@pytest.mark.slow
def test_official_data(shared: Path) -> None:
    folder = shared / "realdata/deeppcb"
    if not folder.is_dir():
        pytest.skip("DeepPCB is not beside this checkout")
    data = DeepPCB(folder, image_size=64)
    assert [len(data.pairs_of(split)) for split in ("train", "val", "test", "predict")] == [900, 100, 500, 500]
    ids = [name for split in ("train", "val", "test") for name in data.pairs_of(split).ids]
    assert len(set(ids)) == 1500
    total: Counter[str] = Counter()
    for split in ("train", "val", "test"):
        source = data.pairs_of(split)
        for index, name in enumerate(source.ids):
            for caption in source.captions(index):
                assert all(data.facts(split, name, caption).values())
            total.update(parse_defects(source.captions(index)[0]))
    # counted with Python over the official annotation files
    assert [total[kind] for kind in TYPES] == [1942, 1506, 1965, 1625, 1474, 1501]
    listed = [Path(line.split()[0]).stem for line in (folder / "test.txt").read_text().splitlines()]
    assert data.pairs_of("test").ids == listed
    sample = data.pairs_of("test").load(3)
    assert sample.before.shape == (3, 64, 64) and sample.masks.any() and not torch.equal(sample.before, sample.after)


def test_real_masks_cover_all_boxes(shared: Path) -> None:
    folder = shared / "realdata/deeppcb"
    if not folder.is_dir():
        pytest.skip("DeepPCB is not beside this checkout")
    source = DeepPCB(folder).pairs_of("val")
    for index in range(0, 100, 10):
        sample = source.load(index)
        for x1, y1, x2, y2 in sample.boxes[:, 0].int().tolist():
            assert sample.masks[0, y1:y2, x1:x2].any()
