"""statistics: how many pairs, captions, words and sentences a data set has, as papers print them."""

from __future__ import annotations

import inspect
import sys

from lightning_idc.cli.data import MODULES
from lightning_idc.errors import PairError

SPLITS = ("train", "val", "test")
_HELP = f"""usage: lightning-idc statistics NAME [--split SPLIT] [--root DIR] [--key value ...]

Counts the captions of every split: pairs, captions, words, sentences, vocabulary, and the share of long captions, as
tables 1 and 2 of OmniDiff do. No image is read. --split counts one split only; --root and any other key are arguments
of the data module.

NAME is one of {", ".join(MODULES)}, or the class path of a PairDataModule of your own."""


def run(given: list[str]) -> int:
    """The verb `statistics`."""
    rest = given[1:]
    if "-h" in rest or "--help" in rest:
        print(_HELP)
        return 0
    if not rest or rest[0].startswith("--"):
        print(_HELP, file=sys.stderr)
        return 2
    return _count(rest[0], rest[1:])


def _count(name: str, arguments: list[str]) -> int:
    from lightning_idc.cli.keys import check_names, class_of, nearest
    from lightning_idc.cli.recipe import parse_overrides
    from lightning_idc.data.datamodule import PairDataModule
    from lightning_idc.data.statistics import split_statistics

    if name not in MODULES and "." not in name:
        raise PairError(f"no data module is called {name!r}; {nearest(name, MODULES)}")
    kind = class_of(MODULES.get(name, name))
    if not inspect.isclass(kind) or not issubclass(kind, PairDataModule):
        raise PairError(f"{name} is no PairDataModule, so its captions cannot be counted")
    options = parse_overrides(arguments)
    split = options.pop("split", None)
    if split is not None and split not in SPLITS:
        raise PairError(f"there is no split {split!r}; expected one of {', '.join(SPLITS)}")
    check_names(options, kind, f"statistics {name}")
    data = kind(**options)
    data.prepare_data()
    captions = {}
    for part in (split,) if split else SPLITS:
        source = data.pairs_of(part)
        captions[part] = [source.captions(index) for index in range(len(source))]
    found = split_statistics(captions)
    columns = [[label for label, _ in next(iter(found.values())).rows()]]
    columns += [[value for _, value in numbers.rows()] for numbers in found.values()]
    heads = ["", *found]
    widths = [max(len(head), *map(len, column)) for head, column in zip(heads, columns, strict=True)]
    for cells in (heads, *zip(*columns, strict=True)):
        first, *others = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        print("  ".join([first, *others]))
    return 0
