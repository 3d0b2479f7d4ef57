"""Stages of a recipe in the process of the test: one of its own costs seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lightning_idc.cli.recipes import entries
from lightning_idc.cli.recipes.launch import run_in_process
from lightning_idc.cli.recipes.plan import Plan


def stages_here(monkeypatch: pytest.MonkeyPatch, note: Callable[[Plan], None] | None = None) -> None:
    """Let all recipes run their stages in this process.

    Args:
        monkeypatch: of the test.
        note: called with each plan before it is run.
    """

    def launch(plan: Plan, followed: bool) -> int:
        if note is not None:
            note(plan)
        return run_in_process(plan, followed)

    def launch_for(*unused: Any) -> Any:
        return launch

    monkeypatch.setattr(entries, "launch_for", launch_for)
