"""Plan: input of the process of a stage, and its exit statuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STAGE = "LIGHTNING_IDC_STAGE"
"""Environment variable with the record file of the stage, for its process and those that Lightning starts."""
INTERRUPTED, REFUSED = 130, 3
"""Exit status of a stage that a signal ended, and of one with an invalid configuration of itself or a later stage."""


@dataclass(frozen=True)
class Plan:
    """Input of the process of a stage.

    Args:
        verb: verb of LightningCLI.
        file: configuration file.
        record: record file, written when the stage is finished.
        key: digest of the stage for the record.
        environment: further environment variables.
        later: name, verb and configuration of the stages to check before this one runs.
    """

    verb: str
    file: str
    record: str
    key: str
    environment: dict[str, str] = field(default_factory=dict)
    later: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
