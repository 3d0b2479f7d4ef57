"""Every value of every option of every part, on every captioner, changes a training step or is refused by name.

The oracle is the same step without the option. Compared are losses, logged values, gradients, the modules that exist
and train, and warnings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from unittest.mock import patch

import pytest
import torch
from helpers.captioners import CAPTIONERS, PARTS
from helpers.one_step import differ, outcome
from helpers.options import EVERYWHERE, OPTIONS

from lightning_idc.methods.adpo import preference_addon
from lightning_idc.utils.errors import CheckpointError, ConfigError

CELLS = [(part, name) for part, options in OPTIONS.items() for name in CAPTIONERS if name in options.captioners]


@pytest.fixture(autouse=True)
def running_means_are_read_in_each_step() -> Iterator[None]:
    with patch.object(preference_addon, "CHECK_EVERY", 1):
        yield


@pytest.mark.slow
@pytest.mark.parametrize(("part", "captioner"), CELLS)
def test_an_option_has_an_effect_or_is_refused(part: str, captioner: str) -> None:
    options, without, silent = OPTIONS[part], {}, []
    for option, tried in options.all_tries():
        value, where = tried.value(captioner), tried.where(captioner)
        named = f"{option}={value!r} with {dict(where)}"
        if captioner in tried.refused:
            with pytest.raises((ConfigError, CheckpointError)) as caught:
                outcome(captioner, options.make(captioner, **{**where, option: value}), tried.steps)
            message, words = str(caught.value), [option, *re.findall(r"\w+(?:\.\w+)*", str(value))]
            assert "\n" not in message and any(word in message for word in words), f"{named}: {message}"
            continue
        key = tuple(where), tried.steps
        if key not in without:
            without[key] = outcome(captioner, options.make(captioner, **where), tried.steps)
        parts = options.make(captioner, **{**where, option: value})
        silent += [] if differ(outcome(captioner, parts, tried.steps, without[key]), without[key]) else [named]
    assert not silent


@pytest.mark.parametrize("part", ["PreferenceOptimization", "GroupRelative", "SelfCritical"])
def test_the_weight_is_a_factor_of_a_loss_that_replaces_the_caption_loss(part: str) -> None:
    whole, half = (outcome("NAMC", OPTIONS[part].make("NAMC", weight=weight)) for weight in (1.0, 0.5))
    gradients = {name: value for name, value in whole.items() if name.startswith("gradient") and value is not None}
    assert any(value.abs().max() > 1e-4 for value in gradients.values())
    for name, value in gradients.items():
        torch.testing.assert_close(half[name], 0.5 * value, msg=name)


def test_every_part_of_the_table_is_here() -> None:
    names = {name for part in PARTS for name in re.findall(r"[A-Z]\w+", part)} - {"AdaptersOff"}
    assert names == {options.kind.__name__ for options in OPTIONS.values()}
    assert {name for name in CAPTIONERS if name in EVERYWHERE} | {"another LightningModule"} == set(CAPTIONERS)


@pytest.mark.slow
def test_a_step_without_a_change_is_seen_as_equal() -> None:
    """Two runs without a change have equal outcomes, so a difference is an effect of the option."""
    for part, options in OPTIONS.items():
        one, two = (outcome("NAMC", options.make("NAMC"), steps=2) for _ in range(2))
        assert not differ(one, two), part
        assert isinstance(one, Mapping) and len(one) > 100
