"""Files of an export: Parquet with embedded images, JSON Lines with image files, or tar files of WebDataset."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.export.layouts import COLUMNS, SIDES_OF, Format, llama_factory_info, shared_columns
from lightning_idc.data.export.rows import PROMPT, ExportRow, ExportRows, RejectedImages
from lightning_idc.data.splits import Split
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import Output

ROWS_PER_FILE = 1000
_ROWS_PER_GROUP = 100
"""Rows of a Parquet row group, which readers hold in memory."""


def export_pairs(
    data: PairDataModule,
    out: str | Path,
    format: Format,
    splits: Sequence[Split] | None = None,
    rejected: Mapping[Split, Sequence[Sequence[str]]] | None = None,
    rejected_images: RejectedImages | None = None,
    rows_per_pair: PositiveInt = 1,
    prompt: str = PROMPT,
    overwrite: bool = False,
) -> dict[Split, int]:
    """Write the pairs of a data module as files for another trainer or for a dataset library.

    Images are written losslessly, at the ``image_size`` of the data module or their original size. Every row has the
    columns ``id``, ``captions`` (all references), ``change_type``, ``difficulty``, ``difficulty_level``, ``boxes`` and
    ``facts``.

    Args:
        data: benchmark, folder, mixture or rendered pairs.
        out: folder to write.
        format: ``trl``: Parquet with ``images``, ``prompt``, ``chosen`` and ``rejected`` (``completion`` without
            negatives); ``ms-swift`` and ``llamafactory``: JSON Lines next to image files; ``parquet``: columns
            ``before`` and ``after``; ``webdataset``: tar files.
        splits: splits to export; all that the data have when None.
        rejected: rejected captions of each pair by split, such as :func:`lightning_idc.methods.adpo.drawing.draw_all`
            makes; None for an export without negatives.
        rejected_images: additional column of images for which the caption is wrong: the first image twice or both in
            reverse order; ms-swift trains on it.
        rows_per_pair: maximum number of rows per pair, each with another chosen caption.
        prompt: prompt of pairs without a question of their own.
        overwrite: whether files of others in ``out`` may be replaced.

    Returns:
        Number of rows by split.

    Raises:
        DataError: an image cannot be read or is not an image of one or three channels, or a split has no row.
        ConfigError: ``out`` holds other files.

    Example:
        >>> from lightning_idc.data import FolderPairs
        >>> export_pairs(FolderPairs("my_pairs"), "out", "ms-swift", splits=["train"])  # doctest: +SKIP
        {'train': 80}
    """
    check_arguments(export_pairs, locals())
    data.prepare_data()
    counts: dict[Split, int] = {}
    with Output(out, "data export", overwrite) as draft:
        for split in splits or data.available_splits:
            rows = ExportRows(data, split, None if rejected is None else rejected[split], rows_per_pair, prompt)
            if not len(rows):
                raise DataError(f"the split {split!r} has no pair with a caption; expected at least one")
            writer = {"trl": _write_parquet, "parquet": _write_parquet, "webdataset": _write_tar}.get(
                format, _write_lines
            )
            writer(draft, split, rows, format, rejected_images)
            counts[split] = len(rows)
        if format == "llamafactory":
            text = json.dumps(llama_factory_info(list(counts), rejected is not None), indent=1)
            write_content(draft / "dataset_info.json", text)
    return counts


def _parts(rows: ExportRows, split: str, suffix: str) -> Iterator[tuple[str, Iterable[tuple[int, ExportRow]]]]:
    """Name of each file with the numbered rows that it holds; `datasets` reads the split from the name."""
    numbered, total = enumerate(rows), -(-len(rows) // ROWS_PER_FILE)
    for part in range(total):
        yield f"{split}-{part:05d}-of-{total:05d}.{suffix}", islice(numbered, ROWS_PER_FILE)


def _image_columns(
    number: int, row: ExportRow, rejected_images: RejectedImages | None
) -> dict[str, list[tuple[str, bytes]]]:
    """Names and contents of the images of a row by column."""
    files = [(f"{number:08d}.{side}.png", data) for side, data in zip(("before", "after"), row.images, strict=True)]
    columns = {"images": files}
    if rejected_images is not None:
        columns["rejected_images"] = [files[side] for side in SIDES_OF[rejected_images]]
    return columns


def _write_parquet(
    folder: Path, split: str, rows: ExportRows, format: Format, rejected_images: RejectedImages | None
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _features(format, rows.rejected is not None, rejected_images).arrow_schema
    for name, part in _parts(rows, split, "parquet"):
        # readers can verify the checksum of each page
        with pq.ParquetWriter(folder / name, schema, write_page_checksum=True) as writer:
            while group := list(islice(part, _ROWS_PER_GROUP)):
                cells = [_cells(number, row, format, rejected_images) for number, row in group]
                writer.write_table(pa.Table.from_pylist(cells, schema=schema))


def _cells(number: int, row: ExportRow, format: Format, rejected_images: RejectedImages | None) -> dict[str, Any]:
    cells = {**shared_columns(row), **COLUMNS[format](row)}
    for column, files in _image_columns(number, row, rejected_images).items():
        images = [{"bytes": data, "path": name} for name, data in files]
        cells |= {column: images} if format == "trl" else dict(zip(_plain_names(column), images, strict=True))
    return cells


def _plain_names(column: str) -> tuple[str, str]:
    prefix = column.removesuffix("images")
    return f"{prefix}before", f"{prefix}after"


def _features(format: Format, has_rejected: bool, rejected_images: RejectedImages | None) -> Any:
    """Column types, which `datasets` reads from the file."""
    from datasets import Features, Image, List, Value

    text = Value("string")
    answer = List({"role": text, "content": text}) if format == "trl" else text
    columns: dict[str, Any] = {name: text for name in ("id", "change_type", "difficulty_level", "facts")}
    columns |= {"captions": List(text), "difficulty": Value("float64"), "prompt": answer}
    columns["boxes"] = List(List(List(Value("float32"))))
    if has_rejected:
        columns |= {"chosen": answer, "rejected": answer}
    elif format == "trl":
        columns["completion"] = answer
    for column in ("images", *(["rejected_images"] if rejected_images else [])):
        if format == "trl":
            columns[column] = List(Image())
        else:
            columns |= {name: Image() for name in _plain_names(column)}
    return Features(columns)


def _write_tar(
    folder: Path, split: str, rows: ExportRows, format: Format, rejected_images: RejectedImages | None
) -> None:
    for name, part in _parts(rows, split, "tar"):
        with tarfile.open(folder / name, "w") as archive:
            for number, row in part:
                key = f"{number:08d}"
                for column, files in _image_columns(number, row, rejected_images).items():
                    for side, (_, data) in zip(_plain_names(column), files, strict=True):
                        _add(archive, f"{key}.{side}.png", data)
                _add(archive, f"{key}.txt", (row.chosen or "").encode())
                _add(archive, f"{key}.json", _json({**shared_columns(row), **COLUMNS[format](row)}).encode())


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _write_lines(
    folder: Path, split: str, rows: ExportRows, format: Format, rejected_images: RejectedImages | None
) -> None:
    images = folder / "images" / split
    images.mkdir(parents=True)
    numbers: dict[str, int] = {}
    with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            # all rows of a pair refer to the same files
            is_new = row.id not in numbers
            columns = _image_columns(numbers.setdefault(row.id, len(numbers)), row, rejected_images)
            if is_new:
                for name, data in columns["images"]:
                    (images / name).write_bytes(data)
            paths = {column: [f"images/{split}/{name}" for name, _ in files] for column, files in columns.items()}
            file.write(_json({**shared_columns(row), **COLUMNS[format](row), **paths}) + "\n")


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False)
