"""Exported pairs are read back unchanged, by this library and by `datasets`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import datasets
import pytest
import torch
from helpers.tiny import TinyPairs
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.data import FolderPairs, HuggingFaceTable, Mixture, PreferencePairs, SyntheticPairs
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.export.files import export_pairs
from lightning_idc.data.source import PairSource
from lightning_idc.images.read import read_image
from lightning_idc.methods import BoxReward, Counterfactual, FactsReward, RandomCaption, as_trl_reward
from lightning_idc.methods.adpo.drawing import draw_all
from lightning_idc.utils.errors import ConfigError, DataError

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> SyntheticPairs:
    return SyntheticPairs(
        train_pairs=6,
        val_pairs=2,
        test_pairs=2,
        render_size=24,
        cache_dir=tmp_path_factory.mktemp("rendered"),
        progress=False,
    )


def assert_same_pairs(found: PairSource, expected: PairSource) -> None:
    """The pairs have the same pixels, captions and labels, in the same order."""
    assert len(found) == len(expected)
    for index in range(len(expected)):
        pair, original = found.load(index), expected.load(index)
        assert torch.equal(pair.before, original.before) and torch.equal(pair.after, original.after)
        assert found.captions(index) == original.captions and found.change_type(index) == original.change_type


def readers(format: str, folder: Path) -> dict[str, PairDataModule]:
    """Data modules of this library that read an export without negatives."""
    columns = {"captions": "captions", "id": ["id"], "change_type": "change_type"}
    return {
        "trl": lambda: HuggingFaceTable(folder, "images.0", "images.1", **columns),
        "parquet": lambda: HuggingFaceTable(folder, "before", "after", **columns),
        "ms-swift": lambda: FolderPairs(folder),
        "llamafactory": lambda: FolderPairs(folder),
    }[format]()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["trl", "parquet", "ms-swift", "llamafactory"])
def test_this_library_reads_its_exports_back_equal(format: str, tmp_path: Path, rendered: SyntheticPairs) -> None:
    assert export_pairs(rendered, tmp_path / "out", format) == {"train": 6, "val": 2, "test": 2}
    data = readers(format, tmp_path / "out")
    for split in ("train", "val", "test"):
        assert data.pairs_of(split).ids == list(rendered.pairs_of(split).ids)
        assert_same_pairs(data.pairs_of(split), rendered.pairs_of(split))


@pytest.mark.parametrize("format", ["trl", "parquet", "webdataset"])
def test_datasets_reads_splits_and_images(format: str, tmp_path: Path, rendered: SyntheticPairs) -> None:
    export_pairs(rendered, tmp_path / "out", format, rejected_images="swapped")
    tables = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(table) for name, table in tables.items()} == {"train": 6, "validation": 2, "test": 2}
    row, pair = tables["test"][1], rendered.pairs_of("test").load(1)
    if format == "trl":
        before, rejected = row["images"][0], row["rejected_images"][0]
    elif format == "parquet":
        before, rejected = row["before"], row["rejected_before"]
    else:
        before, rejected, row = row["before.png"], row["rejected_before.png"], row["json"]
    assert torch.equal(read_image(before), pair.before) and torch.equal(read_image(rejected), pair.after)
    assert (row["id"], row["captions"]) == (pair.id, pair.captions)
    assert json.loads(row["facts"]) == pair.meta and row["difficulty"] == pytest.approx(1 - pair.meta["iou"])


@pytest.mark.parametrize("format", ["ms-swift", "llamafactory"])
def test_preferences_are_read_back_with_their_negatives(format: str, tmp_path: Path, rendered: SyntheticPairs) -> None:
    rejected = {"train": draw_all(RandomCaption(), rendered, "train", 2)}
    rows = export_pairs(rendered, tmp_path, format, ["train"], rejected, "identical", rows_per_pair=2)
    assert rows == {"train": 12}
    found = FolderPairs(tmp_path).pairs_of("train")
    pairs = {(found.load(n).captions[0], found.meta(n)["rejected"][0]) for n in range(len(found))}
    source = rendered.pairs_of("train")
    assert pairs == {(source.captions(n)[k], rejected["train"][n][k]) for n in range(len(source)) for k in range(2)}
    assert FolderPairs(tmp_path).pairs_of("train").meta(0)["question"].startswith("What changed")
    line = json.loads((tmp_path / "train.jsonl").read_text().splitlines()[0])
    assert line["rejected_images"] == [line["images"][0]] * 2
    assert len(list((tmp_path / "images" / "train").iterdir())) == 12, "rows of one pair share its images"
    assert len(PreferencePairs(tmp_path, "train.jsonl", shares=(1.0, 0.0, 0.0)).pairs_of("train")) == len(found)


def test_trl_rows_are_conversations_that_our_table_reads(tmp_path: Path, rendered: SyntheticPairs) -> None:
    rejected = {"val": draw_all(Counterfactual(), rendered, "val")}
    export_pairs(rendered, tmp_path, "trl", ["val"], rejected)
    columns = {"captions": "chosen", "rejected": "rejected"}
    source = HuggingFaceTable(tmp_path, "images.0", "images.1", splits={"val": "validation"}, **columns).pairs_of("val")
    for index, texts in enumerate(rejected["val"]):
        assert source.meta(index)["rejected"] == texts
        assert source.captions(index) == rendered.pairs_of("val").captions(index)[:1]


def test_negatives_are_wrong_and_repeat_with_the_seed(rendered: SyntheticPairs) -> None:
    for source in (RandomCaption(), Counterfactual()):
        rows = draw_all(source, rendered, "train", 3, seed=1)
        assert rows == draw_all(source, rendered, "train", 3, seed=1)
        captions = [rendered.pairs_of("train").captions(index) for index in range(6)]
        assert not any(set(row) & set(texts) for row, texts in zip(rows, captions, strict=True))


def test_exported_facts_reward_as_the_pairs_do(tmp_path: Path, rendered: SyntheticPairs) -> None:
    export_pairs(rendered, tmp_path, "trl", ["test"])
    rows = datasets.load_dataset("parquet", data_files=str(tmp_path / "*.parquet"), cache_dir=str(tmp_path / "cache"))
    columns = {name: list(rows["train"][name]) for name in ("id", "captions", "facts")}
    columns["boxes"], columns["images"] = list(rows["train"]["boxes"]), list(rows["train"]["images"])
    pair = rendered.pairs_of("test").load(0)
    boxes = pair.boxes[~pair.boxes.isnan().any(-1)].tolist()
    assert as_trl_reward(BoxReward(image="either"))([str(boxes[:1]), "none"], **columns)[0] > 0.4
    reward = as_trl_reward(FactsReward())
    assert reward(completions=list(rows["train"]["completion"]), prompts=[], **columns) == [1.0, 1.0]


def test_a_mixture_exports_all_its_parts(tmp_path: Path) -> None:
    data = Mixture({"a": TinyPairs(3), "b": TinyPairs(2)})
    assert export_pairs(data, tmp_path, "ms-swift", ["train"]) == {"train": 5}
    assert_same_pairs(FolderPairs(tmp_path).pairs_of("train"), data.pairs_of("train"))


def test_the_command_exports_with_negatives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--train_pairs", "4", "--val_pairs", "1", "--test_pairs", "1", "--render_size", "16", "--split", "train"]
    command = ["data", "export", "synthetic", "--cache_dir", str(tmp_path / "cache"), *options]
    out = tmp_path / "out"
    assert main([*command, "--out", str(out), "--format", "ms-swift", "--negatives", "Counterfactual"]) == 0
    assert "4 rows of train" in capsys.readouterr().out
    assert "rejected_response" in json.loads((out / "train.jsonl").read_text().splitlines()[0])
    assert main([*command, "--out", str(out), "--negatives", "{class: SameScene, scen: x}"]) == 1
    assert "SameScene has no argument 'scen'; did you mean 'scene'?" in capsys.readouterr().err
    assert main([*command, "--out", str(out), "--format", "jsonl"]) == 1
    assert "jsonl is the format of records" in capsys.readouterr().err


def test_images_that_png_cannot_hold_and_missing_models_are_errors(tmp_path: Path, rendered: SyntheticPairs) -> None:
    from lightning_idc.data.export.rows import encode_png
    from lightning_idc.methods import SelfSampled

    with pytest.raises(DataError, match="images of 4 channels"):
        encode_png(torch.zeros(4, 2, 2, dtype=torch.uint8), "a")
    gray = torch.arange(4, dtype=torch.uint8).view(1, 2, 2)
    assert Image.open(io.BytesIO(encode_png(gray, "a"))).tobytes() == bytes([0, 1, 2, 3])
    with pytest.raises(ConfigError, match="SelfSampled"):
        draw_all(SelfSampled(), rendered, "train")
