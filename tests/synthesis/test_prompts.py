"""Prompts, numbers and rules equal those of the authors, one by one; every deviation gives a reason."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from helpers.toy_stages import Canned
from torch import Tensor

from lightning_idc.methods.img_diff import prompts, removal
from lightning_idc.methods.img_diff.captions import _META_WORDS, PromptedEdits, clean_answer
from lightning_idc.methods.img_diff.filtering import suppress_overlap
from lightning_idc.methods.img_diff.judging import NaturalImages
from lightning_idc.methods.img_diff.painting import PaintPairs
from lightning_idc.methods.img_diff.presets import PRESETS
from lightning_idc.synthesis import drawing
from lightning_idc.synthesis.models.base import PairPainter, Region, VisionLanguageModel
from lightning_idc.synthesis.models.chat import VICUNA
from lightning_idc.synthesis.models.diffusion import DiffusionInpainter, PromptToPrompt, _SharedAttention
from lightning_idc.synthesis.models.pretrained import BlipMatcher
from lightning_idc.synthesis.models.sam import FastSamSegmenter, merge_regions
from lightning_idc.synthesis.records import Record

PAPER = Path(__file__).resolve().parents[2] / "recipes" / "paper"
REWRITTEN = "the paper's questions are those of the branch ImgDiff; data-juicer rewrote this one later"
DEFAULTS = "of data-juicer's operators without a recipe; the recipe of data-juicer overrides them"
JUICER_MODEL = "data-juicer's choice of a model; the paper names another, which the paper recipe has"
OTHER_PROMPTS = {
    "difference_unused": "commented out in the script",
    "dj_caption_edit": REWRITTEN,
    "dj_caption_edit_frame": REWRITTEN,
    "dj_caption_edit_vicuna_frame": REWRITTEN + "; with a run of spaces from a line continued inside the string",
    "dj_system": "FastChat's text, which VICUNA has, with runs of spaces from lines continued inside the string",
    "dj_region_caption": "the string of region_caption, with the box put in as one text",
    "dj_difference": REWRITTEN,
}
OTHER_NUMBERS = {
    "edit_seed_range": "a seed is drawn anew for every caption there; ours follows from a record's id, so that a "
    "resumed run draws the same",
    "edit_model_run": "section 18.3.2 names Vicuna-1.5-13B, the default of the script",
    "p2p_seed": "one generator for the whole run there; here a seed for each pair follows from its id, so that the "
    "pictures do not depend on the number of processes",
    "box_decimals": "our segmenters give whole pixels",
    "qa_turns_default": "the run script passes 5, which the preset has",
    "mllm": "section 18.3.2 names LLaVA-NeXT-13B",
    "removal_mask_threshold": "FastSAM's masks are cut at one half; SAM's are logits and are cut at 0, the same",
    "removal_inpaint_model_default": "the run script passes SDXL-turbo, which the paper names, too",
    "unnatural_tiles": "the checkpoint's processor decides how a picture is cut into tiles",
    "unnatural_tile_size": "the checkpoint's processor decides how large a tile is",
    "dj_edit_max_new_tokens": JUICER_MODEL,
    "dj_edit_temperature": JUICER_MODEL,
    "dj_edit_top_p": JUICER_MODEL,
    "dj_edit_model": JUICER_MODEL,
    "dj_crop_similarity_min": "a limit that leaves out crops that are more different than unrelated ones; neither the "
    "paper nor its scripts have one",
    "dj_mllm_max_new_tokens": JUICER_MODEL,
    "dj_mllm_temperature": "no do_sample is passed, so that it has no effect there",
    "dj_mllm": JUICER_MODEL,
    "dj_itm_model": JUICER_MODEL,
    "dj_area_defaults": DEFAULTS,
    "dj_caption_defaults": DEFAULTS,
    "dj_p2p_seed": "as p2p_seed: a fresh seed for every pair, here from its id",
}
PARTS = {"p2p_n_cross_replace": "default_", "dj_p2p_cross": "default_"}
"""The entry that is compared; "confetti" is the example caption of the repository that the scripts are made from."""
OTHER_RULES = {
    "changed_nouns": "a tagger of words and a list of lemmas are not shipped; all words that one caption has in place "
    "of the other's, without articles, are one text",
    "removal_nouns": "pairs without changed words on either side are dropped where captions are edited, before a pair "
    "is painted; the erased object itself is described, not looked up",
    "caption_pairs_left_padding": "a mask is passed, since without one an answer depends on what shares its batch",
    "dj_answer_cut": "only the new tokens of an answer are decoded, so no prompt stands before it",
}


@pytest.fixture(scope="module")
def authors(shared: Path) -> dict[str, Any]:
    file = shared / "parity" / "imgdiff_prompts.json"
    if not file.is_file():
        pytest.skip("imgdiff_prompts.json is not in the shared folder")
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", prompts.ORIGINS)
def test_prompts_equal_the_authors(authors: dict[str, Any], name: str) -> None:
    own, path, line = prompts.ORIGINS[name]
    theirs = next(prompt for prompt in authors["prompts"] if prompt["id"] == name)
    assert own == theirs["text"]
    assert (f"Img-Diff-codes/{path}", line, "ImgDiff") == (theirs["path"], theirs["line"], theirs["branch"])


def test_all_prompts_numbers_and_rules_are_covered(authors: dict[str, Any]) -> None:
    for kind, ours, others in (
        ("prompts", set(prompts.ORIGINS), OTHER_PROMPTS),
        ("numbers", set(our_numbers()), OTHER_NUMBERS),
        ("rules", set(RULES), OTHER_RULES),
    ):
        theirs = [entry["id"] for entry in authors[kind]]
        assert len(theirs) == len(set(theirs)) and not ours & set(others)
        assert ours | set(others) == set(theirs), kind
    assert [len(authors[kind]) for kind in ("prompts", "numbers", "rules")] == [15, 89, 20]
    active = [p["id"] for p in authors["prompts"] if p["branch"] == "ImgDiff" and p.get("active", True)]
    assert set(prompts.ORIGINS) == set(active), "all that the paper's branch asks"
    assert next(text["text"] for text in authors["paper"] if text["id"] == "cocot") == prompts.COCOT


def test_vicuna_template(authors: dict[str, Any]) -> None:
    assert VICUNA.replace("{prompt}", "{message}") == authors["templates"]["vicuna_v1"]["rendered"]


def default(kind: type, name: str) -> Any:
    return inspect.signature(kind).parameters[name].default


def of_recipe(name: str, kind: str) -> dict[str, Any]:
    """Return the arguments of the first class of that name in a recipe."""

    def search(value: Any) -> Any:
        if isinstance(value, dict):
            if str(value.get("class", "")).rpartition(".")[2] == kind:
                return {argument: setting for argument, setting in value.items() if argument != "class"}
            value = list(value.values())
        matches = (search(item) for item in value) if isinstance(value, list) else ()
        return next((item for item in matches if item is not None), None)

    matches = search(yaml.safe_load((PAPER / name).read_text(encoding="utf-8")))
    assert matches is not None, f"{kind} is not in {name}"
    return matches


def file_name(model: str) -> str:
    return model.rpartition("/")[2]


def our_numbers() -> dict[str, Any]:
    """Return our value of each of the authors' numbers, from the paper's recipes, the presets and the slots."""
    return {**of_edits_and_painting(), **of_replacement(), **of_removal(), **of_data_juicer()}


def of_edits_and_painting() -> dict[str, Any]:
    editor = of_recipe("img_diff.yaml", "ChatModel")
    painter = of_recipe("img_diff.yaml", "PromptToPrompt")
    return {
        "edit_max_new_tokens": editor["max_new_tokens"],
        "edit_temperature": editor["temperature"],
        "edit_model_default": file_name(editor["model"]),
        "p2p_model": file_name(painter["model"]),
        "p2p_edit_type": PromptToPrompt("x").settings()["control"].rpartition(" ")[2],
        "p2p_n_self_replace": painter["self_replace_steps"],
        "p2p_n_cross_replace": painter["cross_replace_steps"],
        "p2p_steps": painter["steps"],
        "p2p_guidance": painter.get("guidance", default(PromptToPrompt, "guidance")),
        "p2p_attn_res_divisor": 1024 // math.isqrt(most_shared_places()),
        "p2p_store_limit": most_shared_places(),
    }


def most_shared_places() -> int:
    """Return the largest number of positions at which a layer's self-attention is shared."""
    control: Any = SimpleNamespace(step=0, self_steps=20.0)
    layer = _SharedAttention(control, cross=False)
    return max(side * side for side in range(1, 200) if layer._is_shared(side * side))


def of_replacement() -> dict[str, Any]:
    scripts, paper = PRESETS["scripts"], PRESETS["paper"]
    sam, regions = of_recipe("img_diff.yaml", "SamSegmenter"), of_recipe("img_diff.yaml", "PromptedRegions")
    teller, matcher = of_recipe("img_diff.yaml", "PromptedTeller"), of_recipe("img_diff.yaml", "BlipMatcher")
    assert sam["confidence"] == default(FastSamSegmenter, "confidence") == paper.confidence
    assert scripts.match_margin == drawing.MARGIN and matcher["score"] == scripts.match_score == "cosine"
    assert scripts.area[1] == 1.0
    return {
        "image_similarity": list(paper.pair_similarity),
        "image_similarity_model": file_name(of_recipe("img_diff.yaml", "ClipImages")["model"]),
        "fastsam_imgsz": default(FastSamSegmenter, "size"),
        "fastsam_conf": sam["confidence"],
        "fastsam_iou": sam["overlap"],
        "fastsam_model": default(FastSamSegmenter, "model"),
        "itm_noun": paper.region_match,
        "itm_model": file_name(matcher["model"]),
        "crop_similarity": paper.crop_similarity,
        "box_iou": paper.overlap,
        "boxes_kept": scripts.max_regions,
        "box_min_area": scripts.area[0],
        "qa_turns_run": scripts.described_regions,
        "box_margin": drawing.MARGIN,
        "box_line": drawing.LINE,
        "bar": drawing.BAR,
        "region_max_new_tokens": regions["model"]["max_new_tokens"],
        "difference_max_new_tokens": teller["model"]["max_new_tokens"],
        "caption_similarity": paper.caption_similarity,
        "caption_itm": scripts.caption_match,
        "unnatural_bar": drawing.BAR,
        "unnatural_max_new_tokens": of_recipe("img_diff_evaluation.yaml", "ChatVisionModel")["max_new_tokens"],
    }


def of_removal() -> dict[str, Any]:
    erase, described = (of_recipe("img_diff_removal.yaml", name) for name in ("EraseObjects", "RemovedObjects"))
    inpainter = {name: default(DiffusionInpainter, name) for name in ("strength", "guidance", "steps", "size")}
    inpainter |= {k: v for k, v in erase["inpainter"].items() if k != "class"}
    sam, captioner = erase["segmenter"], described["captioner"]
    assert sam["confidence"] == erase["confidence"] and inpainter["size"] == erase["size"]
    return {
        "removal_size": [erase["size"]] * 2,
        "removal_fastsam_conf": erase["confidence"],
        "removal_fastsam_iou": sam["overlap"],
        "removal_fastsam_imgsz": default(FastSamSegmenter, "size"),
        "removal_crop_similarity": erase["max_similarity"],
        "removal_box_iou": erase["overlap"],
        "removal_objects": erase["max_objects"],
        "removal_strength": inpainter["strength"],
        "removal_guidance": inpainter["guidance"],
        "removal_steps": inpainter["steps"],
        "removal_region_max_new_tokens": captioner["model"]["max_new_tokens"],
        "removal_itm_present": described["present"],
        "removal_itm_absent": described["absent"],
        "removal_box_margin": removal.MARGIN,
        "removal_box_line": drawing.LINE,
        "removal_inpaint_model_run": file_name(inpainter["model"]),
    }


def of_data_juicer() -> dict[str, Any]:
    preset, painter = PRESETS["data_juicer"], of_recipe("img_diff.yaml", "PromptToPrompt")
    assert preset.match_margin == 0 and preset.area[0] == 0.0 and preset.match_score == "probability"
    return {
        "dj_image_similarity_min": preset.pair_similarity[0],
        "dj_image_similarity_max": preset.pair_similarity[1],
        "dj_crop_similarity_max": preset.crop_similarity,
        "dj_fastsam_imgsz": default(FastSamSegmenter, "size"),
        "dj_fastsam_conf": preset.confidence,
        "dj_fastsam_iou": default(FastSamSegmenter, "overlap"),
        "dj_caption_similarity_max": preset.caption_similarity,
        "dj_itm_min_area": preset.region_match,
        "dj_itm_min_caption": preset.caption_match,
        "dj_box_iou": preset.overlap,
        "dj_box_max_area": preset.area[1],
        "dj_box_margin": drawing.MARGIN,
        "dj_bar": drawing.BAR,
        "dj_box_line": drawing.LINE,
        "dj_p2p_steps": painter["steps"],
        "dj_p2p_guidance": painter.get("guidance", default(PromptToPrompt, "guidance")),
        "dj_p2p_self": painter["self_replace_steps"],
        "dj_p2p_cross": painter["cross_replace_steps"],
    }


def test_numbers_equal_the_authors(authors: dict[str, Any]) -> None:
    theirs = {number["id"]: number["value"] for number in authors["numbers"]}
    compared = {name: theirs[name][PARTS[name]] if name in PARTS else theirs[name] for name in our_numbers()}
    assert our_numbers() == compared
    assert theirs["mllm"] == "llava-v1.6-vicuna-7b" and theirs["removal_inpaint_model_default"].endswith("base-1.0")


def edited(answer: str, caption: str = "A dog sleeps.") -> Record:
    """Return the record after a language model gave this answer."""
    (record,) = PromptedEdits(Canned([answer])).transform([Record("a", {"caption": caption})])
    return record


def rule_edit_answer_dropped(rule: dict[str, Any]) -> None:
    assert list(_META_WORDS) == rule["words"]
    for word in rule["words"]:
        dropped = edited(f"It was {word.upper()}ed by a cat.").dropped
        assert dropped is not None and dropped["reason"] == "answer describes the edit"


def rule_edit_answer_cut(rule: dict[str, Any]) -> None:
    assert edited("Sure --- no --- A cat sleeps.").facts["captions"] == ["A dog sleeps.", "A cat sleeps."]


def rule_edit_answer_cleaned(rule: dict[str, Any]) -> None:
    prompt = prompts.CAPTION_EDIT.format(caption="A dog sleeps.")
    assert clean_answer(f"<s>{prompt} A cat sleeps. \nEND</s>", prompt) == "A cat sleeps."
    assert edited(f"{prompt} A cat sleeps.</s>").facts["captions"][1] == "A cat sleeps."


def rule_never_painted(rule: dict[str, Any]) -> None:
    """Editing leaves no such caption, so none is painted or scored."""
    for word in rule.get("words", ["replaced"]):
        assert edited(f"A dog, {word}, sleeps.").dropped is not None
    assert "---" not in edited("A cat --- sleeps --- well").facts["captions"][1]


def rule_paint_strip(rule: dict[str, Any]) -> None:
    class Painter(PairPainter):
        def settings(self) -> dict[str, Any]:
            return {}

        def paint(self, captions: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
            self.asked = list(captions)
            return [(torch.zeros(3, 8, 8, dtype=torch.uint8),) * 2 for _ in captions]

    record, painter = edited('"A cat sleeps."', '"A dog sleeps."'), Painter()
    PaintPairs(painter).transform([record])
    assert painter.asked == [("A dog sleeps.", "A cat sleeps.")]


def rule_second_picture_resized(rule: dict[str, Any]) -> None:
    record = Record("a", {})
    record.put("before", torch.zeros(3, 20, 30, dtype=torch.uint8))
    record.put("after", torch.zeros(3, 40, 50, dtype=torch.uint8))
    assert [image.shape for image in record.pair()] == [(3, 20, 30)] * 2


def rule_noun_match(rule: dict[str, Any]) -> None:
    assert {PRESETS[name].sides_to_match for name in ("paper", "scripts", "table17_4")} == {"one"}


def rule_boxes_of_both(rule: dict[str, Any]) -> None:
    merged = merge_regions([Region((0, 0, 5, 5), 0.2)], [Region((0, 0, 5, 5), 0.9), Region((1, 1, 3, 3), 0.1)])
    assert [region.image_index for region in merged] == [1, 0, 1]


def overlapping(preset: str) -> list[bool]:
    """Return which of two overlapping boxes are kept; the second one differs more between the images."""
    areas = [
        {"box": [0, 0, 100, 100], "similarity": 0.8, "dropped": None},
        {"box": [0, 0, 100, 90], "similarity": 0.1, "dropped": None},
    ]
    suppress_overlap(areas, PRESETS[preset])
    return [area["dropped"] is None for area in areas]


def rule_box_order(rule: dict[str, Any]) -> None:
    assert overlapping("scripts") == overlapping("paper") == [False, True]


def rule_dj_box_order(rule: dict[str, Any]) -> None:
    assert overlapping("data_juicer") == [True, False]


def rule_dj_noun_match(rule: dict[str, Any]) -> None:
    assert PRESETS["data_juicer"].sides_to_match == "both"


def rule_removal_both_pictures(rule: dict[str, Any]) -> None:
    first, second = Region((0, 0, 5, 5), 0.9, image_index=0), Region((8, 8, 14, 14), 0.9, image_index=1)
    pair = [torch.zeros(3, 16, 16, dtype=torch.uint8), torch.full((3, 16, 16), 255, dtype=torch.uint8)]
    pair[0][:, :8], pair[1][:, :8, :8] = 255, 0
    stage = removal.EraseObjects(max_similarity=2.0)
    assert [[r for r, _ in stage._select_objects(pair, [first, second], side)] for side in (0, 1)] == [
        [first],
        [second],
    ]


def rule_removal_side(rule: dict[str, Any]) -> None:
    for left, letter in ((True, "A"), (False, "B")):
        record = Record("a", {"areas": [{"captions": ["a cup"]}]})
        for name, value in (("with", 200), ("without", 0)):
            record.put(name, torch.full((3, 8, 8), value, dtype=torch.uint8))
        removal.add_question(record, object_left=left)
        assert record.facts["answer"] == letter and bool(record.image("before").any()) == left


def rule_unnatural_answer(rule: dict[str, Any]) -> None:
    class Says(VisionLanguageModel):
        def settings(self) -> dict[str, Any]:
            return {}

        def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
            return ["Yes.", "I do not know", "NO", "whatever"]

    records = [Record(str(number), {}) for number in range(4)]
    for record in records:
        record.put("before", torch.zeros(3, 8, 8, dtype=torch.uint8))
        record.put("after", torch.zeros(3, 8, 8, dtype=torch.uint8))
    made = NaturalImages(Says()).transform(records)
    assert [record.dropped is None for record in made] == [True, False, False, True]


RULES: dict[str, Callable[[dict[str, Any]], None]] = {
    **{name.removeprefix("rule_"): check for name, check in list(globals().items()) if name.startswith("rule_")},
    **dict.fromkeys(("paint_skips", "paint_skips_dashes", "similarity_skips"), rule_never_painted),
}
del RULES["never_painted"]


@pytest.mark.parametrize("name", RULES)
def test_rules_equal_the_authors(authors: dict[str, Any], name: str) -> None:
    RULES[name](next(rule for rule in authors["rules"] if rule["id"] == name))


def test_box_format_equals_the_authors() -> None:
    assert prompts.box_in_fractions([0, 20.5, 512, 51.2], [1024, 512]) == ["0.00", "0.02", "1.00", "0.05"]
    assert prompts.box_in_pixels([0, 20, 512, 51.5], [1024, 512]) == ["0.0", "20.0", "512.0", "51.5"]


def test_paper_recipes_use_the_authors_prompts() -> None:
    regions = of_recipe("img_diff.yaml", "PromptedRegions")
    assert "prompt" not in regions and regions.get("coordinates", "fractions") == "fractions"
    for name in ("PromptedTeller", "PromptedEdits"):
        assert "prompt" not in of_recipe("img_diff.yaml", name)
    assert "prompt" not in of_recipe("img_diff_removal.yaml", "DiffusionInpainter")
    assert default(DiffusionInpainter, "prompt") == prompts.REMOVAL_INPAINT
    removed = of_recipe("img_diff_removal.yaml", "PromptedRegions")
    assert "prompt" not in removed and removed["coordinates"] == "pixels", "section 19.2.4: the whole picture, the box"
    natural = of_recipe("img_diff_evaluation.yaml", "NaturalImages")
    assert "prompt" not in natural and natural["boxes"] is True
    assert default(BlipMatcher, "score") == "cosine"
