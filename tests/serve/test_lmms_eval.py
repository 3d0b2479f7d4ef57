"""lmms-eval scores a captioner of this library on exported pairs with the same result as this library.

lmms-eval is not in the lock file. The test runs if it is installed, or with the Python of LIGHTNING_IDC_LMMS_EVAL.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.tiny import TinyPairs

import lightning_idc
from lightning_idc.cli.data import data_modules
from lightning_idc.data import SyntheticPairs
from lightning_idc.data.export.files import export_pairs
from lightning_idc.metrics import score_captions
from lightning_idc.metrics.captions import STANDARD_METRICS
from lightning_idc.serve.lmms_eval import TASKS, scoring
from lightning_idc.utils.names import class_of

torch.set_num_threads(1)
NAMES = {
    "idc_clevr_change",
    "idc_clevr_dc",
    "idc_spot_the_diff",
    "idc_image_editing_request",
    "idc_birds_to_words",
    "idc_levir_cc",
    "idc_omnidiff",
    "idc_difference_list",
}


class Loader(yaml.SafeLoader):
    """YAML as lmms-eval reads it: ``!function`` names a function by its path."""


def named_function(loader: yaml.Loader, node: yaml.Node) -> Any:
    module, _, name = loader.construct_scalar(node).rpartition(".")
    return getattr(importlib.import_module(module), name)


Loader.add_constructor("!function", named_function)


def tasks() -> dict[str, dict[str, Any]]:
    """Return the configuration of every task by name."""
    configs = {}
    for path in sorted(TASKS.glob("*.yaml")):
        config = yaml.load(path.read_text(), Loader)
        base = yaml.load((TASKS / config["include"]).read_text(), Loader) if "include" in config else {}
        configs[config["task"]] = {**base, **config}
    return configs


def documents() -> list[dict[str, Any]]:
    """Return rows of an export, of which every third pair is unchanged."""
    source = TinyPairs(6).pairs_of("train")
    rows = [{"id": id, "captions": source.captions(n), "change_type": "move"} for n, id in enumerate(source.ids)]
    for row in rows[::3]:
        row.update(captions=["nothing has changed"], change_type="no_change")
    return rows


def test_every_task_scores_under_a_protocol_with_its_baselines() -> None:
    assert set(tasks()) == NAMES
    for name, config in tasks().items():
        rows = documents()
        if name == "idc_difference_list":  # each sentence of the references is a difference
            rows = [{**row, "captions": row["captions"][:1]} for row in rows]
        answers = [row["captions"][0] for row in rows]
        records = [config["process_results"](row, [text]) for row, text in zip(rows, answers, strict=True)]
        assert records[0].keys() == {entry["metric"] for entry in config["metric_list"]}
        protocol = next(iter(records[0].values()))["protocol"]
        benchmark = data_modules().get(name.removeprefix("idc_"))
        assert protocol == ("difference-list" if benchmark is None else class_of(benchmark).protocol)
        values = {
            entry["metric"]: entry["aggregation"]([record[entry["metric"]] for record in records])
            for entry in config["metric_list"]
        }
        assert list(config["dataset_kwargs"]["data_files"]) == [config["test_split"]]
        if name == "idc_difference_list":
            assert values["specificity"] == values["recall"] == 100 > values["F1_shuffled"]
        else:
            captions = {row["id"]: text for row, text in zip(rows, answers, strict=True)}
            expected = score_captions(captions, {row["id"]: row["captions"] for row in rows}).values
            multi = name == "idc_omnidiff"  # one paragraph per pair
            assert multi or values["CIDEr-D"] == pytest.approx(expected["CIDEr-D"])
            assert values["CIDEr-D"] > values["CIDEr-D_constant"] and values["CIDEr-D"] > values["CIDEr-D_shuffled"]


def test_images_are_those_of_the_row() -> None:
    from PIL import Image

    row = {"before": Image.new("L", (2, 2), 7), "after": Image.new("RGB", (2, 2), (1, 2, 3)), "prompt": "what?"}
    assert [image.getpixel((0, 0)) for image in scoring.images(row)] == [(7, 7, 7), (1, 2, 3)]
    assert scoring.prompt(row) == "what?"


def lmms_python() -> str:
    python = os.environ.get("LIGHTNING_IDC_LMMS_EVAL", sys.executable)
    script = "import importlib.util as u; raise SystemExit(u.find_spec('lmms_eval') is None)"
    if subprocess.run([python, "-c", script], check=False).returncode:
        pytest.skip("lmms-eval is not installed: pip install 'lightning_idc[lmms_eval]'")
    return python


@pytest.mark.slow
def test_the_command_line_of_lmms_eval_scores_a_captioner(tmp_path: Path) -> None:
    python = lmms_python()
    names = ("clevr_change", "spot_the_diff", "levir_cc")
    pairs = SyntheticPairs(
        train_pairs=2, val_pairs=1, test_pairs=4, render_size=(96, 144), cache_dir=tmp_path / "cache", progress=False
    )
    export_pairs(pairs, tmp_path / "exported" / names[0], "parquet", ["test"])
    for name in names[1:]:
        shutil.copytree(tmp_path / "exported" / names[0], tmp_path / "exported" / name)
    command = [python, "-m", "lmms_eval", "--model", "lightning_idc", "--model_args", "pretrained=clevr,device=cpu"]
    command += ["--tasks", ",".join(f"idc_{name}" for name in names), "--include_path", str(TASKS)]
    command += ["--batch_size", "1", "--output_path", "out", "--log_samples"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_DATASETS_OFFLINE": "1"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout + run.stderr
    (path,) = (tmp_path / "out").rglob("*_results.json")
    results = json.loads(path.read_text())["results"]
    captioner, source = lightning_idc.load("clevr", device="cpu"), pairs.pairs_of("test")
    captions, references = {}, {}
    for index, id in enumerate(source.ids):
        pair = source.load(index)
        captions[id], references[id] = captioner.describe(pair.before, pair.after).text, pair.captions
    expected = score_captions(captions, references, STANDARD_METRICS).values
    for name in names:
        found = results[f"idc_{name}"]
        for metric in ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D"):
            assert found[f"{metric},none"] == pytest.approx(expected[metric])
        assert found["CIDEr-D_shuffled,none"] >= 0
