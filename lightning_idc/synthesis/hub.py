"""Records as a data set of the Hugging Face hub, with a card that says how they were made."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_idc.synthesis.export import export_records
from lightning_idc.synthesis.store import RecordStore

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
    """
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        export_records(store, f"{folder}/data", images=images)
        (Path(folder) / CARD).write_text(card_of(store, repo), encoding="utf-8")
        api = HfApi()
        api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repo, repo_type="dataset", folder_path=folder, commit_message=message))


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
