"""Readers of satellite captions with masks and of radiographs. Oracle: the files written by the test."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.data import LEVIRMCI, SECONDCC, DubaiCC, MedicalDiffVQA
from lightning_idc.data.checking import check_pairs
from lightning_idc.data.store.decoded import DecodedSource, decode_to_store
from lightning_idc.utils.errors import DataError, IDCError

SPLITS: Any = ("train", "val", "test")
SENTENCES = [{"raw": " a house appears ."}] * 5


def paint(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8)).save(path)


def grey(value: int) -> np.ndarray:
    return np.full((4, 6, 3), value)


def levir_mci(root: Path) -> LEVIRMCI:
    images = []
    for split in SPLITS:
        name = f"{split}_000001.png"
        images.append({"filename": name, "split": split, "sentences": SENTENCES})
        label = np.zeros((4, 6))
        label[1, 2], label[3, 5] = 1, 2  # a road and a building
        for folder, values in (("A", grey(1)), ("B", grey(2 + len(images))), ("label", label)):
            paint(root / "images" / split / folder / name, values)
    (root / "LevirCCcaptions.json").write_text(json.dumps({"images": images}))
    return LEVIRMCI(root, official=False)


def test_masks_of_levir_mci(tmp_path: Path) -> None:
    data = levir_mci(tmp_path)
    for split in SPLITS:
        pair = data.pairs_of(split).load(0)
        assert pair.masks is not None and pair.masks.shape == (2, 4, 6) and pair.captions == ["a house appears"] * 5
        assert pair.masks[0].nonzero().tolist() == [[1, 2], [3, 5]] == pair.masks[1].nonzero().tolist()
    # a pixel of a mask survives when the images become smaller
    small = LEVIRMCI(tmp_path, official=False, image_size=(2, 3)).pairs_of("test").load(0)
    assert small.masks is not None and small.masks[0].tolist() == [[False, True, False], [False, False, True]]
    assert check_pairs(data, SPLITS) == []
    (tmp_path / "images/test/label/test_000001.png").unlink()
    assert "label" in "".join(check_pairs(data, ["test"]))


def second_cc(root: Path, flag: Any = 1) -> SECONDCC:
    images = []
    for split in SPLITS:
        images.append({"filename": "7.png", "split": split, "sentences": SENTENCES, "changeflag": flag})
        cover = np.full((4, 6, 3), 255)
        grown = cover.copy()
        grown[0, :3] = (0, 128, 0)
        for folder, values in (("rgb/A", grey(1)), ("rgb/B", grey(2)), ("sem/A", cover), ("sem/B", grown)):
            paint(root / split / folder / "7.png", values)
    (root / "SECOND-CC-AUG.json").write_text(json.dumps({"images": images}))
    return SECONDCC(root)


def test_masks_of_second_cc_are_where_the_land_cover_differs(tmp_path: Path) -> None:
    pair = second_cc(tmp_path).pairs_of("val").load(0)
    assert pair.masks is not None and pair.masks[1].nonzero().tolist() == [[0, 0], [0, 1], [0, 2]]
    assert (pair.before.max(), pair.after.max(), pair.change_type) == (1, 2, "change")
    assert second_cc(tmp_path, 0).pairs_of("val").change_type(0) == "no_change"
    with pytest.raises(DataError, match="image 1: changeflag is None; expected 0 or 1"):
        second_cc(tmp_path, None).pairs_of("val")
    data = second_cc(tmp_path)
    paint(tmp_path / "test/sem/B/7.png", np.zeros((2, 2, 3)))
    with pytest.raises(DataError, match="the maps of both images have 6x4 and 2x2 pixels"):
        data.pairs_of("test").load(0)


def test_masks_are_cached_with_the_images_until_a_map_changes(tmp_path: Path) -> None:
    source = second_cc(tmp_path).pairs_of("val")

    def cached() -> Any:
        masks = DecodedSource(source, decode_to_store(source, tmp_path / "store", (2, 3), "bilinear")).load(0).masks
        return masks if masks is None else masks.tolist()

    # max pooling to half of the size on disk
    assert cached() == [[[True, True, False], [False, False, False]]] * 2
    paint(tmp_path / "val/sem/B/7.png", np.zeros((4, 6, 3)))
    assert cached() == [[[True] * 3] * 2] * 2


def dubai_cc(root: Path) -> DubaiCC:
    for split, name in (("train", "Train"), ("val", "Validation"), ("test", "Test")):
        folder = root / "description_jsontr_te_val"
        folder.mkdir(parents=True, exist_ok=True)
        images = [{"filename": f"{split}.tif", "sentences": SENTENCES}]
        (folder / f"{name}.json").write_text(json.dumps({"images": images}))
        for year in (2000, 2010):
            path = root / f"imgs_tiles/RGB/500_{year}/{split}.tif"
            path.parent.mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(path, np.full((5, 5, 3), year - 2000, np.uint8), photometric="rgb")
    return DubaiCC(root, official=False)


def test_tiles_of_dubai(tmp_path: Path) -> None:
    data = dubai_cc(tmp_path)
    for split in SPLITS:
        pair = data.pairs_of(split).load(0)
        assert (pair.before.max(), pair.after.max(), len(pair.captions), pair.id) == (0, 10, 5, f"{split}.tif")
    with pytest.raises(DataError, match="expected 300 pairs"):
        DubaiCC(tmp_path).pairs_of("train")


def medical_diff_vqa(root: Path) -> MedicalDiffVQA:
    rows = [["", "study_id", "subject_id", "ref_id", "question_type", "question", "answer", "split"]]
    studies = [["subject_id", "study_id", "dicom_id"]]
    for number, split in enumerate(SPLITS):
        subject, main_study, reference = f"1{number}000032", f"5{number}1", f"5{number}2"
        for kind in ("difference", "view"):
            rows.append(["0", main_study, subject, reference, kind, f"what {kind}?", f"{kind} of {split}", split])
        for study, value in ((main_study, 90), (reference, 3)):
            studies += [[subject, study, f"{study}-a"], [subject, study, f"{study}-b"]]
            paint(root / f"files/p{subject[:2]}/p{subject}/s{study}/{study}-a.jpg", np.full((8 + value, 8), value))
    for name, table in (("mimic_pair_questions.csv", rows), ("mimic_all.csv", studies)):
        with (root / name).open("w", newline="") as file:
            csv.writer(file).writerows(table)
    return MedicalDiffVQA(root)


def test_questions_on_tmp_path(tmp_path: Path) -> None:
    data = medical_diff_vqa(tmp_path)
    for split in SPLITS:
        source = data.pairs_of(split)
        assert len(source) == 1, "only questions on the difference"
        pair = source.load(0)
        assert pair.captions == [f"difference of {split}"] and pair.meta["question"] == "what difference?"
        # the reference study is the first image; the second is scaled to its size
        assert pair.before.float().mean() < 10 < pair.after.float().mean() and pair.before.shape == (3, 11, 8)
    assert data.protocol == "coco"
    both = MedicalDiffVQA(tmp_path, kinds=["difference", "view"]).pairs_of("test")
    assert list(both.ids) == ["521_522", "521_522#2"] and both.meta(1)["question_type"] == "view"
    with pytest.raises(IDCError, match="kinds"):
        MedicalDiffVQA(tmp_path, kinds=["shape"])  # type: ignore[list-item]
    text = (tmp_path / "mimic_all.csv").read_text()
    (tmp_path / "mimic_all.csv").write_text(text.replace(",522,", ",999,"))
    with pytest.raises(DataError, match=r"the study 522 is not in mimic_all\.csv"):
        MedicalDiffVQA(tmp_path).pairs_of("test")


@pytest.mark.parametrize("name", ["levir_mci", "second_cc", "dubai_cc", "medical_diff_vqa"])
def test_they_are_listed_and_say_what_is_missing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "data", name]) == 0 and "Licence:" in capsys.readouterr().out
    assert main(["data", "check", name, "--root", str(tmp_path)]) == 1
    assert "What to do" in capsys.readouterr().out
