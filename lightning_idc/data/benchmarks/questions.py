"""Questions about image pairs or single images: from custom tables, MMVP and SpatialEval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning_idc.data.annotations import AnnotationRow
from lightning_idc.data.tables.files import Root
from lightning_idc.data.tables.tables import Faults, check_columns, read_rows
from lightning_idc.metrics.paired_accuracy import corrected_key
from lightning_idc.utils.errors import ConfigError, DataError

COLUMNS = ("pair", "question", "answer", "before", "after")
SINGLE_IMAGE_COLUMNS = ("pair", "question", "answer", "image")
MMVP = ("Question", "Options", "Correct Answer")
MMVP_FOLDER = "MMVP Images"
SPATIAL = ("id", "text", "image", "oracle_answer", "oracle_option")
SPATIAL_SUFFIX = (
    " First, provide a concise answer in one sentence. Then, elaborate on the reasoning behind your answer in a "
    "detailed, step-by-step explanation."
)
"""Instruction that SpatialEval appends to each question, according to its README."""
SIDES = ("first", "second")
ImageFile = Path | bytes
"""Path or contents of an image file."""


@dataclass(frozen=True)
class Question:
    """Multiple-choice question about one or two images.

    Args:
        pair: id of the pair; two questions of MMVP share a pair.
        text: question with its options.
        answer: letter of the right option.
        images: one or two images.
        compared: both images of the pair if the question is about one of them.
        words: right answer in words; "" if unknown.
    """

    pair: str
    text: str
    answer: str
    images: tuple[ImageFile, ...]
    compared: tuple[ImageFile, ...] = ()
    words: str = ""


def read_questions(
    path: str | Path, root: str | Path | None = None, single: bool = False, published_keys: bool = False
) -> list[Question]:
    """Read questions from a CSV or JSONL file with image paths, or from SpatialEval's Parquet files.

    A custom table has the columns pair, question, answer, before and after, or image instead of the last two for single
    images. MMVP's ``Questions.csv`` has Question, Options and Correct Answer; rows 1 and 2 form a pair, and row n is
    about ``MMVP Images/n.jpg``. With ``single`` each question has this image only, as published; otherwise it has both
    images of the pair, and the text says which one is meant. Four keys of MMVP are corrected, see
    :func:`~lightning_idc.metrics.paired_accuracy.corrected_key`.

    Args:
        path: path of the table.
        root: folder of the images; None for the folder of the table.
        single: whether questions of MMVP are about a single image.
        published_keys: whether MMVP's published keys are used without corrections.

    Raises:
        ConfigError: ``single`` is set, but the table has questions about pairs.
        DataError: a value or an image is missing, or a path leaves the folder.
    """
    table = Path(path)
    if table.suffix == ".parquet":
        return list(_spatialeval_questions(table))
    files = Root(table.parent if root is None else root)
    columns, rows = read_rows(table)
    is_mmvp, has_single_images = MMVP[0] in columns, SINGLE_IMAGE_COLUMNS[3] in columns
    required = MMVP if is_mmvp else SINGLE_IMAGE_COLUMNS if has_single_images else COLUMNS
    check_columns(columns, required, table, "of questions")
    if single and not (is_mmvp or has_single_images):
        raise ConfigError(
            f"{table.name} has questions about pairs; for single images, expected a column image instead of before "
            "and after, or MMVP's Questions.csv"
        )
    questions: list[Question] = []
    faults = Faults(table)
    for number, row in enumerate(rows, 1):
        with faults.collect(row):
            values = [row.text(name) or "" for name in required]
            if not all(values):
                raise DataError(f"{row.where}: a column is empty; expected values for {', '.join(required)}")
            if is_mmvp:
                questions.append(
                    _mmvp_question(number, row, values, files=files, single=single, published_keys=published_keys)
                )
            else:
                pair, text, answer, *names = values
                questions.append(Question(pair, text, answer, tuple(files.file(name, row.where) for name in names)))
    faults.check()
    images = (image for question in questions for image in (*question.images, *question.compared))
    absent = files.absent(dict.fromkeys(image for image in images if isinstance(image, Path)))
    if absent:
        raise DataError(f"{len(absent)} images of {table.name} are missing, such as {str(absent[0])!r}")
    return questions


def _mmvp_question(
    number: int, row: AnnotationRow, values: list[str], *, files: Root, single: bool, published_keys: bool
) -> Question:
    question, options, answer = values
    if not published_keys:
        answer = corrected_key(number, question, answer)
    first = (number - 1) // 2 * 2 + 1
    both = tuple(files.file(f"{MMVP_FOLDER}/{first + side}.jpg", row.where) for side in (0, 1))
    pair, text = str((number + 1) // 2), f"{question} {options}"
    if single:
        return Question(pair, text, answer, (both[number - first],), both)
    return Question(pair, f"This is about the {SIDES[number - first]} image only. {text}", answer, both)


def _spatialeval_questions(path: Path) -> Iterator[Question]:
    """Questions of a file of MilaWang/SpatialEval, each about the image in its row."""
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(path)
    except (ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} cannot be read as Parquet ({error}); expected a file of MilaWang/SpatialEval"
        ) from error
    names = file.schema_arrow.names
    check_columns(names, SPATIAL, path, "of SpatialEval")
    for batch in file.iter_batches(64, columns=list(SPATIAL)):
        for row in batch.to_pylist():
            image = (row["image"] or {}).get("bytes")
            if not image or not all(row[name] for name in SPATIAL[:2] + SPATIAL[4:]):
                raise DataError(
                    f"{path.name}: question {row['id']!r} lacks its text, image or answer; of SpatialEval's three "
                    "parts, vqa and vtqa have images"
                )
            letter, words = str(row["oracle_option"]).strip(), str(row["oracle_answer"]).strip()
            yield Question(row["id"], row["text"] + SPATIAL_SUFFIX, letter, (image,), words=words)
