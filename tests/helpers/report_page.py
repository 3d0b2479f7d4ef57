"""A report of many pairs, and the work of a browser that opens it.

Images have as many bytes as photographs of the size that ShowResults uses for 2,000 pairs. Nothing is timed, since
times on a busy machine say nothing about the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser

from lightning_idc.report.html import Entry, write_report

PIXELS = 176


def write(target: Path, pairs: int) -> None:
    """Write a report of this many pairs."""
    coarse = torch.randint(0, 256, (1, 3, 22, 22), generator=torch.Generator().manual_seed(0))
    noise = torch.nn.functional.interpolate(coarse.float(), (PIXELS, PIXELS), mode="bilinear")[0].byte()
    texts, images = ["the cube moved"] * 3, (noise, noise)
    entries = (Entry(f"p{n}", texts[0], texts, log_prob=-n, images=images) for n in range(pairs))
    write_report(target, "A report", entries, thumbnail=PIXELS)


OPENED = """
window.opened = new Promise((resolve) => {
  const watch = new MutationObserver(async () => {
    if (!document.querySelector("article img[src]")) return;
    watch.disconnect();
    const opened = { reading: document.readyState === "loading", first: size() };
    if (opened.reading) await new Promise((read) => document.addEventListener("DOMContentLoaded", read));
    const order = document.getElementById("order");
    order.value = "sure 1";
    order.dispatchEvent(new Event("change"));
    await document.querySelector("article img").decode();
    opened.last = { id: document.querySelector("article .id").textContent, ...size() };
    resolve(opened);
  });
  const size = () => ({
    images: document.querySelectorAll("img[src]").length,
    elements: document.querySelectorAll("body *:not(script)").length,
  });
  watch.observe(document, { childList: true, subtree: true });
});
"""
"""Runs before the scripts of a page, and measures its size when the first pair appears and after the order changes."""


def opened(chromium: Browser, target: Path) -> dict[str, Any]:
    """Whether the file was still being read when the first pair appeared (``reading``), and the page's size at that
    moment (``first``) and after a change of order (``last``)."""
    tab = chromium.new_page()
    tab.add_init_script(OPENED)
    tab.goto(target.as_uri(), wait_until="commit")
    result: dict[str, Any] = tab.evaluate("window.opened")
    tab.close()
    return result
