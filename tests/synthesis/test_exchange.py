"""Records are exported to data-juicer and the Hub, and imported again."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from helpers.toy_stages import pair_of
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.synthesis.duplicates import Deduplicate
from lightning_idc.synthesis.export import export_records
from lightning_idc.synthesis.juicer import JsonLines
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.release import ReleasePairs
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import Sentences
from lightning_idc.synthesis.stages import MapStage, Sequential
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.errors import DataError, DatasetNotFoundError

AREAS = [
    {"box": [2.0, 4.0, 12.0, 24.0], "captions": ["a dog", "a cat"], "difference": "It became a cat.", "dropped": None},
    {"box": [1.0, 1.0, 2.0, 2.0], "captions": ["a", "a"], "dropped": {"reason": "captions too similar"}},
]  # fmt: skip


class Described:
    """Three pairs with captions and areas; the last is a copy of the first."""

    fingerprint = "described"

    def __len__(self) -> int:
        return 3

    def record(self, index: int) -> Record:
        record = Record(f"d{index}", {"captions": ["a dog sits", f"a cat sits {index % 2}"], "areas": AREAS})
        record.decoded = pair_of(10, 200 + index).decoded
        record.unsaved = {"before", "after"}
        return record


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return run(Deduplicate(("captions",)), Described(), tmp_path / "store")  # type: ignore[arg-type]


def test_data_juicer_round_trip(store: RecordStore) -> None:
    target = "memory://juicer/out"
    (path,) = export_records(store, target, "jsonl")
    with fsspec.filesystem("memory").open(path) as file:
        samples = [json.loads(line) for line in file.read().decode().splitlines()]
    assert [sample["id"] for sample in samples] == ["d0", "d1"]
    first = samples[0]
    assert first["images"] == [first["image_path1"], first["image_path2"]] == [
        "images/00000000.before.png", "images/00000000.after.png"
    ]  # fmt: skip
    assert first["text"].startswith("<__dj__image><__dj__image> ") and first["text"].endswith(" <|__dj__eoc|>")
    assert (first["caption1"], first["caption2"]) == ("a dog sits", "a cat sits 0")
    meta = first["__dj__meta__"]
    assert meta["bbox_tag"] == [[7.0, 14.0, 10.0, 20.0]], "centre and size, of the areas that were kept"
    assert meta["region_caption1"] == ["a dog"] and meta["bbox_difference_captions"] == ["It became a cat."]
    source = JsonLines(f"memory:/{path}")
    assert len(source) == 2
    for index in range(2):
        ours, theirs = source.record(index), store.record(index)
        assert {name: ours.facts[name] for name in theirs.facts} == theirs.facts
        assert ours.images == theirs.images and ours.id == theirs.id


def test_other_lines_are_rejected(tmp_path: Path) -> None:
    empty = {"bbox_tag": [[0, 0, 0, 0]], "region_caption1": [""], "region_caption2": [""]}
    lines = [
        {"images": ["a.png"], "text": "<__dj__image> A bus. <|__dj__eoc|>", "__dj__stats__": {"image_width": [8]}},
        {"image_path1": "a.png", "image_path2": "gone.png", "caption1": "x", "caption2": "y", "__dj__meta__": empty},
    ]
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    file = tmp_path / "in.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    source = JsonLines(str(file))
    first, second = source.record(0), source.record(1)
    assert first.id == "00000000" and first.facts == {"caption": "A bus.", "stats": {"image_width": [8]}}
    assert first.images == {"image": b"\x89PNG"}
    assert second.facts == {"captions": ["x", "y"], "areas": []} and set(second.images) == {"before", "after"}
    known = source.fingerprint
    with file.open("a") as more:
        more.write(json.dumps(lines[0]))
    assert JsonLines(str(file)).fingerprint != known
    file.write_text('{"images": 3}\nnothing\n')
    for index, line in enumerate(("sample 1", "sample 2")):
        with pytest.raises(DataError, match=f"{line} is not a data-juicer sample"):
            JsonLines(str(file)).record(index)
    with pytest.raises(DatasetNotFoundError, match="cannot be read"):
        JsonLines(str(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="has no line"):
        JsonLines(str(tmp_path / "empty.jsonl"))


class LocalHub:
    """The methods of the Hub API that `push_records` calls, for a local folder."""

    place: Path

    def create_repo(self, repo_id: str, repo_type: str, private: bool, exist_ok: bool) -> None:
        assert exist_ok and repo_type == "dataset"
        (self.place / repo_id).mkdir(parents=True)
        (self.place / repo_id / ".private").write_text(str(private))

    def get_paths_info(self, *unused: Any, **options: Any) -> list[Any]:
        return []

    def upload_folder(
        self, repo_id: str, repo_type: str, folder_path: str, commit_message: str, **patterns: Any
    ) -> str:
        assert commit_message and repo_type == "dataset"
        shutil.copytree(folder_path, self.place / repo_id, dirs_exist_ok=True)
        return f"https://hub/datasets/{repo_id}"


def test_pushed_data_set_loads_by_its_card(
    store: RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub
    from datasets import load_dataset

    monkeypatch.setattr(LocalHub, "place", tmp_path / "hub", raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", LocalHub)
    assert main(["data", "push", str(store.folder), "me/pairs"]) == 0
    assert "https://hub/datasets/me/pairs" in capsys.readouterr().out
    pushed = tmp_path / "hub" / "me" / "pairs"
    assert (pushed / ".private").read_text() == "True"
    card = huggingface_hub.DatasetCard.load(pushed / "README.md")
    assert "| kept | 2 |" in card.text and "| duplicate | 1 |" in card.text and "| Deduplicate |" in card.text
    assert str(tmp_path) not in card.content, "no path of this machine leaves it"
    rows: Any = load_dataset(str(pushed), split="train", cache_dir=str(tmp_path / "cache"))  # by the card's data_files
    assert rows["id"][:] == ["d0", "d1"] and rows[0]["areas"][0]["box"] == AREAS[0]["box"]
    assert rows[0]["before"].size == (40, 40)


def test_blank_lines_are_skipped_and_short_lists_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('\n{"text": "A bus."}\n\n{"text": "A car."}\n\n')
    source = JsonLines(str(file))
    assert [source.record(index).facts["caption"] for index in range(len(source))] == ["A bus.", "A car."]
    meta = {"bbox_tag": [[5, 5, 2, 2], [8, 8, 2, 2]], "region_caption1": ["a"], "region_caption2": ["b", "c"]}
    file.write_text(json.dumps({"text": "A bus.", "__dj__meta__": meta}))
    with pytest.raises(DataError, match="sample 1 is not a data-juicer sample"):
        JsonLines(str(file)).record(0)


def test_duplicate_ids_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("".join(f'{{"id": "{name}", "text": "A bus."}}\n' for name in ("a", "b", "b")))
    with pytest.raises(DataError, match="two records have the id 'b'"):
        run(Deduplicate(("caption",)), JsonLines(str(file)), tmp_path / "dedup")

    def pair(record: Record) -> Record:
        record.put("before", torch.zeros(3, 8, 8, dtype=torch.uint8))
        record.put("after", torch.zeros(3, 8, 8, dtype=torch.uint8))
        return record

    stages = Sequential([MapStage(pair), ReleasePairs(str(tmp_path / "out"), "caption")])
    with pytest.raises(DataError, match="the image file name 'b' is not unique"):
        run(stages, JsonLines(str(file)), tmp_path / "release")
    assert not (tmp_path / "out" / "pairs.jsonl").exists()


def test_released_file_names(tmp_path: Path) -> None:
    ids = ["\u4e00" * 80, "\u4e00" * 79 + "b", "c"]  # up to 400 characters when escaped
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps({"id": id, "text": "A bus."}) + "\n" for id in ids))
    photo = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(photo, "JPEG")

    def pair(record: Record) -> Record:
        record.images["before"] = photo.getvalue()
        record.put("after", torch.zeros(3, 8, 8, dtype=torch.uint8))
        return record

    stages = Sequential([MapStage(pair), ReleasePairs(str(tmp_path / "out"), "caption", (1.0, 0.0, 0.0))])
    run(stages, JsonLines(str(file)), tmp_path / "release")
    data = FolderPairs(str(tmp_path / "out"))
    source = data.pairs_of("train")
    assert sorted(source.ids) == sorted(ids) and all(source.load(index).before[0].min() > 200 for index in range(3))
    rows = [json.loads(line) for line in (tmp_path / "out" / "pairs.jsonl").read_text().splitlines()]
    assert len({row["before"] for row in rows}) == 3
    for row in rows:
        for side, kind in (("before", "JPEG"), ("after", "PNG")):
            assert Path(row[side]).suffix == {"JPEG": ".jpg", "PNG": ".png"}[kind]
            with Image.open(tmp_path / "out" / row[side]) as image:
                assert image.format == kind


def test_captions_are_read_by_fsspec(tmp_path: Path) -> None:
    with fsspec.open("memory://captions.txt", "w") as file:
        file.write("a dog\n\na cat\n")
    assert Sentences("memory://captions.txt").texts == ["a dog", "a cat"]
    with fsspec.open("memory://odd.txt", "wb") as binary:
        binary.write("\ufeffa dog\r\na cat\u2028on\x85a\x0cmat\n".encode())
    assert Sentences("memory://odd.txt").texts == ["a dog", "a cat\u2028on\x85a\x0cmat"], (
        "only a line break ends a caption"
    )
    for missing in ("memory://none.txt", str(tmp_path / "none.txt"), "nowhere://x"):
        with pytest.raises(DataError, match="cannot be read"):
            Sentences(missing)
