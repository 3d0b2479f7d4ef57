"""Results: captions, scores and facts of an evaluation, for tables, contact sheets and reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_idc.images.resize import resize
from lightning_idc.images.types import PairSample
from lightning_idc.metrics.baselines import baseline_scores
from lightning_idc.metrics.bootstrap import bootstrap
from lightning_idc.metrics.captions import ScoringResources
from lightning_idc.metrics.change_facts import ChangeFacts, read_boxes
from lightning_idc.metrics.confusion import Confusion, confusion
from lightning_idc.metrics.difference_list import LEXICAL, RecordingJudge
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.metrics.protocols import Protocol, evaluate
from lightning_idc.metrics.results import Origin, make_result
from lightning_idc.report.html import Entry
from lightning_idc.report.sheet import Card
from lightning_idc.report.summary import Summary, summarise

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule
    from lightning_idc.data.splits import Split
    from lightning_idc.metrics.captions import Scores

PER_PAIR = ("CIDEr-D", "METEOR", "ROUGE-L")
MAX_SIDE = 1024
"""Maximum height and width of the images of a report in pixels."""


@dataclass
class Results:
    """Captions of one split with their scores, facts and images.

    Args:
        records: dicts with ``id``, ``caption``, ``log_prob``, ``references`` and ``change_type``.
        scores: scores of the records with references; None without references.
        data: data module with facts and images; None for text only.
        split: split of the data.
        sentences: sentences that say nothing changed.
    """

    records: Sequence[dict[str, Any]]
    scores: Scores | None
    data: PairDataModule | None
    split: Split
    sentences: Sequence[str] = field(default_factory=list)

    @cached_property
    def facts(self) -> dict[str, dict[str, bool | None]]:
        """Facts of each caption and whether they are right, by id."""
        data = self.data
        return {} if data is None else {r["id"]: data.facts(self.split, r["id"], r["caption"]) for r in self.records}

    @cached_property
    def ious(self) -> dict[str, float]:
        """Overlap of the two views by id, if the data has it."""
        return self._meta("iou")

    @cached_property
    def changes(self) -> dict[str, ChangeFacts]:
        """Exact facts of the change by id, if the data has them."""
        return {id: ChangeFacts.read(change, id) for id, change in self._meta("change").items()}

    def _meta(self, name: str) -> dict[str, Any]:
        """Value of a field of ``meta`` by id, of the captioned pairs that have it."""
        if self.data is None:
            return {}
        source, ids = self.data.pairs_of(self.split), {record["id"] for record in self.records}
        values = {id: source.meta(index).get(name) for index, id in enumerate(source.ids) if id in ids}
        return {id: value for id, value in values.items() if value is not None}

    @cached_property
    def pair_scores(self) -> dict[str, dict[str, float]]:
        """Scores of each pair by metric, times 100, by id."""
        if self.scores is None:
            return {}
        metrics = {name: self.scores.per_pair[name] for name in PER_PAIR if name in self.scores.per_pair}
        return {
            id: {name: round(float(values[index]), 3) for name, values in metrics.items()}
            for index, id in enumerate(self.scores.ids)
        }

    @cached_property
    def summary(self) -> Summary | None:
        """The table of scores; None without scores."""
        return None if self.scores is None else summarise(self.records, self.scores, self.facts, self.ious)

    @cached_property
    def confusion(self) -> Confusion | None:
        """Confusion of change and no change, if the data labels unchanged pairs."""
        return confusion(self.records, self.sentences)

    def predictions(self) -> list[dict[str, Any]]:
        """The records with scores and facts of each pair, and the overlap of its views if the data has it."""
        return [
            {
                **record,
                **({"iou": self.ious[record["id"]]} if record["id"] in self.ious else {}),
                "scores": self.pair_scores.get(record["id"], {}),
                "facts": self.facts.get(record["id"], {}),
            }
            for record in self.records
        ]

    def scorable(self, protocol: Protocol) -> list[dict[str, Any]]:
        """Records that a protocol scores: those with references, and for lists of differences also unchanged pairs."""
        needs_no_reference = {NO_CHANGE} if protocol.counts_unchanged else set()
        return [
            record for record in self.records if record["references"] or record["change_type"] in needs_no_reference
        ]

    def result(self, protocol: Protocol, origin: Origin) -> dict[str, Any]:
        """The evaluation under a protocol as plain values, with 95 % intervals of the headline.

        Lists of differences are judged by equal words, changes of web pages by their exact facts.

        Args:
            protocol: protocol to score with; available scores are used for ``coco``.
            origin: provenance of captions and references.

        Raises:
            DataError: the protocol does not fit the pairs.
        """
        scored = self.scorable(protocol)
        recording_judge = RecordingJudge(*LEXICAL) if protocol.lists_differences else None
        if recording_judge is not None:
            protocol = protocol.with_input("judge", recording_judge.name)
        boxes = {r["id"]: read_boxes(r["boxes"], r["id"]) for r in scored if r.get("boxes")}
        resources = ScoringResources(judge=recording_judge, boxes=boxes)
        captions = {record["id"]: record["caption"] for record in scored}
        references = [
            ReferenceRecord(
                record["id"],
                tuple(record["references"]),
                record["change_type"],
                self.ious.get(record["id"]),
                change=self.changes.get(record["id"]) if protocol.has_facts else None,
            )
            for record in scored
        ]
        if protocol.name == "coco" and self.scores is not None:
            protocol.parts(references)  # raises an error for captions that would score 0
            parts = {"all": self.scores}
        else:
            parts = evaluate(protocol, captions, references, None, resources)
        headline = next(iter(parts.values()))
        intervals = bootstrap(headline) if headline.pairs > 1 else None
        result = make_result(
            protocol,
            parts,
            captions,
            references,
            origin=origin,
            intervals=intervals,
            sentences=self.sentences,
        )
        if protocol.counts_unchanged:
            result["judge"] = {"judge": "exact facts"} if recording_judge is None else recording_judge.as_dict()
            baselines, reasons = baseline_scores(protocol, captions, references, resources)
            result["baselines"], result["not_computed"] = baselines, result["not_computed"] | reasons
        return result

    def cards(self, records: Sequence[dict[str, Any]], main_facts: Sequence[str] = ()) -> list[Card]:
        """Cards of a contact sheet, with images; empty without data.

        Args:
            records: records to show.
            main_facts: names of facts; a caption is right if all of these that apply are right.
        """
        cards = []
        for record, sample in zip(records, self._samples(records), strict=False):
            facts = self.facts.get(record["id"], {})
            judged = [facts[name] for name in main_facts if facts.get(name) is not None]
            scores = self.pair_scores.get(record["id"], {})
            cards.append(
                Card(
                    before=sample.before,
                    after=sample.after,
                    title=", ".join(filter(None, [record["id"], record["change_type"]])),
                    caption=record["caption"],
                    reference=next(iter(record["references"]), ""),
                    right=all(judged) if judged else None,
                    score=f"CIDEr-D {scores['CIDEr-D']:.0f}" if "CIDEr-D" in scores else "",
                    boxes=sample.boxes,
                )
            )
        return cards

    def entries(self, records: Sequence[dict[str, Any]]) -> Iterator[Entry]:
        """Entries of a report, lazily, with the original images if there are data."""
        samples = self._samples(records)
        for record in records:
            sample, images, boxes = next(samples, None), None, None
            if sample is not None:
                images = self._original(sample)
                if sample.boxes is not None:
                    scale = [images[0].shape[axis] / sample.before.shape[axis] for axis in (2, 1)]
                    boxes = sample.boxes * sample.boxes.new_tensor(scale * 2)
            yield Entry(
                id=record["id"],
                caption=record["caption"],
                references=record["references"],
                change_type=record["change_type"],
                log_prob=record["log_prob"],
                scores=self.pair_scores.get(record["id"], {}),
                facts=self.facts.get(record["id"], {}),
                images=images,
                boxes=boxes,
                change_score=record.get("change_score"),
            )

    def _original(self, sample: PairSample) -> tuple[Tensor, Tensor]:
        """Original images of a pair, both of the size of the first, up to `MAX_SIDE` pixels."""
        assert self.data is not None
        source = self.data.pairs_of(self.split)
        before, after = source.original(self._indices[sample.id])
        scale = min(1.0, MAX_SIDE / max(before.shape[1:]))
        size = (max(1, round(before.shape[1] * scale)), max(1, round(before.shape[2] * scale)))
        return resize(before, size), resize(after, size)

    @cached_property
    def _indices(self) -> dict[str, int]:
        """Index of each pair of the split by id."""
        assert self.data is not None
        return {id: index for index, id in enumerate(self.data.pairs_of(self.split).ids)}

    def _samples(self, records: Sequence[dict[str, Any]]) -> Iterator[PairSample]:
        if self.data is not None:
            source = self.data.pairs_of(self.split)
            for record in records:
                yield source.load(self._indices[record["id"]])


def select_evenly(records: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Select ``count`` records evenly over the types of change, the same ones every time.

    Only records with references are selected, if there are any.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in [record for record in records if record["references"]] or records:
        groups.setdefault(str(record["change_type"]), []).append(record)
    generator = torch.Generator().manual_seed(0)
    queues = [
        [group[i] for i in torch.randperm(len(group), generator=generator).tolist()]
        for _, group in sorted(groups.items())
    ]
    chosen: list[dict[str, Any]] = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop())
    return chosen
