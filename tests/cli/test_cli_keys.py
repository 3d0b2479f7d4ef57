"""Names, keys and types are refused before anything is built; the oracles are the signatures of the classes."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_idc.cli.configuration import normalised
from lightning_idc.cli.errors import TOP, explain, readable
from lightning_idc.cli.training import check_config
from lightning_idc.utils.arguments import accepted_arguments
from lightning_idc.utils.errors import PairError
from lightning_idc.utils.names import class_of


def config(**over: Any) -> dict[str, Any]:
    model = {"class_path": "toy_idc.Toy", "init_args": {"width": 2}}
    return {"model": model, "data": {"class_path": "toy_idc.Numbers"}, "trainer": {"max_epochs": 1}, **over}


def check(config: dict[str, Any], where: str) -> None:
    try:
        config = normalised(config)
    except PairError as error:
        raise PairError(f"{where}: {error}") from error
    check_config("fit", config, where)


def test_arguments_are_those_of_the_class_and_of_the_parents_it_passes_keywords_to() -> None:
    import toy_idc

    assert accepted_arguments(toy_idc.Toy) == {"fail_at", "pause", "width", "optimizer"}
    assert accepted_arguments(toy_idc.Base) == {"width", "optimizer"}


def test_the_library_own_captioner_shows_its_parents_arguments() -> None:
    known = accepted_arguments(class_of("PairTransformer"))
    assert known is not None and {"width", "captions_per_pair", "num_beams"} <= known and "options" not in known


def test_a_good_configuration_passes() -> None:
    callback = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"monitor": "x"}}
    check(config(trainer={"callbacks": [callback]}, seed_everything=1, ckpt_path=None), "toy.yaml")


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
        ({"model": {"class_path": "toy_idk.Toy"}}, "cannot be imported"),
        ({"model": {"class_path": "Toi"}}, "there is no class 'Toi'"),
        ({"model": "PairTransfromer"}, "did you mean 'PairTransformer'"),
        ({"model": {"class_path": "toy_idc.Numbers"}}, "toy_idc.Numbers is not a LightningModule"),
        ({"model": None}, "model: expected --model NAME"),
        ({"trainer": {"precision": "bf17"}}, "'bf16-mixed' or"),
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
        # --trainer.callbacks.ModelCheckpoint.monitor: the index of the list was meant
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
    with pytest.raises(PairError) as caught:
        check(config(**wrong), "toy.yaml")
    assert says in str(caught.value) and str(caught.value).startswith("toy.yaml: ")


@pytest.mark.parametrize(
    ("over", "says"),
    [
        (
            {"model": {"class_path": "toy_idc.Toy", "init_args": {"width": "wide"}}},
            "model.width: expected int, found 'wide'",
        ),
        ({"trainer": {"max_epochs": "many"}}, "trainer.max_epochs: expected int or None, found 'many'"),
        (
            {"data": {"class_path": "toy_idc.Numbers", "init_args": {"items": [1]}}},
            "data.items: expected int, found '[1]'",
        ),
        (
            {
                "model": {
                    "class_path": "toy_idc.Toy",
                    "init_args": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": "fast"}}},
                }
            },
            "model.optimizer.lr: expected float",
        ),
        (
            {"trainer": {"callbacks": [{"class_path": "ModelCheckpoint", "init_args": {"monitor": 3}}]}},
            "trainer.callbacks.monitor: expected str or None, found '3'",
        ),
    ],
)
def test_a_wrong_type_is_one_line(over: dict[str, Any], says: str) -> None:
    with pytest.raises(PairError) as caught:
        check(config(**over), "toy.yaml")
    assert str(caught.value).startswith(f"toy.yaml: {says}") and "\n" not in str(caught.value)


def test_a_message_in_no_known_form_is_shown_whole() -> None:
    assert explain("something else\nwent wrong", {}, TOP) == "something else\nwent wrong"


def test_only_errors_that_a_user_can_mend_are_readable() -> None:
    inner = PairError("the reason")
    outer = RuntimeError("wrapped")
    outer.__cause__ = inner
    assert readable(inner) == readable(outer) == "the reason"
    assert readable(OSError(28, "No space left on device", "cache.npy")) is not None
    assert readable(TypeError("a fault")) is None
