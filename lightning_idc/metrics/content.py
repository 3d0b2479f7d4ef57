"""AnnotationFile: a file of captions, references or answers, whose format (COCO, map or records) its content shows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import check_not_html, decode, parse_documents, read_bytes, short

ID_FIELDS = ("image_id", "id", "img_id", "uid", "filename", "sample_id")
CAPTION_FIELDS = ("caption", "prediction", "text")
"""Fields that hold a caption; if several of them differ, the caller has to name one."""
REFERENCE_FIELDS = ("references", "captions", "sentences", "sents", "caption", "description")


class AnnotationFile:
    """A parsed file: COCO annotations, a map, or records.

    Args:
        path: path of the file.

    Raises:
        DataError: the file cannot be read or parsed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.name
        data = read_bytes(self.path)
        self.digest = hashlib.sha256(data).hexdigest()
        text = decode(data, self.path)
        check_not_html(text, self.path)
        value, self.lines = parse_documents(text, self.path)
        self.items: Any = {}
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
        """Whether a single object is a JSONL file of one line: it has an id and texts."""
        named = any(isinstance(value.get(key), str | int) for key in ID_FIELDS)
        return named and any(key in value for key in (*CAPTION_FIELDS, *REFERENCE_FIELDS)) and len(value) > 1

    def records(self) -> Iterator[tuple[str, Any]]:
        """Records with their positions for messages.

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
        unit, numbers = ("record", range(1, len(self.items) + 1)) if self.lines is None else ("line", self.lines)
        return ((f"{self.name}, {unit} {number}", item) for number, item in zip(numbers, self.items, strict=True))
