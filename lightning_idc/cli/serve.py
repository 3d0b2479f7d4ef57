"""The verb serve: answer over HTTP."""

from __future__ import annotations

import signal
import socket
import sys
from typing import Literal

from lightning_idc.serve.notes import capture_warnings
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.utils.bounds import PositiveFloat, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.process import collect_as_usual

KEEP_ALIVE = 5
"""Seconds until an idle connection is closed."""


def serve(
    *,
    options: ModelOptions,
    host: Literal["127.0.0.1", "0.0.0.0", "::"] = "127.0.0.1",
    port: PositiveInt = 8000,
    batch_size: PositiveInt = 8,
    connections: PositiveInt = 256,
    max_mb: PositiveFloat = 32.0,
    total_mb: PositiveFloat = 256.0,
    timeout: PositiveFloat = 30.0,
    answer_timeout: PositiveFloat = 300.0,
) -> int:
    """Answer over HTTP, with a page to drop two images on.

    POST /describe takes the files before and after (curl -F before=@a.png -F after=@b.png); ?where=0 skips locating the
    change. /v1/chat/completions takes a chat whose last message has two images as data URLs, GET /health returns
    whether the captioner is loaded, and /openapi.json describes all routes.

    Args:
        options: the captioner and how it reads images.
        host: address to listen on; 0.0.0.0 exposes the server to the network, and there is no authentication.
        port: port to listen on.
        batch_size: maximum number of pairs per batch.
        connections: maximum number of concurrent requests, further ones get status 503; and of connections without a
            request, of which the oldest is closed.
        max_mb: maximum size of a request; larger ones get status 413.
        total_mb: maximum size of all requests in memory; further ones wait.
        timeout: maximum seconds for receiving the header of a request, and its body; slower ones get status 408.
        answer_timeout: maximum seconds for an answer; slower requests get status 503.
    """
    check_arguments(serve, locals())
    import uvicorn

    from lightning_idc.serve.protocol import bounded_protocol
    from lightning_idc.serve.server import make_app

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # containers are stopped by SIGTERM
    with _bound(host, port) as listener:  # before the captioner is loaded
        with capture_warnings():
            describer = options.open_describer()
        app = make_app(
            describer,
            options.model or "rules",
            batch_size=batch_size,
            max_bytes=int(max_mb * 1e6),
            timeout=timeout,
            answer_timeout=answer_timeout,
            max_requests=connections,
            max_total=int(total_mb * 1e6),
            hosts=("127.0.0.1", "localhost") if host == "127.0.0.1" else ("*",),
        )
        protocol = bounded_protocol(timeout, connections)
        # a short backlog: all of its connections are accepted before one can be closed
        config = uvicorn.Config(app, http=protocol, log_level="warning", backlog=128, timeout_keep_alive=KEEP_ALIVE)
        collect_as_usual()
        print(f"http://{host}:{port} answers; Ctrl+C ends it", flush=True)
        uvicorn.Server(config).run([listener])
    return 0


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--port {port} cannot be listened on ({error}); end the program that does, or choose another"
        ) from error
