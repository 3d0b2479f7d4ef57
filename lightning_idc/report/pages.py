"""Pages: HTML files that need no other, from the templates beside this module. All HTML of the library is made here."""

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

from lightning_idc.utils.text import plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from PIL.Image import Image

PER_PAGE = 20
"""Pairs that a browser draws at once, as in `common.js`."""
FEWEST_PIXELS = 96
"""Smaller images are kept as they are, without loss."""


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
    """Write a page, one pair after another, so that the pictures of no more than one are in memory.

    The pictures of a pair stand in an element of their own behind the words of all pairs, and the scripts behind those
    of the first pairs: a browser draws these before it has read the others.

    Args:
        target: the file, overwritten.
        name: of the template.
        title: heading.
        subtitle: below the heading.
        styles: further files of style.
        scripts: files, one after another; the page has none without.
        pairs: plain values of each, ``images`` among them as addresses where it has some.
        rest: gives further plain values for the scripts, asked for when all pairs are written.
        values: for the template.
    """
    from markupsafe import Markup

    # only these may style and run, so that nothing in a caption can
    style, script = (Markup("".join(map(_part, names))) for names in (("base.css", *styles), scripts))
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as aside,
        target.open("w", encoding="utf-8", errors="replace") as file,
    ):
        pictures = _pictures(aside)
        template = _environment().get_template(name)
        file.writelines(
            template.generate(
                title=title,
                subtitle=subtitle,
                style=style,
                script=script,
                pairs=_words(pairs, aside),
                first_pictures=itertools.islice(pictures, PER_PAGE),
                pictures=pictures,
                rest=rest,
                **values,
            )
        )


def _words(pairs: Iterable[Mapping[str, Any]], aside: IO[str]) -> Iterator[dict[str, Any]]:
    """Pairs without their pictures, which are laid aside."""
    for place, pair in enumerate(pairs):
        images = pair.get("images") or ()
        if images:
            aside.write(f"{place} {_inline_json(images)}\n")
        yield {**{key: value for key, value in pair.items() if key != "images"}, "pictures": len(images)}


def _pictures(aside: IO[str]) -> Iterator[tuple[str, str]]:
    """Place of a pair among all, and its pictures as JSON that may stand in a page."""
    from markupsafe import Markup

    aside.seek(0)
    for line in aside:
        place, _, text = line.rstrip("\n").partition(" ")
        yield place, Markup(text)


def as_picture(image: Tensor) -> Image:
    """A uint8 image ``(3, H, W)`` as Pillow's."""
    from PIL import Image

    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def data_uri(image: Tensor, max_side: int) -> str:
    """A picture of at most ``max_side`` pixels each way, inside its own address.

    Args:
        image: uint8 ``(3, H, W)``.
        max_side: pixels.
    """
    from PIL.Image import Resampling

    picture = as_picture(image)
    stream = io.BytesIO()
    if max(picture.size) <= FEWEST_PIXELS:
        picture.save(stream, "PNG")
        kind = "png"
    else:
        picture.thumbnail((max_side, max_side), Resampling.BICUBIC)
        picture.save(stream, "JPEG", quality=82, subsampling=0)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


def number(value: float | None) -> float | None:
    """A number as a page holds it; None where it is none."""
    return None if value is None or not math.isfinite(value) else round(float(value), 4)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("lightning_idc.report")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters |= {"plain": plain, "digest": _digest, "inline_json": _inline_json}
    return found


def _inline_json(value: Any) -> str:
    """JSON that may stand inside a script element: no sign in it can end that element or begin a comment."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _digest(text: str) -> str:
    """Hash of a style or script, as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _part(name: str) -> str:
    return resources.files("lightning_idc.report").joinpath("templates", name).read_text(encoding="utf-8")
