"""Preference pairs of users, in the layouts of TRL, ms-swift and plain tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.benchmarks.hf_table import HuggingFaceTable
from lightning_idc.data.benchmarks.preference_pairs import PreferencePairs
from lightning_idc.utils.errors import IDCError

IMAGES = ["a.png", "b.png"]
PROMPT = [
    {"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "what changed?"}]}
]
PLAIN = {"before": "a.png", "after": "b.png", "chosen": "it moved", "rejected": "it is gone"}
TRL = {
    "images": IMAGES,
    "prompt": PROMPT,
    "chosen": [{"role": "assistant", "content": [{"type": "text", "text": "it moved"}]}],
    "rejected": [{"role": "assistant", "content": "it is gone"}],
}
TRL_TEXT = {"images": IMAGES, "prompt": "what changed?", "chosen": "it moved", "rejected": "it is gone"}
SWIFT = {
    "images": [{"path": "a.png"}, {"path": "b.png"}],
    "messages": [
        {"role": "user", "content": "<image><image>what changed?"},
        {"role": "assistant", "content": "it moved"},
    ],
    "rejected_response": "it is gone",
}


SWIFT_MESSAGES = {
    **{name: value for name, value in SWIFT.items() if name != "rejected_response"},
    "rejected_messages": [
        {"role": "user", "content": "<image><image>what changed?"},
        {"role": "assistant", "content": "it is gone"},
    ],
}
TRL_IMPLICIT = {
    "images": IMAGES,
    "chosen": [{"role": "user", "content": "what changed?"}, {"role": "assistant", "content": "it moved"}],
    "rejected": [{"role": "user", "content": "what changed?"}, {"role": "assistant", "content": "it is gone"}],
}
LLAMA_FACTORY = {
    "images": IMAGES,
    "conversations": [{"from": "human", "value": "<image><image>what changed?"}],
    "chosen": {"from": "gpt", "value": "it moved"},
    "rejected": {"from": "gpt", "value": "it is gone"},
}
MMPR = {
    "image": IMAGES,
    "question": "Image-1: <image>\nImage-2: <image>\nwhat changed?",
    "chosen": "it moved",
    "rejected": "it is gone",
}
QUESTION = {**PLAIN, "question": "what changed?"}


def data(root: Path, *rows: dict[str, Any]) -> PreferencePairs:
    for value, name in enumerate(IMAGES):
        Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(root / name)
    (root / "preferences.jsonl").write_text("\n".join(json.dumps({"split": "train", **row}) for row in rows))
    return PreferencePairs(root)


@pytest.mark.parametrize(
    "row", [PLAIN, QUESTION, TRL, TRL_TEXT, TRL_IMPLICIT, SWIFT, SWIFT_MESSAGES, LLAMA_FACTORY, MMPR]
)
def test_layouts_give_equal_pairs(row: dict[str, Any], tmp_path: Path) -> None:
    source = data(tmp_path, {**row, "margin": 2, "error_type": "left/right"}).source("train")
    sample = source.load(0)
    assert sample.captions == ["it moved"] and sample.change_type == "left/right"
    expected = {"rejected": ["it is gone"], "margin": 2.0, "error_type": "left/right"}
    expected |= {} if row is PLAIN else {"question": "what changed?"}
    assert sample.meta == expected == source.meta(0)
    assert sample.before.max() == 0 and sample.after.max() == 1


def test_rejected_captions_of_one_choice_are_merged(tmp_path: Path) -> None:
    rows = [PLAIN, {**PLAIN, "rejected": "it grew"}, {**PLAIN, "chosen": "it went left"}, {**PLAIN, "margin": 3}]
    source = data(tmp_path, *rows).source("train")
    assert [source.meta(i)["rejected"] for i in range(3)] == [["it is gone", "it grew"], ["it is gone"], ["it is gone"]]
    assert len(set(source.ids)) == 3


def test_csv_preferences(tmp_path: Path) -> None:
    data(tmp_path, PLAIN)
    (tmp_path / "p.csv").write_text(
        "before,after,chosen,rejected,margin,split\na.png,b.png,it moved,it is gone,.5,val\n"
    )
    source = PreferencePairs(tmp_path, "p.csv").source("val")
    assert source.meta(0) == {"rejected": ["it is gone"], "margin": 0.5}


@pytest.mark.parametrize(
    "row", [PLAIN, QUESTION, TRL, TRL_TEXT, TRL_IMPLICIT, SWIFT, SWIFT_MESSAGES, LLAMA_FACTORY, MMPR]
)
def test_folder_pairs_reads_preferences(row: dict[str, Any], tmp_path: Path) -> None:
    expected = data(tmp_path, {**row, "margin": 2, "error_type": "left/right"}).source("train")
    pairs = FolderPairs(tmp_path).pairs_of("train")
    assert pairs.meta(0) == expected.meta(0) == pairs.load(0).meta and pairs.captions(0) == ["it moved"]
    (tmp_path / "preferences.jsonl").rename(tmp_path / "test.jsonl")
    rows = (tmp_path / "test.jsonl").read_text().replace('"split": "train", ', "")
    (tmp_path / "test.jsonl").write_text(rows)
    assert FolderPairs(tmp_path).pairs_of("test").meta(0) == FolderPairs(tmp_path).pairs_of("predict").meta(0)
    with pytest.raises(IDCError, match="the split 'train' has no preferences"):
        FolderPairs(tmp_path).pairs_of("train")
    with pytest.raises(IDCError, match="on_empty and on_bad do not apply"):
        FolderPairs(tmp_path, on_bad="skip").pairs_of("test")


def test_hugging_face_table_reads_preferences(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    data(tmp_path, PLAIN)
    rows = [
        {"before": "a.png", "after": "b.png", "good": "it moved", "bad": ["it is gone", ""], "by": 1.5, "kind": "gone"},
        {"before": "a.png", "after": "b.png", "good": "it moved", "bad": ["it grew"], "by": None, "kind": None},
    ]
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = {"captions": "good", "rejected": "bad", "margin": "by", "error_type": "kind"}
    source = HuggingFaceTable(tmp_path / "table.jsonl", "before", "after", **columns).pairs_of("train")
    assert source.meta(0) == {"rejected": ["it is gone"], "margin": 1.5, "error_type": "gone"} == source.load(0).meta
    assert source.meta(1) == {"rejected": ["it grew"]} and source.captions(1) == ["it moved"]
    (tmp_path / "table.jsonl").write_text(json.dumps({**rows[0], "by": "much"}))
    with pytest.raises(IDCError, match=r"row 0: margin is 'much'; expected a number"):
        HuggingFaceTable(tmp_path / "table.jsonl", "before", "after", **columns).pairs_of("train")
    with pytest.raises(IDCError, match="worse"):
        HuggingFaceTable(tmp_path / "table.jsonl", "before", "after", "good", rejected="worse").pairs_of("train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rejected": ""}, "rejected is ''; expected a caption"),
        ({"chosen": "same", "rejected": "same"}, "are equal"),
        ({"images": ["a.png"]}, "expected the paths of two images"),
        ({"before": None}, "no images"),
        ({"margin": "much"}, "margin is 'much'; expected a number"),
        ({"before": "../x.png"}, "leaves"),
        ({"split": "tain"}, "split 'tain' is unknown"),
    ],
)
def test_invalid_rows_are_reported_with_their_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(IDCError, match=message):
        data(tmp_path, PLAIN, {**PLAIN, "chosen": "x", **change}).source("train")
