"""Readers of all benchmarks. Oracle: small folder trees written by hand in the layout of each release."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightning_idc.data.benchmark import Benchmark, Counts, LayoutError
from lightning_idc.data.benchmarks.birds_to_words import BirdsToWords
from lightning_idc.data.benchmarks.clevr_change import CLEVRChange
from lightning_idc.data.benchmarks.clevr_dc import CLEVRDC
from lightning_idc.data.benchmarks.image_editing_request import ImageEditingRequest
from lightning_idc.data.benchmarks.img_diff import ImgDiff
from lightning_idc.data.benchmarks.instructpix2pix import InstructPix2Pix, _bounds
from lightning_idc.data.benchmarks.levir_cc import LEVIRCC
from lightning_idc.data.benchmarks.magicbrush import MagicBrush
from lightning_idc.data.benchmarks.omnidiff import OmniDiff
from lightning_idc.data.benchmarks.spot_the_diff import SpotTheDiff
from lightning_idc.data.checking import check
from lightning_idc.utils.errors import ConfigError, DataError, IDCError


def paint(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(path)


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def levels(data: Benchmark, split: Any, index: int = 0) -> tuple[int, int]:
    """Grey values of both images of a pair."""
    sample = data.pairs_of(split).load(index)
    return int(sample.before[0, 0, 0]), int(sample.after[0, 0, 0])


def clevr_change(root: Path) -> CLEVRChange:
    numbers = {"train": [7, 3], "val": [1], "test": [12]}
    everything = [number for own in numbers.values() for number in own]
    write(root / "splits.json", numbers)
    names = [f"CLEVR_default_{number:06d}.png" for number in everything]
    write(root / "change_captions.json", {name: [f"moved {name}"] for name in names})
    write(root / "no_change_captions.json", {name: ["no change was made"] for name in names})
    write(root / "type_mapping.json", {"material": ["000007.png"], "move": ["000003.png", "000001.png", "000012.png"]})
    for number in everything:
        for folder, label, value in (
            ("images", "default", 0),
            ("sc_images", "semantic", 50),
            ("nsc_images", "nonsemantic", 100),
        ):
            paint(root / folder / f"CLEVR_{label}_{number:06d}.png", value + number)
    return CLEVRChange(root, official=False)


def clevr_dc(root: Path) -> CLEVRDC:
    write(root / "split.json", {"train": [5, 2], "val": [0], "test": [9]})
    write(root / "captions.json", {str(n): ["the ball moved"] if n else ["there is no change"] for n in (5, 2, 0, 9)})
    for number in (5, 2, 0, 9):
        paint(root / f"bef/{number}.png", number)
        paint(root / f"aft/{number}.png", 50 + number)
    return CLEVRDC(root, official=False)


def spot_the_diff(root: Path, **options: Any) -> SpotTheDiff:
    records = [
        {"img_id": "4", "sentences": ["a car left", ""]},
        {"img_id": "2", "sentences": ["a man came"]},
        {"img_id": "4", "sentences": ["the van is gone"]},
        {"img_id": "8", "sentences": [""]},
    ]
    for split in ("train", "val", "test"):
        write(root / f"annotations/{split}.json", records)
    for number in (2, 4, 8):
        paint(root / f"resized_images/{number}.png", number)
        paint(root / f"resized_images/{number}_2.png", 50 + number)
    return SpotTheDiff(root, official=False, **options)


def image_editing_request(root: Path) -> ImageEditingRequest:
    for name in ("train", "valid", "test"):
        write(
            root / f"{name}.json", [{"uid": f"{name}_1", "img0": "a.png", "img1": "b.png", "sents": ["Make it  bluer"]}]
        )
    paint(root / "images/a.png", 1)
    paint(root / "images/b.png", 2)
    return ImageEditingRequest(root, official=False)


def levir_cc(root: Path) -> LEVIRCC:
    images = []
    for number, split in enumerate(("train", "val", "test")):
        name = f"{split}_000001.png"
        sentences = [{"raw": " a house appears .", "tokens": ["a", "house", "appears"]}] * 5
        images.append({"filepath": split, "filename": name, "split": split, "sentences": sentences, "changeflag": 1})
        paint(root / f"images/{split}/A/{name}", number)
        paint(root / f"images/{split}/B/{name}", 50 + number)
    write(root / "LevirCCcaptions.json", {"images": images, "dataset": "LEVIR-CC"})
    return LEVIRCC(root, official=False)


def birds_to_words(root: Path) -> BirdsToWords:
    columns = [f"img{s}{w}" for s in (1, 2) for w in ("ObservationURL", "ImgURL", "Species", "Selection")]
    lines = ["\t".join([*columns, "split", "annN", "description"])]
    for split, text in (
        ("train", 'Animal 1 is 5" long.'),
        ("train", '"Animal 2 is ""big""."'),
        ("val", "x"),
        ("test", "y"),
    ):
        photos = [
            f"https://www.inaturalist.org/observations/{s}\thttps://static.inaturalist.org/photos/{s}1/large.jpg\ts\tbase"
            for s in (3, 4)
        ]
        lines.append("\t".join([*photos, split, "1", text]))
    root.mkdir(exist_ok=True)
    (root / "birds-to-words-v1.0.tsv").write_text("\n".join(lines) + "\n")
    for name in ("31", "41"):
        paint(root / f"images/{name}.jpg", int(name))
    return BirdsToWords(root, official=False)


def instructpix2pix(root: Path) -> InstructPix2Pix:
    write(root / "seeds.json", [[f"{number:07d}", ["11", "22"]] for number in range(20)])
    for number in range(20):
        write(root / f"{number:07d}/prompt.json", {"input": "x", "edit": f"make it {number}", "output": "y"})
        for seed in (11, 22):
            paint(root / f"{number:07d}/{seed}_0.jpg", seed)
            paint(root / f"{number:07d}/{seed}_1.jpg", 100 + seed)
    return InstructPix2Pix(root, official=False)


def magicbrush(root: Path) -> MagicBrush:
    for folder in ("train", "dev", "test"):
        turns = [
            {"input": "12-input.png", "mask": "12-mask1.png", "output": "12-output1.png", "instruction": "add a cat"}
        ]
        write(root / folder / "edit_turns.json", turns)
        paint(root / folder / "images/12/12-input.png", 1)
        paint(root / folder / "images/12/12-output1.png", 2)
    return MagicBrush(root, official=False)


def img_diff(root: Path) -> ImgDiff:
    turns = [{"from": "human", "value": "what differs?"}, {"from": "gpt", "value": "a dog, not a cat"}]
    records = [
        {"path": f"edit/{number // 2}", "bbox": "[0.5, 0.25, 1.0, 0.75]", "captions1": "a cat", "conversations": turns}
        for number in range(40)
    ]
    write(root / "img_diff_object_replacement.json", records)
    for number in range(20):
        paint(root / f"object_replacement/filtered_new_edit_data/edit/{number}_0.jpg", 1)
        paint(root / f"object_replacement/filtered_new_edit_data/edit/{number}_1.jpg", 2)
    return ImgDiff(root, official=False, shares=(0.4, 0.3, 0.3))


def omnidiff(root: Path) -> OmniDiff:
    for split in ("train", "val", "test"):
        record = {
            "id": f"{split}-1",
            "image1": "img/a.png",
            "image2": "img/b.png",
            "caption": "A lamp is on.",
            "types": ["illumination"],
        }
        (root / "real").mkdir(parents=True, exist_ok=True)
        (root / f"real/{split}.json").write_text(json.dumps(record) + "\n")
    paint(root / "img/a.png", 1)
    paint(root / "img/b.png", 2)
    return OmniDiff(root, official=False)


ALL = (
    *(birds_to_words, clevr_change, clevr_dc, image_editing_request, img_diff, instructpix2pix, levir_cc, magicbrush),
    *(omnidiff, spot_the_diff),
)


@pytest.mark.parametrize("make", ALL)
def test_every_split_loads(make: Any, tmp_path: Path) -> None:
    data = make(tmp_path / "root")
    for split in ("train", "val", "test", "predict"):
        source = data.pairs_of(split)
        for index in range(len(source)):
            sample = source.load(index)
            assert sample.before.shape == (3, 4, 6) and sample.id == source.ids[index]
            assert sample.captions == source.captions(index)
            # published scores of Spot-the-Diff count pairs without a sentence
            assert all(sample.captions) or (make is spot_the_diff and split != "train")
            assert sample.change_type == source.change_type(index)
    batch = next(iter(data.loader("train")))
    assert batch["images"].shape[1:] == (2, 3, 4, 6)


@pytest.mark.parametrize("make", ALL)
def test_missing_data_show_layout_and_instructions(make: Any, tmp_path: Path) -> None:
    kind = type(make(tmp_path / "full"))
    with pytest.raises(LayoutError) as raised:
        kind(tmp_path / "empty").prepare_data()
    message = str(raised.value)
    assert kind.title in message and "What to do: " in message and kind.tree.strip().splitlines()[0] in message
    with pytest.raises(LayoutError):
        kind(tmp_path / "empty").pairs_of("train")


@pytest.mark.parametrize("make", ALL)
def test_wrong_counts_are_an_error(make: Any, tmp_path: Path) -> None:
    make(tmp_path)
    kind = type(make(tmp_path))
    if kind is ImgDiff:
        records = json.loads((tmp_path / "img_diff_object_replacement.json").read_text())
        write(tmp_path / "img_diff_object_removal.json", records)
        data: Benchmark = ImgDiff(tmp_path, part="removal")
    else:
        data = kind(tmp_path)
    with pytest.raises(DataError, match="official: false"):
        data.pairs_of("train")


def test_clevr_change_pairs(tmp_path: Path) -> None:
    data = clevr_change(tmp_path)
    source = data.pairs_of("train")
    assert source.ids == ["000007.png", "000003.png", "000007.png_n", "000003.png_n"]
    assert [source.change_type(i) for i in range(4)] == ["texture", "move", "no_change", "no_change"]
    assert [levels(data, "train", i) for i in range(4)] == [(7, 57), (3, 53), (7, 107), (3, 103)]
    assert data.no_change_captions() == ["no change was made"]


def test_pairs_of_a_clevr_scene_are_in_one_step(tmp_path: Path) -> None:
    clevr_change(tmp_path)
    data = CLEVRChange(tmp_path, official=False, scenes_together=True, batch_size=2)
    steps = [[id.removesuffix("_n") for id in batch["ids"]] for batch in data.train_dataloader()]
    assert sorted(map(tuple, steps)) == [("000003.png",) * 2, ("000007.png",) * 2]
    with pytest.raises(ConfigError, match="an even batch_size, found change and 3"):
        CLEVRChange(tmp_path, pairs="change", scenes_together=True, batch_size=3)


def test_missing_image_does_not_shift_pairs(tmp_path: Path) -> None:
    data = clevr_change(tmp_path)
    (tmp_path / "sc_images/CLEVR_semantic_000007.png").unlink()
    with pytest.raises(LayoutError, match=r"1 images of the train split .* sc_images/CLEVR_semantic_000007\.png"):
        data.pairs_of("train")
    rest = CLEVRChange(tmp_path, official=False, on_missing="skip")
    with pytest.warns(UserWarning, match="skipped 1 of 4 pairs"):
        assert rest.pairs_of("train").ids == ["000003.png", "000007.png_n", "000003.png_n"]
    assert levels(rest, "train", 0) == (3, 53)


def test_clevr_dc_with_and_without_zeros(tmp_path: Path) -> None:
    data = clevr_dc(tmp_path)
    assert data.pairs_of("train").ids == ["5", "2"] and levels(data, "train", 1) == (2, 52)
    assert data.pairs_of("val").change_type(0) == "no_change" and data.pairs_of("test").change_type(0) == "change"
    for path in [*tmp_path.glob("bef/*.png"), *tmp_path.glob("aft/*.png")]:
        path.rename(path.with_stem(f"{int(path.stem):06d}"))
    assert levels(CLEVRDC(tmp_path, official=False), "train", 1) == (2, 52)


def test_spot_the_diff_groupings(tmp_path: Path) -> None:
    data = spot_the_diff(tmp_path, empty_references="leave_out")
    source = data.pairs_of("test")
    assert {name: source.captions(i) for i, name in enumerate(source.ids)} == {
        "4": ["a car left", "the van is gone"],
        "2": ["a man came"],
    }
    assert data.counts("test") == Counts(pairs=3, sentences=5, empty=2, uncaptioned=1, records=4)
    entry = spot_the_diff(tmp_path, grouping="entry", empty_references="leave_out").pairs_of("test")
    assert entry.ids == ["4", "2", "4#2"] and entry.captions(2) == ["the van is gone"]
    multi = spot_the_diff(tmp_path, grouping="multi", max_words=5).pairs_of("test")
    assert multi.captions(0) == ["a car left. the van"]
    with pytest.raises(ConfigError, match="grouped, entry, multi"):
        SpotTheDiff(tmp_path, grouping="pairs")  # type: ignore[arg-type]


def test_uncaptioned_pairs_count_as_in_published_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_uncaptioned = spot_the_diff(tmp_path)
    source = with_uncaptioned.pairs_of("test")
    assert len(source) == 3 and [""] in [source.captions(index) for index in range(3)]
    train = with_uncaptioned.pairs_of("train")
    assert all(any(train.captions(index)) for index in range(len(train)))
    assert not [problem for problem in check(with_uncaptioned, print) if "no caption" in problem]
    message = capsys.readouterr().out
    assert (
        "grouping grouped: one pair per image" in message and "are not comparable with those of entry, multi" in message
    )
    assert "1,270 test pairs, as in published numbers: 7 without a sentence score 0" in message
    without_uncaptioned = SpotTheDiff(tmp_path, grouping="entry", empty_references="leave_out")
    assert any("1,397 test pairs; 7 more" in line for line in without_uncaptioned.remarks())
    with pytest.raises(ConfigError, match="leave_out, keep"):
        SpotTheDiff(tmp_path, empty_references="drop")  # type: ignore[arg-type]


def test_changed_pairs_of_levir_cc_are_labelled(tmp_path: Path) -> None:
    data = levir_cc(tmp_path)
    table = json.loads((tmp_path / "LevirCCcaptions.json").read_text())
    table["images"][0]["sentences"] = [{"raw": " there is no difference ."}, {"raw": " no change has occurred ."}]
    write(tmp_path / "LevirCCcaptions.json", table)
    assert [data.pairs_of(split).change_type(0) for split in ("train", "val", "test")] == ["no_change", *["change"] * 2]


def test_levir_full_stops_are_removed(tmp_path: Path) -> None:
    assert levir_cc(tmp_path).pairs_of("val").captions(0) == ["a house appears"] * 5


def test_birds_table_with_quotation_marks(tmp_path: Path) -> None:
    source = birds_to_words(tmp_path).pairs_of("train")
    assert source.ids == ["31_41"] and source.captions(0) == ['Animal 1 is 5" long.', 'Animal 2 is "big".']


def test_unknown_split_is_an_error(tmp_path: Path) -> None:
    levir_cc(tmp_path)
    table = json.loads((tmp_path / "LevirCCcaptions.json").read_text())
    table["images"][1]["split"] = "Val"
    write(tmp_path / "LevirCCcaptions.json", table)
    for split in ("train", "test"):
        with pytest.raises(DataError, match=r"image 2: the split is 'Val'; expected train, val or test"):
            LEVIRCC(tmp_path, official=False).pairs_of(split)  # type: ignore[arg-type]
    (tmp_path / "LevirCCcaptions.json").unlink()
    write(tmp_path / "levir_cc_captions.json", {"train_000001.png": ["x"], "000001.png": ["y"]})
    with pytest.raises(DataError, match=r"json, 000001\.png: the split is '000001\.png'; expected train"):
        LEVIRCC(tmp_path, official=False).pairs_of("train")
    birds_to_words(tmp_path)
    path = tmp_path / "birds-to-words-v1.0.tsv"
    path.write_text(path.read_text().replace("\tval\t", "\tdev\t"))
    with pytest.raises(DataError, match=r"line 4: the split is 'dev'; expected train, val or test"):
        BirdsToWords(tmp_path, official=False).pairs_of("train")


def test_instructions_are_split_by_position(tmp_path: Path) -> None:
    data = instructpix2pix(tmp_path)
    assert [len(data.pairs_of(split)) for split in ("train", "val", "test")] == [18, 1, 1]
    assert data.pairs_of("val").captions(0) == ["make it 18"] and data.pairs_of("val").ids == ["0000018/11"]
    both = InstructPix2Pix(tmp_path, official=False, seeds="all").pairs_of("test")
    assert both.ids == ["0000019/11", "0000019/22"] and both.captions(1) == ["make it 19"]
    # bounds in the official list, rounded down as in the reference loader
    assert [_bounds(313_010, split) for split in ("train", "val", "test")] == [
        (0, 281_709),
        (281_709, 297_359),
        (297_359, 313_010),
    ]


def test_pairs_without_instruction_or_image_are_skipped(tmp_path: Path) -> None:
    instructpix2pix(tmp_path)
    (tmp_path / "0000003/prompt.json").unlink()
    (tmp_path / "0000005/11_1.jpg").unlink()
    data = InstructPix2Pix(tmp_path, official=False, on_missing="skip")
    with pytest.warns(UserWarning, match="skipped 2 of 18 pairs with missing files"):
        source = data.pairs_of("train")
    assert len(source) == 16 and all(source.load(index).captions for index in range(16))
    for number in range(20):
        (tmp_path / f"{number:07d}/prompt.json").unlink(missing_ok=True)
    with pytest.raises(LayoutError, match="are missing"):
        InstructPix2Pix(tmp_path, official=False, on_missing="skip").pairs_of("train")


def test_img_diff_boxes_are_in_pixels_and_splits_do_not_share_images(tmp_path: Path) -> None:
    data = img_diff(tmp_path)
    sample = data.pairs_of("train").load(1)
    assert sample.boxes.tolist() == [[[3.0, 1.0, 6.0, 3.0]] * 2]
    assert sample.captions == ["a dog, not a cat"] and sample.meta["question"] == "what differs?"
    homes: dict[str, set[str]] = {}
    for split in ("train", "val", "test"):
        for name in data.pairs_of(split).ids:
            homes.setdefault(name.partition("#")[0], set()).add(split)
    assert len(homes) == 20 and all(len(home) == 1 for home in homes.values())
    scaled = ImgDiff(tmp_path, official=False, shares=(0.4, 0.3, 0.3), image_size=12)
    assert next(iter(scaled.loader("train")))["images"].shape[-2:] == (12, 12)
    assert scaled.pairs_of("train").load(0).boxes.tolist() == [[[6.0, 3.0, 12.0, 9.0]] * 2]


def test_omnidiff_fields_can_be_mapped(tmp_path: Path) -> None:
    assert omnidiff(tmp_path).pairs_of("test").change_type(0) == "illumination"
    turns = [{"from": "human", "value": "?"}, {"from": "gpt", "value": "A lamp is off."}]
    write(tmp_path / "talks_real_val.json", [{"image": ["img/a.png", "img/b.png"], "conversations": turns}])
    fields = {"id": "", "before": "image.0", "after": "image.1", "caption": "conversations.1.value"}
    name = "talks_{subset}_{split}.json"
    data = OmniDiff(tmp_path, official=False, fields=fields, annotations_file=name)
    source = data.pairs_of("val")
    assert (source.ids, source.captions(0), levels(data, "val")) == (
        ["img/a.png..img/b.png"],
        ["A lamp is off."],
        (1, 2),
    )
    with pytest.raises(DataError, match=r"no field 'image1' for before; .*'image', 'conversations'"):
        OmniDiff(tmp_path, official=False, annotations_file=name).pairs_of("val")


@pytest.mark.parametrize("value", [None, 5, ["img/a.png"], "  "])
def test_omnidiff_record_without_path_is_an_error(tmp_path: Path, value: Any) -> None:
    data = omnidiff(tmp_path)
    write(tmp_path / "real/val.json", [{"id": "v", "image1": "img/a.png", "image2": value, "caption": "x"}])
    data.on_missing = "skip"
    with pytest.raises(DataError, match=r"record 1: image2 is .*; expected the path of an image"):
        data.pairs_of("val")


def test_check_prints_expected_and_actual_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clevr_change(tmp_path)
    (tmp_path / "nsc_images/CLEVR_nonsemantic_000003.png").write_bytes(b"<!DOCTYPE html><html>")
    (tmp_path / "sc_images/CLEVR_semantic_000012.png").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problems = check(CLEVRChange(tmp_path), print)
    message = capsys.readouterr().out
    assert "train: expected 67,660 pairs; found" in message and "found 4 pairs, 4 sentences" in message
    assert "train: 4 pairs, 4 captions" in message and "test: 1 pairs, 1 captions" in message
    assert any(
        "sc_images/CLEVR_semantic_000012.png" in p and p.startswith("1 images of the test split") for p in problems
    )
    assert any("pairs cannot be read" in p and "it is a web page" in p for p in problems)
    assert [p for p in problems if "expected" in p and "found" in p] == [
        "CLEVR-Change type_mapping.json: expected 7,966 of add, 7,958 of color, 7,961 of drop, 7,955 of move, "
        "7,963 of texture; found 3 of move, 1 of texture"
    ]


def test_nothing_outside_the_root_is_read(tmp_path: Path) -> None:
    paint(tmp_path / "secret.png", 9)
    root = tmp_path / "root"
    image_editing_request(root)
    for name in ("../../secret.png", "..", "a/../../../secret.png", "sub/"):
        write(root / "train.json", [{"uid": "1", "img0": name, "img1": "b.png", "sents": ["x"]}])
        with pytest.raises(IDCError, match=r"leaves the data folder|is not a valid path of a file"):
            ImageEditingRequest(root, official=False).pairs_of("train")
    (root / "images/link.png").symlink_to(tmp_path / "secret.png")
    write(root / "train.json", [{"uid": "1", "img0": "link.png", "img1": "b.png", "sents": ["x"]}])
    with pytest.raises(DataError, match=r"is a link to .*, outside the data folder"):
        ImageEditingRequest(root, official=False).pairs_of("train")


def test_a_web_page_instead_of_annotations(tmp_path: Path) -> None:
    spot_the_diff(tmp_path)
    (tmp_path / "annotations/train.json").write_text("\n <!DOCTYPE html><html>Sign in</html>")
    with pytest.raises(IDCError, match="is an HTML or XML page"):
        SpotTheDiff(tmp_path, official=False).pairs_of("train")


def test_removals_of_one_pair_are_in_one_split(tmp_path: Path) -> None:
    """All removals of one pair are in one split; their names hold pair, image, object and part of the run."""
    turns = [{"from": "human", "value": "which?"}, {"from": "gpt", "value": "A"}]
    names = [f"{pair}_img{side}_{k}_2" for pair in range(40) for side in (0, 1) for k in range(3)]
    records = [
        {"path": f"./inpaint/2_{name}", "bbox": [0.5, 0.25, 1.0, 0.75], "conversations": turns} for name in names
    ]
    write(tmp_path / "img_diff_object_removal.json", records)
    data = ImgDiff(tmp_path, part="removal", official=False, shares=(0.4, 0.3, 0.3))
    homes: dict[str, set[str]] = {}
    for split in ("train", "val", "test"):
        for record in data.read(split):  # type: ignore[arg-type]
            homes.setdefault(record.id.rpartition("_img")[0], set()).add(split)
    assert len(homes) == 40 and all(len(splits) == 1 for splits in homes.values())
