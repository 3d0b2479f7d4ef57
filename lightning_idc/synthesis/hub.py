"""Publish records as a data set on the Hugging Face hub, with a card that documents their origin."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from lightning_idc.synthesis.export import export_records
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import Output
from lightning_idc.utils.uploads import upload

CARD = "README.md"


def push_records(
    store: RecordStore,
    repo: str,
    private: bool = True,
    images: Sequence[str] = ("before", "after"),
    message: str = "Upload image pairs",
    overwrite: bool = False,
) -> str:
    """Upload the kept records as Parquet to a data set on the hub, created if missing, and return its URL.

    Args:
        store: finished store.
        repo: ``OWNER/NAME``.
        private: whether a new repository is private.
        images: names of the images.
        message: commit message.
        overwrite: whether files of the data set that were not uploaded by this function may be replaced.

    Raises:
        DataError: the records cannot be exported, see `export_records`; nothing is uploaded.
        ConfigError: the data set has files of others, or the hub does not answer or rejects the upload.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Output(folder, "data set of pairs")
        with output as draft:
            export_records(store, f"{draft}/data", images=images)
            write_content(draft / CARD, card_of(store, repo))
        return upload(output, repo, message, private, "dataset", overwrite)


def card_of(store: RecordStore, repo: str) -> str:
    """Build the data set card: metadata for the hub, usage, counts, and stages with their models.

    Args:
        store: finished store.
        repo: ``OWNER/NAME``.
    """
    from huggingface_hub import DatasetCardData

    configs = [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}]
    metadata: dict[str, Any] = {
        "tags": ["image-difference-captioning", "lightning-idc", "synthetic"],
        "task_categories": ["image-to-text"],
        "configs": configs,
    }
    remaining, reasons = store.counts()
    counts = [("kept", remaining), *sorted(reasons.items(), key=lambda item: -item[1])]
    text = [
        f"---\n{DatasetCardData(**metadata).to_yaml()}\n---\n",
        f"# {repo.rpartition('/')[2]}\n",
        "Synthetic image pairs with generated descriptions of their differences. Dropped records are counted below, "
        "but not included.\n",
        f'```python\nfrom datasets import load_dataset\n\npairs = load_dataset("{repo}", split="train")\n```\n',
        "| records | |\n|---|---|\n" + "\n".join(f"| {name} | {count} |" for name, count in counts) + "\n",
        "| stage | models |\n|---|---|\n" + "\n".join(_stages(store)) + "\n",
    ]
    return "\n".join(text)


def _stages(store: RecordStore | None) -> list[str]:
    """Build a table row for each stage of a pipeline, first stage first."""
    if store is None:
        return []
    models = {
        f"{name} ({_version(metadata)})"
        for process in store.manifest.notes["provenance"]
        for name, metadata in process["models"].items()
    }
    return [*_stages(store.parent), f"| {store.stage} | {', '.join(sorted(models)) or 'none with weights'} |"]


def _version(metadata: dict[str, Any]) -> str:
    # the name of a model is left out, since it may be a private local folder
    parts = [f"{name} {metadata[name][:12]}" for name in ("commit", "weights") if metadata.get(name)]
    return ", ".join(parts) or "no weights"
