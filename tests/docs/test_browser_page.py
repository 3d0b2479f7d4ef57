"""The first page of the documentation site: a shipped captioner in headless Chromium, from static files alone."""

from __future__ import annotations

import base64
import io
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.servers import serving
from PIL import Image

import lightning_idc
from lightning_idc.data import SyntheticPairs
from lightning_idc.nn.decoding.decoding import greedy
from lightning_idc.serve import answer_pairs

ROOT = Path(__file__).resolve().parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
RUNTIME = ROOT / "docs" / "browser" / "node_modules" / "onnxruntime-web"
playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra dev")
pytest.importorskip("material", reason="needs the extra docs")
pytest.importorskip("onnxscript", reason="needs the extra onnx")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium"),
    pytest.mark.skipif(not RUNTIME.is_dir(), reason="needs onnxruntime-web: `make docs` brings it"),
]
PAIRS = 20
SIZES = [(144, 96), (144, 96), (288, 192), (160, 100), (50, 70)]


class Quiet(SimpleHTTPRequestHandler):
    """A plain server of files, as any host of static pages is."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site, built and served."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "true")
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))) as found:
        yield f"{found}/"


@pytest.fixture(scope="module")
def page(address: str) -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER)
        tab = chromium.new_page(viewport={"width": 1300, "height": 1000})
        tab.set_default_timeout(120_000)
        foreign: list[str] = []
        own = (address, "blob:", "data:")
        tab.on("request", lambda request: None if request.url.startswith(own) else foreign.append(request.url))
        errors: list[str] = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(address)
        yield tab
        chromium.close()
        assert not errors
        assert not foreign, "the page asks nobody else"


def files() -> Iterator[tuple[bytes, bytes]]:
    """Rendered pairs as files, most of another size than that of the training."""
    source = SyntheticPairs("clevr_wide", test_pairs=PAIRS, render_size=(96, 144)).pairs_of("test")
    for index in range(PAIRS):
        sample, encoded = source.load(index), []
        for image in (sample.before, sample.after):
            file = io.BytesIO()
            Image.fromarray(image.permute(1, 2, 0).numpy()).resize(SIZES[index % len(SIZES)]).save(file, "PNG")
            encoded.append(file.getvalue())
        yield encoded[0], encoded[1]


_ASK = """async (pairs) => {
  const ort = await import(new URL("try/ort/ort.wasm.min.mjs", location.href).href);
  const { Captioner, read } = await import(new URL("try/captioner.mjs", location.href).href);
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = new URL("try/ort/", location.href).href;
  const captioner = await Captioner.open(ort, new URL("try/model/", location.href).href), found = [];
  const decoded = async (text) => read(await (await fetch(`data:image/png;base64,${text}`)).blob());
  for (const [before, after] of pairs) {
    const answer = await captioner.describe(await decoded(before), await decoded(after), false);
    found.push([answer.ids, answer.caption, answer.log_prob, answer.change_score]);
  }
  return found;
}"""


def test_ids_are_those_of_python(page: Any) -> None:
    pairs = list(files())
    found = page.evaluate(_ASK, [[base64.b64encode(side).decode() for side in pair] for pair in pairs])
    captioner = lightning_idc.load("clevr", device="cpu")
    for (ids, caption, log_prob, score), pair in zip(found, pairs, strict=True):
        sample = captioner.input_spec.read(*pair)
        with torch.no_grad():
            features = captioner.encode(captioner.collate([sample]))
            said = greedy(captioner.built_net, features, captioner.hparams["max_length"])
        wanted = captioner.describe_all([sample])[0]
        assert (ids, caption) == (said.ids[0], wanted.text)
        assert log_prob == pytest.approx(wanted.log_prob, abs=1e-3)
        assert score == pytest.approx(wanted.change_score, abs=1e-3)


def test_two_images_are_described_with_score_and_map_on_the_first_page(page: Any, tmp_path: Path) -> None:
    inside = page.frame_locator("iframe")
    paths = lightning_idc.sample_pair()
    for side, path in zip(("before", "after"), paths, strict=True):
        inside.locator(f"#{side}").set_input_files(str(path))
    inside.locator("#ask").click()
    inside.locator("#score").get_by_text("change score").wait_for()
    captioner = lightning_idc.load("clevr", device="cpu")
    wanted = answer_pairs(captioner, [captioner.input_spec.read(*paths)])[0]
    assert inside.locator("#caption").inner_text() == wanted.caption
    assert inside.locator("#score").inner_text() == f"change score {wanted.change_score:.2f}"
    places = inside.locator("#places").inner_text()
    shown = "; ".join(f"x {x1}-{x2}, y {y1}-{y2}" for x1, y1, x2, y2 in wanted.boxes)
    assert wanted.boxes and places == f"where: {shown} (pixels)"
    pixels = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(Boolean)"
    assert inside.locator("#map").evaluate(pixels), "the map lies over the second image"
    page.screenshot(path=str(tmp_path / "page.png"))
    inside.get_by_role("button", name="describe the sample clevr-no_change").click()
    inside.get_by_text("change score 0").wait_for()
    unchanged = captioner.describe(*lightning_idc.sample_pair("clevr-no_change"))
    assert inside.locator("#caption").inner_text() == unchanged.text
