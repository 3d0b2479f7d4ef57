"""The pages about other programs, the cheat sheet and AGENTS.md are up to date: code runs, names exist."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from helpers.own_pairs import own_pairs

from lightning_idc.cli import VERBS, main
from lightning_idc.metrics import score_captions

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]


def code_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def run(code: str, page: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "page", "__file__": page}
    exec(compile(code, page, "exec"), namespace)
    return namespace


def test_code_of_the_page_about_scores_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for code in code_of("lightning_idc/metrics/README.md"):
        run(code, "metrics/README.md")
    rouge, meteor = (float(re.sub(r"tensor\((.*)\)", r"\1", line)) for line in capsys.readouterr().out.splitlines())
    expected = score_captions({"1": "the cube moved"}, {"1": ["the red cube moved", "a cube has moved"]})
    assert rouge == pytest.approx(expected.values["ROUGE-L"], abs=1e-3) and 0.5 < meteor < 1


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/tasks/lmms_eval.md", "docs/tasks/hub.md", "docs/tasks/plugins.md"])
def test_code_of_a_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = code_of(page)
    namespace = run(code, page)
    printed = capsys.readouterr().out
    if page.endswith("lmms_eval.md"):
        own, shuffled = map(float, printed.split())
        assert own > shuffled > 0
    elif page.endswith("plugins.md"):
        assert issubclass(namespace["BirdPairs"], importlib.import_module("lightning_idc.data").FolderPairs)


def test_rewards_of_the_page_go_to_trl_and_ms_swift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainers are stubs that record their arguments; tests/methods/policy runs TRL's own trainers."""
    monkeypatch.chdir(tmp_path)
    small = [
        "--train_pairs",
        "2",
        "--val_pairs",
        "1",
        "--test_pairs",
        "1",
        "--render_size",
        "16",
        "--cache_dir",
        "cache",
    ]
    command = "lightning-idc data export synthetic --out out_grpo --format trl --split train"
    page = (ROOT / "docs/tasks/other_trainers.md").read_text()
    assert command in page and main([*shlex.split(command)[1:], *small]) == 0
    trainers: list[Any] = []

    class Trainer(SimpleNamespace):
        def __init__(self, model: str, rewards: list[Any], **options: Any) -> None:
            super().__init__(model=model, rewards=rewards, **options)
            trainers.append(self)

        def train(self) -> None:
            rows = self.train_dataset
            texts = [[{"role": "assistant", "content": captions[0]}] for captions in rows["captions"]]
            columns = {name: list(rows[name]) for name in rows.column_names}
            self.values = [reward(completions=texts, **columns) for reward in self.rewards]

    trl, orms = ModuleType("trl"), ModuleType("swift.rewards")
    trl.GRPOTrainer, trl.GRPOConfig = Trainer, lambda *args, **options: options  # type: ignore[attr-defined]
    orms.orms = {}  # type: ignore[attr-defined]
    for name, module in (("trl", trl), ("swift", ModuleType("swift")), ("swift.rewards", orms)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    for code in code_of("docs/tasks/other_trainers.md"):
        run(code, "other_trainers.md")
    assert trainers[0].values[0] == [1.0, 1.0] and len(trainers[0].values[1]) == 2
    assert orms.orms["idc_facts"](args=None).__class__.__name__ == "FactsReward"


def test_exports_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the commands for a user's own folder; those for benchmarks need the benchmarks' files."""
    monkeypatch.chdir(tmp_path)
    own_pairs(tmp_path / "my_pairs", 12)
    page = (ROOT / "docs/tasks/other_trainers.md").read_text()
    commands = re.findall(r"^lightning-idc (data export folder .*)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert main(shlex.split(command)) == 0
    assert (tmp_path / "factory" / "dataset_info.json").is_file() and list((tmp_path / "table").glob("train-*.parquet"))


def test_the_cheat_sheet_names_what_is_there() -> None:
    text = (ROOT / "docs" / "cheat_sheet.md").read_text()
    assert len(text.splitlines()) <= 55, "one page"
    words = re.findall(r"`([^`]+)`", text)
    commands = [word.split()[1] for word in words if word.startswith("lightning-idc ")]
    assert set(commands) <= set(VERBS) and len(commands) >= 12
    paths = [word for word in words if ("/" in word and " " not in word) or word == "recipes"]
    assert all((ROOT / path).exists() for path in paths) and len(paths) >= 8
    names = [word for word in words if re.fullmatch(r"lightning_idc(\.\w+)+", word)]
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    assert len(names) >= 19


def test_agents_md_names_what_is_there() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    paths = [word for word in re.findall(r"`([\w./]+)`", text) if "/" in word and not word.startswith(".venv")]
    paths += re.findall(r"pytest -q (\S+)", text)
    assert len(paths) >= 8 and not [path for path in paths if not (ROOT / path).exists()]
    errors = importlib.import_module("lightning_idc.utils.errors")
    names = re.findall(r"`(\w+Error)`", text)
    assert names and all(hasattr(errors, name) for name in names)
