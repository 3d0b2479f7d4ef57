"""compare, predict and caption-pairs: answers about many pairs of files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Literal

from lightning_idc.cli import typed
from lightning_idc.serve.notes import noted
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.serve.options import BatchOptions
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.text import printable

INSTRUCTION = "Write the instruction, one short imperative sentence, that turns the first image into the second."
FAILED = 2
"""Exit status where a pair could not be read, or nothing could be compared."""


def run(given: list[str]) -> int:
    """The verbs `compare`, `predict` with paths, and `caption-pairs`."""
    functions: dict[str, Callable[..., int]] = {"compare": compare, "predict": predict, "caption-pairs": caption_pairs}
    verb = given[0]
    if verb == "predict" and not _names_pairs(given[1:]):
        from lightning_idc.cli import training

        return training.run(given)
    return typed.call(verb, functions[verb], given[1:])


def _names_pairs(given: Sequence[str]) -> bool:
    """Whether arguments of `predict` are those for files, in any order, and not a configuration's."""
    if not given or not given[0].startswith("-") or given in (["-h"], ["--help"]):
        return bool(given)
    own = {f"--{field.name.replace('_', '-')}" for kind in (ModelOptions, BatchOptions) for field in fields(kind)}
    named = {text.partition("=")[0] for text in given if text.startswith("-")}
    # a configuration has --model too, and one value behind each key
    values = [not text.startswith("-") for text in given]
    paths = any(
        value and (before or "=" in text) for text, before, value in zip(given, values, values[1:], strict=False)
    )
    return named <= own and (named != {"--model"} or paths)


def compare(
    before: str,
    after: str,
    options: ModelOptions,
    batch: BatchOptions,
    fail_on: Literal["changed", "pixels", "never"] = "never",
    reg: Path | None = None,
    junit: Path | None = None,
    report: Path | None = None,
    tolerance: float = 0.0,
    allow_pixels: int = 0,
) -> int:
    """Compare two folders of images, and describe what differs.

    Images of equal names belong together. Where no pixel differs a pair is unchanged and never described; all bands,
    opacity and frames are compared as the files store them. Exit status: 0, or with --fail-on 1 where something
    changed; 2 where an image could not be read.

    Args:
        before: folder of images as they were.
        after: folder of images as they are.
        options: of the captioner.
        batch: of the run.
        fail_on: what makes the exit status 1: pairs that the captioner takes for changed (and new and deleted images),
            by its change score or, where it has none, unless it says that nothing changed; or pairs of which any pixel
            differs.
        reg: file to write as reg-cli does, its reg.json.
        junit: JUnit XML to write, a test per pair.
        tolerance: greatest difference of a value that counts as equal, such as 4 of 255.
        allow_pixels: number of pixels of a pair that may differ.
        report: HTML page to write, with both images of every pair, and the folder NAME_pictures beside it with those of
            greater size; --where adds boxes.
    """
    with noted():
        from lightning_idc.images.compare import Tolerance
        from lightning_idc.serve import formats
        from lightning_idc.serve.batch import finish, run_batch
        from lightning_idc.serve.pairs import list_pairs

        pairs = list_pairs([before, after])
        reports, overwrite = {"--reg": reg, "--junit": junit}, batch.overwrite
        inputs: list[str | Path] = [*formats.inputs_of([before, after], pairs), *batch.ignore, *options.files()]
        out = formats.check_outputs(
            batch.out or Path("comparison.jsonl"), inputs, overwrite, reports=reports, page=report, pairs=len(pairs)
        )
        captioner, records = run_batch(options, pairs, batch, out, Tolerance(tolerance, allow_pixels))
        formats.write_records(records, out, overwrite)
        # a job must not fail for a pair that its reports let pass
        judged = formats.by_pixels(records) if fail_on == "pixels" else records
        if reg is not None:
            formats.write_reg(judged, before, after, reg, overwrite)
        if junit is not None:
            formats.write_junit(judged, junit, overwrite)
        if report is not None:
            title = f"{Path(before).name} against {Path(after).name}"
            formats.write_html(judged, title, captioner.input_spec.options, report, overwrite=overwrite, inputs=inputs)
        finish(out)
    for record in judged:
        if record["status"] != "unchanged":
            line = f"{record['status']:<9} {record['id']}: {record['caption'] or record['error'] or ''}"
            print(printable(line.rstrip(": ")))
    print(f"{formats.counts(judged)}: {out}")
    states = {record["status"] for record in judged}
    if "failed" in states:
        return FAILED
    return int(fail_on != "never" and bool(states - {"unchanged"}))


def predict(pairs: Sequence[str], options: ModelOptions, batch: BatchOptions) -> int:
    """Caption pairs of files: predict PAIRS [PAIRS] --out captions.csv

    PAIRS are two folders of equal names, a folder with before/ and after/, a .csv or .jsonl with the columns before and
    after, or a .txt with two paths a line. `predict --config FILE` predicts a split of a data module instead.

    Args:
        pairs: one or two paths.
        options: of the captioner.
        batch: of the run.
    """
    with noted():
        from lightning_idc.serve import formats
        from lightning_idc.serve.batch import finish, run_batch
        from lightning_idc.serve.pairs import list_pairs

        found = list_pairs(pairs)
        inputs: list[str | Path] = [*formats.inputs_of(pairs, found), *batch.ignore, *options.files()]
        out = formats.check_outputs(batch.out or Path("predictions.jsonl"), inputs, batch.overwrite)
        lonely = [pair.id for pair in found if pair.before is None or pair.after is None]
        if lonely:
            raise DataError(
                f"{len(lonely)} images have no partner of the same name on the other side: {', '.join(lonely[:5])}; "
                "`lightning-idc compare` lists them as new and deleted"
            )
        _, records = run_batch(options, found, batch, out, None)
        formats.write_records(records, out, batch.overwrite)
        finish(out)
    failed = [record for record in records if record["status"] == "failed"]
    for record in failed:
        print(printable(f"failed {record['id']}: {record['error']}"), file=sys.stderr)
    print(f"{formats.counts(records)}: {out}")
    return FAILED if failed else 0


def _refuse_shared(files: Mapping[str, Path]) -> None:
    """Refuse pairs whose captions would be one file."""
    of: dict[Path, str] = {}
    for id, file in files.items():
        if (other := of.setdefault(file.absolute(), id)) != id:
            raise DataError(f"the captions of {other} and {id} would both be {file}; name their second images apart")


def caption_pairs(
    folder: str,
    options: ModelOptions,
    style: Literal["statement", "instruction"] = "statement",
    batch_size: int = 16,
) -> int:
    """Write a caption beside every second image, as NAME.txt, for data sets of edits.

    Captions that are there already are kept, so that a run that was stopped goes on.

    Args:
        folder: that holds before/ and after/.
        options: of the captioner.
        style: statement, as the captioner was trained; instruction asks a vision-language model for an imperative.
        batch_size: pairs per batch.
    """
    with noted():
        from lightning_idc.models.vlm.module import VLMCaptioner
        from lightning_idc.serve.batch import answered
        from lightning_idc.serve.pairs import list_pairs
        from lightning_idc.utils.outputs import new_file

        captioner = options.open()
        if style == "instruction":
            if not isinstance(captioner, VLMCaptioner):
                raise ConfigError(
                    f"a {type(captioner).__name__} is not asked in words and says statements; leave --style out, or "
                    "name a vision-language model with --model"
                )
            captioner.hparams["prompt"] = options.prompt or INSTRUCTION
        everything = list_pairs([folder])
        pairs = [pair for pair in everything if pair.before is not None and pair.after is not None]
        if lonely := len(everything) - len(pairs):
            print(f"note: {lonely} images have no partner and get no caption", file=sys.stderr)
        files = {pair.id: pair.after.with_suffix(".txt") for pair in pairs if pair.after is not None}
        _refuse_shared(files)
        lacking = [pair for pair in pairs if not os.path.lexists(files[pair.id])]
        failed = 0
        for records in answered(captioner, lacking, BatchOptions(batch_size=batch_size), None):
            for record in records:
                if record["status"] == "failed":
                    failed += 1
                    print(printable(f"failed {record['id']}: {record['error']}"), file=sys.stderr)
                else:
                    with new_file(files[record["id"]]) as part:
                        part.write_bytes(f"{record['caption']}\n".encode("utf-8", "replace"))
    print(f"{len(lacking) - failed} captions written, {len(pairs) - len(lacking)} were there, {failed} failed")
    return FAILED if failed else 0
