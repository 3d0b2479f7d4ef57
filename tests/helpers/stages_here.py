"""Stages of a recipe in the process of the test: one of its own costs seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lightning_idc.cli.recipes import entries
from lightning_idc.cli.recipes.launch import Launch, run_in_process
from lightning_idc.cli.recipes.plan import Plan


def stages_here(
    monkeypatch: pytest.MonkeyPatch, note: Callable[[Plan], None] | None = None, launch: Launch = run_in_process
) -> None:
    """Let all recipes run their stages in this process.

    Args:
        monkeypatch: of the test.
        note: called with each plan before it is run.
        launch: runs a stage.
    """

    def launch_noted(plan: Plan, followed: bool) -> int:
        if note is not None:
            note(plan)
        return launch(plan, followed)

    def launch_for(*unused: Any) -> Any:
        return launch_noted

    monkeypatch.setattr(entries, "launch_for", launch_for)
