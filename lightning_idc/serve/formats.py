"""Output files of answers about many pairs: JSON lines, CSV, Parquet and JUnit's XML."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from lightning_idc.callbacks.write_predictions import line_of
from lightning_idc.images.options import ImageOptions
from lightning_idc.images.read import read_pair
from lightning_idc.report.html import Entry, check_report, image_folder, write_report
from lightning_idc.serve.pairs import FilePair, sides_of
from lightning_idc.serve.reg import check_reg, diff_folder
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import check_disjoint, check_file, write_file

STATES = ("changed", "differs", "new", "deleted", "failed", "unchanged")
"""States of pairs in reports; see :func:`by_pixels` for ``differs``."""
FORMATS = (".jsonl", ".csv", ".parquet")
Record = Mapping[str, Any]
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of texts that spreadsheets run as formulas; the last four are the first four in full width."""


def check_outputs(
    out: Path,
    inputs: Sequence[str | Path],
    overwrite: bool = False,
    *,
    reports: Mapping[str, Path | None] | None = None,
    page: Path | None = None,
    reg: Path | None = None,
    pairs: Sequence[FilePair] = (),
) -> Path:
    """Check that all output files of a command can be written, before its work begins.

    Args:
        out: file of the records.
        inputs: input files and folders, which are not overwritten.
        overwrite: whether existing files may be replaced.
        reports: further files by option; None for options that are not set.
        page: HTML report, which may have a folder of images.
        reg: reg-cli's ``reg.json``, which has a folder of difference images.
        pairs: pairs in the reports.

    Returns:
        The file of the records, with ``~`` expanded.

    Raises:
        ConfigError: the ending of ``out`` is not a supported format, or a file cannot be written.
    """
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {str(out)!r}: expected a name that ends with {', '.join(FORMATS)}")
    out, files = out.expanduser(), {"--out": out, **(reports or {})}
    folders = {
        "the images of --report": None if page is None else image_folder(page),
        "the images of --reg": None if reg is None else diff_folder(reg),
    }
    check_disjoint({**files, "--report": page, "--reg": reg, **folders})
    for option, file in files.items():
        if file is not None:
            check_file(option, file, inputs, overwrite)
            _make_folder(option, file)
    if page is not None:
        check_report(page, overwrite, inputs, "--report")
        _make_folder("--report", page)
    if reg is not None:
        check_reg(reg, pairs, overwrite, inputs)
        _make_folder("--reg", reg)
    return out


def inputs_of(paths: Sequence[str | Path], pairs: Sequence[FilePair]) -> list[Path]:
    """Input files and folders: the folders of images, or a table and its images.

    Args:
        paths: paths of :func:`~lightning_idc.serve.pairs.list_pairs`.
        pairs: pairs of these paths.
    """
    inputs = [Path(path).expanduser() for path in paths]
    if len(inputs) == 2 and all(path.is_dir() for path in inputs):
        return inputs
    if len(inputs) == 1 and inputs[0].is_dir():
        return list(sides_of(inputs[0]))
    return [*inputs, *(path for pair in pairs for path in (pair.before, pair.after) if path is not None)]


def _make_folder(option: str, file: Path) -> None:
    try:
        file.expanduser().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{option} {str(file)!r} cannot be written ({error.strerror}); choose a file in a writable folder"
        ) from error


def write_records(records: Sequence[Record], out: Path, overwrite: bool = False) -> None:
    """Write one record per pair in the format of the file ending.

    Args:
        records: records with equal keys; ``boxes`` is a list of lists, written as JSON in CSV.
        out: output file.
        overwrite: whether an existing file may be replaced.
    """
    suffix = out.suffix.lower()
    if suffix == ".jsonl":
        write_file(out, "".join(line_of(dict(record)) for record in records), overwrite)
    elif suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
        writer.writeheader()
        for record in records:
            cells = {name: _as_cell(value) for name, value in record.items()}
            writer.writerow({**cells, "boxes": json.dumps(record["boxes"])})
        write_file(out, text.getvalue().encode("utf-8", "replace"), overwrite)
    else:
        import pyarrow
        from pyarrow import parquet

        names = {
            "change_score": pyarrow.float64(),
            "log_prob": pyarrow.float64(),
            "described": pyarrow.bool_(),
            "page": pyarrow.int64(),
        }
        boxes = pyarrow.list_(pyarrow.list_(pyarrow.int64()))
        schema = pyarrow.schema(
            [(name, boxes if name == "boxes" else names.get(name, pyarrow.string())) for name in records[0]]
        )
        table = pyarrow.Table.from_pylist([dict(record) for record in records], schema)
        write_file(out, lambda path: parquet.write_table(table, path), overwrite)


def _as_cell(value: Any) -> Any:
    """Text escaped for spreadsheets; other values unchanged."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def state_counts(records: Sequence[Record]) -> str:
    """Number of pairs in each state, in words."""
    by_state = Counter(record["status"] for record in records)
    described = sum(record["described"] for record in records)
    parts = [f"{by_state[state]} {state}" for state in ("unchanged", *STATES[:-1]) if by_state[state]]
    return f"{len(records)} pairs: {', '.join(parts)}; {described} described"


def by_pixels(records: Sequence[Record]) -> list[Record]:
    """Records for ``--fail_on pixels``: a captioned pair that its caption calls unchanged has the state ``differs``.

    Only pairs that the gate calls changed are captioned.
    """
    return [
        {**record, "status": "differs"} if record["status"] == "unchanged" and record["described"] else record
        for record in records
    ]


def write_junit(records: Sequence[Record], target: Path, overwrite: bool = False) -> None:
    """Write a JUnit report with a test per pair: a failure if it changed, an error if it could not be read.

    Args:
        records: records of :func:`~lightning_idc.serve.batch.run_batch`.
        target: output file.
        overwrite: whether an existing file may be replaced.
    """
    by_state = Counter(record["status"] for record in records)
    changed = by_state["changed"] + by_state["differs"] + by_state["new"] + by_state["deleted"]
    totals = {"tests": str(len(records)), "failures": str(changed), "errors": str(by_state["failed"])}
    suites = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "lightning-idc compare", **totals})
    for record in records:
        case = ElementTree.SubElement(suite, "testcase", {"name": _xml(record["id"]), "classname": "compare"})
        if record["status"] == "failed":
            ElementTree.SubElement(case, "error", {"message": _xml(record["error"])})
        elif record["status"] != "unchanged":
            message = record["caption"] or f"the image is {record['status']}"
            if record["status"] == "differs":
                message = f"pixels differ; caption: {record['caption']}"
            failure = ElementTree.SubElement(case, "failure", {"message": _xml(message), "type": record["status"]})
            details = [f"{name}: {record.get(name)}" for name in ("before", "after", "compared", "boxes")]
            failure.text = _xml("\n".join(details))
        elif record.get("noise"):
            ElementTree.SubElement(case, "system-out").text = _xml(f"{record['compared']}: {record['noise']}")
    write_file(target, ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True), overwrite)


def write_html(
    records: Sequence[Record],
    title: str,
    options: ImageOptions,
    target: Path,
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
) -> None:
    """Write an HTML report with both images, caption and boxes of every pair, changed pairs first.

    Args:
        records: records of :func:`~lightning_idc.serve.batch.run_batch`.
        title: heading.
        options: options for reading images.
        target: output file; larger images go into a folder with a derived name.
        overwrite: whether existing files may be replaced.
        inputs: input files and folders, which are not overwritten.
    """
    ordered = sorted(records, key=lambda record: STATES.index(record["status"]))
    entries = (_entry(record, options) for record in ordered)
    write_report(
        target,
        title,
        entries,
        subtitle=state_counts(records),
        full_size=True,
        predicted_boxes=True,
        overwrite=overwrite,
        inputs=inputs,
    )


def _entry(record: Record, options: ImageOptions) -> Entry:
    text = record["caption"] or record["error"] or f"the image is {record['status']}"
    entry = Entry(
        id=record["id"],
        caption=text,
        references=[],
        change_type=record["status"],
        log_prob=record["log_prob"],
        change_score=record["change_score"],
    )
    if record["before"] and record["after"] and record["status"] != "failed":
        page = options.page if options.page is not None else record["page"]
        entry.images = _on_one_canvas(*read_pair(record["before"], record["after"], replace(options, page=page)))
        entry.boxes = torch.tensor(record["boxes"], dtype=torch.float32).view(-1, 1, 4).expand(-1, 2, -1)
    return entry


def _on_one_canvas(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad two images ``(C, H, W)`` with white to one size; their upper left corners meet."""
    height, width = (max(sides) for sides in zip(first.shape[1:], second.shape[1:], strict=True))
    canvases = []
    for image in (first, second):
        canvas = image.new_full((len(image), height, width), 255)
        canvas[:, : image.shape[1], : image.shape[2]] = image
        canvases.append(canvas)
    return canvases[0], canvases[1]


def _xml(text: str) -> str:
    """Text with characters that XML 1.0 does not allow replaced."""
    return "".join(
        c if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?" for c in text
    )
