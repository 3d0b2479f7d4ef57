"""HtmlFolder and ChangeHtml: pairs of existing pages with one exact change. Oracle: pages written here, in Chromium."""

from __future__ import annotations

import shutil
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_idc.rules.noise import noise_of
from lightning_idc.synthesis import ChangeHtml, HtmlFolder
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.synthesis.web.operators import OPERATORS, TIERS, Mutation, caption_of
from lightning_idc.synthesis.web.templates import template_page
from lightning_idc.utils.errors import ConfigError, DatasetNotFoundError

BROWSER = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))) and find_spec("playwright")
needs_browser = pytest.mark.skipif(not BROWSER, reason="needs Playwright and Chromium or Chrome")
CSS = """body { font: 16px sans-serif; margin: 16px; } h1 { color: #123456; }
.card { border: 2px solid #888; background: #eef; width: 300px; padding: 8px; } a { color: #06c; }
@media (prefers-color-scheme: dark) { body { background: #000; color: #fff; } }"""
PAGE = """<!doctype html><title>{name}</title><link rel="stylesheet" href="style.css">
<h1>About {name}</h1><div class="card"><p>One line of a card.</p><a href="#">Read more</a></div>
<p style="width: 260px">A paragraph that is long enough to be set in several lines of text in its narrow box.</p>"""
STATIC: dict[str, Any] = {
    "index": 0, "tag": "a", "box": [0, 0, 100, 20], "text": "Read more", "lines": 2, "has_text": True,
    "text_width": 40, "ground": "rgb(255, 255, 255)", "color": "rgb(0, 0, 0)", "backgroundColor": "rgb(9, 9, 9)",
    "borderColor": "rgb(1, 2, 3)", "borderWidth": "1px", "borderStyle": "solid", "borderRadius": "0px",
    "fontSize": "16px", "fontWeight": "400", "letterSpacing": "normal", "lineHeight": "normal", "opacity": "1",
    "textAlign": "start", "display": "block", "position": "static", "paddingLeft": "0px",
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sites")
    for site, pages in (("small", 1), ("large", 30)):
        (folder / site).mkdir()
        (folder / site / "style.css").write_text(CSS)
        for number in range(pages):
            (folder / site / f"{number}.html").write_text(PAGE.format(name=f"{site} {number}"))
    return folder


@pytest.mark.slow
def test_pages_of_all_sites_take_turns_and_depend_on_the_seed_alone(root: Path) -> None:
    source, again = HtmlFolder(str(root), 60), HtmlFolder(str(root), 60)
    facts = [source.record(index).facts for index in range(60)]
    assert Counter(fact["site"] for fact in facts) == {"large": 30, "small": 30}
    assert len({fact["file"] for fact in facts if fact["site"] == "large"}) == 30, "each page once before any twice"
    assert facts == [again.record(index).facts for index in range(60)] and source.fingerprint == again.fingerprint
    assert facts != [HtmlFolder(str(root), 60, seed=1).record(index).facts for index in range(60)]
    many = [HtmlFolder(str(root), 2000).record(index).facts for index in range(2000)]
    assert 160 < sum(fact["edit"] == "no_change" for fact in many) < 300  # 11.4 %
    counts = Counter(fact["edit"] for fact in many if fact["edit"] != "no_change")
    assert counts.keys() == OPERATORS.keys() and min(counts.values()) > 90
    assert {fact["site"] for fact in (HtmlFolder(str(root), 4, sites=["small"]).record(i).facts for i in range(4))} == {
        "small"
    }


def test_wrong_arguments_are_named(root: Path) -> None:
    with pytest.raises(ConfigError, match="operators is \\['colour'\\]; expected some of add, alignment"):
        HtmlFolder(str(root), operators=["colour"])
    with pytest.raises(ConfigError, match="has no pages of medium"):
        HtmlFolder(str(root), sites=["medium"])
    with pytest.raises(DatasetNotFoundError, match="no such folder"):
        HtmlFolder(str(root / "absent"))
    with pytest.raises(DatasetNotFoundError, match="no pages that match"):
        HtmlFolder(str(root), pattern="*.xhtml")


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_changes_its_property_less_in_harder_tiers(name: str) -> None:
    operator = OPERATORS[name]
    assert operator.suits(STATIC)
    for tier in TIERS:
        mutation = operator.mutate(STATIC, tier, np.random.default_rng(0))
        assert mutation.old != mutation.new
        caption = caption_of(name, STATIC, mutation)
        assert caption.startswith('the link "Read more" ') and (
            name in ("add", "remove") or mutation.new.split()[-1].strip("-") in caption
        )
    if name in ("font_size", "letter_spacing", "line_height", "rounded", "spacing"):
        element = STATIC | {"paddingLeft": "40px"}
        for seed in range(4):
            drawn = [operator.mutate(element, tier, np.random.default_rng(seed)) for tier in TIERS]
            steps = [abs(float(one.new[:-2]) - float(one.old[:-2])) for one in drawn]
            assert sorted(steps, reverse=True) == steps, "a smaller step in a harder tier"


@pytest.mark.parametrize("name", ["font_size", "letter_spacing", "line_height", "spacing"])
def test_lengths_grow_and_shrink(name: str) -> None:
    element = STATIC | {"paddingLeft": "40px"}
    drawn = [OPERATORS[name].mutate(element, "easy", np.random.default_rng(seed)) for seed in range(20)]
    grown = sum(float(one.new[:-2]) > float(one.old[:-2]) for one in drawn)
    assert 4 < grown < 16
    if name == "spacing":  # inner spacing is never negative
        assert all(
            float(OPERATORS[name].mutate(STATIC, "easy", np.random.default_rng(seed)).new[:-2]) == 32
            for seed in range(8)
        )


def test_captions_name_directions() -> None:
    moved = [
        caption_of("translate", STATIC, Mutation(*change)) for change in (("top", "0px", "-5px"), ("left", "", "5px"))
    ]
    assert [caption.partition(" moved ")[2] for caption in moved] == ["up by 5px", "right by 5px"]


@pytest.fixture(scope="module")
def changed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> RecordStore:
    if not BROWSER:
        pytest.skip("needs Playwright and Chromium or Chrome")
    source = HtmlFolder(str(root), 39, no_change=0.0, widths=[480], height=360)
    return run(ChangeHtml(), source, tmp_path_factory.mktemp("html") / "a")


@pytest.mark.slow
@needs_browser
def test_images_differ_as_the_facts_say(changed: RecordStore) -> None:
    kept = [record for record in changed if record.dropped is None]
    assert len(kept) > 25 and len({record.facts["edit"] for record in kept}) > 9
    for record in kept:
        before, after = record.pair()
        facts = record.facts
        assert before.shape == (3, 360, 480) and facts["old"] != facts["new"]
        differs = (before != after).any(0)
        assert (facts["true_boxes"][0][0] is None) == (facts["edit"] == "add"), "an added element has no box before"
        left, top, right, bottom = next(filter(None, facts["true_boxes"][0]))
        own = torch.zeros_like(differs)
        own[max(0, int(top) - 6) : int(bottom) + 6, max(0, int(left) - 6) : int(right) + 6] = True
        assert (differs & own).any(), record.id
        if facts["edit"] in ("color", "opacity", "border"):
            assert not (differs & ~own).any() and not facts["reflows"], "it changes nothing around its element"


@needs_browser
def test_a_page_is_restored_when_a_step_fails_while_it_is_changed(root: Path) -> None:
    stage = ChangeHtml()
    page = stage.open_page(HtmlFolder(str(root), 1, widths=[480], height=360).record(0))
    before = page.screenshot()
    for mutation in (Mutation("color", "", "red"), Mutation("text", "", "Another text")):
        element = next(element for element in page.elements() if element["tag"] == "a")
        with pytest.raises(RuntimeError), page.changed(element, mutation):
            assert not torch.equal(page.screenshot(), before)
            raise RuntimeError
        assert torch.equal(page.screenshot(), before), mutation.property
    stage.browser.close()


@pytest.mark.slow
@needs_browser
def test_the_same_source_gives_the_same_pairs(changed: RecordStore, root: Path, tmp_path: Path) -> None:
    source = HtmlFolder(str(root), 10, no_change=0.0, widths=[480], height=360)
    again = run(ChangeHtml(), source, tmp_path / "b")
    assert len(again) == 10
    for one, other in zip(changed, again, strict=False):
        assert one.facts == other.facts and one.dropped == other.dropped
        if one.dropped is None:
            assert all(torch.equal(one.image(side), other.image(side)) for side in ("before", "after"))


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A local web server, and the paths requested from it."""
    requests: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(404)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_address[1]}", requests
        listening.shutdown()


def one(folder: Path, body: str, missing_sheets: float = 0.0, **facts: Any) -> Record:
    """Return the record of one page after `ChangeHtml`."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site/a.html").write_text(f"<!doctype html><body style='background:#fff'>{body}")
    source = HtmlFolder(str(folder), 1, no_change=1.0, widths=[200], height=120)
    record = source.record(0)
    record.facts |= facts
    record.history.append({"stage": "ChangeHtml"})
    stage = ChangeHtml(missing_sheets=missing_sheets)
    stage.browser.load()
    try:
        return stage.process([record])[0]
    finally:
        stage.browser.close()


@pytest.mark.slow
@needs_browser
def test_a_page_reaches_no_network_and_runs_no_script(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    address, requests = server
    record = one(
        tmp_path,
        f"<img src='{address}/x.png'><link rel='stylesheet' href='{address}/x.css'><iframe src='{address}/f'></iframe>"
        f"<script>document.body.style.background='#000'; fetch('{address}/y')</script><p>Text</p>",
        noise="reload",
    )
    assert requests == [] and record.dropped is None
    assert record.image("before").float().mean() > 200, "the script did not run"
    assert torch.equal(*record.pair())


@pytest.mark.slow
@needs_browser
def test_templates_and_redirects(tmp_path: Path) -> None:
    record = one(tmp_path, "<meta HTTP-EQUIV=refresh content='0; url=b.html'>", noise="reload")
    assert record.dropped is not None and "redirects to another page" in str(record.dropped["value"])
    page = one(tmp_path, "", noise="reload", html=template_page("cards", 0), width=480)
    assert page.dropped is None and page.image("before").shape[2] == 480
    assert len(torch.unique(page.image("before").flatten(1), dim=1).T) > 50, "an unstyled page has fewer colours"


@pytest.mark.slow
@needs_browser
def test_a_page_without_its_style_sheet_is_dropped(tmp_path: Path) -> None:
    record = one(tmp_path, "<link rel='stylesheet' href='absent.css'><p>Text</p>", noise="reload")
    assert record.dropped is not None and record.dropped["reason"] == "an incomplete page"
    assert "absent.css" in str(record.dropped["value"])
    (tmp_path / "site/a.css").write_text("p { color: red }")
    page = "<link rel='stylesheet' href='absent.css'><link rel='stylesheet' href='a.css'><p>Text</p>"
    assert one(tmp_path, page, missing_sheets=0.4, noise="reload").dropped is not None
    assert one(tmp_path, page, missing_sheets=0.5, noise="reload").dropped is None


def test_pairs_of_a_page_share_its_window_and_not_their_changes(root: Path) -> None:
    source = HtmlFolder(str(root), 41, pairs_per_page=3, widths=[200, 300, 400])
    facts = [source.record(index).facts for index in range(41)]
    windows = [{name: fact[name] for name in ("file", "width", "scroll", "dark")} for fact in facts]
    assert all(windows[index] == windows[index - index % 3] for index in range(41))
    assert len({str(window) for window in windows}) == 14 and len({fact["edit"] for fact in facts}) > 8
    assert len({source.record(index).id for index in range(41)}) == 41


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("edit", ["text", "translate", "rounded"])
def test_a_page_is_restored_for_its_next_pair(edit: str, root: Path) -> None:
    source = HtmlFolder(str(root), 2, pairs_per_page=2, no_change=0.0, widths=[400], height=300)
    records, alone, stage = [source.record(index) for index in (0, 1)], source.record(1), ChangeHtml()
    records[0].facts["edit"] = edit
    for run_of_pairs in (records, [alone]):  # each in its own browser
        try:
            stage.process(run_of_pairs)
        finally:
            stage.finish(None)
    assert records[0].dropped is None and records[1].dropped is None
    assert not torch.equal(*records[0].pair())
    for image, expected in zip(records[1].pair(), alone.pair(), strict=True):
        assert torch.equal(image, expected)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(
    ("noise", "is_equal"), [("cursor", False), ("scroll", False), ("jpeg", False), ("hinting", None)]
)
def test_unchanged_pages_have_the_noise_of_their_record(noise: str, is_equal: bool | None, tmp_path: Path) -> None:
    record = one(tmp_path, "<p>Some text of a page</p>" * 20, noise=noise)
    before, after = record.pair()
    assert (
        record.facts["edit"] == "no_change" and record.dropped is None and "nothing changed" in record.facts["captions"]
    )
    if is_equal is not None:  # whether hinting is visible depends on the installed fonts
        assert torch.equal(before, after) == is_equal
    if noise == "cursor":
        rows, columns = (before != after).any(0).nonzero().T
        assert int(columns.max() - columns.min()) == 0 and int(rows.max() - rows.min()) == 17
    if noise == "scroll":
        assert torch.equal(before[:, 1:], after[:, :-1])
    if noise == "hinting":  # glyphs at the same positions are noise, not a change of the page
        assert noise_of(before.numpy(), after.numpy()) is not None or torch.equal(before, after)
