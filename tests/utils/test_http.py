"""The HTTP client against servers that redirect, answer too much or too slowly, or echo what they were sent."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from helpers.servers import serving

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.http import Secret, TransferError, check_url, download, redact_url, request, same_origin

KEY = "sk-SECRET-123"


class Hostile(BaseHTTPRequestHandler):
    """Answers according to the path: with a redirect, or badly in a certain way."""

    elsewhere = ""
    seen: ClassVar[list[tuple[str, str | None]]] = []
    stop = threading.Event()

    def log_message(self, *unused: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append((self.path, self.headers.get("Authorization")))
        name = self.path.strip("/")
        if name.isdecimal():
            self.answer(int(name), b"", Location=f"{self.elsewhere}/good")
        elif name == "circle":
            self.answer(302, b"", Location="/circle")
        elif name == "echo":
            self.answer(400, f"no such key {self.headers.get('Authorization')}".encode())
        elif name == "escaped":
            text = KEY.replace("-", "\\u002d")
            self.answer(200, f'{{"text": "the \\"key\\" is {text}", "{text}": [1]}}'.encode())
        elif name == "packed":
            self.answer(200, b"x" * 10, Content_Encoding="gzip")
        elif name == "drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for _ in range(40):
                self.drip(b"X-a: b\r\n")
        elif name == "slow":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(40):
                self.drip(b"x")
        elif name == "endless":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while not self.stop.is_set():
                self.wfile.write(b"x" * 65536)
        else:
            self.answer(200, b"good")

    do_POST = do_GET

    def drip(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()
        time.sleep(0.1)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        with suppress(OSError):  # the client closes the connection early
            super().handle()


@pytest.fixture
def server() -> Iterator[str]:
    Hostile.seen = []
    Hostile.stop.clear()
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Hostile)) as other:
        Hostile.elsewhere = other
        with serving(ThreadingHTTPServer(("127.0.0.1", 0), Hostile)) as address:
            yield address
    Hostile.stop.set()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("body", [None, b"{}"])
def test_a_key_never_follows_a_redirect(server: str, status: int, body: bytes | None) -> None:
    with pytest.raises(ConfigError, match=rf"/{status} redirects to .*/good; use that URL"):
        request(f"{server}/{status}", body, Secret(KEY), timeout=5)
    assert Hostile.seen == [(f"/{status}", f"Bearer {KEY}")], "the other server saw nothing"


@pytest.mark.parametrize("name", ["drip", "slow"])
def test_the_time_limit_is_of_the_whole_answer(server: str, name: str) -> None:
    # the whole answer takes four seconds, but each part arrives within the limit
    with pytest.raises(TransferError, match="timed out"):
        request(f"{server}/{name}", timeout=0.5)


def test_an_answer_that_is_too_long_or_packed_is_refused(server: str) -> None:
    with pytest.raises(TransferError, match="exceeds 100,000 bytes"):
        request(f"{server}/endless", timeout=5, max_bytes=100_000)
    with pytest.raises(TransferError, match="'gzip', which was not requested"):
        request(f"{server}/packed", timeout=5)


def test_an_answer_comes_with_its_status_and_no_repr_shows_a_secret(server: str) -> None:
    answer = request(f"{server}/echo", b"{}", Secret(f" {KEY}\n"), timeout=5)
    assert answer.status == 400 and answer.body == b"no such key Bearer ***", "answers are written to files"
    assert KEY not in repr(answer) and KEY not in repr(Secret(KEY)) and KEY not in str(Secret(KEY))


def test_a_key_that_json_escapes_is_left_out_of_answers(server: str) -> None:
    body = request(f"{server}/escaped", b"{}", Secret(KEY), timeout=5).body
    assert json.loads(body) == {"text": 'the "key" is ***', "***": [1]}


def test_a_word_that_servers_without_keys_expect_is_left_in_answers(server: str) -> None:
    assert request(f"{server}/echo", b"{}", Secret("EMPTY"), timeout=5).body == b"no such key Bearer EMPTY"


@pytest.mark.parametrize("proxy", ["socks5://me:hunter2@127.0.0.1:9", "foo://me:hunter2@127.0.0.1"])
def test_a_proxy_that_cannot_be_used_is_one_error_without_its_password(
    proxy: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(ConfigError, match="cannot be opened") as raised:
        request("http://example.org/", timeout=5)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("value", ["two words", "line\nbreak", "café", "nul\0"])
def test_a_key_that_no_header_can_carry_is_named_by_its_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="MY_KEY contains") as raised:
        Secret(value, "MY_KEY")
    assert value not in str(raised.value)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://", "ftp://a", "http://a:port/", "//a"])
def test_addresses_of_nothing(url: str) -> None:
    with pytest.raises(ConfigError, match=r"url is .*expected http"):
        check_url("url", url)


def test_an_address_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="contains a user or password") as raised:
        check_url("url", f"https://me:{KEY}@host/v1")
    assert KEY not in str(raised.value) and "https://host/v1" in str(raised.value)
    for malformed in (f"https:/me:{KEY}@host", f"me:{KEY}@host/v1", f"https://me:{KEY}@[::1/v1"):
        with pytest.raises(ConfigError, match="expected http") as raised:
            check_url("url", malformed)
        assert KEY not in str(raised.value)
    assert redact_url(f"https://host/a?token={KEY}#x") == "https://host/a"
    for key in ("AAEhBP0av28abcdef", "bot1:AAEhBP0av28abcdef", "0b6f1c9e-1c1e-4c39-9d2e-4f3a1b2c5d6e", "A" * 24):
        assert redact_url(f"https://host/hooks/{key}/v1/transcriptions") == "https://host/hooks/***/v1/transcriptions"
    assert same_origin("https://a/x", "https://a:443/y") and not same_origin("http://a/x", "http://a:81/x")


def test_nobody_there_is_one_error(server: str) -> None:
    with pytest.raises(TransferError, match=r"http://127\.0\.0\.1:9/x: ConnectError"):
        request("http://127.0.0.1:9/x", timeout=5)


def test_a_download_sends_no_key_and_follows_redirects(server: str) -> None:
    file = io.BytesIO()
    download(f"{server}/302", file, max_bytes=10, silence=5, timeout=5)
    assert file.getvalue() == b"good" and {key for _, key in Hostile.seen} == {None}
    for name, message in {
        "circle": "has more than 5 redirects",
        "echo": "status 400",
        "endless": "exceeds 10 bytes",
    }.items():
        with pytest.raises(TransferError, match=message):
            download(f"{server}/{name}", io.BytesIO(), max_bytes=10, silence=5, timeout=5)
