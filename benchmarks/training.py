"""The Trainer of benchmarks that train: it writes nothing, neither to the terminal nor to disk."""

from __future__ import annotations

from typing import Any


def quiet_trainer(**options: Any) -> Any:
    """A Trainer on the CPU without logger, checkpoints, bars and sanity checks, unless the options ask for them."""
    from lightning.pytorch import Trainer  # a benchmark sets its number of threads before torch is imported

    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "num_sanity_val_steps": 0,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(**{**quiet, **options})
