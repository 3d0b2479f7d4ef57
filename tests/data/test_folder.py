"""FolderPairs and its tables. Oracle: the files written by the test; fuzzed files raise only IDCError."""

from __future__ import annotations

import csv
import gzip
import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.checking import check
from lightning_idc.data.tables import files as files_module
from lightning_idc.images import read as images
from lightning_idc.utils.errors import ConfigError, DataError, DatasetNotFoundError, IDCError

ALL_TRAIN = (1.0, 0.0, 0.0)


def image(path: Path, value: int = 0, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), value, np.uint8)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ten pairs; in pair i, before is filled with i and after with 100 + i."""
    for number in range(10):
        image(tmp_path / f"before/{number}.png", number)
        image(tmp_path / f"after/{number}.png", 100 + number)
    return tmp_path


def table(columns: str, rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([columns.split(","), *rows])
    return text.getvalue()


def pairs(count: int = 10) -> list[list[str]]:
    return [[f"before/{i}.png", f"after/{i}.png", f"caption {i}"] for i in range(count)]


def captions(root: Path, split: str = "train", **options: Any) -> dict[str, list[str]]:
    source = FolderPairs(root, **{"shares": ALL_TRAIN, **options}).pairs_of(split)
    return {name: source.captions(index) for index, name in enumerate(source.ids)}


# ---- tables as users write them ---------------------------------------------------------------------------------

PLAIN = [
    {"before": f"before/{i}.png", "after": f"after/{i}.png", "caption": f'caption {i}; \u00e4, "x"'} for i in range(3)
]
LISTS = [{"images": [row["before"], {"path": row["after"]}], "captions": [row["caption"]]} for row in PLAIN]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def separated(separator: str) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator)
    writer.writerows([list(PLAIN[0]), *(list(row.values()) for row in PLAIN)])
    return text.getvalue()


TABLES = {
    "a CSV": ("pairs.csv", separated(",").encode()),
    "a CSV of Excel": ("pairs.csv", b"\xef\xbb\xbf" + (separated(";") + ";;\r\n").encode()),
    "a CSV without quotes": (
        "pairs.csv",
        "\n".join("\t".join(row) for row in [list(PLAIN[0]), *(row.values() for row in PLAIN)]).encode(),
    ),
    "a TSV": ("pairs.tsv", separated("\t").encode()),
    "a packed CSV": ("pairs.csv.gz", gzip.compress(separated(",").encode())),
    "JSON lines": ("pairs.jsonl", lines(PLAIN)),
    "packed JSON lines": ("pairs.jsonl.gz", gzip.compress(lines(PLAIN))),
    "JSON": ("pairs.json", json.dumps(PLAIN).encode()),
    "TRL": ("pairs.jsonl", lines(LISTS)),
}


@pytest.mark.parametrize("name", TABLES)
def test_table_layouts_give_equal_pairs(root: Path, name: str) -> None:
    file, raw = TABLES[name]
    (root / file).write_bytes(raw)
    result = captions(root, annotations=file if file.endswith(".json") else None)
    assert result == {f"before/{i}": [row["caption"]] for i, row in enumerate(PLAIN)}


def test_the_first_five_bad_rows_are_listed(root: Path) -> None:
    bad = [["before/1.png", "", "x"], ["../x.png", "after/1.png", "x"], ["/a.png", "after/1.png", "x"], ["a"] * 4]
    (root / "pairs.csv").write_text(table("before,after,caption", [*pairs(3), *bad, *[["", "a.png", "x"]] * 6]))
    with pytest.raises(DataError) as caught:
        captions(root)
    message = str(caught.value)
    assert "pairs.csv: 10 rows cannot be read: line 5: after is empty; expected the path of an image" in message
    assert "line 6: the path '../x.png' leaves the data folder" in message
    assert "line 7: the path '/a.png' must be relative" in message and "line 8: 4 fields, but" in message
    assert "line 9: before is empty" in message and "line 10" not in message and message.endswith("; ...")


@pytest.mark.parametrize("images", ["a.png", ["a.png"], ["a.png", 3], ["a.png", "b.png", "c.png"], None])
def test_images_column_needs_two_paths(root: Path, images: Any) -> None:
    (root / "pairs.jsonl").write_bytes(lines([*LISTS, {"images": images, "captions": "x"}]))
    with pytest.raises(DataError, match=r"line 4: images.*"):
        captions(root)


# ---- layouts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_two_folders(root: Path, kind: str) -> None:
    rows = [{"id": str(i), "caption": f"{word} {i}"} for i in range(10) for word in ("one", "two")]
    text = table("id,caption", [list(r.values()) for r in rows]) if kind == "csv" else "\n".join(map(json.dumps, rows))
    (root / f"captions.{kind}").write_text(text)
    assert captions(root) == {str(i): [f"one {i}", f"two {i}"] for i in range(10)}
    sample = FolderPairs(root, shares=ALL_TRAIN).pairs_of("train").load(7)
    assert (sample.before == 7).all() and (sample.after == 107).all() and sample.captions == ["one 7", "two 7"]


def test_two_folders_without_captions_allow_prediction_only(root: Path) -> None:
    assert list(captions(root, "predict").values()) == [[]] * 10
    with pytest.raises(DataError, match=r"no captions\.csv.*only prediction is possible"):
        captions(root)


def test_hidden_tables_are_ignored(root: Path) -> None:
    """macOS adds a file ``._NAME`` for each file NAME."""
    (root / "._captions.csv").write_bytes(b"\0\x05\x16\x07\xff")
    (root / "captions.csv").write_text(table("id,caption", [[f"{i}", f"caption {i}"] for i in range(10)]))
    assert captions(root) == {f"{i}": [f"caption {i}"] for i in range(10)}
    (root / "captions.csv").unlink()
    (root / "._pairs.csv").write_bytes(b"\0\x05\x16\x07\xff")
    (root / "pairs.csv").write_text(table("before,after,caption", pairs(2)))
    assert list(captions(root)) == ["before/0", "before/1"]


@pytest.mark.parametrize("name", ["captions.CSV", "captions.JSONL"])
def test_extension_of_caption_table_is_case_insensitive(root: Path, name: str) -> None:
    rows = [{"id": f"{i}", "caption": f"caption {i}"} for i in range(10)]
    lines = table("id,caption", [list(row.values()) for row in rows]), "\n".join(map(json.dumps, rows))
    (root / name).write_text(lines[name.endswith("JSONL")])
    assert captions(root) == {f"{i}": [f"caption {i}"] for i in range(10)}
    (root / "captions.jsonl").write_text(lines[1])
    (root / "captions.csv").write_text(lines[0])
    with pytest.raises(DataError, match=r"several tables of captions \(.*captions\.csv, captions\.jsonl\)"):
        captions(root)


def test_names_match_in_any_unicode_form(tmp_path: Path) -> None:
    """macOS stores é as e and a combining accent, most other systems as one character."""
    apart, one = "caf\u0065\u0301", "caf\u00e9"
    image(tmp_path / f"before/{apart}.png", 1)
    image(tmp_path / f"after/{one}.png", 2)
    (tmp_path / "captions.csv").write_text(f"id,caption\n{apart},one\n{one},two\n", encoding="utf-8")
    assert captions(tmp_path) == {one: ["one", "two"]}
    assert int(FolderPairs(tmp_path, shares=ALL_TRAIN).pairs_of("train").load(0).before.max()) == 1
    image(tmp_path / f"before/{one}.png", 3)
    with pytest.raises(DataError, match="names must differ before the extension"):
        captions(tmp_path)


def test_unmatched_images_are_listed(root: Path) -> None:
    (root / "after/3.png").unlink()
    image(root / "after/x.jpg")
    with pytest.raises(DataError, match=r"2 images .* no partner.*before/3, after/x"):
        captions(root, "predict")


FORMS = {
    "captions as JSON": ("before,after,captions", [["before/1.png", "after/1.png", '["a, b", "c"]']], ["a, b", "c"]),
    "captions as text": ("before,after,captions", [["before/1.png", "after/1.png", "[a] b"]], ["[a] b"]),
    "numbered": (
        "before,after,caption_10,caption_2,caption_1",
        [["before/1.png", "after/1.png", "c", "", "a"]],
        ["a", "c"],
    ),
    "repeated": ("before,after,caption", [["before/1.png", "after/1.png", c] for c in "abc"], ["a", "b", "c"]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_caption_columns(root: Path, form: str, kind: str) -> None:
    columns, rows, expected = FORMS[form]
    objects = [dict(zip(columns.split(","), row, strict=True)) for row in rows]
    (root / f"pairs.{kind}").write_text(table(columns, rows) if kind == "csv" else "\n".join(map(json.dumps, objects)))
    (result,) = captions(root).values()
    assert result == expected


def test_list_in_jsonl_and_line_separators_in_texts(root: Path) -> None:
    row = {
        "before": "before/1.png",
        "after": "after/1.png",
        "captions": ["a\u2028b", "c"],
        "id": 7,
        "change_type": "add",
    }
    (root / "pairs.jsonl").write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    assert captions(root) == {"7": ["a b", "c"]}
    assert FolderPairs(root, shares=ALL_TRAIN).pairs_of("train").load(0).change_type == "add"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"[""a"", ""b""]"', ["a", "b"]),
        ('" [ ""a"" ]"', ["a"]),
        ("[unclear] a dog", ["[unclear] a dog"]),
        ('"a\tb  c\u2003d\n"', ["a b c d"]),
        ("NA", ["NA"]),
        ("None", ["None"]),
    ],
)
def test_captions_in_a_cell(root: Path, text: str, expected: list[str]) -> None:
    (root / "pairs.csv").write_text(
        f"id,before,after,captions\n007,before/1.png,after/1.png,{text}\n", encoding="utf-8"
    )
    assert captions(root) == {"007": expected}


@pytest.mark.parametrize("text", ["\"['a', 'b']\"", '"[""a"", 1]"', '"[""a"""', "['a']"])
def test_python_list_literals_are_errors(root: Path, text: str) -> None:
    """Data frames write lists in this form; read as one caption, they would be learned with their brackets."""
    (root / "pairs.csv").write_text(f"before,after,captions\nbefore/1.png,after/1.png,{text}\n")
    with pytest.raises(DataError, match=r"line 2: (captions: not JSON .*double quotes|a caption is 1)"):
        captions(root)


def test_rows_of_one_pair_need_not_be_adjacent(root: Path) -> None:
    (zero, one), columns = pairs(2), "before,after,caption,split,change_type"
    rows = [[*zero, "train", "add"], [*one, "val", ""], [*one[:2], "b", "valid", ""], [*zero[:2], "c", "train", "add"]]
    (root / "pairs.csv").write_text(table(columns, rows))
    assert captions(root) == {"before/0": ["caption 0", "c"]}
    assert captions(root, "val") == {"before/1": ["caption 1", "b"]}
    assert FolderPairs(root, shares=ALL_TRAIN).pairs_of("train").change_type(0) == "add"


def test_ids_are_derived_from_paths(tmp_path: Path) -> None:
    for name in ("a.png", "s/b.png", "s/c.d.png", ".e", "f."):
        image_path = tmp_path / name
        image_path.parent.mkdir(exist_ok=True)
        image_path.touch()
    names = {
        "a.png": "a",
        "s//b.png": "s/b",
        "./a.png": "a",
        "s/./b.png": "s/b",
        "s/c.d.png": "s/c.d",
        "s\\b.png": "s/b",
    }
    for path, name in {**names, ".e": ".e"}.items():
        (tmp_path / "pairs.csv").write_text(f"before,after,caption\n{path},{path},x\n{path},f.,x\n")
        assert list(captions(tmp_path)) == [name, f"{name}..f."]


# ---- splits ---------------------------------------------------------------------------------------------------


def test_splits_by_column_and_by_file(root: Path) -> None:
    names = ["train", "val", "validation", "Test", "predict"]
    rows = [[*row, name] for row, name in zip(pairs(5), names, strict=True)]
    (root / "pairs.csv").write_text(table("before,after,caption,split", rows))
    result = {split: list(captions(root, split)) for split in ("train", "val", "test", "predict")}
    assert result == {
        "train": ["before/0"],
        "val": ["before/1", "before/2"],
        "test": ["before/3"],
        "predict": ["before/4"],
    }
    for split, row in zip(("train", "val", "test"), pairs(), strict=False):
        (root / f"{split}.csv").write_text(table("before,after,caption", [row]))
    result = {split: list(captions(root, split)) for split in ("train", "val", "test", "predict")}
    assert result == {"train": ["before/0"], "val": ["before/1"], "test": ["before/2"], "predict": ["before/2"]}
    (root / "pairs.csv").write_text(table("before,after,caption,split", [[*pairs(1)[0], "trian"]]))
    with pytest.raises(DataError, match=r"line 2: the split 'trian' is unknown"):
        captions(root, annotations="pairs.csv")


@pytest.mark.slow
def test_hashed_splits_have_their_shares_and_hardly_move(tmp_path: Path) -> None:
    rows = [{"id": f"p{i}", "before": "b.png", "after": f"a{i}.png", "caption": "c"} for i in range(2000)]
    for row in rows:
        (tmp_path / row["after"]).touch()
    (tmp_path / "b.png").touch()

    def split(rows: list[dict[str, str]]) -> dict[str, set[str]]:
        (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
        data = FolderPairs(tmp_path, shares=(0.7, 0.1, 0.2))
        return {name: set(data.pairs_of(name).ids) for name in ("train", "val", "test")}  # type: ignore[arg-type]

    whole, half = split(rows), split(rows[::-2])
    assert [len(whole[name]) for name in ("train", "val", "test")] == [1400, 200, 400]
    assert [len(half[name]) for name in ("train", "val", "test")] == [700, 100, 200]
    moved = {name: half[name] - whole[name] for name in whole}
    assert sum(map(len, moved.values())) < 60, "the hash has not moved; the cuts have, a little"
    assert not moved["train"] & whole["test"] and not moved["test"] & whole["train"]
    assert split(rows[::-1]) == whole, "the order of the rows has no effect"


@pytest.mark.parametrize(
    "options", [{"shares": (0.5, 0.2, 0.2)}, {"shares": (1.5, -0.5, 0)}, {"on_bad": "ignore"}, {"on_empty": "drop"}]
)
def test_arguments_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        FolderPairs("x", **options)


# ---- invalid tables and folders -------------------------------------------------------------------------------

ROW = "before/1.png,after/1.png,text\n"
BAD_TABLES = {
    "no column": (
        "before,Afterr,caption\n" + ROW,
        r"no column 'after'.*found 'before', 'Afterr', 'caption'.*rename 'Afterr' to 'after'",
    ),
    "no captions": ("before,after,captoin\n" + ROW, r"no column 'captions'.*found 'before', 'after', 'captoin'"),
    "absent": ("before,after,caption\n" + ROW + "before/77.png,after/2.png,x\n", r"1 images .*line 3: .*77\.png"),
    "no path": ("before,after,caption\n,after/2.png,x\n", "line 2: before is empty"),
    "leaves": ("before,after,caption\n../x.png,after/2.png,x\n", "line 2: the path '../x.png' leaves"),
    "absolute": ("before,after,caption\n/etc/x.png,after/2.png,x\n", "line 2: the path '/etc/x.png' must be relative"),
    "duplicate": (
        "id,before,after,caption\nx,before/1.png,after/1.png,a\nx,before/2.png,after/2.png,b\n",
        r"line 3: pair 'x' has the before 'before/2.png', but 'before/1.png' in line 2; ids must be unique",
    ),
    "two splits": (
        "before,after,caption,split\nbefore/1.png,after/1.png,a,train\nbefore/1.png,after/1.png,b,test\n",
        "line 3: pair 'before/1' has the split 'test', but 'train' in .*line 2",
    ),
    "empty": (
        "before,after,caption\n" + ROW + "before/2.png,after/2.png,  \n",
        r"1 of 2 train pairs .* empty.*before/2.*line 3",
    ),
    "captions": (
        'before,after,captions\nbefore/1.png,after/1.png,"[""a"""\n',
        "line 2: captions: not JSON .*expected a JSON list of texts in double quotes",
    ),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_invalid_tables_are_errors(root: Path, name: str) -> None:
    text, expected = BAD_TABLES[name]
    (root / "pairs.csv").write_text(text)
    with pytest.raises(IDCError, match=expected):
        captions(root)


BAD_LINES = {
    "folder": (b'{"before": ".", "after": "after", "caption": "c"}', "line 2: '.' is not a valid path of a file below"),
    "folder by name": (b'{"before": "before", "after": "after", "caption": "c"}', "2 images .* missing: .*line 2"),
    "caption": (b'{"before": "before/2.png", "after": "after/2.png", "caption": 3}', "line 2: caption is 3"),
    "nul": (b'{"before": "a\\u0000", "after": "b", "caption": "c"}', "line 2: before contains NUL"),
    "surrogate": (
        b'{"before": "before/2.png", "after": "after/2.png", "caption": "\\ud800"}',
        "line 2: caption contains NUL or a lone",
    ),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_invalid_lines_are_errors(root: Path, name: str) -> None:
    line, expected = BAD_LINES[name]
    good = json.dumps(dict(zip(("before", "after", "caption"), pairs(1)[0], strict=True))).encode()
    (root / "pairs.jsonl").write_bytes(good + b"\n" + line + b"\n")
    with pytest.raises(IDCError, match=expected):
        captions(root)


def test_on_empty_skip(root: Path) -> None:
    rows = pairs(4)
    rows[1][2] = ""
    rows.append([*rows[2][:2], " "])
    (root / "pairs.csv").write_text(table("before,after,caption", rows))
    with pytest.warns(
        UserWarning, match=r"2 of 4 train pairs have an empty caption: .*before/1.*before/2.*Skipped 1 pairs"
    ):
        result = captions(root, on_empty="skip")
    assert result == {f"before/{i}": [f"caption {i}"] for i in (0, 2, 3)}


def test_on_bad_skip_opens_each_image_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "before/2.png").write_text("<html>")
    whole = (root / "after/4.png").read_bytes()
    (root / "after/4.png").write_bytes(whole[: len(whole) // 2])
    (root / "after/6.png").unlink()
    (root / "pairs.csv").write_text(table("before,after,caption", pairs()))
    opened: list[str] = []

    def read(path: str | Path, *given: Any, **options: Any) -> Any:
        opened.append(str(path))
        return images.read_image(path, *given, **options)

    monkeypatch.setattr(files_module, "read_image", read)
    with pytest.warns(UserWarning) as expected:
        result = captions(root, on_bad="skip")
    (message,) = [str(w.message) for w in expected]
    assert message.startswith("skipped 3 of 10 train pairs: ")
    assert all(part in message for part in ("'before/2'", "web page", "'before/4'", "'before/6'", "no such image file"))
    assert list(result) == [f"before/{i}" for i in range(10) if i not in (2, 4, 6)]
    assert len(opened) == len(set(opened))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captions(root, on_bad="skip")
    assert len(opened) == len(set(opened)), "a second data module knows what the first one saw"


def test_on_bad_skip_drops_unequal_sizes_unless_resized(root: Path) -> None:
    image(root / "after/5.png", size=(9, 9))
    (root / "pairs.csv").write_text(table("before,after,caption", pairs()))
    with pytest.warns(UserWarning, match=r"skipped 1 of 10 .*'before/5' .*: before is 4x6 and after is 9x9"):
        assert "before/5" not in captions(root, on_bad="skip")
    assert "before/5" in captions(root, on_bad="skip", image_size=5)


def test_empty_split_lists_the_other_splits(root: Path) -> None:
    (root / "train.csv").write_text(table("before,after,caption", pairs(3)))
    with pytest.raises(DataError, match=r"'val' has no usable pairs; found 3 train\. .*val\.csv"):
        captions(root, "val")


def test_check_reports_all_problems(root: Path) -> None:
    (root / "pairs.csv").write_text(table("before,after,caption", pairs()))
    assert check(FolderPairs(root, shares=(0.4, 0.3, 0.3)), print) == []
    (root / "before/2.png").write_bytes(b"")
    image(root / "after/5.png", size=(9, 9))
    problems = "\n".join(check(FolderPairs(root, shares=(0.4, 0.3, 0.3)), print))
    assert "pair 'before/2'" in problems and "line 4" in problems and "the file is empty" in problems
    assert "pair 'before/5': before is (3, 4, 6) and after is (3, 9, 9)" in problems


def test_image_size_allows_mixed_sizes(root: Path) -> None:
    image(root / "after/5.png", size=(9, 9))
    (root / "pairs.csv").write_text(table("before,after,caption", pairs()))
    batch = next(iter(FolderPairs(root, shares=ALL_TRAIN, image_size=(8, 10)).train_dataloader()))
    assert batch["images"].shape == (10, 2, 3, 8, 10)


@pytest.mark.parametrize("make", [lambda root: None, lambda root: (root / "before").mkdir()])
def test_missing_folder_shows_expected_layout(tmp_path: Path, make: Any) -> None:
    make(tmp_path)
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DatasetNotFoundError, match=r"; expected before/ and after/ .*captions\.csv.*train\.csv"):
            captions(folder)


def test_several_tables_need_a_name(root: Path) -> None:
    for name in ("a.csv", "b.jsonl"):
        (root / name).write_text(table("before,after,caption", pairs(1)))
    with pytest.raises(DataError, match=r"several tables \(a\.csv, b\.jsonl\)"):
        captions(root)
    assert list(captions(root, annotations="a.csv")) == ["before/0"]
    with pytest.raises(DataError, match="leaves the data folder"):
        captions(root, annotations="../a.csv")


# ---- subfolders, other file types, links ----------------------------------------------------------------------


def test_subfolders_are_read_and_skipped_files_listed(root: Path) -> None:
    for side in ("before", "after"):
        image(root / side / "street/7.png", 77)
        image(root / side / "street/8.JPG", 78)
        (root / side / "notes.txt").write_text("not an image")
        (root / side / ".DS_Store").write_text("hidden")
    (root / "after/deep.npy").write_bytes(b"\x93NUMPY")
    with pytest.warns(UserWarning) as caught:
        names = list(captions(root, "predict"))
    assert sorted(names) == sorted([*map(str, range(10)), "street/7", "street/8"])
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2
    assert "before: skipped 1 files without the extension of an image: before/notes.txt." in messages[0]
    assert "after: skipped 2 files without the extension of an image: after/deep.npy, after/notes.txt." in messages[1]


def test_every_kind_of_image_is_read(tmp_path: Path) -> None:
    from PIL import features
    from pydicom.data import get_testdata_file

    kinds = [
        "png",
        "jpg",
        "bmp",
        "gif",
        "webp",
        "tif",
        "ppm",
        "jp2",
        "qoi",
        *(["avif"] if features.check("avif") else []),
    ]
    for kind in kinds:
        image(tmp_path / f"before/{kind}.{kind}", 10)
        image(tmp_path / f"after/{kind}.{kind}", 200)
    for side in ("before", "after"):
        scan = Path(get_testdata_file("CT_small.dcm", download=False)).read_bytes()
        (tmp_path / side / "dcm.dcm").write_bytes(scan)
    source = FolderPairs(tmp_path, value_range=(0, 255)).pairs_of("predict")
    assert sorted(source.ids) == sorted([*kinds, "dcm"])
    for index, name in enumerate(source.ids):
        sample = source.load(index)
        if name != "dcm":
            assert abs(int(sample.before.float().mean()) - 10) <= 4 and abs(int(sample.after.float().mean()) - 200) <= 4


@pytest.mark.parametrize("layout", ["folders", "table"])
def test_links_are_rejected_unless_follow_links(tmp_path: Path, layout: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    for number in range(2):
        for side, value in (("before", number), ("after", 100 + number)):
            image(elsewhere / f"{side}{number}.png", value)
            (root / side).mkdir(parents=True, exist_ok=True)
            (root / side / f"{number}.png").symlink_to(elsewhere / f"{side}{number}.png")
    if layout == "table":
        (root / "pairs.csv").write_text(table("before,after,caption", pairs(2)))
    split = "train" if layout == "table" else "predict"
    with pytest.raises(DataError, match=r"is a link to a file outside the data folder.*follow_links: true"):
        captions(root, split)
    data = FolderPairs(root, shares=ALL_TRAIN, follow_links=True)
    sample = data.pairs_of(split).load(1)  # type: ignore[arg-type]
    assert (sample.before == 1).all() and (sample.after == 101).all()


def test_linked_folders_are_visited_once(tmp_path: Path) -> None:
    for side in ("before", "after"):
        image(tmp_path / f"elsewhere/{side}/x.png")
        (tmp_path / "root" / side).mkdir(parents=True)
        (tmp_path / "root" / side / "linked").symlink_to(tmp_path / "elsewhere" / side)
        (tmp_path / "root" / side / "circle").symlink_to(tmp_path / "root" / side)
    result = FolderPairs(tmp_path / "root", follow_links=True).pairs_of("predict").ids
    assert list(result) == ["linked/x"]
    with (
        pytest.warns(UserWarning, match=r"skipped 2 .*circle \(a link\), .*linked \(a link\)"),
        pytest.raises(DataError, match="no usable pairs"),
    ):
        FolderPairs(tmp_path / "root").pairs_of("predict")


def test_file_name_that_is_not_utf8_is_an_error(root: Path) -> None:
    for side in (b"before", b"after"):
        (root / "before/0.png").rename(root / "spare.png") if (root / "before/0.png").exists() else None
        with open(bytes(root) + b"/" + side + b"/caf\xe9.png", "wb") as file:
            file.write(b"")
    with pytest.raises(DataError, match=r"the name b'caf\\xe9.png' is not UTF-8; rename the file"):
        captions(root, "predict")


@pytest.mark.slow
def test_many_pairs_use_little_memory_shared_with_workers(tmp_path: Path) -> None:
    import pickle

    (tmp_path / "a.png").touch()
    with open(tmp_path / "pairs.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "before", "after", "caption"])
        writer.writerows([f"pair {i}", "a.png", "a.png", f"the cube number {i} has moved"] for i in range(30_000))
    source = FolderPairs(tmp_path, shares=ALL_TRAIN).pairs_of("train")
    assert len(pickle.dumps(source)) < 150 * len(source)
    assert source.captions(29_999) == ["the cube number 29999 has moved"] and source.ids[12_345] == "pair 12345"


# ---- any content of a file raises only IDCError --------------------------------------------------------------

strange = ["before/1.png", "after/1.png", "../a", "", "train", "a\0b", "\ud800", "x" * 300, '["a"', '["a", 1]']
values = st.one_of(
    st.sampled_from(strange),
    st.text(max_size=8),
    st.none(),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.lists(st.text(max_size=4), max_size=2),
)
names = st.sampled_from(["before", "after", "id", "split", "captions", "caption", "caption_1", "change_type", "other"])
objects = st.lists(st.dictionaries(names, values, max_size=9), max_size=4)


def unquoted(rows: list[dict[str, Any]]) -> bytes:
    """Return a CSV without any quoting."""
    columns = ("before", "after", "id", "captions")
    lines = [",".join(str(row.get(column, "")) for column in columns) for row in rows]
    return "\n".join([",".join(columns), *lines]).encode("utf-8", "surrogatepass")


contents = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text(alphabet='ab,"\r\n\0;{}[]:', max_size=60).map(lambda text: ("before,after,caption\n" + text).encode()),
    objects.map(lambda rows: "\n".join(map(json.dumps, rows)).encode()),
    objects.map(unquoted),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=contents)
def test_only_data_errors_are_raised(root: Path, kind: str, raw: bytes) -> None:
    (root / f"pairs.{kind}").write_bytes(raw)
    for split in ("train", "predict"):
        try:
            source = FolderPairs(root, shares=ALL_TRAIN).pairs_of(split)  # type: ignore[arg-type]
            for index in range(len(source)):
                source.load(index)
                assert split == "predict" or all(source.captions(index))
        except IDCError as error:
            str(error).encode()  # can be printed


@pytest.mark.parametrize("sides", [("before", "after"), ("A", "B"), ("T1", "T2"), ("im1", "im2"), ("old", "new")])
def test_folders_of_images_have_many_names(tmp_path: Path, sides: tuple[str, str]) -> None:
    """Folder names of change detection data sets are recognised; other names are an argument."""
    own = {} if sides != ("old", "new") else {"sides": sides}
    for name in ("0", "1"):
        for number, side in enumerate(sides):
            for parent in ("flat", "split/train", "split/val"):
                folder = tmp_path / parent / side
                folder.mkdir(parents=True, exist_ok=True)
                Image.new("L", (4, 4), number).save(folder / f"{name}.png")
    flat = FolderPairs(tmp_path / "flat", **own).pairs_of("predict")
    assert list(flat.ids) == ["0", "1"]
    assert (flat.load(0).before.max(), flat.load(0).after.min()) == (0, 1)
    rows = ["id,captions", "train/0,it burned", "train/1,it burned", "val/1,a road"]
    (tmp_path / "split" / "captions.csv").write_text("\n".join(rows))
    split = FolderPairs(tmp_path / "split", on_empty="skip", **own)
    assert list(split.pairs_of("train").ids) == ["train/0", "train/1"]
    assert list(split.pairs_of("val").ids) == ["val/1"] and split.pairs_of("val").captions(0) == ["a road"]
    if own:
        with pytest.raises(IDCError, match="neither a table nor the folders before/ and after/"):
            FolderPairs(tmp_path / "flat").pairs_of("predict")
