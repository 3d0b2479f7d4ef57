"""Limits: an ASGI middleware that bounds the size, time and number of requests, and the bytes of all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Limits:
    """Answers 413, 408, 403 or 503 before a request reaches the captioner, and cancels requests of clients that left.

    Args:
        app: the application.
        max_bytes: maximum size of the body of a request.
        seconds: maximum time for receiving the body.
        max_requests: maximum number of concurrent requests.
        max_total: maximum size of all bodies in memory; further requests wait until there is room.
    """

    def __init__(self, app: Any, max_bytes: int, seconds: float, max_requests: int, max_total: int) -> None:
        self.app, self.max_bytes, self.seconds, self.max_requests = app, max_bytes, seconds, max_requests
        self._requests = 0
        self._room = _Room(max(max_total, max_bytes))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        self._requests += 1
        share = _Share()
        try:
            if self._requests > self.max_requests:
                raise _RefusedError(503, f"{self.max_requests} requests are being answered; try again later")
            headers = Headers(scope=scope)
            _check_site(headers)
            size = headers.get("content-length")
            if size is None:  # chunked
                self._room.growing.append(share)
            elif int(size) > self.max_bytes:  # the server has already validated the number
                raise self._too_large()
            else:
                await self._room.reserve(share, int(size), self.seconds)
            body = await self._body(receive, share)
            if body is not None:
                await _run_while_connected(self.app, scope, body, receive, send)
        except _RefusedError as error:
            # the rest of the request is not read, so the connection cannot be used again
            response = JSONResponse(error_body(str(error)), error.status, {"connection": "close"})
            await response(scope, receive, send)
        finally:
            self._requests -= 1
            await self._room.release(share)

    def _too_large(self) -> _RefusedError:
        return _RefusedError(413, f"the request is larger than {self.max_bytes / 1e6:g} MB; scale the images down")

    async def _body(self, receive: Receive, share: _Share) -> bytes | None:
        """Body of a request, for whose chunks room is reserved as they arrive; None if the client has disconnected."""
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
                raise self._too_large()
            if len(body) > share.size:
                await self._room.reserve(share, len(body) - share.size, max(0.0, until - time.monotonic()))
            if not message.get("more_body"):
                return bytes(body)


def _check_site(headers: Headers) -> None:
    """Refuse requests of pages of other sites, which must not use a local server; browsers send what tells them apart.

    Other programs send neither header and are answered.
    """
    for origin in headers.getlist("origin"):
        try:
            site = urlsplit(origin).netloc
        except ValueError:
            site = ""
        if not site or site != headers.get("host"):
            raise _RefusedError(403, f"the request comes from a page of another site, {origin[:200]!r}")
    if any(site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")):
        raise _RefusedError(403, "the request comes from a page of another site")


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Share:
    """Number of bytes that one request has reserved."""

    size = 0


class _Room:
    """Number of bytes that requests may hold together.

    Bodies without a length reserve what arrives. The oldest of them may exceed the limit, by one body at most, so that
    several that have arrived in part do not wait for each other.
    """

    def __init__(self, size: int) -> None:
        self.free, self._changed = size, asyncio.Condition()
        self.growing: list[_Share] = []

    async def reserve(self, share: _Share, size: int, seconds: float) -> None:
        """Wait until there is room for more bytes of a request."""
        async with self._changed:
            try:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: self.free >= size or self.growing[:1] == [share]), seconds
                )
            except asyncio.TimeoutError:
                raise _RefusedError(503, f"there was no room for the request within {seconds:g} seconds") from None
            self.free -= size
            share.size += size

    async def release(self, share: _Share) -> None:
        async with self._changed:
            if share in self.growing:
                self.growing.remove(share)
            self.free += share.size
            self._changed.notify_all()


async def _run_while_connected(app: Any, scope: Message, body: bytes, receive: Receive, send: Send) -> None:
    """Run the application on a request whose body was received; cancel it if the client disconnects."""
    disconnected = asyncio.ensure_future(receive())  # after the body, the only message
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await asyncio.shield(disconnected)

    answer = asyncio.ensure_future(app(scope, replay, send))
    try:
        await asyncio.wait([answer, disconnected], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
        with suppress(asyncio.CancelledError):
            await answer
    finally:
        answer.cancel()
        disconnected.cancel()


def error_body(text: str) -> dict[str, Any]:
    """An error in the format of OpenAI's API."""
    return {"error": {"message": text, "type": "invalid_request_error"}}
