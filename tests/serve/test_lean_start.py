"""A verb that only asks a captioner starts without what torchmetrics and Lightning import for other purposes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.tiny_models import make_llava

import lightning_idc
from lightning_idc.cli import main
from lightning_idc.models.where import locate

# the command as the script `lightning-idc` runs it, what is imported then, and whether the rest still can be: a
# vision-language model needs transformers, and Lightning must know a compiled module
COMMAND = """
import json, sys
from lightning_idc.cli import main
status = main()
print(json.dumps([status, sorted(sys.modules)]))
status = main([*sys.argv[1:4], "--model", FOLDER, "--no-where", "--json"])
import torch
from lightning.fabric.wrappers import OptimizedModule, _unwrap_compiled
from lightning_utilities.core.imports import RequirementCache
layer = torch.nn.Linear(1, 1)
before = isinstance(layer, OptimizedModule)
compiled = torch.compile(layer)
import scipy.signal, torchvision, transformers
print(json.dumps([status, before, _unwrap_compiled(compiled)[0] is layer, bool(RequirementCache("torchvision"))]))
"""


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision-language model as the hub has it."""
    return make_llava(tmp_path_factory.mktemp("stock"))


def test_describe_starts_lean_and_answers_as_ever(stock: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pair = [str(path) for path in lightning_idc.sample_pair()]
    command = [sys.executable, "-c", COMMAND.replace("FOLDER", repr(str(stock))), "describe", *pair, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stderr
    answer, first, second, rest = map(json.loads, done.stdout.splitlines())
    status, imported = first
    assert status == 0 and {"lightning.pytorch", "torchmetrics"} <= set(imported)
    unwanted = {"torchvision", "transformers", "scipy", "matplotlib", "sympy", "triton", "torch._dynamo"}
    assert not unwanted & {*imported, *(name.partition(".")[0] for name in imported)}
    assert second["caption"] is not None and rest == [0, False, True, True]
    assert "leaked" not in done.stderr and "Traceback" not in done.stderr

    assert main(["describe", *pair, "--json"]) == 0  # in a process that has imported everything
    here = json.loads(capfd.readouterr().out)
    for number in ("log_prob", "change_score"):
        assert answer.pop(number) == pytest.approx(here.pop(number), abs=1e-5)
    torch.testing.assert_close(torch.tensor(answer.pop("map")), torch.tensor(here.pop("map")), atol=2e-4, rtol=0)
    assert answer == here  # caption, boxes, size, notes


def test_where_is_the_same_though_each_image_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    captioner = lightning_idc.load("clevr", device="cpu")
    sample = captioner.input_spec.read(*lightning_idc.sample_pair())
    read: list[int] = []
    captioner.built_net.backbone.layers.register_forward_pre_hook(lambda _, images: read.append(len(images[0])))
    caption = captioner.describe(*lightning_idc.sample_pair()).text
    read.clear()
    once = locate(captioner, sample, caption)
    assert sum(read) <= 0.6 * 2 * 129
    monkeypatch.setattr(captioner, "encode_repeated", captioner.encode)
    read.clear()
    again = locate(captioner, sample, caption)
    assert sum(read) == 2 * 129 and once.boxes == again.boxes and once.peak == again.peak
    torch.testing.assert_close(once.map, again.map, atol=1e-4, rtol=0)
