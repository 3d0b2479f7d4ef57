"""The verb describe: describe and locate the change between two images."""

from __future__ import annotations

from pathlib import Path

from lightning_idc.serve.notes import capture_warnings
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import check_file, write_file
from lightning_idc.utils.text import printable


def describe(
    before: str,
    after: str,
    *,
    options: ModelOptions,
    json: bool = False,
    out: Path | None = None,
    overwrite: bool = False,
    no_where: bool = False,
) -> int:
    """Say what changed between two images, how sure that is, and where.

    Args:
        before: image file.
        after: image file.
        options: the captioner and how it reads images.
        json: print the answer, including the relevance map, as one JSON object.
        out: .png file to write: both images with boxes, map and caption.
        overwrite: replace a file that this command did not write.
        no_where: do not locate the change, which costs a vision-language model many further encodings.
    """
    if out is not None and out.suffix.lower() != ".png":
        raise ConfigError(f"--out {str(out)!r}: expected a name that ends with .png")
    if out is not None:
        check_file("--out", out, (before, after, *options.files()), overwrite)
        # check first, since the answer may take minutes
        if not out.parent.is_dir():
            raise ConfigError(
                f"--out {str(out)!r}: {str(out.parent)!r} is not a folder; expected a .png in an existing folder"
            )
    with capture_warnings() as notes:
        if options.model is None and out is None:  # without torch, which takes seconds to import
            from lightning_idc.rules import describe_changes
            from lightning_idc.serve.answer import answer_of_rules

            options.check_rules()
            answer = answer_of_rules("pair", describe_changes(before, after, options.image_options(), resize=True))
        else:
            from lightning_idc.serve.answers import draw_answer

            describer = options.open_describer()
            sample = describer.input_spec.read(before, after)
            answer = describer.answer([sample], where=not no_where)[0]
        if out is not None:
            figure = draw_answer(answer, describer.input_spec.options, before, after)
            try:
                write_file(out, lambda path: figure.save(path, format="PNG"), overwrite)
            except OSError as error:
                raise ConfigError(
                    f"cannot write {str(out)!r} ({error}); name a .png in a folder that exists"
                ) from error
    print(answer.as_json(notes=notes) if json else printable(answer.as_text()))
    return 0
