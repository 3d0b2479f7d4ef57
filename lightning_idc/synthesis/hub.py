"""Records as a data set of the Hugging Face hub, with a card that says how they were made."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from lightning_idc.synthesis.export import export_records
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.files import fill
from lightning_idc.utils.outputs import Output
from lightning_idc.utils.uploads import upload

CARD = "README.md"


def push_records(
    store: RecordStore,
    repo: str,
    private: bool = True,
    images: Sequence[str] = ("before", "after"),
    message: str = "Upload image pairs",
) -> str:
    """Create a data set on the hub where there is none, upload the kept records as Parquet, and return its address.

    Args:
        store: finished.
        repo: ``OWNER/NAME``.
        private: whether a new repository is.
        images: names of the pictures.
        message: of the commit.

    Raises:
        DataError: as `export_records`, before anything is sent.
        ConfigError: the hub does not answer, or refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Output(folder, "data set of pairs")
        with output as draft:
            export_records(store, f"{draft}/data", images=images)
            fill(draft / CARD, card_of(store, repo))
        return upload(output, repo, message, private, "dataset")


def card_of(store: RecordStore, repo: str) -> str:
    """Text of the card: metadata that the hub reads, use, counts, stages with what ran in them.

    Args:
        store: finished.
        repo: ``OWNER/NAME``.
    """
    from huggingface_hub import DatasetCardData

    configs = [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}]
    about: dict[str, Any] = {
        "tags": ["image-difference-captioning", "lightning-idc", "synthetic"],
        "task_categories": ["image-to-text"],
        "configs": configs,
    }
    remaining, reasons = store.counts()
    counts = [("kept", remaining), *sorted(reasons.items(), key=lambda item: -item[1])]
    text = [
        f"---\n{DatasetCardData(**about).to_yaml()}\n---\n",
        f"# {repo.rpartition('/')[2]}\n",
        "Pairs of images made by a program, with what it says of their difference. Dropped records are counted here "
        "and are not in the files.\n",
        f'```python\nfrom datasets import load_dataset\n\npairs = load_dataset("{repo}", split="train")\n```\n',
        "| records | |\n|---|---|\n" + "\n".join(f"| {name} | {count} |" for name, count in counts) + "\n",
        "| stage | models |\n|---|---|\n" + "\n".join(_stages(store)) + "\n",
    ]
    return "\n".join(text)


def _stages(store: RecordStore | None) -> list[str]:
    """A row for each stage that made a store, the first one first."""
    if store is None:
        return []
    models = {
        f"{name} ({_version(about)})"
        for process in store.manifest.notes["provenance"]
        for name, about in process["models"].items()
    }
    return [*_stages(store.parent), f"| {store.stage} | {', '.join(sorted(models)) or 'none with weights'} |"]


def _version(about: dict[str, Any]) -> str:
    # the name of a model may be a folder of this machine, which is nobody else's business
    parts = [f"{name} {about[name][:12]}" for name in ("commit", "weights") if about.get(name)]
    return ", ".join(parts) or "no weights"
