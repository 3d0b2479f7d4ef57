"""Preparing benchmarks. Oracle: a local server that sends files, web pages and truncated files."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from helpers.servers import serving

from lightning_idc.cli import main
from lightning_idc.data.benchmark import Remote
from lightning_idc.data.benchmarks.levir_cc import LEVIRCC
from lightning_idc.data.benchmarks.spot_the_diff import SpotTheDiff
from lightning_idc.data.tables.prepare import download, prepare, unpack, verify_file
from lightning_idc.utils.errors import DataError

GOOD = b'[{"img_id": "1", "sentences": ["x"]}]'
PAGE = b"\n<!doctype html><html>Sign in to continue</html>"
SENT = {"/good.json": GOOD, "/page.json": PAGE, "/half.json": GOOD[:-5], "/long.json": GOOD * 2}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = SENT.get(self.path)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(GOOD) if self.path == "/half.json" else len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield address


def remote(url: str, **known: Any) -> Remote:
    return Remote("annotations/x.json", url, **known)


def test_download_of_a_valid_file(server: str, tmp_path: Path) -> None:
    target = tmp_path / "annotations/x.json"
    known = {"size": len(GOOD), "sha256": hashlib.sha256(GOOD).hexdigest()}
    assert download(remote(f"{server}/good.json", **known), target) is None
    assert target.read_bytes() == GOOD and [path.name for path in target.parent.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("page.json", {}, "it is a web page"),
        ("half.json", {}, r"received 32 bytes, expected 37"),
        ("long.json", {"size": len(GOOD)}, "exceeds 37 bytes"),
        ("good.json", {"size": 99}, "has 37 bytes; expected 99"),
        ("good.json", {"sha256": "0" * 64}, "SHA-256"),
        ("absent.json", {}, "404"),
    ],
)
def test_failed_download_leaves_no_file(
    server: str, tmp_path: Path, name: str, known: dict[str, Any], message: str
) -> None:
    target = tmp_path / "annotations/x.json"
    problem = download(remote(f"{server}/{name}", **known), target)
    assert problem is not None and re.search(message, problem)
    assert not list(target.parent.iterdir())


def test_no_server_gives_the_manual_step(tmp_path: Path) -> None:
    assert "ConnectError" in str(download(remote("http://127.0.0.1:9/x.json"), tmp_path / "x.json"))


def test_prepare_downloads_verifies_and_lists_manual_steps(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (
        remote(f"{server}/good.json"),
        Remote("annotations/y.json", f"{server}/page.json"),
        Remote("images", "https://example.org", page=True),
    )
    monkeypatch.setattr(SpotTheDiff, "remotes", files)
    data = SpotTheDiff(tmp_path)
    left = prepare(data, log=print)
    assert "downloaded  annotations/x.json" in (output := capsys.readouterr().out) and "What to do: " in output
    assert len(left) == 2 and "web page" in left[0] and "by hand from https://example.org" in left[1]
    (tmp_path / "annotations/y.json").write_bytes(b"[]")
    (tmp_path / "images").mkdir()
    assert prepare(data, log=print) == []
    assert "verified    annotations/x.json" in capsys.readouterr().out
    (tmp_path / "annotations/x.json").write_bytes(PAGE)
    assert "delete it and run this again" in prepare(data, log=print)[0]


@pytest.mark.parametrize(
    ("name", "start", "message"),
    [
        ("a.zip", b"hello", "is not a .zip file"),
        ("a.png", b"\xff\xd8\xff", "is not a .png file"),
        ("a.json", b"", "the file is empty"),
    ],
)
def test_first_bytes(tmp_path: Path, name: str, start: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(start)
    assert message in str(verify_file(tmp_path / name, Remote(name, "https://example.org")))


def zipped(path: Path, names: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in names.items():
            packed.writestr(name, content)
    return path


def tarred(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as bundle:
        for info, content in members:
            info.size = len(content)
            bundle.addfile(info, io.BytesIO(content))
    return path


def test_archives_are_unpacked(tmp_path: Path) -> None:
    files = {"images/a.png": b"1", "b.json": b"2"}
    members = [(tarfile.TarInfo(name), content) for name, content in files.items()]
    for number, archive in enumerate((zipped(tmp_path / "a.zip", files), tarred(tmp_path / "a.tar.gz", members))):
        root = tmp_path / str(number)
        assert unpack(archive, root) == 2
        assert {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()} == files


def test_unpack_does_not_replace_files(tmp_path: Path) -> None:
    root, archive = tmp_path / "root", zipped(tmp_path / "a.zip", {"a": b"1", "b": b"2", "c": b"3"})
    root.mkdir()
    (root / "a").write_bytes(b"1")
    (root / "b").write_bytes(b"my annotations")
    with pytest.raises(DataError, match=r"holds 1 files that would replace existing ones, such as .*b.*--overwrite"):
        unpack(archive, root)
    assert {path.name: path.read_bytes() for path in root.iterdir()} == {"a": b"1", "b": b"my annotations"}
    assert unpack(archive, root, overwrite=True) == 3 == unpack(archive, root) and (root / "b").read_bytes() == b"2"


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil"])
def test_archives_that_leave_the_root_write_nothing(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    for archive in (
        zipped(tmp_path / "a.zip", {"fine": b"1", name: b"2"}),
        tarred(tmp_path / "a.tar.gz", [(tarfile.TarInfo("fine"), b"1"), (tarfile.TarInfo(name), b"2")]),
    ):
        with pytest.raises(DataError, match=r"leaves the data folder|must be relative"):
            unpack(archive, root)
        assert not list(root.iterdir()) and not (tmp_path / "evil").exists()


def test_links_in_archives_are_rejected(tmp_path: Path) -> None:
    link = tarfile.TarInfo("images")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    with pytest.raises(DataError, match="link or device"):
        unpack(tarred(tmp_path / "a.tar.gz", [(link, b"")]), tmp_path / "root")
    info = zipfile.ZipInfo("images")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr(info, "/etc")
    with pytest.raises(DataError, match="contains the link"):
        unpack(tmp_path / "a.zip", tmp_path / "root")


def test_a_web_page_saved_as_an_archive(tmp_path: Path) -> None:
    (tmp_path / "data.tar.gz").write_bytes(PAGE)
    with pytest.raises(DataError, match="it is a web page"):
        unpack(tmp_path / "data.tar.gz", tmp_path / "root")


def test_truncated_encrypted_and_unknown_archives_give_advice(tmp_path: Path) -> None:
    whole = zipped(tmp_path / "whole.zip", {"a": b"x" * 999}).read_bytes()
    locked = bytearray(whole)
    for magic, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(magic) + place] |= 1  # the flag of an encrypted member
    for content, message in (
        (whole[:200], r"is an incomplete zip archive: the download stopped, or it is one of several parts.*join"),
        (bytes(locked), r"contains the password-protected file 'a'; unpack it by hand below .*root"),
        (b"Rar!\x1a\x07\0...", r"neither a zip nor a tar archive: .*; unpack it by hand below .*root"),
    ):
        (tmp_path / "archive").write_bytes(content)
        with pytest.raises(DataError, match=message) as raised:
            unpack(tmp_path / "archive", tmp_path / "root")
        assert "ZipInfo" not in str(raised.value) and "download it again" not in str(raised.value)
        assert not list((tmp_path / "root").iterdir())


def test_prepare_suggests_the_top_level_folder_of_an_archive(tmp_path: Path) -> None:
    files = {"LEVIR/images/a.png": b"1", "LEVIR/LevirCCcaptions.json": b"{}", "__MACOSX/LEVIR/._images": b"x"}
    root = tmp_path / "root"
    output: list[object] = []
    left = prepare(LEVIRCC(root), [zipped(tmp_path / "a.zip", files)], output.append)
    assert left == [
        f"{name} is in {str(root / 'LEVIR')!r}; set root to that folder" for name in ("images", "LevirCCcaptions.json")
    ]
    assert prepare(LEVIRCC(root / "LEVIR"), None, output.append) == []


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(SpotTheDiff, "remotes", (Remote("annotations", "https://example.org", page=True),))
    archive = zipped(tmp_path / "a.zip", {"annotations/train.json": GOOD})
    arguments = ["data", "prepare", "spot_the_diff", "--root", str(tmp_path / "root")]
    assert main(arguments) == 1
    assert "must be downloaded by hand from https://example.org" in capsys.readouterr().out
    assert main([*arguments, "--archive", str(archive)]) == 0
    assert "now: lightning-idc data check spot_the_diff" in capsys.readouterr().out
    assert main(["data", "check", "spot_the_diff", "--root", str(tmp_path / "root")]) == 1
    output = capsys.readouterr().out
    assert "Spot-the-Diff (grouped)\n" in output and "found 1 pairs" in output and "resized_images/1.png" in output
    assert main(["data", "prepare", "folder", "--root", str(tmp_path)]) == 1
    assert "not a benchmark with files" in capsys.readouterr().err
