"""The report as a person uses it: real keys, links, a table to download, accessibility rules. Needs Chromium."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_idc.report.audit import AuditArea, AuditEntry, write_audit
from lightning_idc.report.html import Entry, write_report
from lightning_idc.report.leaderboard import Board
from lightning_idc.report.leaderboard import write_html as write_leaderboard
from lightning_idc.report.summary import Summary
from lightning_idc.report.table import Table

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra dev")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
SIZE = (400, 560)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER)
        yield chromium
        chromium.close()


def picture(red: int) -> torch.Tensor:
    image = torch.zeros(3, *SIZE, dtype=torch.uint8)
    image[0] = red
    image[1, ::7] = 255  # thin lines that vanish in a reduced image
    return image


def entries(count: int = 45) -> Iterator[Entry]:
    boxes = torch.tensor([[[40.0, 60, 200, 240], [40, 60, 200, 240]]])
    for n in range(count):
        caption = f"the cube number{n} moved" if n else "=HYPERLINK(1)"
        scores, facts = {"CIDEr-D": float(n * 7 % 45)}, {"type": n % 3 == 0}
        images = picture(0), picture(200)
        kind = ["move", "drop"][n % 2]
        yield Entry(f"p{n:02}", caption, ["the cube moved"], kind, -0.1 * n, scores, facts, images, boxes, n / 100)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    summary = Summary({"all": {"CIDEr-D": 12.0}}, {"all": 45}, 45, {"METEOR": "not computed: no Java"})
    write_report(folder / "r.html", "A report", entries(), summary, {"data": "D"}, full_size=True)
    return folder / "r.html"


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    tab = browser.new_page(viewport={"width": 1400, "height": 900})
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(report.as_uri())
    yield tab
    tab.close()
    assert not complaints


def color(page: Any, share: float) -> tuple[int, ...]:
    """Colour on the stage at this share of its width."""
    from PIL import Image

    shot = Image.open(io.BytesIO(page.locator("#stage").screenshot())).convert("RGB")
    return tuple(shot.getpixel((int(share * shot.width), int(0.9 * shot.height))))


@pytest.mark.slow
def test_every_action_by_keyboard(page: Any) -> None:
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#place") == "21 to 40 of 45", "outside the large view arrows turn pages"
    page.keyboard.press("ArrowLeft")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('figure button')"):
            break
    assert page.evaluate("document.activeElement.querySelector('img').alt") == "before, p00"
    page.keyboard.press("Enter")
    assert page.locator("#large").is_visible() and page.inner_text("#large-id") == "p00"
    assert page.evaluate("document.activeElement.id") == "wipe", "and yet arrows turn to other pairs"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#large-id") == "p01" and page.input_value("#wipe") == "50"
    page.keyboard.press("ArrowUp")
    assert page.input_value("#wipe") == "52"
    page.keyboard.press("Escape")
    assert not page.locator("#large").is_visible()
    # the browser first focuses p00; the page handles the close event later and focuses the pair seen last
    page.wait_for_selector("button:focus img[alt='before, p01']")
    assert "large" not in page.url


@pytest.mark.slow
def test_the_wipe_goes_with_the_thumb_and_shows_full_size(page: Any) -> None:
    page.click("figure button")
    assert page.evaluate("document.getElementById('large-before').naturalWidth") == SIZE[1], "on the page it has 192"
    assert color(page, 0.2)[0] < 60 and color(page, 0.8)[0] > 140, "before on the left, after on the right"
    page.fill("#wipe", "90")
    assert color(page, 0.8)[0] < 60 and color(page, 0.95)[0] > 140, "the edge went to the right, as the thumb did"
    page.keyboard.press("Home")
    assert color(page, 0.1)[0] > 140
    page.keyboard.press("End")
    assert color(page, 0.9)[0] < 60
    box = page.locator("#stage").bounding_box()
    page.mouse.click(box["x"] + 0.25 * box["width"], box["y"] + 50)
    assert page.input_value("#wipe") == "25"
    assert page.locator("#stage .box").count() == 2 and page.inner_text("#stage .box >> nth=0") == "ground truth"


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 360, 900])
def test_nothing_is_cut_off_in_a_narrow_window(browser: Any, report: Path, tmp_path: Path, width: int) -> None:
    title = "total_change_captions_reformatted_of_the_test_split: coco"
    write_leaderboard(tmp_path / "board.html", [Board(title, "note", Table(["model", "CIDEr-D"], [["a", "1"]]))])
    tab = browser.new_page(viewport={"width": width, "height": 900})
    for page in (tmp_path / "board.html", report):
        tab.goto(page.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, page.name
    tab.locator(".frame").first.click()
    assert tab.locator("#large").evaluate("element => element.scrollWidth - element.clientWidth") <= 0
    tab.close()


@pytest.mark.slow
def test_without_the_folder_of_pictures_the_page_still_shows_them(browser: Any, report: Path, tmp_path: Path) -> None:
    shutil.copy(report, tmp_path / "moved.html")
    tab = browser.new_page()
    tab.goto((tmp_path / "moved.html").as_uri() + "#pair=p07&large=1")
    playwright.expect(tab.locator("#large-before")).to_have_js_property("naturalWidth", 192)
    tab.close()


@pytest.mark.slow
def test_links_lead_to_pairs_and_filters(page: Any, browser: Any) -> None:
    page.select_option("#type", "=drop")
    page.select_option("#order", label="change score, highest first")
    page.fill("#find", "cube")
    assert page.inner_text("article >> nth=0").count("change score 0.43") == 1
    page.click("#next")
    address = page.url
    link = page.locator("article .id >> nth=1")
    pair, target = link.inner_text(), link.get_attribute("href")
    other = browser.new_page()
    other.goto(address)
    assert other.inner_text("#place") == page.inner_text("#place") == "21 to 22 of 22"
    assert other.input_value("#find") == "cube" and other.input_value("#type") == "=drop"
    other.goto(address.split("#")[0] + target)
    assert other.locator("article.linked .id").inner_text() == pair
    other.goto(address.split("#")[0] + "#type=nothing&page=99&pair=<img src=x onerror=alert(1)>")
    assert other.inner_text("#place") == "41 to 45 of 45", "what a link says and is not there changes nothing"
    other.close()


@pytest.mark.slow
def test_the_pairs_that_are_shown_as_csv(page: Any) -> None:
    page.select_option("#type", "=move")
    with page.expect_download() as download:
        page.click("#csv")
    text = Path(download.value.path()).read_text(encoding="utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 23 and rows[1]["caption"] == "the cube number2 moved"
    assert rows[0]["caption"] == "'=HYPERLINK(1)", "a spreadsheet would run it"
    assert (rows[1]["log_prob"], rows[1]["change_score"], rows[1]["CIDEr-D"], rows[1]["type"]) == (
        "-0.2", "0.02", "14", "false",
    )  # fmt: skip


@pytest.mark.slow
def test_rules_of_accessibility(browser: Any, report: Path, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    audit, board = tmp_path / "audit.html", tmp_path / "board.html"
    areas = [AuditArea((0.1, 0.2, 0.5, 0.6), ["a cup"], {"match": 0.5}, None, "")]
    result = AuditEntry(
        "p", [picture(0)], ["text"], {"similarity": 0.3}, "too similar", "found 1", areas, "add", ["Stage"]
    )
    write_audit(audit, "An audit", [result], {"kept": 1}, {"kept": 1}, "1 pair", {"records": "here"})
    write_leaderboard(board, [Board("D: coco", "2 pairs", Table(["model", "CIDEr-D"], [["a", "1.0"]]))])
    for scheme in ("light", "dark"):
        tab = browser.new_page(color_scheme=scheme, bypass_csp=True)  # to inject axe into the page
        for address in (report.as_uri(), report.as_uri() + "#pair=p03&large=1", audit.as_uri(), board.as_uri()):
            tab.goto(address)
            tab.reload()
            violations = Axe().run(tab).response["violations"]
            serious = {v["id"]: v["nodes"][:3] for v in violations if v["impact"] in ("serious", "critical")}
            assert not serious, (scheme, address, serious)
        tab.close()


@pytest.mark.slow
def test_more_pairs_than_a_page_holds(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_idc.report.html.MAX_PAIRS", 3)
    few = [Entry(f"p{n}", "a", ["a"]) for n in range(7)]
    tab = browser.new_page()
    write_report(tmp_path / "r.html", "A report", iter(few))
    tab.goto((tmp_path / "r.html").as_uri())
    assert tab.locator("article .id").all_inner_texts() == ["p0", "p1", "p2"]
    assert "the first 3 pairs" in tab.inner_text("#most")
    write_report(tmp_path / "r.html", "A report", iter(few[:2]))
    tab.reload()
    assert tab.inner_text("#most") == ""
    tab.close()


@pytest.mark.slow
def test_the_contact_sheet_is_a_grid(page: Any) -> None:
    page.select_option("#view", "sheet")
    first, second = (page.locator("article").nth(n).bounding_box() for n in (0, 1))
    assert first["y"] == second["y"] and first["x"] < second["x"], "pairs stand side by side"
    assert "view=sheet" in page.url


@pytest.mark.slow
def test_a_report_of_two_thousand_pairs_shows_the_first_while_it_is_read(browser: Any, tmp_path: Path) -> None:
    from helpers.report_page import opened, write

    pages = {}
    for pairs in (40, 2000):
        write(tmp_path / f"{pairs}.html", pairs)
        pages[pairs] = opened(browser, tmp_path / f"{pairs}.html")
    assert (tmp_path / "2000.html").stat().st_size > 30e6
    assert pages[2000]["reading"], "the first pair does not wait for the last one"
    assert pages[2000]["last"].pop("id") == "p1999" and pages[40]["last"].pop("id") == "p39"
    assert pages[2000]["last"] == pages[40]["last"], "a page of the report holds twenty pairs, however many there are"
    assert pages[2000]["first"]["elements"] <= pages[40]["last"]["elements"]
    assert pages[40]["last"]["images"] == 40
