"""Schedules compared with the formulas in the code that they are named after."""

from __future__ import annotations

import math

import pytest

from lightning_idc.methods.procap.official.procedure import LogarithmicWarmup
from lightning_idc.methods.procap.procedure import WarmupHold
from lightning_idc.models.schedules import BertWarmupCosine, Schedule, WarmupCosine, WarmupLinear
from lightning_idc.utils.errors import ConfigError


def test_the_cosine_of_bert_adam_begins_with_the_run() -> None:
    schedule = BertWarmupCosine(warmup=0.1)
    for step in range(1, 1001):
        x = step / 1000
        expected = x / 0.1 if x < 0.1 else 0.5 * (1.0 + math.cos(math.pi * x))
        assert schedule(x) == pytest.approx(expected, rel=1e-12, abs=1e-3 if x < 0.001 else 1e-15)
    assert schedule(0.0) == WarmupCosine(0.1)(0.0) > 0, "the first step is not wasted"
    # at the end of the warm-up, the cosine has already decreased by a fortieth
    assert schedule(0.1) == pytest.approx(0.9755, abs=1e-4) and WarmupCosine(0.1)(0.1) == 1.0


@pytest.mark.parametrize("kind", [WarmupCosine, BertWarmupCosine, WarmupLinear, WarmupHold, LogarithmicWarmup])
def test_warmup_ratio_rejects_a_number_of_steps(kind: type[Schedule]) -> None:
    # 500 would be read as 500 runs, so the rate would never exceed a five-hundredth of its maximum
    for warmup in (500, 1.5, -0.1, math.nan):
        with pytest.raises(ConfigError, match="fraction of the run"):
            kind(warmup=warmup)  # type: ignore[call-arg]
    for warmup in (0.0, 1.0):
        assert 0 <= kind(warmup=warmup)(0.5) <= 1  # type: ignore[call-arg]
