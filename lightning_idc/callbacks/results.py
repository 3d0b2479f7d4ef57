"""Results of an evaluation under a Trainer: captions, scores and provenance."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from lightning_idc.callbacks.write_predictions import weights_digest
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.splits import Split
from lightning_idc.metrics.results import Origin
from lightning_idc.report.results import Results


def results_of(
    trainer: Trainer, captioner: Any, split: Split, records: Sequence[dict[str, Any]] | None = None
) -> Results:
    """Results of the last evaluation of a captioner.

    Args:
        trainer: trainer of the evaluation; a `PairDataModule` provides facts and images.
        captioner: a `PairCaptioner`.
        split: evaluated split.
        records: captions of a prediction, without scores; those of the captioner when None.
    """
    data = getattr(trainer, "datamodule", None)  # absent if loaders were passed
    return Results(
        records=captioner.predictions if records is None else records,
        scores=captioner.scores if records is None else None,
        data=data if isinstance(data, PairDataModule) else None,
        split=split,
        sentences=captioner.hparams.get("no_change_captions") or [],
    )


def origin_of(trainer: Trainer, results: Results) -> Origin:
    """Provenance of the captions of an evaluation."""
    captioner: Any = trainer.lightning_module
    checkpoint = Path(trainer.ckpt_path) if trainer.ckpt_path else None
    seed = os.environ.get("PL_GLOBAL_SEED")
    return Origin(
        model=type(captioner).__name__,
        data=None if results.data is None else type(results.data).__name__,
        split=results.split,
        decoding={key: captioner.hparams[key] for key in ("num_beams", "max_length") if key in captioner.hparams},
        seed=None if seed is None else int(seed),
        checkpoint=None if checkpoint is None else checkpoint.name,
        selection=None if checkpoint is None else selected_on(checkpoint),
        weights=weights_digest(captioner),
    )


def evaluation_settings(trainer: Trainer, results: Results) -> dict[str, str]:
    """Settings of an evaluation as texts for a report."""
    import lightning

    from lightning_idc import __version__

    captioner: Any = trainer.lightning_module
    size = sum(parameter.numel() for parameter in captioner.parameters())
    beams = captioner.hparams.get("num_beams", 1)
    settings = {
        "captioner": f"{type(captioner).__name__}, {size / 1e6:.2f} M parameters",
        "checkpoint": str(trainer.ckpt_path or "none; the weights in memory"),
        "decoding": "greedy" if beams == 1 else f"beam search, {beams} beams",
        "maximum caption length": f"{captioner.hparams.get('max_length')} tokens",
        "scores": "PTB tokens in lower case without punctuation; CIDEr-D is pycocoevalcap's CIDEr; all x100",
        "versions": f"lightning_idc {__version__}, lightning {lightning.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
    }
    if results.data is not None:
        settings["data"] = f"{type(results.data).__name__}, {results.split} split"
        settings["image size"] = str(results.data.image_size or "that of the files")
    if results.confusion is not None:
        settings["no change"] = "a caption equals a sentence of the data for unchanged pairs, or has the same meaning"
    return settings


def selected_on(checkpoint: Path) -> str | None:
    """Split on which a checkpoint was selected; None if it was not selected, or unknown."""
    if not checkpoint.is_file() or checkpoint.stem.startswith("last"):
        return None
    try:
        # memory-mapped, so that the weights are not read
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # an old format without memory mapping
        return None
    for name, state in saved.get("callbacks", {}).items():
        if name.startswith("ModelCheckpoint") and isinstance(state.get("monitor"), str):
            return str(state["monitor"]).split("/")[0]
    return None
