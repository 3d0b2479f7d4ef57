"""store: whether what is kept on disk is as it was written; records with other thresholds, and for other tools."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from lightning_idc.cli import typed
from lightning_idc.utils.errors import DatasetNotFoundError

_HELP = """usage: lightning-idc store VERB ...

  verify FOLDER                              whether all stores at or below a folder are as they were written
  refilter FOLDER TARGET [--preset NAME]     records made with `filters: scores` under the thresholds of a preset
  export FOLDER TARGET [--layout webdataset] records as files that other tools read; jsonl for data-juicer
  push FOLDER OWNER/NAME                     records as a data set of the Hugging Face hub, with a card

`lightning-idc store VERB --help` says more."""


def run(arguments: list[str]) -> int:
    """The verb `store`; 1 where something is damaged."""
    verbs: dict[str, Callable[..., int]] = {"verify": verify, "refilter": refilter, "export": export, "push": push}
    rest = arguments[1:]
    if not rest or rest[0] not in verbs:
        help = rest[:1] in (["-h"], ["--help"])
        print(_HELP, file=sys.stdout if help else sys.stderr)
        return 0 if help else 2
    return typed.call(f"store {rest[0]}", verbs[rest[0]], rest[1:])


def verify(folder: Path) -> int:
    """Hash every byte of all stores at or below a folder, and name what is damaged.

    Args:
        folder: with decoded images, features, rendered pairs, records of data making, procedures, or scores of a
            reference policy.

    Returns:
        1 where anything is damaged.
    """
    from lightning_idc.data.store.reader import faults, stores_below

    stores = stores_below(folder.expanduser())
    if not stores:
        raise DatasetNotFoundError(f"there is no store at or below {str(folder)!r}; name a folder with a manifest.json")
    damaged = 0
    for store in stores:
        messages = faults(store)
        damaged += bool(messages)
        print(f"{store}: {'; '.join(messages) or 'as it was written'}")
    print(f"{len(stores)} stores, {damaged} damaged")
    return 1 if damaged else 0


def refilter(folder: Path, target: Path, preset: str = "paper") -> int:
    """Apply the thresholds of a preset to records that were made with `filters: scores`; no model is needed.

    Args:
        folder: store of the last stage.
        target: new store.
        preset: such as paper, table17_1 to table17_4, scripts, data_juicer.
    """
    from lightning_idc.methods.img_diff.filtering import Refilter
    from lightning_idc.synthesis.run import run as make_records

    make_records(Refilter(preset), str(folder.expanduser()), target.expanduser())
    return 0


def export(
    folder: Path, target: str, layout: Literal["parquet", "webdataset", "jsonl"] = "parquet", dropped: bool = False
) -> int:
    """Write records as files that other tools read.

    Args:
        folder: store of records.
        target: new folder, local or a URL of fsspec such as s3://bucket/name.
        layout: parquet with a typed column per fact, tar files of WebDataset, or lines of data-juicer.
        dropped: also records that a filter dropped.
    """
    from lightning_idc.synthesis.export import export_records
    from lightning_idc.synthesis.store import RecordStore

    written = export_records(RecordStore(folder.expanduser()), target, layout, dropped=dropped)
    print(f"{len(written)} files in {target}")
    return 0


def push(folder: Path, repo: str, private: bool = True) -> int:
    """Upload the kept records as a data set of the Hugging Face hub, with a card that says how they were made.

    Args:
        folder: store of records.
        repo: OWNER/NAME.
        private: whether a new data set is.
    """
    from lightning_idc.synthesis.hub import push_records
    from lightning_idc.synthesis.store import RecordStore

    print(push_records(RecordStore(folder.expanduser()), repo, private))
    return 0
