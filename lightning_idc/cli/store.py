"""store: whether what is kept on disk is as it was written."""

from __future__ import annotations

import sys
from pathlib import Path

_HELP = """usage: lightning-idc store verify FOLDER

Hashes every byte of all stores at or below FOLDER (decoded images, features, rendered pairs, records of data making,
procedures, scores of a reference policy) and names what is damaged; exit status 1 where anything is."""


def run(given: list[str]) -> int:
    """The verb `store`; 1 where something is damaged."""
    rest = given[1:]
    if rest in (["-h"], ["--help"]):
        print(_HELP)
        return 0
    if len(rest) != 2 or rest[0] != "verify":
        print(_HELP, file=sys.stderr)
        return 2
    return _verify(Path(rest[1]).expanduser())


def _verify(folder: Path) -> int:
    from lightning_idc.core.store import faults, stores_below
    from lightning_idc.errors import DatasetNotFoundError

    stores = stores_below(folder)
    if not stores:
        raise DatasetNotFoundError(f"there is no store at or below {str(folder)!r}; name a folder with a manifest.json")
    damaged = 0
    for store in stores:
        found = faults(store)
        damaged += bool(found)
        print(f"{store}: {'; '.join(found) or 'as it was written'}")
    print(f"{len(stores)} stores, {damaged} damaged")
    return 1 if damaged else 0
