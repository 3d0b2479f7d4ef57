"""Load tables of Hugging Face `datasets` from files, folders and the hub; a local table sends no requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import ConfigError, DataError, IDCError

_BUILDERS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".tar": "webdataset",
}
_TAR_BLOCK = 512


def _check_no_addresses(folder: Path) -> None:
    """Check that the README of a folder has no URLs, as `datasets` requests these before it lists the files.

    Raises:
        DataError: the README contains a URL.
    """
    from huggingface_hub import DatasetCard

    if not (folder / "README.md").is_file():
        return
    values: list[Any] = [
        DatasetCard.load(folder / "README.md", ignore_metadata_errors=True).data.to_dict().get("configs")
    ]
    while values:
        value = values.pop()
        if isinstance(value, str) and "://" in value:
            raise DataError(f"the README of {str(folder)!r} names {value!r}; only files below the folder are read")
        if isinstance(value, (list, dict)):
            values.extend(value.values() if isinstance(value, dict) else value)


def _check_files_below(folder: Path, files: Mapping[str, Sequence[str]] | None) -> None:
    """Check that all files in the README of a folder are below the folder.

    Raises:
        DataError: a file is outside the folder.
    """
    base = folder.resolve()
    for name in (name for names in (files or {}).values() for name in names):
        if "://" in str(name) or not Path(str(name)).resolve().is_relative_to(base):
            raise DataError(f"the README of {str(folder)!r} names {str(name)!r}; only files below the folder are read")


def _check_is_complete(archive: Path) -> None:
    """Check that a tar ends with a block of zeros; readers take one that is cut off between two files for complete.

    Raises:
        DataError: the archive is cut off.
    """
    with archive.open("rb") as file:
        file.seek(max(0, archive.stat().st_size - _TAR_BLOCK))
        if file.read(_TAR_BLOCK) != bytes(_TAR_BLOCK):
            raise DataError(f"{str(archive)!r} is cut off: it does not end as a tar; download it again")


def _text(field: str) -> str | None:
    return field or None


def load_tables(path: str, config: str | None = None, texts: Sequence[str] = ()) -> Any:
    """Load the tables of a path or a name on the hub, by split.

    `datasets` infers splits from file names such as ``train-00000.parquet`` or ``data/test/0.parquet``.

    Args:
        path: file, folder, or name on the hub.
        config: configuration name of a data set on the hub that has several.
        texts: text columns of a local CSV, which are not converted to numbers.

    Raises:
        ConfigError: the package datasets is missing, or the file has an unknown extension.
        DataError: the table cannot be loaded.
    """
    try:
        import datasets
        from datasets.packaged_modules.csv.csv import CsvConfig
    except ImportError as error:
        raise ConfigError("tables of Hugging Face need the package datasets: pip install datasets") from error
    local = Path(path).expanduser()
    # pandas would read texts such as "None" and "NA" as missing, and ids such as 007 as numbers
    csv_options = {"keep_default_na": False, "na_values": [""], "converters": dict.fromkeys(texts, _text)}
    for archive in [local] if local.suffix == ".tar" and local.is_file() else sorted(local.rglob("*.tar")):
        _check_is_complete(archive)
    try:
        if local.is_file():
            if local.suffix not in _BUILDERS:
                raise ConfigError(f"{path} is not a table; expected one of {', '.join(_BUILDERS)}")
            builder = _BUILDERS[local.suffix]
            return datasets.load_dataset(builder, data_files=str(local), **(csv_options if builder == "csv" else {}))
        if local.is_dir() and any((local / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
            loaded = datasets.load_from_disk(str(local))
            return loaded if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
        if local.is_dir():
            _check_no_addresses(local)
            loaded = datasets.load_dataset_builder(str(local), config).config
            _check_files_below(local, loaded.data_files)
            return datasets.load_dataset(str(local), config, **(csv_options if isinstance(loaded, CsvConfig) else {}))
        return datasets.load_dataset(path, config)
    except IDCError:
        raise
    except Exception as error:  # datasets passes on errors of many packages
        hint = "" if local.exists() else "; no such file or folder exists either"
        raise DataError(f"the table {path!r} cannot be loaded: {type(error).__name__}: {error}{hint}") from error
