"""The gate of `compare`: which pairs fail, which pass, and how it reports both. Oracle: drawn pairs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from lightning_idc.cli import main
from lightning_idc.images.tolerance import Tolerance
from lightning_idc.rules.noise import noise_of
from lightning_idc.serve.gate import Gate, Verdict
from lightning_idc.serve.pairs import FilePair
from lightning_idc.utils.errors import ConfigError

WIDTH, HEIGHT = 320, 240
Pair = Callable[..., FilePair]


def page(top: int = 0, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """Return a page with many lines of text, scrolled down by ``top`` pixels."""
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for line in range(20):
        draw.text((10, 16 * line - top), f"Line {line}: the quick brown fox jumps over it", "black")
        draw.rectangle((280, 16 * line - top, 300, 16 * line - top + 9), fill=(9 * line, 80, 160))
    return image


def logo(left: int) -> Image.Image:
    image = Image.new("RGBA", (80, 40))
    image.paste((255, 255, 255, 255), (left, 10, left + 20, 30))
    return image


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    def save(before: Image.Image, after: Image.Image | bytes, name: str = "a.png", **options: object) -> FilePair:
        files = []
        for side, image in (("before", before), ("after", after)):
            (tmp_path / side).mkdir(exist_ok=True)
            files.append(tmp_path / side / name)
            if isinstance(image, bytes):
                files[-1] = files[-1].with_suffix(".jpg")
                files[-1].write_bytes(image)
            else:
                image.save(files[-1], **options)
        return FilePair("a", *files)

    return save


def compared(pair: FilePair, *arguments: str) -> tuple[int, dict]:  # type: ignore[type-arg]
    assert pair.before is not None and pair.after is not None
    folders = [str(pair.before.parent), str(pair.after.parent)]
    out = pair.before.parent.parent / "out.jsonl"
    status = main(["compare", *folders, "--out", str(out), "--fail_on", "changed", *arguments])
    return status, json.loads(out.read_text().splitlines()[0])


def test_a_white_logo_that_moves_on_a_transparent_ground_fails_the_job(pair: Pair) -> None:
    """On white both images are blank, so a captioner of the displayed images would see no change."""
    status, record = compared(pair(logo(5), logo(50)))
    assert status == 1 and record["status"] == "changed" and record["caption"] == "800 pixels changed in opacity."
    assert sorted(record["boxes"]) == [[5, 10, 25, 30], [50, 10, 70, 30]]
    assert record["compared"] == "800 of 3,200 pixels differ by up to 255 (3 bands of 8 bits and opacity)"


def test_a_later_frame_fails_the_job_and_is_the_one_described(pair: Pair, tmp_path: Path) -> None:
    frames = [Image.new("RGB", (60, 60), colour) for colour in ("red", "green", "blue", "yellow")]
    files = pair(frames[0], frames[0], "a.gif")
    for side, last in (("before", 2), ("after", 3)):
        frames[0].save(tmp_path / side / "a.gif", save_all=True, append_images=[frames[1], frames[last]])
    report = str(tmp_path / "page.html")
    status, record = compared(files, "--report", report, "--reg", str(tmp_path / "reg.json"))
    assert (status, record["page"]) == (1, 2) and "from blue to yellow" in record["caption"]
    frames[0].save(tmp_path / "after/a.gif", save_all=True, append_images=frames[1:2])
    status, record = compared(files, "--report", report, "--reg", str(tmp_path / "reg.json"))
    assert status == 1 and record["caption"] == "The file has 2 images instead of 3."


def test_a_page_that_grew_is_compared_where_both_have_pixels(pair: Pair, tmp_path: Path) -> None:
    taller = page(size=(WIDTH, HEIGHT + 16))
    files = pair(page(), taller)
    status, record = compared(files, "--report", str(tmp_path / "page.html"))
    assert status == 1 and record["caption"] == "The image has 320x256 instead of 320x240 pixels."
    assert record["boxes"] == [[0, 240, 320, 256]] and record["compared"].startswith("5,120 of 81,920 pixels differ")
    assert compared(files, "--ignore", "0,240,320,256")[0] == 0, "masks are applied to the aligned canvas"
    assert Gate(align="none").check(files).comparison.pixels == 320 * 256
    taller.paste("red", (100, 100, 140, 120))
    _, record = compared(pair(page(), taller))
    assert "red" in record["caption"] and [100, 100, 140, 120] in record["boxes"]


def test_register_compares_what_both_show_and_never_forgets_what_was_added(pair: Pair) -> None:
    scrolled = Gate(align="register").check(pair(page(), page(top=9)))
    assert not scrolled.changed and scrolled.comparison.shift == (0, -9)
    assert "2,880 not compared, after a shift by 0, -9" in str(scrolled.comparison)
    banner = Image.new("RGB", (WIDTH, HEIGHT + 30), "orange")
    banner.paste(page(), (0, 30))
    verdict = Gate(align="register").check(pair(page(), banner))
    assert verdict.changed and verdict.comparison.shift == (0, 30) and verdict.comparison.pixels == 30 * WIDTH
    assert Gate().check(pair(page(), banner)).comparison.pixels > 60 * WIDTH, "at the upper left everything moved"


def with_cursor(left: int) -> Image.Image:
    image = page()
    image.paste("black", (left, 34, left + 1, 50))
    return image


def as_jpeg(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def with_rounding() -> Image.Image:
    image = page()
    image.putpixel((281, 3), (2, 82, 160))
    return image


@pytest.mark.parametrize(
    ("after", "noise"),
    [
        (with_rounding(), "rounding"),
        (with_cursor(200), "a text cursor"),
        (page(top=1), "the view scrolled by 0, -1 pixels"),
        (as_jpeg(page(), 90), "another encoding"),
    ],
)
def test_noise_of_two_renders_passes_and_is_named(after: Image.Image | bytes, noise: str, pair: Pair) -> None:
    files = pair(page(), after)
    status, record = compared(files, "--junit", str(files.before.parent.parent / "junit.xml"))  # type: ignore[union-attr]
    assert (status, record["status"], record["noise"]) == (0, "unchanged", noise)
    assert "pixels differ" in record["compared"], "it says how many pixels the noise covers"
    assert noise in (files.before.parent.parent / "junit.xml").read_text()  # type: ignore[union-attr]
    assert compared(files, "--noise", "count")[0] == 1


def moved_line() -> Image.Image:
    image = page()
    image.paste(page().crop((0, 96, WIDTH, HEIGHT)), (0, 97))  # everything below one line moves by 1 pixel
    return image


def repainted(box: tuple[int, int, int, int], colour: object) -> Image.Image:
    image = page()
    image.paste(colour, box)  # type: ignore[call-overload]
    return image


def with_thin_letter() -> Image.Image:
    """Return a page with an l in two shades, like an antialiased glyph; a text cursor has one shade."""
    image = page()
    image.paste((40, 40, 40), (281, 30, 282, 46))
    image.paste((170, 170, 170), (282, 30, 283, 46))
    return image


def typeset(scale: int = 1, spacing: int = 9, paint: str = "#404040", text: str = "the quick brown fox") -> Image.Image:
    """Draw lines of text with letters at the same positions at each scale; letters of a large scale are not hinted."""
    font = ImageFont.load_default(11 * scale)
    image = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), "white")
    draw = ImageDraw.Draw(image)
    for line in range(14):
        for index, letter in enumerate((text * 2)[: 300 // spacing]):
            position = ((10 + spacing * index) * scale, (16 * line + 14) * scale)
            draw.text(position, letter, paint, font=font, anchor="ls")
    return image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)


def under_header(top: int, cut: bool = True) -> Image.Image:
    """Return a page scrolled under a fixed header, which cuts off its content unless there is a gap."""
    image = page(top)
    if not cut:
        image.paste("white", (0, 0, WIDTH, 60 - top))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, WIDTH, 39), fill="navy")
    draw.text((10, 12), "A header that stays", "white")
    return image


def links() -> Image.Image:
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw, font, blue = ImageDraw.Draw(image), ImageFont.load_default(16), (0, 0, 238)
    for top in range(0, HEIGHT, 22):
        draw.text((10, top), "the quick brown", "black", font=font)
        draw.text((180, top), "call to action", blue, font=font)
        draw.line((180, top + 16, 310, top + 16), blue)
    return image


def paler(image: Image.Image, share: float = 0.05) -> Image.Image:
    return Image.blend(image, Image.new("RGB", image.size, "white"), share)


@pytest.mark.parametrize(
    ("before", "after", "noise"),
    [
        (typeset(), typeset(scale=8), "another font rasteriser"),
        (under_header(12), under_header(13), "the view scrolled by 0, -1 pixels"),
        (under_header(13), under_header(12), "the view scrolled by 0, 1 pixels"),
        (links(), as_jpeg(links(), 90), "another encoding"),
    ],
    ids=["hinting", "scrolled down under a header", "scrolled up under a header", "JPEG of colored text"],
)
def test_noise_of_other_machines_and_of_fixed_parts_passes(
    before: Image.Image, after: Image.Image | bytes, noise: str, pair: Pair
) -> None:
    status, record = compared(pair(before, after))
    assert (status, record["status"], record["noise"]) == (0, "unchanged", noise)


def one_line_redrawn() -> Image.Image:
    image = typeset()
    image.paste(typeset(scale=8).crop((0, 32, WIDTH, 48)), (0, 32))
    return image


def redrawn_with_a_word() -> Image.Image:
    image = typeset(scale=8)
    image.paste(typeset(scale=8, text="jumps over lazy dog").crop((0, 32, WIDTH, 48)), (0, 32))
    return image


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (typeset(), paler(typeset())),
        (page(), paler(page())),
        (page(), Image.open(io.BytesIO(as_jpeg(page(), 90))).convert("RGB")),
        (typeset(), typeset(paint="#606060")),
        (typeset(), typeset(scale=8, paint="#808080")),
        (typeset(), typeset(spacing=10)),
        (typeset(), typeset(scale=8, spacing=10)),
        (typeset(), one_line_redrawn()),
        (typeset(), redrawn_with_a_word()),
        (under_header(12, cut=False), under_header(13, cut=False)),
    ],
    ids=[
        "opacity",
        "opacity of text and boxes",
        "encoding noise in a lossless file",
        "color",
        "color, redrawn",
        "letter spacing",
        "letter spacing, redrawn",
        "one line redrawn",
        "another word, redrawn",
        "margin under a header",
    ],
)
def test_a_property_of_the_whole_page_is_no_noise(before: Image.Image, after: Image.Image, pair: Pair) -> None:
    assert compared(pair(before, after))[0] == 1


def test_lenient_passes_what_may_as_well_be_a_change(pair: Pair) -> None:
    files = pair(under_header(12, cut=False), under_header(13, cut=False))
    assert compared(files, "--noise", "lenient")[0] == 0
    assert compared(pair(typeset(), typeset(scale=8, spacing=10)), "--noise", "lenient")[0] == 0
    for after in (paler(typeset()), one_line_redrawn(), repainted((100, 100, 140, 120), "red")):
        before = page() if after.getpixel((110, 110)) == (255, 0, 0) else typeset()
        assert compared(pair(before, after), "--noise", "lenient")[0] == 1


def unlike() -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8))


@pytest.mark.parametrize(
    "after",
    [
        moved_line(),
        repainted((10, 34, 12, 80), "black"),  # a border that is taller than a line
        with_thin_letter(),
        repainted((280, 32, 301, 42), (21, 80, 160)),  # 3 levels in one cell
        repainted((0, 0, WIDTH, HEIGHT), "white"),
        unlike(),
    ],
)
def test_changes_are_not_taken_for_noise(after: Image.Image, pair: Pair) -> None:
    assert Gate().check(pair(page(), after)).changed


def test_an_element_that_moves_alone_on_an_empty_page_is_no_scrolled_view() -> None:
    images = [np.full((3, 100, 100), 255, np.uint8) for _ in range(2)]
    for image, top in zip(images, (40, 41), strict=True):
        image[:, top : top + 12, 30:60] = 0
    assert noise_of(*images) is None


def test_limits_on_values_pixels_and_shares(pair: Pair) -> None:
    files = pair(page(), repainted((100, 100, 110, 110), (240, 250, 255)))
    pixels = Gate(noise="count").check(files).comparison.pixels

    def passes(**limits: object) -> bool:
        return not Gate(Tolerance(**limits), noise="count").check(files).changed  # type: ignore[arg-type]

    assert not passes(pixels=pixels - 1) and passes(pixels=pixels)
    assert not passes(share=(pixels - 0.5) / (WIDTH * HEIGHT)) and passes(share=(pixels + 0.5) / (WIDTH * HEIGHT))
    assert compared(files, "--allow_share", "0.1", "--noise", "count")[0] == 0
    with pytest.raises(ConfigError, match="share"):
        Tolerance(share=1.5)


def test_the_perceptual_distance_sees_what_is_bright_and_no_slight_blue(pair: Pair) -> None:
    white = Image.new("RGB", (8, 8), "white")

    def changed(colour: tuple[int, int, int], limit: float) -> bool:
        gate = Gate(Tolerance(perceptual=limit), noise="count")
        return gate.check(pair(white, Image.new("RGB", (8, 8), colour))).changed

    assert changed((0, 0, 0), 0.96) and not changed((0, 0, 0), 0.97) and not changed((255, 255, 255), 0.0)
    assert not changed((255, 255, 200), 0.1) and changed((200, 200, 200), 0.1), "blue is dark"
    files = pair(logo(5), logo(50))
    assert Gate(Tolerance(perceptual=0.1)).check(files).changed, "white on transparent is seen on a dark ground"


def circle(offset: float) -> Image.Image:
    """Draw a disc with smooth edges, whose centre moves by a fraction of a pixel."""
    image = Image.new("RGB", (320, 320), "white")
    left = 80 + offset * 8
    ImageDraw.Draw(image).ellipse((left, 80, left + 160, 240), fill="black")
    return image.resize((40, 40), Image.Resampling.BOX)


def test_anti_aliased_pixels_do_not_count_where_they_are_ignored(pair: Pair) -> None:
    gate = Gate(Tolerance(antialiasing=False), noise="count")
    before = circle(0)
    smooth = before.copy()
    edge = [(x, y) for x in range(40) for y in range(40) if 0 < before.getpixel((x, y))[0] < 255]  # type: ignore[index]
    for x, y in edge[::3]:
        level = 255 - before.getpixel((x, y))[0]  # type: ignore[index]
        smooth.putpixel((x, y), (level, level, level))
    files = pair(before, smooth)
    counted = Gate(noise="count").check(files).comparison.pixels
    result = gate.check(files).comparison
    assert result.antialiased > 0.6 * counted and result.pixels + result.antialiased == counted
    assert f"{result.antialiased} anti-aliased ones do not count" in str(result)
    for files in (pair(before, circle(3)), pair(page(), repainted((0, 0, 5, 5), "red"))):
        assert gate.check(files).changed, "an even area that changed is no anti-aliasing"


def test_a_verdict_without_differences_has_no_boxes(pair: Pair) -> None:
    verdict = Gate().check(pair(page(), page()))
    assert isinstance(verdict, Verdict) and not verdict.changed and verdict.boxes() == [] and verdict.noise is None
