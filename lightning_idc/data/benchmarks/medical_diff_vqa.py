"""Medical-Diff-VQA: questions on the difference between two chest radiographs of one patient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from lightning_idc.data.annotations import required_text, sentences
from lightning_idc.data.benchmark import Benchmark, Remote, check_split
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.data.tables.tables import check_columns, read_rows
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import DataError

QUESTIONS, STUDIES = "mimic_pair_questions.csv", "mimic_all.csv"
Kind = Literal["difference", "abnormality", "presence", "view", "location", "type", "level"]


class MedicalDiffVQA(Benchmark):
    """Medical-Diff-VQA: 700,703 questions and answers on 164,324 pairs of chest radiographs of MIMIC-CXR.

    The published tables are on the questions of the type ``difference``, which are the default: all have the same text,
    and the answer describes what has changed. Their scores are BLEU, METEOR, ROUGE-L and CIDEr of pycocoevalcap. The
    first image is that of the reference study, the second one that of the main study; of a study with several images
    the first one of the list is taken. ``meta["question"]`` is the question.

    Features: radiographs of one patient at two dates; a question and its answer per entry.
    Format: CSV, and the JPG files of MIMIC-CXR-JPG.
    Splits: about 80, 10 and 10 % of the entries, named in the file.
    Licence: PhysioNet credentialed health data licence.
    Cite: Hu, Gu, An, Zhang, Liu, Kobayashi, Harada, Summers, Zhu: Expert Knowledge-Aware Image Difference Graph
        Representation Learning (KDD 2023), https://physionet.org/content/medical-diff-vqa

    Args:
        root: folder of the benchmark.
        kinds: types of questions to read.
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Raises:
        ConfigError: a type is unknown.

    Example:
        >>> pair = MedicalDiffVQA.split("data/medical_diff_vqa", "test")[0]
        >>> pair.before.shape[0], len(pair.captions)
        (3, 1)
    """

    folder = "medical_diff_vqa"
    title = "Medical-Diff-VQA"
    protocol = "coco"
    scale_after = True
    tree = f"""
{QUESTIONS}                    columns study_id, ref_id, question_type, question, answer, split
{STUDIES}                               columns subject_id, study_id, dicom_id
files/p10/p10000032/s50414267/NAME.jpg      images of MIMIC-CXR-JPG; pXX are the first two digits of the subject"""
    steps = (
        "fetch Medical-Diff-VQA and MIMIC-CXR-JPG from PhysioNet (both need a credentialed account), and put or link "
        "both into the folder that you give as root; links need follow_links: true."
    )
    remotes = (
        Remote(QUESTIONS, "https://physionet.org/content/medical-diff-vqa", page=True),
        Remote("files", "https://physionet.org/content/mimic-cxr-jpg", page=True),
    )

    def __init__(self, root: str | Path | None = None, kinds: Sequence[Kind] = ("difference",), **options: Any) -> None:
        check_arguments(MedicalDiffVQA.__init__, locals())
        super().__init__(root, **options)
        self.kinds = tuple(kinds)
        self._images: dict[str, str] = {}

    def annotations(self, split: Split) -> list[list[str]]:
        return [[QUESTIONS], [STUDIES]]

    def read(self, split: Split) -> list[PairRecord]:
        path = self.file(QUESTIONS)
        columns, rows = read_rows(path)
        required = ("study_id", "ref_id", "question_type", "question", "answer", "split")
        check_columns(columns, required, path, "of questions")
        self._images = self._images or self._images_of_studies()
        records, counts = [], dict[str, int]()
        for row in rows:
            kind, record_split = required_text(row, "question_type"), required_text(row, "split")
            check_split(record_split, row.where)
            if kind not in get_args(Kind):
                raise DataError(f"{row.where}: question_type is {kind!r}; expected one of {', '.join(get_args(Kind))}")
            if record_split != split or kind not in self.kinds:
                continue
            studies = [required_text(row, column) for column in ("ref_id", "study_id")]
            before, after = (self._image(study, row.where) for study in studies)
            name = f"{studies[1]}_{studies[0]}"
            counts[name] = counts.get(name, 0) + 1
            name += f"#{counts[name]}" if counts[name] > 1 else ""
            meta = {"question": required_text(row, "question"), "question_type": kind}
            answers = sentences(required_text(row, "answer"), row.where)
            records.append(PairRecord(name, row.where, before, after, answers, meta=meta))
        return records

    def _images_of_studies(self) -> dict[str, str]:
        """Path of the first image of each study."""
        path = self.file(STUDIES)
        columns, rows = read_rows(path)
        check_columns(columns, ("subject_id", "study_id", "dicom_id"), path, "of studies")
        images: dict[str, str] = {}
        for row in rows:
            subject, study, image = (required_text(row, column) for column in ("subject_id", "study_id", "dicom_id"))
            images.setdefault(study, f"files/p{subject[:2]}/p{subject}/s{study}/{image}.jpg")
        return images

    def _image(self, study: str, where: str) -> Path:
        if study not in self._images:
            raise DataError(f"{where}: the study {study} is not in {STUDIES}")
        return self.files.file(self._images[study], where)
