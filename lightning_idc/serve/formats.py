"""Files of answers about many pairs: JSON lines, CSV, Parquet, reg-cli's reg.json and JUnit's XML."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from lightning_idc.callbacks.write_predictions import line_of
from lightning_idc.images.images import open_pair, resize
from lightning_idc.images.value_range import ImageOptions
from lightning_idc.report.html import Entry, write_report
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import atomic_write
from lightning_idc.utils.paths import check_target

STATES = ("changed", "differs", "new", "deleted", "failed", "unchanged")
"""Of pairs in reports; ``differs`` are those of :func:`by_pixels`."""
KINDS = (".jsonl", ".csv", ".parquet")
Record = Mapping[str, Any]


def check_out(out: Path) -> Path:
    """The file to write, whose folder is made where it is missing.

    Raises:
        ConfigError: its ending names no format, or there can be no such folder.
    """
    if out.suffix.lower() not in KINDS:
        raise ConfigError(f"--out {str(out)!r}: expected a name that ends with {', '.join(KINDS)}")
    check_folder("--out", out.expanduser())
    return out.expanduser()


def check_folder(option: str, file: Path) -> None:
    """Make the folder of a file, and see that the file is none, before the work whose result it is to hold.

    Args:
        option: that names the file.
        file: to write later.

    Raises:
        ConfigError: there can be no such folder, or the file is a folder.
    """
    check_target(option, file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{option} {str(file)!r} cannot be written ({error.strerror}); name a file in a folder that can be made"
        ) from error


def write_records(records: Sequence[Record], out: Path) -> None:
    """Write one record per pair in the format of the file's ending.

    Args:
        records: with equal names; ``boxes`` is a list of lists, text in CSV.
        out: the file.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    kind = out.suffix.lower()
    if kind == ".jsonl":
        atomic_write(out, "".join(line_of(dict(record)) for record in records))
    elif kind == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({**record, "boxes": json.dumps(record["boxes"])} for record in records)
        atomic_write(out, text.getvalue().encode("utf-8", "replace"))
    else:
        import pyarrow
        from pyarrow import parquet

        names = {"change_score": pyarrow.float64(), "log_prob": pyarrow.float64(), "described": pyarrow.bool_()}
        boxes = pyarrow.list_(pyarrow.list_(pyarrow.int64()))
        schema = pyarrow.schema(
            [(name, boxes if name == "boxes" else names.get(name, pyarrow.string())) for name in records[0]]
        )
        table = pyarrow.Table.from_pylist([dict(record) for record in records], schema)
        atomic_write(out, lambda path: parquet.write_table(table, path))


def counts(records: Sequence[Record]) -> str:
    """How many pairs are of each state, as a sentence."""
    found = Counter(record["status"] for record in records)
    described = sum(record["described"] for record in records)
    parts = [f"{found[state]} {state}" for state in ("unchanged", *STATES[:-1]) if found[state]]
    return f"{len(records)} pairs: {', '.join(parts)}; {described} described"


def by_pixels(records: Sequence[Record]) -> list[Record]:
    """Records as ``--fail-on pixels`` judges them: a described pair that the captioner takes for unchanged ``differs``.

    Only pairs of which a pixel differs are described.
    """
    return [
        {**record, "status": "differs"} if record["status"] == "unchanged" and record["described"] else record
        for record in records
    ]


def write_reg(records: Sequence[Record], before: str, after: str, target: Path) -> None:
    """Write what reg-cli writes as ``reg.json``, for reporters that read it.

    Args:
        records: of :func:`~lightning_idc.serve.batch.run_batch`.
        before: folder of the first images.
        after: folder of the second images.
        target: the file.
    """
    roots = {"before": Path(before).resolve(), "after": Path(after).resolve()}

    def name(record: Record, side: str) -> str:
        return os.path.relpath(record[side], roots[side])

    def names(*states: str, side: str = "after") -> list[str]:
        return [name(record, side) for record in records if record["status"] in states and record[side]]

    failed = names("changed", "differs", "failed")
    value = {
        "failedItems": failed,
        "newItems": names("new"),
        "deletedItems": names("deleted", side="before"),
        "passedItems": names("unchanged"),
        "expectedItems": names("changed", "differs", "failed", "unchanged", "deleted", side="before"),
        "actualItems": names("changed", "differs", "failed", "unchanged", "new"),
        "diffItems": failed,
        "actualDir": after,
        "expectedDir": before,
        "diffDir": "",
        "captions": {name(record, "after"): record["caption"] for record in records if record["caption"]},
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_junit(records: Sequence[Record], target: Path) -> None:
    """Write a JUnit report: a test per pair, failed where something changed, in error where it could not be read.

    Args:
        records: of :func:`~lightning_idc.serve.batch.run_batch`.
        target: the file.
    """
    found = Counter(record["status"] for record in records)
    changed = found["changed"] + found["differs"] + found["new"] + found["deleted"]
    totals = {"tests": str(len(records)), "failures": str(changed), "errors": str(found["failed"])}
    suites = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "lightning-idc compare", **totals})
    for record in records:
        case = ElementTree.SubElement(suite, "testcase", {"name": _xml(record["id"]), "classname": "compare"})
        if record["status"] == "failed":
            ElementTree.SubElement(case, "error", {"message": _xml(record["error"])})
        elif record["status"] != "unchanged":
            said = record["caption"] or f"the image is {record['status']}"
            if record["status"] == "differs":
                said = f"pixels differ, and the captioner says: {record['caption']}"
            failure = ElementTree.SubElement(case, "failure", {"message": _xml(said), "type": record["status"]})
            failure.text = _xml(f"before: {record['before']}\nafter: {record['after']}\nboxes: {record['boxes']}")
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True))


def write_html(records: Sequence[Record], title: str, options: ImageOptions, target: Path) -> None:
    """Write a page with both images of every pair, what was said and where, the changed ones first.

    Args:
        records: of :func:`~lightning_idc.serve.batch.run_batch`.
        title: heading.
        options: how images are read.
        target: the file; pictures of greater size lie in a folder beside it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(records, key=lambda record: STATES.index(record["status"]))
    pictures = target.with_name(f"{target.stem}_pictures")

    def write(path: Path) -> None:
        entries = (_entry(record, options) for record in ordered)
        write_report(
            path, title, entries, subtitle=counts(records), pictures=pictures, name=target.name, found_boxes=True
        )

    atomic_write(target, write)


def _entry(record: Record, options: ImageOptions) -> Entry:
    said = record["caption"] or record["error"] or f"the image is {record['status']}"
    found = Entry(record["id"], said, [], record["status"], record["log_prob"], change_score=record["change_score"])
    if record["before"] and record["after"] and record["status"] != "failed":
        first, second = open_pair(record["before"], record["after"], options)
        # pages show three bands; of others the first ones
        pair = [(image if len(image) > 2 else image[:1].expand(3, -1, -1))[:3] for image in (first, second)]
        found.images = pair[0], resize(pair[1], (first.shape[1], first.shape[2]))
        found.boxes = torch.tensor(record["boxes"], dtype=torch.float32).view(-1, 1, 4).expand(-1, 2, -1)
    return found


def _xml(text: str) -> str:
    """Text without what XML 1.0 does not allow."""
    return "".join(
        c if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?" for c in text
    )
