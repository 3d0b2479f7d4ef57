"""A report of many pairs, and how long a browser takes to open it.

Images have as many bytes as photographs of the size that ShowResults takes for 2,000 pairs. The browser's own clock
counts from the request for the file until the images of the first pair are drawn, and until the file is read to its
end, so that the last pair in the order of its scores is drawn as well, each in a new page.
"""

from __future__ import annotations

from pathlib import Path

import torch
from playwright.sync_api import Browser

from lightning_idc.report.html import Entry, write_report

PIXELS = 176


def write(target: Path, pairs: int) -> None:
    """A report of so many pairs."""
    coarse = torch.randint(0, 256, (1, 3, 22, 22), generator=torch.Generator().manual_seed(0))
    noise = torch.nn.functional.interpolate(coarse.float(), (PIXELS, PIXELS), mode="bilinear")[0].byte()
    texts, images = ["the cube moved"] * 3, (noise, noise)
    entries = (Entry(f"p{n}", texts[0], texts, log_prob=-n, images=images) for n in range(pairs))
    write_report(target, "A report", entries, thumbnail=PIXELS)


OPENED = """
window.opened = new Promise((resolve) => {
  const seconds = {};
  const drawn = async (name) => {
    await document.querySelector("article img").decode();
    await new Promise(requestAnimationFrame);
    seconds[name] = performance.now() / 1000;
  };
  const watch = new MutationObserver(async () => {
    if (!document.querySelector("article img[src]")) return;
    watch.disconnect();
    await drawn("first pair");
    if (document.readyState === "loading") {
      await new Promise((read) => document.addEventListener("DOMContentLoaded", read));
    }
    const order = document.getElementById("order");
    order.value = "sure 1";
    order.dispatchEvent(new Event("change"));
    await drawn("any pair");
    resolve([seconds, document.querySelector("article .id").textContent]);
  });
  watch.observe(document, { childList: true, subtree: true });
});
"""
"""Runs in a page before its own scripts: seconds since the browser was asked for it, and the pair drawn last."""


def seconds_to_open(chromium: Browser, target: Path, tries: int, last: str) -> dict[str, list[float]]:
    """Seconds until the first pair is there, and until the last one is, once per try."""
    found: dict[str, list[float]] = {"first pair": [], "any pair": []}
    for _ in range(tries):
        tab = chromium.new_page()
        tab.add_init_script(OPENED)
        tab.goto(target.as_uri(), wait_until="commit")
        seconds, shown = tab.evaluate("window.opened")
        assert shown == last
        for name, taken in seconds.items():
            found[name].append(taken)
        tab.close()
    return found
