"""Images from files, PIL and tensors to uint8 ``(3, H, W)``, refusing what would hurt."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.core.types import PairError

if TYPE_CHECKING:
    from PIL.Image import Image

Interpolation = Literal["bilinear", "bicubic"]
MOST_PIXELS = 200_000_000
"""A header that claims more is refused before anything is decoded."""
LONGEST_NAME = 255
LONGEST_FOLDER = 3800
"""Bytes that Linux takes at most, the latter with a name below the folder to spare."""


def read_image(path: str | Path, record: str | None = None) -> Tensor:
    """Decode an image file to uint8 ``(3, H, W)``.

    Args:
        path: of the file.
        record: what the image belongs to, for the message.

    Raises:
        PairError: the file is missing, no image, truncated or too large.
    """
    where = f"{record}: " if record else ""
    if not os.path.isfile(path):
        raise PairError(f"{where}there is no image {str(path)!r}; check the path and that the download is complete")
    return _decode(path, f"{where}{str(path)!r}")


def read_image_bytes(data: bytes, name: str) -> Tensor:
    """Decode an encoded image to uint8 ``(3, H, W)``.

    Args:
        data: contents of an image file.
        name: of the image, for the message.

    Raises:
        PairError: the bytes are no image, truncated or too large.
    """
    return _decode(io.BytesIO(data), name)


def _decode(file: str | Path | io.BytesIO, name: str) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # our own limit below answers more clearly
    try:
        with Image.open(file) as image:
            refuse_huge(image.size, name)
            return from_pil(image)
    except UnidentifiedImageError:
        start = file.getvalue()[:64] if isinstance(file, io.BytesIO) else _start_of(file)
        raise PairError(f"{name} is not an image that can be read; {describe_start(start)}") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        if isinstance(error, PairError):
            raise
        raise PairError(f"{name} is damaged ({error}); fetch it again or leave this pair out") from error
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def refuse_huge(size: tuple[int, int], name: str) -> None:
    """Raise on an image of more than 200 million pixels, or of none."""
    width, height = size
    if width * height > MOST_PIXELS:
        raise PairError(
            f"{name} claims {width} x {height} pixels; at most {MOST_PIXELS:,} are read. Scale it down first"
        )
    if width * height == 0:
        raise PairError(f"{name} is {width} x {height} pixels: there is nothing in it")


def from_pil(image: Image) -> Tensor:
    """PIL image of any mode to uint8 ``(3, H, W)``: turned as its EXIF says, transparency over white."""
    from PIL import Image as PIL
    from PIL import ImageOps

    turned = ImageOps.exif_transpose(image) or image
    if turned.mode.startswith(("I", "F")):
        # 16-bit and float images: PIL's own conversion would clip instead of scale
        values = np.asarray(turned).astype(np.float64)
        top = 65535.0 if turned.mode.startswith("I") else max(float(values.max()), 1.0)
        turned = PIL.fromarray((values / top * 255).clip(0, 255).astype(np.uint8))
    if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
        rgba = turned.convert("RGBA")
        turned = PIL.alpha_composite(PIL.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba)
    return torch.from_numpy(np.array(turned.convert("RGB"))).permute(2, 0, 1).contiguous()


def as_tensor(image: str | Path | Image | Tensor, name: str) -> Tensor:
    """Path, PIL image or uint8 tensor to uint8 ``(3, H, W)``."""
    if isinstance(image, Tensor):
        if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
            raise PairError(f"the {name} image is {image.dtype} {tuple(image.shape)}; expected uint8 (3, H, W)")
        return image
    if isinstance(image, (str, Path)):
        return read_image(image)
    refuse_huge(image.size, f"the {name} image")
    return from_pil(image)


def as_pair(
    before: str | Path | Image | Tensor, after: str | Path | Image | Tensor, size: tuple[int, int] | None
) -> tuple[Tensor, Tensor]:
    """Both images as uint8 ``(3, H, W)`` of one size: ``size``, or that of the first."""
    first, second = as_tensor(before, "before"), as_tensor(after, "after")
    target = size or (first.shape[1], first.shape[2])
    return resize(first, target), resize(second, target)


def resize(image: Tensor, size: tuple[int, int], interpolation: Interpolation = "bilinear") -> Tensor:
    """Resize uint8 ``(3, H, W)`` to height and width, antialiased as PIL does; the aspect is not kept."""
    if tuple(image.shape[1:]) == tuple(size):
        return image
    # bytes throughout where values overshoot, since PIL cuts them off between its two passes
    pixels = image[None] if interpolation == "bicubic" else image[None].float()
    scaled = F.interpolate(pixels, size=size, mode=interpolation, antialias=True, align_corners=False)
    return scaled[0].round().clamp(0, 255).to(torch.uint8)


def inside(root: str | Path, relative: str, record: str) -> Path:
    """Path below a root folder.

    Raises:
        PairError: the path is absolute, too long or leaves the root, also through a link.
    """
    base = Path(root).resolve()
    if not relative or Path(relative).is_absolute():
        raise PairError(f"{record}: the path {relative!r} must be relative to the data folder")
    try:
        full = (base / relative).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # links in a circle, characters that no path may hold
        raise PairError(f"{record}: {relative!r} cannot be a path ({error})") from error
    if not _nameable(full):
        raise PairError(f"{record}: {relative[:60]!r}... is longer than any path may be")
    if not full.is_relative_to(base):
        raise PairError(f"{record}: the path {relative!r} leaves the data folder; only files below it are read")
    return full


def _nameable(path: Path) -> bool:
    """Whether files may be called so; asking the system for one that is longer is an OSError of its own."""
    return all(fits(part, LONGEST_NAME) for part in path.parts) and fits(str(path), LONGEST_FOLDER)


def fits(name: str, longest: int) -> bool:
    """Whether a name has so many bytes at most."""
    return len(name.encode(errors="surrogatepass")) <= longest


def is_web_page(start: bytes) -> bool:
    """Whether a file that begins with these bytes is HTML, as failed downloads leave behind."""
    return start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith((b"<!doctype", b"<html", b"<head"))


def describe_start(start: bytes) -> str:
    """What the first bytes of a file say it is instead of what was expected."""
    if not start:
        return "the file is empty"
    if is_web_page(start):
        return "it is a web page, as downloads that need a login leave behind; fetch the real file by hand"
    return f"its first bytes are {start[:12]!r}"


def _start_of(path: str | Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(64)
