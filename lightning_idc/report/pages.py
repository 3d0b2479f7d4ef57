"""write_page: self-contained HTML files from the templates in this folder; all HTML of the library is rendered here."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from torch import Tensor

from lightning_idc.images.display import to_pil
from lightning_idc.utils.text import plain

if TYPE_CHECKING:
    from jinja2 import Environment

PER_PAGE = 20
"""Number of pairs that a browser draws at a time, as in `common.js`."""
LOSSLESS_PIXELS = 96
"""Images up to this size are stored without loss."""


def write_page(
    target: Path,
    name: str,
    title: str,
    subtitle: str = "",
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    pairs: Iterable[Mapping[str, Any]] = (),
    rest: Callable[[], Mapping[str, Any]] = dict,
    **values: Any,
) -> None:
    """Write a page pair by pair, with the images of only one pair in memory at a time.

    The texts of all pairs come first, then the images of each pair in an element; the scripts follow those of the first
    pairs, so that a browser draws them before it has read the others.

    Args:
        target: output file, overwritten.
        name: name of the template.
        title: heading.
        subtitle: text below the heading.
        styles: further style files.
        scripts: script files in their order.
        pairs: plain values of each pair, with data URLs as ``images`` if it has some.
        rest: function for further values of the scripts, called when all pairs are written.
        values: variables of the template.
    """
    from markupsafe import Markup

    # the content security policy allows only these, so that captions cannot inject code
    style, script = (Markup("".join(map(_part, names))) for names in (("base.css", *styles), scripts))
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as image_file,
        target.open("w", encoding="utf-8", errors="replace") as file,
    ):
        images = _images_of_pairs(image_file)
        template = _environment().get_template(name)
        file.writelines(
            template.generate(
                title=title,
                subtitle=subtitle,
                style=style,
                script=script,
                pairs=_texts_of_pairs(pairs, image_file),
                first_pictures=itertools.islice(images, PER_PAGE),
                pictures=images,
                rest=rest,
                **values,
            )
        )


def _texts_of_pairs(pairs: Iterable[Mapping[str, Any]], image_file: IO[str]) -> Iterator[dict[str, Any]]:
    """Pairs without their images, which are written to a temporary file."""
    for index, pair in enumerate(pairs):
        images = pair.get("images") or ()
        if images:
            image_file.write(f"{index} {_inline_json(images)}\n")
        yield {**{key: value for key, value in pair.items() if key != "images"}, "pictures": len(images)}


def _images_of_pairs(image_file: IO[str]) -> Iterator[tuple[str, str]]:
    """Index of each pair, and its images as JSON that is safe within a page."""
    from markupsafe import Markup

    image_file.seek(0)
    for line in image_file:
        index, _, text = line.rstrip("\n").partition(" ")
        yield index, Markup(text)


def data_uri(image: Tensor, max_side: int) -> str:
    """Data URL of an image, scaled to at most ``max_side`` pixels.

    Args:
        image: uint8 ``(C, H, W)``.
        max_side: maximum height and width in pixels.
    """
    from PIL.Image import Resampling

    pil_image = to_pil(image)
    stream = io.BytesIO()
    if max(pil_image.size) <= LOSSLESS_PIXELS:
        pil_image.save(stream, "PNG")
        kind = "png"
    else:
        pil_image.thumbnail((max_side, max_side), Resampling.BICUBIC)
        pil_image.save(stream, "JPEG", quality=82, subsampling=0)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


def number(value: float | None) -> float | None:
    """Rounded number for a page; None if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else round(float(value), 4)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("lightning_idc.report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"plain": plain, "digest": _digest, "inline_json": _inline_json}
    return environment


def _inline_json(value: Any) -> str:
    """JSON that is safe within a script element: it cannot end the element or begin a comment."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _digest(text: str) -> str:
    """Hash of a style or script for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _part(name: str) -> str:
    return resources.files("lightning_idc.report").joinpath("templates", name).read_text(encoding="utf-8")
