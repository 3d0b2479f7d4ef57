"""VLM-SubtleBench: pairs that differ subtly, with questions, and for some of them a caption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_idc.data.annotations import needed, sentences
from lightning_idc.data.benchmark import Benchmark, Remote
from lightning_idc.data.datamodule import Split
from lightning_idc.data.tables.files import Record
from lightning_idc.data.tables.tables import read_objects
from lightning_idc.utils.errors import ConfigError

CATEGORIES = (
    *("action", "attribute", "emotion", "existence", "quality"),
    *("quantity", "spatial", "state", "temporal", "viewpoint"),
)
_HUB = "/resolve/main/"


class VLMSubtleBench(Benchmark):
    """VLM-SubtleBench: pairs that differ in one of ten kinds of things, from five domains; validation and test only.

    Captions are those of the pairs that have one; pairs with a question only are left out. ``meta`` holds ``question``,
    ``answer``, ``distractors``, ``domain`` and ``origin`` of each. Types are the ten categories.

    Features: natural, industrial, medical, aerial and synthetic images; a question each, a caption for some.
    Format: images and JSON lines.
    Splits: validation and test; about 13,000 questions in all.
    Licence: not stated.
    Cite: VLM-SubtleBench (ICLR 2026), https://github.com/krafton-ai/VLM-SubtleBench

    Args:
        category: keep pairs of one kind only.
        domain_name: keep pairs of one domain only.
        options: of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = VLMSubtleBench.split("data/vlm_subtlebench", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "vlm_subtlebench"
    title = "VLM-SubtleBench"
    labelled = ("val", "test")
    tree = """
data/val.jsonl, data/test.jsonl   {"image_1", "image_2", "question", "answer", "distractors", "caption", ...}
*                                 images, as the records name them, relative to the root or by address at the hub"""
    steps = "fetch the Hugging Face dataset KRAFTON/VLM-SubtleBench by hand, and give its folder as root."
    remotes = (Remote("data", "https://huggingface.co/datasets/KRAFTON/VLM-SubtleBench", page=True),)

    def __init__(
        self,
        root: str | Path | None = None,
        category: str | None = None,
        domain_name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root, **options)
        self.category, self.domain_name = category, domain_name

    def annotations(self, split: Split) -> list[list[str]]:
        return [[f"data/{split}.jsonl"]]

    def read(self, split: Split) -> list[Record]:
        records: list[Record] = []
        times: dict[str, int] = {}
        there: dict[str, set[str]] = {"category": set(), "domain_name": set()}
        for row in read_objects(self.file(f"data/{split}.jsonl")):
            kind, field = row.text("category"), row.text("domain")
            there["category"].add(str(kind))
            there["domain_name"].add(str(field))
            # published paths are addresses of the hub, below which the files lie as in its repository
            sides = [needed(row, side).rpartition(_HUB)[2] for side in ("image_1", "image_2")]
            name = "_".join(filter(None, (kind, row.text("source"), row.text("source_id")))) or "..".join(sides)
            times[name] = times.get(name, 0) + 1  # of pairs that are not chosen, too: ids stay what they are
            if self.category not in (None, kind) or self.domain_name not in (None, field):
                continue
            before, after = (self.files.file(side, row.where) for side in sides)
            caption = row.values.get("caption")
            meta = {key: row.values.get(key) for key in ("question", "answer", "distractors")}
            records.append(
                Record(
                    name if times[name] == 1 else f"{name}#{times[name]}",
                    row.where,
                    before,
                    after,
                    sentences(caption, row.where) if caption is not None else [],
                    change_type=kind,
                    meta={**meta, "domain": field, "origin": row.text("source")},
                )
            )
        for option, chosen in (("category", self.category), ("domain_name", self.domain_name)):
            if chosen is not None and chosen not in there[option]:
                values = ", ".join(sorted(there[option])) or "no records"
                raise ConfigError(f"{option} is {chosen!r}; the {split} split of {self.title} has {values}")
        return records
