"""score: score any file of captions under a named protocol."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_idc.utils.errors import ConfigError, IDCError
from lightning_idc.utils.outputs import check_file, saved, write_file
from lightning_idc.utils.text import encodable

if TYPE_CHECKING:
    from lightning_idc.metrics.captions import Scores
    from lightning_idc.metrics.grouping import ReferenceRecord
    from lightning_idc.metrics.judge import Judgement, TextModel
    from lightning_idc.metrics.protocols import Protocol

_ABOUT = """Score captions that any program made, under a named protocol.

PREDICTIONS is a COCO result list, a map from id to text, or records with captions, such as this library's
predictions.jsonl; each also as JSON lines.
Ids that differ from the references', ids that come twice and pairs without a reference are named, never scored as 0."""


def run(given: list[str]) -> int:
    """The verb `score`."""
    from lightning_idc.cli import parser
    from lightning_idc.cli.score_table import show

    arguments = parser("score", _ABOUT)
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    _add(arguments)
    options = arguments.parse_args(given[1:])
    if options.protocols:
        return _list_protocols()
    if options.predictions is None:
        arguments.error("name a file of captions (or --protocols, which lists the protocols)")
    if options.out:
        check_file("--out", Path(options.out), _inputs(options), options.overwrite)
    result, table = _score(options)
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    # first, since the reader of a pipe may have gone; the scores are shown even so, for a judge may have taken hours
    data = f"{text}\n".encode("utf-8", "replace")  # names of files and models may be no UTF-8
    written = not options.out or saved(
        Path(options.out), lambda: write_file(options.out, data, options.overwrite, _inputs(options))
    )
    if options.json:
        encodes = encodable(text, sys.stdout.encoding) == text
        print(text if encodes else json.dumps(result, indent=1, allow_nan=False))
    else:
        show(result, table)
    if not written:
        raise ConfigError(f"the scores are there, but the result was not written to {options.out}")
    missing = {f"--{name}": result["not_computed"].get(name) for name in ("against", "judge")}
    reasons = [f"{option}: {reason}" for option, reason in missing.items() if reason]
    if reasons:
        raise ConfigError(f"the scores are there, but not what was asked for with {'; '.join(reasons)}")
    return 0


def _add(arguments: argparse.ArgumentParser) -> None:
    from lightning_idc.metrics.meteor import BACKENDS

    add = arguments.add_argument
    add("predictions", nargs="?", help="file of captions")
    add(
        "--field",
        metavar="NAME",
        help="of the records of PREDICTIONS and --against, that holds the caption (default: the one of caption, "
        "prediction and text that a record has)",
    )
    add("--references", help="file of references; without it the predictions must hold them")
    add("--protocol", default="coco", help="name of the protocol (default: coco)")
    add("--protocols", action="store_true", help="list the protocols and stop")
    add("--split", help="of references that name several (default: test); the result names it, too")
    add("--types", help="types of change by id, such as type_mapping.json")
    add("--iou", help="overlaps of views by id, such as change_captions_by_IOU.json")
    add("--vocabulary", help="numbers of words, for levir-cc/ids")
    add("--frequencies", help="references of another corpus, whose words weigh in CIDEr-D and CIDEr")
    add("--metrics", help="in place of the protocol's: of BLEU,METEOR,ROUGE-L,CIDEr-D,CIDEr,SPICE")
    add("--corenlp", help="folder with CoreNLP 3.6.0's two jars; adds SPICE")
    add("--meteor-backend", choices=BACKENDS, help="of METEOR (default: $LIGHTNING_IDC_METEOR, or python)")
    add(
        "--bootstrap",
        type=int,
        default=0,
        metavar="N",
        help="confidence intervals from N drawn corpora (1000 is usual)",
    )
    add("--against", help="another file of captions, compared on the same pairs")
    add(
        "--judge",
        metavar="NAME",
        help="folder of a causal language model, or URL of an OpenAI-compatible endpoint, that also scores the "
        "captions, from 0 to 100; of difference-list it decides which claim states which difference, and may be "
        "lexical (the default) or exact (captions of rendered pairs)",
    )
    add("--judge-model", metavar="NAME", help="of the model behind the endpoint")
    add("--judge-gguf", metavar="NAME", help="of the model's GGUF file in that folder")
    add(
        "--judge-cache",
        metavar="FOLDER",
        help="keep the answers of the endpoint there, so that a run that was cut off does not ask for them again",
    )
    add(
        "--judge-tokens",
        type=int,
        default=512,
        metavar="N",
        help="of one answer of the model, at most (default: 512); one that thinks first needs more, such as 16384",
    )
    add("--model", help="name for the result")
    add("--data", help="name for the result")
    add("--json", action="store_true", help="print the result as JSON")
    add("--out", help="also write the result there")
    add("--overwrite", action="store_true", help="replace a file that this command did not write")


def _score(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Scores]]:
    from lightning_idc.cli import judging
    from lightning_idc.metrics import bootstrap, reading, results
    from lightning_idc.metrics.baselines import baseline_scores
    from lightning_idc.metrics.captions import References, ScoringResources
    from lightning_idc.metrics.comparison import compare_captions
    from lightning_idc.metrics.difference_list import Recorded
    from lightning_idc.metrics.grouping import with_ious, with_types
    from lightning_idc.metrics.protocols import checked_parts, evaluate, protocol_named, with_vocabulary

    judging.check(options)
    protocol = protocol_named(options.protocol)
    predictions = reading.read_predictions(options.predictions, options.field)
    truths = predictions.truths
    if options.references:
        truths = reading.read_truths(options.references, options.split or "test")
    if not truths:
        raise ConfigError(
            f"{Path(options.predictions).name} holds no references; name a file of them with --references"
        )
    if options.types:
        truths = with_types(truths, reading.read_types(options.types))
    if options.iou:
        truths = with_ious(truths, reading.read_ious(options.iou))
    if options.vocabulary:
        protocol = with_vocabulary(protocol, reading.read_vocabulary(options.vocabulary))
    frequencies = None
    if options.frequencies:
        documents = reading.read_truths(options.frequencies, options.split or "test")
        frequencies = References(_documents(documents))
        texts = [[truth.id, text] for truth in documents for text in truth.references]
        protocol = protocol.with_input("document frequencies", results.digest(texts))
    metrics = _metrics(options, protocol.metrics)
    other = reading.read_predictions(options.against, options.field) if options.against else None
    # before a judge is asked: its answers would be lost
    for captions in [predictions.captions, *([other.captions] if other else [])]:
        checked_parts(protocol, captions, truths)
    origin = results.Origin(options.model, options.data, _split(options, truths), files=_files(options))
    listed = Recorded(*judging.difference_judge(options)) if protocol.lists_differences else None
    rater = judging.text_model(options) if options.judge and listed is None else None
    if listed is not None:
        protocol = protocol.with_input("judge", listed.name)
    resources = ScoringResources(
        frequencies, Path(options.corenlp) if options.corenlp else None, listed, options.meteor_backend
    )
    parts = evaluate(protocol, predictions.captions, truths, metrics, resources)
    headline = next(iter(parts.values()))
    intervals = bootstrap.bootstrap(headline, options.bootstrap) if options.bootstrap else None
    result = results.make_result(protocol, parts, predictions.captions, truths, origin, intervals)
    result["bootstrap_samples"] = options.bootstrap
    if other is not None:
        of_other = None if listed is None else Recorded(listed.name, listed.judge)
        aids, samples = replace(resources, judge=of_other), options.bootstrap or 1000
        compared, reasons = compare_captions(protocol, other.captions, truths, headline, metrics, aids, samples)
        result |= compared
        result["not_computed"] |= reasons
        if of_other is not None:
            result["against_judge"] = of_other.as_dict()
    if listed is not None:
        result["judge"] = listed.as_dict()
        resources = replace(resources, judge=listed.judge)
        result["baselines"], reasons = baseline_scores(protocol, predictions.captions, truths, resources)
        result["not_computed"] |= reasons
    elif rater is not None:
        try:
            rated = _rated(rater[0], protocol, predictions.captions, truths)
            result["judge"] = {"model": rater[1], "tokens": options.judge_tokens, **rated.as_dict()}
        except IDCError as error:  # the scores at hand are not lost with it
            result["not_computed"]["judge"] = str(error)
    return result, parts


def _rated(
    model: TextModel, protocol: Protocol, captions: Mapping[str, str], truths: Sequence[ReferenceRecord]
) -> Judgement:
    """What a language model says of the headline's pairs; records of a pair are handed over together."""
    from lightning_idc.metrics.grouping import grouped
    from lightning_idc.metrics.judge import judge_captions

    counted = {truth.id for truth in next(iter(protocol.parts(truths).values()))}
    expected = {t.id: t.references for t in grouped(truths)["all"] if t.id in counted}
    return judge_captions({id: captions[id] for id in expected}, expected, model)


def _documents(truths: Sequence[ReferenceRecord]) -> dict[str, list[str]]:
    """References of a corpus by pair, records of one pair together; pairs without any say nothing of words."""
    documents: dict[str, list[str]] = {}
    for truth in truths:
        documents.setdefault(truth.id, []).extend(truth.references)
    return {id: texts for id, texts in documents.items() if texts}


def _metrics(options: argparse.Namespace, usual: Sequence[str]) -> list[str]:
    metrics = [name.strip() for name in options.metrics.split(",")] if options.metrics else list(usual)
    if options.corenlp and "SPICE" not in metrics:
        metrics.append("SPICE")
    return metrics


def _split(options: argparse.Namespace, truths: Sequence[ReferenceRecord]) -> str | None:
    """The split that the user names, or that all the references name; None where neither does.

    Raises:
        ConfigError: they name different ones.
    """
    splits = {truth.split for truth in truths}
    others = sorted(split for split in splits if split is not None and split != options.split)
    if options.split and others:
        raise ConfigError(
            f"--split is {options.split}, but the references say that they are of {', '.join(others)}; "
            "leave --split out, or name another file"
        )
    return options.split or (splits.pop() if len(splits) == 1 else None)


def _inputs(options: argparse.Namespace) -> list[Path]:
    names = ("predictions", "references", "types", "iou", "vocabulary", "frequencies", "against")
    return list(dict.fromkeys(Path(path) for name in names if (path := vars(options)[name])))


def _files(options: argparse.Namespace) -> dict[str, str]:
    """SHA-256 of what was read, by name of the file; by path, as it was given, where two files have one name."""
    paths = _inputs(options)
    counts = Counter(path.name for path in paths)
    return {path.name if counts[path.name] == 1 else path.as_posix(): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    from lightning_idc.utils.jsonfiles import read_bytes

    return hashlib.sha256(read_bytes(path)).hexdigest()


def _list_protocols() -> int:
    from lightning_idc.metrics.protocols import PROTOCOLS

    width = max(map(len, PROTOCOLS))
    for name, protocol in PROTOCOLS.items():
        needs = f" (needs {', '.join(f'--{need}' for need in protocol.needs)})" if protocol.needs else ""
        print(f"{name:<{width}}  {protocol.hash}  {protocol.about}{needs}")
    return 0
