"""Fixture of the policy tests: a supervised captioner from which they start."""

from __future__ import annotations

import pytest
from helpers.training import supervised


@pytest.fixture(scope="session")
def sft(tmp_path_factory: pytest.TempPathFactory) -> str:
    return supervised(tmp_path_factory.mktemp("sft"))
