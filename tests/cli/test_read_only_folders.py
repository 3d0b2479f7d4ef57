"""Evaluation in two processes where nothing can be written: one sentence each, and none waits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import lightning
import pytest
import torch
from PIL import Image

import lightning_idc
from lightning_idc.models import PairTransformer

WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Root may write into folders that nobody can write to; without these two rights it cannot either."""


@pytest.fixture
def current(tmp_path: Path) -> Path:
    """A current folder, and beside it data with a checkpoint, that cannot be written to."""
    data, folder = tmp_path / "data", tmp_path / "current"
    data.mkdir()
    folder.mkdir()
    rows = ["id,before,after,caption,split"]
    for number in range(3):
        for side in "ab":
            Image.new("RGB", (16, 16), (60 * number, 9, 9)).save(data / f"{number}{side}.png")
        rows.append(f"{number},{number}a.png,{number}b.png,a,test")
    (data / "pairs.csv").write_text("\n".join(rows) + "\n")
    sizes = {"width": 8, "encoder_layers": 1, "decoder_layers": 1, "heads": 1, "max_length": 4, "image_size": (16, 16)}
    model = PairTransformer(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "a"], no_change_captions=["a"], **sizes)
    model.build()
    content = {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams), "loops": {}}
    content |= {"class_path": "lightning_idc.models.PairTransformer", "epoch": 0, "global_step": 0}
    torch.save({**content, "pytorch-lightning_version": lightning.__version__}, data / "model.ckpt")
    for path in (*data.iterdir(), data, folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return folder


@pytest.mark.slow
@pytest.mark.dist
def test_two_processes_test_where_nothing_can_be_written(current: Path) -> None:
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and setpriv is not there to take that right away")
    command = [*(WITHOUT_RIGHTS if os.geteuid() == 0 else []), sys.executable, "-m", "lightning_idc", "test"]
    command += ["--model", "PairTransformer", "--data", "FolderPairs", "--data.root", "../data"]
    command += ["--data.image_size", "16", "--ckpt_path", "../data/model.ckpt"]
    command += ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    environment = {**os.environ, "PYTHONPATH": str(Path(lightning_idc.__file__).parents[1])}
    done = subprocess.run(command, cwd=current, env=environment, capture_output=True, text=True, timeout=200)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    errors = [line for line in said.splitlines() if "error: " in line]
    assert done.returncode == 1 and 1 <= len(errors) <= 2, said
    assert sum("cannot be used" in line and "--trainer.default_root_dir" in line for line in errors) == 1, said
    assert not list(current.iterdir())
