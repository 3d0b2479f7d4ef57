"""Evaluation in two processes that cannot write anything ends with one-line errors, and neither process hangs."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import lightning
import pytest
import torch
from helpers.processes import forking_python
from PIL import Image

import lightning_idc
from lightning_idc.models import PairTransformer

WITHOUT_RIGHTS = """
import ctypes, os, runpy, sys

if os.geteuid() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # _LINUX_CAPABILITY_VERSION_3
    assert libc.capget(header, sets) == 0
    for number in range(3):  # effective, permitted, inheritable
        sets[number] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
sys.executable, option, module, *sys.argv[1:] = sys.argv[1:]
assert option == "-m"
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Root can write to read-only folders; without these two capabilities it cannot."""


@pytest.fixture
def current(tmp_path: Path) -> Path:
    """A read-only current folder, and next to it read-only data with a checkpoint."""
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
    # Lightning also starts the second process with this file
    python = current.parent / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join([forking_python(), "-c", WITHOUT_RIGHTS])} "$0" "$@"\n')
    python.chmod(0o755)
    command = [str(python), "-m", "lightning_idc", "test"]
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
