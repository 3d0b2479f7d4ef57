"""Readers of the benchmarks of 2024 to 2026. Oracle: files written by the test in the layout of each release."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from lightning_idc.data import RSCC, ChangeChat, HQEdit, VLMSubtleBench
from lightning_idc.data.checking import check
from lightning_idc.utils.errors import IDCError


def image(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 8, 3), value, np.uint8)).save(path)


def png(value: int) -> dict[str, Any]:
    stream = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), value, np.uint8)).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))


# ---- HQ-Edit -----------------------------------------------------------------------------------------------------


def hq_edit(root: Path, count: int = 40, uncaptioned: int | None = None) -> None:
    root.mkdir(parents=True, exist_ok=True)
    rows = {
        "input_image": [png(n) for n in range(count)],
        "output_image": [png(100 + n) for n in range(count)],
        "edit": ["" if n == uncaptioned else f"add {n}" for n in range(count)],
        "inverse_edit": [f"remove {n}" for n in range(count)],
    }
    features = datasets.Features(
        {name: datasets.Image() if "image" in name else datasets.Value("string") for name in rows}
    )
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(root / "train.parquet"))


def test_hq_edit_inverse(tmp_path: Path) -> None:
    count = 40
    hq_edit(tmp_path, count)
    data = HQEdit(tmp_path)
    ids = {split: set(data.pairs_of(split).ids) for split in ("train", "val", "test")}  # type: ignore[arg-type]
    assert [len(names) for names in ids.values()] == [36, 2, 2] and len(set.union(*ids.values())) == count
    pair = data.dataset("test")[0]
    assert pair.captions == ["add 19"] and (pair.before == 19).all() and (pair.after == 119).all()
    pair = HQEdit(tmp_path, inverse=True).dataset("test")[0]
    assert pair.captions == ["remove 19"] and (pair.before == 119).all() and (pair.after == 19).all()


def test_hq_edit_splits_do_not_depend_on_inverse(tmp_path: Path) -> None:
    hq_edit(tmp_path, uncaptioned=3)
    data, back = HQEdit(tmp_path), HQEdit(tmp_path, inverse=True)
    for split in ("val", "test"):
        assert list(data.pairs_of(split).ids) == list(back.pairs_of(split).ids)  # type: ignore[arg-type]
    assert list(data.pairs_of("predict").ids) == list(data.pairs_of("test").ids) == ["000019", "000039"]
    assert len(data.pairs_of("train")) == 35 and len(back.pairs_of("train")) == 36


# ---- VLM-SubtleBench --------------------------------------------------------------------------------------------


def subtlebench(root: Path) -> None:
    hub = "https://huggingface.co/datasets/KRAFTON/VLM-SubtleBench/resolve/main/"
    rows = []
    for number, (kind, caption) in enumerate(
        [("state", "the apple is peeled"), ("state", None), ("spatial", "it moved")]
    ):
        for side in (1, 2):
            image(root / f"images/{number}_{side}.png", 10 * number + side)
        rows.append(
            {
                "image_1": f"{hub}images/{number}_1.png" if number else f"images/{number}_1.png",
                "image_2": f"{hub}images/{number}_2.png",
                "question": "In which image is it?",
                "answer": "second image",
                "distractors": ["first image"],
                "has_caption": caption is not None,
                "caption": caption,
                "category": kind,
                "domain": "natural",
                "source": "x",
                "source_id": "7",
            }
        )
    for split in ("val", "test"):
        lines(root / f"data/{split}.jsonl", rows)


@pytest.fixture
def subtle(tmp_path: Path) -> Path:
    subtlebench(tmp_path)
    return tmp_path


def test_subtlebench(subtle: Path) -> None:
    pairs = VLMSubtleBench.split(subtle, "test")
    assert [pair.id for pair in pairs] == ["state_x_7", "spatial_x_7"], "one has no caption"
    assert [pair.change_type for pair in pairs] == ["state", "spatial"] and pairs[1].captions == ["it moved"]
    assert (pairs[1].before == 21).all() and (pairs[1].after == 22).all()
    assert pairs[0].meta["question"] == "In which image is it?" and pairs[0].meta["domain"] == "natural"
    assert len(VLMSubtleBench.split(subtle, "test", category="spatial")) == 1
    VLMSubtleBench(subtle).prepare_data()
    with pytest.raises(IDCError, match="has no split 'train'; it has val, test"):
        VLMSubtleBench(subtle).pairs_of("train")
    problems = check(VLMSubtleBench(subtle))
    assert problems and all("ids are also in val" in p or "same images" in p for p in problems), problems


def test_subtlebench_ids_do_not_depend_on_filters(subtle: Path) -> None:
    row = json.loads((subtle / "data/test.jsonl").read_text().splitlines()[0])
    twin = {**row, "domain": "elsewhere", "caption": "another one"}
    lines(subtle / "data/test.jsonl", [row, twin])
    whole = VLMSubtleBench(subtle).pairs_of("test")
    some = VLMSubtleBench(subtle, domain_name="elsewhere").pairs_of("test")
    assert list(some.ids) == [whole.ids[1]] and some.captions(0) == ["another one"]
    with pytest.raises(IDCError, match=r"domain_name is 'nowhere'; .* has elsewhere, natural"):
        VLMSubtleBench(subtle, domain_name="nowhere").pairs_of("test")
    with pytest.raises(IDCError, match=r"category is 'State'; the test split .* has state"):
        VLMSubtleBench(subtle, category="State").pairs_of("test")


def test_url_of_another_host_is_not_a_path(subtle: Path) -> None:
    rows = [json.loads(line) for line in (subtle / "data/test.jsonl").read_text().splitlines()]
    rows[0]["image_1"] = "https://example.org/x.png"
    lines(subtle / "data/test.jsonl", rows)
    with pytest.raises(IDCError, match=r"images of the test split .* are missing"):
        VLMSubtleBench(subtle).pairs_of("test")


# ---- satellite images -------------------------------------------------------------------------------------------


def changechat(root: Path, turns: list[dict[str, str]], images: Any = None) -> None:
    for side, value in (("A", 3), ("B", 4)):
        image(root / f"images/test/pair_00042_{side}.png", value)
    names = ["test/pair_00042_A.png", "test/pair_00042_B.png"] if images is None else images
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / "annotations/test.json").write_text(json.dumps([{"id": "m_42", "image": names, "conversations": turns}]))


TURNS = [
    {"from": "human", "value": "<image>Has anything changed?"},
    {"from": "gpt", "value": "Yes."},
    {"from": "human", "value": "Describe it."},
    {"from": "gpt", "value": "Three buildings  appeared."},
]


def test_changechat(tmp_path: Path) -> None:
    changechat(tmp_path, TURNS)
    (pair,) = ChangeChat.split(tmp_path, "test", official=False)
    assert pair.id == "m_42" and pair.captions == ["Three buildings appeared."]
    assert pair.meta["question"] == "Describe it." and pair.meta["turns"][0] == ("Has anything changed?", "Yes.")
    assert (pair.before == 3).all() and (pair.after == 4).all()
    assert ChangeChat.split(tmp_path, "test", official=False, turn="first")[0].captions == ["Yes."]
    with pytest.raises(IDCError, match="expected 17,172 pairs; found 1 pairs"):
        ChangeChat.split(tmp_path, "test")


@pytest.mark.parametrize(
    ("turns", "images", "message"),
    [
        (TURNS[:1], None, "expected alternating questions and answers"),
        ([TURNS[1], TURNS[0]], None, "expected human, gpt"),
        (TURNS, ["one.png"], "expected the paths of two images"),
        (TURNS, ["../../x.png", "y.png"], "leaves the data folder"),
    ],
)
def test_invalid_conversations_are_errors(tmp_path: Path, turns: Any, images: Any, message: str) -> None:
    changechat(tmp_path, turns, images)
    with pytest.raises(IDCError, match=message):
        ChangeChat.split(tmp_path, "test", official=False)


def rscc(root: Path) -> None:
    rows = []
    for number in range(60):
        for when in ("pre", "post"):
            image(root / f"EBD/{number}_{when}.png", number)
        names = {f"{when}_image": f"./EBD/{number}_{when}.png" for when in ("pre", "post")}
        rows.append({**names, "change_caption": f"Building {number} collapsed. The road is blocked."})
    lines(root / "RSCC_qvq.jsonl", rows)


def test_rscc(tmp_path: Path) -> None:
    rscc(tmp_path)
    data = RSCC(tmp_path, shares=(0.6, 0.2, 0.2))
    ids = {split: set(data.pairs_of(split).ids) for split in ("train", "val", "test")}  # type: ignore[arg-type]
    assert len(set.union(*ids.values())) == 60 and [len(part) for part in ids.values()] == [36, 12, 12]
    (tmp_path / "test.txt").write_text("./EBD/5_pre.png\nEBD/6_pre.png\n")
    listed = RSCC(tmp_path, shares=(0.6, 0.2, 0.2), test_list="test.txt")
    assert set(listed.pairs_of("test").ids) == {"EBD/5_pre.png", "EBD/6_pre.png"}
    assert len(listed.pairs_of("train")) + len(listed.pairs_of("val")) == 58
    pair = listed.dataset("test")[0]
    assert pair.captions == ["Building 5 collapsed. The road is blocked."] and (pair.after == 5).all()
    with pytest.raises(IDCError, match=r"missing: absent\.txt"):
        RSCC(tmp_path, test_list="absent.txt").pairs_of("test")


def test_rscc_test_list_must_name_existing_pairs(tmp_path: Path) -> None:
    """A name of the test list without a pair is an error, since the pair it should name would be trained on."""
    rscc(tmp_path)
    (tmp_path / "test.txt").write_text("EBD/5_pre.png\r\n/data/EBD/6_pre.png\r\nEBD/7_post.png\r\n")
    message = (
        r"test\.txt lists 2 of 3 first images that are not a pre_image of RSCC_qvq\.jsonl: "
        r"'/data/EBD/6_pre\.png', 'EBD/7_post"
    )
    for split in ("train", "val", "test"):
        with pytest.raises(IDCError, match=message):
            RSCC(tmp_path, test_list="test.txt").pairs_of(split)  # type: ignore[arg-type]
    assert list(RSCC(tmp_path, test_list="test.txt", official=False).pairs_of("test").ids) == ["EBD/5_pre.png"]
    (tmp_path / "test.txt").write_text("\n")
    with pytest.raises(IDCError, match=r"test\.txt lists no image"):
        RSCC(tmp_path, test_list="test.txt").pairs_of("train")
