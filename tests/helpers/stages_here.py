"""Run the stages of recipes in the process of the test or in two forked ones, since a new process takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.processes import forking_python
from lightning_idc.cli.recipes import entries
from lightning_idc.cli.recipes.launch import Launch, Processes, run_in_process
from lightning_idc.cli.recipes.plan import Plan


def stages_here(
    monkeypatch: pytest.MonkeyPatch, note: Callable[[Plan], None] | None = None, launch: Launch = run_in_process
) -> None:
    """Make all recipes run their stages in this process.

    Args:
        monkeypatch: fixture of the test.
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


def run_stages_of_two_devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run stages with two devices in two processes that are forked with torch imported, and all others in this process.

    Returns:
        names of the stages that ran in two processes.
    """
    monkeypatch.setattr(sys, "executable", forking_python())
    names: list[str] = []

    def launch(plan: Plan, followed: bool) -> int:
        config = yaml.safe_load(Path(plan.file).read_text(encoding="utf-8"))
        if config["trainer"].get("devices", 1) == 1:
            return run_in_process(plan, followed)
        assert config["trainer"]["devices"] == 2
        names.append(Path(plan.record).parent.name)
        return Processes(early=False)(plan, followed=False)

    stages_here(monkeypatch, launch=launch)
    return names
