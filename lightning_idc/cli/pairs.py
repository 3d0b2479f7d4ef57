"""The verbs compare and predict: answers about many pairs of files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lightning_idc.cli.questions import QuestionOptions, answer_questions
from lightning_idc.serve.notes import capture_warnings
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.serve.options import BatchOptions, GateOptions
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.text import printable

if TYPE_CHECKING:
    from lightning_idc.serve.pairs import FilePair

FAILED = 2
"""Exit status if a pair could not be read, or nothing could be compared."""


def compare(
    before: str,
    after: str,
    *,
    options: ModelOptions,
    batch: BatchOptions,
    fail_on: Literal["changed", "pixels", "never"] = "never",
    reg: Path | None = None,
    junit: Path | None = None,
    report: Path | None = None,
    gate: GateOptions,
) -> int:
    """Compare two folders of images, and describe the differences.

    Images of equal names form pairs. The stored values of all bands, of the opacity and of all frames are compared. A
    pair that differs by no more than the tolerance and the noise of two renders is unchanged and not captioned. Exit
    status: 0, or with --fail_on 1 if something changed; 2 if an image could not be read.

    Args:
        before: folder of images before the change.
        after: folder of images after the change.
        options: the captioner and how it reads images.
        batch: the output and how batches are made.
        fail_on: condition for exit status 1, besides new and deleted images: pixels, for pairs whose pixels differ
            beyond tolerance and noise; changed, for those of them that --model takes as changed, by change score or
            caption. Without --model both mean the same.
        reg: file to write in the format of reg-cli's reg.json, with images of the differing pixels in the folder
            NAME_diff; `reg-cli -F reg.json -R page.html` shows them.
        junit: JUnit XML file to write, with a test per pair.
        report: HTML report to write, with both images of every pair, and larger images in the folder NAME_pictures;
            --where adds boxes.
        gate: which pairs count as changed.
    """
    check_arguments(compare, locals())
    with capture_warnings():
        from lightning_idc.serve import formats
        from lightning_idc.serve.batch import finish, run_batch
        from lightning_idc.serve.pairs import Ignored, list_pairs
        from lightning_idc.serve.reg import write_reg

        pairs = list_pairs([before, after])
        overwrite = batch.overwrite
        inputs: list[str | Path] = [*formats.inputs_of([before, after], pairs), *batch.ignore, *options.files()]
        out = batch.out or Path("comparison.jsonl")
        out = formats.check_outputs(
            out, inputs, overwrite, reports={"--junit": junit}, page=report, reg=reg, pairs=pairs
        )
        decision = gate.gate()
        describer, records = run_batch(options, pairs, batch, out, decision)
        image_options = describer.input_spec.options
        formats.write_records(records, out, overwrite)
        # reports and exit status must agree
        judged = formats.by_pixels(records) if fail_on == "pixels" else records
        if reg is not None:
            write_reg(
                judged,
                before,
                after,
                reg,
                overwrite,
                inputs=inputs,
                options=image_options,
                ignored=Ignored(batch.ignore),
                gate=decision,
            )
        if junit is not None:
            formats.write_junit(judged, junit, overwrite)
        if report is not None:
            title = f"{Path(before).name} against {Path(after).name}"
            formats.write_html(judged, title, image_options, report, overwrite=overwrite, inputs=inputs)
        finish(out)
    for record in judged:
        if record["status"] != "unchanged":
            line = f"{record['status']:<9} {record['id']}: {record['caption'] or record['error'] or ''}"
            print(printable(line.rstrip(": ")))
    print(f"{formats.state_counts(judged)}: {out}")
    states = {record["status"] for record in judged}
    if "failed" in states:
        return FAILED
    return int(fail_on != "never" and bool(states - {"unchanged"}))


def predict(
    pairs: Sequence[str],
    *,
    options: ModelOptions,
    batch: BatchOptions,
    sidecar: bool = False,
    questions: QuestionOptions,
) -> int:
    """Caption pairs of files, or a split of a data module.

    PAIRS are two folders with equal file names, a folder with before/ and after/ (or A/ and B/), a .csv or .jsonl with
    the columns before and after, or a .txt with two paths a line: `predict old new --out captions.csv`.

    With --config FILE, --data CLASS or --ckpt_path FILE instead of PAIRS, a split of a data module is captioned, with
    the keys of `fit`: `predict --ckpt_path best.ckpt --data FolderPairs --data.root my_pairs`.

    Args:
        pairs: one or two paths.
        options: the captioner and how it reads images.
        batch: the output and how batches are made.
        sidecar: write each caption as NAME.txt next to the second image, instead of --out; existing files are not
            replaced, so that an interrupted run can be resumed.
        questions: ask questions instead of writing captions.
    """
    with capture_warnings():
        if questions.questions:
            return answer_questions(pairs, options, questions, batch.out or Path("answers.jsonl"), batch.overwrite)
        from lightning_idc.serve import formats
        from lightning_idc.serve.batch import finish, run_batch
        from lightning_idc.serve.pairs import list_pairs

        file_pairs = list_pairs(pairs)
        if sidecar:
            return _write_sidecars(file_pairs, options, batch)
        inputs: list[str | Path] = [*formats.inputs_of(pairs, file_pairs), *batch.ignore, *options.files()]
        out = formats.check_outputs(batch.out or Path("predictions.jsonl"), inputs, batch.overwrite)
        unpaired = [pair.id for pair in file_pairs if pair.before is None or pair.after is None]
        if unpaired:
            raise DataError(
                f"{len(unpaired)} images have no partner of the same name on the other side: "
                f"{', '.join(unpaired[:5])}; `lightning-idc compare` lists them as new and deleted"
            )
        _, records = run_batch(options, file_pairs, batch, out, None)
        formats.write_records(records, out, batch.overwrite)
        finish(out)
    failed = [record for record in records if record["status"] == "failed"]
    for record in failed:
        print(printable(f"failed {record['id']}: {record['error']}"), file=sys.stderr)
    print(f"{formats.state_counts(records)}: {out}")
    return FAILED if failed else 0


def _write_sidecars(file_pairs: Sequence[FilePair], options: ModelOptions, batch: BatchOptions) -> int:
    """Write the caption of each pair next to its second image, unless the file exists."""
    from lightning_idc.serve.batch import answer_batches
    from lightning_idc.utils.outputs import new_file

    if batch.out is not None:
        raise ConfigError(f"--sidecar writes next to the images, and --out is {str(batch.out)!r}; expected one of them")
    describer = options.open_describer()
    paired = [pair for pair in file_pairs if pair.before is not None and pair.after is not None]
    if unpaired := len(file_pairs) - len(paired):
        print(f"note: {unpaired} images have no partner and get no caption", file=sys.stderr)
    files = {pair.id: pair.after.with_suffix(".txt") for pair in paired if pair.after is not None}
    _check_distinct(files)
    missing = [pair for pair in paired if not os.path.lexists(files[pair.id])]
    failed = 0
    for records in answer_batches(describer, missing, batch, None):
        for record in records:
            if record["status"] == "failed":
                failed += 1
                print(printable(f"failed {record['id']}: {record['error']}"), file=sys.stderr)
            else:
                with new_file(files[record["id"]]) as part:
                    part.write_bytes(f"{record['caption']}\n".encode("utf-8", "replace"))
    print(f"{len(missing) - failed} captions written, {len(paired) - len(missing)} were there, {failed} failed")
    return FAILED if failed else 0


def _check_distinct(files: Mapping[str, Path]) -> None:
    """Check that the captions of all pairs have different files."""
    pair_of: dict[Path, str] = {}
    for id, file in files.items():
        if (other := pair_of.setdefault(file.absolute(), id)) != id:
            raise DataError(f"the captions of {other} and {id} would both be {file}; name their second images apart")
