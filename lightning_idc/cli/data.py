"""The verb data: files of data modules, and stores of images, features and records on disk."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_idc.utils.errors import ConfigError, DatasetNotFoundError
from lightning_idc.utils.plugins import plugin_data
from lightning_idc.utils.text import hide_passwords, printable

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule

_BUILT_IN = {
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
    "levir_mci": "lightning_idc.data.benchmarks.levir_cc.LEVIRMCI",
    "second_cc": "lightning_idc.data.benchmarks.second_cc.SECONDCC",
    "dubai_cc": "lightning_idc.data.benchmarks.dubai_cc.DubaiCC",
    "medical_diff_vqa": "lightning_idc.data.benchmarks.medical_diff_vqa.MedicalDiffVQA",
    "magicbrush": "lightning_idc.data.benchmarks.magicbrush.MagicBrush",
    "omnidiff": "lightning_idc.data.benchmarks.omnidiff.OmniDiff",
    "web_pairs": "lightning_idc.data.benchmarks.web_pairs.WebPairs",
    "spot_the_diff": "lightning_idc.data.benchmarks.spot_the_diff.SpotTheDiff",
}

RECIPES = {
    "own_boards": "circuit boards: 761 with 300 pairs, a constant caption 216",
    "own_encoder": "a frozen encoder; that of clevr on rendered scenes: 254 with 300 pairs, a constant caption 106; "
    "EfficientNet-lite0 on circuit boards: 180 with 300 pairs, a constant caption 216",
    "own_pairs": "learns from nothing; rendered scenes: 122 with 300 pairs, a constant caption 106; "
    "498 with 3,000 pairs, a constant caption 116; circuit boards: 190 with 300 pairs, a constant caption 216",
    "paper/finetune_vlm": "photographs, with a GPU: not measured",
}
"""Recipes for a folder of pairs, with CIDEr-D where benchmarks/studies/own_pairs.py measured it."""


def data_modules() -> dict[str, str]:
    """Class paths of the data modules of the library and of installed plug-ins, by name."""
    return plugin_data() | _BUILT_IN


def check(name: str, **keys: Any) -> int:
    """Read every pair of every split as training does, and list those that cannot be used.

    Args:
        name: a name of `lightning-idc list data`, or the class path of your PairDataModule; further options,
            such as --root DIR, are its arguments.

    Returns:
        1 if a pair cannot be used.
    """
    from lightning_idc.data.benchmark import Benchmark
    from lightning_idc.data.checking import check

    data = _build(name, "check", keys)
    if not isinstance(data, Benchmark):  # its check reports missing files in more detail
        data.prepare_data()
    problems = check(data, _say)
    if name == "folder" and not problems:
        _say(_route(len(data.pairs_of("train")), shlex.quote(str(keys.get("root", "data")))))
    return _report(problems)


def _route(pairs: int, root: str) -> str:
    """Recipes for a folder with a number of training pairs, with the figures of docs/tasks/own_folder.md."""
    lines = [f"  lightning-idc run {name} --data.root {root}\n      {reason}" for name, reason in RECIPES.items()]
    return "\n".join(
        [f"{pairs:,} training pairs; recipes that take them, with measured CIDEr-D (docs/tasks/own_folder.md):", *lines]
    )


def prepare(name: str, *, archive: Path | None = None, overwrite: bool = False, **keys: Any) -> int:
    """Download, unpack and verify the files of a benchmark, and list the remaining manual steps.

    Args:
        name: a name of `lightning-idc list data`; further options, such as --root DIR, are its arguments.
        archive: downloaded archive to unpack.
        overwrite: let the archive replace other files.

    Returns:
        1 if a step remains.
    """
    from lightning_idc.data.benchmark import Benchmark
    from lightning_idc.data.tables.prepare import prepare

    data = _build(name, "prepare", keys)
    if not isinstance(data, Benchmark):
        raise ConfigError(f"{name} is not a benchmark with files to fetch; see `lightning-idc data check {name}`")
    remaining = prepare(data, [] if archive is None else [archive.expanduser()], _say, overwrite)
    if not remaining:
        print(f"all files are there; now: lightning-idc data check {name} --root {data.root}")
    return _report(remaining)


def count(name: str, *, split: Literal["train", "val", "test"] | None = None, **keys: Any) -> int:
    """Count pairs, captions, words, sentences, vocabulary and long captions, as tables 1 and 2 of OmniDiff do.

    Args:
        name: a name of `lightning-idc list data`, or the class path of your PairDataModule; further options,
            such as --root DIR, are its arguments. No image is read.
        split: split to count; all splits by default.
    """
    from lightning_idc.data.benchmark import Benchmark
    from lightning_idc.data.statistics import split_statistics

    data = _build(name, "count", keys)
    data.prepare_data()
    captions: dict[str, list[Sequence[str]]] = {}
    for part in (split,) if split else data.available_splits:
        if isinstance(data, Benchmark):  # captions come from annotation files; images may be missing
            texts = [[text for text in record.captions if text] for record in data.records(part)]
            captions[part] = [captions_of_pair for captions_of_pair in texts if captions_of_pair]
            continue
        source = data.pairs_of(part)
        captions[part] = [source.captions(index) for index in range(len(source))]
    statistics = split_statistics(captions)
    columns = [["", *(label for label, _ in next(iter(statistics.values())).rows())]]
    columns += [[part, *(value for _, value in part_statistics.rows())] for part, part_statistics in statistics.items()]
    widths = [max(map(len, column)) for column in columns]
    for label, *values in zip(*columns, strict=True):
        print("  ".join([label.ljust(widths[0]), *map(str.rjust, values, widths[1:])]))
    return 0


def verify(folder: Path) -> int:
    """Check the hashes of all stores in a folder and its subfolders, and list damaged ones.

    Args:
        folder: folder with stores of images, features, rendered pairs, records, procedures, or scores of a reference
            policy.

    Returns:
        1 if a store is damaged.
    """
    from lightning_idc.data.store.reader import faults, stores_below

    stores = stores_below(folder.expanduser())
    if not stores:
        raise DatasetNotFoundError(
            f"no manifest.json in {str(folder)!r} or its subfolders; expected a folder of stores"
        )
    damaged = 0
    for store in stores:
        messages = faults(store)
        damaged += bool(messages)
        print(f"{store}: {'; '.join(messages) or 'intact'}")
    print(f"{len(stores)} stores, {damaged} damaged")
    return 1 if damaged else 0


def refilter(folder: Path, *, out: Path, preset: str = "paper") -> int:
    """Apply the thresholds of a preset to records with scores (`filters: scores`), without models.

    Args:
        folder: store of the last stage.
        out: new store.
        preset: name of the preset, such as paper, table17_1 to table17_4, scripts, data_juicer.
    """
    from lightning_idc.methods.img_diff.filtering import Refilter
    from lightning_idc.synthesis.run import run as make_records

    make_records(Refilter(preset), str(folder.expanduser()), out.expanduser())
    return 0


def export(
    name: str,
    *,
    out: str,
    format: Literal["trl", "ms-swift", "llamafactory", "parquet", "webdataset", "jsonl"] = "parquet",
    split: Literal["train", "val", "test"] | None = None,
    negatives: str | None = None,
    model: str | None = None,
    rows_per_pair: int = 1,
    rejected_images: Literal["identical", "swapped"] | None = None,
    prompt: str | None = None,
    seed: int = 0,
    dropped: bool = False,
    overwrite: bool = False,
    **keys: Any,
) -> int:
    """Write pairs, or the records of a store, as files for other trainers and dataset libraries.

    Args:
        name: a name of `lightning-idc list data`, or the class path of your PairDataModule; further options, such as
            --root DIR, are its arguments. Or a store of records.
        out: new folder; for records also a URL of fsspec such as s3://bucket/name.
        format: trl, ms-swift or llamafactory: their columns; parquet or webdataset: plain columns; jsonl: JSON lines of
            data-juicer, for records.
        split: split to export; all splits by default.
        negatives: source of rejected captions, such as RandomCaption or {class: AdversarialRetriever, weights: FILE}.
        model: captioner for sources that read its features or sample from it, as in `describe`.
        rows_per_pair: maximum number of rows per pair, each with another chosen caption.
        rejected_images: additional images for which the caption is wrong, the first image twice or in reverse order.
        prompt: prompt of pairs without a question of their own.
        seed: seed of the rejected captions.
        dropped: include records that a filter dropped.
        overwrite: let the output replace other files.
    """
    if (Path(name).expanduser() / "manifest.json").is_file():
        return _export_records(Path(name).expanduser(), out, format, dropped, keys)
    if format == "jsonl":
        raise ConfigError("jsonl is the format of records; expected trl, ms-swift, llamafactory, parquet or webdataset")
    from lightning_idc.data.export.files import export_pairs
    from lightning_idc.data.export.rows import PROMPT

    data = _build(name, "export", keys)
    data.prepare_data()
    splits = [split] if split else list(data.available_splits)
    rejected = None
    if negatives is not None:
        from lightning_idc.cli.configuration import parse_value
        from lightning_idc.methods.adpo.drawing import draw_all
        from lightning_idc.serve.opening import load

        value = parse_value(negatives)
        source = build_objects({"class": value} if isinstance(value, str) else value)
        captioner = None if model is None else load(model)
        rejected = {part: draw_all(source, data, part, rows_per_pair, captioner, seed) for part in splits}
    elif model is not None:
        raise ConfigError("--model is the captioner of --negatives; expected both or neither")
    counts = export_pairs(
        data,
        out,
        format,
        splits,
        rejected=rejected,
        rejected_images=rejected_images,
        rows_per_pair=rows_per_pair,
        prompt=PROMPT if prompt is None else prompt,
        overwrite=overwrite,
    )
    print(f"{', '.join(f'{count:,} rows of {part}' for part, count in counts.items())} in {out}")
    return 0


def _export_records(folder: Path, out: str, format: str, dropped: bool, keys: dict[str, Any]) -> int:
    from lightning_idc.synthesis.export import LAYOUTS, export_records
    from lightning_idc.synthesis.store import RecordStore

    layout = next((layout for layout in LAYOUTS if layout == format), None)
    if layout is None or keys:
        unread = f"--{next(iter(keys))}" if layout else f"--format {format}"
        raise ConfigError(f"{unread} is an option of pairs; {str(folder)!r} is a store of records")
    written = export_records(RecordStore(folder), out, layout, dropped=dropped)
    print(f"{len(written)} files in {hide_passwords(out)}")
    return 0


def build_objects(value: Any) -> Any:
    """Value with every ``{class: NAME, argument: value}`` in it replaced by an object of that class.

    Raises:
        ConfigError: a class or an argument is unknown.

    Example:
        >>> build_objects({"class": "RandomCaption", "candidates": 8}).candidates
        8
    """
    if isinstance(value, list):
        return [build_objects(item) for item in value]
    if not isinstance(value, dict):
        return value
    arguments = {key: build_objects(item) for key, item in value.items()}
    if "class" not in arguments:
        return arguments
    from lightning_idc.cli.signatures import check_arguments
    from lightning_idc.utils.names import class_of, full_name

    path = full_name(arguments.pop("class"))
    check_arguments(arguments, path, path.rpartition(".")[2])
    return class_of(path)(**arguments)


def push(folder: Path, repo: str, *, public: bool = False, overwrite: bool = False) -> int:
    """Upload the records that passed all filters to the Hugging Face hub, with a card on how they were made.

    Args:
        folder: store of records.
        repo: OWNER/NAME on the hub.
        public: make a new data set public; it is private otherwise.
        overwrite: replace files of the data set that this command did not upload.
    """
    from lightning_idc.synthesis.hub import push_records
    from lightning_idc.synthesis.store import RecordStore

    print(push_records(RecordStore(folder.expanduser()), repo, private=not public, overwrite=overwrite))
    return 0


COMMANDS: dict[str, Callable[..., int]] = {
    "check": check,
    "prepare": prepare,
    "count": count,
    "verify": verify,
    "refilter": refilter,
    "export": export,
    "push": push,
}
"""Sub-verbs of `data`: about a data module, about the stores of `data verify`, or, as `export`, about both."""


def _say(line: str) -> None:
    print(printable(line), flush=True)


def _report(problems: list[str]) -> int:
    for problem in problems:
        _say(f"problem: {problem}")
    print("no problems" if not problems else "1 problem" if len(problems) == 1 else f"{len(problems)} problems")
    return 1 if problems else 0


def _build(name: str, verb: str, arguments: dict[str, Any]) -> PairDataModule:
    """Create a data module by name or class path."""
    from lightning_idc.cli.signatures import check_arguments
    from lightning_idc.data.datamodule import PairDataModule
    from lightning_idc.utils.names import class_of, full_name, is_public, nearest

    modules = data_modules()
    if name not in modules and "." not in name and not is_public(name):
        raise ConfigError(f"no data module is called {name!r}; {nearest(name, modules)}")
    kind = class_of(modules.get(name, name))
    if not inspect.isclass(kind) or not issubclass(kind, PairDataModule):
        raise ConfigError(f"{name} is not a PairDataModule, so there is nothing to {verb}")
    check_arguments(arguments, full_name(modules.get(name, name)), f"data {verb} {name}")
    parameters = inspect.signature(kind).parameters.values()
    missing = [
        p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in arguments
    ]
    if missing:
        raise ConfigError(f"data {verb} {name} needs --{missing[0]} VALUE")
    return kind(**build_objects(arguments))
