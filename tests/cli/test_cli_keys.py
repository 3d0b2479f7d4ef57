"""Wrong names, keys and types are refused before anything is built; the oracles are the signatures of the classes."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_idc.cli.configuration import normalised
from lightning_idc.cli.errors import readable
from lightning_idc.cli.signatures import arguments_of, check_config
from lightning_idc.cli.stage import PairCLI
from lightning_idc.utils.arguments import accepted_arguments
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.names import class_of, full_name


def config(**over: Any) -> dict[str, Any]:
    model = {"class_path": "toy_idc.Toy", "init_args": {"width": 2}}
    return {"model": model, "data": {"class_path": "toy_idc.Numbers"}, "trainer": {"max_epochs": 1}, **over}


def check(config: dict[str, Any]) -> None:
    config = normalised(config)
    check_config(config, "toy.yaml")
    PairCLI("fit", config)


def test_arguments_are_those_of_the_class_and_of_the_parents_it_passes_keywords_to() -> None:
    import toy_idc

    assert accepted_arguments(toy_idc.Toy) == {"fail_at", "pause", "width", "optimizer"}
    assert accepted_arguments(toy_idc.Base) == {"width", "optimizer"}


@pytest.mark.parametrize(
    "name",
    [
        *("toy_idc.Toy", "toy_idc.Measured", "PairTransformer", "ProCap", "SyntheticPairs", "FolderPairs"),
        *("ShowResults", "AdamW", "ModelCheckpoint", "CSVLogger", "WarmupCosine", "lightning.pytorch.Trainer"),
    ],
)
def test_the_source_tells_the_arguments_that_the_class_has(name: str) -> None:
    assert arguments_of(full_name(name)) == accepted_arguments(class_of(name))


def test_a_source_that_does_not_tell_the_arguments_refuses_nothing() -> None:
    assert arguments_of("collections.Counter") is None or "iterable" in (arguments_of("collections.Counter") or ())
    assert arguments_of("no_such_module.Class") is None and arguments_of("math.sqrt") is None


def test_the_library_own_captioner_shows_its_parents_arguments() -> None:
    known = accepted_arguments(class_of("PairTransformer"))
    assert known is not None and {"width", "captions_per_pair", "num_beams"} <= known and "options" not in known


def test_a_good_configuration_passes() -> None:
    callback = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"monitor": "x"}}
    check(config(trainer={"callbacks": [callback]}, seed_everything=1, ckpt_path=None))


@pytest.mark.parametrize(
    ("accelerator", "instructions", "precision"),
    [
        ("cpu", "amx_bf16", "bf16-mixed"),
        ("cpu", "avx512_bf16", "bf16-mixed"),
        ("cpu", "avx512_f", "32-true"),
        ("gpu", "amx_bf16", "32-true"),
        (None, "amx_bf16", "32-true"),
    ],
)
def test_precision_auto_depends_on_the_hardware(
    accelerator: str | None, instructions: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {instructions: True})
    trainer = {"precision": "auto", **({} if accelerator is None else {"accelerator": accelerator})}
    options = config(trainer=trainer)
    assert PairCLI("fit", normalised(options)).config["trainer"]["precision"] == precision
    assert options["trainer"]["precision"] == "auto"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"modle": {}}, "did you mean 'model'"),
        ({"optimizer": {}}, "never be trained"),
        ({"lr_scheduler": {}}, "never be trained"),
        ({"trainer": {"max_epoch": 1}}, "did you mean 'max_epochs'"),
        ({"trainer": 3}, "expected keys with values"),
        ({"model": {"width": 3}}, "expected class_path and init_args"),
        ({"model": {"class_path": "toy_idc.Toy", "width": 3}}, "arguments belong under init_args"),
        ({"model": {"class_path": "toy_idc.Toy", "init_args": {"widht": 3}}}, "did you mean 'width'"),
        ({"model": {"class_path": "toy_idc.Tyo"}}, "did you mean 'Toy'"),
        ({"model": {"class_path": "toy_idk.Toy"}}, "toy_idk"),
        ({"model": {"class_path": "Toi"}}, "there is no class 'Toi'"),
        ({"model": "PairTransfromer"}, "did you mean 'PairTransformer'"),
        ({"model": {"class_path": "toy_idc.Numbers"}}, "toy_idc.Numbers"),
        ({"model": None}, "model"),
        ({"trainer": {"precision": "bf17"}}, "bf17"),
        ({"trainer": {"callbacks": ["ModelCheckpont"]}}, "did you mean 'ModelCheckpoint'"),
        (
            {
                "trainer": {
                    "callbacks": [
                        {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"monitr": "x"}}
                    ]
                }
            },
            "did you mean 'monitor'",
        ),
        (
            {
                "model": {
                    "class_path": "toy_idc.Toy",
                    "init_args": {"optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"weight_decy": 1}}},
                }
            },
            "did you mean 'weight_decay'",
        ),
        # from --trainer.callbacks.ModelCheckpoint.monitor, with the class name in place of the list index
        (
            {
                "trainer": {
                    "callbacks": [{"class_path": "ModelCheckpoint", "init_args": {"ModelCheckpoint": {"monitor": "x"}}}]
                }
            },
            "ModelCheckpoint has no argument 'ModelCheckpoint'",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(config(**wrong))
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"model": {"class_path": "toy_idc.Toy", "init_args": {"width": "wide"}}}, ("width", "wide")),
        ({"trainer": {"max_epochs": "many"}}, ("trainer.max_epochs", "many")),
        ({"data": {"class_path": "toy_idc.Numbers", "init_args": {"items": [1]}}}, ("items", "[1]")),
        (
            {
                "model": {
                    "class_path": "toy_idc.Toy",
                    "init_args": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": "fast"}}},
                }
            },
            ("lr", "fast"),
        ),
        (
            {"trainer": {"callbacks": [{"class_path": "ModelCheckpoint", "init_args": {"monitor": 3}}]}},
            ("callbacks", "monitor", "3"),
        ),
    ],
)
def test_a_wrong_type_is_one_line_with_its_key_and_value(over: dict[str, Any], says: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        check(config(**over))
    assert all(text in str(caught.value) for text in says) and "\n" not in str(caught.value)


def test_only_errors_that_a_user_can_mend_are_readable() -> None:
    inner = DataError("the reason")
    outer = RuntimeError("wrapped")
    outer.__cause__ = inner
    assert readable(inner) == readable(outer) == "the reason"
    assert readable(OSError(28, "No space left on device", "cache.npy")) is not None
    assert readable(TypeError("a fault")) is None
