"""Both pages in a real browser, if there is one: rendered under their security policy, searched, sorted, and paged."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_idc.report.audit import AuditArea, AuditEntry, write_audit
from lightning_idc.report.html import Entry, write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
COUNT = 45  # three pages of at most twenty

SCRIPT = """
const told = [];
const set = (id, value, event = "change") => { $(id).value = value; $(id).dispatchEvent(new Event(event)); };
const note = (name) => told.push([name, document.querySelectorAll("article").length, $("place").textContent,
  document.querySelector("article .id")?.textContent ?? ""]);
const $$ = (text, id) => [...$(id).options].find((o) => o.textContent.startsWith(text)).value;
STEPS
document.body.append(Object.assign(document.createElement("pre"), { id: "told", textContent: JSON.stringify(told) }));
"""


def dom(page: Path) -> str:
    """DOM of a page after its scripts have run, which must not print to the console."""
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
        "--virtual-time-budget=3000", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert done.returncode == 0 and not complaints, complaints
    return done.stdout


def steps(page: Path, script: str) -> list[list[Any]]:
    """Notes made by a script of steps, in a copy of the page without the policy that would block it."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    before, running = text.split("<script>", 1)
    head, end = running.split("</script>", 1)
    copy = page.with_name("steps.html")
    copy.write_text(f"{before}<script>{head}{SCRIPT.replace('STEPS', script)}</script>{end}", encoding="utf-8")
    match = re.search(r'<pre id="told">(.*?)</pre>', dom(copy), re.DOTALL)
    assert match is not None, "the script stopped on its way"
    return json.loads(html.unescape(match[1]))


def picture(number: int) -> torch.Tensor:
    return torch.full((3, 24, 32), 5 * number, dtype=torch.uint8)


@pytest.mark.slow
def test_the_report(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    entries = [
        Entry(
            f"p{n:02}", f"the cube number{n} moved", ["the cube moved", "a", "b", "c", "d"], ["move", "drop"][n % 2],
            -0.1 * n, {"CIDEr-D": float(n * 7 % COUNT)}, {"type": n % 3 == 0}, (picture(n), picture(n + 1)),
            torch.tensor([[[2.0, 3, 10, 12], [2, 3, 10, 12]]]),
        )
        for n in range(COUNT)
    ]  # fmt: skip
    write_report(page, "A report", entries)
    drawn = dom(page)
    assert drawn.count("<article>") == 20 and drawn.count('class="box"') == 40
    assert drawn.count('<mark class="m2">the cube</mark>') == 40, "in caption and reference"
    told = steps(
        page,
        """
        note("start"); $("next").click(); note("next"); $("next").click(); note("last");
        const end = $("next").disabled; $("previous").click(); note("previous");
        set("order", $$("CIDEr-D, best", "order")); note("best");
        set("order", $$("least sure", "order")); note("unsure");
        set("order", "id"); set("find", "number17", "input"); note("found");
        set("find", "nobody", "input"); note("nothing"); set("find", "", "input");
        set("type", "=drop"); note("kind"); set("fact", $$("type right", "fact")); note("fact");
        set("type", ""); set("fact", ""); set("view", "three");
        told.push(["pictures", document.querySelectorAll("article:first-child figure").length]);
        document.querySelector(".more").click();
        told.push(["references", document.querySelectorAll("article:first-child li").length]);
        document.querySelector("figure button").click();
        told.push(["large", $("large").open, $("large-caption").textContent]);
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
        told.push(["next", $("large-caption").textContent]); $("large").close();
        $("boxes").click(); told.push(["boxes", $("pairs").className, end]);
        """,
    )
    assert told == [
        ["start", 20, "1 to 20 of 45", "p00"],
        ["next", 20, "21 to 40 of 45", "p20"],
        ["last", 5, "41 to 45 of 45", "p40"],
        ["previous", 20, "21 to 40 of 45", "p20"],
        ["best", 20, "1 to 20 of 45", f"p{next(n for n in range(COUNT) if n * 7 % COUNT == 44):02}"],
        ["unsure", 20, "1 to 20 of 45", "p44"],
        ["found", 1, "1 to 1 of 1", "p17"],
        ["nothing", 0, "0", ""],
        ["kind", 20, "1 to 20 of 22", "p01"],
        ["fact", 7, "1 to 7 of 7", "p03"],
        ["pictures", 3],
        ["references", 5],
        ["large", True, "the cube number0 moved"],
        ["next", "the cube number1 moved"],
        ["boxes", "hide-boxes", True],
    ]


@pytest.mark.slow
def test_the_audit_page(tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    entries = []
    for n in range(COUNT):
        entry = AuditEntry(f"p{n:02}", [picture(n), picture(n + 1)], kind=["add", "move"][n % 2])
        entry.texts, entry.scores, entry.history = [f"number{n}"], {"similarity": n * 7 % COUNT / COUNT}, ["Stage: {}"]
        entry.reason, entry.details = (None, "") if n % 3 else ("too similar", "found 1")
        boxes = ((0.1, 0.2, 0.5, 0.6), (0.3, 0.3, 0.9, 0.9))
        reasons = (None, "overlap" if n % 5 == 0 else None)
        entry.areas = [
            AuditArea(box, ["a cup"], {"match": n / COUNT}, reason, "")
            for box, reason in zip(boxes, reasons, strict=True)
        ]
        entries.append(entry)
    areas = {"kept": 81, "overlap": 9}
    write_audit(page, "An audit", entries, {"kept": 30, "too similar": 15}, areas, "45 pairs", {"records": "here"})
    drawn = dom(page)
    assert drawn.count("<article>") == 20 and drawn.count('class="box left-out"') == 8
    told = steps(
        page,
        """
        note("start"); $("next").click(); $("next").click(); note("last"); $("previous").click(); note("previous");
        set("reason", "=too similar"); note("reason"); set("area-reason", "=overlap"); note("area");
        set("reason", ""); set("area-reason", ""); set("kind", "=move"); note("kind"); set("kind", "");
        set("order", $$("similarity, highest", "order")); note("highest"); set("order", "");
        set("find", "number17", "input"); note("found"); set("find", "", "input");
        set("score", "area: match", "input"); set("cut", "0", "input");
        told.push(["bars", document.querySelectorAll("#bars > div").length, $("cut-counts").textContent]);
        $("boxes").click(); told.push(["boxes", $("pairs").className]);
        told.push(["areas", document.querySelectorAll(".summary table")[1].textContent.replace(/\\s+/g, " ")]);
        """,
    )
    assert told == [
        ["start", 20, "1 to 20 of 45", "p00"],
        ["last", 5, "41 to 45 of 45", "p40"],
        ["previous", 20, "21 to 40 of 45", "p20"],
        ["reason", 15, "1 to 15 of 15", "p00"],
        ["area", 3, "1 to 3 of 3", "p00"],
        ["kind", 20, "1 to 20 of 22", "p01"],
        ["highest", 20, "1 to 20 of 45", f"p{next(n for n in range(COUNT) if n * 7 % COUNT == 44):02}"],
        ["found", 1, "1 to 1 of 1", "p17"],
        ["bars", 40, "88 of 90 lie above (now kept: 80), 2 below (now kept: 1)"],
        ["boxes", "hide-boxes"],
        ["areas", "reasonareasshare kept8190.0 %overlap910.0 %"],
    ]


@pytest.mark.slow
def test_of_a_tall_page_the_part_with_the_box_is_shown(tmp_path: Path) -> None:
    tall = torch.full((3, 1000, 200), 255, dtype=torch.uint8)
    boxes = torch.tensor([[[20.0, 800.0, 60.0, 840.0]] * 2])
    entries = [
        Entry("tall", "c", ["r"], images=(tall, tall), boxes=boxes),
        Entry("plain", "c", ["r"], images=(tall, tall)),
    ]
    write_report(tmp_path / "r.html", "t", entries, full_size=True)
    (figures,) = steps(
        tmp_path / "r.html",
        """
        const figures = [...document.querySelectorAll("figure")];
        told.push(figures.map((f) => [f.querySelector("figcaption").textContent,
          f.querySelector("img").getAttribute("height"),
          f.querySelector(".box")?.style.top ?? "", f.querySelector(".box")?.style.height ?? ""]));
        """,
    )
    expected = [[f"{side}, rows 721 to 920 of 1000", "200", "40%", "20%"] for side in ("before", "after")]
    assert figures[:2] == expected
    assert [caption for caption, *_ in figures[2:]] == ["before", "after"], "without a box, the whole page"
