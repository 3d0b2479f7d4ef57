"""What the process of a stage is told, and the exit statuses that it answers with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STAGE = "LIGHTNING_IDC_STAGE"
"""Environment variable with the record of the stage that a process, or one that Lightning starts from it, runs."""
INTERRUPTED, REFUSED = 130, 3
"""Exit status of a stage that a signal ended, and of one whose configuration, or a later one, is wrong."""


@dataclass(frozen=True)
class Plan:
    """What a process needs to know to run a stage.

    Args:
        verb: verb of LightningCLI.
        file: configuration file.
        record: file to write when the stage is finished.
        key: digest of the stage, for the record.
        environment: further environment variables.
        later: name, verb and configuration of the stages to check before this one runs.
    """

    verb: str
    file: str
    record: str
    key: str
    environment: dict[str, str] = field(default_factory=dict)
    later: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
