"""Browser as a model: renders HTML to an image and the boxes of its elements."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from lightning_idc.images.read import read_image
from lightning_idc.synthesis.models.base import ModelInterface
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_BOXES = """() => Object.fromEntries([...document.querySelectorAll('[id]')].map(e => {
  const b = e.getBoundingClientRect(); return [e.id, [b.left, b.top, b.right, b.bottom]]; }))"""
# flags that make two renderings of a page equal
_FLAGS = ("--disable-gpu", "--force-device-scale-factor=1", "--hide-scrollbars", "--disable-lcd-text",
          "--font-render-hinting=none")  # fmt: skip


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
        self._to_close: list[Any] = []
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
        self._to_close, self._page, self._build = [browser, driver], view.new_page(), browser.version

    def close(self) -> None:
        """Close the browser; `load` starts a new one."""
        if self._to_close:
            browser, driver = self._to_close
            browser.close()
            driver.stop()
        self._page, self._to_close = None, []

    def __getstate__(self) -> dict[str, Any]:
        # each worker starts its own browser
        return {**self.__dict__, "_page": None, "_open": []}

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
