"""Limits: an ASGI middleware that ends requests which are too large, arrive too slowly, or are too many at once."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any


class Limits:
    """Refuses with 413, 408 or 429 before a request reaches the captioner.

    Args:
        app: what is guarded.
        queue: requests that may be under way at once.
        max_bytes: of a request's body.
        seconds: in which the body must have arrived.
    """

    def __init__(self, app: Any, queue: int, max_bytes: int, seconds: float) -> None:
        self.app, self.queue, self.max_bytes, self.seconds = app, queue, max_bytes, seconds
        self.under_way = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if self.under_way >= self.queue:
            await _refuse(send, 429, f"{self.queue} requests are under way; try again in a second")
            return
        self.under_way += 1
        try:
            body = await self._body(scope, receive)
            await self.app(scope, _once(body, receive), send)
        except _TooMuchError as error:
            await _refuse(send, error.status, str(error))
        except _GoneError:
            pass  # nobody is there to be answered
        finally:
            self.under_way -= 1

    async def _body(self, scope: Any, receive: Any) -> bytes:
        large = f"the request is larger than {self.max_bytes / 1e6:g} MB; scale the images down"
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.max_bytes:
            raise _TooMuchError(413, large)
        parts: list[bytes] = []
        size, until = 0, time.monotonic() + self.seconds
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
            except asyncio.TimeoutError:
                raise _TooMuchError(408, f"the request did not arrive within {self.seconds:g} seconds") from None
            if message["type"] == "http.disconnect":
                raise _GoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.max_bytes:
                raise _TooMuchError(413, large)
            if not message.get("more_body"):
                return b"".join(parts)


class _TooMuchError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _GoneError(Exception):
    pass


def _once(body: bytes, receive: Any) -> Any:
    """``receive`` of an application that gets the body first, and then what the client does."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return messages.pop() if messages else await receive()

    return replay


def error_body(text: str) -> dict[str, Any]:
    """An error as clients of chat interfaces read it."""
    return {"error": {"message": text, "type": "invalid_request_error"}}


async def _refuse(send: Any, status: int, text: str) -> None:
    body = json.dumps(error_body(text)).encode()
    # what is left of the request is not read, so the connection cannot be used again
    headers = [(b"content-type", b"application/json"), (b"connection", b"close"), (b"retry-after", b"1")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
