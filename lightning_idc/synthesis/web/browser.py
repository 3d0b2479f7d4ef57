"""Browser as a model: renders HTML to an image and the boxes of its elements."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
_HINTING = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include>/etc/fonts/fonts.conf</include><match target="font">
<edit name="hinting" mode="assign"><bool>true</bool></edit>
<edit name="autohint" mode="assign"><bool>true</bool></edit>
<edit name="hintstyle" mode="assign"><const>hintfull</const></edit></match></fontconfig>"""


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
        self._browsers: list[Any] = []
        self._windows: dict[tuple[int, int, bool, bool], Any] = {}
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
        self._driver, self._browsers = driver, [browser]
        self._page, self._build = view.new_page(), browser.version

    def close(self) -> None:
        """Close the browser; `load` starts a new one."""
        for browser in self._browsers:
            browser.close()
        if self._driver is not None:
            self._driver.stop()
        self._page, self._driver, self._browsers, self._windows = None, None, [], {}

    def window(self, width: int, height: int, dark: bool = False, hinting: bool = False) -> Any:
        """Context of Playwright for windows of one kind; pages in it read local files only and run no scripts.

        Args:
            width: width in CSS pixels.
            height: height in CSS pixels.
            dark: whether pages see a dark colour scheme.
            hinting: whether a second browser is used, which fits glyphs to whole pixels.
        """
        key = width, height, dark, hinting
        if key not in self._windows:
            self.load()
            if hinting and len(self._browsers) == 1:
                self._browsers.append(self._launch_with_hinting())
            context = self._browsers[int(hinting)].new_context(
                viewport={"width": width, "height": height},
                java_script_enabled=False,
                color_scheme="dark" if dark else "light",
                service_workers="block",
            )
            context.route("**/*", _local_files_only)
            self._windows[key] = context
        return self._windows[key]

    def _launch_with_hinting(self) -> Any:
        """Start a browser with other settings of the font rasteriser, as on another machine."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "fonts.conf"
            file.write_text(_HINTING, encoding="utf-8")
            environment = {**os.environ, "FONTCONFIG_FILE": str(file)}
            flags = [flag for flag in _FLAGS if "hinting" not in flag]
            browser = self._driver.chromium.launch(executable_path=self._browser(), args=flags, env=environment)
            browser.new_context().close()  # the browser reads the file when it starts
        return browser

    def __getstate__(self) -> dict[str, Any]:
        # each worker starts its own browser
        return {**self.__dict__, "_page": None, "_driver": None, "_browsers": [], "_windows": {}}

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
