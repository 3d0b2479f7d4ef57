"""Connections of `serve` over sockets: clients that stop sending, that disconnect, and that do not read.

The oracle is what a client observes on its socket, and the pairs that reach the captioner.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
SECONDS = 2.0


class Server:
    """The application in a thread; its answers wait until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from lightning_idc.serve.batcher import Batcher
        from lightning_idc.serve.protocol import bounded_protocol
        from lightning_idc.serve.server import make_app

        self.released = threading.Event()
        self.answered: list[str] = []

        def answers(batcher: Batcher, pairs: Any) -> list[dict[str, str]]:
            self.answered.extend(pair.before.decode() for pair in pairs)
            self.released.wait(20)
            return [{"caption": pair.before.decode()} for pair in pairs]

        monkeypatch.setattr(Batcher, "answers", answers)
        describer: Any = None
        limits = dict(batch_size=1, max_bytes=10_000, timeout=5, answer_timeout=20)
        app = make_app(describer, "rules", hosts=["127.0.0.1"], **limits)  # type: ignore[arg-type]
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.uvicorn = uvicorn.Server(uvicorn.Config(app, http=bounded_protocol(SECONDS, 50), log_level="error"))
        self.thread = threading.Thread(target=self.uvicorn.run, args=([self.socket],))

    @property
    def connections(self) -> int:
        return len(self.uvicorn.server_state.connections)

    def post(self, name: str, version: int = 11) -> http.client.HTTPConnection:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        client._http_vsn, client._http_vsn_str = version, f"HTTP/{version / 10}"  # type: ignore[attr-defined]
        files = "".join(
            f'--x\r\nContent-Disposition: form-data; name="{side}"; filename="a"\r\n\r\n{name}\r\n'
            for side in ("before", "after")
        )
        headers = {"Host": "127.0.0.1", "Content-Type": "multipart/form-data; boundary=x"}
        client.request("POST", "/describe", f"{files}--x--\r\n", headers)
        return client


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server(monkeypatch)
    server.thread.start()
    try:
        until(lambda: server.uvicorn.started)
        yield server
    finally:
        server.released.set()
        server.uvicorn.should_exit = True
        server.thread.join(20)
        server.socket.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def caption(client: http.client.HTTPConnection) -> str:
    with client.getresponse() as reply:
        assert reply.status == 200
        text: str = json.loads(reply.read())["caption"]
        return text


@pytest.mark.parametrize("version", [10, 11])
def test_a_client_that_only_stops_sending_is_answered_and_one_that_left_is_not(server: Server, version: int) -> None:
    first = server.post("first")
    until(lambda: server.answered == ["first"])  # the other requests wait for this one
    waiting = server.post("waiting", version)
    waiting.sock.shutdown(socket.SHUT_WR)
    server.post("left").close()
    half = server.post("half and left")
    half.sock.shutdown(socket.SHUT_WR)
    assert half.sock.recv(12) == b"HTTP/1.1 100"
    half.close()
    until(lambda: server.connections == 2)
    server.released.set()
    assert [caption(first), caption(waiting)] == ["first", "waiting"]
    assert server.answered == ["first", "waiting"]
    assert waiting.sock is None or waiting.sock.recv(1) == b""
    until(lambda: server.connections <= 1)


def test_all_requests_before_the_end_are_answered_and_half_a_request_is_not(server: Server) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for rest in (b"", request[:20], b"POST /describe HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhalf"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
            client.sendall(request * 2 + rest)
            client.shutdown(socket.SHUT_WR)
            reply = b"".join(iter(lambda: client.recv(4096), b""))
        assert reply.count(b"HTTP/1.1 200 OK") == 2 and reply.count(b"HTTP/") == 2
    until(lambda: server.connections == 0)


@pytest.mark.slow
def test_a_client_that_does_not_read_is_disconnected(server: Server) -> None:
    request = b"GET /samples/rules/before.png HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    silent, reader = (socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(2))
    with silent, reader:
        silent.sendall(request * 40)  # 6 MB of answers, more than fits into the buffers of a connection
        reader.sendall(request * 40)
        size = 0
        while size < 40 * 162_271:
            received = reader.recv(1 << 16)
            assert received
            size += len(received)
        until(lambda: not server.connections)
        assert sum(len(part) for part in iter(lambda: silent.recv(1 << 16), b"")) < size, "what was in the buffers"
