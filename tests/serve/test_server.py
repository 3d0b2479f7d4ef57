"""`serve` as a separate process, with valid, invalid and simultaneous requests."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.processes import forking_python

import lightning_idc
from lightning_idc.cli import main

pytest.importorskip("fastapi", reason="needs the extra serve")
pytestmark = pytest.mark.dist
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
Draw = Callable[..., Path]
MB = 2
JSON = {"Content-Type": "application/json"}


class Client:
    """Sends requests to a running server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            with suppress(BrokenPipeError):  # refused before all of it was sent, but answered
                connection.request("GET" if body is None else "POST", path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def describe(self, query: str = "", **files: bytes) -> tuple[int, Any]:
        parts = [
            f'--xx\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.png"\r\n\r\n'.encode()
            + data
            + b"\r\n"
            for name, data in files.items()
        ]
        kind = {"Content-Type": "multipart/form-data; boundary=xx"}
        status, reply = self.send(f"/describe{query}", b"".join([*parts, b"--xx--\r\n"]), **kind)
        return status, json.loads(reply)

    def chat(self, *urls: str, **more: Any) -> tuple[int, Any]:
        content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        body = {
            "model": "x",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, *content]}],
            **more,
        }
        status, reply = self.send("/v1/chat/completions", json.dumps(body).encode(), **JSON)
        return status, json.loads(reply)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start(model: Path, port: int, *more: str) -> subprocess.Popen[str]:
    arguments = ["serve", "--model", str(model), "--port", str(port), "--max_mb", str(MB), "--timeout", "3", *more]
    command = [forking_python(), "-m", "lightning_idc", *arguments]
    return subprocess.Popen(command, cwd=model.parent, stderr=subprocess.PIPE, text=True)


def ready(process: subprocess.Popen[str], port: int) -> Client:
    """Wait until a server has started, and return a client of it."""
    client, until = Client(port), time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            if client.send("/health")[0] == 200:
                break
        except OSError:
            time.sleep(0.2)
    assert client.send("/health") == (200, b"ok")
    return client


def gone(client: Client) -> None:
    """Check that the server no longer answers."""
    until = time.monotonic() + 10
    with pytest.raises(OSError):
        while time.monotonic() < until:
            client.send("/health")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Client]:
    port = free_port()
    process = start(model, port)
    try:
        client = ready(process, port)
        yield client
    finally:
        process.terminate()
        try:
            said = process.communicate(timeout=30)[1]
            assert process.returncode == 0 and "Traceback" not in said, said
            gone(client)  # no worker process remains
        finally:
            process.kill()


def test_a_taken_port_is_named_before_the_captioner_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--model", "no/such/model", "--port", str(port)]) == 1
    assert f"error: --port {port} cannot be listened on" in capsys.readouterr().err


def test_a_damaged_model_is_named_and_not_served(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = shutil.copytree(model, tmp_path / "model")
    weights = damaged / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert main(["serve", "--model", str(damaged), "--port", str(free_port())]) == 1
    assert "model.safetensors' differs from the one in" in capsys.readouterr().err


def data_url(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def test_files_and_a_chat_are_answered_as_python_answers(server: Client, model: Path, draw: Draw) -> None:
    before, after = draw("a.png"), draw("b.png", square=(16, 8))
    expected = lightning_idc.load(model).describe(before, after)
    status, result = server.describe(before=before.read_bytes(), after=after.read_bytes())
    assert status == 200 and result["caption"] == expected.text and result["size"] == [32, 32]
    assert result["log_prob"] == pytest.approx(expected.log_prob, abs=1e-4)
    assert all(15 <= x1 < x2 <= 25 and 7 <= y1 < y2 <= 17 for x1, y1, x2, y2 in result["boxes"])
    for query in ("?where=0", "?where=false"):
        status, result = server.describe(query, before=before.read_bytes(), after=after.read_bytes())
        assert status == 200 and result["caption"] == expected.text and not result["boxes"] and result["map"] is None
    status, result = server.describe("?where=here", before=before.read_bytes(), after=after.read_bytes())
    assert status == 422 and result["error"]["message"].startswith("where: Input should be a valid boolean")
    status, result = server.chat(data_url(before), data_url(after))
    assert status == 200 and result["object"] == "chat.completion"
    assert result["choices"][0]["message"] == {"role": "assistant", "content": expected.text}


def test_malformed_requests_are_refused_and_nobody_else_notices(server: Client, draw: Draw) -> None:
    good, data = draw("a.png"), draw("a.png").read_bytes()
    form = {"Content-Type": "multipart/form-data; boundary=xx"}
    url = data_url(good)
    wrong = [
        (server.send("/describe", b"{}")[0], 422),
        (server.send("/describe", b"no parts at all", **form)[0], 400),
        (server.describe(before=data)[0], 422),
        (server.describe(before=data, after=b"")[0], 422),
        (server.describe(before=data, after=b"<html>not an image</html>")[0], 422),
        (server.describe(before=data, after=data[:200])[0], 422),
        (server.describe(before=data, after=b"\x89PNG" + bytes(MB * 1_000_000))[0], 413),
        (server.send("/v1/chat/completions", b"{", **JSON)[0], 422),
        (server.send("/v1/chat/completions", b"[" * 5000, **JSON)[0], 400),
        (server.send("/v1/chat/completions", b"[]", **JSON)[0], 422),
        (server.chat(url)[0], 422),
        (server.chat(url, "http://127.0.0.1:1/picture.png")[0], 422),
        (server.chat(url, "file:///etc/hostname")[0], 422),
        (server.chat(url, "data:image/png;base64,@@@@")[0], 422),
        (server.chat(url, url, stream=True)[0], 400),
        (server.send("/health", Host="rebound.example")[0], 400),
        (server.send("/describe", b"", Origin="https://elsewhere.example", **form)[0], 403),
        (server.send("/describe", b"", Origin="http://[::1", **form)[0], 403),
        (server.send("/describe", b"", Origin="null", **form)[0], 403),
        (server.send("/describe", b"", **{"Sec-Fetch-Site": "cross-site"}, **form)[0], 403),
        (server.send("/samples/..%2f..%2fanswers/before.png")[0], 404),
        (server.send("/nothing")[0], 404),
    ]
    assert [found for found, _ in wrong] == [expected for _, expected in wrong]
    assert "never fetched" in server.chat(url, "http://127.0.0.1:1/a.png")[1]["error"]["message"]
    with ThreadPoolExecutor(16) as pool:  # in one batch with valid requests
        jobs = [pool.submit(server.describe, before=data, after=b"junk" if n % 2 else data) for n in range(16)]
        assert [job.result()[0] for job in jobs] == [200, 422] * 8


def test_two_hundred_at_once_are_all_answered_while_others_are_slow(server: Client, draw: Draw) -> None:
    pairs = [
        (draw(f"{n}a.png", seed=n).read_bytes(), draw(f"{n}b.png", seed=n, square=(n, n)).read_bytes())
        for n in range(4)
    ]
    expected = [server.describe(before=before, after=after)[1]["caption"] for before, after in pairs]
    slow = []
    for _ in range(3):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        connection.sendall(b"POST /describe HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nabc")
        slow.append(connection)

    def ask(number: int) -> tuple[int, str]:
        before, after = pairs[number % 4]
        status, result = server.describe(before=before, after=after)
        return status, result.get("caption", "")

    with ThreadPoolExecutor(200) as pool:
        result = list(pool.map(ask, range(200)))
    assert result == [(200, expected[number % 4]) for number in range(200)]
    for connection in slow:
        with connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_page_describes_a_sample_in_a_browser(server: Client) -> None:
    names = json.loads(server.send("/samples")[1])
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
        "--virtual-time-budget=20000", f"http://127.0.0.1:{server.port}/#{names[0]}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    caption = done.stdout.partition('id="caption">')[2].partition("<")[0]
    paths = lightning_idc.sample_pair(names[0])
    status, result = server.describe(before=paths[0].read_bytes(), after=paths[1].read_bytes())
    assert status == 200 and caption == result["caption"]


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_page_by_keyboard_and_by_rules_of_accessibility(server: Client) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra dev")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra dev")
    files = [str(path) for path in lightning_idc.sample_pair()]
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER)
        for scheme in ("light", "dark"):
            page = chromium.new_page(color_scheme=scheme, bypass_csp=True)  # axe is injected into the page
            page.on("filechooser", lambda _: None)  # from the start, or the first one may open a window instead
            page.goto(f"http://127.0.0.1:{server.port}/")
            page.locator(".samples button").first.wait_for()
            reached = []
            for _ in range(12):
                page.keyboard.press("Tab")
                name = page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label')")
                reached.append(name)
                if name in ("before", "after"):
                    with page.expect_file_chooser() as chooser:
                        page.keyboard.press("Space")
                    chooser.value.set_files(files[name == "after"])
                elif name == "ask":
                    page.keyboard.press("Enter")
                    page.wait_for_function("document.getElementById('answer').getAttribute('aria-busy') === 'false'")
                    said = page.inner_text("#caption")
                    assert said and page.evaluate("document.activeElement.id") == "ask", "focus stays where it was"
                elif name == "show":
                    page.keyboard.press("Space")
                    assert not page.is_checked("#show")
                elif name and name.startswith("describe the sample"):
                    page.keyboard.press("Enter")
                    page.wait_for_function("document.getElementById('caption').textContent.length > 12")
                    break
            assert reached[:5] == ["before", "after", "ask", "swap", "show"] and reached[5].startswith("describe the")
            violations = axe.Axe().run(page).response["violations"]
            assert not violations, {result["id"]: result["nodes"][:2] for result in violations}
            page.close()
        chromium.close()


def test_connections_are_bounded(model: Path, draw: Draw) -> None:
    port, image = free_port(), draw("a.png").read_bytes()
    process = start(model, port, "--connections", "3")
    try:
        client = ready(process, port)
        idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(40)]
        for connection in idle:  # headers without an end
            with suppress(OSError):  # closed already
                connection.sendall(b"POST /describe HTTP/1.1\r\nHost: localhost\r\nX-a: ")
        assert client.describe(before=image, after=image)[0] == 200, "the oldest of them make room"
        until = time.monotonic() + 10
        for connection in idle:
            connection.settimeout(max(0.1, until - time.monotonic()))
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b"", "closed after --timeout at the latest"
        body = b"POST /describe HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        busy = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(3)]
        for connection in busy:
            connection.sendall(body)
        time.sleep(0.2)
        assert client.send("/describe", b"", **{"Content-Type": "text/plain"})[0] == 503
        for connection in busy:
            connection.close()
        until = time.monotonic() + 10
        while (status := client.describe(before=image, after=image)[0]) == 503 and time.monotonic() < until:
            time.sleep(0.05)
        assert status == 200
    finally:
        process.terminate()
        process.wait(30)


def test_a_prompt_that_is_not_text_is_refused_before_it_meets_others() -> None:
    from lightning_idc.serve.server import Chat

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
    content = [image, image, {"type": "text", "text": "what \ud800 changed?"}]
    with pytest.raises(ValueError, match="surrogates not allowed"):
        Chat.model_validate({"messages": [{"role": "user", "content": content}]})
    content[2]["text"] = "was hat sich ge\u00e4ndert?"
    pair = Chat.model_validate({"messages": [{"content": content}]}).pair()
    assert (pair.before, pair.after, pair.prompt) == (b"x", b"x", "was hat sich ge\u00e4ndert?")


def test_a_pair_that_is_not_answered_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_idc.serve.batcher import Batcher
    from lightning_idc.utils.errors import DataError

    def answers(self: Batcher, samples: Any, where: bool, prompt: str | None) -> list[dict[str, Any]]:
        if "huge" in samples:
            raise MemoryError
        if "odd" in samples:
            raise DataError("this pair is odd")
        return [{"caption": name} for name in samples]

    monkeypatch.setattr(Batcher, "_answers", answers)
    batcher = Batcher(None, 8, 10)  # type: ignore[arg-type]
    answers: Any = batcher._answers_of_group(["a", "huge", "b", "odd"], False, None)  # type: ignore[list-item]
    assert [answers[0], answers[2]] == [{"caption": "a"}, {"caption": "b"}]
    assert (answers[3].status_code, answers[3].detail) == (422, "this pair is odd")
    assert answers[1].status_code == 500 and "MemoryError while answering" in answers[1].detail


def test_a_request_whose_client_left_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from lightning_idc.serve.batcher import Batcher, ImagePair
    from lightning_idc.serve.limits import Limits

    answered: list[bytes] = []

    def answers(self: Batcher, pairs: Any) -> list[dict[str, Any]]:
        answered.extend(pair.before for pair in pairs)
        time.sleep(0.1)
        return [{} for _ in pairs]

    monkeypatch.setattr(Batcher, "answers", answers)

    async def run() -> None:
        batcher = Batcher(None, 1, 10)  # type: ignore[arg-type]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            body = (await receive())["body"]
            await batcher.answer(ImagePair(body, b"", False, None))

        limits = Limits(app, max_bytes=100, seconds=5, max_requests=10, max_total=100)
        scope = {"type": "http", "method": "POST", "headers": [(b"content-length", b"1")]}

        async def request(name: bytes, stays: bool) -> None:
            messages = [{"type": "http.request", "body": name}]

            async def receive() -> Any:
                if messages:
                    return messages.pop()
                await asyncio.sleep(60 if stays else 0.03)
                return {"type": "http.disconnect"}

            await limits(scope, receive, None)  # type: ignore[arg-type]

        async with batcher:
            await asyncio.gather(request(b"a", True), request(b"b", False), request(b"c", False), request(b"d", True))
        assert (limits._requests, limits._room.free, batcher._waiting) == (0, 100, {})

    asyncio.run(run())
    assert answered == [b"a", b"d"]


def test_requests_wait_until_there_is_room_for_their_bytes() -> None:
    import asyncio

    from lightning_idc.serve.limits import Limits

    held = peak = 0
    statuses: list[int] = []

    async def run(seconds: float, refused: int) -> None:
        """Answer no request before `refused` have been refused."""
        is_refused = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal held, peak
            held += len((await receive())["body"])
            peak = max(peak, held)
            await (is_refused.wait() if refused else asyncio.sleep(0.02))
            held -= 40

        limits = Limits(app, max_bytes=50, seconds=seconds, max_requests=10, max_total=100)
        scope = {"type": "http", "method": "POST", "headers": [(b"content-length", b"40")]}

        async def request() -> None:
            messages = [{"type": "http.request", "body": b"x" * 40}]

            async def receive() -> Any:
                return messages.pop() if messages else await asyncio.sleep(60)

            async def send(message: Any) -> None:
                statuses.append(message.get("status", 0))
                if statuses.count(503) == refused:
                    is_refused.set()

            await limits(scope, receive, send)

        await asyncio.gather(*(request() for _ in range(6)))
        assert limits._room.free == 100

    asyncio.run(run(60.0, refused=0))
    assert peak == 80 and statuses == []
    asyncio.run(run(0.5, refused=4))
    assert statuses.count(503) == 4 and peak == 80


def test_bodies_without_a_length_take_the_room_of_what_has_arrived() -> None:
    """Small bodies do not wait for each other, and of large ones that have arrived in part, one is always received."""
    import asyncio

    from lightning_idc.serve.limits import Limits

    statuses: list[int] = []
    bodies: list[int] = []

    async def run(chunks: int, requests: int, together: int, seconds: float) -> None:
        """Answer no request before `together` have arrived."""
        has_arrived = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            bodies.append(len((await receive())["body"]))
            if len(bodies) >= together:
                has_arrived.set()
            await has_arrived.wait()

        limits = Limits(app, max_bytes=50, seconds=seconds, max_requests=100, max_total=100)
        lowest = 100

        async def request() -> None:
            messages = [{"type": "http.request", "body": b"x" * 10, "more_body": n > 0} for n in range(chunks)]

            async def receive() -> Any:
                nonlocal lowest
                lowest = min(lowest, limits._room.free)
                await asyncio.sleep(0 if messages else 60)
                return messages.pop()

            async def send(message: Any) -> None:
                statuses.append(message.get("status", 0))

            await limits({"type": "http", "method": "POST", "headers": []}, receive, send)

        await asyncio.gather(*(request() for _ in range(requests)))
        assert limits._room.free == 100 and limits._room.growing == []
        assert lowest >= -50, "the total is exceeded by one body at most"

    asyncio.run(run(chunks=1, requests=10, together=10, seconds=5.0))
    assert bodies == [10] * 10 and statuses == []
    asyncio.run(run(chunks=4, requests=20, together=1, seconds=60.0))
    assert bodies[10:] == [40] * 20 and statuses == []


def test_an_answer_that_takes_too_long_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from fastapi import HTTPException

    from lightning_idc.serve.batcher import Batcher, ImagePair

    monkeypatch.setattr(Batcher, "answers", lambda self, pairs: time.sleep(0.3) or [{"caption": "late"}])

    async def ask() -> None:
        batcher = Batcher(None, 8, 0.05)  # type: ignore[arg-type]
        async with batcher:
            await batcher.answer(ImagePair(b"", b"", False, None))

    with pytest.raises(HTTPException, match="no answer within") as refused:
        asyncio.run(ask())
    assert refused.value.status_code == 503


@pytest.mark.parametrize("name", ["a" * 5000, "..", "clevr%2f..%2f..%2fmodels%2fclevr", "nul%00"])
def test_a_sample_of_any_name_is_there_or_not(name: str) -> None:
    from starlette.testclient import TestClient

    from lightning_idc.serve.server import make_app

    app = make_app(
        None,  # type: ignore[arg-type]
        "clevr",
        batch_size=1,
        max_bytes=10,
        timeout=1,
        answer_timeout=1,
        hosts=["*"],
    )
    client = TestClient(app, raise_server_exceptions=False)
    assert client.get("/samples/clevr/after.png").status_code == 200
    assert client.get(f"/samples/{name}/after.png").status_code == 404
    assert client.get(f"/samples/clevr/{name}.png").status_code == 404


@pytest.mark.parametrize("option", ["--max_mb=inf", "--timeout=nan", "--answer_timeout=inf", "--connections=0"])
def test_limits_are_numbers_above_0(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", option]) == 2
    assert f"argument {option.partition('=')[0]}: expected a" in capsys.readouterr().err
