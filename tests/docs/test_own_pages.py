"""The example of docs/tasks/own_pages.md: an upgrade of a real package. Oracle: a person compared both versions."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from lightning_idc.cli import main
from lightning_idc.images.display import to_pil
from lightning_idc.synthesis.web.browser import Chromium
from lightning_idc.synthesis.web.open_page import OpenPage
from lightning_idc.synthesis.web.packages import unpack_packages
from lightning_idc.utils.errors import DataError

torch.set_num_threads(1)
PACKAGE, VERSIONS = "startbootstrap-sb-admin-2", ("4.0.7", "4.1.4")
PAGES = ("forgot-password", "buttons", "login")


@pytest.fixture
def screenshots(tmp_path: Path) -> list[Path]:
    """Take screenshots of the old and the new version; return their folders."""
    if find_spec("playwright") is None or Chromium().requirements():
        pytest.skip("needs Playwright and Chromium or Chrome")
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    for version in VERSIONS:
        try:
            unpack_packages([f"npm:{PACKAGE}={version}"], tmp_path / version)
        except DataError as error:
            pytest.skip(f"the package cannot be downloaded: {error}")
    browser = Chromium()
    browser.load()
    folders = []
    for version in VERSIONS:
        folders.append(tmp_path / "screenshots" / version)
        folders[-1].mkdir(parents=True)
        (home,) = (tmp_path / version).rglob("forgot-password.html")
        for name in PAGES:
            page = OpenPage(browser.window(1280, 800), home.with_name(f"{name}.html"))
            to_pil(page.screenshot()).save(folders[-1] / f"{name}.png")
            page.close()
    browser.close()
    return folders


@pytest.mark.slow
def test_an_upgrade_of_a_package_is_described_page_by_page(screenshots: list[Path], tmp_path: Path) -> None:
    outputs = ["--out", str(tmp_path / "c.jsonl"), "--report", str(tmp_path / "c.html")]
    assert main(["compare", *map(str, screenshots), "--where", "--fail_on", "pixels", *outputs]) == 1
    records = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert {record["id"]: record["status"] for record in records} == {
        "forgot-password": "unchanged",
        "buttons": "changed",  # another user name and button label
        "login": "changed",  # a few pixels of an icon differ
    }
    sentence = next(record["caption"] for record in records if record["id"] == "buttons")
    assert "the text in the lower right changed" in sentence, sentence
    assert "buttons" in (tmp_path / "c.html").read_text()
