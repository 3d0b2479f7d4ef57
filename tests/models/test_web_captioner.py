"""WebCaptioner. Oracles: pages drawn here with known changes, and sums of probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.training import QUIET
from lightning.pytorch import Trainer
from PIL import Image

from lightning_idc import load
from lightning_idc.callbacks.show_results import ShowResults
from lightning_idc.cli import main
from lightning_idc.data import WebPairs
from lightning_idc.images.types import PairFeatures, PairSample
from lightning_idc.metrics.page_claims import claimed_operator
from lightning_idc.metrics.page_sentences import KINDS, NOTHING, VALUES, all_sentences, sentence, sentence_of
from lightning_idc.models import WebCaptioner
from lightning_idc.models.web.candidates import CANDIDATES, find_candidates
from lightning_idc.models.web.core import Core, find_core
from lightning_idc.models.web.forest import Forest
from lightning_idc.models.web.lines import compare_lines
from lightning_idc.models.web.measures import NAMES, measure
from lightning_idc.models.web.words import match_words
from lightning_idc.serve.answers import answer_pairs
from lightning_idc.utils.boxes import box_iou
from lightning_idc.utils.errors import ConfigError, DataError

torch.set_num_threads(1)


def page(seed: int = 0, height: int = 120, width: int = 200) -> np.ndarray:
    """Draw lines of random marks on a white page, uint8 ``(3, H, W)``."""
    image = np.full((3, height, width), 255, np.uint8)
    random = np.random.default_rng(seed)
    for top in range(10, height - 10, 14):
        image[:, top : top + 8, 10 : width - 40] = np.where(random.random((8, width - 50)) < 0.4, 0, 255)
    return image


def drawn(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return a page, the page after a change, and the box of the changed line in the first page."""
    before = page(seed)
    top = 10 + 14 * (seed % 6)
    rows, after = slice(top, top + 8), before.copy()
    if kind == "color":
        after[1:, rows] = np.where(before[1:, rows] == 0, 120, before[1:, rows])
    elif kind == "remove":
        after[:, rows] = 255
    else:
        after[:, rows, 12:] = before[:, rows, :-12]
    return before, after, [10, top, 160, top + 8]


def test_what_moved_down_is_no_part_of_the_core() -> None:
    before = page()
    after = before.copy()
    after[:, 30:] = before[:, 24:-6]  # everything from the second line on moves down by 6 pixels
    after[:, 24:30, 10:100] = 90
    core = find_core(before, after)
    assert core is not None and core.shift == (0, 6) and core.tail[1] >= 6
    assert core.after[1] >= 23 and core.after[3] <= 32 and core.before[3] <= 26
    assert find_core(before, before) is None


def test_what_was_pushed_along_is_no_part_of_the_core() -> None:
    before = page(height=30)
    after = before.copy()
    after[:, 10:18, 69:] = before[:, 10:18, 60:-9]  # everything from column 60 on moves right by 9 pixels
    after[:, 10:18, 40:69] = np.where(before[:, 10:18, 40:69] == 0, 60, 200)
    core = find_core(before, after)
    assert core is not None and core.shift[0] == 9 and core.tail[0] > 20
    assert core.before[0] == 40 and 55 <= core.before[2] <= 64 and 64 <= core.after[2] <= 73


def test_a_candidate_is_the_cell_around_a_text_and_the_element_that_moved() -> None:
    before = np.full((3, 100, 200), 255, np.uint8)
    before[:, 20:60, 30:150] = 0  # the border of a cell, 1 pixel wide
    before[:, 21:59, 31:149] = 255
    before[:, 36:44, 42:60] = np.where(page(1)[:, 10:18, 42:60] == 0, 0, 255)
    after = before.copy()
    after[0, 36:44, 42:60] = np.where(before[0, 36:44, 42:60] == 0, 200, 255)
    core = find_core(before, after)
    assert core is not None and box_iou(core.before, (30, 20, 150, 60)) < 0.1
    overlaps = [
        box_iou(box, (30, 20, 150, 60)) for box in find_candidates(before, core, match_words(before, after, core))
    ]
    assert len(overlaps) == len(CANDIDATES) and max(overlaps) > 0.8
    # a word of another color within a line
    before = page(2, height=30)
    before[1:, 10:18, 10:50] = np.where(before[1:, 10:18, 10:50] == 0, 160, 255)
    after = before.copy()
    after[:, 10:18, 19:] = before[:, 10:18, 10:-9]
    after[:, 10:18, 10:19] = 255
    core = find_core(before, after)
    assert core is not None
    assert (
        max(box_iou(box, (10, 10, 50, 18)) for box in find_candidates(before, core, match_words(before, after, core)))
        > 0.5
    )


@pytest.mark.parametrize("kind", ["color", "remove", "translate"])
def test_measures_are_finite_and_have_one_order(kind: str) -> None:
    before, after, _ = drawn(kind, 1)
    core = find_core(before, after)
    assert core is not None
    values = measure(before, after, core, match_words(before, after, core))
    assert tuple(values) == NAMES and np.isfinite(list(values.values())).all()
    if kind == "remove":
        assert values["to_ground"] > 0.9
    if kind == "translate":
        assert (values["shift_x"], values["shift_y"]) == (12, 0)


@pytest.mark.filterwarnings("error")
def test_a_plain_area_of_another_color_has_no_correlation() -> None:
    """The colors of each area are constant up to rounding."""
    before = np.full((3, 220, 260), 250, np.uint8)
    after = before.copy()
    random = np.random.default_rng(0)
    colors = random.integers(0, 255, (2, 3)).astype(np.uint8)
    height, width = random.integers(9, 180, 2)
    for image, color in zip((before, after), colors, strict=True):
        image[:, 20 : 20 + height, 30 : 30 + width] = color[:, None, None]
    core = find_core(before, after)
    assert core is not None
    assert measure(before, after, core, match_words(before, after, core))["coverage_correlation"] == 0


def test_sentences_name_their_operator_and_differ() -> None:
    texts = all_sentences()
    assert len(texts) == len(set(texts)) and texts[-1] == NOTHING
    for operator, values in VALUES.items():
        for value in values:
            assert claimed_operator(sentence(operator, value, "image")) == operator
    facts = {"edit": "translate", "property": "top", "old": "0px", "new": "-5px", "element": "heading"}
    assert sentence_of(facts) == "the position of a heading moved up"
    assert sentence_of({"edit": "no_change"}) == NOTHING


@pytest.fixture(scope="module")
def captioner() -> WebCaptioner:
    torch.manual_seed(1)
    model = WebCaptioner(width=16, members=3, captions_per_pair=1)
    model.build()
    return model.eval()


def test_probabilities_of_all_sentences_sum_to_one(captioner: WebCaptioner) -> None:
    before, after, _ = (torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in drawn("color", 0))
    batch = captioner.collate([PairSample("a", before, after), PairSample("b", before[:, :60], before[:, :60])])
    features = captioner.encode(batch)
    torch.testing.assert_close(features.memory[:, 0].exp().sum(1), torch.ones(2))
    rows = captioner.tokenize(all_sentences())
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=0)
    mask = tokens != 0
    mask[:, 0] = False
    scores = captioner.score(features, tokens.expand(2, -1, -1), mask.expand(2, -1, -1))
    # scores by word equal those of whole sentences; words that continue no sentence have a total probability of 1e-6
    likely = features.memory[:, 0] > -9
    torch.testing.assert_close(scores[likely], features.memory[:, 0][likely], atol=2e-3, rtol=0)
    assert captioner.net is not None
    assert captioner.net.sentence_index(tokens).tolist() == list(range(len(rows)))  # type: ignore[operator]
    best = [all_sentences()[index] for index in features.memory[:, 0].argmax(1).tolist()]
    assert [caption.text for caption in captioner.generate(features)] == best


def test_the_most_probable_sentence_is_said(captioner: WebCaptioner) -> None:
    """70 % of the probability belongs to sentences with another first word, each of which is less probable."""
    texts = all_sentences()
    removed = next(n for n, text in enumerate(texts) if text.startswith("a ") and "removed" in text)
    others = [n for n, text in enumerate(texts) if text.startswith("the ")][:20]
    probabilities = torch.full((1, 1, len(texts)), 1e-9)
    probabilities[..., others], probabilities[..., removed] = 0.7 / len(others), 0.3
    features = PairFeatures(probabilities.log())
    (caption,) = captioner.generate(features)
    assert caption.text == texts[removed]
    decoded = captioner.decoder.search(features)
    assert decoded.mean_log_probs[0] * len(decoded.ids[0]) == pytest.approx(np.log(0.3), abs=1e-3)
    assert captioner.decoder.search(features, max_length=3).ids == [decoded.ids[0][:3]]
    assert captioner.generate(features, num_beams=2)[0].text in texts


def test_an_unchanged_pair_has_no_change_and_no_box(captioner: WebCaptioner) -> None:
    image = torch.from_numpy(page())
    caption = captioner.describe(image, image)
    assert caption.text == NOTHING and caption.change_score is not None and caption.change_score < 0.01
    sample = captioner.input_spec.read(image, image)
    assert answer_pairs(captioner, [sample])[0].boxes == []
    # replaced images are measured again, as in the identical-image control
    before, after, _ = drawn("remove", 3)
    batch = captioner.collate([PairSample("a", torch.from_numpy(before), torch.from_numpy(after))])
    same = captioner.with_images(batch, batch.images[:, :1].expand_as(batch.images))
    assert (
        captioner.generate(captioner.encode(same))[0].text
        == NOTHING
        != captioner.generate(captioner.encode(batch))[0].text
    )


def test_a_pair_is_measured_once_for_its_sentence_and_its_box(
    captioner: WebCaptioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning_idc.models.web import module

    before, after, _ = drawn("color", 1)
    sample = PairSample("a", torch.tensor(before), torch.tensor(after), meta={"sizes": [before.shape[1:]] * 2})
    measured = Mock(wraps=module.measure_pair)
    monkeypatch.setattr(module, "measure_pair", measured)
    [answer] = answer_pairs(captioner, [sample])
    assert measured.call_count == 1 and answer.boxes and sample.meta.keys() == {"sizes"}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    (folder / "images").mkdir()
    lines = []
    for number in range(48):
        kind = ("color", "remove", "translate", "no_change")[number % 4]
        before, after, box = drawn(kind, number // 4) if kind != "no_change" else (page(number), page(number), [])
        for side, image in (("before", before), ("after", after)):
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"images/{number}_{side}.png")
        value = {"translate": "right"}.get(kind, "")
        change = {"operator": kind, "tier": "easy", "boxes": [box, box], "reflows": False}
        row = {
            "id": str(number), "before": f"images/{number}_before.png", "after": f"images/{number}_after.png",
            "captions": [NOTHING if kind == "no_change" else sentence(kind, value, KINDS[number // 4 % 2])],
            "change_type": kind, "split": ("train", "test", "val")[0 if number < 32 else 1 if number < 44 else 2],
            **({} if kind == "no_change" else {"change": change}),
        }  # fmt: skip
        lines.append(json.dumps(row))
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    return folder


@pytest.mark.slow
def test_training_learns_operators_and_boxes(release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = WebPairs(str(release), batch_size=16, measure_once=True)
    sample = data.dataset("test")[0]
    assert sample.meta["change"]["operator"] == "color" and sample.boxes is not None and sample.boxes.shape == (1, 2, 4)
    model = WebCaptioner(
        width=32, members=2, captions_per_pair=1, dropout=0.0,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    )  # fmt: skip
    trainer = Trainer(max_epochs=25, check_val_every_n_epoch=25, default_root_dir=tmp_path, **QUIET)
    trainer.fit(model, data)
    results = ShowResults(examples=0, report_pairs=0)
    tester = Trainer(default_root_dir=tmp_path, **{**QUIET, "callbacks": [results]})
    capsys.readouterr()
    tester.test(model, data, verbose=False)
    printed = capsys.readouterr().out
    assert "diffspot: overall " in printed and "specificity 100.0" in printed, "the table has the words only"
    result = json.loads((tmp_path / "metrics.json").read_text())
    assert result["protocol"]["name"] == "diffspot" and result["counts"]["all"]["pairs"] == 12
    assert (
        result["scores"]["changed"]["recall (strict, IoU)"] > 85 and result["scores"]["unchanged"]["specificity"] == 100
    )
    assert result["baselines"]["claims nothing"]["all"]["overall"] == 25
    # measures are the same whether they are stored in advance or computed from the images of a pair
    sources = (data.dataset("train"), WebPairs(str(release), batch_size=16).dataset("train"))
    once, with_images = (model.collate([pairs[index] for index in range(4)]) for pairs in sources)
    assert once.images.shape[-2:] == (1, 1) != with_images.images.shape[-2:]
    assert once.pixels.keys() == with_images.pixels.keys()
    assert all(torch.equal(value, with_images.pixels[name]) for name, value in once.pixels.items())
    # the saved captioner is loaded in Python and on the command line
    model.save_pretrained(tmp_path / "web")
    before, after = (release / f"images/32_{side}.png" for side in ("before", "after"))
    expected = model.describe(before, after)
    assert load(tmp_path / "web").describe(before, after) == expected and claimed_operator(expected.text) == "color"
    capsys.readouterr()
    assert main(["describe", str(before), str(after), "--model", str(tmp_path / "web"), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["caption"] == expected.text and answer["changed"] and len(answer["boxes"]) == 1


def test_trees_split_by_the_measure_that_tells_labels_apart() -> None:
    random = np.random.default_rng(0)
    measures = random.normal(size=(80, 6)).astype(np.float32)
    labels = np.stack([measures[:, 2] > 0.3, measures[:, 2] <= 0.3, measures[:, 4] > 0], 1).astype(np.float32)
    forest, again = Forest(20, 61, 3), Forest(20, 61, 3)
    assert not forest.is_grown
    for each in (forest, again):
        each.grow(measures, labels, np.array([1.0, 1.0, 0.1], np.float32), seed=3)
    assert forest.is_grown and all(torch.equal(a, b) for a, b in zip(forest.buffers(), again.buffers(), strict=True))
    answers = forest(torch.from_numpy(measures))
    assert ((answers[:, 0] > 0.5).numpy() == (labels[:, 0] > 0.5)).mean() > 0.95
    torch.testing.assert_close(answers[:, 0] + answers[:, 1], torch.ones(80), atol=5e-3, rtol=0)
    # a tree with one node predicts the mean of all labels
    single = Forest(1, 1, 3)
    single.grow(measures, labels, np.ones(3, np.float32), seed=0)
    expected = torch.from_numpy(labels.mean(0)).expand(80, -1)
    torch.testing.assert_close(single(torch.from_numpy(measures)), expected, atol=3e-3, rtol=0)


@pytest.mark.slow
def test_trees_are_grown_from_changed_pairs_and_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = WebCaptioner(width=8, members=1, captions_per_pair=1, trees=20, tree_nodes=31)
    model.build()
    samples = []
    for number in range(24):
        kind = ("color", "remove", "translate")[number % 3]
        before, after, box = drawn(kind, number // 3)
        text = sentence(kind, {"translate": "right"}.get(kind, ""), "link")
        boxes = torch.tensor([[box, box]], dtype=torch.float32)
        pair = PairSample(str(number), torch.from_numpy(before), torch.from_numpy(after), [text], boxes=boxes)
        samples.append(pair)
    same = PairSample("same", samples[0].before, samples[0].before, [NOTHING])
    model._grow_trees([*samples, same])
    model.eval()
    for sample in samples:
        caption = model.describe(sample.before, sample.after)
        assert claimed_operator(caption.text) == claimed_operator(sample.captions[0])
    assert model.describe(same.before, same.after).text == NOTHING
    model.save_pretrained(tmp_path / "web")
    assert load(tmp_path / "web").describe(samples[1].before, samples[1].after) == model.describe(
        samples[1].before, samples[1].after
    )


@pytest.mark.parametrize(("kind", "gone", "new"), [("text", 0.4, 0.4), ("removed", 0.4, 0.0), ("spread", 0.0, 0.0)])
def test_marks_of_a_line_tell_what_happened_to_them(kind: str, gone: float, new: float) -> None:
    def line(sizes: list[int], gap: int) -> np.ndarray:
        image, left = np.full((3, 40, 300), 255, np.uint8), 20
        for size in sizes:
            image[:, 28 - size : 28, left : left + size] = 0
            left += size + gap
        return image

    sizes = [6, 9, 12, 6, 9, 12, 6, 9, 12, 15]
    before = line(sizes, 4)
    after = {
        "text": line([*sizes[:3], 8, 4, 8, 4, *sizes[7:]], 4),
        "removed": line([*sizes[:3], *sizes[7:]], 4),
        "spread": line(sizes, 6),
    }[kind]
    box = (20, 13, 220, 28)
    core = Core(box, box, (0, 0), (0, 0), (before != after).any(0))
    values = compare_lines(before, after, core, np.full(3, 255.0))
    if kind == "spread":
        assert values["mark_gap"] == 2 and values["along_step"] == 2 and values["mark_width"] == 0
    assert values["marks_gone"] == pytest.approx(gone, abs=0.2) and values["marks_new"] == pytest.approx(new, abs=0.2)
    assert (values["marks_new"] > 0) == (kind == "text") and (values["marks_gone"] > 0) == (kind != "spread")


def test_a_batch_of_one_pair_trains_and_unchanged_pairs_do_not_count_in_the_statistics() -> None:
    model = WebCaptioner(width=8, members=2, captions_per_pair=1)
    model.build()
    net: Any = model.net
    pages = [drawn("color", 1)[:2], drawn("remove", 2)[:2], (page(3), page(3))]
    text = sentence("color", "", "link")
    samples = [PairSample(str(n), *map(torch.from_numpy, pair), [text]) for n, pair in enumerate(pages)]  # type: ignore[arg-type]
    net.train()
    means = []
    for chosen in (samples[:2], samples):
        net.norm.reset_running_stats()
        model.encode(model.collate(chosen))
        means.append(net.norm.running_mean.clone())
    assert torch.equal(*means), "the third pair is unchanged"
    for one in ([samples[0]], [samples[2]]):
        assert torch.isfinite(model.encode(model.collate(one)).memory).all()
    assert torch.equal(net.norm.running_mean, means[1])


def test_other_captions_and_sizes_are_rejected(release: Path, captioner: WebCaptioner) -> None:
    with pytest.raises(ConfigError, match="image_size is 96; WebPairs keeps the size of screenshots"):
        WebPairs(str(release), image_size=96)
    before, after, _ = drawn("color", 0)
    batch = captioner.collate([PairSample("a", torch.from_numpy(before), torch.from_numpy(after), ["a red cube"])])
    with pytest.raises(DataError, match="the caption \\['a red cube'\\] is no sentence of WebCaptioner"):
        captioner.training_loss(captioner.encode(batch), batch)
