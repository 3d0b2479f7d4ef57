"""`push` over HTTP to a local hub, and loading from it by the code of the model card."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import huggingface_hub
import pytest
import yaml
from helpers.servers import serving
from huggingface_hub import constants

import lightning_idc
from lightning_idc.cli import main

REPO = "me/spot"
SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """The part of the Hub API that pushing and downloading one repository needs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files: dict[str, bytes] = {}
        self.visibility: str | None = None
        self.refuses = 0
        self.tokens: set[str | None] = set()

    def entries(self) -> list[dict[str, Any]]:
        """Return the files as the Hub lists them, with the SHA-1 of their git blobs."""
        return [
            {"type": "file", "path": f, "size": len(d), "oid": hashlib.sha1(b"blob %d\0" % len(d) + d).hexdigest()}
            for f, d in self.files.items()
        ]


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *unused: Any) -> None:
        """Print nothing to the terminal."""

    def answer(self, found: Any = None, status: int = 200, **headers: str) -> None:
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(self.headers["Authorization"])
        if self.server.refuses:
            self.answer({"error": "Forbidden: no write access"}, self.server.refuses)
        elif self.path == "/api/validate-yaml":  # of the model card
            self.answer({"errors": [], "warnings": []})
        elif self.path == "/api/repos/create":
            asked = json.loads(sent)
            assert (asked["organization"], asked["name"]) == tuple(REPO.split("/"))
            self.server.visibility = asked.get("visibility") or ("private" if asked.get("private") else "public")
            self.answer({"url": f"{constants.ENDPOINT}/{REPO}", "name": REPO, "id": REPO})
        elif self.path.startswith(f"/api/models/{REPO}/preupload/"):
            paths = [file["path"] for file in json.loads(sent)["files"]]
            self.answer({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]})
        elif self.path.startswith(f"/api/models/{REPO}/commit/"):
            for line in map(json.loads, sent.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            found = f"{constants.ENDPOINT}/{REPO}/commit/{SHA}"
            self.answer({"commitUrl": found, "commitOid": SHA, "pullRequestUrl": None, "success": True})
        elif self.path == f"/api/models/{REPO}/paths-info/main":
            paths = parse_qs(sent.decode())["paths"]
            self.answer([entry for entry in self.server.entries() if entry["path"] in paths])
        else:
            self.answer({"error": f"unknown {self.path}"}, 404)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = path.removeprefix(f"/{REPO}/resolve/{SHA}/").removeprefix(f"/{REPO}/resolve/main/")
        if path.startswith(f"/api/models/{REPO}"):
            siblings = [{"rfilename": file} for file in self.server.files]
            self.answer(self.server.entries() if "/tree/" in path else {"id": REPO, "sha": SHA, "siblings": siblings})
        elif name in self.server.files:
            content = self.server.files[name]
            etag = hashlib.sha1(content).hexdigest()
            self.answer(content, ETag=f'"{etag}"', X_Repo_Commit=SHA)
        else:
            self.answer({"error": f"unknown {self.path}"}, 404)

    do_HEAD = do_GET


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    with serving(server) as here:
        monkeypatch.setattr(constants, "ENDPOINT", here)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", here + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
        yield server


def scored(folder: Path) -> Path:
    """Score captions that equal their references, and return the path of the results."""
    captions = {"a": "the cube moved", "b": "the ball is gone now"}
    for name, texts in (("said", captions), ("expected", {id: [text] for id, text in captions.items()})):
        (folder / f"{name}.json").write_text(json.dumps(texts))
    said, expected, out = (str(folder / name) for name in ("said.json", "expected.json", "metrics.json"))
    assert main(["score", said, "--references", expected, "--out", out]) == 0
    return Path(out)


@pytest.mark.slow
def test_a_captioner_goes_to_the_hub_with_its_card_and_comes_back(
    hub: Hub, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = scored(tmp_path)
    options = ["--results", str(results), "--dataset", "people/pairs", "--license", "cc0-1.0", "--limits", "Toys only."]
    assert main(["push", REPO, "--out", str(tmp_path / "out"), "--model", str(model), *options]) == 0
    assert f"{constants.ENDPOINT}/{REPO}" in capsys.readouterr().out
    assert hub.visibility == "private" and hub.tokens == {"Bearer hf_of_nobody"}
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    written = {path.relative_to(tmp_path / "out").as_posix(): path.read_bytes() for path in files}
    assert hub.files == written and {"README.md", "config.json", "model.safetensors"} <= set(written)
    card = hub.files["README.md"].decode()
    assert huggingface_hub.ModelCard(card).data.pipeline_tag == "image-to-text" and str(tmp_path) not in card
    data = huggingface_hub.ModelCard(card).data
    assert (data.license, data.datasets) == ("cc0-1.0", ["people/pairs"]) and "CIDEr-D" in data.metrics
    assert "## Limits\n\nToys only." in card and "| ROUGE-L | 100.00 |" in card
    entries = yaml.safe_load(hub.files[".eval_results/coco.yaml"])
    assert {entry["dataset"]["task_id"]: entry["value"] for entry in entries}["coco_rouge_l"] == 100
    # run the code of the model card, as on another machine
    (code,) = [part.removeprefix("python\n") for part in card.split("```")[1::2]]
    pair = lightning_idc.sample_pair()
    for name, path in zip(("before.png", "after.png"), pair, strict=True):
        (tmp_path / name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "card", "exec"), {})
    assert capsys.readouterr().out.strip() == lightning_idc.load(model, device="cpu").describe(*pair).text


@pytest.mark.slow
def test_a_push_replaces_what_it_uploaded_and_no_card_of_the_user(
    hub: Hub, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push = ["push", REPO, "--out", str(tmp_path / "out"), "--model", str(model)]
    assert main(push) == 0 and main(push) == 0, "its own files need no flag"
    hub.files["README.md"] = mine = b"# my thesis"
    before = dict(hub.files)
    capsys.readouterr()
    assert main(push) == 1
    assert hub.files == before
    assert "README.md" in (said := capsys.readouterr().err) and "--overwrite" in said
    assert main([*push, "--overwrite"]) == 0 and hub.files["README.md"] != mine


@pytest.mark.parametrize("status", [401, 403])
def test_a_rejected_upload_raises_a_one_line_error_and_leaves_the_folder(
    status: int, hub: Hub, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refuses = status
    assert main(["push", REPO, "--out", str(tmp_path / "out"), "--model", str(model)]) == 1
    printed = capsys.readouterr().err
    assert (
        printed.startswith("error: ") and "hf auth login" in printed and REPO in printed and "Traceback" not in printed
    )
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_without_a_network_the_folder_is_written_and_reported(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert main(["push", REPO, "--out", str(tmp_path / "out"), "--model", str(model)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and str(tmp_path / "out") in printed and "Traceback" not in printed
    assert (tmp_path / "out" / "README.md").is_file()
