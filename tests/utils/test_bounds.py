"""Bounds of numbers as types: checked in Python and by jsonargparse, which also shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jsonargparse
import pytest
from lightning.pytorch.core.mixins import HyperparametersMixin

from lightning_idc.utils import bounds
from lightning_idc.utils.bounds import (
    NonNegativeFloat,
    NonNegativeInt,
    OpenShare,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    Share,
    ShareBelowHalf,
    ShareBelowOne,
    TwoOrMore,
    check_arguments,
    check_fields,
)
from lightning_idc.utils.errors import ConfigError


class Options(HyperparametersMixin):
    def __init__(
        self,
        width: PositiveInt = 1,
        limit: PositiveInt | None = None,
        skipped: NonNegativeInt = 0,
        candidates: TwoOrMore = 2,
        beta: PositiveFloat = 0.1,
        weight: NonNegativeFloat = 0,
        ratio: Share = 0.5,
        share: PositiveShare = 1,
        confidence: OpenShare = 0.95,
        dropout: ShareBelowOne = 0.0,
        smoothing: ShareBelowHalf = 0.0,
        size: PositiveInt | tuple[PositiveInt, PositiveInt] | None = None,
        layers: Sequence[NonNegativeInt] = (),
        rates: Mapping[str, NonNegativeFloat] | None = None,
        counts: Literal[0] | TwoOrMore = 0,
        mode: Literal["fast", "slow"] = "fast",
    ) -> None:
        check_arguments(Options.__init__, locals())
        super().__init__()
        self.save_hyperparameters()


class Derived(Options):
    def __init__(self, extra: PositiveInt = 1, **options: Any) -> None:
        check_arguments(Derived.__init__, locals())
        super().__init__(**options)


@dataclass(frozen=True)
class Loss:
    smoothing: ShareBelowOne = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


WRONG = {
    "width": (0, "width is 0; expected at least 1"),
    "limit": (-1, "limit is -1; expected at least 1"),
    "skipped": (2.5, "skipped is 2.5; expected an integer"),
    "candidates": (True, "candidates is True; expected an integer"),
    "beta": (math.inf, "beta is inf; expected a number above 0"),
    "weight": (math.nan, "weight is nan; expected at least 0"),
    "ratio": (1.5, "ratio is 1.5; expected a number from 0 to 1"),
    "share": (0, "share is 0; expected a number above 0 and at most 1"),
    "confidence": (1.0, "confidence is 1.0; expected a number above 0 and less than 1"),
    "counts": (1, "counts is 1; expected at least 2"),
    "dropout": (1, "dropout is 1; expected at least 0 and less than 1"),
    "smoothing": (0.5, "smoothing is 0.5; expected at least 0 and less than 0.5"),
    "size": ((4, 0), r"size\[1\] is 0; expected at least 1"),
    "layers": ([0, -1], r"layers\[1\] is -1; expected at least 0"),
    "rates": ({"vision": -1.0}, "rates.vision is -1.0; expected at least 0"),
    "mode": ("quick", "mode is 'quick'; expected one of fast, slow"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_out_of_bounds_is_refused_in_python(name: str) -> None:
    value, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        Options(**{name: value})


@pytest.mark.parametrize("value", [None, "x", 0, (1, 2, 3)])
def test_values_of_another_shape_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="width is"):
        Options(width=value)  # type: ignore[arg-type]
    if value is not None:
        with pytest.raises(ConfigError, match="size is"):
            Options(size=value)  # type: ignore[arg-type]


def test_hyper_parameters_are_collected_from_all_constructors() -> None:
    made = Derived(extra=2, width=3, size=[4, 5], rates={"vision": 0.5})
    assert made.hparams["extra"] == 2 and made.hparams["width"] == 3 and made.hparams["mode"] == "fast"


def test_the_fields_of_a_dataclass_are_checked() -> None:
    assert Loss(0.5).smoothing == 0.5
    with pytest.raises(ConfigError, match=r"smoothing is 1.5; expected at least 0 and less than 1"):
        Loss(1.5)


@pytest.fixture
def parser() -> jsonargparse.ArgumentParser:
    bounds.register_bounds()
    made = jsonargparse.ArgumentParser(exit_on_error=False)
    made.add_class_arguments(Options, "options")
    return made


def test_the_command_line_shows_bounds(parser: jsonargparse.ArgumentParser) -> None:
    text = " ".join(parser.format_help().split())
    for shown in (
        "int >= 1,",
        "int >= 1 | null",
        "int >= 0,",
        "int >= 2,",
        "float > 0,",
        "float >= 0,",
        "0 <= float <= 1,",
        "0 < float <= 1,",
        "0 <= float < 1,",
        "0 <= float < 0.5,",
        "tuple[int >= 1, int >= 1]",
    ):
        assert shown in text, text


@pytest.mark.parametrize("name", WRONG)
def test_the_command_line_refuses_what_python_refuses(parser: jsonargparse.ArgumentParser, name: str) -> None:
    with pytest.raises(jsonargparse.ArgumentError, match=f"options.{name}"):
        parser.parse_object({"options": {name: WRONG[name][0]}})


def test_the_command_line_makes_plain_numbers(parser: jsonargparse.ArgumentParser) -> None:
    options = parser.parse_args(["--options.width=3", "--options.limit=null", "--options.size=[4,5]"]).options
    assert type(options.width) is int and type(options.ratio) is float and options.limit is None
    assert tuple(options.size) == (4, 5) and "width: 3" in parser.dump(parser.parse_args(["--options.width=3"]))
