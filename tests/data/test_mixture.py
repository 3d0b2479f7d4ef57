"""Mixtures and tables. Oracle: shares calculated by hand, and tables written with `datasets` from known pairs."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.benchmarks.hf_table import HuggingFaceTable
from lightning_idc.data.benchmarks.magicbrush import MagicBrush
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.mixture import Mixture, MixtureSampler, largest_remainder
from lightning_idc.utils.errors import ConfigError, DataError, IDCError


def folder(root: Path, pairs: int, captions: int = 1) -> FolderPairs:
    root.mkdir(parents=True)
    lines = ["id,before,after,split," + ",".join(f"caption_{n + 1}" for n in range(captions))]
    for split in ("train", "val", "test"):
        for number in range(pairs):
            Image.fromarray(np.full((4, 6, 3), number, np.uint8)).save(root / f"{split}{number}.png")
            texts = ",".join(f"{root.name} {number} {n}" for n in range(captions))
            lines.append(f"{split}{number},{split}{number}.png,{split}{number}.png,{split},{texts}")
    (root / "pairs.csv").write_text("\n".join(lines))
    return FolderPairs(root)


def drawn(data: PairDataModule, epoch: int) -> list[str]:
    loader = data.loader("train")
    loader.pair_sampler.set_epoch(epoch)
    return [name for batch in loader for name in batch["ids"]]


@pytest.mark.parametrize(
    ("weights", "total", "shares"),
    [((1, 1), 3, [2, 1]), ((1, 2), 9, [3, 6]), ((0.5, 0.25, 0.25), 10, [5, 3, 2]), ((1, 1000), 5, [0, 5])],
)
def test_largest_remainder(weights: tuple[float, ...], total: int, shares: list[int]) -> None:
    assert largest_remainder(weights, total) == shares


def test_train_splits_may_include_val_without_changing_evaluation(tmp_path: Path) -> None:
    parts = {"a": folder(tmp_path / "a", 2, captions=2), "b": folder(tmp_path / "b", 3)}
    data = Mixture(parts, train_splits=["train", "val"], per_caption=["a"], batch_size=4)
    names = drawn(data, 0)
    assert len(names) == len(set(names)) == 2 * 2 * 2 + 2 * 3
    assert {"a/train/train0", "a/val/val1/2", "b/val/val2"} <= set(names)
    source = data.source("train")
    assert source.load(source.ids.index("a/val/val1/2")).captions == ["a 1 1"]
    assert source.load(0).meta["part"] == "a"
    assert data.source("val").ids[0] == "a/val0"
    with pytest.raises(ConfigError, match="train_splits is"):
        Mixture(parts, train_splits=["train", "train"])


def test_parts_have_their_fraction_and_repeat_only_after_all_pairs(tmp_path: Path) -> None:
    parts = {"small": folder(tmp_path / "small", 3), "large": folder(tmp_path / "large", 10)}
    data = Mixture(parts, weights={"small": 2, "large": 1}, epoch_pairs=12, batch_size=4)
    seen: Counter[str] = Counter()
    for epoch in range(5):
        names = drawn(data, epoch)
        assert Counter(name.split("/")[0] for name in names) == {"small": 8, "large": 4}
        seen.update(names)
        own = [count for name, count in seen.items() if name.startswith("small")]
        assert max(own) - min(own) <= 1
        assert drawn(data, epoch) == names
    assert drawn(data, 0) != drawn(data, 1)
    # in 5 epochs, the 10 large pairs are drawn 20 times
    assert {count for name, count in seen.items() if name.startswith("large")} == {2}


def test_without_weights_an_epoch_has_every_pair_once(tmp_path: Path) -> None:
    parts = {"a": folder(tmp_path / "a", 3), "b": folder(tmp_path / "b", 5)}
    data = Mixture(parts)
    names = drawn(data, 3)
    assert sorted(names) == sorted(f"{part}/train{n}" for part, count in (("a", 3), ("b", 5)) for n in range(count))
    assert len(data.pairs_of("val")) == 8
    sample = data.pairs_of("val").load(4)
    assert (sample.id, sample.captions, sample.meta["part"]) == ("b/val1", ["b 1 0"], "b")


def test_per_caption_applies_to_training_only(tmp_path: Path) -> None:
    data = Mixture({"a": folder(tmp_path / "a", 2, captions=3), "b": folder(tmp_path / "b", 2)}, per_caption=["a"])
    source = data.pairs_of("train")
    assert source.ids[:4] == ["a/train0", "a/train0/2", "a/train0/3", "a/train1"]
    assert [source.captions(i) for i in range(3)] == [["a 0 0"], ["a 0 1"], ["a 0 2"]]
    assert len(source) == 8 and len(drawn(data, 0)) == 8
    assert source.load(2).captions == ["a 0 2"] and source.load(2).id == "a/train0/3"
    assert len(data.pairs_of("test")) == 4 and len(data.pairs_of("test").captions(0)) == 3
    assert len(data.train_captions()) == 8


def test_size_and_limit_of_a_mixture_apply_to_its_parts(tmp_path: Path) -> None:
    data = Mixture({"a": folder(tmp_path / "a", 3), "b": folder(tmp_path / "b", 3)}, image_size=(5, 7), limit=2)
    assert data.pairs_of("train").ids == ["a/train0", "a/train1", "b/train0", "b/train1"]
    assert data.pairs_of("train").load(0).before.shape == (3, 5, 7)


def test_two_processes_share_an_epoch() -> None:
    together = MixtureSampler([3, 10], [1, 1], 10, seed=4, rank=0, world_size=1)
    halves = [MixtureSampler([3, 10], [1, 1], 10, seed=4, rank=rank, world_size=2) for rank in (0, 1)]
    for sampler in (together, *halves):
        sampler.set_epoch(2)
    dealt = [list(half) for half in halves]
    assert [draw for pair in zip(*dealt, strict=True) for draw in pair] == list(together)


def test_invalid_mixtures(tmp_path: Path) -> None:
    part = folder(tmp_path / "a", 1)
    for options, message in (
        ({"parts": {}}, "at least one part"),
        ({"parts": {"a": part}, "weights": {"b": 1}}, "has the unknown part 'b'; the parts are a"),
        ({"parts": {"a": part, "c": part}, "weights": {"a": 1}}, "'c' has no weight"),
        ({"parts": {"a": part}, "weights": {"a": 0}}, "expected a number above 0"),
        ({"parts": {"a/b": part}}, "without a slash"),
        ({"parts": {"a": part}, "epoch_pairs": 0}, "at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            Mixture(**options)  # type: ignore[arg-type]


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def table(pairs: int, first: int = 0) -> Any:
    datasets = pytest.importorskip("datasets")
    features = {
        "source_img": datasets.Image(),
        "target_img": datasets.Image(),
        "instruction": datasets.Value("string"),
        "img_id": datasets.Value("string"),
        "turn_index": datasets.Value("int32"),
    }
    rows = range(first, first + pairs)
    columns = {
        "source_img": [{"bytes": png(n), "path": None} for n in rows],
        "target_img": [{"bytes": png(100 + n), "path": None} for n in rows],
        "instruction": ["" if n == 2 else f"edit {n}" for n in rows],
        "img_id": [str(n // 2) for n in rows],
        "turn_index": [n % 2 for n in rows],
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


COLUMNS = {"before": "source_img", "after": "target_img", "captions": "instruction"}


def test_a_table_on_disk(tmp_path: Path) -> None:
    import datasets

    datasets.DatasetDict({"train": table(4), "validation": table(2, 4)}).save_to_disk(str(tmp_path / "saved"))
    data = HuggingFaceTable(tmp_path / "saved", **COLUMNS, id=["img_id", "turn_index"], image_size=(8, 8))
    source = data.pairs_of("train")
    assert source.ids == ["0-0", "0-1", "1-1"]  # the third has no caption
    sample = source.load(2)
    assert (int(sample.before[0, 0, 0]), int(sample.after[0, 0, 0])) == (3, 103) and sample.captions == ["edit 3"]
    assert sample.before.shape == (3, 8, 8)
    assert data.pairs_of("val").ids == ["2-0", "2-1"]
    with pytest.raises(ConfigError, match=r"no split 'test' .* 'train', 'validation'"):
        data.pairs_of("test")
    with pytest.raises(ConfigError, match="no column 'text'"):
        HuggingFaceTable(tmp_path / "saved", "source_img", "target_img", "text").pairs_of("train")


def test_a_parquet_file_and_lists_of_captions(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {"a": [png(1)], "b": [png(2)], "texts": [["one", "", "two"]], "kind": ["add"]}
    datasets.Dataset.from_dict(columns).to_parquet(str(tmp_path / "train.parquet"))
    source = HuggingFaceTable(tmp_path / "train.parquet", "a", "b", "texts", change_type="kind").pairs_of("train")
    sample = source.load(0)
    assert sample.captions == ["one", "two"] and sample.change_type == "add" and sample.id == "000000"
    assert int(sample.after[0, 0, 0]) == 2


def test_paths_in_a_table_stay_below_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.png").write_bytes(png(5))
    (tmp_path / "secret.png").write_bytes(png(6))
    lines = ['{"a": "a.png", "b": "a.png", "t": "x"}', '{"a": "../secret.png", "b": "a.png", "t": "y"}']
    (root / "train.jsonl").write_text("\n".join(lines))
    source = HuggingFaceTable(root / "train.jsonl", "a", "b", "t").pairs_of("train")
    assert int(source.load(0).before[0, 0, 0]) == 5
    with pytest.raises(DataError, match="leaves the data folder"):
        source.load(1)


def test_table_fingerprint_covers_image_files(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    (tmp_path / "a.png").write_bytes(png(5))
    (tmp_path / "train.jsonl").write_text('{"a": "a.png", "b": "b.png", "t": "x"}')
    cells = {"a": [{"bytes": png(5), "path": "gone.png"}], "b": [{"bytes": None, "path": "b.png"}], "t": ["x"]}
    datasets.Dataset.from_dict(cells).to_parquet(str(tmp_path / "train.parquet"))
    for name in ("train.jsonl", "train.parquet"):

        def fingerprint(name: str = name) -> str | None:
            return HuggingFaceTable(tmp_path / name, "a", "b", "t").pairs_of("train").fingerprint()

        (tmp_path / "b.png").write_bytes(png(6))
        first = fingerprint()
        assert first == fingerprint() and first is not None
        (tmp_path / "b.png").write_bytes(png(7))
        assert fingerprint() != first
        (tmp_path / "b.png").unlink()
        with pytest.raises(IDCError, match=r"row 0, b: .*b\.png' cannot be read"):
            fingerprint()


@pytest.mark.parametrize("name", ["train.csv", "data/train-00000.csv"])
def test_csv_cells_are_text(tmp_path: Path, name: str) -> None:
    """Cells are read as text, unlike in pandas, which reads "None" and "NA" as missing and 007 as 7."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    rows = ["007,None,NA,1.5", "008,n/a,x,", "009,12,null,2", "010,,x,3", "011,a cup,,4"]
    path.write_text("\n".join(["id,t,kind,score,a,b", *(f"{row},a.png,a.png" for row in rows)]))
    table = path if path.parent == tmp_path else path.parent
    options = {"id": ["id"], "change_type": "kind", "rejected": "t", "margin": "score"}
    source = HuggingFaceTable(table, "a", "b", "t", **options).pairs_of("train")  # type: ignore[arg-type]
    assert list(source.ids) == ["007", "008", "009", "011"]
    assert [source.captions(n) for n in range(4)] == [["None"], ["n/a"], ["12"], ["a cup"]]
    assert [source.change_type(n) for n in range(4)] == ["NA", "x", "null", None]
    assert source.meta(0)["margin"] == 1.5
    path.write_text("id,t,a,b\n,a cup,a.png,a.png\n")
    with pytest.raises(DataError, match="id is null"):
        HuggingFaceTable(table, "a", "b", "t", id=["id"]).pairs_of("train")


def test_file_that_is_not_a_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(ConfigError, match="is not a table"):
        HuggingFaceTable(tmp_path / "x.txt", "a", "b", "c").pairs_of("train")
    (tmp_path / "broken.parquet").write_text("hello")
    with pytest.raises(DataError, match="cannot be loaded"):
        HuggingFaceTable(tmp_path / "broken.parquet", "a", "b", "c").pairs_of("train")


@pytest.mark.slow
def test_magicbrush_parquet_tables(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table(2).to_parquet(str(tmp_path / "data/train-00000-of-00001.parquet"))
    table(2, 6).to_parquet(str(tmp_path / "data/dev-00000-of-00001.parquet"))
    data = MagicBrush(tmp_path, official=False)
    assert data.pairs_of("train").ids == ["0-0", "0-1"] and data.pairs_of("val").ids == ["3-0", "3-1"]
    assert int(data.pairs_of("val").load(0).after[0, 0, 0]) == 106
    with pytest.raises(DataError, match=r"expected 8,807 pairs.*found 2 pairs"):
        MagicBrush(tmp_path).pairs_of("train")


def test_table_folder_stays_below_its_root(tmp_path: Path) -> None:
    root = tmp_path / "table"
    root.mkdir()
    row = {"a": "x.png", "b": "x.png", "t": "text", "name": None}
    (tmp_path / "secret.jsonl").write_text(json.dumps(row))
    (root / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: ../secret.jsonl\n---\n")
    with pytest.raises(DataError, match=r"README of .* names .*secret\.jsonl'; only files below the folder are read"):
        HuggingFaceTable(root, "a", "b", "t").pairs_of("train")
    (root / "README.md").unlink()
    (root / "train.jsonl").write_text("\n".join(json.dumps({**row, "name": name}) for name in ("one", None)))
    with pytest.raises(DataError, match=r"row 1: name is null; expected a value for the id of the pair"):
        HuggingFaceTable(root, "a", "b", "t", id=["name"]).pairs_of("train")


def test_mixtures_and_corruptions_from_yaml(tmp_path: Path) -> None:
    from jsonargparse import ArgumentParser

    from lightning_idc.utils.names import with_full_names

    folder(tmp_path / "a", 2)
    home = "lightning_idc.data"
    part = {
        "class_path": f"{home}.FolderPairs",
        "init_args": {
            "root": str(tmp_path / "a"),
            "corruption": {"class_path": f"{home}.ReplaceWords", "init_args": {"ratio": 0.4}},
        },
    }
    config = {
        "data": {
            "class_path": f"{home}.Mixture",
            "init_args": {"parts": {"one": part, "two": part}, "weights": {"one": 1, "two": 3}, "image_size": 8},
        }
    }
    config = with_full_names(config)
    parser = ArgumentParser()
    parser.add_argument("--data", type=PairDataModule)
    data = parser.instantiate_classes(parser.parse_object(config)).data
    assert isinstance(data, Mixture) and Counter(n.split("/")[0] for n in drawn(data, 0)) == {"one": 1, "two": 3}
    assert data.parts["one"].pairs_of("train").captions(0) != FolderPairs(tmp_path / "a").pairs_of("train").captions(0)
