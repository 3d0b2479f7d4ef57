"""The small commands, the two console scripts, and their start-up time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightning_idc.cli import VERBS, lightning, main
from lightning_idc.cli.recipes.shipped import shipped
from lightning_idc.models.loading import load_captioner
from lightning_idc.serve.opening import sample_pair
from lightning_idc.utils.errors import CheckpointError

ROOT = Path(__file__).resolve().parents[2]


HELPS = [["--help"], *([verb, "--help"] for verb in VERBS), ["data", "check", "--help"]]
LISTS = [
    *(["list", kind] for kind in ("recipes", "models", "data", "protocols")),
    ["list", "recipes", "quickstart"],
    ["list", "data", "folder"],
    ["--version"],
]
COMMANDS = """
import json, sys, time
began = time.process_time()
from lightning_idc.cli import main
for arguments in json.loads(sys.argv[1]):
    status = main(arguments)
    heavy = [name for name in ("torch", "lightning", "transformers", "numba") if name in sys.modules]
    assert status == 0 and not heavy, (arguments, status, heavy)
print(time.process_time() - began)
"""


def seconds_of(*commands: list[str]) -> tuple[float, list[str]]:
    """CPU seconds and output of commands in one new process, none of which may import a heavy package."""
    command = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    *lines, seconds = done.stdout.splitlines()
    return float(seconds), lines


@pytest.mark.slow
def test_help_and_lists_need_neither_torch_nor_lightning() -> None:
    _, lines = seconds_of(*HELPS, *LISTS)
    assert sum(line.startswith("usage: lightning-idc") for line in lines) == len(HELPS)


@pytest.mark.slow
def test_a_misspelt_key_is_reported_without_torch() -> None:
    code = (
        "import sys; from lightning_idc.cli import main; "
        "status = main(['run', 'quickstart', '--trainer.loger', 'x']); print(status, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "1 False\n" and "did you mean 'logger'?" in done.stderr


@pytest.mark.slow
def test_doctor_needs_neither_lightning_nor_torchvision() -> None:
    code = (
        "import sys; from lightning_idc.cli import main; main(['doctor']); "
        "print([name for name in ('lightning', 'torchvision', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.endswith("[]\n")


@pytest.mark.slow
def test_the_first_command_of_the_readme_imports_neither_torch_nor_lightning_until_it_must(tmp_path: Path) -> None:
    before, after = sample_pair("clevr")
    code = (
        f"import sys; from lightning_idc.cli import main; pair = [{str(before)!r}, {str(after)!r}]; "
        "main(['describe', *pair]); print('torch' in sys.modules); "
        "main(['describe', *pair, '--out', 'answer.png']); print('lightning' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert [line for line in done.stdout.splitlines() if line in ("True", "False")] == ["False", "False"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["describe", "--help"], ["run", "--help"]], ids=" ".join)
def test_help_answers_at_once(arguments: list[str]) -> None:
    assert seconds_of(arguments)[0] < 0.5


def test_a_verb_that_is_not_there_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tset"]) == 2
    assert "did you mean 'test'?" in capsys.readouterr().err


def test_the_reader_of_a_pipe_may_leave_early() -> None:
    command = f"{sys.executable} -m lightning_idc --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert "Traceback" not in done.stderr


def test_lightning_without_lightning_sdk_prints_a_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightning_sdk", None)
    assert lightning(["run", "job"]) == 2
    assert "lightning-sdk, which may know it, is not installed" in capsys.readouterr().err
    assert lightning(["run", "--help"]) == 0
    assert "lightning run quickstart" in capsys.readouterr().out


def test_lightning_forwards_what_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "lightning_sdk" / "cli"
    folder.mkdir(parents=True)
    (tmp_path / "lightning_sdk" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "entrypoint.py").write_text("import sys\ndef main_cli():\n    print('sdk', sys.argv[1:])\n    return 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lightning"])
    assert lightning(["run", "job", "--name", "x"]) == 3
    assert "sdk ['run', 'job', '--name', 'x']" in capsys.readouterr().out
    assert lightning(["list", "recipes"]) == 0, "our verbs stay ours"
    assert "quickstart" in capsys.readouterr().out
    assert lightning(["run", "gone.yaml"]) == 1, "and so does a recipe"


def test_recipes_and_data_modules_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "recipes", "quickstart"]) == 0
    assert capsys.readouterr().out == shipped()["quickstart"].read_text(encoding="utf-8")
    assert main(["list", "recipes", "quickstat"]) == 1
    assert "did you mean 'quickstart'?" in capsys.readouterr().err
    assert main(["list", "data", "folder"]) == 0
    assert "FolderPairs" in capsys.readouterr().out
    assert main(["list", "recipe"]) == 2


def test_doctor_finds_a_lightning_script_of_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "lightning"
    script.write_text("#!/bin/sh\n# from lightning_idc.cli import lightning\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert str(script) in printed and torch.__version__.split("+")[0] in printed and "GiB free" in printed
    script.write_text("#!/bin/sh\n# from lightning_sdk.cli.entrypoint import main_cli\n")
    assert main(["doctor"]) == 1
    assert "belongs to another package" in capsys.readouterr().out


def test_doctor_warns_of_versions_below_the_lower_bounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.metadata

    known = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.13" if name == "torch" else known(name))
    assert main(["doctor"]) == 1
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "torch 1.13 is installed" in line)
    assert said.startswith("problem: ") and "is expected" in said and "security" in said


@pytest.mark.parametrize(
    ("package", "version"), [("pyarrow", "14.0.0"), ("jinja2", "3.1.5"), ("lightning", "2.6.5"), ("ray", "2.51.1")]
)
def test_doctor_warns_of_versions_that_run_code(
    package: str, version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.metadata

    known = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == package else known(name))
    assert main(["doctor"]) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if f"{package} {version} has a known" in line]
    assert len(said) == 1 and said[0].startswith("problem: ") and f"pip install '{package}>=" in said[0]


def test_describe_prints_a_caption_as_text_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    from lightning_idc.models.pair_transformer.module import PairTransformer
    from lightning_idc.nn.vocabulary import Vocabulary

    words = Vocabulary.build(["the cube moved"]).words
    torch.manual_seed(0)
    model = PairTransformer(vocabulary=words, image_size=(32, 32), max_length=4, width=16, heads=2, grid=2)
    model.build()
    model.save_pretrained(tmp_path / "model")
    for name in ("before", "after"):
        Image.new("RGB", (40, 40), "white").save(tmp_path / f"{name}.png")
    images = [str(tmp_path / "before.png"), str(tmp_path / "after.png")]
    assert main(["describe", *images, "--model", str(tmp_path / "model"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"caption", "log_prob", "change_score", "boxes", "map", "size", "notes"} <= set(result)
    assert result["caption"] == model.describe(*images).text and result["size"] == [40, 40]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text('{"model_type": "qwen2_5_vl", "architectures": ["X"]}')
    for before, after, checkpoint, says in (
        (*images, "gone.ckpt", "gone.ckpt"),
        (images[0], str(tmp_path / "gone.png"), "model", "no such image file"),
        (images[0], "https://example.org/a.png", "model", "is a URL"),
        (*images, "before.png", "is an image (PNG); expected a checkpoint"),
    ):
        assert main(["describe", before, after, "--model", str(tmp_path / checkpoint)]) == 1
        printed = capsys.readouterr().err.splitlines()[-1]
        assert printed.startswith("error: ") and says in printed
    for folder, says in ((foreign, "is a model of transformers (qwen2_5_vl)"), (tmp_path, "has no config.json")):
        with pytest.raises(CheckpointError, match=re.escape(says)):
            load_captioner(folder)


def test_data_check_shows_hostile_ids_without_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b]0;owned\x07"
    (tmp_path / "captions.csv").write_text(f"id,before,after,captions,split\n{name},a.png,b.png,,train\n")
    assert main(["data", "check", "folder", "--root", str(tmp_path)]) == 1
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said and "\x07" not in said and "owned" in said


def test_data_check_names_the_bad_record_and_the_missing_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "check", "deepcpb"]) == 1
    assert "did you mean 'deeppcb'?" in capsys.readouterr().err
    assert main(["data", "check", "deeppcb"]) == 1
    assert "--root" in capsys.readouterr().err
    assert main(["data", "check", "deeppcb", "--root", str(tmp_path / "gone")]) == 1
    assert "gone" in "".join(capsys.readouterr())
    assert main(["list", "data"]) == 0
    assert "SyntheticPairs" in capsys.readouterr().out


@pytest.mark.slow
def test_data_check_passes_on_rendered_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--train_pairs", "3", "--val_pairs", "2", "--test_pairs", "2", "--render_size", "32"]
    assert main(["data", "check", "synthetic", "--cache_dir", str(tmp_path), "--progress", "false", *sizes]) == 0
    assert "no problems" in capsys.readouterr().out


def test_import_of_the_library_is_quick() -> None:
    code = "import time; began = time.process_time(); import lightning_idc; print(time.process_time() - began)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert float(done.stdout) < 0.5  # the limit for commands that need no heavy package


def test_a_stop_while_a_class_is_made_is_a_stop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Before Python 3.12, Ctrl+C in a class body raises RuntimeError, for example while a package is imported."""

    def importing(name: str) -> None:
        raise RuntimeError("Error calling __set_name__ on 'Field' instance") from KeyboardInterrupt()

    monkeypatch.setattr("lightning_idc.cli.importlib.import_module", importing)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "\nstopped\n"


@pytest.mark.parametrize(("method", "needed"), [("procap", "vocabulary"), ("procap_stage1", "procedures")])
def test_convert_names_a_missing_option_of_the_method(
    method: str, needed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "official.pt", tmp_path / "own.ckpt"
    source.write_bytes(b"weights")
    assert main(["convert", method, str(source), "--out", str(target)]) == 1
    assert (
        capsys.readouterr().err == f"error: convert {method} needs --{needed} VALUE; `lightning-idc convert --help`\n"
    )
