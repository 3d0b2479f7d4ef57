"""Birds-to-Words: pairs of bird photographs with paragraphs on their differences."""

from __future__ import annotations

import re
from pathlib import Path

from lightning_idc.data.annotations import AnnotationRow, find_file, sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote, check_split
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.data.tables.tables import Faults, check_columns, read_objects
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import lines_of, read_text

PAIRS = {"train": 2_685, "val": 325, "test": 337}
SENTENCES = {"train": 12_890, "val": 1_556, "test": 1_604}
"""Number of sentences in the tokenised copy."""
COLUMNS = (
    *(f"img{side}{field}" for side in (1, 2) for field in ("ObservationURL", "ImgURL", "Species", "Selection")),
    "split",
    "annN",
    "description",
)
"""Columns of the official table."""
_TABLE = "birds-to-words-v1.0.tsv"
_PHOTO = re.compile(r"/photos/(\d{1,15})")
_FINAL_NUMBER = re.compile(r"(\d{1,15})/?$")


class BirdsToWords(Benchmark):
    """Birds-to-Words: 3,347 pairs of photographs, each with four or five paragraphs on how the two birds differ.

    Reads the official table, or the tokenised copy of other repositories with one JSON object per line.
    The id of a pair is ``LEFT_RIGHT``, the numbers of its photographs.

    Features: photographs of two birds, of one species or of two; four or five paragraphs a pair.
    Format: JPEG, and TSV or JSON lines.
    Splits: 2,685 train, 325 val and 337 test pairs.
    Licence: CC-BY-SA-4.0 for the text; each photograph has its own.
    Cite: Forbes, Kaeser-Chen, Sharma, Belongie: Neural Naturalist (EMNLP 2019),
        https://github.com/google-research-datasets/birds-to-words

    Args:
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = BirdsToWords.split("data/birds_to_words", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "birds_to_words"
    title = "Birds-to-Words"
    tree = """
images/11924212.jpg                  photograph by its iNaturalist number
birds-to-words-v1.0.tsv              the official table, with 11 columns
train.json, val.json, test.json      instead: lines of {"img1": "11924212", "img2", "description": [words or lists]}"""
    steps = (
        "`lightning-idc data prepare birds_to_words --root FOLDER` downloads the table; download the photographs from "
        "its URLs by hand (their licences differ). Some are no longer online: on_missing: skip leaves out their pairs."
    )
    remotes = (
        Remote(
            _TABLE,
            "https://raw.githubusercontent.com/google-research-datasets/birds-to-words/"
            "dd1bd3c7939c955bb591f3622863fb8fda47e10e/birds-to-words-v1.0.tsv",
        ),
        Remote("images", "https://github.com/google-research-datasets/birds-to-words", page=True),
    )

    def annotations(self, split: Split) -> list[list[str]]:
        return [[_TABLE, f"{split}.json"]]

    def expected(self, split: Split) -> Counts:
        if find_file(self.root, _TABLE):
            return Counts(PAIRS[split])  # the number of sentences is known for the tokenised copy only
        return Counts(PAIRS[split], SENTENCES[split], 0, 0)

    def read(self, split: Split) -> list[PairRecord]:
        table = find_file(self.root, _TABLE)
        rows = _official(table, split) if table else read_objects(self.file(f"{split}.json"))
        pairs: dict[str, PairRecord] = {}
        for row in rows:
            names = [_photo(row, side) for side in (1, 2)]
            before, after = (self.files.file(f"images/{name}.jpg", row.where) for name in names)
            description = row.values.get("description")
            # a list of words is one paragraph, a list of lists of words is several paragraphs
            if isinstance(description, list) and all(isinstance(word, str) for word in description):
                description = " ".join(description)
            record = PairRecord("_".join(names), row.where, before, after, sentences(description, row.where))
            if pairs.setdefault(record.id, record) is not record:
                pairs[record.id].captions += record.captions
        return list(pairs.values())


def _official(path: Path, split: str) -> list[AnnotationRow]:
    rows: list[AnnotationRow] = []
    faults = Faults(path)
    header: list[str] = []
    for number, line in lines_of(read_text(path)):
        fields = line.split("\t")
        if not header:
            header = [field.strip() for field in fields]
            required = ("description", "split", "img1ImgURL", "img2ImgURL")
            check_columns(header, required, path, f"one of {', '.join(COLUMNS)}")
        elif len(fields) != len(header):
            faults.add(number, f"{len(fields)} fields, expected {len(header)}")
        else:
            row = AnnotationRow(faults.where(number), dict(zip(header, map(_unquoted, fields), strict=True)), number)
            with faults.collect(row):
                check_split(row.text("split"), row.where)
            if row.text("split") == split:
                rows.append(row)
    faults.check()
    return rows


def _unquoted(field: str) -> str:
    # a quotation mark can mean inches, so csv quoting would swallow the following lines
    return field[1:-1].replace('""', '"') if len(field) > 1 and field[0] == field[-1] == '"' else field


def _photo(row: AnnotationRow, side: int) -> str:
    """Return the number of a photograph, from its own column or from a URL."""
    number = row.text(f"img{side}")
    if number is not None and number.isascii() and number.isdecimal():
        return number
    addresses = [row.text(f"img{side}{field}") or "" for field in ("ImgURL", "ObservationURL")]
    for pattern in (_PHOTO, _FINAL_NUMBER):
        for address in addresses:
            if match := pattern.search(address):
                return match.group(1)
    raise DataError(
        f"{row.where}: expected the number of a photograph in img{side}ImgURL or img{side}ObservationURL, "
        f"found {addresses}"
    )
