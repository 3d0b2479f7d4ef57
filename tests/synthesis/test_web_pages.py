"""Pairs of web pages: exact changes, in a real browser if one is installed."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.synthesis.web.browser import Chromium
from lightning_idc.synthesis.web.changes import KINDS, change_page
from lightning_idc.synthesis.web.pages import draw_page, elements_of, to_html
from lightning_idc.synthesis.web.stages import RenderPages, WebPages
from lightning_idc.utils.errors import ConfigError

VIEW = 240, 320
BROWSER = Chromium(*VIEW)
needs_browser = pytest.mark.skipif(bool(BROWSER.requirements()), reason="; ".join(BROWSER.requirements()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_the_only_difference_of_two_pages(kind: str) -> None:
    for seed in range(30):
        page = draw_page(np.random.default_rng(seed))
        html = to_html(page)
        change = change_page(page, kind, np.random.default_rng(seed))
        assert to_html(page) == html, "the page that was given stays as it is"
        if change is None:
            assert kind == "corners"
            continue
        one, other = ({e["id"]: e for e in elements_of(side)} for side in (change.before, change.after))
        moved = [e["id"] for e in elements_of(change.before)] != [e["id"] for e in elements_of(change.after)]
        differ = {id for id in one.keys() | other.keys() if one.get(id) != other.get(id)}
        assert differ == (set() if kind == "move" else set(change.elements))
        assert moved == (kind in ("add", "remove", "move"))
        assert all(any(text["text"] in said for text in [*one.values(), *other.values()]) for said in change.captions)


def test_a_text_names_one_element_of_a_page() -> None:
    for seed in range(50):
        texts = [element["text"] for element in elements_of(draw_page(np.random.default_rng(seed)))]
        assert len(set(texts)) == len(texts)


@pytest.mark.slow
def test_pages_depend_on_the_seed_alone() -> None:
    first, again, other = WebPages(20, seed=1), WebPages(30, seed=1), WebPages(20, seed=2)
    assert first.record(7).facts == again.record(7).facts != other.record(7).facts
    kinds = Counter(WebPages(400, no_change=0.25).record(index).facts["edit"] for index in range(400))
    assert set(kinds) == {*KINDS, "no_change"} and 70 < kinds["no_change"] < 130
    with pytest.raises(ConfigError, match="expected some of text, color"):
        WebPages(kinds=("colour",))


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> RecordStore:
    target = tmp_path_factory.mktemp("web") / "a"
    return run(RenderPages(Chromium(*VIEW)), WebPages(40, width=VIEW[0], no_change=0.2), target)


@pytest.mark.slow
@needs_browser
def test_images_differ_at_the_element(rendered: RecordStore) -> None:
    kept = [record for record in rendered if record.dropped is None]
    assert len(kept) > 30
    for record in kept:
        before, after = record.pair()
        assert before.shape == (3, VIEW[1], VIEW[0])
        differ = (before != after).any(0)
        assert bool(differ.any()) == (record.facts["edit"] != "no_change")
        if record.facts["edit"] in ("color", "corners", "text"):
            seen = torch.zeros_like(differ)
            for box in (box for both in record.facts["true_boxes"] for box in both if box is not None):
                x1, y1, x2, y2 = box
                seen[int(y1) : int(y2) + 2, int(x1) : int(x2) + 2] = True
            assert (differ & seen).any(), record.id
            if record.facts["edit"] == "color":
                assert not (differ & ~seen).any(), "a color changes nothing around its element"


@pytest.mark.slow
@needs_browser
def test_rendering_is_deterministic_and_contradicting_pairs_are_dropped(rendered: RecordStore, tmp_path: Path) -> None:
    again = run(
        RenderPages(pickle.loads(pickle.dumps(Chromium(*VIEW)))),
        WebPages(40, width=VIEW[0], no_change=0.2),
        tmp_path / "b",
    )
    assert all(
        torch.equal(one.image(side), other.image(side))
        for one, other in zip(rendered, again, strict=True)
        for side in ("before", "after")
    )
    (about,) = again.manifest.notes["provenance"]
    assert about["models"]["browser"]["commit"].count(".") == 3, "the version of the browser is kept"

    class Invisible(WebPages):
        def record(self, index: int):  # type: ignore[no-untyped-def]
            record = super().record(index)
            record.facts["html"] = [record.facts["html"][0]] * 2
            return record

    store = run(RenderPages(Chromium(*VIEW)), Invisible(6, no_change=0.0, width=VIEW[0]), tmp_path / "c")
    assert store.counts() == (0, {"nothing visible changed": 6})


@pytest.mark.slow
@needs_browser
def test_a_page_reaches_no_network_and_runs_no_script() -> None:
    browser = Chromium(64, 64)
    browser.load()
    try:
        harm = (
            "<body style='background:#fff'><script>document.body.style.background='#000'</script>"
            "<img src='http://127.0.0.1:9/x.png'>"
        )
        ((image, _),) = browser.render([harm])
    finally:
        browser.close()
    assert image.float().mean() > 200


def test_missing_browser_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_idc.synthesis.web.browser.shutil.which", lambda name: None)
    assert any("playwright install chromium" in problem for problem in Chromium().requirements())
    with pytest.raises(ConfigError, match=r"Chromium|Playwright"):
        Chromium().load()
    with pytest.raises(ConfigError, match="width is 0; expected at least 1"):
        Chromium(width=0)
