"""Img-Diff: the filters on hand-made cases, the area generator against the ground truth of rendered scenes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toy_stages import pair_of
from PIL import Image

from benchmarks.synthesis import scenes
from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.benchmarks.img_diff import ImgDiff, image_of
from lightning_idc.data.checking import check_benchmark
from lightning_idc.methods.img_diff.areas import (
    DifferenceAreas,
    PairSimilarity,
    box_scores,
)
from lightning_idc.methods.img_diff.edits import KINDS, PasteEdits
from lightning_idc.methods.img_diff.filtering import accepted, suppress_overlap
from lightning_idc.methods.img_diff.judging import AnswerPairs, EvaluationSet, RateAnswers
from lightning_idc.methods.img_diff.presets import PAPER, PRESETS, load_filters
from lightning_idc.methods.img_diff.prompts import RELEASED_QUESTION
from lightning_idc.methods.img_diff.release import Release
from lightning_idc.methods.img_diff.removal import EraseObjects, ReleaseRemoval, RemovedObjects
from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
from lightning_idc.synthesis.drawing import draw_box, side_by_side
from lightning_idc.synthesis.models.base import ImageEncoder, ImageTextMatcher, Segmenter, VisionLanguageModel
from lightning_idc.synthesis.models.base import Region as Found
from lightning_idc.synthesis.models.pretrained import BlipMatcher
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.release import ReleasePairs, file_name
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import ImageFolder, SamplePhotos
from lightning_idc.synthesis.stages import Sequential
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.errors import ConfigError

pytest.importorskip("cv2")  # here, since importing it changes the environment


@pytest.mark.slow
@pytest.mark.parametrize(
    ("light", "camera", "precision", "recall"),
    [(False, 0.0, 0.9, 0.8), (True, 0.0, 0.85, 0.88), (True, 0.7, 0.7, 0.7)],
)
def test_boxes_match_rendered_objects(light: bool, camera: float, precision: float, recall: float) -> None:
    # no threshold was tuned on these scenes
    records = DifferenceAreas(filters="embedded").transform(scenes(40, 128, light, camera, seed=11))
    measured = box_scores(records)
    assert measured["true"] > 40
    assert measured["precision"] > precision and measured["recall"] > recall, measured


class Similarity(ImageEncoder):
    """Encodes a plain image so that the cosine of two is set by their red values: see `pair_of`."""

    def encode(self, images: list[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        angle = torch.tensor([float(image[0, 0, 0]) / 100 for image in images])
        return torch.stack([angle.cos(), angle.sin()], 1)


class Boxes(Segmenter):
    def __init__(self, proposals: list[tuple[tuple[int, int, int, int], float]]) -> None:
        super().__init__()
        self.found = proposals

    def regions(self, before: list[torch.Tensor], after: list[torch.Tensor]) -> list[list[Found]]:  # type: ignore[override]
        mask = torch.ones(before[0].shape[1:], dtype=torch.bool)
        return [[Found(box, confidence, mask) for box, confidence in self.found] for _ in before]


class Score(ImageTextMatcher):
    """Reads the score from the text."""

    def match(self, images: list[torch.Tensor], texts: list[str]) -> torch.Tensor:  # type: ignore[override]
        return torch.tensor([float(text) for text in texts])


@pytest.mark.parametrize(
    ("angle", "reason"), [(0, "pair too similar"), (19, "pair too similar"), (30, None), (46, "pair too different")]
)
def test_similarity_filter_keeps_090_to_098(angle: int, reason: str | None) -> None:
    # cos .19 = .982, cos .30 = .955, cos .46 = .896
    record = PairSimilarity(Similarity(), "paper").transform([pair_of(0, angle)])[0]
    assert (record.dropped and record.dropped["reason"]) == reason


def areas_of(
    record: Record, filters: str, proposals: list[tuple[tuple[int, int, int, int], float]]
) -> list[str | None]:
    made = DifferenceAreas(Boxes(proposals), Similarity(), Score(), filters).transform([record])[0]
    return [None if area["dropped"] is None else area["dropped"]["reason"] for area in made.facts["areas"]]


def test_each_filter_of_the_area_generator_has_the_papers_threshold() -> None:
    box = (0, 0, 10, 10)
    different, alike = pair_of(0, 70), pair_of(0, 50)  # cos .7 = .76, cos .5 = .88
    assert areas_of(different, "paper", [(box, 0.06)]) == [None]
    assert areas_of(pair_of(0, 70), "paper", [(box, 0.05)]) == ["confidence"]
    assert areas_of(alike, "paper", [(box, 0.06)]) == ["crops too similar"]
    for nouns, reason in (
        (["0.36", "0.1"], None),
        (["0.34", "0.35"], "no such object"),
        ([None, "0.36"], None),
        (["0.2", None], "no such object"),
    ):
        record = pair_of(0, 70)
        record.facts["nouns"] = nouns
        assert areas_of(record, "paper", [(box, 1.0)]) == [reason], nouns
    record = pair_of(0, 70)
    record.facts["nouns"] = ["0.5", "0.3"]
    assert areas_of(record, "data_juicer", [(box, 1.0)]) == ["no such object"], "there both sides have to match"
    assert areas_of(pair_of(0, 70), "data_juicer", [((0, 0, 30, 30), 1.0)]) == ["box size"]
    assert areas_of(pair_of(0, 70), "scripts", [((0, 0, 1, 1), 1.0)]) == ["box size"]


def test_most_different_of_overlapping_boxes_is_kept() -> None:
    def area(box: list[int], similarity: float) -> dict[str, object]:
        return {"box": box, "similarity": similarity, "dropped": None}

    areas = [area([0, 0, 10, 10], 0.8), area([0, 0, 10, 9], 0.1), area([20, 0, 30, 10], 0.5), area([0, 0, 10, 4], 0.7)]
    suppress_overlap(areas, PAPER)
    assert [a["dropped"] is None for a in areas] == [
        False,
        True,
        True,
        True,
    ]  # the last one's IoU with the second is .44
    first = [{**a, "dropped": None} for a in areas]
    suppress_overlap(first, PRESETS["data_juicer"])
    assert [a["dropped"] is None for a in first] == [True, False, True, True]
    few = [area([20 * i, 0, 20 * i + 10, 10], 0.01 * i) for i in range(12)]
    suppress_overlap(few, PRESETS["scripts"])
    assert len(accepted(few)) == 10


def test_presets_of_table_17() -> None:
    # IS, BITM, CS, CITM of the four rows
    rows = {
        1: ((0.9, 0.98), 0.3, 0.9, 0.3),
        2: ((0.9, 0.98), 0.35, 0.9, 0.3),
        3: ((0.9, 0.98), 0.35, 0.85, 0.4),
        4: ((0.85, 0.98), 0.35, 0.85, 0.4),
    }
    for number, row in rows.items():
        f = load_filters(f"table17_{number}")
        assert (f.pair_similarity, f.region_match, f.caption_similarity, f.caption_match) == row
    assert load_filters("paper") == load_filters("table17_3")
    with pytest.raises(ConfigError, match="table17_1"):
        load_filters("table18")


def test_bar_and_box_equal_the_paper() -> None:
    image = torch.zeros(3, 50, 60, dtype=torch.uint8)
    boxed = draw_box(image, [20, 20, 30, 30])
    red = (boxed[0] == 255) & (boxed[1] == 0)
    assert red[15:18, 15:35].all() and red[32:35, 15:35].all() and red[15:35, 15:18].all()
    assert not red[18:32, 18:32].any() and int(red.sum()) == 20 * 20 - 14 * 14
    white = image + 255
    both = side_by_side(white, white)
    assert both.shape == (3, 50, 60 + 20 + 60) and (both[:, :, 60:80] == 0).all() and (both[:, :, :60] == 255).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("skimage")
    root = tmp_path_factory.mktemp("img_diff")
    filters = "embedded"
    run(PasteEdits(size=128), SamplePhotos(copies=8), root / "pairs", shard_size=16)
    chain = [
        PairSimilarity(filters=filters),
        DifferenceAreas(filters=filters),
        RegionCaptions(filters=filters),
        DifferenceCaptions(),
        Release(str(root / "release"), together="id", shares=(0.5, 0.25, 0.25)),
    ]
    run(Sequential(chain), str(root / "pairs"), root / "made", shard_size=16)
    return root


class TestWholePipeline:
    """All stages on real photographs, with the embedded slots."""

    @pytest.mark.slow
    def test_every_record_is_kept_or_says_why_not(self, folder: Path) -> None:
        records = list(RecordStore(folder / "made"))
        assert len(records) == 8 * len(SamplePhotos().names)
        assert sum(record.dropped is None for record in records) > 0.5 * len(records)
        for record in records:
            if record.dropped is None:
                assert [step["stage"] for step in record.history][:3] == [
                    "PasteEdits", "PairSimilarity", "DifferenceAreas",
                ]  # fmt: skip
                assert record.facts["summary"]
            else:
                assert record.dropped["stage"] and record.dropped["reason"]
            for area in record.facts.get("areas", []):
                assert area["dropped"] is None or {"reason", "value", "limit"} == set(area["dropped"])

    @pytest.mark.slow
    def test_kept_regions_are_where_objects_were_pasted(self, folder: Path) -> None:
        measured = box_scores([r for r in RecordStore(folder / "made") if r.dropped is None])
        assert measured["precision"] > 0.9, measured

    def test_captions_name_the_objects(self, folder: Path) -> None:
        right = num_named = 0
        for record in RecordStore(folder / "made"):
            for area in accepted(record.facts.get("areas", [])) if record.facts.get("edit") == "replace" else []:
                for noun, caption in zip(record.facts["nouns"], area.get("captions", []), strict=True):
                    num_named, right = num_named + 1, right + (caption == f"a {noun}")
        assert right / num_named > 0.9, (right, num_named)

    @pytest.mark.slow
    def test_release_round_trip(self, folder: Path) -> None:
        """Our reader of the authors' layout returns every box, question, caption and image that was written."""
        data = ImgDiff(folder / "release", official=False, shares=(1.0, 0.0, 0.0))
        problems = check_benchmark(data)
        assert not [text for text in problems if "missing" in text], "every picture lies where the authors have it"
        pairs = data.pairs_of("train")
        written = [
            (record, number, area)
            for record in RecordStore(folder / "made")
            if record.dropped is None
            for number, area in enumerate(accepted(record.facts["areas"]))
        ]
        assert len(pairs) == len(written) > 10 and any(number for _, number, _ in written)
        questions = set()
        for index, (record, number, area) in enumerate(written):
            sample = pairs.load(index)
            assert sample.id == f"{file_name(record.id)}_{number}" and image_of(sample.id) == file_name(record.id)
            assert sample.captions == [area["difference"]]
            assert [sample.meta["captions1"], sample.meta["captions2"]] == area["captions"]
            questions.add(sample.meta["question"])
            height, width = record.facts["size"]
            assert sample.boxes is not None
            assert (sample.boxes[0, 0] - torch.tensor(area["box"])).abs().max() <= 0.005 * max(height, width) + 1e-4
            for image, side in ((sample.before, "before"), (sample.after, "after")):
                drawn = draw_box(record.image(side), area["box"]).int()
                assert (image.int() - drawn).abs().float().mean() < 3, "a JPEG of that picture with its red box"
                x, y = max(area["box"][0] - 5, 0), max(area["box"][1] - 5, 0)
                assert image[0, y + 1, x + 1] > 200 and image[1:, y + 1, x + 1].max() < 70, "red"
        assert questions == {RELEASED_QUESTION}

    def test_the_release_has_the_published_form(self, folder: Path) -> None:
        entries = json.loads((folder / "release" / "img_diff_object_replacement.json").read_text())
        assert len({entry["path"] for entry in entries}) == len(entries), "each box has pictures of its own"
        for entry in entries:
            assert set(entry) == {"path", "bbox", "captions1", "captions2", "conversations"}
            assert re.fullmatch(r"\[[01]\.\d\d, [01]\.\d\d, [01]\.\d\d, [01]\.\d\d\]", entry["bbox"])
            assert [turn["from"] for turn in entry["conversations"]] == ["human", "gpt"]

    @pytest.mark.slow
    def test_images_without_boxes_can_be_released(self, folder: Path, tmp_path: Path) -> None:
        run(Release(str(tmp_path / "plain"), boxes="plain"), str(folder / "made"), tmp_path / "made")
        pairs = ImgDiff(tmp_path / "plain", official=False, shares=(1.0, 0.0, 0.0)).pairs_of("train")
        record = next(record for record in RecordStore(folder / "made") if record.dropped is None)
        assert (pairs.load(0).before.int() - record.image("before").int()).abs().float().mean() < 3

    def test_a_captioner_can_train_on_the_release(self, folder: Path) -> None:
        data = FolderPairs(str(folder / "release"))
        pairs = data.pairs_of("train")
        assert len(pairs) > 5 and pairs.captions(0)[0]
        assert pairs.load(0).before.shape == (3, 128, 128)

    def test_evaluation_set_without_weights(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run(EvaluationSet(10), str(folder / "made"), tmp_path / "set", shard_size=16)
        truths = [r.facts["truth"] for r in RecordStore(tmp_path / "set") if r.dropped is None]

        class Half(VisionLanguageModel):
            """Answers every second question correctly; its input is one image of both sides with a bar between them."""

            def answer(self, images: list[list[torch.Tensor]], prompts: list[str]) -> list[str]:  # type: ignore[override]
                assert all(image.shape == (3, 128, 2 * 128 + 20) for (image,) in images)
                assert set(prompts) == {RELEASED_QUESTION}
                return [truths[n] if n % 2 else "the weather changed" for n in range(len(images))]

        chain = Sequential([AnswerPairs(Half()), RateAnswers()])
        rated = [r for r in run(chain, str(tmp_path / "set"), tmp_path / "rated", batch_size=64, shard_size=64)]
        assert [r.facts["rating"] for r in rated if r.dropped is None] == [0, 3] * 5
        assert "15 of 30 points for 10 answers" in capsys.readouterr().out

    @pytest.mark.slow
    def test_removal_questions_have_the_right_letter(self, folder: Path, tmp_path: Path) -> None:
        chain = Sequential([EraseObjects(), RemovedObjects(), ReleaseRemoval(str(tmp_path / "release"))])
        made = [r for r in run(chain, str(folder / "pairs"), tmp_path / "made") if r.dropped is None]
        entries = json.loads((tmp_path / "release" / "img_diff_object_removal.json").read_text())
        assert len(entries) == len(made) > 5
        assert {entry["conversations"][1]["value"] for entry in entries} == {"A", "B"}
        for record, entry in zip(made, entries, strict=True):
            x1, y1, x2, y2 = record.facts["areas"][0]["box"]
            there, gone = (record.image(side)[:, y1:y2, x1:x2].float() for side in ("with", "without"))
            side = "before" if entry["conversations"][1]["value"] == "A" else "after"
            assert torch.equal(record.image(side), record.image("with")), "the letter names the picture with the object"
            assert (there - gone).abs().mean() > 5
            present, absent = (record.history[-2]["scores"][name] for name in ("present", "absent"))
            assert present > 0.35 and absent < 0.2
            assert entry["path"].startswith("./inpaint/") and isinstance(entry["bbox"], list)


def test_unknown_choices_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="together is 'files'; expected one of file, site, style, id"):
        ReleasePairs(str(tmp_path), together="files")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="score is 'prob'; expected one of cosine, probability"):
        BlipMatcher("a model", score="prob")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"blend": "cloned"}, "blend is 'cloned'; expected one of paste, clone"),
        ({"size": 6}, "size is 6; expected at least 5 pixels more than the 2 of the largest object"),
        ({"size": 0}, "size is 0"),
        ({"noise": math.nan}, "noise is nan; expected at least 0"),
    ],
)
def test_impossible_edits_are_errors_at_construction(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        PasteEdits(**options)


def test_library_has_enough_objects(tmp_path: Path) -> None:
    for name, value in (("cup", 40), ("cat", 200)):
        cut = np.full((20, 20, 4), value, np.uint8)
        cut[..., 3] = 0
        cut[4:16, 4:16, 3] = 255
        Image.fromarray(cut).save(tmp_path / f"{name}.png")
    with pytest.raises(ConfigError, match=r"2 cut-outs.*needs 3.*num_objects"):
        PasteEdits(size=96, library=str(tmp_path), num_objects=(1, 2)).setup("predict")
    store = run(PasteEdits(size=96, library=str(tmp_path), num_objects=(1, 1)), SamplePhotos(copies=2), tmp_path / "a")
    assert store.counts()[0] > 0


def test_missing_caption_fact_stops_the_run(tmp_path: Path) -> None:
    stages = Sequential([PasteEdits(size=64), ReleasePairs(str(tmp_path / "out"), caption="sumary")])
    with pytest.raises(ConfigError, match=r"no fact 'sumary'.*captions"):
        run(stages, SamplePhotos(), tmp_path / "a")


@pytest.mark.slow
def test_edits_change_one_box_and_record_it(shared: Path, tmp_path: Path) -> None:
    folder = shared / "realdata" / "aurora_magicbrush"
    if not folder.is_dir():
        pytest.skip("aurora_magicbrush is not in the shared folder")
    store = run(PasteEdits(size=96, noise=0.0), ImageFolder(str(folder)), tmp_path / "a", limit=40)
    kinds = set()
    for record in store:
        if record.dropped is not None:
            continue
        kinds.add(record.facts["edit"])
        changed = (record.image("before") != record.image("after")).any(0)
        outside = changed.clone()
        for sides in record.facts["true_boxes"]:
            for box in sides:
                if box is not None:
                    outside[box[1] : box[3], box[0] : box[2]] = False
        assert changed.any() and not outside.any()
    assert kinds == set(KINDS)
