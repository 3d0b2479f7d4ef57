"""Reading files of captions, references and facts that other programs wrote: strictly, and never guessing.

Every form is told apart by its fields. What is wrong is named with its place; nothing is dropped, and no id is given a
caption that it does not have.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_idc.errors import PairError
from lightning_idc.metrics.captions import some
from lightning_idc.metrics.grouping import Truth

MOST_BYTES = 1 << 30
IDS = ("image_id", "id", "img_id", "uid", "filename", "sample_id")
SAID = ("caption", "prediction", "text")
EXPECTED = ("references", "captions", "sentences", "sents", "caption", "description")


@dataclass(frozen=True)
class Predictions:
    """Captions of a file.

    Args:
        captions: by pair.
        form: of the file, in words.
        digest: SHA-256 of the file's bytes, unpacked.
        truths: references and facts that the file has beside the captions; [] where it has none.
    """

    captions: dict[str, str]
    form: str
    digest: str
    truths: list[Truth] = field(default_factory=list)


def read_predictions(path: str | Path) -> Predictions:
    """Captions of a COCO result list, a map from id to text, this library's predictions.json, or any of them as JSONL.

    Raises:
        PairError: the file is none of these, or an id comes twice.
    """
    content = _Content(path)
    if content.form == "map":
        captions = {id: _one_text(value, f"{content.name}: {id!r}") for id, value in content.items.items()}
        return Predictions(_checked(captions, content), "map from id to text", content.digest)
    records = [(where, _record(record, where)) for where, record in content.records()]
    captions = {}
    for where, record in records:
        id = _id(record, where)
        if id in captions:
            same = "with the same caption" if captions[id] == _said(record, where) else "with another caption"
            raise PairError(f"{where}: pair {id!r} comes again, {same}; give each pair one caption")
        captions[id] = _said(record, where)
    own = bool(records) and all("references" in record for _, record in records)
    truths = [_truth(record, where) for where, record in records] if own else []
    form = "records with references" if own else "list of records"
    return Predictions(_checked(captions, content), form, content.digest, truths)


def read_truths(path: str | Path, split: str | None = None) -> list[Truth]:
    """References of COCO annotations, a map from id to texts, or records with an id and texts, also as JSONL.

    Known are the files of CLEVR-Change (as captions and reformatted), Spot-the-Diff, Image-Editing-Request, LEVIR-CC,
    and this library's predictions.json. A pair may come in several records; what that means is the protocol's matter.

    Args:
        path: of the file; ``.gz`` is unpacked.
        split: kept of records that name several splits.

    Raises:
        PairError: the file is none of these, or the split is not in it.
    """
    content = _Content(path)
    if content.form == "coco":
        return _annotated(content)
    if content.form == "map":
        return [
            Truth(id, tuple(_texts(value, f"{content.name}: {id!r}")))
            for id, value in _checked(content.items, content).items()
        ]
    records = [(where, _record(record, where)) for where, record in content.records()]
    splits = sorted({str(record["split"]) for _, record in records if "split" in record})
    if len(splits) > 1 or (splits and split not in (None, *splits)):
        if split not in splits:
            raise PairError(f"{content.name} holds the splits {', '.join(splits)}; say which with --split")
        records = [(where, record) for where, record in records if record.get("split") == split]
    if not records:
        raise PairError(f"{content.name} holds no references")
    return [_truth(record, where) for where, record in records]


def read_types(path: str | Path) -> dict[str, str]:
    """Type of change by id, from a map of types to ids (CLEVR-Change's type_mapping.json) or of ids to types.

    Raises:
        PairError: the file is neither, or an id has two types.
    """
    content = _Content(path)
    types: dict[str, str] = {}
    for key, value in _map_of(content).items():
        pairs = [(id, key) for id in value] if isinstance(value, list) else [(key, value)]
        for id, kind in pairs:
            if not isinstance(id, str) or not isinstance(kind, str):
                raise PairError(f"{content.name}: {_short(id)} has the type {_short(kind)}; expected two texts")
            if types.setdefault(id, kind) != kind:
                raise PairError(f"{content.name}: {id!r} is of type {types[id]!r} and of type {kind!r}")
    return types


def read_ious(path: str | Path) -> dict[str, float]:
    """Overlap of views by id.

    Raises:
        PairError: an overlap is no number from 0 to 1.
    """
    content = _Content(path)
    ious = {}
    for id, value in _map_of(content).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise PairError(f"{content.name}: the IoU of {id!r} is {_short(value)}; expected a number from 0 to 1")
        ious[id] = float(value)
    return ious


def read_vocabulary(path: str | Path) -> dict[str, int]:
    """Number by word.

    Raises:
        PairError: a number is none, or two words have the same.
    """
    content = _Content(path)
    words: dict[str, int] = {}
    for word, number in _map_of(content).items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise PairError(f"{content.name}: {word!r} has the number {_short(number)}; expected a whole number")
        words[word] = number
    if len(set(words.values())) < len(words):
        raise PairError(f"{content.name}: two words have one number, so their captions could not be told apart")
    return words


class _Content:
    """A parsed file: COCO annotations, a map, or records.

    Args:
        path: of the file.

    Raises:
        PairError: it cannot be read or parsed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.name
        data = unpacked(self.path)
        self.digest = hashlib.sha256(data).hexdigest()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise PairError(f"{self.name} is no UTF-8 text: {error.reason} at byte {error.start}") from None
        if not text.strip():
            raise PairError(f"{self.name} is empty")
        if text.lstrip()[:1] == "<":
            raise PairError(f"{self.name} is an HTML or XML page, not JSON; was an error page saved in its place?")
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
            raise PairError(f"{self.name} holds {_short(value)}; expected a list of records, or a map from id to text")

    @staticmethod
    def _is_record(value: dict[str, Any]) -> bool:
        """Whether a lone object is one line of JSONL: it has an id, and texts or pictures beside it."""
        named = any(isinstance(value.get(key), str | int) for key in IDS)
        return named and any(key in value for key in (*SAID, *EXPECTED)) and len(value) > 1

    def records(self) -> Iterator[tuple[str, Any]]:
        """Records with their places; one that COCO annotations are not.

        Raises:
            PairError: the file holds no records.
        """
        if self.form != "records":
            raise PairError(
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
                    raise PairError(f"{self.name}, line {number}: {error}") from None

    @staticmethod
    def _parsed(text: str, where: str) -> Any:
        try:
            return json.loads(text, object_pairs_hook=_no_twins(where), parse_constant=_no_constant(where))
        except json.JSONDecodeError as error:
            if error.msg == "Extra data" or (error.lineno == 1 and "\n" in text.strip()):
                raise _NotOneDocument(str(error)) from None
            raise PairError(f"{where} is no JSON: {error}") from None
        except RecursionError:
            raise PairError(f"{where} is nested too deeply to be a file of captions") from None
        except ValueError as error:  # a number of thousands of digits
            raise PairError(f"{where} is no JSON: {error}") from None


class _NotOneDocument(ValueError):
    """The text is no single JSON document, but may be one a line."""


def _no_twins(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]
            raise PairError(f"{where} has {some(twice)} twice; the first would be lost")
        return found

    return build


def _no_constant(where: str) -> Callable[[str], float]:
    def refuse(name: str) -> float:
        raise PairError(f"{where} holds {name}, which is no JSON")

    return refuse


def unpacked(path: Path) -> bytes:
    """Bytes of a file, unpacked where it is a gzip.

    Raises:
        PairError: it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise PairError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise PairError(f"{path.name} cannot be read: {error}") from None
    if len(data) > MOST_BYTES:
        raise PairError(f"{path.name} holds more than {MOST_BYTES >> 20} MiB, unpacked; no file of captions does")
    return data


def _map_of(content: _Content) -> dict[str, Any]:
    if content.form != "map":
        raise PairError(f"{content.name} holds a list of records; expected a map")
    return dict(_checked(content.items, content))


def _checked(values: dict[str, Any], content: _Content) -> dict[str, Any]:
    if not values:
        raise PairError(f"{content.name} holds nothing")
    for key in values:
        _writable(key, f"{content.name}: the id {key!r}")
    return values


def _record(record: Any, where: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise PairError(f"{where} is {_short(record)}; expected an object with an id and a caption")
    return record


def _id(record: Mapping[str, Any], where: str) -> str:
    names = [name for name in IDS if name in record]
    if not names:
        raise PairError(f"{where} has no id; expected one of {', '.join(IDS)} beside {', '.join(record) or 'nothing'}")
    value = record[names[0]]
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise PairError(f"{where}: {names[0]} is {_short(value)}; expected text or a whole number")
    return _writable(str(value), f"{where}: {names[0]}")


def _said(record: Mapping[str, Any], where: str) -> str:
    names = [name for name in SAID if name in record]
    if not names:
        raise PairError(f"{where} has no caption; expected one of {', '.join(SAID)} beside {', '.join(record)}")
    return _one_text(record[names[0]], f"{where}: {names[0]}")


def _one_text(value: Any, where: str) -> str:
    # pycocoevalcap keeps a caption in a list of one
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and set(value) == {"caption"}:
        value = value["caption"]
    if not isinstance(value, str):
        raise PairError(f"{where} is {_short(value)}; expected one caption, as text")
    return _writable(value, where)


def _truth(record: Mapping[str, Any], where: str) -> Truth:
    names = [name for name in EXPECTED if name in record]
    if not names:
        raise PairError(f"{where} has no references; expected one of {', '.join(EXPECTED)} beside {', '.join(record)}")
    kind, iou = record.get("change_type"), record.get("iou")
    if kind is not None and not isinstance(kind, str):
        raise PairError(f"{where}: change_type is {_short(kind)}; expected text")
    if iou is not None and (isinstance(iou, bool) or not isinstance(iou, int | float) or not math.isfinite(iou)):
        raise PairError(f"{where}: iou is {_short(iou)}; expected a number")
    return Truth(_id(record, where), tuple(_texts(record[names[0]], f"{where}: {names[0]}")), kind, iou)


def _texts(value: Any, where: str) -> list[str]:
    """References: a text, or a list of texts, of token lists, or of objects with raw or caption."""
    items = value if isinstance(value, list) else [value]
    texts = []
    for item in items:
        if isinstance(item, dict):
            item = item.get("raw", item.get("caption"))
        if isinstance(item, list) and item and all(isinstance(token, str) for token in item):
            item = " ".join(item)
        if not isinstance(item, str):
            raise PairError(f"{where} holds {_short(item)}; expected texts")
        texts.append(_writable(item, where))
    return texts


def _annotated(content: _Content) -> list[Truth]:
    """Truths of COCO annotations: one per image, its captions in the order of the file."""
    texts: dict[str, list[str]] = {}
    for number, image in enumerate(content.items.get("images", []), 1):
        # Spot-the-Diff's reformatted file lists an image once per record
        texts.setdefault(_id(_record(image, f"{content.name}, image {number}"), f"{content.name}, image {number}"), [])
    for number, annotation in enumerate(content.items["annotations"], 1):
        where = f"{content.name}, annotation {number}"
        record = dict(_record(annotation, where))
        record.pop("id", None)  # of the annotation, not of the image
        id = _id(record, where)
        if texts and "images" in content.items and id not in texts:
            raise PairError(f"{where}: image {id!r} is not among the file's images")
        texts.setdefault(id, []).append(_said(record, where))
    if not texts:
        raise PairError(f"{content.name} holds no references")
    return [Truth(id, tuple(of_pair)) for id, of_pair in texts.items()]


def _writable(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PairError(f"{where} holds half of a character (a lone surrogate); write it as UTF-8 again") from None
    return text


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, dict | list) else f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else text[:57] + "..."
