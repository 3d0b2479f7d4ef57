"""Recipes share what they have in common, and expand to what each of them said in full before they did.

``expansions/`` holds the configuration of every stage of every recipe as it was then, made by the code of then.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from lightning_idc.checkpoints.reading import TRAINING_ONLY
from lightning_idc.cli.recipe import Recipe, Stage, choices, load
from lightning_idc.utils.names import with_full_names

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
FULL = {path.stem.replace("__", "/"): path for path in sorted((Path(__file__).parent / "expansions").glob("*.json"))}
DATA = ("clevr_change", "spot_the_diff", "image_editing_request")
MERGED: dict[str, tuple[str, dict[str, str]]] = {
    "paper/grid_features_clevr_change": ("paper/grid_features", {}),
    "paper/procap_clevr_change_official": ("paper/procap", {"dataset": "clevr_change_official"}),
    "paper/m3diff": ("paper/m3diff", {"model": "llava_onevision", "ablation": "full"}),
    "paper/m3diff_internvl3": ("paper/m3diff", {"model": "internvl3", "ablation": "full"}),
    "paper/m3diff_qwen2_5_vl": ("paper/m3diff", {"model": "qwen2_5_vl", "ablation": "full"}),
    **{f"paper/clip4idc_{data}": ("paper/clip4idc", {"dataset": data, "clip_weights": "float32"}) for data in DATA[:2]},
    **{f"paper/procap_{data}": ("paper/procap", {"dataset": data}) for data in DATA},
    **{f"paper/namc_{phase}": ("paper/namc", {"phase": phase}) for phase in ("pretrain", "finetune")},
    **{
        f"paper/{method}_{data}": ("paper/adpo", {"method": method, "dataset": data, "gpus": "two"})
        for method in ("sft", "dpo", "adpo")
        for data in DATA
    },
}
"""Recipes that became one entry of a matrix."""


CHANGED = {
    "quickstart": "more pairs, each seen less often and with one caption, and the backbone's features kept",
    "adpo": "60 % vague captions, negatives as often as said, SFT of equal compute: the setting that shows the effect",
    "deeppcb": "boards at full resolution, read as one picture of what differs, and defects that are counted",
    "paper/namc_pretrain": "the field's ResNet-101 weights, bicubic, and NIM's own fall of the learning rate",
    "paper/namc_finetune": "the same weights, and one caption of each pair",
    **{f"paper/{method}_{data}": "weights are sharded" for method in ("sft", "dpo", "adpo") for data in DATA},
    **{f"paper/procap_{data}": "frames by VFIformer" for data in (*DATA, "clevr_change_official")},
    **{
        f"paper/clip4idc_{data}": "bicubic, a step of one size on any machine, and the authors' rates and decay"
        for data in DATA[:2]
    },
    "paper/m3diff": "train and validation splits and the weights of Table 9; a checkpoint every 200 steps",
    "paper/m3diff_internvl3": "the same",
    "paper/m3diff_qwen2_5_vl": "the same",
}
"""Recipes that say something else than before, on purpose, and what."""


def effective(stages: list[Stage]) -> list[dict[str, Any]]:
    """What each stage runs with: one that loads the checkpoint of another takes from it what it does not say."""
    found, fits = [], {}
    for stage in stages:
        config = json.loads(json.dumps(stage.config))
        config.pop("verbose", None)  # ShowResults itself turns off the table that would repeat its own
        model = config.get("model") or {}
        if stage.run == "fit":
            fits[stage.name] = model
        elif same := [name for name, fit in fits.items() if fit.get("class_path") == model.get("class_path")]:
            config.setdefault("ckpt_path", f"${{stages.{same[-1]}.best}}")  # the rule of the runner
        of = config.get("ckpt_path", "").removeprefix("${stages.").removesuffix(".best}")
        if stage.run != "fit" and of in fits:
            trained = {k: v for k, v in (fits[of].get("init_args") or {}).items() if k not in TRAINING_ONLY}
            model["init_args"] = {**trained, **(model.get("init_args") or {})}
        found.append({"name": stage.name, "run": stage.run, "config": with_full_names(config)})
    return found


@pytest.mark.slow
def test_no_recipe_of_before_is_missing() -> None:
    entries = {
        (path.relative_to(ROOT / "recipes").with_suffix("").as_posix(), tuple(sorted(choice.items())))
        for path in RECIPES
        if path.parent.name != "_base"
        for choice in choices(path, {})
    }
    now = {(name, tuple(sorted(choice.items()))) for name, choice in (MERGED.get(old, (old, {})) for old in FULL)}
    assert len(FULL) == 41 and now <= entries


@pytest.mark.parametrize("name", FULL)
def test_a_recipe_expands_to_what_it_said_in_full(name: str) -> None:
    smoke, *stages = json.loads(FULL[name].read_text(encoding="utf-8"))
    file, choice = MERGED.get(name, (name, {}))
    recipe: Recipe = load(ROOT / "recipes" / f"{file}.yaml", choice)
    before, now = effective([Stage(**stage) for stage in stages]), effective(recipe.stages)
    if name in CHANGED:
        assert now != before, "it is as before: take it off the list"
        return
    assert [(stage["name"], stage["run"]) for stage in now] == [(stage["name"], stage["run"]) for stage in before]
    for was, found in zip(before, now, strict=True):
        assert found["config"] == was["config"], found["name"]
    assert (recipe.about.get("smoke") or {}) == smoke["smoke"]


def lines_in_common() -> tuple[int, int]:
    """Lines, without comments, that stand in a block of eight lines of another recipe; all lines."""
    lines = {
        path: [line for line in path.read_text(encoding="utf-8").splitlines() if line.split("#")[0].strip()]
        for path in RECIPES
    }
    blocks: dict[tuple[str, ...], set[Path]] = {}
    for path, own in lines.items():
        for start in range(len(own) - 7):
            blocks.setdefault(tuple(own[start : start + 8]), set()).add(path)
    shared = 0
    for own in lines.values():
        starts = [start for start in range(len(own) - 7) if len(blocks[tuple(own[start : start + 8])]) > 1]
        shared += len(set(itertools.chain.from_iterable(range(start, start + 8) for start in starts)))
    return shared, sum(map(len, lines.values()))


def test_what_recipes_share_stands_once() -> None:
    shared, total = lines_in_common()
    assert total > 1000 and shared / total < 0.1, f"{shared} of {total} lines"
