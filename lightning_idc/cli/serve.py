"""serve: answer over HTTP."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
from typing import Any

from lightning_idc.cli import typed
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.utils.children import end_with_parent
from lightning_idc.utils.errors import ConfigError

LOOPBACK = ("127.0.0.1", "localhost")


def run(given: list[str]) -> int:
    """The verb `serve`."""
    return typed.call("serve", serve, given[1:])


def serve(
    options: ModelOptions,
    host: str = "127.0.0.1",
    port: int = 8000,
    batch_size: int = 8,
    queue: int = 256,
    max_mb: float = 32.0,
    timeout: float = 30.0,
    answer_timeout: float = 300.0,
) -> int:
    """Answer over HTTP, with a page to drop two images on.

    POST /describe takes the files before and after (curl -F before=@a.png -F after=@b.png), and with ?where=0 answers
    without looking for the place; /v1/chat/completions takes a chat whose last message has two images as data URLs, GET
    /health says whether the captioner is there.

    Args:
        options: of the captioner.
        host: address to listen on; 0.0.0.0 lets other machines in, who are not asked who they are.
        port: to listen on.
        batch_size: most pairs that are answered at once.
        queue: requests that may be under way at once; further ones are answered 429.
        max_mb: of a request; larger ones are answered 413.
        timeout: seconds in which a request must have arrived; slower ones are answered 408.
        answer_timeout: seconds that an answer may take; then the request is answered 503.
    """
    if not 1024 <= port <= 65535 or host not in ("127.0.0.1", "0.0.0.0", "::"):
        raise ConfigError(
            f"--host {host} --port {port}: expected 127.0.0.1, 0.0.0.0 or ::, and a port from 1024 to 65535"
        )
    limits = (max_mb, timeout, answer_timeout)
    if min(batch_size, queue) < 1 or not all(0 < limit < math.inf for limit in limits):
        raise ConfigError("--batch-size, --queue, --max-mb, --timeout and --answer-timeout are numbers above 0")
    _end_together()  # before the imports, which take seconds in which SIGTERM ends it without a word
    from lightning_idc.serve.server import make_server

    _check_free(host, port)
    hosts = LOOPBACK if host == "127.0.0.1" else ("*",)
    server = make_server(options, batch_size, queue, max_mb, timeout, answer_timeout, hosts)
    print(f"http://{host}:{port} answers when the captioner is loaded; Ctrl+C ends it", flush=True)
    try:
        server.run(host, port, num_api_servers=1, log_level="warning", generate_client_file=False)
    except RuntimeError as error:
        raise ConfigError(f"the captioner could not be loaded, for the reason above ({error})") from error
    except (EOFError, OSError):
        # LitServe ends everything when a worker has died, and then waits for an answer of what it has ended
        if all(worker.is_alive() for worker in server.inference_workers):
            raise
    died = [worker.exitcode for worker in server.inference_workers if worker.exitcode not in (0, -signal.SIGTERM, None)]
    if died:
        raise ConfigError(
            f"the captioner's process died with code {died[0]}, and the server with it; -9 is what a process gets that "
            "is killed, such as one that needs more memory than there is: try a smaller --batch-size or --max-mb"
        )
    return 0


def _check_free(host: str, port: int) -> None:
    """Refuse a port that somebody listens on, before the captioner is loaded."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"--port {port} cannot be listened on ({error.strerror}); end the program that does, or choose another"
            ) from error


def _end_together() -> None:
    """On Ctrl+C and SIGTERM all processes of the server end in order, and when it is killed none is left."""
    owner = os.getpid()

    def end(number: int, frame: Any) -> None:
        if os.getpid() == owner:
            # LitServe's monitor may be asking a process that ends now, and would print a traceback of that
            logging.getLogger("litserve").setLevel(logging.CRITICAL + 1)
            raise KeyboardInterrupt
        sys.exit(0)  # processes that are forked inherit this, and raise the signal again when they are done

    # a container is stopped with SIGTERM, and a shell's background jobs ignore Ctrl+C
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    os.register_at_fork(after_in_child=end_with_parent)
