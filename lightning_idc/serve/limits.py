"""Limits: an ASGI middleware that rejects requests that are too large, too slow, or from another web page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Limits:
    """Answers 413, 408 or 403 before a request reaches the captioner.

    Args:
        app: the application.
        max_bytes: maximum size of the body of a request.
        seconds: maximum time for receiving the body.
    """

    def __init__(self, app: Any, max_bytes: int, seconds: float) -> None:
        self.app, self.max_bytes, self.seconds = app, max_bytes, seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            # browsers send the origin of a request; pages of other sites must not use a local server
            if (origin := headers.get("origin")) and urlsplit(origin).netloc != headers.get("host"):
                raise _RefusedError(403, f"the request comes from a page of another site, {origin!r}")
            body = await self._body(headers, receive)
        except _RefusedError as error:
            # the rest of the request is not read, so the connection cannot be used again
            response = JSONResponse(error_body(str(error)), error.status, {"connection": "close"})
            await response(scope, receive, send)
            return
        if body is not None:
            await self.app(scope, _replayed(body, receive), send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """Body of a request; None if the client has disconnected."""
        too_large = _RefusedError(413, f"the request is larger than {self.max_bytes / 1e6:g} MB; scale the images down")
        if int(headers.get("content-length", 0)) > self.max_bytes:  # the server has already validated the number
            raise too_large
        body, until = bytearray(), time.monotonic() + self.seconds
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
            except asyncio.TimeoutError:
                raise _RefusedError(408, f"the request did not arrive within {self.seconds:g} seconds") from None
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self.max_bytes:
                raise too_large
            if not message.get("more_body"):
                return bytes(body)


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _replayed(body: bytes, receive: Receive) -> Receive:
    """``receive`` function that returns the body first, and then further messages of the client."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def error_body(text: str) -> dict[str, Any]:
    """An error in the format of OpenAI's API."""
    return {"error": {"message": text, "type": "invalid_request_error"}}
