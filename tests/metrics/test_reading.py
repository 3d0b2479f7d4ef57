"""Files of captions and references: every known format, invalid files, and fuzzing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_idc.metrics.reading import (
    read_ious,
    read_predictions,
    read_references,
    read_types,
    read_vocabulary,
)
from lightning_idc.utils.errors import ConfigError, DataError

CAPTIONS = {"1": "a cube moved", "2": "nothing\u2028changed", "3": ""}
FORMS: dict[str, Any] = {
    "coco": [{"image_id": int(id), "caption": text} for id, text in CAPTIONS.items()],
    "map": CAPTIONS,
    "lists": {id: [text] for id, text in CAPTIONS.items()},
    "pycocoevalcap": {id: [{"caption": text}] for id, text in CAPTIONS.items()},
    "own": [
        {"id": id, "caption": text, "references": [text, "x"], "change_type": None} for id, text in CAPTIONS.items()
    ],
    "answers": [{"sample_id": id, "prediction": text} for id, text in CAPTIONS.items()],
}


def write(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return path


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_captions(tmp_path: Path, form: str) -> None:
    value = FORMS[form]
    assert read_predictions(write(tmp_path / "p.json", value)).captions == CAPTIONS
    packed = tmp_path / "p.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "p.json").read_bytes()))
    assert read_predictions(packed).captions == CAPTIONS
    assert read_predictions(packed).digest == read_predictions(tmp_path / "p.json").digest
    if isinstance(value, list):
        lines = "\n".join(json.dumps(record, ensure_ascii=False) for record in value) + "\n\n"
        assert read_predictions(write(tmp_path / "p.jsonl", "\ufeff" + lines)).captions == CAPTIONS
        assert read_predictions(write(tmp_path / "one.jsonl", lines.split("\n")[0])).captions == {"1": CAPTIONS["1"]}


def test_predictions_hold_their_references(tmp_path: Path) -> None:
    references = read_predictions(write(tmp_path / "p.json", FORMS["own"])).references
    assert [(record.id, record.references) for record in references] == [(id, (t, "x")) for id, t in CAPTIONS.items()]
    assert read_predictions(write(tmp_path / "p.json", FORMS["coco"])).references == []


def test_record_with_two_captions_is_an_error(tmp_path: Path) -> None:
    """The ground truth as `caption` next to the answer as `prediction` is a common layout of evaluations."""
    records = [{"id": "a", "caption": "a house", "prediction": "zzz"}, {"id": "b", "caption": "x", "prediction": "x"}]
    path = write(tmp_path / "p.json", records)
    with pytest.raises(DataError, match=r"record 1 has caption 'a house' and prediction 'zzz'; .* --field prediction"):
        read_predictions(path)
    assert read_predictions(path, "prediction").captions == {"a": "zzz", "b": "x"}
    assert read_predictions(write(tmp_path / "q.json", records[1:])).captions == {"b": "x"}
    answers = write(tmp_path / "r.json", [{"id": "a", "caption": "a house", "answer": "zzz"}])
    assert read_predictions(answers, "answer").captions == {"a": "zzz"}
    with pytest.raises(DataError, match=r"record 1 has no field 'prediction' \(--field\); it has id, caption, ans"):
        read_predictions(answers, "prediction")
    # the format of annotations defines the field
    value = {"annotations": [{"image_id": 1, "caption": "a house", "text": "zzz"}]}
    assert read_references(write(tmp_path / "coco.json", value))[0].references == ("a house",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("   \n", "is empty"),
        ("<!doctype html><p>404", "HTML or XML page"),
        ("{", "not JSON"),
        ("id,caption\n1,a house", r"p.json, line 1: not JSON \(Expecting value.*\): 'id,caption'"),
        ("[1, 2]", "record 1 is 1; expected an object"),
        ("3", "expected a list of records, or a map"),
        ("{}", "is empty"),
        ("[]", "is empty"),
        ('{"a": "x", "a": "y"}', r"p.json: not JSON \(the key 'a' appears twice in one object\)"),
        ('{"a": NaN}', r"p.json: not JSON \(NaN is not a JSON number"),
        ('{"a": 3}', "'a' is 3; expected one caption"),
        ('{"a": ["x", "y"]}', "expected one caption"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        ('[{"caption": "x"}]', "record 1 has no id"),
        ('[{"id": "a"}]', "record 1 has no caption"),
        ('[{"id": true, "caption": "x"}]', "id is True; expected text or a whole number"),
        ('[{"id": 1.5, "caption": "x"}]', "id is 1.5"),
        ('[{"id": "", "caption": "x"}]', "id is ''"),
        ('[{"id": "a", "caption": "x"}, {"id": "a", "caption": "x"}]', "appears twice, with the same caption"),
        ('[{"id": 1, "caption": "x"}, {"id": "1", "caption": "y"}]', "appears twice, with another caption"),
        ('{"id": "a", "caption": "x"}\n{"id": "b", "caption": }', "line 2: not JSON"),
        ('{"id": "a", "caption": "x"}\n{"id": "a", "caption": "x"}', "line 2: pair 'a' appears twice"),
        ('{"images": [{"id": 1}], "annotations": []}', "are references, not captions"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
    ],
)
def test_malformed_captions_are_reported(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_predictions(write(tmp_path / "p.json", text))


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="there is no file"):
        read_predictions(tmp_path / "absent.json")
    with pytest.raises(DataError, match="cannot be read"):
        read_predictions(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"a": "caf\xe9"}')
    with pytest.raises(DataError, match="is not UTF-8 text"):
        read_predictions(tmp_path / "latin.json")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b'{"a": "x"}' * 100)[:-12])
    with pytest.raises(DataError, match="cannot be read"):
        read_predictions(tmp_path / "cut.json.gz")
    monkeypatch.setattr("lightning_idc.utils.jsonfiles.MAX_BYTES", 1000)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(DataError, match="more than"):
        read_predictions(tmp_path / "bomb.json.gz")


def test_forms_of_references(tmp_path: Path) -> None:
    expected = {"1": ("a b", "c"), "2": ("d",)}
    forms = [
        {"1": ["a b", "c"], "2": ["d"]},
        {"1": ["a b", "c"], "2": "d"},
        [{"img_id": "1", "sentences": ["a b", "c"]}, {"img_id": "2", "sentences": ["d"]}],
        [{"uid": 1, "img0": "x", "img1": "y", "sents": ["a b", "c"]}, {"uid": 2, "sents": ["d"]}],
        [{"id": 1, "description": [["a", "b"], ["c"]]}, {"id": 2, "description": [["d"]]}],
        {
            "images": [{"id": 1}, {"id": 1}, {"id": 2}],
            "annotations": [
                {"image_id": 1, "id": 7, "caption": "a b"},
                {"image_id": 2, "id": 8, "caption": "d"},
                {"image_id": 1, "id": 9, "caption": "c"},
            ],
        },
        {
            "images": [
                {"filename": "1", "split": "test", "sentences": [{"raw": "a b", "tokens": ["a", "b"]}, {"raw": "c"}]},
                {"filename": "2", "split": "test", "sentences": [{"raw": "d"}]},
                {"filename": "3", "split": "train", "sentences": [{"raw": "e"}]},
            ]
        },
    ]
    for form in forms:
        references = read_references(write(tmp_path / "r.json", form), "test")
        assert {record.id: record.references for record in references} == expected, form


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"id": "a"}], "has no references"),
        ([{"id": "a", "captions": [3]}], "holds 3; expected texts"),
        ([{"id": "a", "captions": "x", "change_type": 3}], "change_type is 3"),
        ([{"id": "a", "captions": "x", "iou": "far"}], "iou is 'far'"),
        ([], "contains no references"),
        (
            [{"id": s, "captions": "x", "split": s} for s in ("test", "train")] + [{"id": "c", "captions": "z"}],
            "1 of 3 records have no split: 'c'; the others have test, train",
        ),
        ([{"id": "a", "captions": "x", "split": "test"}, {"id": "c", "captions": "z"}], "1 of 2 records have no split"),
        ([{"id": "a", "captions": "x", "split": None}, {"id": "c", "captions": "z", "split": "test"}], "no split: 'a'"),
        ({"images": [{"id": 1}], "annotations": [{"image_id": 2, "caption": "x"}]}, "not among the file's images"),
        ({"images": [], "annotations": []}, "contains no references"),
    ],
)
def test_malformed_references_are_reported(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_references(write(tmp_path / "r.json", value), "test")


def test_unknown_split_is_a_config_error(tmp_path: Path) -> None:
    value = [{"id": "a", "captions": "x", "split": split} for split in ("val", "train")]
    with pytest.raises(ConfigError, match="contains the splits train, val"):
        read_references(write(tmp_path / "r.json", value), "test")


def test_facts_are_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    assert read_types(write(path, {"color": ["1.png"], "add": ["2.png"]})) == {"1.png": "color", "2.png": "add"}
    assert read_types(write(path, {"1.png": "color"})) == {"1.png": "color"}
    with pytest.raises(DataError, match="'1' is of type 'color' and of type 'add'"):
        read_types(write(path, {"color": ["1"], "add": ["1"]}))
    with pytest.raises(DataError, match="IoU of '1' is 1"):
        read_ious(write(path, {"1": 1.5}))
    with pytest.raises(DataError, match="'a' has the number -1"):
        read_vocabulary(write(path, {"a": -1}))
    with pytest.raises(DataError, match="two words have the same number"):
        read_vocabulary(write(path, {"a": 1, "b": 1}))
    with pytest.raises(DataError, match="expected a map"):
        read_ious(write(path, [1]))


@pytest.mark.parametrize(
    ("file", "split", "pairs", "records", "references"),
    [
        ("spot_the_diff/test.json", None, 1270, 1404, 2107),
        ("spot_the_diff/val.json", None, 1493, 1634, 3310),
        ("spot_the_diff/train.json.gz", None, 8566, 9524, 17676),
        ("image_editing_request/test.json", None, 495, 495, 1485),
        ("image_editing_request/valid.json", None, 383, 383, 1149),
        ("image_editing_request/train.json.gz", None, 3061, 3061, 3061),
        ("levir_cc/levir_cc_captions.json.gz", None, 10077, 10077, 50385),
        ("clip4idc_gt/spot_total_change_captions_reformat.json.gz", None, 1270, 1270, 2107),
        ("finer_mllm_gt/spot_val_change_captions_reformat.json.gz", None, 1489, 1489, 3293),
        ("finer_mllm_gt/IER_test_change_captions_reformat.json.gz", None, 495, 495, 1485),
        ("card_spot_multi/change_multi_captions.json.gz", None, 11329, 11329, 11329),
        ("cdchat/sysu_test_captions.json.gz", None, 3774, 3774, None),
        ("syned/gt_augmented_test_clean.json.gz", None, 2022, 2022, None),
    ],
)
def test_real_files_have_the_right_counts(
    shared: Path, file: str, split: str | None, pairs: int, records: int, references: int | None
) -> None:
    loaded = read_references(shared / "realdata" / "annotations" / file, split)
    assert (len({record.id for record in loaded}), len(loaded)) == (pairs, records)
    assert references in (None, sum(len(record.references) for record in loaded))


def test_real_predictions_of_another_program(shared: Path) -> None:
    folder = shared / "realdata" / "annotations" / "clevr_change"
    assert len(read_predictions(folder / "yili19_nsc_results.json").captions) == 6


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["id", "image_id", "caption", "captions", "images", "annotations", "split", "raw", "iou"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
READERS: list[Callable[[Path], object]] = [read_predictions, read_references, read_types, read_ious, read_vocabulary]


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=json_values, cut=st.integers(0, 40), lines=st.booleans())
def test_any_json_is_read_or_an_error(tmp_path: Path, value: Any, cut: int, lines: bool) -> None:
    text = json.dumps(value)
    path = tmp_path / "any.json"
    path.write_text("\n".join([text, text]) if lines else text[: len(text) - cut % 7], encoding="utf-8")
    for read in READERS:
        try:
            read(path)
        except DataError:
            continue


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60), packed=st.booleans())
def test_any_bytes_are_read_or_an_error(tmp_path: Path, data: bytes, packed: bool) -> None:
    path = tmp_path / "any.json"
    path.write_bytes(gzip.compress(data) if packed else data)
    for read in READERS:
        try:
            read(path)
        except DataError:
            continue
