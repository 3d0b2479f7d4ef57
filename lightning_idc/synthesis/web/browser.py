"""Browser as a model: renders HTML to an image and the boxes of its elements."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from lightning_idc.images.read import read_image
from lightning_idc.synthesis.models.base import ModelInterface
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_BOXES = """() => Object.fromEntries([...document.querySelectorAll('[id]')].map(e => {
  const b = e.getBoundingClientRect(); return [e.id, [b.left, b.top, b.right, b.bottom]]; }))"""
# flags that make two renderings of a page equal; a busy machine decides how much of a tile a partial redraw covers
_FLAGS = ("--disable-gpu", "--force-device-scale-factor=1", "--hide-scrollbars", "--disable-lcd-text",
          "--disable-partial-raster", "--font-render-hinting=none",
          "--host-resolver-rules=MAP * ~NOTFOUND")  # fmt: skip
_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include>/etc/fonts/fonts.conf</include><match target="font">
<edit name="hinting" mode="assign"><bool>{is_hinted}</bool></edit>
<edit name="autohint" mode="assign"><bool>{is_auto}</bool></edit>
<edit name="hintstyle" mode="assign"><const>hint{style}</const></edit></match></fontconfig>"""
Hinting = Literal["none", "slight", "medium", "full", "auto"]
"""How glyphs are fitted to pixels; ``auto`` is ``full`` by FreeType's own rules in place of those of the font."""


@dataclass(frozen=True, slots=True)
class FontSettings:
    """Settings of the font rasteriser, which differ between machines.

    Args:
        hinting: how glyphs are fitted to pixels; None for the settings of this machine.
        whole_pixels: whether glyphs are set at whole pixels only.
    """

    hinting: Hinting | None = None
    whole_pixels: bool = False

    def file(self) -> str:
        """Contents of a file of fontconfig."""
        style = "full" if self.hinting == "auto" else self.hinting
        return _FONTS.format(
            is_hinted=str(style != "none").lower(), is_auto=str(self.hinting == "auto").lower(), style=style
        )


def _local_files_only(route: Any) -> None:
    """Abort requests of a page, except for local files and data in the page itself."""
    if route.request.url.startswith(("file:", "data:")):
        route.continue_()
    else:
        route.abort()


class Chromium(ModelInterface):
    """Renders documents with network and scripts disabled.

    Args:
        width: width of the viewport in pixels.
        height: height of the viewport in pixels.
        executable: path of the browser; None for the first installed Chromium or Chrome.

    Raises:
        ConfigError: a side is out of range, or, on loading, Playwright or a browser is missing.
    """

    def __init__(self, width: PositiveInt = 320, height: PositiveInt = 320, executable: str | None = None) -> None:
        check_arguments(Chromium.__init__, locals())
        super().__init__()
        self.width, self.height, self.executable = width, height, executable
        self._page: Any = None
        self._driver: Any = None
        self._browsers: dict[FontSettings, Any] = {}
        self._windows: dict[tuple[int, int, bool, FontSettings], Any] = {}
        self._build = ""

    def settings(self) -> dict[str, Any]:
        return {"model": "Chromium", "width": self.width, "height": self.height}

    def requirements(self) -> list[str]:
        missing = []
        if find_spec("playwright") is None:
            missing.append("Playwright is not installed: pip install 'lightning_idc[web]'")
        if self._browser() is None:
            missing.append("no Chromium is installed: install it, run `playwright install chromium`, or set executable")
        return missing

    def _browser(self) -> str | None:
        return self.executable or next(filter(None, map(shutil.which, _NAMES)), None)

    def load(self) -> None:
        if self._page is not None:
            return
        if missing := self.requirements():
            raise ConfigError(missing[0])
        from playwright.sync_api import sync_playwright

        driver = sync_playwright().start()
        browser = driver.chromium.launch(executable_path=self._browser(), args=list(_FLAGS))
        view = browser.new_context(
            viewport={"width": self.width, "height": self.height}, java_script_enabled=False, offline=True
        )
        self._driver, self._browsers = driver, {FontSettings(): browser}
        self._page, self._build = view.new_page(), browser.version

    def close(self) -> None:
        """Close the browser; `load` starts a new one."""
        for browser in self._browsers.values():
            browser.close()
        if self._driver is not None:
            self._driver.stop()
        self._page, self._driver, self._browsers, self._windows = None, None, {}, {}

    def window(self, width: int, height: int, dark: bool = False, fonts: FontSettings | None = None) -> Any:
        """Context of Playwright for windows of one kind; pages in it read local files only and run no scripts.

        Args:
            width: width in CSS pixels.
            height: height in CSS pixels.
            dark: whether pages see a dark colour scheme.
            fonts: settings of the font rasteriser, of a browser of its own; None for those of this machine.
        """
        fonts = fonts or FontSettings()
        key = width, height, dark, fonts
        if key not in self._windows:
            self.load()
            if fonts not in self._browsers:
                self._browsers[fonts] = self._launch_with(fonts)
            context = self._browsers[fonts].new_context(
                viewport={"width": width, "height": height},
                java_script_enabled=False,
                color_scheme="dark" if dark else "light",
                service_workers="block",
            )
            context.route("**/*", _local_files_only)
            self._windows[key] = context
        return self._windows[key]

    def _launch_with(self, fonts: FontSettings) -> Any:
        """Start a browser with other settings of the font rasteriser, as on another machine."""
        flags = [flag for flag in _FLAGS if "hinting" not in flag]
        flags += ["--disable-font-subpixel-positioning"] if fonts.whole_pixels else []
        environment: dict[str, str | float | bool] = {**os.environ}
        with tempfile.TemporaryDirectory() as folder:
            if fonts.hinting is not None:
                (file := Path(folder) / "fonts.conf").write_text(fonts.file(), encoding="utf-8")
                environment["FONTCONFIG_FILE"] = str(file)
            browser = self._driver.chromium.launch(executable_path=self._browser(), args=flags, env=environment)
            browser.new_context().close()  # the browser reads the file when it starts
        return browser

    def __getstate__(self) -> dict[str, Any]:
        # each worker starts its own browser
        return {**self.__dict__, "_page": None, "_driver": None, "_browsers": {}, "_windows": {}}

    def provenance(self) -> dict[str, Any]:
        return {"commit": self._build, "weights": None}

    def render(self, documents: Sequence[str]) -> list[tuple[Tensor, dict[str, list[float]]]]:
        """Render documents to images, uint8 ``(3, H, W)``, and boxes in pixels by element id.

        Args:
            documents: HTML documents.
        """
        rendered = []
        for document in documents:
            self._page.set_content(document, wait_until="load")
            boxes = self._page.evaluate(_BOXES)
            rendered.append((read_image(self._page.screenshot(animations="disabled"), name="a screenshot"), boxes))
        return rendered
