"""Values that no type excludes and that cannot work: one sentence with the argument, nothing saved, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.cli.training import PairCLI, gather

VALUES = {
    **dict.fromkeys(("model.heads 3", "model.heads 0", "model.heads -1"), "heads"),
    **dict.fromkeys(("model.width 0", "model.width -8"), "width"),
    **dict.fromkeys(("model.grid 0", "model.grid -1"), "grid"),
    **dict.fromkeys(("model.num_beams 0", "model.num_beams -1"), "num_beams"),
    **dict.fromkeys(("model.captions_per_pair 0", "model.captions_per_pair -2"), "captions_per_pair"),
    **dict.fromkeys(("model.dropout 2", "model.dropout -1", "model.dropout .nan"), "dropout"),
    "model.encoder_layers -1": "encoder_layers",
    **dict.fromkeys(("model.decoder_layers 0", "model.decoder_layers -1"), "decoder"),
    **dict.fromkeys(("model.max_length 0", "model.max_length -3"), "max_length"),
    **dict.fromkeys(("model.image_size [0,0]", "model.image_size [16]", "model.image_size [-1,4]"), "image_size"),
    "model.learning_rates {language: -1}": "learning_rates.language",
    "model.learning_rates {language: .nan}": "learning_rates.language",
    "model.vocabulary []": "vocabulary",
    **dict.fromkeys(("data.batch_size 0", "data.batch_size -1"), "batch_size"),
    "data.num_workers -1": "num_workers",
    **dict.fromkeys(("data.image_size 0", "data.image_size -3", "data.image_size [4,4,4]"), "image_size"),
    **dict.fromkeys(("data.limit 0", "data.limit -1"), "limit"),
    **dict.fromkeys(("data.bands []", "data.bands [7]", "data.bands [-1]"), "band"),
    "data.page -1": "page",
    "data.value_range [9,1]": "value_range",
    "data.fill_nan .nan": "fill_nan",
    **dict.fromkeys(("trainer.devices 0", "trainer.devices -5"), "devices"),
    "trainer.accelerator tpu": "torch_xla",
    "trainer.num_nodes 0": "num_nodes",
    "trainer.precision 7": "precision",
    "trainer.max_epochs -3": "max_epochs",
    "trainer.gradient_clip_val -1": "gradient_clip_val",
    "trainer.accumulate_grad_batches 0": "accumulate_grad_batches",
    **dict.fromkeys(("trainer.val_check_interval 0", "trainer.val_check_interval 99"), "val_check_interval"),
    "trainer.check_val_every_n_epoch 0": "check_val_every_n_epoch",
    "trainer.num_sanity_val_steps -5": "num_sanity_val_steps",
    "trainer.limit_train_batches -1": "limit_train_batches",
    "trainer.max_time never": "duration",
    **dict.fromkeys(("seed_everything -1", "seed_everything 99999999999"), "seed_everything"),
    "ckpt_path pairs/before/0.png": "is an image (PNG)",
    "ckpt_path https://example.org/best.ckpt": "an address of the network",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of two kinds, and a configuration that trains on them in a second."""
    folder = tmp_path_factory.mktemp("range")
    rows = ["id,before,after,captions,split"]
    for side in ("before", "after"):
        (folder / "pairs" / side).mkdir(parents=True)
    for number in range(4):
        for side, color in (("before", "white"), ("after", "red")):
            Image.new("RGB", (8, 8), color).save(folder / "pairs" / side / f"{number}.png")
        split = "train" if number < 2 else "val"
        rows.append(f"{number},before/{number}.png,after/{number}.png,it turned red,{split}")
    (folder / "pairs" / "captions.csv").write_text("\n".join(rows) + "\n")
    config = {
        "trainer": {"accelerator": "cpu", "logger": False, "enable_model_summary": False, "max_epochs": 1},
        "model": {
            "class_path": "PairTransformer",
            "init_args": {"width": 8, "heads": 1, "encoder_layers": 1, "decoder_layers": 1},
        },
        "data": {"class_path": "FolderPairs", "init_args": {"root": "pairs", "batch_size": 2, "image_size": 8}},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.mark.parametrize("given", VALUES)
def test_it_is_refused_with_one_sentence(
    place: Path, given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert main(["fit", "--config", "tiny.yaml", *f"--{given}".split(" ", 1)]) == 1
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert VALUES[given] in said and len(said) < 500
    assert not list(place.rglob("*.ckpt"))


def test_the_configuration_itself_trains(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else what is refused above could be refused for another reason."""
    monkeypatch.chdir(place)
    root = ["--trainer.default_root_dir", str(tmp_path)]
    assert main(["fit", "--config", "tiny.yaml", *root]) == 0
    assert list(tmp_path.rglob("*.ckpt"))


def test_arguments_belong_to_the_class_that_the_command_names(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    given = ["--config", "tiny.yaml", "--model.optimizer", "SGD", "--model.optimizer.lr", "0.5"]
    given += ["--model.schedule", "WarmupCosine", "--model.schedule.warmup", "0.25"]
    cli = PairCLI("fit", gather(given))
    cli.build()
    (group,) = cli.model.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups
    assert type(cli.model.schedule).__name__ == "WarmupCosine" and cli.model.schedule.warmup == 0.25
    assert group["lr"] == 0.5 and "momentum" in group
