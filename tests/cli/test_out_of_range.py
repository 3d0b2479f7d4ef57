"""Unusable values get one error sentence with the argument, nothing is saved, and there is no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.cli.configuration import gather
from lightning_idc.cli.stage import PairCLI

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
    "model.learning_rates {language: -1}": "learning_rates",
    "model.learning_rates {language: .nan}": "learning_rates",
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
    **dict.fromkeys(("model.heads 1e9", "model.heads 2.5", "model.heads x", "model.heads [1]"), "heads"),
    **dict.fromkeys(("model.width .nan", "model.width .inf", "model.width 2.5"), "width"),
    "model.width null": "width",
    **dict.fromkeys(("model.encoder_layers -5", "model.encoder_layers 1.5"), "encoder_layers"),
    **dict.fromkeys(("model.decoder_layers 2.5", "model.decoder_layers x"), "decoder_layers"),
    **dict.fromkeys(("model.dropout 1.5", "model.dropout .inf", "model.dropout x", "model.dropout -.inf"), "dropout"),
    **dict.fromkeys(("model.grid 2.5", "model.grid x", "model.grid -7"), "grid"),
    **dict.fromkeys(("model.num_beams 1.5", "model.num_beams .nan"), "num_beams"),
    **dict.fromkeys(("model.captions_per_pair 1.5", "model.captions_per_pair .nan"), "captions_per_pair"),
    **dict.fromkeys(("model.max_length 1.5", "model.max_length .nan", "model.max_length -1"), "max_length"),
    **dict.fromkeys(("model.min_word_count 0", "model.min_word_count -1", "model.min_word_count x"), "min_word_count"),
    **dict.fromkeys(("model.image_size [1,2,3]", "model.image_size x", "model.image_size [0,8]"), "image_size"),
    **dict.fromkeys(("model.learning_rates {language: -.inf}", "model.learning_rates {language: x}"), "learning_rates"),
    **dict.fromkeys(("model.counts -1", "model.counts x", "model.in_channels 0", "model.in_channels -3"), ""),
    **dict.fromkeys(("model.backbone nothing", "model.backbone ''", "model.backbone ../x"), "timm has no model"),
    **dict.fromkeys(("model.adapters {a: 1}", "model.adapters {a: {class_path: os.system}}"), "adapter"),
    "model.optimizer nothing": "optimizer",
    "model.optimizer os.system": "model",
    **dict.fromkeys(("data.batch_size 1.5", "data.batch_size x", "data.batch_size .inf"), "batch_size"),
    **dict.fromkeys(("data.num_workers -9", "data.num_workers 0.5"), "num_workers"),
    **dict.fromkeys(("data.image_size [0,8]", "data.image_size x", "data.image_size 1.5"), "image_size"),
    **dict.fromkeys(("data.limit 1.5", "data.limit x"), "limit"),
    **dict.fromkeys(("data.shares [1,1,1]", "data.shares [2,-1,0]", "data.shares [1]", "data.shares x"), "shares"),
    **dict.fromkeys(("data.on_bad maybe", "data.on_empty 5"), "on_"),
    **dict.fromkeys(("data.interpolation cubic", "data.interpolation 3"), "interpolation"),
    **dict.fromkeys(("data.page 1.5", "data.page x"), "page"),
    **dict.fromkeys(("data.value_range [1,1]", "data.value_range [0]", "data.value_range [0,.nan]"), "value_range"),
    **dict.fromkeys(("data.fill_nan .inf", "data.fill_nan x"), "fill_nan"),
    **dict.fromkeys(("data.bands [0,-2]", "data.bands x"), "band"),
    **dict.fromkeys(("data.root nowhere", "data.annotations nowhere.csv"), "nowhere"),
    **dict.fromkeys(("trainer.max_epochs x", "trainer.max_epochs 1.5"), "max_epochs"),
    **dict.fromkeys(("trainer.gradient_clip_val x", "trainer.gradient_clip_val -.inf"), "gradient_clip_val"),
    "trainer.limit_val_batches -3": "limit_val_batches",
    "trainer.num_nodes -2": "num_nodes",
    "trainer.max_epoch 1": "max_epochs",
    "model.nothing 1": "nothing",
    "data.nothing 1": "nothing",
    "ckpt_path pairs/before/0.png": "is an image (PNG)",
    "ckpt_path https://example.org/best.ckpt": "is a URL",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of two splits, and a configuration that trains on them in a second."""
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
def test_it_raises_a_one_line_error(
    place: Path, given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert main(["fit", "--config", "tiny.yaml", *f"--{given}".split(" ", 1)]) == 1
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert VALUES[given] in said and len(said) < 900
    assert not list(place.rglob("*.ckpt"))


def test_the_list_has_its_size() -> None:
    assert len(VALUES) >= 100


@pytest.mark.slow
def test_the_configuration_itself_trains(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The configuration trains without the bad values, so these are the reason that the runs above are refused."""
    monkeypatch.chdir(place)
    root = ["--trainer.default_root_dir", str(tmp_path)]
    assert main(["fit", "--config", "tiny.yaml", *root]) == 0
    assert list(tmp_path.rglob("*.ckpt"))


def test_arguments_belong_to_the_class_that_the_command_names(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    inputs = ["--config", "tiny.yaml", "--model.optimizer", "SGD", "--model.optimizer.lr", "0.5"]
    inputs += ["--model.schedule", "WarmupCosine", "--model.schedule.warmup", "0.25"]
    cli = PairCLI("fit", gather(inputs))
    cli.build()
    (group,) = cli.model.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups
    assert type(cli.model.schedule).__name__ == "WarmupCosine" and cli.model.schedule.warmup == 0.25
    assert group["lr"] == 0.5 and "momentum" in group
