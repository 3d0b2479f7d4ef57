"""Img-Diff: generated pairs of similar images in which one object differs."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, Literal

import torch

from lightning_idc.data.annotations import Row, needed, sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote
from lightning_idc.data.datamodule import Split
from lightning_idc.data.tables.files import FileSource, Record, check_shares, split_by_hash
from lightning_idc.data.tables.tables import read_objects
from lightning_idc.images.types import PairSample
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import short

Part = Literal["replacement", "removal"]
REMOVAL = 5_773
"""Records of the removal part; of the replacement part only "13K" is told."""


class ImgDiff(Benchmark):
    """Img-Diff: pairs made by a diffusion model, each with a box and a description of what differs in it.

    A record is one box; in the release each has pictures of its own, with the box drawn in red, named ``IMAGE_k``.
    Pairs are called ``PATH#2`` where several boxes share their pictures. There are no splits; they are drawn with
    ``shares`` by a hash of ``IMAGE``, so that all boxes of a pair of images are in one. The caption is the last answer
    of the record's conversation; ``meta`` holds ``question``, ``captions1`` and ``captions2``.

    Features: generated images in which one object is replaced or removed; a box and a conversation each.
    Format: JPEG and JSON.
    Splits: none in the release; drawn by ``shares``. 5,773 records of removal, about 13,000 of replacement.
    Licence: not stated.
    Cite: Jiao et al.: Img-Diff: Contrastive Data Synthesis for Multimodal Large Language Models (CVPR 2025),
        https://huggingface.co/datasets/datajuicer/Img-Diff

    Args:
        part: replaced objects, or removed ones, whose captions answer which image has the object.
        shares: of train, val and test.
        options: of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = ImgDiff.split("data/img_diff", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "img_diff"
    title = "Img-Diff"
    tree = """
img_diff_object_replacement.json                   [{"path", "bbox", "captions1", "captions2", "conversations"}, ...]
img_diff_object_removal.json
object_replacement/filtered_new_edit_data/PATH_0.jpg   before; folders in between may be absent
object_replacement/filtered_new_edit_data/PATH_1.jpg   after; likewise object_removal"""
    steps = (
        "fetch the two JSON files and object_replacement.zip, object_removal.zip from the Hugging Face dataset "
        "datajuicer/Img-Diff, and unpack the archives below the root."
    )
    remotes = tuple(
        Remote(name, f"https://huggingface.co/datasets/datajuicer/Img-Diff/resolve/main/{name}")
        for name in (
            "img_diff_object_replacement.json",
            "img_diff_object_removal.json",
            "object_replacement.zip",
            "object_removal.zip",
        )
    )

    def __init__(
        self,
        root: str | Path | None = None,
        part: Part = "replacement",
        shares: tuple[Share, Share, Share] = (0.9, 0.05, 0.05),
        **options: Any,
    ) -> None:
        check_arguments(ImgDiff.__init__, locals())
        super().__init__(root, **options)
        check_shares(shares)
        self.part: Part = part
        self.shares = tuple(shares)
        self._all: list[Record] | None = None

    def heading(self) -> str:
        return f"{self.title} ({self.part})"

    def annotations(self, split: Split) -> list[list[str]]:
        return [[f"img_diff_object_{self.part}.json"]]

    def expected(self, split: Split) -> Counts:
        return Counts(records=REMOVAL if self.part == "removal" else None)

    def found(self, split: Split) -> Counts:
        records = self.records(split)
        return Counts(len(records), sum(len(record.captions) for record in records), records=len(self._everything()))

    def read(self, split: Split) -> list[Record]:
        return [record for record in self._everything() if split_by_hash(image_of(record.id), self.shares) == split]

    def source_of(self, records: Any) -> BoxedSource:
        return BoxedSource(records, self.image_size, self.interpolation, self.image_options)

    def _everything(self) -> list[Record]:
        if self._all is None:
            records: list[Record] = []
            times: dict[str, int] = {}
            folder = None
            for row in read_objects(self.file(*self.annotations("train")[0])):
                path = needed(row, "path").removeprefix("./")
                if folder is None:
                    folder = self._folder(path, row.where)
                times[path] = times.get(path, 0) + 1
                before, after = (self.files.file(f"{folder}{path}_{side}.jpg", row.where) for side in (0, 1))
                question, answer = _conversation(row)
                meta = {"question": question, "box": box_of(row)}
                meta |= {key: row.values[key] for key in ("captions1", "captions2") if key in row.values}
                name = path if times[path] == 1 else f"{path}#{times[path]}"
                records.append(Record(name, row.where, before, after, sentences(answer, row.where), meta=meta))
            self._all = records
        return self._all

    def _folder(self, path: str, where: str) -> str:
        """Where the archive was unpacked, found by the first image."""
        top = f"object_{self.part}/"
        options = (f"{top}filtered_new_edit_data/", top, "")
        return next((o for o in options if self.files.file(f"{o}{path}_0.jpg", where).is_file()), options[0])


class BoxedSource(FileSource):
    """Pairs with one box on both sides, in shares of the image."""

    def load(self, index: int) -> PairSample:
        sample = super().load(index)
        box = torch.tensor(sample.meta["box"])
        height, width = sample.before.shape[1:]
        sample.boxes = (box * torch.tensor([width, height] * 2)).expand(1, 2, 4).clone()
        return sample


def image_of(id: str) -> str:
    """Name of the pair of images that a record's pictures were made from.

    Removals are named ``IMAGE_img0_k_PART``, after the picture of the pair and the object in it.

    Example:
        >>> image_of("edit/17_3"), image_of("edit/17#2"), image_of("17"), image_of("inpaint/2_17_img0_0_2")
        ('edit/17', 'edit/17', '17', 'inpaint/2_17')
    """
    return re.sub(r"(?<=[^/])(_img[01]_\d+(_[^/_]+)?|_\d+)$", "", id.partition("#")[0])


def box_of(row: Row) -> list[float]:
    """Box of a record, x1 y1 x2 y2 in shares of the image; the release writes it as a list or as the text of one.

    Raises:
        DataError: it is not such a list.
    """
    value = row.values.get("bbox")
    if isinstance(value, str) and len(value) < 200:
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            value = row.values["bbox"]
    if isinstance(value, list) and len(value) == 4 and all(type(part) in (int, float) for part in value):
        x1, y1, x2, y2 = value
        if 0 <= x1 <= x2 <= 1 and 0 <= y1 <= y2 <= 1:
            return [float(part) for part in value]
    raise DataError(f"{row.where}: bbox is {short(row.values.get('bbox'))}; expected x1, y1, x2, y2 in [0, 1]")


def _conversation(row: Row) -> tuple[str, str]:
    """Question and last answer."""
    turns = row.values.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise DataError(f"{row.where}: conversations is {short(turns)}; expected a list of turns")
    messages = [(turn.get("from"), turn.get("value")) for turn in turns if isinstance(turn.get("value"), str)]
    questions = [text for who, text in messages if who == "human"]
    answers = [text for who, text in messages if who == "gpt"]
    if not questions or not answers:
        raise DataError(f"{row.where}: the conversation needs a turn from 'human' and one from 'gpt'")
    return questions[-1], answers[-1]
