"""Questions about pairs of images, two about each, from a table of one's own or as MMVP lays them out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightning_idc.data.io.files import Root
from lightning_idc.data.io.tables import read_table, require
from lightning_idc.errors import PairError

COLUMNS = ("pair", "question", "answer", "before", "after")
MMVP = ("Question", "Options", "Correct Answer")
MMVP_FOLDER = "MMVP Images"
SIDES = ("first", "second")


@dataclass(frozen=True)
class Question:
    """One question about two images.

    Args:
        pair: that the question belongs to; two questions share it.
        text: the question with its options.
        answer: letter of the right one.
        before: first image.
        after: second image.
    """

    pair: str
    text: str
    answer: str
    before: Path
    after: Path


def read_questions(path: str | Path, root: str | Path | None = None) -> list[Question]:
    """Questions of a CSV or JSONL file, images by their paths below a folder.

    A table of one's own has the columns pair, question, answer, before and after. MMVP's ``Questions.csv`` has
    Question, Options and Correct Answer, its rows 1 and 2 are a pair, and row n asks about ``MMVP Images/n.jpg`` alone;
    since a captioner of pairs always sees two images, it is shown both of the pair and told which one is meant.

    Args:
        path: of the table.
        root: folder of the images; None for the table's own.

    Raises:
        PairError: the table lacks something, an image is not there, or a path leaves the folder.
    """
    table = Path(path)
    files = Root(table.parent if root is None else root)
    columns, rows = read_table(table)
    mmvp = MMVP[0] in columns
    for name in MMVP if mmvp else COLUMNS:
        if name not in columns:
            raise PairError(require(columns, name, table, "of questions"))
    found: list[Question] = []
    for number, row in enumerate(rows, 1):
        values = [row.text(name) or "" for name in (MMVP if mmvp else COLUMNS)]
        if not all(values):
            raise PairError(f"{row.where}: a column is empty; a question needs all of {', '.join(columns)}")
        if mmvp:
            question, options, answer = values
            first = (number - 1) // 2 * 2 + 1
            text = f"This is about the {SIDES[number - first]} image only. {question} {options}"
            names = [f"{MMVP_FOLDER}/{first + side}.jpg" for side in (0, 1)]
            pair = str((number + 1) // 2)
        else:
            pair, text, answer, *names = values
        images = [files.file(name, row.where) for name in names]
        found.append(Question(pair, text, answer, *images))
    absent = files.absent(dict.fromkeys(image for asked in found for image in (asked.before, asked.after)))
    if absent:
        raise PairError(f"{len(absent)} images of {table.name} are not there, the first being {str(absent[0])!r}")
    return found
