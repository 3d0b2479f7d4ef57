"""Files that hold captions, references or answers, told apart by what is in them: COCO annotations, maps, records."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lightning_idc.metrics.captions import some
from lightning_idc.utils.errors import DataError

MOST_BYTES = 1 << 30
IDS = ("image_id", "id", "img_id", "uid", "filename", "sample_id")
SAID = ("caption", "prediction", "text")
"""Fields that hold a caption; a record with several that differ is refused unless one is named."""
EXPECTED = ("references", "captions", "sentences", "sents", "caption", "description")


class Content:
    """A parsed file: COCO annotations, a map, or records.

    Args:
        path: of the file.

    Raises:
        DataError: it cannot be read or parsed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.name
        data = unpacked(self.path)
        self.digest = hashlib.sha256(data).hexdigest()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.name} is not UTF-8 text: {error.reason} at byte {error.start}") from None
        if not text.strip():
            raise DataError(f"{self.name} is empty")
        if text.lstrip()[:1] == "<":
            raise DataError(f"{self.name} is an HTML or XML page, not JSON; was an error page saved in its place?")
        self.items: Any = {}
        self.lines = False
        try:
            value = self._parsed(text, self.name)
        except _NotOneDocument:
            self.lines = True
            value = list(self._by_line(text))
        if isinstance(value, dict) and isinstance(value.get("images"), list):
            listed = value["images"]
            self.form = "coco" if isinstance(value.get("annotations"), list) else "records"
            self.items = value if self.form == "coco" else listed
        elif isinstance(value, dict) and isinstance(value.get("annotations"), list):
            self.form, self.items = "coco", value
        elif isinstance(value, dict) and not (self._is_record(value)):
            self.form, self.items = "map", value
        elif isinstance(value, list | dict):
            self.form, self.items = "records", value if isinstance(value, list) else [value]
        else:
            raise DataError(f"{self.name} holds {short(value)}; expected a list of records, or a map from id to text")

    @staticmethod
    def _is_record(value: dict[str, Any]) -> bool:
        """Whether a lone object is one line of JSONL: it has an id, and texts or pictures beside it."""
        named = any(isinstance(value.get(key), str | int) for key in IDS)
        return named and any(key in value for key in (*SAID, *EXPECTED)) and len(value) > 1

    def records(self) -> Iterator[tuple[str, Any]]:
        """Records with their places; one that COCO annotations are not.

        Raises:
            DataError: the file holds no records.
        """
        if self.form != "records":
            raise DataError(
                f"{self.name} holds COCO annotations, which are references, not captions; "
                "captions are a list of records with image_id and caption"
                if self.form == "coco"
                else f"{self.name} holds a map; expected a list of records"
            )
        word = "line" if self.lines else "record"
        return ((f"{self.name}, {word} {number}", record) for number, record in enumerate(self.items, 1))

    def _by_line(self, text: str) -> Iterator[Any]:
        # split at line feeds only: JSON may hold U+2028 as it is
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    yield self._parsed(line, f"{self.name}, line {number}")
                except _NotOneDocument as error:
                    raise DataError(f"{self.name}, line {number}: {error}; expected one JSON object") from None

    @staticmethod
    def _parsed(text: str, where: str) -> Any:
        try:
            return json.loads(text, object_pairs_hook=_no_twins(where), parse_constant=_no_constant(where))
        except json.JSONDecodeError as error:
            if error.msg == "Extra data" or (error.lineno == 1 and "\n" in text.strip()):
                raise _NotOneDocument(str(error)) from None
            if error.msg == "Expecting value" and not text[: error.pos].strip():
                start = short(text.strip().partition("\n")[0])
                raise DataError(
                    f"{where} is not JSON, but begins with {start}; expected a JSON document, or a JSON object a line "
                    "(JSONL)"
                ) from None
            raise DataError(f"{where} is not JSON: {error}") from None
        except DataError:  # of the two hooks; it is a ValueError, too
            raise
        except RecursionError:
            raise DataError(f"{where} is nested too deeply to be a file of captions") from None
        except ValueError as error:  # a number of thousands of digits
            raise DataError(f"{where} is not JSON: {error}") from None


class _NotOneDocument(ValueError):
    """The text is not a single JSON document, but may be one a line."""


def _no_twins(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]
            raise DataError(f"{where} has {some(twice)} twice; the first would be lost")
        return found

    return build


def _no_constant(where: str) -> Callable[[str], float]:
    def refuse(name: str) -> float:
        raise DataError(f"{where} holds {name}, which is not JSON")

    return refuse


def unpacked(path: Path) -> bytes:
    """Bytes of a file, unpacked where it is a gzip.

    Raises:
        DataError: it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} cannot be read: {error}") from None
    if len(data) > MOST_BYTES:
        raise DataError(f"{path.name} holds more than {MOST_BYTES >> 20} MiB, unpacked; no file of captions does")
    return data


def writable(text: str, where: str) -> str:
    """The text, refused where it cannot be written out again.

    Raises:
        DataError: it cannot.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{where} holds half of a character (a lone surrogate); write it as UTF-8 again") from None
    return text


def short(value: Any) -> str:
    """A value for a message."""
    text = repr(value) if not isinstance(value, dict | list) else f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else text[:57] + "..."
