"""Fuzzing of the file readers. Oracle: only errors of this library are raised, and no path leaves the root."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lightning_idc.data.benchmark import Benchmark
from lightning_idc.data.benchmarks.birds_to_words import BirdsToWords
from lightning_idc.data.benchmarks.clevr_change import CLEVRChange
from lightning_idc.data.benchmarks.clevr_dc import CLEVRDC
from lightning_idc.data.benchmarks.image_editing_request import ImageEditingRequest
from lightning_idc.data.benchmarks.img_diff import ImgDiff
from lightning_idc.data.benchmarks.instructpix2pix import InstructPix2Pix
from lightning_idc.data.benchmarks.levir_cc import LEVIRCC
from lightning_idc.data.benchmarks.magicbrush import MagicBrush
from lightning_idc.data.benchmarks.omnidiff import OmniDiff
from lightning_idc.data.benchmarks.spot_the_diff import SpotTheDiff
from lightning_idc.data.tables.files import Root
from lightning_idc.data.tables.prepare import unpack
from lightning_idc.data.tables.tables import read_objects
from lightning_idc.utils.errors import IDCError
from lightning_idc.utils.jsonfiles import read_text

# names that the parsers know, and values of types that they do not expect
KNOWN = (
    *("img_id", "sentences", "uid", "img0", "img1", "img2", "sents", "images", "filename", "split"),
    *("raw", "tokens", "train", "val", "test", "0", "1", "path", "bbox", "color"),
    *("CLEVR_default_000000.png", "000000.png", "description", "conversations", "from", "value"),
    *("human", "gpt", "input", "output", "instruction", "task", "id", "image1", "image2"),
    *("caption", "types", "img1ImgURL", "img2ImgURL", "https://x/photos/12"),
)
NASTY = (
    *("", "..", "../../x", "/etc/passwd", "a/../../b", "a\0b", "\ud800", "C:\\x"),
    *("x" * 300, "[1, 2, 3, 4]", "[" * 99, "1e999"),
)
TEXTS = st.sampled_from(KNOWN + NASTY) | st.text(max_size=8)
LEAVES = st.none() | st.booleans() | st.integers(-2, 2**70) | st.just(10**400) | st.floats() | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=6), max_leaves=20
)
RECORDS = st.lists(st.dictionaries(st.sampled_from(KNOWN), VALUES, max_size=8), max_size=4)

FILES: dict[type[Benchmark], tuple[str, ...]] = {
    BirdsToWords: ("train.json",),
    CLEVRChange: ("splits.json", "type_mapping.json", "change_captions.json", "no_change_captions.json"),
    CLEVRDC: ("split.json", "captions.json"),
    ImageEditingRequest: ("train.json",),
    ImgDiff: ("img_diff_object_replacement.json",),
    InstructPix2Pix: ("seeds.json",),
    LEVIRCC: ("LevirCCcaptions.json",),
    MagicBrush: ("train/edit_turns.json",),
    OmniDiff: ("real/train.json",),
    SpotTheDiff: ("annotations/train.json",),
}
QUICK = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def read(kind: type[Benchmark], root: Path) -> None:
    """Read everything but the images, which do not exist, and check that all paths are below the root."""
    data = kind(root, official=False)
    try:
        records = data.records("train")
        data.counts("train")
        data.pairs_of("train")
    except IDCError as error:
        assert str(error)
        records = data._read.get("train", [])
    for record in records:
        assert record.before.resolve().is_relative_to(root.resolve())
        assert record.after.resolve().is_relative_to(root.resolve())


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
@given(sample_captions=st.data())
@QUICK
def test_random_annotations(kind: type[Benchmark], sample_captions: st.DataObject, tmp_path: Path) -> None:
    for name in FILES[kind]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(json.dumps(sample_captions.draw(VALUES | RECORDS)).encode("utf-8", "surrogatepass"))
    read(kind, tmp_path)


SOUND: dict[type[Benchmark], Any] = {
    SpotTheDiff: [{"img_id": "1", "sentences": ["a", "b"]}],
    ImageEditingRequest: [{"uid": "1", "img0": "a.jpg", "img1": "b.jpg", "sents": ["a"]}],
    OmniDiff: [{"id": "1", "image1": "a.png", "image2": "b.png", "caption": "a", "types": ["pose"]}],
    MagicBrush: [{"input": "1-input.png", "output": "1-output1.png", "instruction": "a"}],
    ImgDiff: [
        {
            "path": "a/b",
            "bbox": "[0, 0, 1, 1]",
            "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "a"}],
        }
    ],
    LEVIRCC: {"images": [{"filename": "train_1.png", "split": "train", "sentences": [{"raw": "a ."}]}]},
    BirdsToWords: [{"img1": "12", "img2": "13", "description": ["a", "bird"]}],
    InstructPix2Pix: [["0000001", ["12"]]],
}
# files of CLEVR-Change, which must agree with each other
CLEVR = {
    "splits.json": {"train": [0], "val": [], "test": []},
    "type_mapping.json": {"color": ["000000.png"]},
    "change_captions.json": {"CLEVR_default_000000.png": ["a"]},
    "no_change_captions.json": {"CLEVR_default_000000.png": ["a"]},
    "change_captions_by_IOU.json": {"0": 0.5},
}


def swapped(value: Any, position: int, other: Any) -> tuple[Any, int]:
    """Replace the ``position``-th part of a value, as written; also return how many parts are left to skip."""
    if position == 0:
        return other, -1
    position -= 1
    if isinstance(value, dict | list):
        parts = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        done = []
        for key, part in parts:
            new, position = swapped(part, position, other) if position >= 0 else (part, position)
            done.append((key, new))
        return (dict(done) if isinstance(value, dict) else [part for _, part in done]), position
    return value, position


@pytest.mark.parametrize("kind", SOUND)
@given(position=st.integers(0, 12), other=VALUES)
@example(position=3, other="../../../etc/passwd")
@example(position=2, other=["a\0"])
@QUICK
def test_one_invalid_value_in_a_valid_file(kind: type[Benchmark], position: int, other: Any, tmp_path: Path) -> None:
    path = tmp_path / FILES[kind][0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(swapped(SOUND[kind], position, other)[0]).encode("utf-8", "surrogatepass"))
    read(kind, tmp_path)


@pytest.mark.slow
@given(name=st.sampled_from(sorted(CLEVR)), position=st.integers(0, 3), other=VALUES)
@example(name="change_captions_by_IOU.json", position=1, other="wide")
@QUICK
def test_one_invalid_value_in_one_of_several_files(name: str, position: int, other: Any, tmp_path: Path) -> None:
    for own, sound in CLEVR.items():
        value = swapped(sound, position, other)[0] if own == name else sound
        (tmp_path / own).write_bytes(json.dumps(value).encode("utf-8", "surrogatepass"))
    read(CLEVRChange, tmp_path)


@given(raw=st.binary(max_size=200), packed=st.booleans())
@example(raw=b"[" * 5000, packed=False)
@example(raw=b'{"a": ' * 5000, packed=True)
@example(raw=b"\x1f\x8b", packed=False)
@QUICK
def test_random_bytes(raw: bytes, packed: bool, tmp_path: Path) -> None:
    name = tmp_path / ("x.json.gz" if packed else "x.json")
    name.write_bytes(gzip.compress(raw) if packed else raw)
    for reader in (read_text, read_objects):
        try:
            reader(name)
        except IDCError as error:
            assert str(name) in str(error)


@given(raw=st.binary(max_size=120))
@QUICK
def test_broken_gzip(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"[]" * 50)[:20] + raw)
    try:
        read_text(tmp_path / "x.gz")
    except IDCError as error:
        assert "cannot be read" in str(error) or "UTF-8" in str(error)


@given(lines=st.lists(st.lists(TEXTS.filter(lambda t: "\ud800" not in t), max_size=12).map("\t".join), max_size=5))
@QUICK
def test_random_bird_tables(lines: list[str], tmp_path: Path) -> None:
    header = "img1ImgURL\timg2ImgURL\tsplit\tdescription"
    (tmp_path / "birds-to-words-v1.0.tsv").write_text("\n".join([header, *lines]), encoding="utf-8")
    read(BirdsToWords, tmp_path)


@given(relative=st.lists(st.sampled_from(["..", ".", "a", "b", "", "/", "\\", "\0", "link"]), max_size=6).map("/".join))
@QUICK
def test_paths_stay_below_the_root(relative: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    link = root / "link"
    if not link.is_symlink():
        link.symlink_to(tmp_path)
    try:
        path = Root(root).file(relative, "fuzz")
    except IDCError:
        return
    # a link as the last component is detected when the folder is listed
    assert path.parent.resolve().is_relative_to(root.resolve()) and path.name not in ("", ".", "..")


@given(raw=st.binary(max_size=300))
@example(raw=b"PK\x05\x06" + b"\0" * 18)
@QUICK
def test_random_archives(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(raw)
    try:
        unpack(tmp_path / "a.zip", tmp_path / "root")
    except IDCError as error:
        assert "a.zip" in str(error)
