"""data: which data modules there are, and whether a folder holds what they expect."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.text import printable

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule

MODULES = {
    "synthetic": "lightning_idc.data.synthetic.SyntheticPairs",
    "folder": "lightning_idc.data.benchmarks.folder.FolderPairs",
    "deeppcb": "lightning_idc.data.benchmarks.deeppcb.DeepPCB",
    "birds_to_words": "lightning_idc.data.benchmarks.birds_to_words.BirdsToWords",
    "clevr_change": "lightning_idc.data.benchmarks.clevr_change.CLEVRChange",
    "clevr_dc": "lightning_idc.data.benchmarks.clevr_dc.CLEVRDC",
    "changechat": "lightning_idc.data.benchmarks.remote_sensing_dialogues.ChangeChat",
    "diffspot": "lightning_idc.data.benchmarks.diffspot.DiffSpot",
    "hq_edit": "lightning_idc.data.benchmarks.diffspot.HQEdit",
    "rscc": "lightning_idc.data.benchmarks.remote_sensing_dialogues.RSCC",
    "vlm_subtlebench": "lightning_idc.data.benchmarks.subtlebench.VLMSubtleBench",
    "hf_table": "lightning_idc.data.benchmarks.hf_table.HuggingFaceTable",
    "image_editing_request": "lightning_idc.data.benchmarks.image_editing_request.ImageEditingRequest",
    "img_diff": "lightning_idc.data.benchmarks.img_diff.ImgDiff",
    "instructpix2pix": "lightning_idc.data.benchmarks.instructpix2pix.InstructPix2Pix",
    "levir_cc": "lightning_idc.data.benchmarks.levir_cc.LEVIRCC",
    "magicbrush": "lightning_idc.data.benchmarks.magicbrush.MagicBrush",
    "omnidiff": "lightning_idc.data.benchmarks.omnidiff.OmniDiff",
    "spot_the_diff": "lightning_idc.data.benchmarks.spot_the_diff.SpotTheDiff",
}
_HELP = f"""usage: lightning-idc data ls
       lightning-idc data check NAME [--root DIR] [--key value ...]
       lightning-idc data prepare NAME [--root DIR] [--archive FILE] [--overwrite true] [--key value ...]
       lightning-idc data count NAME [--root DIR] [--split SPLIT] [--key value ...]

`ls` lists the data modules. `check` reads every pair of every split as training would, and names each one that
cannot be used; --root and any other key are arguments of the data module. `prepare` downloads what may be
downloaded, unpacks an archive that you fetched, which replaces other files only with --overwrite true, verifies what
there is, and tells the steps that are left. `count` counts the captions of every split, or of one, as tables 1 and 2 of
OmniDiff do: pairs, captions, words, sentences, vocabulary, and the share of long captions; it reads no image.

NAME is one of {", ".join(MODULES)}, or the class path of a PairDataModule of your own."""


def run(given: list[str]) -> int:
    """The verb `data`; 1 where a check found something."""
    rest = given[1:]
    if not rest or rest[0] in ("-h", "--help") or "--help" in rest:
        print(_HELP)
        return 0 if rest else 2
    if rest == ["ls"]:
        return _ls()
    verbs = {"check": _check, "prepare": _prepare, "count": _count}
    if rest[0] not in verbs or len(rest) < 2 or rest[1].startswith("--"):
        print(_HELP, file=sys.stderr)
        return 2
    return verbs[rest[0]](rest[1], rest[2:])


def _ls() -> int:
    from lightning_idc.utils.names import class_of

    for name, path in MODULES.items():
        print(f"{name:<22} {path}\n{'':<22} {(inspect.getdoc(class_of(path)) or '').splitlines()[0]}")
    return 0


def _check(name: str, arguments: list[str]) -> int:
    from lightning_idc.cli.configuration import parse_overrides
    from lightning_idc.data.benchmark import Benchmark
    from lightning_idc.data.checking import check

    data = _build(name, "check", parse_overrides(arguments))
    if not isinstance(data, Benchmark):  # whose check tells what is missing more fully
        data.prepare_data()
    return _told(check(data, _say))


def _prepare(name: str, arguments: list[str]) -> int:
    from lightning_idc.cli.configuration import parse_overrides
    from lightning_idc.data.benchmark import Benchmark
    from lightning_idc.data.tables.prepare import prepare

    given = parse_overrides(arguments)
    archive, overwrite = given.pop("archive", None), given.pop("overwrite", False)
    if not isinstance(overwrite, bool):
        raise ConfigError(f"--overwrite is {overwrite!r}; expected true or false")
    data = _build(name, "prepare", given)
    if not isinstance(data, Benchmark):
        raise ConfigError(f"{name} is not a benchmark with files to fetch; see `lightning-idc data check {name}`")
    left = prepare(data, [Path(str(archive)).expanduser()] if archive is not None else [], _say, overwrite)
    if not left:
        print(f"all files are there; now: lightning-idc data check {name} --root {data.root}")
    return _told(left)


def _count(name: str, arguments: list[str]) -> int:
    from lightning_idc.cli.configuration import parse_overrides
    from lightning_idc.data.benchmark import Benchmark
    from lightning_idc.data.datamodule import SPLITS
    from lightning_idc.data.statistics import split_statistics

    given = parse_overrides(arguments)
    split = given.pop("split", None)
    if split is not None and split not in SPLITS:
        raise ConfigError(f"there is no split {split!r}; expected one of {', '.join(SPLITS)}")
    data = _build(name, "count", given)
    data.prepare_data()
    captions: dict[str, list[Sequence[str]]] = {}
    for part in (split,) if split else data.labelled:
        if isinstance(data, Benchmark):  # what is said is in its annotation files, so its images need not be there
            said = [[text for text in record.captions if text] for record in data.records(part)]
            captions[part] = [texts for texts in said if texts]
            continue
        source = data.pairs_of(part)
        captions[part] = [source.captions(index) for index in range(len(source))]
    found = split_statistics(captions)
    columns = [["", *(label for label, _ in next(iter(found.values())).rows())]]
    columns += [[part, *(value for _, value in numbers.rows())] for part, numbers in found.items()]
    widths = [max(map(len, column)) for column in columns]
    for label, *values in zip(*columns, strict=True):
        cells = [label.ljust(widths[0]), *map(str.rjust, values, widths[1:])]
        print("  ".join(cells))
    return 0


def _say(line: str) -> None:
    print(printable(line), flush=True)


def _told(problems: list[str]) -> int:
    for problem in problems:
        _say(f"problem: {problem}")
    print("no problems" if not problems else "1 problem" if len(problems) == 1 else f"{len(problems)} problems")
    return 1 if problems else 0


def _build(name: str, verb: str, given: dict[str, Any]) -> PairDataModule:
    """The data module of a name or class path with its arguments."""
    from lightning_idc.cli.errors import check_names
    from lightning_idc.data.datamodule import PairDataModule
    from lightning_idc.utils.names import class_of, is_public, nearest

    if name not in MODULES and "." not in name and not is_public(name):
        raise ConfigError(f"no data module is called {name!r}; {nearest(name, MODULES)}")
    kind = class_of(MODULES.get(name, name))
    if not inspect.isclass(kind) or not issubclass(kind, PairDataModule):
        raise ConfigError(f"{name} is not a PairDataModule, so there is nothing to {verb}")
    check_names(given, kind, f"data {verb} {name}")
    parameters = inspect.signature(kind).parameters.values()
    missing = [
        p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in given
    ]
    if missing:
        raise ConfigError(f"data {verb} {name} needs --{missing[0]} VALUE")
    return kind(**given)
