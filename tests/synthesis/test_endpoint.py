"""A model behind an OpenAI-compatible endpoint, against a server in this process."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from lightning_idc.methods.img_diff.captions import PromptedEdits
from lightning_idc.synthesis.models import endpoint as module
from lightning_idc.synthesis.models.endpoint import Endpoint, EndpointText, EndpointVision
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import Sentences
from lightning_idc.utils.answers import CutOff
from lightning_idc.utils.errors import ConfigError, IDCError


class Server:
    """Answers with the text of the prompt, counts requests, and fails with the status codes in `fail`."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.at_once = self.most_at_once = 0
        self.fail: list[int] = []
        self.finish_reason = "stop"
        self.body: bytes | None = None
        self.retry_after: str | None = None
        self.redirect: tuple[int, str] | None = None
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.reply(200, {"data": [{"id": "tiny"}]})

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    server.requests.append(request)
                    server.keys.append(self.headers["Authorization"])
                    server.at_once += 1
                    server.most_at_once = max(server.most_at_once, server.at_once)
                    status = server.fail.pop(0) if server.fail else 200
                time.sleep(0.02)
                with server.lock:
                    server.at_once -= 1
                content = request["messages"][0]["content"]
                text = content if isinstance(content, str) else content[-1]["text"]
                self.reply(
                    status,
                    {"choices": [{"message": {"content": f"said {text}"}, "finish_reason": server.finish_reason}]},
                )

            def reply(self, status: int, value: Any) -> None:
                data = json.dumps(value).encode()
                if server.redirect is not None:
                    status = server.redirect[0]
                self.send_response(status)
                if server.redirect is not None:
                    self.send_header("Location", server.redirect[1])
                data = data if server.body is None else server.body
                self.send_header("Content-Length", str(len(data)))
                if status != 200 and server.retry_after is not None:
                    self.send_header("Retry-After", server.retry_after)
                self.end_headers()
                self.wfile.write(data)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    endpoint_server = Server()
    yield endpoint_server
    endpoint_server.http.shutdown()
    endpoint_server.http.server_close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.02)))
    monkeypatch.setenv("TINY_KEY", "secret")


def test_requests_are_concurrent_and_answers_in_order(server: Server) -> None:
    slot = EndpointText(Endpoint(server.url, "tiny", concurrency=4, temperature=0.8, stop=("\n",), key="TINY_KEY"))
    prompts = [f"p{number}" for number in range(20)]
    assert slot.answer(prompts, list(range(20))) == [f"said p{number}" for number in range(20)]
    assert 2 <= server.most_at_once <= 4
    sent = min(server.requests, key=lambda request: request["seed"])
    assert sent["messages"] == [{"role": "user", "content": "p0"}]
    assert (sent["seed"], sent["stop"], sent["temperature"], sent["model"]) == (0, ["\n"], 0.8, "tiny")
    assert set(server.keys) == {"Bearer secret"} and "secret" not in json.dumps(slot.settings())


def test_images_are_sent_losslessly(server: Server) -> None:
    image = torch.randint(256, (3, 5, 7), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert EndpointVision(Endpoint(server.url, "tiny")).answer([[image, image]], ["what?"]) == ["said what?"]
    parts = server.requests[0]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    data = base64.b64decode(parts[0]["image_url"]["url"].removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(data)) as endpoint_server:
        assert list(endpoint_server.get_flattened_data()) == [tuple(p) for p in image.flatten(1).T.tolist()]


def test_temporary_errors_are_retried_and_permanent_ones_raised(server: Server, tmp_path: Path) -> None:
    slot = EndpointText(Endpoint(server.url, "tiny", concurrency=1, retries=3))
    server.fail = [503, 429]
    assert slot.answer(["a"], [0]) == ["said a"] and len(server.requests) == 3
    server.fail = [500] * 4
    with pytest.raises(ConfigError, match=r"did not respond to 4 requests in a row .*status 500"):
        slot.answer(["a"], [0])
    server.fail = [401]
    with pytest.raises(ConfigError, match="status 401"):
        run(PromptedEdits(slot), Sentences(["a dog"] * 4), tmp_path / "a")
    server.fail = [400]
    store = run(PromptedEdits(slot), Sentences(["a dog", "a cat"]), tmp_path / "b", batch_size=1)
    assert store.counts() == (1, {"error": 1}), "a request that is refused costs its record"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>log in", "4 requests in a row .*'<html>log in' is not JSON"),
        ('{"choices": ["caf\u00e9"]}'.encode("latin-1"), "4 requests in a row .*caf.* is not JSON"),
        (b"[" * 100_000, "4 requests in a row .*is not JSON"),
        (b'{"choices": []}', "expected choices with a text message"),
        (
            b'{"choices": [{"message": {"content": [{"type": "text", "text": "a"}]}}]}',
            "expected choices with a text message",
        ),
        (b'{"choices": [{"message": {"content": 5}}]}', "expected choices with a text message"),
    ],
)
def test_invalid_response_is_an_error(server: Server, body: bytes, message: str) -> None:
    server.body = body
    with pytest.raises(IDCError, match=message):
        Endpoint(server.url, "tiny", concurrency=1, retries=3).ask(["a"])


def test_invalid_model_list_is_reported(server: Server) -> None:
    slot = Endpoint(server.url, "tiny")
    assert slot.problem() is None
    server.body = b'["tiny"]'
    assert "does not list its models: ['tiny']" in str(slot.problem())


@pytest.mark.parametrize(
    ("asked", "waits"), [("20", [20, 20]), ("0", [0.5, 1]), ("3600", [60, 60]), ("soon", [0.5, 1]), (None, [0.5, 1])]
)
def test_retry_after_is_respected(
    server: Server, monkeypatch: pytest.MonkeyPatch, asked: str | None, waits: list[float]
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(module.time, "sleep", lambda seconds: waited.append(seconds) if seconds > 0.1 else None)
    server.fail, server.retry_after = [429, 503], asked
    assert Endpoint(server.url, "tiny", concurrency=1).ask(["a"]) == ["said a"] and waited == waits


def test_answers_are_cached_by_request(server: Server, tmp_path: Path) -> None:
    slot = EndpointText(Endpoint(server.url, "tiny", cache=str(tmp_path / "kept")))
    first = slot.answer(["a", "b"], [1, 2])
    assert slot.answer(["a", "b"], [1, 2]) == first and len(server.requests) == 2
    slot.answer(["a"], [9])
    EndpointText(Endpoint(server.url, "tiny", temperature=0.5, cache=str(tmp_path / "kept"))).answer(["a"], [1])
    assert len(server.requests) == 4, "another seed or temperature is another request"


def test_truncation_is_marked_and_cached(server: Server, tmp_path: Path) -> None:
    slot = EndpointText(Endpoint(server.url, "tiny", cache=str(tmp_path / "kept")))
    (whole,) = slot.answer(["a"], [0])
    server.finish_reason = "length"
    for _ in range(2):
        whole, cut = slot.answer(["a", "b"], [0, 0])
        assert (whole, cut) == ("said a", "said b") and isinstance(cut, CutOff) and not isinstance(whole, CutOff)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("content", "reason", "expected", "is_cut"),
    [
        ("<think>\nit is small\n</think>\n\nthe cube is gone", "stop", "the cube is gone", False),
        ("it is small</think>the cube is gone", "stop", "the cube is gone", False),
        ("[THINK]hm[/THINK]the cube", "length", "the cube", True),
        ("<think>\nthe cube is small, so", "length", "", True),
        ("<thinking> so", "stop", "", True),
        (None, "length", "", True),
        ("", "stop", "", False),
        ("a thought: </b> is bold", "stop", "a thought: </b> is bold", False),
        ("gone \ud83d", "length", "gone ?", True),
    ],
)
def test_thoughts_and_truncated_answers(
    server: Server, content: str | None, reason: str, expected: str, is_cut: bool
) -> None:
    server.body = json.dumps({"choices": [{"message": {"content": content}, "finish_reason": reason}]}).encode()
    (answer,) = Endpoint(server.url, "tiny", concurrency=1).ask(["a"])
    assert answer == expected and isinstance(answer, CutOff) == is_cut


def test_every_reader_of_answers_uses_one_function() -> None:
    """One file reads the fields of a choice, and one function decodes the output of local models."""
    package = Path(module.__file__).parents[2]
    pattern = re.compile(r"""\[["']message["']\]|get\(["'](message|choices)["']\)""")
    sources = {file.relative_to(package).as_posix(): file.read_text(encoding="utf-8") for file in package.rglob("*.py")}
    assert [name for name, text in sources.items() if pattern.search(text)] == ["synthesis/models/endpoint.py"]
    decoding = {name for name, text in sources.items() if "batch_decode(" in text}
    assert decoding == {"utils/answers.py", "synthesis/models/chat.py"}, "and stop strings, in chat.py"
    local = {name for name, text in sources.items() if "decode_answers(" in text and "read_answer" in text}
    assert local == {"utils/answers.py", "metrics/judge.py", "synthesis/models/chat.py"}


def test_unreachable_endpoint_is_a_preflight_problem(server: Server) -> None:
    assert EndpointText(Endpoint(server.url, "tiny")).requirements() == []
    assert "has no model 'other'; it has ['tiny']" in EndpointText(Endpoint(server.url, "other")).requirements()[0]
    (problem,) = EndpointText(Endpoint("http://127.0.0.1:9/v1", "tiny")).requirements()
    assert "does not respond" in problem
    wrong = {
        "file:///etc": "expected http",
        "http://me:pw@host/v1": "contains a user",
        "http://a/v1?k=1": "has a query",
    }
    for url, message in wrong.items():
        with pytest.raises(ConfigError, match=message):
            Endpoint(url, "tiny")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_gets_no_key(server: Server, status: int) -> None:
    other = Server()
    try:
        server.redirect = (status, f"{other.url}/stolen")
        slot = Endpoint(server.url, "tiny", retries=0, key="TINY_KEY")
        assert "redirects to" in str(slot.problem())
        with pytest.raises(ConfigError, match=r"redirects to .*/stolen; use that URL"):
            slot.ask(["hi"])
        assert other.keys == [] and other.requests == []
    finally:
        other.http.shutdown()
        other.http.server_close()


def test_key_is_sent_to_the_endpoint_only_and_never_printed(server: Server, caplog: Any) -> None:
    caplog.set_level("DEBUG")
    slot = Endpoint(server.url, "tiny", retries=0, key="TINY_KEY")
    other = Server()
    try:
        slot.load(f"{other.url}/load", {"messages": [{"content": "x"}]})
        slot.load(f"{server.url}/load", {"messages": [{"content": "x"}]})
        assert (other.keys, server.keys) == ([None], ["Bearer secret"])
    finally:
        other.http.shutdown()
        other.http.server_close()
    server.body = b"wrong key: Bearer secret"
    for status in (200, 400, 401, 503):
        server.fail = [status]
        with pytest.raises(IDCError) as raised:
            slot.ask(["hi"])
        assert "secret" not in str(raised.value) and "***" in str(raised.value)
    assert "secret" not in caplog.text and "secret" not in repr(slot)


@pytest.mark.parametrize("key", ["sk-live-0123456789", "0123abcd", "", "my key"])
def test_a_key_in_place_of_the_name_of_its_variable_is_refused_unseen(key: str) -> None:
    with pytest.raises(ConfigError, match="name of an environment variable") as raised:
        Endpoint("http://localhost/v1", "tiny", key=key)
    assert not key or key not in str(raised.value)


def test_a_key_that_a_server_repeats_is_in_no_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_KEY", "sk-0123456789-abcdef")
    server.body = b'{"choices": [{"message": {"content": "you sent sk-0123456789-abcdef"}}]}'
    slot = Endpoint(server.url, "tiny", key="TINY_KEY", cache=str(tmp_path / "answers"))
    assert slot.ask(["a"]) == ["you sent ***"]
    (file,) = (tmp_path / "answers").iterdir()
    assert "0123456789" not in file.read_text()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"\xff\xfe", b'{"answer": 5, "cut_off": false}', b'{"answer": "x"}', b"[1]"]
)
def test_damaged_cached_answer_is_requested_again(server: Server, tmp_path: Path, content: bytes) -> None:
    slot = Endpoint(server.url, "tiny", cache=str(tmp_path / "kept"))
    assert slot.ask(["a"]) == ["said a"]
    (file,) = (tmp_path / "kept").iterdir()
    file.write_bytes(content)
    for _ in range(2):
        assert slot.ask(["a"]) == ["said a"]
    assert len(server.requests) == 2


def test_answer_with_a_lone_surrogate_is_cached(server: Server, tmp_path: Path) -> None:
    server.body = b'{"choices": [{"message": {"content": "a \\ud83d"}, "finish_reason": "length"}]}'
    slot = Endpoint(server.url, "tiny", cache=str(tmp_path / "kept"))
    assert slot.ask(["a"]) == slot.ask(["a"]) == ["a ?"] and len(server.requests) == 1
