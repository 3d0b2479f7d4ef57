"""The benchmarks on their real annotation files. Oracle: the counts of the files, taken by hand from the raw JSON."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightning_idc.data.benchmark import Benchmark, Counts, LayoutError
from lightning_idc.data.benchmarks.birds_to_words import BirdsToWords
from lightning_idc.data.benchmarks.clevr_change import CLEVRChange
from lightning_idc.data.benchmarks.image_editing_request import ImageEditingRequest
from lightning_idc.data.benchmarks.levir_cc import LEVIRCC
from lightning_idc.data.benchmarks.magicbrush import MagicBrush
from lightning_idc.data.benchmarks.spot_the_diff import SpotTheDiff
from lightning_idc.data.loading import PairDataset
from lightning_idc.data.sampling import SampleIndex
from lightning_idc.data.transforms.pairs import Compose, Flip, Jitter, RandomCrop, Resize
from lightning_idc.data.transforms.sides import swap_sides
from lightning_idc.images.read import read_image
from lightning_idc.images.resize import resize
from lightning_idc.images.types import stack_images
from lightning_idc.metrics.captions import score_captions
from lightning_idc.metrics.confusion import confusion
from lightning_idc.models.evaluation import no_change_rates
from lightning_idc.utils.errors import DataError

SPLITS = ("train", "val", "test")


@pytest.fixture(scope="session")
def annotations(shared: Path) -> Path:
    return shared / "realdata/annotations"


def load(path: Path) -> Any:
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def copied(root: Path, *files: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, root / file.name)
    return root


@pytest.fixture(scope="session")
def spot(annotations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spot")
    copied(root / "annotations", *(annotations / "spot_the_diff").iterdir())
    return root


@pytest.fixture(scope="session")
def edits(annotations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("edits"), *(annotations / "image_editing_request").iterdir())


@pytest.fixture(scope="session")
def levir(annotations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("levir"), annotations / "levir_cc/levir_cc_captions.json.gz")


@pytest.fixture(scope="session")
def birds(annotations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("birds"), *(annotations / "idc_transgru/bird2words").glob("*.json.gz"))


@pytest.fixture(scope="session")
def clevr(annotations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Official splits, types and overlaps with invented sentences, since the official sentences are not available."""
    source = annotations / "clevr_change"
    names = ("splits.json", "type_mapping.json.gz", "change_captions_by_IOU.json.gz")
    root = copied(tmp_path_factory.mktemp("clevr"), *(source / name for name in names))
    numbers = [number for split in load(source / "splits.json").values() for number in split]
    for name, text in (("change_captions", "the cube moved"), ("no_change_captions", "no change was made")):
        table = {f"CLEVR_default_{number:06d}.png": [f"{text} {number}"] for number in numbers}
        (root / f"{name}.json").write_text(json.dumps(table))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_spot_the_diff_three_groupings(spot: Path, annotations: Path, split: str) -> None:
    (path,) = (annotations / "spot_the_diff").glob(f"{split}.json*")
    entries = load(path)
    expected = {
        "train": (8_566, 17_676, 53, 37, 9_524),
        "val": (1_493, 3_310, 6, 4, 1_634),
        "test": (1_270, 2_107, 7, 7, 1_404),
    }
    grouped = SpotTheDiff(spot)
    assert grouped.counts(split) == grouped.expected(split) == Counts(*expected[split])
    sentences: dict[str, list[str]] = {}
    for entry in entries:
        sentences.setdefault(entry["img_id"], []).extend(entry["sentences"])
    assert {r.id: r.captions for r in grouped.records(split)} == sentences
    entry = SpotTheDiff(spot, grouping="entry")
    assert entry.miscount(split) is None and len(entry.records(split)) == len(entries)
    assert Counter(r.id.partition("#")[0] for r in entry.records(split)) == Counter(e["img_id"] for e in entries)
    assert len({r.id for r in entry.records(split)}) == len(entries)
    assert SpotTheDiff(spot, grouping="multi").miscount(split) is None


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_joined_sentences_equal_those_of_card(spot: Path, annotations: Path, split: str) -> None:
    card = load(annotations / "card_spot_multi/change_multi_captions.json.gz")
    numbers = load(annotations / "card_spot_multi/splits.json.gz")[split]
    own = {r.id: r.captions for r in SpotTheDiff(spot, grouping="multi", max_words=60).records(split)}
    assert own.keys() == set(map(str, numbers))
    differing = [n for n in numbers if card[f"{n:06d}.png"][0].split() != own[str(n)][0].split()]
    # CARD also joins empty sentences, which leaves a ". " for each
    empties = {r.id for r in SpotTheDiff(spot).records(split) if "" in r.captions}
    assert {str(n) for n in differing} <= empties


@pytest.mark.parametrize("split", SPLITS)
def test_image_editing_request(edits: Path, annotations: Path, split: str) -> None:
    data = ImageEditingRequest(edits)
    (path,) = (annotations / "image_editing_request").glob(f"{'valid' if split == 'val' else split}.json*")
    entries = load(path)
    expected = {"train": Counts(3_061, 3_061, 0, 0), "val": Counts(383, 1_149, 0, 0), "test": Counts(495, 1_485, 0, 0)}
    assert data.counts(split) == data.expected(split) == expected[split]
    first = data.records(split)[0]
    assert (first.id, first.before.name, first.after.name) == (
        entries[0]["uid"],
        entries[0]["img0"],
        entries[0]["img1"],
    )
    assert first.captions == [" ".join(text.split()) for text in entries[0]["sents"]]


@pytest.mark.slow
def test_levir_cc(levir: Path) -> None:
    data = LEVIRCC(levir)
    assert [data.counts(split).pairs for split in SPLITS] == [6_815, 1_333, 1_929]
    assert all(data.miscount(split) is None for split in SPLITS)
    kinds = Counter(record.change_type for split in SPLITS for record in data.records(split))
    assert kinds == {"no_change": 5_039, "change": 5_038}
    # a captioner that always predicts this misses every change and invents none
    captions = [
        {"caption": "there is no difference", "references": record.captions, "change_type": record.change_type}
        for record in data.records("test")
    ]
    assert str(confusion(captions)) == '"no change" is predicted for 965 of 965 unchanged and 964 of 964 changed pairs'
    assert no_change_rates(captions) == {"missed_change": 100.0, "invented_change": 0.0}
    record = data.records("val")[0]
    assert str(record.before.relative_to(levir.resolve())) == f"images/val/A/{record.id}"
    assert str(record.after.relative_to(levir.resolve())) == f"images/val/B/{record.id}"


@pytest.mark.slow
def test_birds_to_words_tokenised(birds: Path, annotations: Path) -> None:
    data = BirdsToWords(birds)
    expected = [Counts(2_685, 12_890, 0, 0), Counts(325, 1_556, 0, 0), Counts(337, 1_604, 0, 0)]
    assert [data.counts(split) for split in SPLITS] == [data.expected(split) for split in SPLITS] == expected
    lines = gzip.decompress((annotations / "idc_transgru/bird2words/test.json.gz").read_bytes()).decode().splitlines()
    first, record = json.loads(lines[0]), data.records("test")[0]
    assert record.id == f"{first['img1']}_{first['img2']}" and record.before.name == f"{first['img1']}.jpg"
    assert record.captions == [" ".join(words) for words in first["description"]]


@pytest.mark.slow
def test_clevr_change(clevr: Path, annotations: Path) -> None:
    data = CLEVRChange(clevr)
    assert [data.counts(split).pairs for split in SPLITS] == [67_660, 3_976, 7_970]
    assert all(data.miscount(split) is None for split in SPLITS)
    changed = [record for split in SPLITS for record in data.records(split) if not record.id.endswith("_n")]
    expected = {"color": 7_958, "texture": 7_963, "add": 7_966, "drop": 7_961, "move": 7_955}
    assert Counter(record.change_type for record in changed) == expected
    overlaps = load(annotations / "clevr_change/change_captions_by_IOU.json.gz")
    record = data.records("test")[0]
    number = int(record.id[:6])
    assert record.meta["iou"] == overlaps[str(number)] and record.captions == [f"the cube moved {number}"]
    assert record.after.name == f"CLEVR_semantic_{number:06d}.png"
    same = next(r for r in data.records("test") if r.id == f"{record.id}_n")
    assert same.before == record.before and same.after.name == f"CLEVR_nonsemantic_{number:06d}.png"
    assert same.change_type == "no_change" and same.captions == [f"no change was made {number}"]
    halves = [len(CLEVRChange(clevr, pairs=half).records("val")) for half in ("change", "no_change")]
    assert halves == [1_988, 1_988]


def test_magicbrush_in_aurora_layout(annotations: Path, tmp_path: Path) -> None:
    root = copied(
        tmp_path, *((annotations / "aurora") / name for name in ("data_magicbrush_train.json.gz", "test.json"))
    )
    data = MagicBrush(root)
    assert data.counts("train") == Counts(8_807, 8_807, 0, 0) == data.expected("train")
    assert data.counts("test").pairs == 50 and "found 50 pairs" in str(data.miscount("test"))
    with pytest.raises(LayoutError, match=r"dev/edit_turns\.json"):
        data.records("val")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SpotTheDiff, ImageEditingRequest, LEVIRCC, BirdsToWords, CLEVRChange])
@pytest.mark.parametrize("split", SPLITS)
def test_missing_images_show_the_layout(request: pytest.FixtureRequest, kind: type[Benchmark], split: str) -> None:
    names = {
        SpotTheDiff: "spot",
        ImageEditingRequest: "edits",
        LEVIRCC: "levir",
        BirdsToWords: "birds",
        CLEVRChange: "clevr",
    }
    data = kind(request.getfixturevalue(names[kind]))
    with pytest.raises(LayoutError) as raised:
        data.pairs_of(split)
    message = str(raised.value)
    assert data.title in message and f"images of the {split} split" in message and "What to do: " in message
    assert data.tree.strip().splitlines()[0] in message


def test_removed_record_is_detected(annotations: Path, tmp_path: Path) -> None:
    entries = load(annotations / "spot_the_diff/val.json")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/val.json").write_text(json.dumps(entries[:-1]))
    with pytest.raises(DataError, match=r"expected 1,493 pairs, .* found 1,49\d pairs.* official: false"):
        SpotTheDiff(tmp_path).pairs_of("val")
    with pytest.raises(LayoutError, match=r"annotations/train\.json"):
        SpotTheDiff(tmp_path).pairs_of("train")


# ---- real pairs, from the file to the score ---------------------------------------------------------------------


def manifest(shared: Path, name: str) -> tuple[Path, list[dict[str, Any]]]:
    folder = shared / "realdata" / name
    return folder, json.loads((folder / "manifest.json").read_text())["pairs"]


def place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def real_clevr(shared: Path, root: Path) -> tuple[Benchmark, str, int]:
    folder, pairs = manifest(shared, "clevr_change")
    tables: dict[str, dict[str, list[str]]] = {"change": {}, "no_change": {}}
    numbers: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for pair in pairs:
        for side in ("before", "after"):
            place(folder / pair[side], root / pair["origin"][side])
        key = Path(pair["origin"]["before"]).name
        tables["no_change" if pair["change_type"] == "no_change" else "change"][key] = pair["captions"]
        if pair["change_type"] != "no_change":
            numbers[pair["split"]].append(int(key[-10:-4]))
    for name, table in tables.items():
        (root / f"{name}_captions.json").write_text(json.dumps(table))
    (root / "splits.json").write_text(json.dumps(numbers))
    place(shared / "realdata/annotations/clevr_change/type_mapping.json.gz", root / "type_mapping.json.gz")
    return CLEVRChange(root, official=False, image_size=(64, 96)), "test", 48


def real_levir(shared: Path, root: Path) -> tuple[Benchmark, str, int]:
    folder, pairs = manifest(shared, "levir_cc")
    for pair in pairs:
        for side, letter in (("before", "A"), ("after", "B")):
            place(folder / pair[side], root / f"images/train/{letter}/{pair['id']}.png")
    place(shared / "realdata/annotations/levir_cc/levir_cc_captions.json.gz", root / "levir_cc_captions.json.gz")
    return LEVIRCC(root, on_missing="skip", image_size=64), "train", 3


def real_magicbrush(shared: Path, root: Path) -> tuple[Benchmark, str, int]:
    folder, pairs = manifest(shared, "aurora_magicbrush")
    for pair in pairs:
        for side in ("before", "after"):
            place(folder / pair[side], root / pair["origin"][side])
    place(shared / "realdata/annotations/aurora/test.json", root / "test.json")
    return MagicBrush(root, official=False, image_size=64, interpolation="bicubic"), "test", 50


def real_edits(shared: Path, root: Path) -> tuple[Benchmark, str, int]:
    folder, pairs = manifest(shared, "mgie_qual")
    records = []
    for pair in pairs:
        for side in ("before", "after"):
            place(folder / pair[side], root / "images" / Path(pair[side]).name)
        names = [Path(pair[side]).name for side in ("before", "after")]
        records.append({"uid": pair["id"], "img0": names[0], "img1": names[1], "sents": pair["captions"]})
    (root / "test.json").write_text(json.dumps(records))
    return ImageEditingRequest(root, official=False, image_size=64), "test", 30


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LEVIR-CC train. left out")
@pytest.mark.parametrize("make", [real_clevr, real_levir, real_magicbrush, real_edits])
def test_real_pairs_load_transform_and_score(make: Any, shared: Path, tmp_path: Path) -> None:
    data, split, pairs = make(shared, tmp_path)
    data.transform = Compose([Flip(1.0), RandomCrop(), Jitter()])
    source = data.pairs_of(split)
    assert len(source) == pairs
    loaded = PairDataset(source, [Resize(data.image_size), data.transform], seed=0, sample_captions=True)
    samples = [loaded[SampleIndex(0, index)] for index in range(pairs)]
    images = stack_images(samples)
    assert images.shape == (pairs, 2, 3, *data.image_size)
    assert all(images[:, side].float().std() > 5 for side in (0, 1))  # photographs, not blanks
    mirrored = {sample.id: sample.captions for sample in samples}
    assert mirrored == {source.ids[i]: [swap_sides(text) for text in source.captions(i)] for i in range(pairs)}
    references = {source.ids[index]: source.captions(index) for index in range(pairs)}
    perfect = score_captions({name: texts[0] for name, texts in references.items()}, references)
    assert perfect.values["BLEU-4"] == pytest.approx(100.0) and perfect.values["ROUGE-L"] == pytest.approx(100.0)
    order = list(references)
    shuffled = score_captions(
        dict(zip(order[1:] + order[:1], (references[n][0] for n in order), strict=True)), references
    )
    assert shuffled.values["BLEU-4"] < perfect.values["BLEU-4"]


@pytest.mark.parametrize("size", [(224, 224), (60, 90)])
def test_bicubic_equals_reference_extractors(shared: Path, size: tuple[int, int]) -> None:
    folder, pairs = manifest(shared, "clevr_change")
    path = folder / pairs[0]["before"]
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGB").resize(size[::-1], Image.Resampling.BICUBIC)).astype(int)
    got = resize(read_image(path), size, "bicubic").permute(1, 2, 0).numpy().astype(int)
    # PIL rounds between its two passes and uses fixed-point arithmetic
    assert np.abs(got - expected).max() <= 1
