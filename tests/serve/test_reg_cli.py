"""reg.json of `compare` in reg-cli's own reporter: every image of its page is a file and loads in a browser.

reg-cli is an npm package. The tests that need it run if LIGHTNING_IDC_REG_CLI names the folder of .ci/reg_cli after
`npm ci`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from lightning_idc.cli import main

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHANGED = "sub folder/50% #1.png"


@pytest.fixture
def screenshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a changed, an unchanged, a new and a deleted image below shots/, and enter a folder next to it."""
    page = Image.new("RGB", (64, 48), "white")
    changed = page.copy()
    changed.paste("navy", (8, 10, 24, 20))
    for side, image in (("before", page), ("after", changed)):
        for name in (CHANGED, "same.png"):
            file = tmp_path / "shots" / side / name
            file.parent.mkdir(parents=True, exist_ok=True)
            (page if name == "same.png" else image).save(file)
    page.save(tmp_path / "shots/before/gone.png")
    page.save(tmp_path / "shots/after/fresh.png")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def compare(*arguments: str) -> int:
    return main(["compare", "../shots/before", "../shots/after", "--out", "c.jsonl", "--overwrite", *arguments])


def test_folders_are_relative_to_the_file_and_difference_images_mark_the_changed_pixels(screenshots: Path) -> None:
    assert compare("--reg", "../site/reg.json", "--fail_on", "pixels") == 1
    site = screenshots / "site"
    reg = json.loads((site / "reg.json").read_text())
    assert (reg["expectedDir"], reg["actualDir"], reg["diffDir"]) == ("../shots/before", "../shots/after", "reg_diff")
    assert reg["failedItems"] == reg["diffItems"] == [CHANGED] and reg["passedItems"] == ["same.png"]
    assert reg["newItems"] == ["fresh.png"] and reg["deletedItems"] == ["gone.png"]
    with Image.open(site / "reg_diff" / CHANGED) as image:
        red = (np.asarray(image) == (255, 0, 0)).all(-1)
    expected = np.zeros((48, 64), dtype=bool)
    expected[10:20, 8:24] = True
    assert (red == expected).all()


def test_ignored_regions_are_not_marked_and_old_difference_images_are_removed(screenshots: Path) -> None:
    assert compare("--reg", "reg.json") == 0 and Path("reg_diff", CHANGED).exists()
    assert compare("--reg", "reg.json", "--ignore", "8,10,24,15") == 0
    with Image.open(Path("reg_diff", CHANGED)) as image:
        rows = (np.asarray(image) == (255, 0, 0)).all(-1).any(1)
    assert list(np.flatnonzero(rows)) == list(range(15, 20))
    assert compare("--reg", "reg.json", "--ignore", "8,10,24,20") == 0
    assert json.loads(Path("reg.json").read_text())["diffItems"] == [] and not Path("reg_diff").exists()


def test_inputs_and_files_of_others_are_refused_before_the_comparison(
    screenshots: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("reg_diff").mkdir()
    Path("reg_diff/notes.txt").write_text("mine")
    arguments = ["compare", "../shots/before", "../shots/after", "--out", "c.jsonl"]
    assert main([*arguments, "--reg", "reg.json"]) == 2 and "notes.txt" in capsys.readouterr().err
    assert main([*arguments, "--reg", "../shots/after/reg.json"]) == 2 and "inside the input" in capsys.readouterr().err
    (screenshots / "shots/before/same.png").rename(screenshots / "shots/before/same.bmp")
    assert main([*arguments, "--reg", "new.json"]) == 2
    assert "same.bmp and same.png are a pair; reg-cli expects equal names" in capsys.readouterr().err
    assert not Path("c.jsonl.part").exists() and Path("reg_diff/notes.txt").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.skipif("LIGHTNING_IDC_REG_CLI" not in os.environ, reason="needs reg-cli: npm ci in .ci/reg_cli")
def test_the_reporter_of_reg_cli_shows_every_image(screenshots: Path) -> None:
    assert compare("--reg", "../site/reg.json", "--fail_on", "pixels") == 1
    program = Path(os.environ["LIGHTNING_IDC_REG_CLI"], "node_modules/reg-cli/dist/cli.js")
    site = screenshots / "site"
    subprocess.run(["node", program, "-F", "reg.json", "-R", "index.html"], cwd=site, check=True, timeout=60)
    page = (site / "index.html").read_text(encoding="utf-8")
    (text,) = re.findall(r"window\['__reg__'\] = (\{.*?\});</script>", page)
    report = json.loads(text)
    shown = [(side, item) for item in report["failedItems"] for side in ("actualDir", "expectedDir", "diffDir")]
    shown += [(side, item) for item in report["passedItems"] for side in ("actualDir", "expectedDir")]
    shown += [("actualDir", item) for item in report["newItems"]]
    shown += [("expectedDir", item) for item in report["deletedItems"]]
    assert len(shown) == 7
    for side, item in shown:
        assert (site / report[side] / unquote(item["encoded"])).is_file(), (side, item)
    if BROWSER is None:
        return
    count = """<script>setTimeout(() => { const images = [...document.images];
      document.body.append(Object.assign(document.createElement("pre"), { id: "count",
        textContent: [images.length, images.filter((i) => i.naturalWidth).length].join() })); }, 2000);</script>"""
    (site / "count.html").write_text(page.replace("</body>", f"{count}</body>"), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=5000"]
    command += ["--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND"]
    dom = subprocess.run(
        [*command, (site / "count.html").as_uri()], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    total, loaded = map(int, re.findall(r'<pre id="count">(\d+),(\d+)</pre>', dom)[0])
    assert total == loaded == 4  # passed items are collapsed
