"""The verb describe: describe and locate the change between two images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_idc.images.georeference import georeference_of
from lightning_idc.serve.answer import Answer, answer_of_rules
from lightning_idc.serve.notes import capture_warnings
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.serve.tiles import TileOptions, answer_scene, geojson
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import check_file, write_file
from lightning_idc.utils.text import printable

GEOJSON = ".geojson"
"""Ending of a file with the boxes on a map."""


def describe(
    before: str,
    after: str,
    *,
    options: ModelOptions,
    tiles: TileOptions,
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
        tiles: size and distance of tiles, for scenes that are larger than a captioner's images.
        json: print the answer, including the relevance map, as one JSON object.
        out: .png file to write, both images with boxes, map and caption; or .geojson, the boxes in the reference system
            of the first image, a GeoTIFF.
        overwrite: replace a file that this command did not write.
        no_where: do not locate the change, which costs a vision-language model many further encodings.
    """
    if out is not None:
        _check_out(out, (before, after, *options.files()), overwrite)
    if is_map := out is not None and out.suffix.lower() == GEOJSON:
        georeference_of(before)  # now rather than after the answer
    of_tiles: list[Answer] = []
    with capture_warnings() as notes:
        if options.model is None and not options.ocr and not tiles.tile and (out is None or is_map):
            from lightning_idc.rules import describe_changes  # without torch, which takes seconds to import

            options.check_rules()
            answer = answer_of_rules("pair", describe_changes(before, after, options.image_options(), resize=True))
        else:
            describer = options.open_describer()
            if tiles.tile:
                answer, of_tiles = answer_scene(describer, before, after, tiles, where=not no_where)
            else:
                sample = describer.input_spec.read(before, after)
                answer = describer.answer([sample], where=not no_where)[0]
        if out is not None and is_map:
            text = geojson(answer, of_tiles, before)
            _write(out, text, overwrite)
        elif out is not None:
            from lightning_idc.serve.drawing import draw_answer

            figure = draw_answer(answer, describer.input_spec.options, before, after)
            _write(out, lambda path: figure.save(path, format="PNG"), overwrite)
    print(answer.as_json(notes=notes) if json else printable(answer.as_text()))
    return 0


def _check_out(out: Path, inputs: Sequence[str | Path], overwrite: bool) -> None:
    """Check the output file first, since the answer may take minutes.

    Raises:
        ConfigError: it has another ending, its folder does not exist, or it would replace another file.
    """
    if out.suffix.lower() not in (".png", GEOJSON):
        raise ConfigError(f"--out {str(out)!r}: expected a name that ends with .png or {GEOJSON}")
    check_file("--out", out, inputs, overwrite)
    if not out.parent.is_dir():
        raise ConfigError(
            f"--out {str(out)!r}: {str(out.parent)!r} is not a folder; expected a file in an existing folder"
        )


def _write(out: Path, content: str | Callable[[Path], object], overwrite: bool) -> None:
    try:
        write_file(out, content, overwrite)
    except OSError as error:
        raise ConfigError(f"cannot write {str(out)!r} ({error}); name a file in a folder that exists") from error
