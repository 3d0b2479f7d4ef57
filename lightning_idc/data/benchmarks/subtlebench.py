"""VLM-SubtleBench: subtly different pairs with questions, and with captions for some of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_idc.data.annotations import required_text, sentences
from lightning_idc.data.benchmark import Benchmark, Remote
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.data.tables.tables import read_objects
from lightning_idc.utils.errors import ConfigError

CATEGORIES = (
    *("action", "attribute", "emotion", "existence", "quality"),
    *("quantity", "spatial", "state", "temporal", "viewpoint"),
)
_HUB = "/resolve/main/"


class VLMSubtleBench(Benchmark):
    """VLM-SubtleBench: pairs with one of ten categories of differences, from five domains; validation and test only.

    Pairs that have a question but no caption are left out. ``meta`` holds ``question``, ``answer``, ``distractors``,
    ``domain`` and ``origin``. The types of change are the ten categories.

    Features: natural, industrial, medical, aerial and synthetic images; one question per pair, captions for some.
    Format: images and JSON lines.
    Splits: validation and test; about 13,000 questions in all.
    Licence: not stated.
    Cite: VLM-SubtleBench (ICLR 2026), https://github.com/krafton-ai/VLM-SubtleBench

    Args:
        category: category of the pairs to keep; None for all.
        domain_name: domain of the pairs to keep; None for all.
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = VLMSubtleBench.split("data/vlm_subtlebench", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "vlm_subtlebench"
    title = "VLM-SubtleBench"
    available_splits = ("val", "test")
    tree = """
data/val.jsonl, data/test.jsonl   {"image_1", "image_2", "question", "answer", "distractors", "caption", ...}
*                                 images, named by the records relative to the root or by URL on the hub"""
    steps = "download the Hugging Face dataset KRAFTON/VLM-SubtleBench by hand, and set root to its folder."
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

    def read(self, split: Split) -> list[PairRecord]:
        records: list[PairRecord] = []
        occurrences: dict[str, int] = {}
        values_of: dict[str, set[str]] = {"category": set(), "domain_name": set()}
        for row in read_objects(self.file(f"data/{split}.jsonl")):
            kind, field = row.text("category"), row.text("domain")
            values_of["category"].add(str(kind))
            values_of["domain_name"].add(str(field))
            # published paths are URLs of the hub; the part after the prefix is the path in the repository
            sides = [required_text(row, side).rpartition(_HUB)[2] for side in ("image_1", "image_2")]
            name = "_".join(filter(None, (kind, row.text("source"), row.text("source_id")))) or "..".join(sides)
            occurrences[name] = occurrences.get(name, 0) + 1  # before the filter, so that ids do not depend on it
            if self.category not in (None, kind) or self.domain_name not in (None, field):
                continue
            before, after = (self.files.file(side, row.where) for side in sides)
            caption = row.values.get("caption")
            meta = {key: row.values.get(key) for key in ("question", "answer", "distractors")}
            records.append(
                PairRecord(
                    name if occurrences[name] == 1 else f"{name}#{occurrences[name]}",
                    row.where,
                    before,
                    after,
                    sentences(caption, row.where) if caption is not None else [],
                    change_type=kind,
                    meta={**meta, "domain": field, "origin": row.text("source")},
                )
            )
        for option, chosen in (("category", self.category), ("domain_name", self.domain_name)):
            if chosen is not None and chosen not in values_of[option]:
                values = ", ".join(sorted(values_of[option])) or "no records"
                raise ConfigError(f"{option} is {chosen!r}; the {split} split of {self.title} has {values}")
        return records
