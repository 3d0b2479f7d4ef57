"""Results: what an evaluation left behind, brought together for tables, sheets and reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from lightning_idc.metrics.baselines import baseline_scores
from lightning_idc.metrics.bootstrap import bootstrap
from lightning_idc.metrics.captions import ScoringResources
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
    from lightning_idc.data.datamodule import PairDataModule, Split
    from lightning_idc.metrics.captions import Scores

PER_PAIR = ("CIDEr-D", "METEOR", "ROUGE-L")


@dataclass
class Results:
    """Captions of one split with their scores, facts and pictures.

    Args:
        records: dicts with ``id``, ``caption``, ``log_prob``, ``references`` and ``change_type``.
        scores: of those that have references; None when none has.
        data: knows facts and pictures; None for text alone.
        split: of the data.
        sentences: known to say that nothing changed.
    """

    records: Sequence[dict[str, Any]]
    scores: Scores | None
    data: PairDataModule | None
    split: Split
    sentences: Sequence[str] = field(default_factory=list)

    @cached_property
    def facts(self) -> dict[str, dict[str, bool | None]]:
        """What each caption gets right, by id."""
        data = self.data
        return {} if data is None else {r["id"]: data.facts(self.split, r["id"], r["caption"]) for r in self.records}

    @cached_property
    def ious(self) -> dict[str, float]:
        """Overlap of the two views by id, where the data knows it."""
        if self.data is None:
            return {}
        source, ids = self.data.pairs_of(self.split), {record["id"] for record in self.records}
        overlaps = {id: source.meta(index).get("iou") for index, id in enumerate(source.ids) if id in ids}
        return {id: iou for id, iou in overlaps.items() if iou is not None}

    @cached_property
    def of_pairs(self) -> dict[str, dict[str, float]]:
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
        """The table of scores; None where nothing was scored."""
        return None if self.scores is None else summarise(self.records, self.scores, self.facts, self.ious)

    @cached_property
    def confusion(self) -> Confusion | None:
        """Change against no change, where the data labels unchanged pairs."""
        return confusion(self.records, self.sentences)

    def predictions(self) -> list[dict[str, Any]]:
        """The records with scores and facts of each pair, and the overlap of its views where the data knows it."""
        return [
            {
                **record,
                **({"iou": self.ious[record["id"]]} if record["id"] in self.ious else {}),
                "scores": self.of_pairs.get(record["id"], {}),
                "facts": self.facts.get(record["id"], {}),
            }
            for record in self.records
        ]

    def counted(self, protocol: Protocol) -> list[dict[str, Any]]:
        """Records that a protocol scores: those with references, and of lists of differences unchanged pairs, too."""
        silent = {NO_CHANGE} if protocol.lists_differences else set()
        return [record for record in self.records if record["references"] or record["change_type"] in silent]

    def result(self, protocol: Protocol, origin: Origin) -> dict[str, Any]:
        """The evaluation under a protocol as plain values, with 95 % intervals of the headline.

        Lists of differences are judged by equal words.

        Args:
            protocol: that counts; the scores at hand are taken where they are its own.
            origin: of captions and references.

        Raises:
            DataError: the protocol does not fit the pairs.
        """
        scored = self.counted(protocol)
        listed = RecordingJudge(*LEXICAL) if protocol.lists_differences else None
        if listed is not None:
            protocol = protocol.with_input("judge", listed.name)
        resources = ScoringResources(judge=listed)
        captions = {record["id"]: record["caption"] for record in scored}
        truths = [
            ReferenceRecord(r["id"], tuple(r["references"]), r["change_type"], self.ious.get(r["id"])) for r in scored
        ]
        if protocol.name == "coco" and self.scores is not None:
            protocol.parts(truths)  # refuses what would score 0
            parts = {"all": self.scores}
        else:
            parts = evaluate(protocol, captions, truths, None, resources)
        headline = next(iter(parts.values()))
        intervals = bootstrap(headline) if headline.pairs > 1 else None
        result = make_result(protocol, parts, captions, truths, origin, intervals, self.sentences)
        if listed is not None:
            result["judge"] = listed.as_dict()
            baselines, reasons = baseline_scores(protocol, captions, truths, resources)
            result["baselines"], result["not_computed"] = baselines, result["not_computed"] | reasons
        return result

    def cards(self, records: Sequence[dict[str, Any]], main_facts: Sequence[str] = ()) -> list[Card]:
        """Cards of a contact sheet, with pictures; none where the data is unknown.

        Args:
            records: what to show.
            main_facts: a caption is right if all of these that apply are.
        """
        cards = []
        for record, sample in zip(records, self._samples(records), strict=False):
            facts = self.facts.get(record["id"], {})
            judged = [facts[name] for name in main_facts if facts.get(name) is not None]
            scores = self.of_pairs.get(record["id"], {})
            cards.append(
                Card(
                    sample.before,
                    sample.after,
                    ", ".join(filter(None, [record["id"], record["change_type"]])),
                    record["caption"],
                    next(iter(record["references"]), ""),
                    all(judged) if judged else None,
                    f"CIDEr-D {scores['CIDEr-D']:.0f}" if "CIDEr-D" in scores else "",
                    sample.boxes,
                )
            )
        return cards

    def entries(self, records: Sequence[dict[str, Any]]) -> Iterator[Entry]:
        """Entries of a report, with pictures where the data is known, made one after another."""
        samples = self._samples(records)
        for record in records:
            sample = next(samples, None)
            yield Entry(
                record["id"],
                record["caption"],
                record["references"],
                record["change_type"],
                record["log_prob"],
                self.of_pairs.get(record["id"], {}),
                self.facts.get(record["id"], {}),
                None if sample is None else (sample.before, sample.after),
                None if sample is None else sample.boxes,
                record.get("change_score"),
            )

    def _samples(self, records: Sequence[dict[str, Any]]) -> Iterator[Any]:
        if self.data is not None:
            source = self.data.pairs_of(self.split)
            index_of = {id: index for index, id in enumerate(source.ids)}
            for record in records:
                yield source.load(index_of[record["id"]])


def spread(records: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """``count`` records, taken in turn from each type of change, the same ones every time.

    Only those with references, unless none has.
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
