"""Thresholds applied to stored scores keep the same records as the stages, and no model runs again."""

from __future__ import annotations

import io
import json
import math
import tarfile
from pathlib import Path

import pytest
import torch
from helpers.toy_stages import Numbers, Shade, pair_of
from torch import Tensor

from lightning_idc.cli import main
from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
from lightning_idc.methods.img_diff.edits import PasteEdits
from lightning_idc.methods.img_diff.filtering import Refilter
from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
from lightning_idc.synthesis.duplicates import Deduplicate, ImageHashes, difference_hash
from lightning_idc.synthesis.export import export_records
from lightning_idc.synthesis.models.base import (
    DifferenceTeller,
    ImageCaptioner,
    ImageEncoder,
    ImageTextMatcher,
    Region,
    Segmenter,
)
from lightning_idc.synthesis.records import Record, decode_image, encode_image
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import SamplePhotos
from lightning_idc.synthesis.stages import Sequential
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.errors import ConfigError, DataError

pytest.importorskip("cv2")


def stages(filters: str) -> Sequential:
    return Sequential(
        [PairSimilarity(filters=filters), DifferenceAreas(filters=filters), RegionCaptions(filters=filters),
         DifferenceCaptions()]
    )  # fmt: skip


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edited") / "records"
    run(PasteEdits(size=96), SamplePhotos(copies=4), folder)
    return folder


@pytest.fixture(scope="module")
def scored(edited: Path, tmp_path_factory: pytest.TempPathFactory) -> RecordStore:
    return run(stages("scores"), str(edited), tmp_path_factory.mktemp("scored") / "records")


def outcome(record: Record) -> tuple[object, ...]:
    boxes = [area["box"] for area in record.facts.get("areas", []) if area["dropped"] is None]
    alive = record.dropped is None
    return (
        record.id,
        alive or record.dropped["reason"],
        boxes if alive else [],
        record.facts.get("summary") if alive else "",
    )  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["embedded", "table17_4", "paper"])
def test_refilter_equals_a_run_with_the_preset(preset: str, edited: Path, scored: RecordStore, tmp_path: Path) -> None:
    direct = run(stages(preset), str(edited), tmp_path / "direct")
    again = run(Refilter(preset), str(scored.folder), tmp_path / "again")
    assert [outcome(record) for record in again] == [outcome(record) for record in direct]
    # some records are kept, so the comparison is not empty
    assert 0 < direct.counts()[0] <= scored.counts()[0]


@pytest.mark.slow
def test_presets_differ_on_these_pairs(scored: RecordStore, tmp_path: Path) -> None:
    kept = {
        preset: run(Refilter(preset), str(scored.folder), tmp_path / preset).counts()[0]
        for preset in ("embedded", "paper")
    }
    assert kept["paper"] < kept["embedded"], kept


@pytest.mark.parametrize("empty", ["caption", "answer"])
def test_uncaptioned_region_suppresses_overlaps_like_a_run(empty: str) -> None:
    class Boxes(Segmenter):
        def regions(self, before: list[Tensor], after: list[Tensor], masks: bool = False) -> list[list[Region]]:  # type: ignore[override]
            return [[Region((0, 0, 40, 40), 1.0), Region((0, 0, 40, 32), 1.0)] for _ in before]

    class Halves(ImageEncoder):
        def encode(self, images: list[Tensor]) -> Tensor:  # type: ignore[override]
            """Encode crops so that the larger box differs more; whole images are not compared."""
            way = [0.0 if image.float().mean() > 150 else 2.0 if image.shape[1] == 40 else 1.0 for image in images]
            return torch.tensor([[math.cos(angle), math.sin(angle)] for angle in way])

    class Words(ImageCaptioner):
        def caption(self, images: list[Tensor]) -> list[str]:  # type: ignore[override]
            none = empty == "caption"
            return ["" if none and image.shape[1] == 40 else f"thing {int(image[0, 0, 0])}" for image in images]

    class Sure(ImageTextMatcher):
        def match(self, images: list[Tensor], texts: list[str]) -> Tensor:  # type: ignore[override]
            return torch.ones(len(texts))

    class Tells(DifferenceTeller):
        def tell(self, before: list[Tensor], after: list[Tensor], captions: list[tuple[str, str]]) -> list[str]:  # type: ignore[override]
            # the larger of two boxes comes first
            return ["", "it grew"][: len(captions)] if empty == "answer" else ["it grew"] * len(captions)

    def passed(filters: str) -> Record:
        record = pair_of(100, 200)
        for stage in (
            DifferenceAreas(Boxes(), Halves(), Sure(), filters=filters),
            RegionCaptions(Words(), Sure(), filters=filters),
            DifferenceCaptions(Tells()),
        ):
            (record,) = stage.transform([record])
        return record

    direct, again = passed("paper"), passed("scores")
    (again,) = Refilter("paper").transform([again])
    assert direct.dropped is not None
    assert outcome(again) == outcome(direct)


@pytest.mark.slow
def test_filtered_records_cannot_be_refiltered(edited: Path, scored: RecordStore, tmp_path: Path) -> None:
    strict = run(stages("embedded"), str(edited), tmp_path / "strict")
    with pytest.raises(ConfigError, match="filters: scores"):
        run(Refilter("paper"), str(strict.folder), tmp_path / "a")
    with pytest.raises(ConfigError, match="5"):
        run(Refilter("scripts"), str(scored.folder), tmp_path / "b")
    with pytest.raises(ConfigError, match="was not scored by DifferenceAreas"):
        run(Refilter("paper"), str(edited), tmp_path / "c")


@pytest.mark.slow
def test_missing_pairs_cannot_be_restored(edited: Path, tmp_path: Path) -> None:
    """A wider similarity range, as in Table 17 (4), could only find pairs that the narrower one kept."""
    parts = [PairSimilarity(filters="embedded"), DifferenceAreas(filters="scores"), RegionCaptions(filters="scores")]
    store = run(Sequential(parts), str(edited), tmp_path / "some")
    with pytest.raises(ConfigError, match=r"pairs .* PairSimilarity already; .*filters: scores"):
        run(Refilter("paper"), str(store.folder), tmp_path / "again")


def test_data_commands(scored: RecordStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "kept"
    assert main(["data", "refilter", str(scored.folder), "--out", str(target), "--preset", "embedded"]) == 0
    assert RecordStore(target).counts()[0] > 0
    assert main(["data", "export", str(target), "--out", str(tmp_path / "out")]) == 0
    assert "1 files in" in capsys.readouterr().out
    assert main(["data", "verify", str(tmp_path)]) == 0
    assert main(["data", "refilter", str(scored.folder), "--out", str(tmp_path / "x"), "--preset", "papr"]) == 1
    assert "table17_4" in capsys.readouterr().err


def test_parquet_has_typed_columns_and_images(scored: RecordStore, tmp_path: Path) -> None:
    import pyarrow as pa
    from datasets import load_dataset

    written = export_records(scored, str(tmp_path / "out"), rows=10)
    table = load_dataset("parquet", data_files=written, split="train", cache_dir=str(tmp_path / "cache"))
    kept = [record for record in scored if record.dropped is None]
    assert len(written) > 1 and table["id"][:] == [record.id for record in kept]
    assert pa.types.is_struct(table.features.arrow_schema.field("areas").type.value_type)
    row = table[3]
    assert row["areas"][0]["box"] == kept[3].facts["areas"][0]["box"] and row["summary"] == kept[3].facts["summary"]
    assert torch.equal(
        torch.tensor(list(row["before"].tobytes())).view(96, 96, 3).permute(2, 0, 1), kept[3].image("before")
    )


def test_parquet_page_checksums_detect_a_flipped_bit(scored: RecordStore, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = Path(export_records(scored, str(tmp_path / "out"))[0])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4  # within an image
    path.write_bytes(content)
    pq.read_table(path)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.read_table(path, page_checksum_verification=True)


def test_webdataset_has_both_images_and_facts(scored: RecordStore) -> None:
    import fsspec

    target = "memory://out/of/the/store"
    (written,) = export_records(scored, target, "webdataset")
    first = next(record for record in scored if record.dropped is None)
    with fsspec.filesystem("memory").open(written) as stream, tarfile.open(fileobj=io.BytesIO(stream.read())) as files:
        names = files.getnames()[:3]
        before, after, facts = (files.extractfile(name).read() for name in names)  # type: ignore[union-attr]
    assert [name.partition(".")[2] for name in names] == ["before.png", "after.png", "json"]
    assert torch.equal(decode_image(before, "tar"), first.image("before"))
    assert torch.equal(decode_image(after, "tar"), first.image("after"))
    assert json.loads(facts)["summary"] == first.facts["summary"]
    with pytest.raises(ConfigError, match="not empty"):
        export_records(scored, target, "webdataset")


def test_empty_export_and_mixed_types_are_errors(tmp_path: Path) -> None:
    class Mixed(Numbers):
        def record(self, index: int) -> Record:
            return Record(str(index), {"value": "text" if index else [1]})

    store = run(Shade(), Numbers(1), tmp_path / "one")  # 0 is dropped
    with pytest.raises(DataError, match="no kept records"):
        export_records(store, str(tmp_path / "a"))
    mixed = run(Deduplicate(("value",)), Mixed(2), tmp_path / "mixed")
    with pytest.raises(DataError, match="different types"):
        export_records(mixed, str(tmp_path / "b"))


class Pictures:
    """Four pairs: the second is the first as JPEG, the third is new, the fourth is the third in another size."""

    fingerprint = "pictures"

    def __len__(self) -> int:
        return 4

    def record(self, index: int) -> Record:
        images = torch.rand(3, 3, 12, 10, generator=torch.Generator().manual_seed(index // 2))
        before, after = (
            (image[None].repeat_interleave(8, 2).repeat_interleave(8, 3)[0] * 255).byte() for image in images[:2]
        )
        record = Record(f"p{index}", {"captions": ["A cat." if index % 2 else "a  CAT"]})
        if index == 3:
            before, after = (torch.kron(image, torch.ones(1, 2, 2, dtype=torch.uint8)) for image in (before, after))
        record.images = {
            name: encode_image(image, "jpeg" if index == 1 else "png", 95)
            for name, image in (("before", before), ("after", after))
        }
        return record


def test_duplicates_are_dropped_in_any_format(tmp_path: Path) -> None:
    hashed = run(ImageHashes(), Pictures(), tmp_path / "hashed")  # type: ignore[arg-type]
    store = run(Deduplicate(), str(hashed.folder), tmp_path / "unique", batch_size=1, shard_size=1)
    assert [record.dropped and record.dropped["reason"] for record in store] == [None, "duplicate", None, "duplicate"]
    by_text = run(Deduplicate(("captions",)), str(hashed.folder), tmp_path / "texts")
    assert by_text.counts() == (1, {"duplicate": 3})
    leak = run(Deduplicate(against=str(hashed.folder)), str(hashed.folder), tmp_path / "leak")
    assert leak.counts() == (0, {"in another store": 4})
    with pytest.raises(ConfigError, match="ImageHashes"):
        run(Deduplicate(), Pictures(), tmp_path / "bare")  # type: ignore[arg-type]


def test_hashes_of_different_images_differ() -> None:
    images = torch.randint(0, 256, (50, 3, 40, 60), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert len({difference_hash(image) for image in images}) == 50
    assert difference_hash(pair_of(0, 70).image("before")) == "0" * 16, "a flat picture has no differences"
