"""A user-defined captioner as in CONTRIBUTING.md: four methods suffice, in a file and in a notebook."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers.tiny import TinyNet, TinyPairs
from lightning.pytorch import Trainer
from PIL import Image
from torch import Tensor, nn

from lightning_idc import PairCaptioner
from lightning_idc.cli import IMPORTS, main
from lightning_idc.models.loading import load_captioner
from lightning_idc.models.schedules import Constant
from lightning_idc.nn.decoding.decoding import select_rows
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils import names
from lightning_idc.utils.errors import ConfigError

GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"
QUIET: dict[str, Any] = {
    "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip


def block() -> str:
    """Return the code of the captioner in CONTRIBUTING.md."""
    return next(code for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S) if "build_net" in code)


def trained(kind: Any, folder: Path) -> Path:
    model = kind(num_beams=3)
    trainer = Trainer(**QUIET, max_epochs=2, default_root_dir=folder, enable_checkpointing=False)
    trainer.fit(model, TinyPairs(batch_size=4))
    assert [len(record["caption"]) > 0 for record in model.predictions] == [True] * 7
    trainer.save_checkpoint(folder / "mine.ckpt")
    return folder / "mine.ckpt"


def test_the_captioner_of_contributing_trains_searches_and_is_described_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_of_readme.py").write_text(block())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(IMPORTS, "")  # the command changes this variable; restore it after the test
    monkeypatch.setattr(names, "MODULES", list(names.MODULES))
    for side in ("before", "after"):
        Image.new("RGB", (8, 8), (120, 130, 140)).save(f"{side}.png")
    from importlib import import_module

    path = trained(import_module("mine_of_readme").MyCaptioner, tmp_path)
    assert main(["describe", "before.png", "after.png", "--model", str(path), "--import", "mine_of_readme"]) == 0
    assert capsys.readouterr().out.strip()


def test_a_class_of_a_notebook_is_loaded_again_also_after_its_cell_ran_twice(tmp_path: Path) -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(block(), cell)
    path = trained(cell["MyCaptioner"], tmp_path)
    exec(block(), cell)
    assert type(load_captioner(path)) is cell["MyCaptioner"]


@dataclass
class _Data:
    hidden: Tensor
    width: int = 3


class _Named(NamedTuple):
    hidden: Tensor
    other: Tensor


class _Plain:
    def __init__(self, hidden: Tensor) -> None:
        self.hidden, self.note = hidden, None


class _Own:
    def select(self, rows: Tensor) -> Tensor:
        return rows * 2


def test_rows_are_chosen_of_whatever_a_state_is_made_of() -> None:
    values, rows = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2, 0, 2])
    chosen = values[rows]
    assert torch.equal(select_rows(values, rows), chosen)
    assert torch.equal(select_rows({"a": [values, 7]}, rows)["a"][0], chosen)
    assert torch.equal(select_rows(_Named(values, values), rows).other, chosen)
    state, plain = _Data(values), _Plain(values)
    assert torch.equal(select_rows(state, rows).hidden, chosen) and select_rows(state, rows).width == 3
    assert torch.equal(select_rows(plain, rows).hidden, chosen)
    assert torch.equal(state.hidden, values) and torch.equal(plain.hidden, values)
    assert torch.equal(select_rows(_Own(), rows), rows * 2)


class WithPart(PairCaptioner):
    """Has an argument of its own that accepts any object.

    Args:
        part: anything.
        options: of PairCaptioner.
    """

    def __init__(self, part: Any = None, **options: Any) -> None:
        super().__init__(**options)

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        return TinyNet(len(vocabulary))


@pytest.mark.parametrize(
    "part",
    [nn.Linear(2, 2), Path("weights.pt"), [Constant()], {"class_path": "torch.nn.Linear", "init_args": {}}],
    ids=["module", "path", "list", "class"],
)
def test_an_argument_that_no_checkpoint_can_hold_is_refused_before_training(part: Any, tmp_path: Path) -> None:
    """Checkpoints of such a run would be rejected when they are loaded, because loading them would run code."""
    options: dict[str, Any] = {**QUIET, "max_epochs": 1, "default_root_dir": tmp_path}
    with pytest.raises(ConfigError, match=r"argument 'part' of WithPart is .*create the object in build_net"):
        Trainer(**options).fit(WithPart(part), TinyPairs())
    model = WithPart(part)
    trainer = Trainer(**options, enable_checkpointing=False)
    trainer.fit(model, TinyPairs())
    with pytest.raises(ConfigError, match="'part' of WithPart"):
        trainer.save_checkpoint(tmp_path / "never.ckpt")
    assert not (tmp_path / "never.ckpt").exists()
    del model.hparams["part"]
    trainer.save_checkpoint(tmp_path / "mine.ckpt")
    assert isinstance(load_captioner(str(tmp_path / "mine.ckpt")), WithPart)


@pytest.mark.parametrize("part", [1, 0.5, "gelu", None, (1, 2), [[1.0]], {"width": 3}, torch.float16, torch.ones(2)])
def test_an_argument_of_plain_values_is_saved(part: Any, tmp_path: Path) -> None:
    model = WithPart(part)
    trainer = Trainer(**QUIET, max_epochs=1, default_root_dir=tmp_path)
    trainer.fit(model, TinyPairs())
    result = WithPart.load_from_checkpoint(trainer.checkpoint_callback.best_model_path).hparams["part"]  # type: ignore[union-attr]
    assert torch.equal(result, part) if isinstance(part, Tensor) else result == part
