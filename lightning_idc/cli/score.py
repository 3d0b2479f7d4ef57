"""The verb score: score a file of captions under a named protocol."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_idc.cli import judging
from lightning_idc.cli.judging import JudgeOptions
from lightning_idc.cli.questions import score_answers
from lightning_idc.cli.score_table import show
from lightning_idc.utils.bounds import NonNegativeInt, check_fields
from lightning_idc.utils.errors import ConfigError, IDCError
from lightning_idc.utils.outputs import check_file, saved, write_file
from lightning_idc.utils.text import encodable

if TYPE_CHECKING:
    from lightning_idc.metrics.captions import Scores
    from lightning_idc.metrics.grouping import ReferenceRecord
    from lightning_idc.metrics.judge import Judgement, TextModel
    from lightning_idc.metrics.protocols import Protocol


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Options for scoring captions.

    Args:
        field: caption field of the records of PREDICTIONS and --against; the first of caption, prediction and text by
            default.
        references: file of references; without it the predictions must contain them.
        protocol: name of the protocol; see `lightning-idc list protocols`.
        split: split of a reference file with several; test by default. It is stored in the result.
        types: types of change by id, such as type_mapping.json.
        iou: overlaps of views by id, such as change_captions_by_IOU.json.
        vocabulary: file with the ids of words, for levir-cc/ids.
        frequencies: references of another corpus, for the document frequencies of CIDEr-D and CIDEr.
        metrics: metrics to compute instead of those of the protocol, from BLEU,METEOR,ROUGE-L,CIDEr-D,CIDEr,SPICE.
        corenlp: folder with the two jars of CoreNLP 3.6.0; adds SPICE.
        meteor_backend: implementation of METEOR; $LIGHTNING_IDC_METEOR, or python, by default.
        bootstrap: bootstrap samples for confidence intervals (1000 is usual); 0 for none.
        against: another file of captions, to compare with on the same pairs.
        model_name: name of the captioner in the result.
        data_name: name of the data in the result.
    """

    field: str | None = None
    references: str | None = None
    protocol: str = "coco"
    split: str | None = None
    types: str | None = None
    iou: str | None = None
    vocabulary: str | None = None
    frequencies: str | None = None
    metrics: str | None = None
    corenlp: str | None = None
    meteor_backend: Literal["python", "java"] | None = None
    bootstrap: NonNegativeInt = 0
    against: str | None = None
    model_name: str | None = None
    data_name: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def inputs(self, predictions: Path) -> list[Path]:
        """Input files."""
        more = (self.references, self.types, self.iou, self.vocabulary, self.frequencies, self.against)
        return list(dict.fromkeys([predictions, *(Path(path) for path in more if path)]))


def score(
    predictions: Path,
    *,
    options: ScoreOptions,
    judge: JudgeOptions,
    questions: Literal["pairs", "tasks"] | None = None,
    letters: str = "ab",
    published_keys: bool = False,
    json: bool = False,
    out: Path | None = None,
    overwrite: bool = False,
) -> int:
    """Score captions of any program under a named protocol.

    PREDICTIONS is a COCO result list, a map from id to text, or records with captions, such as this library's
    predictions.jsonl; each also as JSON lines. Missing, unknown and duplicate ids and pairs without references are
    reported, and never scored as 0.

    With --questions, PREDICTIONS are answers of `predict --questions`, or of MMVP's script.

    Args:
        predictions: file of captions or answers.
        options: references, protocol and metrics.
        judge: a language model as an additional judge.
        questions: score answers to questions: pairs counts a pair if both of its questions are answered correctly, as
            MMVP does; tasks counts each question, by task, as SpatialEval does.
        letters: letters of the answer choices.
        published_keys: keep MMVP's wrong keys of rows 99, 100, 279 and 280.
        json: print the result as JSON.
        out: file for the result.
        overwrite: replace a file that this command did not write.
    """
    if questions is not None:
        return score_answers(
            predictions,
            by=questions,
            letters=letters,
            published_keys=published_keys,
            json_only=json,
            out=out,
            overwrite=overwrite,
        )
    inputs = options.inputs(predictions)
    if out is not None:
        check_file("--out", out, [*inputs, *judge.folders(), *filter(None, [options.corenlp])], overwrite)
    result, table = _score(predictions, options, judge)
    text = dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    # write first, since the reader of a pipe may have closed it; if that fails, scores that took hours are still shown
    data = f"{text}\n".encode("utf-8", "replace")  # names of files and models may not be UTF-8
    written = out is None or saved(out, lambda: write_file(out, data, overwrite, inputs))
    if json:
        encodes = encodable(text, sys.stdout.encoding) == text
        print(text if encodes else dumps(result, indent=1, allow_nan=False))
    else:
        show(result, table)
    if not written:
        raise ConfigError(f"the scores were computed, but not written to {out}")
    missing = {f"--{name}": result["not_computed"].get(name) for name in ("against", "judge")}
    reasons = [f"{option}: {reason}" for option, reason in missing.items() if reason]
    if reasons:
        raise ConfigError(f"the scores were computed, but not {'; '.join(reasons)}")
    return 0


def _score(
    predictions_file: Path, options: ScoreOptions, judge: JudgeOptions
) -> tuple[dict[str, Any], dict[str, Scores]]:
    from lightning_idc.metrics import bootstrap, reading, results
    from lightning_idc.metrics.baselines import baseline_scores
    from lightning_idc.metrics.captions import References, ScoringResources
    from lightning_idc.metrics.comparison import compare_captions
    from lightning_idc.metrics.difference_list import RecordingJudge
    from lightning_idc.metrics.grouping import with_ious, with_types
    from lightning_idc.metrics.protocols import checked_parts, evaluate, protocol_named, with_vocabulary

    protocol = protocol_named(options.protocol)
    predictions = reading.read_predictions(predictions_file, options.field)
    references = predictions.references
    if options.references:
        references = reading.read_references(options.references, options.split or "test")
    if not references:
        raise ConfigError(f"{predictions_file.name} contains no references; set --references to a file of them")
    if options.types:
        references = with_types(references, reading.read_types(options.types))
    if options.iou:
        references = with_ious(references, reading.read_ious(options.iou))
    if options.vocabulary:
        protocol = with_vocabulary(protocol, reading.read_vocabulary(options.vocabulary))
    frequencies = None
    if options.frequencies:
        documents = reading.read_references(options.frequencies, options.split or "test")
        frequencies = References(_documents(documents))
        texts = [[reference.id, text] for reference in documents for text in reference.references]
        protocol = protocol.with_input("document frequencies", results.digest(texts))
    metrics = _metrics(options, protocol.metrics)
    other = reading.read_predictions(options.against, options.field) if options.against else None
    # before a judge is called, so that its answers are not lost
    for captions in [predictions.captions, *([other.captions] if other else [])]:
        checked_parts(protocol, captions, references)
    origin = results.Origin(
        options.model_name,
        options.data_name,
        _split(options, references),
        files=_files(options.inputs(predictions_file)),
    )
    recording_judge = RecordingJudge(*judging.difference_judge(judge)) if protocol.lists_differences else None
    verdicts = judging.verdict_judge(judge) if protocol.has_facts else None
    rater = judging.text_model(judge) if judge.judge and not protocol.counts_unchanged else None
    if recording_judge is not None:
        protocol = protocol.with_input("judge", recording_judge.name)
    if verdicts is not None:
        protocol = protocol.with_input("judge", verdicts[0])
    resources = ScoringResources(
        frequencies,
        corenlp=Path(options.corenlp) if options.corenlp else None,
        judge=recording_judge if verdicts is None else verdicts[1],
        meteor_backend=options.meteor_backend,
        boxes=predictions.boxes,
    )
    parts = evaluate(protocol, predictions.captions, references, metrics, resources)
    headline = next(iter(parts.values()))
    intervals = bootstrap.bootstrap(headline, options.bootstrap) if options.bootstrap else None
    result = results.make_result(protocol, parts, predictions.captions, references, origin, intervals)
    result["bootstrap_samples"] = options.bootstrap
    if other is not None:
        other_judge = None if recording_judge is None else RecordingJudge(recording_judge.name, recording_judge.judge)
        other_resources = replace(resources, judge=resources.judge if other_judge is None else other_judge)
        other_resources, samples = replace(other_resources, boxes=other.boxes), options.bootstrap or 1000
        compared, reasons = compare_captions(
            protocol, other.captions, references, headline, metrics, other_resources, samples
        )
        result |= compared
        result["not_computed"] |= reasons
        if other_judge is not None:
            result["against_judge"] = other_judge.as_dict()
    if recording_judge is not None:
        result["judge"] = recording_judge.as_dict()
        resources = replace(resources, judge=recording_judge.judge)
        result["baselines"], reasons = baseline_scores(protocol, predictions.captions, references, resources)
        result["not_computed"] |= reasons
    elif protocol.has_facts:
        result["judge"] = {"judge": "exact facts" if verdicts is None else verdicts[0]}
        result["baselines"], reasons = baseline_scores(protocol, predictions.captions, references, resources)
        result["not_computed"] |= reasons
    elif rater is not None:
        try:
            rated = _rated(rater[0], protocol, predictions.captions, references)
            result["judge"] = {"model": rater[1], "tokens": judge.judge_tokens, **rated.as_dict()}
        except IDCError as error:  # keep the other scores
            result["not_computed"]["judge"] = str(error)
    return result, parts


def _rated(
    model: TextModel, protocol: Protocol, captions: Mapping[str, str], references: Sequence[ReferenceRecord]
) -> Judgement:
    """Judgement of the headline's pairs by a language model, with the references of all records of a pair."""
    from lightning_idc.metrics.grouping import grouped
    from lightning_idc.metrics.judge import judge_captions

    counted = {reference.id for reference in next(iter(protocol.parts(references).values()))}
    expected = {t.id: t.references for t in grouped(references)["all"] if t.id in counted}
    return judge_captions({id: captions[id] for id in expected}, expected, model)


def _documents(references: Sequence[ReferenceRecord]) -> dict[str, list[str]]:
    """References of a corpus by pair, merged over its records; pairs without references are left out."""
    documents: dict[str, list[str]] = {}
    for reference in references:
        documents.setdefault(reference.id, []).extend(reference.references)
    return {id: texts for id, texts in documents.items() if texts}


def _metrics(options: ScoreOptions, default: Sequence[str]) -> list[str]:
    metrics = [name.strip() for name in options.metrics.split(",")] if options.metrics else list(default)
    if options.corenlp and "SPICE" not in metrics:
        metrics.append("SPICE")
    return metrics


def _split(options: ScoreOptions, references: Sequence[ReferenceRecord]) -> str | None:
    """The split of the option, or else the common split of all references, if they have one.

    Raises:
        ConfigError: the option and the references differ.
    """
    splits = {reference.split for reference in references}
    others = sorted(split for split in splits if split is not None and split != options.split)
    if options.split and others:
        raise ConfigError(
            f"--split is {options.split}, but the references belong to {', '.join(others)}; "
            "leave --split out, or choose another file"
        )
    return options.split or (splits.pop() if len(splits) == 1 else None)


def _files(paths: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of each input file by name, or by path if names are equal."""
    counts = Counter(path.name for path in paths)
    return {path.name if counts[path.name] == 1 else path.as_posix(): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    from lightning_idc.utils.jsonfiles import read_bytes

    return hashlib.sha256(read_bytes(path)).hexdigest()
