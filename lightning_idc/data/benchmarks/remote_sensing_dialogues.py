"""ChangeChat-105k and RSCC: pairs of satellite images with conversations or with long captions of disasters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lightning_idc.data.annotations import AnnotationRow, required_text, sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord, check_shares, splits_by_hash
from lightning_idc.data.tables.tables import read_objects
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import read_text, short

Turn = Literal["first", "last"]
INSTRUCTIONS = {"train": 87_935, "test": 17_172}


class ChangeChat(Benchmark):
    """ChangeChat-105k: instructions and answers on the pairs of LEVIR-CC: captions, counts, locations, dialogues.

    Each record is one pair. Its caption is one answer of the conversation; ``meta`` holds ``question``, the instruction
    for that answer, and ``turns``, the full conversation as (question, answer) tuples.

    Features: satellite images of one location, years apart, 256 x 256 pixels; six kinds of instructions.
    Format: PNG and JSON.
    Splits: 87,935 train and 17,172 test records.
    Licence: CC-BY for the annotations.
    Cite: DeltaVLM: Interactive Remote Sensing Image Change Analysis via Instruction-guided Difference Perception,
        https://github.com/hanlinwu/DeltaVLM

    Args:
        turn: answer of the conversation that is the caption: the first or the last.
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = ChangeChat.split("data/changechat", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "changechat"
    title = "ChangeChat-105k"
    tree = """
annotations/train.json, val.json, test.json   [{"id", "image": [before, after], "conversations": [{"from", "value"}]}]
images/*                                      images, named by the records relative to images/"""
    steps = "download ChangeChat-105k by hand; see docs/DATA.md of the repository hanlinwu/DeltaVLM."
    remotes = (Remote("annotations", "https://github.com/hanlinwu/DeltaVLM", page=True),)

    def __init__(self, root: str | Path | None = None, turn: Turn = "last", **options: Any) -> None:
        check_arguments(ChangeChat.__init__, locals())
        super().__init__(root, **options)
        self.turn: Turn = turn

    def annotations(self, split: Split) -> list[list[str]]:
        return [[f"annotations/{split}.json"]]

    def expected(self, split: Split) -> Counts:
        return Counts(INSTRUCTIONS.get(split))

    def read(self, split: Split) -> list[PairRecord]:
        records = []
        for row in read_objects(self.file(f"annotations/{split}.json")):
            images = row.values.get("image")
            if not isinstance(images, list) or len(images) != 2 or not all(isinstance(image, str) for image in images):
                raise DataError(f"{row.where}: image is {short(images)}; expected the paths of two images")
            before, after = (self.files.file(f"images/{image}", row.where) for image in images)
            turns = conversation(row)
            question, answer = turns[-1 if self.turn == "last" else 0]
            meta = {"question": question, "turns": turns}
            records.append(
                PairRecord(required_text(row, "id"), row.where, before, after, sentences(answer, row.where), meta=meta)
            )
        return records


def conversation(row: AnnotationRow) -> list[tuple[str, str]]:
    """Parse the turns of a conversation as (question, answer), without image placeholders.

    Raises:
        DataError: the turns do not alternate between ``human`` and ``gpt``.
    """
    turns = row.values.get("conversations")
    is_valid = isinstance(turns, list) and len(turns) >= 2 and len(turns) % 2 == 0
    if not is_valid or not all(isinstance(turn, dict) and isinstance(turn.get("value"), str) for turn in turns or []):
        raise DataError(f"{row.where}: conversations is {short(turns)}; expected alternating questions and answers")
    assert isinstance(turns, list)
    messages = [(turn.get("from"), turn["value"].replace("<image>", "").strip()) for turn in turns]
    speakers = [speaker for speaker, _ in messages]
    if speakers != ["human", "gpt"] * (len(messages) // 2):
        raise DataError(f"{row.where}: the speakers are {short(speakers)}; expected human, gpt, ...")
    return [(question, answer) for (_, question), (_, answer) in zip(messages[::2], messages[1::2], strict=True)]


class RSCC(Benchmark):
    """RSCC: satellite images before and after disasters, with long model-written captions.

    The release has no split files. ``test_list`` has one path of a first image per line, all of which must exist;
    these pairs are the test split. The other pairs, or all pairs without a list, are split by a hash of that path with
    the fractions ``shares``.

    Features: satellite images of disasters; one caption of several sentences per pair.
    Format: images and JSON lines.
    Splits: about 62,000 pairs; drawn by ``shares``.
    Licence: that of xBD for its images; otherwise not stated.
    Cite: RSCC: A Large-Scale Remote Sensing Change Caption Dataset for Disaster Events (NeurIPS 2025),
        https://github.com/Bili-Sakura/RSCC

    Args:
        shares: fractions of train, val and test.
        test_list: path of the list of test pairs, relative to the root.
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = RSCC.split("data/rscc", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "rscc"
    title = "RSCC"
    tree = """
RSCC_qvq.jsonl     {"pre_image", "post_image", "change_caption"}, one object per line
*                  images, named by the lines relative to the root"""
    steps = (
        "download RSCC_qvq.jsonl and EBD from the Hugging Face dataset BiliSakura/RSCC, and xBD from xview2.org under "
        "its own terms, by hand."
    )
    remotes = (Remote("RSCC_qvq.jsonl", "https://huggingface.co/datasets/BiliSakura/RSCC", page=True),)

    def __init__(
        self,
        root: str | Path | None = None,
        shares: tuple[Share, Share, Share] = (0.9, 0.05, 0.05),
        test_list: str | None = None,
        **options: Any,
    ) -> None:
        check_arguments(RSCC.__init__, locals())
        super().__init__(root, **options)
        check_shares(shares)
        self.shares: Sequence[float] = tuple(shares)
        self.test_list = test_list

    def annotations(self, split: Split) -> list[list[str]]:
        return [["RSCC_qvq.jsonl"], *([[self.test_list]] if self.test_list else [])]

    def read(self, split: Split) -> list[PairRecord]:
        listed = self._listed()
        rows = [
            (row, [required_text(row, side).removeprefix("./") for side in ("pre_image", "post_image")])
            for row in read_objects(self.file("RSCC_qvq.jsonl"))
        ]
        pre_images = {sides[0] for _, sides in rows}
        unlisted = [name for name in pre_images if name not in listed]
        splits = dict(zip(unlisted, splits_by_hash(unlisted, self._without_test(bool(listed))), strict=True))
        records = []
        for row, sides in rows:
            if splits.get(sides[0], "test") == split:
                before, after = (self.files.file(side, row.where) for side in sides)
                texts = sentences(row.values.get("change_caption"), row.where)
                records.append(PairRecord(sides[0], row.where, before, after, texts))
        unknown = sorted(listed - pre_images)
        if unknown and self.official:  # these test pairs would end up in the training split
            examples = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
            raise DataError(
                f"{self.root / str(self.test_list)} lists {len(unknown)} of {len(listed)} first images that are not "
                f"a pre_image of RSCC_qvq.jsonl: {examples}. Expected paths such as "
                f"{min(pre_images, default='')!r}; for a part of the official annotations, set official: false to "
                "ignore the others"
            )
        return records

    def _listed(self) -> set[str]:
        """Read the paths of the first images of the test pairs; empty without ``test_list``.

        Raises:
            DataError: the list is empty.
        """
        if not self.test_list:
            return set()
        path = self.file(self.test_list)
        listed = {line.strip().removeprefix("./") for line in read_text(path).splitlines()} - {""}
        if not listed:
            raise DataError(f"{path} lists no image; expected one pre_image per line")
        return listed

    def _without_test(self, listed: bool) -> Sequence[float]:
        if not listed:
            return self.shares
        rest = self.shares[0] + self.shares[1] or 1.0
        return (self.shares[0] / rest, 1.0 - self.shares[0] / rest, 0.0)
