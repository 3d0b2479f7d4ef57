"""fit, test and similar commands, run in this process with checkpoints of the toy model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

from lightning_idc.callbacks.progress import PlainProgress, duration
from lightning_idc.cli import main
from lightning_idc.cli.checkpoint_data import with_checkpoint
from lightning_idc.cli.configuration import gather
from lightning_idc.cli.stage import PairCLI
from lightning_idc.utils.errors import CheckpointError

TRAINER = {"max_epochs": 1, "logger": False, "enable_model_summary": False, "accelerator": "cpu"}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write a configuration of the toy and return its path."""
    monkeypatch.chdir(tmp_path)

    def _write(name: str = "toy.yaml", trainer: Any = None, **model: Any) -> str:
        config = {
            "trainer": {**TRAINER, "default_root_dir": str(tmp_path), **(trainer or {})},
            "model": {"class_path": "toy_idc.Toy", "init_args": model},
            "data": {"class_path": "toy_idc.Numbers"},
        }
        (tmp_path / name).write_text(yaml.safe_dump(config), encoding="utf-8")
        return name

    return _write


def trained(folder: Path) -> Path:
    (result,) = folder.rglob("*.ckpt")
    return result


def built(verb: str, arguments: list[str]) -> PairCLI:
    cli = PairCLI(verb, gather(arguments))
    cli.build()
    return cli


@pytest.mark.slow
def test_fit_saves_a_checkpoint_of_plain_types_and_its_configuration(write: Any, tmp_path: Path) -> None:
    assert main(["fit", "--config", write()]) == 0
    assert torch.load(trained(tmp_path), weights_only=True)["hyper_parameters"]["width"] == 2
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["model"]["class_path"] == "toy_idc.Toy"


def test_the_saved_configuration_replaces_no_input_file(write: Any, tmp_path: Path) -> None:
    text = f"# mine\n{Path(write()).read_text()}"
    Path("config.yaml").write_text(text)
    assert main(["fit", "--config", "config.yaml"]) == 0
    assert Path("config.yaml").read_text() == text
    assert yaml.safe_load((tmp_path / "config_of_run.yaml").read_text())["model"]["class_path"] == "toy_idc.Toy"


def test_the_command_line_beats_the_file(write: Any, tmp_path: Path) -> None:
    assert main(["fit", "--config", write(width=3), "--model.width", "5"]) == 0
    assert torch.load(trained(tmp_path), weights_only=True)["hyper_parameters"]["width"] == 5


@pytest.mark.slow
def test_unset_options_come_from_the_checkpoint(write: Any, tmp_path: Path) -> None:
    assert main(["fit", "--config", write(width=5)]) == 0
    # the weights would not fit width 2, the default of the class
    assert main(["test", "--config", write(name="bare.yaml"), "--ckpt_path", str(trained(tmp_path))]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", "command line"])
def test_options_take_precedence_over_the_checkpoint(write: Any, tmp_path: Path, place: str) -> None:
    assert main(["fit", "--config", write(pause=0.001)]) == 0
    path = str(trained(tmp_path))
    asked = {"pause": 0.002} if place == "file" else {}
    more = [] if place == "file" else ["--model.pause", "0.002"]
    inputs = ["--config", write(name="again.yaml", **asked), "--ckpt_path", path, *more]
    assert built("test", inputs).model.pause == 0.002


@pytest.mark.slow
def test_a_checkpoint_of_another_class_lends_no_arguments(write: Any, tmp_path: Path) -> None:
    assert main(["fit", "--config", write(width=5)]) == 0
    text = Path(write(name="other.yaml", width=5)).read_text().replace("toy_idc.Toy", "toy_idc.Other")
    Path("other.yaml").write_text(text)
    inputs = ["--config", "other.yaml", "--ckpt_path", str(trained(tmp_path))]
    assert type(built("test", inputs).model).__name__ == "Other"


def test_a_missing_checkpoint_is_an_error(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", write(), "--ckpt_path", "gone.ckpt"]) == 1
    assert "there is no checkpoint 'gone.ckpt'" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.ckpt")), "it must not start afresh"


@pytest.mark.slow
def test_files_are_merged_and_callbacks_plus_appends(write: Any, tmp_path: Path) -> None:
    base = write(trainer={"callbacks": [{"class_path": "lightning.pytorch.callbacks.ModelCheckpoint"}]})
    more = {"trainer": {"callbacks+": [{"class_path": "lightning.pytorch.callbacks.LambdaCallback"}]}}
    Path("more.yaml").write_text(yaml.safe_dump({**more, "model": {"init_args": {"width": 7}}}))
    inputs = ["fit", "--config", base, "--config", "more.yaml"]
    assert len(gather(inputs[1:])["trainer"]["callbacks"]) == 2
    assert main(inputs) == 0
    assert torch.load(trained(tmp_path), weights_only=True)["hyper_parameters"]["width"] == 7


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model.widht", "3"], "did you mean 'width'"),
        (["--trainer.max_epoch=3"], "did you mean 'max_epochs'"),
        (["--model.width", "wide"], "wide"),
        (["--optimizer", "SGD"], "never be trained"),
        (["--config", "gone.yaml"], "there is no file 'gone.yaml'"),
    ],
)
def test_bad_arguments_end_in_one_message(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["fit", "--config", write(), *arguments]) == 1
    printed = capsys.readouterr().err
    assert says in printed and "Traceback" not in printed and len(printed.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.slow
def test_bad_input_while_training_ends_in_one_message_and_a_traceback_on_request(
    write: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(fail_at=2)
    assert main(["fit", "--config", config]) == 1
    assert capsys.readouterr().err.strip().splitlines()[-1] == "error: the training loss became nan at step 2"
    monkeypatch.setenv("LIGHTNING_IDC_TRACEBACK", "")  # so that monkeypatch restores it
    assert main(["fit", "--config", config, "--traceback"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_leaves_with_130(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*unused: Any) -> None:
        raise KeyboardInterrupt

    import toy_idc

    monkeypatch.setattr(toy_idc.Toy, "training_step", stop)
    assert main(["fit", "--config", write()]) == 130


def test_plain_progress_prints_seldom_and_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import toy_idc

    now = [100.0]

    class Clock(PlainProgress):
        def on_train_start(self, *arguments: Any) -> None:
            super().on_train_start(*arguments)
            now[0] += 1000.0  # one-time work before the first step

        def on_train_batch_start(self, *arguments: Any) -> None:
            super().on_train_batch_start(*arguments)
            now[0] += 4.0  # seconds per step

    monkeypatch.setattr("lightning_idc.callbacks.progress.time.monotonic", lambda: now[0])
    settings: dict[str, Any] = {**TRAINER, "enable_progress_bar": False, "enable_checkpointing": False}
    model, data = toy_idc.Toy(optimizer=lambda p: torch.optim.SGD(p, 0.1)), toy_idc.Numbers(items=20)
    Trainer(**settings, callbacks=[Clock(10.0)]).fit(model, datamodule=data)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    # ten steps of 4 s, and a line at the first step after every 10 s: after 3, 6 and 9 steps
    assert [line.split(" left")[0] for line in lines] == ["step 3/10, 0:28", "step 6/10, 0:16", "step 9/10, 0:04"]
    assert all("train/loss" in line for line in lines)


def test_durations() -> None:
    assert [duration(s) for s in (0, 61, 3723.4)] == ["0:00", "1:01", "1:02:03"]


@pytest.mark.slow
def test_without_a_model_the_class_and_its_arguments_come_from_the_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    from lightning_idc.data import SyntheticPairs
    from lightning_idc.models import PairTransformer
    from lightning_idc.nn.vocabulary import Vocabulary

    monkeypatch.chdir(tmp_path)
    words = Vocabulary.build(["the cube moved"]).words
    sizes: dict[str, Any] = {"train_pairs": 2, "val_pairs": 1, "test_pairs": 2, "render_size": 32}
    data = SyntheticPairs(cache_dir=str(tmp_path / "cache"), progress=False, batch_size=2, **sizes)
    model = PairTransformer(vocabulary=words, max_length=4, width=16, heads=2, grid=2)
    trainer = Trainer(**{**TRAINER, "default_root_dir": tmp_path}, fast_dev_run=True, barebones=False)
    trainer.fit(model, datamodule=data)
    trainer.save_checkpoint("kept.ckpt")
    flags = [f"--data.{key}={value}" for key, value in sizes.items()]
    inputs = ["--ckpt_path", "kept.ckpt", "--data", "SyntheticPairs", "--data.cache_dir", "cache", *flags]
    cli = PairCLI(
        "test", with_checkpoint(gather([*inputs, "--trainer.accelerator", "cpu", "--trainer.logger", "false"]))
    )
    cli.build()
    assert type(cli.model) is PairTransformer and cli.model.hparams["width"] == 16
    with pytest.raises(CheckpointError, match="does not store its class"):
        torch.save({"state_dict": {}}, "bare.ckpt")
        with_checkpoint(gather(["--ckpt_path", "bare.ckpt"]))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--trainer.accelerator", "gpu"], "--trainer.accelerator cpu"),
        (["--trainer.devices", "0"], "devices"),
        (["--trainer.logger", "WandbLogger"], "pip install -U 'wandb"),
        (["--trainer.callbacks+", "ModelCheckpont"], "did you mean 'ModelCheckpoint'"),
        (["--data.batch_size", "0"], "batch_size"),
        (["--model.width", "-1"], "-1"),
    ],
)
def test_missing_hardware_and_invalid_values_raise_a_one_line_error(
    write: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["fit", "--config", write(), *arguments]) == 1
    printed = capsys.readouterr().err.strip().splitlines()[-1]
    assert printed.startswith("error: ") and says in printed


@pytest.mark.slow
def test_a_logger_is_switched_on_by_its_name(write: Any, tmp_path: Path) -> None:
    assert main(["fit", "--config", write(), "--trainer.logger", "CSVLogger"]) == 0
    (written,) = tmp_path.rglob("hparams.yaml")
    assert written.parent.parent.name == "lightning_logs"
    more = ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "mine"]
    assert main(["fit", "--config", write(), *more]) == 0
    assert list((tmp_path / "mine").rglob("hparams.yaml"))


@pytest.mark.slow
def test_a_checkpoint_of_other_arguments_raises_a_one_line_error(write: Any, tmp_path: Path, capsys: Any) -> None:
    assert main(["fit", "--config", write(width=5)]) == 0
    inputs = ["test", "--config", write(name="again.yaml", width=3), "--ckpt_path", str(trained(tmp_path))]
    assert main(inputs) == 1
    assert "the checkpoint was written by another model" in capsys.readouterr().err.strip().splitlines()[-1]
