"""Export records as Parquet, WebDataset tar files or data-juicer JSON Lines, to any fsspec file system."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from lightning_idc.synthesis.juicer import sample_of
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.errors import ConfigError, DataError

Layout = Literal["parquet", "webdataset", "jsonl"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
_SUFFIXES = {
    b"\x89PNG": "png",
    b"\xff\xd8\xff": "jpg",
    b"RIFF": "webp",
    b"BM": "bmp",
    b"GIF8": "gif",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"\0\0\0\x0cjP": "jp2",
}
"""File suffixes of encoded images by their first bytes."""


def export_records(
    store: RecordStore,
    target: str,
    layout: Layout = "parquet",
    images: Sequence[str] = ("before", "after"),
    dropped: bool = False,
    rows: int = 1000,
) -> list[str]:
    """Write the records of a store as files for other tools.

    Args:
        store: finished store.
        target: local folder or fsspec URL such as ``s3://bucket/name``; existing files are not replaced.
        layout: ``parquet``: a column per fact with its own type and one per image (bytes and path, as Hugging Face
            datasets stores them); ``webdataset``: tar files with ``NUMBER.before.png``, ``NUMBER.after.png`` and
            ``NUMBER.json``; ``jsonl``: data-juicer's format, with the images in ``images``.
        images: names of the images.
        dropped: whether to include dropped records, with the reason in the column ``dropped``.
        rows: number of records per file.

    Returns:
        Paths of the written files.

    Raises:
        ConfigError: the target holds files already, or ``rows`` is out of range.
        DataError: no record is left, or a fact has values of different types.

    Example:
        >>> export_records(RecordStore("runs/img_diff/RUN/filter/records"), "out")  # doctest: +SKIP
    """
    import fsspec

    if rows < 1:
        raise ConfigError(f"rows is {rows}; expected at least 1")
    files, folder = fsspec.core.url_to_fs(str(target))
    if files.exists(folder) and files.ls(folder):
        raise ConfigError(f"{target} is not empty; choose another target")
    files.makedirs(folder, exist_ok=True)
    exported = [number for number in range(len(store)) if dropped or store.column("dropped")[number] is None]
    if not exported:
        raise DataError(f"{store.folder} has no kept records; set dropped=True to export dropped records")
    parts = [exported[start : start + rows] for start in range(0, len(exported), rows)]
    schema = _schema(store, parts, images) if layout == "parquet" else None
    suffix, written = {"parquet": "parquet", "webdataset": "tar", "jsonl": "jsonl"}[layout], []
    if layout == "jsonl":
        files.makedirs(f"{folder}/images", exist_ok=True)
    for number, part in enumerate(parts):
        path = f"{folder}/{number:05d}-of-{len(parts):05d}.{suffix}"
        # each file is written atomically
        with files.transaction, files.open(path, "wb") as stream:
            if layout == "parquet":
                _write_parquet(stream, _rows(store, part, images), schema)
            elif layout == "jsonl":
                stream.write("".join(_lines(store, part, images, files, folder)).encode())
            else:
                _write_tar(stream, store, part, images)
        written.append(path)
    return written


def _rows(store: RecordStore, part: Sequence[int], images: Sequence[str]) -> Iterator[dict[str, Any]]:
    for number in part:
        files = {
            name: {"bytes": data, "path": f"{number:08d}.{suffix_of(data)}"}
            for name, data in _files(store, number, images)
        }
        yield {**_record_values(store, number), **{name: files.get(name) for name in images}}


def _record_values(store: RecordStore, number: int) -> dict[str, Any]:
    """Read a record as plain values, without its images."""
    facts, scores, reason = _read_facts(store, number)
    named = {f"score_{name}": value for name, value in scores.items()}
    return {"id": store.column("id")[number], "dropped": reason, **facts, **named}


def _read_facts(store: RecordStore, number: int) -> tuple[dict[str, Any], dict[str, float], str | None]:
    """Read only the facts, scores and drop reason of a record."""
    history, dropped = store.column("history")[number], store.column("dropped")[number]
    scores = {score["name"]: score["value"] for step in history for score in step["scores"]}
    return json.loads(store.column("facts")[number]), scores, None if dropped is None else dropped["reason"]


def _files(store: RecordStore, number: int, images: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in images:
        data = store.lookup(number, name)
        if data is not None:
            yield name, data


def _schema(store: RecordStore, parts: Sequence[Sequence[int]], images: Sequence[str]) -> Any:
    """Infer the column types from all records; images use the type of Hugging Face datasets."""
    import pyarrow as pa
    from datasets import Features, Image

    schema = pa.schema([])
    try:
        for part in parts:
            part_schema = pa.Table.from_pylist([_record_values(store, number) for number in part]).schema
            schema = pa.unify_schemas([schema, part_schema], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"a fact of {store.folder} has values of different types, so it cannot be a column ({error}); "
            "export it as webdataset or jsonl"
        ) from error
    features = Features.from_arrow_schema(schema)
    return Features({**features, **{name: Image() for name in images}}).arrow_schema


def _write_parquet(stream: Any, rows: Iterator[dict[str, Any]], schema: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = set(schema.names)
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows], schema=schema)
    # readers hold one row group in memory, and can verify the checksum of each page
    pq.write_table(table, stream, row_group_size=100, write_page_checksum=True)


def _write_tar(stream: Any, store: RecordStore, part: Sequence[int], images: Sequence[str]) -> None:
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for number in part:
            for name, data in _files(store, number, images):
                _add(archive, f"{number:08d}.{name}.{suffix_of(data)}", data)
            text = json.dumps(_record_values(store, number), ensure_ascii=False)
            _add(archive, f"{number:08d}.json", text.encode())


def _lines(store: RecordStore, part: Sequence[int], images: Sequence[str], files: Any, folder: str) -> Iterator[str]:
    for number in part:
        paths = []
        for name, data in _files(store, number, images):
            paths.append(f"images/{number:08d}.{name}.{suffix_of(data)}")
            files.pipe_file(f"{folder}/{paths[-1]}", data)
        facts, scores, _ = _read_facts(store, number)
        yield json.dumps(sample_of(facts, store.column("id")[number], scores, paths), ensure_ascii=False) + "\n"


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def suffix_of(data: bytes) -> str:
    """Return the file suffix of an encoded image, from its first bytes."""
    return next((suffix for start, suffix in _SUFFIXES.items() if data.startswith(start)), "bin")
