"""Protocols: parts, hashes, and real annotation files against numbers of CARD and pycocoevalcap."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from lightning_idc.metrics.captions import FAST_METRICS, References, ScoringResources, score_captions
from lightning_idc.metrics.grouping import ReferenceRecord, paragraph, with_ious, with_types
from lightning_idc.metrics.protocols import PROTOCOLS, evaluate, protocol_named, with_vocabulary
from lightning_idc.metrics.reading import read_ious, read_references, read_types, read_vocabulary
from lightning_idc.utils.errors import ConfigError, DataError

# if a hash changes, old scores are not comparable with new ones: increase the version of the protocol
HASHES = {
    "difference-list": "034533926423",
    "difference-list/first": "05a8269af56c",
    "coco": "c96ab79b76d8",
    "clevr-change/total": "62526ce8ad46",
    "clevr-change/change": "7520ed830add",
    "clevr-change/no-change": "96f32dc0b8e8",
    "clevr-change/by-type": "18f63d5e2b42",
    "clevr-change/by-iou": "fcee63ddc219",
    "spot-the-diff/grouped": "6970b1f42c30",
    "spot-the-diff/entry": "05c3d18a6320",
    "spot-the-diff/multi": "d2b0b02e94a3",
    "image-editing-request": "08dd53371523",
    "levir-cc/words": "a1a036931ba7",
    "levir-cc/ids": "db18894009ca",
    "omnidiff/multi": "61adbb37d116",
    "interleave-rouge": "986c3b724d93",
    "diffspot": "2d2e90fdd9b8",
    "legacy/clip4idc": "e5342881ace7",
    "legacy/procap": "ac171aa8c3f2",
}
TRUTHS = [
    ReferenceRecord("a", ("the red cube moved", "a cube is elsewhere")),
    ReferenceRecord("b", ("the ball is gone",)),
    ReferenceRecord("c", ("nothing has changed", "there is no change")),
]
SAID = {"a": "the red cube moved", "b": "the ball was added", "c": "the ball is gone"}


def spot(folder: Path, name: str) -> list[dict[str, Any]]:
    opener = gzip.open if name.endswith(".gz") else open
    with opener(folder / "spot_the_diff" / name, "rt", encoding="utf-8") as file:
        return json.load(file)


@pytest.fixture(scope="module")
def annotations(shared: Path) -> Path:
    return shared / "realdata" / "annotations"


def test_hash_covers_the_definition() -> None:
    assert {name: protocol.hash for name, protocol in PROTOCOLS.items()} == HASHES
    assert len(set(HASHES.values())) == len(HASHES)
    coco = protocol_named("coco")
    assert coco.with_input("document frequencies", "1").hash not in (coco.hash, coco.with_input("x", "1").hash)


def test_unknown_protocol_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'spot-the-diff/grouped'"):
        protocol_named("spot-the-diff/group")


def test_coco_is_one_call_of_score_captions() -> None:
    result = evaluate(protocol_named("coco"), SAID, TRUTHS, FAST_METRICS)
    expected = score_captions(SAID, {truth.id: truth.references for truth in TRUTHS})
    assert list(result) == ["all"]
    assert result["all"].values == expected.values


def test_total_divides_by_the_ids_of_the_official_files() -> None:
    truths = [ReferenceRecord(f"{n:06d}.png", (f"the cube {n} moved",)) for n in range(4)]
    truths += [ReferenceRecord(f"{n:06d}.png_n", ("nothing has changed",)) for n in range(3)]
    said = {truth.id: truth.references[0] for truth in truths}
    result = evaluate(protocol_named("clevr-change/total"), said, truths, FAST_METRICS)
    assert {name: scores.pairs for name, scores in result.items()} == {"all": 7, "change": 4, "no change": 3}
    for part, keep in (("change", "png"), ("no change", "png_n")):
        ids = [truth.id for truth in truths if truth.id.endswith(keep)]
        alone = score_captions({id: said[id] for id in ids}, {id: [said[id]] for id in ids})
        assert result[part].values == alone.values, "each part has document frequencies of its own"
    # ProCap's ids, and only one half of the captions
    renamed = [ReferenceRecord(t.id.replace(".png_n", "nc").replace(".png", "c"), t.references) for t in truths]
    only = {truth.id: truth.references[0] for truth in renamed if truth.id.endswith("nc")}
    assert evaluate(protocol_named("clevr-change/no-change"), only, renamed, FAST_METRICS)["no change"].pairs == 3
    with pytest.raises(DataError, match="the 3 captions belong to no pair of"):
        evaluate(protocol_named("clevr-change/change"), only, renamed, FAST_METRICS)


def test_captions_of_unknown_pairs_are_reported() -> None:
    with pytest.raises(DataError, match="1 of 4 pairs have no reference: 'zebra'"):
        evaluate(protocol_named("coco"), {**SAID, "zebra": "x"}, TRUTHS, FAST_METRICS)


def test_repeated_and_empty_records_need_a_protocol_for_them() -> None:
    twice = [*TRUTHS, ReferenceRecord("a", ("it moved",))]
    with pytest.raises(DataError, match="1 records repeat a pair: 'a'"):
        evaluate(protocol_named("coco"), SAID, twice, FAST_METRICS)
    with pytest.raises(DataError, match="no reference with text: 'a'"):
        evaluate(protocol_named("coco"), SAID, [ReferenceRecord("a", (" ",)), *TRUTHS[1:]], FAST_METRICS)
    grouped = evaluate(protocol_named("spot-the-diff/grouped"), SAID, twice, FAST_METRICS)["all"]
    entry = evaluate(protocol_named("spot-the-diff/entry"), SAID, twice, FAST_METRICS)["all"]
    assert (grouped.pairs, grouped.references) == (3, 6)
    assert (entry.pairs, entry.records, entry.references) == (3, 4, 6)
    assert entry.ids[0] == "a#1" and entry.ids[-1] == "a#2"


def test_types_and_overlaps_come_from_the_official_files(annotations: Path) -> None:
    types = read_types(annotations / "clevr_change" / "type_mapping.json.gz")
    ious = read_ious(annotations / "clevr_change" / "change_captions_by_IOU.json.gz")
    test = json.loads((annotations / "clevr_change" / "splits.json").read_text())["test"]
    truths = [ReferenceRecord(f"{n:06d}.png", (f"thing {n} moved",)) for n in test]
    truths = with_ious(with_types(truths, types), ious)
    parts = PROTOCOLS["clevr-change/by-type"].parts(truths)
    counts = {name: len(part) for name, part in parts.items()}
    assert counts["change"] == 3985 == sum(counts.values()) - 3985
    assert set(counts) == {"change", "color", "material", "add", "drop", "move"}
    quarters = PROTOCOLS["clevr-change/by-iou"].parts(truths)
    hardest, easiest = quarters["hardest quarter"], quarters["easiest quarter"]
    assert len(hardest) == len(easiest) == 996
    assert max(t.iou or 0 for t in hardest) <= min(t.iou or 0 for t in easiest)
    # another file of the same facts: ids sorted by their overlaps
    with gzip.open(annotations / "clevr_change" / "iou_sorted.txt.gz", "rt") as file:
        order = [line.split()[0] for line in file]
    place = {id: number for number, id in enumerate(order)}
    assert sorted(hardest, key=lambda t: place[t.id]) == sorted(hardest, key=lambda t: (t.iou, t.id))


def test_parts_without_types_or_overlaps_are_errors() -> None:
    clevr = [ReferenceRecord("000001.png", ("x",))]
    for name, message in (("by-type", "--types"), ("by-iou", "--iou"), ("no-change", "no pair is unchanged")):
        with pytest.raises(DataError, match=message):
            evaluate(protocol_named(f"clevr-change/{name}"), {"000001.png": "x"}, clevr, FAST_METRICS)
    untold = [ReferenceRecord("7", ("a house",), "change"), ReferenceRecord("8", ("as before",), "no_change")]
    with pytest.raises(DataError, match=r"1 of 1 changed pairs have no type of change: '7'.*--types"):
        evaluate(protocol_named("clevr-change/by-type"), {"7": "x", "8": "x"}, untold, FAST_METRICS)
    with pytest.raises(DataError, match="whether it changed is unknown"):
        evaluate(protocol_named("clevr-change/change"), SAID, TRUTHS, FAST_METRICS)


def test_paragraphs_equal_all_of_cards(annotations: Path) -> None:
    """Spot-the-Diff's records as CARD joined them: 11,329 paragraphs, 374 of them cut after 60 words."""
    pairs: dict[str, list[str]] = {}
    for name in ("train.json.gz", "val.json", "test.json"):
        for record in spot(annotations, name):
            pairs.setdefault(record["img_id"], []).extend(record["sentences"])
    with gzip.open(annotations / "card_spot_multi" / "change_multi_captions.json.gz", "rt") as file:
        expected = {str(int(id.removesuffix(".png"))): texts for id, texts in json.load(file).items()}
    assert {id: [paragraph(sentences, 60)] for id, sentences in pairs.items()} == expected


def test_spot_the_diff_counts(annotations: Path) -> None:
    truths = read_references(annotations / "spot_the_diff" / "test.json")
    said = {truth.id: truth.references[0] for truth in reversed(truths)}
    counts = {}
    for name in ("grouped", "entry", "multi"):
        scores = evaluate(protocol_named(f"spot-the-diff/{name}"), said, truths, ["BLEU"])["all"]
        counts[name] = (scores.pairs, scores.records, scores.references)
    assert counts == {"grouped": (1270, 1270, 2107), "entry": (1270, 1404, 2107), "multi": (1270, 1270, 1270)}


@pytest.mark.slow
def test_ids_score_as_words_except_unknown_words(annotations: Path, tmp_path: Path) -> None:
    vocabulary = read_vocabulary(annotations / "levir_cc" / "vocab.json")
    with gzip.open(annotations / "levir_cc" / "levir_cc_captions.json.gz", "rt") as file:
        every = json.load(file)
    chosen = {id: texts for id, texts in every.items() if id.startswith("test")}
    assert len(chosen) == 1929
    truths = [ReferenceRecord(id, tuple(texts)) for id, texts in chosen.items()]
    generator = random.Random(0)
    said = {id: generator.choice(texts) for id, texts in chosen.items()}
    protocol = with_vocabulary(protocol_named("levir-cc/ids"), vocabulary)
    by_ids = evaluate(protocol, said, truths, FAST_METRICS)["all"]

    def known(text: str) -> str:
        return " ".join(word if word in vocabulary else "unknownword" for word in text.split())

    # independent computation: unknown words are renamed and scored as words
    renamed = [ReferenceRecord(t.id, tuple(map(known, t.references))) for t in truths]
    by_words = evaluate(
        protocol_named("levir-cc/words"), {id: known(t) for id, t in said.items()}, renamed, FAST_METRICS
    )["all"]
    assert by_ids.values == pytest.approx(by_words.values, abs=1e-9)
    with pytest.raises(ConfigError, match="--vocabulary"):
        evaluate(protocol_named("levir-cc/ids"), said, truths, FAST_METRICS)
    assert protocol.hash != HASHES["levir-cc/ids"]
    with pytest.raises(DataError, match="has no <UNK>"):
        with_vocabulary(protocol_named("levir-cc/ids"), {"a": 1})
    with pytest.raises(ConfigError, match="leave the vocabulary out"):
        with_vocabulary(protocol_named("coco"), vocabulary)


def test_foreign_document_frequencies_change_nothing_but_cider() -> None:
    corpus = References({str(n): [text] for n, text in enumerate(["the cube", "the ball", "a cube moved", "gone"])})
    references = {truth.id: truth.references for truth in TRUTHS}
    own = score_captions(SAID, references, (*FAST_METRICS, "CIDEr"))
    foreign = score_captions(SAID, references, (*FAST_METRICS, "CIDEr"), ScoringResources(corpus))
    same = {name for name in own.values if own.values[name] == foreign.values[name]}
    assert same == {"BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L"}


def test_interleave_rejects_a_pair_without_a_reference() -> None:
    with pytest.raises(DataError, match="1 of 4 pairs have no reference: 'd'"):
        evaluate(protocol_named("interleave-rouge"), {**SAID, "d": "a tree"}, [*TRUTHS, ReferenceRecord("d", ())])
    # a record may have no reference if another record of its pair has one
    scores = evaluate(protocol_named("interleave-rouge"), SAID, [*TRUTHS, ReferenceRecord("a", ())])["all"]
    assert (scores.pairs, scores.references) == (3, 5)


def test_records_of_a_pair_agree_whether_it_changed() -> None:
    apart = [ReferenceRecord("a", ("nothing",), "no_change"), ReferenceRecord("a", ("a tree is gone",), "drop")]
    with pytest.raises(DataError, match="pair 'a' has records of the types drop and no_change"):
        evaluate(protocol_named("difference-list"), {"a": "a tree is gone"}, apart)


def test_interleave_scores_each_reference() -> None:
    scores = evaluate(protocol_named("interleave-rouge"), SAID, TRUTHS)["all"]
    assert (scores.pairs, scores.records) == (3, 5) and set(scores.values) == {"ROUGE-L"}
    assert scores.of_pair("a#1")["ROUGE-L"] == pytest.approx(100, abs=1e-4)


def test_protocol_scores_its_metrics_or_gives_a_reason() -> None:
    with pytest.raises(ConfigError, match="unknown metrics: ROUGE; expected BLEU"):
        evaluate(protocol_named("coco"), SAID, TRUTHS, ["ROUGE"])
    for name, there in (
        ("difference-list", "recall, precision, F1, specificity"),
        ("difference-list/first", "recall, precision, F1, specificity"),
        ("interleave-rouge", "ROUGE-L"),
    ):
        with pytest.raises(ConfigError, match=f"unknown metrics: CIDEr-D, SPICE; expected {there}$"):
            evaluate(protocol_named(name), SAID, TRUTHS, ["CIDEr-D", "SPICE"])
    # a part without any of the requested metrics is not scored
    truths = [ReferenceRecord("a", ("a car left",), "drop"), ReferenceRecord("b", ("nothing changed",), "no_change")]
    said = {"a": "a car left", "b": "nothing changed"}
    result = evaluate(protocol_named("difference-list"), said, truths, ["recall"])
    assert {part: scores.values for part, scores in result.items()} == {"changed": {"recall": 100.0}, "unchanged": {}}
    with pytest.raises(DataError, match="no references"):
        evaluate(protocol_named("coco"), SAID, [])
