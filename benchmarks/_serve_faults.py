"""Faults that are done to a server: killed processes, cut uploads, signals, damaged models, taken ports, full disks."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from _faults import SECONDS, Process, Trial, damage_one_of, descendants, start

PAIRS = 4
ANSWER_SECONDS = 20
"""In which the server answers or says that it cannot."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def form(*files: bytes) -> bytes:
    """Body of a request with two images."""
    parts = [
        f'--xx\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.png"\r\n\r\n'.encode()
        + data
        + b"\r\n"
        for name, data in zip(("before", "after"), files, strict=True)
    ]
    return b"".join([*parts, b"--xx--\r\n"])


@dataclass
class ServeTrial(Trial):
    """A server with one fault; what counts are the answers of a server that is started afterwards.

    Args:
        port: that it listens on.
    """

    port: int = field(default_factory=free_port)

    def begin(self) -> Process:
        more = ("--port", str(self.port), "--answer-timeout", str(ANSWER_SECONDS), "--timeout", "3")
        return start(self.folder, "serve", "--model", "model", *more)

    def pair(self, number: int) -> list[bytes]:
        return [(self.folder / "pairs" / side / f"{number}.png").read_bytes() for side in ("before", "after")]

    def send(self, body: bytes, path: str = "/describe") -> tuple[int, str]:
        """Status and text of an answer; status 0 where the connection ends without one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS + 40)
        try:
            headers = {"Content-Type": "multipart/form-data; boundary=xx"}
            connection.request("POST" if body else "GET", path, body or None, headers)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        except TimeoutError as error:
            raise AssertionError("a request was neither answered nor refused") from error
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def ask(self, number: int) -> tuple[int, str]:
        """Status, and the caption or the sentence of a refusal."""
        status, text = self.send(form(*self.pair(number)))
        if status == 200:
            return status, str(json.loads(text)["caption"])
        if status and "message" not in text:
            raise AssertionError(f"status {status} without a sentence: {text[:200]}")
        return status, text

    def good(self, number: int) -> tuple[int, str]:
        """What a server without a fault answers: a caption."""
        status, text = self.ask(number)
        if status != 200:
            raise AssertionError(f"a good pair is answered with status {status}: {text[:200]}")
        return status, text

    def ready(self, process: Process) -> bool:
        """Wait for the captioner; whether the server runs."""
        until = time.monotonic() + SECONDS
        while process.running() and time.monotonic() < until:
            if self.send(b"", "/health")[0] == 200:
                return True
            time.sleep(0.05)
        if process.running():
            raise AssertionError(f"the server is not ready after {SECONDS} s: {process.said()[-600:]}")
        return False

    def stop(self, process: Process) -> None:
        """End a server in order; nothing may be left of it."""
        if process.running():
            os.kill(process.pid, signal.SIGTERM)
        self.ended(process, {0})

    def ended(self, process: Process, expected: set[int]) -> None:
        """Expect an end, with one sentence where it is no success, and nobody on the port."""
        status, said = process.wait(), process.said()
        sentence = "error: " in said or (status == 130 and "stopped" in said)
        if "Traceback" in said or (status and not sentence) or status not in expected:
            raise AssertionError(f"status {status}: {said[-600:]}")
        self.refused.extend(line for line in said.splitlines() if line.startswith("error: "))
        until = time.monotonic() + 10
        while self.send(b"", "/health")[0]:
            if time.monotonic() > until:
                raise AssertionError("something still answers on the port")
            time.sleep(0.1)

    def finish(self) -> None:
        """Start a server, and keep its answers to all pairs."""
        process = self.begin()
        if not self.ready(process):
            self.refusal(process)
            self.put_right(self.refused[-1])
            process = self.begin()
            if not self.ready(process):
                raise AssertionError(f"it cannot be started: {process.said()[-600:]}")
        answers = [self.good(number) for number in range(PAIRS)]
        self.stop(process)
        self.run.mkdir(exist_ok=True)
        (self.run / "answers.json").write_text(json.dumps(answers))

    def put_right(self, sentence: str) -> None:
        """Do what the sentence advises."""
        if "model" in sentence:  # from a copy
            shutil.rmtree(self.folder / "model")
            shutil.copytree(self.folder.parent / "model", self.folder / "model")

    @contextmanager
    def waiting(self, count: int = 12) -> Iterator[list[Future[tuple[int, str]]]]:
        """Requests that are under way at a random moment; all that is answered must be right."""
        expected = [self.good(number) for number in range(PAIRS)]
        with ThreadPoolExecutor(count) as pool:
            jobs = [pool.submit(self.ask, number % PAIRS) for number in range(count)]
            time.sleep(self.chance.uniform(0, 0.2))
            yield jobs
        for number, job in enumerate(jobs):
            if job.result()[0] == 200 and job.result() != expected[number % PAIRS]:
                raise AssertionError("another answer than before")


def prepare(folder: Path, data: Path, model: Path) -> None:
    """A folder with images and the captioner."""
    folder.mkdir(parents=True)
    (folder / "pairs").symlink_to(data)
    shutil.copytree(model, folder / "model")


def answers_of(run: Path) -> dict[str, str]:
    """Answers to all pairs."""
    return {"answers": (run / "answers.json").read_text()}


def captioners(process: Process) -> list[int]:
    """Processes that hold the captioner."""
    found = []
    for pid in descendants(process.pid):
        with suppress(OSError):
            if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


def killed_captioner(trial: ServeTrial) -> None:
    """kill -9 of the captioner's process while requests wait"""
    process = trial.begin()
    trial.ready(process)
    with trial.waiting():
        for pid in captioners(process):
            os.kill(pid, signal.SIGKILL)
    trial.ended(process, {1, 2})


def killed_server(trial: ServeTrial) -> None:
    """kill -9 of the server while requests wait"""
    process = trial.begin()
    trial.ready(process)
    with trial.waiting():
        os.kill(process.pid, signal.SIGKILL)
    process.wait()


def stopped_server(trial: ServeTrial) -> None:
    """SIGTERM or Ctrl-C while requests wait"""
    process = trial.begin()
    trial.ready(process)
    with trial.waiting():
        os.kill(process.pid, trial.chance.choice((signal.SIGTERM, signal.SIGINT)))
    trial.ended(process, {0})


def stopped_start(trial: ServeTrial) -> None:
    """SIGTERM while the captioner is loaded"""
    process = trial.begin()
    trial.wait_a_while(process)
    os.kill(process.pid, signal.SIGTERM)
    trial.ended(process, {0, 130, 143})


def cut_uploads(trial: ServeTrial) -> None:
    """uploads that are cut, and images with flipped bytes, beside good ones"""
    process = trial.begin()
    trial.ready(process)
    with trial.waiting():
        for number in range(8):
            body = bytearray(form(*trial.pair(number % PAIRS)))
            if number % 2:
                body[trial.chance.randrange(len(body))] ^= 1 << trial.chance.randrange(8)
                status, text = trial.send(bytes(body))
                if not 200 <= status < 500 or (status != 200 and "message" not in text):
                    raise AssertionError(f"status {status}: {text[:200]}")
                continue
            head = f"POST /describe HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            request = (head + "Content-Type: multipart/form-data; boundary=xx\r\n\r\n").encode() + body
            with socket.create_connection(("127.0.0.1", trial.port)) as connection:
                connection.sendall(request[: trial.chance.randrange(1, len(request) - 1)])
    trial.stop(process)


def damaged_model(trial: ServeTrial) -> None:
    """a file of the model's folder cut or flipped before the start"""
    damage_one_of([path for path in (trial.folder / "model").rglob("*") if path.is_file()], trial.chance)


def port_in_use(trial: ServeTrial) -> None:
    """a port that another program listens on"""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("0.0.0.0", trial.port))
        other.listen()
        trial.refusal(trial.begin())


def full_temporary_folder(trial: ServeTrial) -> None:
    """a full disk under the temporary folder while large images arrive"""
    folder = trial.folder / "temporary"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], check=True)
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        process = trial.begin()
        if trial.ready(process):
            with trial.waiting():
                one, two = trial.pair(0)
                status, text = trial.send(form(one + bytes(3_000_000), two))
                if not status or (status != 200 and "message" not in text):
                    raise AssertionError(f"status {status}: {text[:200]}")
            trial.stop(process)
        else:
            trial.refusal(process)
    finally:
        os.environ.pop("TMPDIR")
        os.environ.update({"TMPDIR": before} if before else {})
        subprocess.run(["umount", "-l", str(folder)], check=False)


SERVE_FAULTS: list[Callable[[ServeTrial], None]] = [
    *(killed_captioner, killed_server, stopped_server, stopped_start, cut_uploads, damaged_model, port_in_use),
    full_temporary_folder,
]
