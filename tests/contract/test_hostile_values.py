"""Untrusted values are never executed: data in checkpoints, texts in reports and terminals, addresses in requests."""

from __future__ import annotations

import base64
import builtins
import json
import os
import pickle
import runpy
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bad_files.models import STORED
from helpers.hostile import watched
from helpers.sandbox import Sandbox

from lightning_idc.cli.checkpoint_data import with_stored_data
from lightning_idc.metrics.reading import read_predictions, read_references, read_vocabulary
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.report.html import Entry, write_report
from lightning_idc.serve.formats import write_junit
from lightning_idc.serve.reg import write_reg
from lightning_idc.utils.text import markdown, plain, printable


def test_side_effects_are_seen(sandbox: Sandbox) -> None:
    """The watcher reports known side effects, so the tests below can fail."""
    place, secrets = sandbox.folder, sandbox.secrets

    def write(path: Path) -> None:
        path.write_text("x")

    def look_for() -> None:
        with suppress(ImportError):
            builtins.__import__("evil_other")

    effects: dict[str, Callable[[], Any]] = {
        "os.system": lambda: os.system("true"),
        "subprocess.Popen": lambda: subprocess.run(["true"], check=True),
        "socket.getaddrinfo": lambda: __import__("socket").getaddrinfo("127.0.0.1", 9),
        "pickle.find_class": lambda: pickle.loads(pickle.dumps(os.getcwd)),
        "exec": lambda: runpy.run_path("hubconf.py"),
        "import": look_for,
        f"open: {secrets}": lambda: (secrets / "w.safetensors").read_bytes(),
        f"open: {place.parent / 'new'}": lambda: write(place.parent / "new"),
        "os.mkdir": lambda: (place.parent / "made").mkdir(),
        "os.remove": lambda: (place.parent / "new").unlink(),
        "files": lambda: torch.from_file(str(secrets / "native"), True, 4),
    }
    for event, cause in effects.items():
        with watched(place, secrets) as seen:
            cause()
        assert any(found.startswith(event) for found in seen), (event, seen)
    with watched(place, secrets) as seen:
        write(place / "inside")
        json.dumps(torch.zeros(2).tolist())
    assert seen == []


@pytest.mark.parametrize("name", STORED)
def test_data_of_a_checkpoint_build_nothing(name: str, sandbox: Sandbox) -> None:
    found: list[Any] = []
    sandbox.read(lambda: found.append(with_stored_data({"model": {}}, {"data": STORED[name]})))
    assert found == [{"model": {}}]


@pytest.mark.parametrize("written", ["/made", "../made", "~/made", "cache/../../made", ".", 5])
@pytest.mark.parametrize("option", ["cache_images", "cache_dir"])
def test_data_of_a_checkpoint_write_nothing_outside(option: str, written: Any) -> None:
    stored = {"class_path": "FolderPairs", "init_args": {"root": "pairs", option: written}}
    assert with_stored_data({}, {"data": stored})["data"]["init_args"] == {"root": "pairs"}
    stored["init_args"] = {"root": "pairs", option: "cache/x"}  # type: ignore[assignment]
    assert with_stored_data({}, {"data": stored})["data"] == stored


TEXTS = {
    "script": "<script>fetch('http://127.0.0.1:9')</script>",
    "end of a script": "</script><script>alert(1)</script>",
    "comment": "<!--<script>",
    "image": "<img src=x onerror=alert(1)>",
    "link": "[x](javascript:alert(1))",
    "template": "{{ ''.__class__.__mro__[1].__subclasses__() }}{% include '/etc/passwd' %}",
    "title of the window": "\x1b]0;evil\x07",
    "clear": "\x1b[2J\x1b[1;1H",
    "copy to the clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "C1 control": "\x9b2J\x9d0;evil\x9c",
    "other direction": "\u202egnp.exe",
    "line of its own": "a\u2028b\rc\x0bd",
    "half of a sign": "\ud800",
    "formula": "=cmd|'/c calc'!A1",
    "XML": "]]><!ENTITY x SYSTEM 'file:///etc/passwd'>&x;",
    "brackets": "(" * 5000 + "-LRB- \\/ `` ''",
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_text_wherever_they_are_shown(name: str, sandbox: Sandbox) -> None:
    text, root = TEXTS[name], sandbox.folder
    texts = [page(sandbox, value).count("<") for value in (text, "harmless")]
    assert texts[0] == texts[1], "the page has other elements than one with a harmless text"
    for shown in (printable(text), plain(text), markdown(text)):
        assert not any(sign in shown for sign in "\x1b\x9b\x9d\x07\r\x0b\u202e\u2028\ud800")
    assert "<" not in markdown(text) and "](" not in markdown(text)
    record = {"id": text, "status": "changed", "caption": text, "error": None, "boxes": [], "described": True}
    record |= {"before": str(root / "before.png"), "after": str(root / "after.png")}
    sandbox.read(lambda: write_junit([record], root / "junit.xml"))
    from xml.etree import ElementTree

    (case,) = ElementTree.parse(root / "junit.xml").getroot().iter("testcase")
    assert len(case) == 1 and len(case[0]) == 0
    if name != "half of a sign":
        unchanged = record | {"status": "unchanged"}  # "unchanged" needs no difference image, and there are no images
        sandbox.read(lambda: write_reg([unchanged], root, root, root / "reg.json"))
        assert list(json.loads((root / "reg.json").read_text())["captions"].values()) == [text]
        (root / "c.json").write_text(json.dumps({"p": text}))
        for read in (read_predictions, read_references, read_vocabulary):
            sandbox.read(lambda r=read: r(root / "c.json"))
    sandbox.read(lambda: ptb_tokenize(text))


def page(sandbox: Sandbox, text: str) -> str:
    target = sandbox.folder / "report.html"
    with watched(sandbox.folder, sandbox.secrets) as effects:
        write_report(target, text, [Entry(text, text, [text], text)], about={text: text}, subtitle=text)
    assert effects == []
    return target.read_text(encoding="utf-8")


GOOD = "data:image/png;base64," + base64.b64encode(b"x").decode()
ADDRESSES: dict[str, Any] = {
    "http": "http://127.0.0.1:9/x.png",
    "https": "https://127.0.0.1:9/x.png",
    "file": "file:///etc/passwd",
    "ftp": "ftp://127.0.0.1/x.png",
    "path": "/etc/passwd",
    "page": "data:text/html;base64,PHNjcmlwdD4=",
    "not packed": "data:image/svg+xml,<svg/>",
    "not base64": "data:image/png;base64,$(touch PWNED)",
    "number": 5,
    "object": {"url": {"url": "http://127.0.0.1:9"}},
    "nothing": None,
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses_in_requests_are_never_fetched(name: str, sandbox: Sandbox) -> None:
    fastapi = pytest.importorskip("fastapi", reason="of the extra serve")
    from lightning_idc.serve.server import Chat

    parts = [{"type": "image_url", "image_url": url} for url in ({"url": GOOD}, {"url": ADDRESSES[name]})]
    with watched(sandbox.folder, sandbox.secrets) as effects, pytest.raises((fastapi.HTTPException, ValueError)):
        Chat.model_validate({"messages": [{"role": "user", "content": parts}]}).pair()
    assert effects == []
