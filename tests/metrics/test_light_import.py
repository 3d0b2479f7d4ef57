"""Scores without torch: the package, corpus scores and the pycocoevalcap drop-in import little more than numpy."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

HEAVY = {"torch", "torchmetrics", "lightning", "transformers", "pandas", "scipy", "numba", "PIL", "matplotlib"}
SCRIPT = """
import json, sys
import lightning_idc.metrics
from lightning_idc.metrics import Protocol, compare, evaluate, score_captions
from lightning_idc.metrics.coco import COCOEvalCap, Bleu, Meteor, Rouge, Cider, Spice, PTBTokenizer
texts = {1: ["the red cube moved"], 2: ["a ball is gone"]}
tokens = PTBTokenizer().tokenize({id: [{"caption": text} for text in of_image] for id, of_image in texts.items()})
assert tokens == texts
for scorer in (Bleu(4), Rouge(), Cider()):
    scorer.compute_score(texts, texts)
score_captions({"1": "the red cube moved"}, {"1": ["the cube moved"]})
print(json.dumps(sorted(sys.modules)))
"""


def test_scores_need_no_torch() -> None:
    process = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(json.loads(process.stdout))
    assert not loaded & HEAVY


def test_sources_of_the_wheel_work_without_this_package(tmp_path: Path) -> None:
    build = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "idc_metrics" / "build.py"))
    build["write_sources"](tmp_path)
    script = SCRIPT.replace("lightning_idc.metrics", "idc_metrics")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    loaded = json.loads(process.stdout)
    assert not any(name.split(".")[0] in HEAVY | {"lightning_idc"} for name in loaded)
    assert 'name = "idc-metrics"' in (tmp_path / "pyproject.toml").read_text()
