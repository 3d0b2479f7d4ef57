"""Evaluation protocols by name: the pairs to score, their references, the tokens to compare, and the metrics.

The hash of a protocol covers everything that changes a score: its definition, and the digests of another corpus of
document frequencies, of a vocabulary or of a judge. The data fingerprint covers the references and the pairs of each
part. Two results with the same hash and fingerprint are comparable; others are not.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lightning_idc.metrics import grouping
from lightning_idc.metrics.captions import (
    STANDARD_METRICS,
    References,
    Scores,
    ScoringResources,
    check_ids,
    check_metrics,
    first_ids,
    score_captions,
)
from lightning_idc.metrics.difference_list import CHANGED, UNCHANGED, by_differences
from lightning_idc.metrics.diffspot import METRICS as DIFFSPOT_METRICS
from lightning_idc.metrics.diffspot import by_diffspot
from lightning_idc.metrics.grouping import Parts, ReferenceRecord
from lightning_idc.metrics.interleave import interleave_rouge
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.utils.errors import ConfigError, DataError

Scorer = Callable[[Mapping[str, str], Mapping[str, Sequence[str]], Sequence[str], ScoringResources], Scores]
UNKNOWN_WORD = "<UNK>"


def by_words(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    resources: ScoringResources,
) -> Scores:
    """Score as COCO does: Penn Treebank words in lower case, without punctuation."""
    return score_captions(captions, References(references, ptb_tokenize), metrics, resources)


def by_ids(
    vocabulary: Mapping[str, int],
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    resources: ScoringResources,
) -> Scores:
    """Score as the LEVIR-CC family does: word ids replace words, so that METEOR finds no stems and synonyms.

    Args:
        vocabulary: id of every word, and of ``<UNK>``.
        captions: caption by pair id.
        references: references by pair id.
        metrics: names of metrics.
        resources: additional inputs of metrics.
    """

    def tokenize(text: str) -> list[str]:
        words = re.sub(r"[.?!,;]", " ", text.lower()).split()
        return [str(vocabulary.get(word, vocabulary[UNKNOWN_WORD])) for word in words]

    return score_captions(captions, References(references, tokenize), metrics, resources)


def by_interleave(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    resources: ScoringResources,
) -> Scores:
    """Score as LLaVA-Interleave does; see :mod:`lightning_idc.metrics.interleave`."""
    check_metrics(metrics, ["ROUGE-L"])
    check_ids(captions, references)
    ids = list(references)
    corpus_score, pair_scores = interleave_rouge([captions[id] for id in ids], [references[id][0] for id in ids])
    return Scores({"ROUGE-L": 100 * corpus_score}, {"ROUGE-L": 100 * pair_scores}, ids, len(ids))


@dataclass(frozen=True)
class Protocol:
    """How captions of a benchmark are scored.

    Args:
        name: name of the protocol.
        about: description in one sentence.
        parts: function that divides the pairs into corpora, each scored on its own.
        grouping: description of ``parts``, for the hash.
        tokens: description of the compared tokens, for the hash.
        score: function that scores one corpus.
        metrics: names of metrics in the order of a table; SPICE is added if CoreNLP is available.
        ranked: metrics that order a leaderboard, each used when those before it are equal or missing. They change no
            score and are not part of the hash.
        split: split that is scored.
        selection: split on which the model may be selected; "test" only where a published protocol did so.
        decoding: decoding that belongs to the protocol.
        needs: additional inputs that the user has to pass.
        version: number raised when a change of the code changes a score.
        inputs: digests of additional inputs.
    """

    name: str
    about: str
    parts: Callable[[Sequence[ReferenceRecord]], Parts]
    grouping: str
    tokens: str = "ptb-1"
    score: Scorer = by_words
    metrics: tuple[str, ...] = STANDARD_METRICS
    ranked: tuple[str, ...] = ("CIDEr-D", "ROUGE-L", "METEOR", "BLEU-4")
    split: str = "test"
    selection: str = "val"
    decoding: str = "the captioner's own, which the result names"
    needs: tuple[str, ...] = ()
    version: int = 1
    inputs: Mapping[str, str] = field(default_factory=dict)

    def definition(self) -> dict[str, Any]:
        """Everything that the hash covers, as plain values."""
        names = ("name", "grouping", "tokens", "metrics", "split", "selection", "decoding", "version", "inputs")
        return {name: _plain(getattr(self, name)) for name in names}

    @property
    def hash(self) -> str:
        """Twelve digits that change with the definition."""
        text = json.dumps(self.definition(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def lists_differences(self) -> bool:
        """Whether each sentence is a difference, matched by a judge; pairs without differences count as unchanged."""
        return self.score is by_differences

    @property
    def has_facts(self) -> bool:
        """Whether claims are compared with exact facts; pairs without differences count as unchanged."""
        return self.score is by_diffspot

    @property
    def counts_unchanged(self) -> bool:
        """Whether unchanged pairs are scored without a reference."""
        return self.lists_differences or self.has_facts

    def with_input(self, name: str, digest: str) -> Protocol:
        """The protocol with an additional input, which becomes part of its hash."""
        return replace(self, inputs={**self.inputs, name: digest})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


_ALL = [
    Protocol("coco", "every pair once, all its references together", grouping.each_pair, "pairs"),
    Protocol(
        "clevr-change/total",
        "changed and unchanged pairs as one corpus, which papers report first; then each kind separately",
        grouping.change_and_no_change,
        "pairs; then changed; then unchanged",
    ),
    Protocol("clevr-change/change", "changed pairs only", grouping.changed_pairs, "changed pairs"),
    Protocol("clevr-change/no-change", "unchanged pairs only", grouping.unchanged_pairs, "unchanged pairs"),
    Protocol(
        "clevr-change/by-type",
        "changed pairs, then each type of change as a separate corpus",
        grouping.by_type,
        "changed pairs; then each type",
        needs=("types",),
    ),
    Protocol(
        "clevr-change/by-iou",
        "changed pairs, then the quarters with the least and the most overlap of views",
        grouping.by_iou,
        "changed pairs; then the quarter of lowest and of highest IoU",
        needs=("iou",),
    ),
    Protocol(
        "spot-the-diff/grouped",
        "one caption per pair against the sentences of all its records; 1,270 test pairs",
        grouping.grouped,
        "records of a pair merged, empty sentences kept",
    ),
    Protocol(
        "spot-the-diff/entry",
        "each record separately, with the caption of its pair; 1,404 test records",
        grouping.by_entry,
        "records, empty sentences kept",
    ),
    Protocol(
        "spot-the-diff/multi",
        "one paragraph per pair: all sentences of its records, cut after 60 words, as CARD does",
        grouping.short_paragraphs,
        "sentences of a pair joined by '. ', 60 words",
    ),
    Protocol("image-editing-request", "495 test pairs with three requests each", grouping.each_pair, "pairs"),
    Protocol("levir-cc/words", "five sentences per pair, compared as words", grouping.each_pair, "pairs"),
    Protocol(
        "levir-cc/ids",
        "five sentences per pair, compared as word ids, as the code of that family does",
        grouping.each_pair,
        "pairs",
        tokens="vocabulary-ids-1",
        needs=("vocabulary",),
    ),
    Protocol(
        "omnidiff/multi",
        "one paragraph per pair with all its changes",
        grouping.paragraphs,
        "sentences of a pair joined by '. '",
    ),
    Protocol(
        "difference-list",
        "each sentence is a difference: recall and precision of changed pairs, specificity of unchanged pairs",
        grouping.differences,
        "sentences of all records of a pair, each one difference; changed pairs; then unchanged ones",
        tokens="difference-list-1",
        score=by_differences,
        metrics=(*CHANGED, *UNCHANGED),
        ranked=("F1", "specificity"),
    ),
    Protocol(
        "difference-list/first",
        "the same with only the first reference, for data whose other references are paraphrases",
        grouping.first_differences,
        "sentences of the first reference of a pair, each one difference; changed pairs; then unchanged ones",
        tokens="difference-list-1",
        score=by_differences,
        metrics=(*CHANGED, *UNCHANGED),
        ranked=("F1", "specificity"),
    ),
    Protocol(
        "diffspot",
        "DiffSpot's scores from exact facts: recall of changed pairs by tier and operator, specificity, and overall",
        grouping.by_operator_and_tier,
        "all pairs; changed; unchanged; each tier; each operator",
        tokens="claims-and-boxes-1",
        score=by_diffspot,
        metrics=DIFFSPOT_METRICS,
        ranked=("overall", "recall", "specificity"),
    ),
    Protocol(
        "interleave-rouge",
        "ROUGE-L of LLaVA-Interleave's benchmark, each reference separately",
        grouping.by_reference,
        "references",
        tokens="interleave-1",
        score=by_interleave,
        metrics=("ROUGE-L",),
    ),
    Protocol(
        "legacy/clip4idc",
        "as published with CLIP4IDC: the checkpoint with the best CIDEr-D on the test split",
        grouping.grouped,
        "records of a pair merged, empty sentences kept",
        selection="test",
        decoding="greedy, 32 steps",
    ),
    Protocol(
        "legacy/procap",
        "as published with ProCap: the checkpoint with the best CIDEr-D on the test split",
        grouping.grouped,
        "records of a pair merged, empty sentences kept",
        selection="test",
        decoding="greedy, 24 steps, never the unknown word",
    ),
]
PROTOCOLS = {protocol.name: protocol for protocol in _ALL}
"""Protocols by name."""


def protocol_named(name: str) -> Protocol:
    """The protocol with a name.

    Raises:
        ConfigError: the name is unknown.

    Example:
        >>> protocol_named("coco").metrics
        ('BLEU', 'METEOR', 'ROUGE-L', 'CIDEr-D')
    """
    if name not in PROTOCOLS:
        near = difflib.get_close_matches(name, PROTOCOLS, 1, 0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"there is no protocol {name!r}; {hint}The protocols are {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def with_vocabulary(protocol: Protocol, vocabulary: Mapping[str, int]) -> Protocol:
    """A protocol that compares word ids, with its vocabulary.

    Raises:
        ConfigError: the protocol compares words.
        DataError: the vocabulary lacks ``<UNK>``.
    """
    if "vocabulary" not in protocol.needs:
        raise ConfigError(f"the protocol {protocol.name!r} compares words; leave the vocabulary out")
    if UNKNOWN_WORD not in vocabulary:
        raise DataError(f"the vocabulary has no {UNKNOWN_WORD}, the id of unknown words")
    digest = hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()[:12]
    return replace(protocol.with_input("vocabulary", digest), score=partial(by_ids, dict(vocabulary)), needs=())


def checked_parts(protocol: Protocol, captions: Mapping[str, str], references: Sequence[ReferenceRecord]) -> Parts:
    """Parts of a protocol, after a check that the captions belong to their pairs.

    Args:
        protocol: scoring protocol.
        captions: caption by pair id.
        references: references of every pair, in one or several records.

    Raises:
        ConfigError: an additional input of the protocol is missing.
        DataError: captions and references name different pairs.
    """
    if "vocabulary" in protocol.needs:
        raise ConfigError(f"the protocol {protocol.name!r} needs a vocabulary: --vocabulary vocab.json")
    if not references:
        raise DataError("there are no references to score against")
    parts = protocol.parts(references)
    # captions of pairs that the protocol leaves out are ignored; captions of unknown pairs are errors
    expected_ids = list(dict.fromkeys(record.id for part in parts.values() for record in part))
    scored_ids = set(expected_ids)
    known_ids = {record.id for record in references}
    scored_captions = [id for id in captions if id in scored_ids or id not in known_ids]
    if captions and not scored_captions:
        raise DataError(
            f"the {len(captions)} captions belong to no pair of {protocol.name!r}; expected {first_ids(expected_ids)}"
        )
    check_ids(scored_captions, expected_ids)
    return parts


def evaluate(
    protocol: Protocol,
    captions: Mapping[str, str],
    references: Sequence[ReferenceRecord],
    metrics: Sequence[str] | None = None,
    resources: ScoringResources | None = None,
) -> dict[str, Scores]:
    """Scores of each part of a protocol, the headline first.

    Args:
        protocol: scoring protocol.
        captions: caption by pair id.
        references: references of every pair, in one or several records.
        metrics: names of metrics; those of the protocol when None.
        resources: additional inputs of metrics.

    Raises:
        ConfigError: an additional input of the protocol is missing.
        DataError: captions and references name different pairs.

    Example:
        >>> references = [ReferenceRecord("1", ("the cube moved", "the red cube has moved"))]
        >>> evaluate(protocol_named("coco"), {"1": "the cube moved"}, references, ["ROUGE-L"])["all"].references
        2
    """
    parts = checked_parts(protocol, captions, references)
    requested = protocol.metrics if metrics is None else metrics
    scores_of_parts = {}
    for name, part in parts.items():
        keys = _keys(part)
        part_captions = {key: captions[record.id] for key, record in zip(keys, part, strict=True)}
        part_references = {key: record.references for key, record in zip(keys, part, strict=True)}
        part_resources = resources or ScoringResources()
        if protocol.has_facts:
            facts = {record.id: record.change for record in part if record.change is not None}
            part_resources = replace(part_resources, facts=facts)
        scores = protocol.score(part_captions, part_references, requested, part_resources)
        records_of = {key: record.id for key, record in zip(keys, part, strict=True) if key != record.id}
        scores_of_parts[name] = replace(scores, records_of=records_of)
    return scores_of_parts


def _keys(records: Sequence[ReferenceRecord]) -> list[str]:
    """An id for each record: the pair id, with a number where any pair has several records."""
    if len({record.id for record in records}) == len(records):
        return [record.id for record in records]
    count: Counter[str] = Counter()
    keys = []
    for record in records:
        count[record.id] += 1
        keys.append(f"{record.id}#{count[record.id]}")
    return keys
