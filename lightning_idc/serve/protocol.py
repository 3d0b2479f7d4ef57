"""HTTP protocol of the server that bounds the connections that have not sent a complete request header."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def bounded_protocol(seconds: float, max_waiting: int) -> type[H11Protocol]:
    """Protocol class for ``uvicorn.Config(http=...)``.

    uvicorn waits without limit for the end of a header, and counts such connections only when a request arrives, so
    that idle clients could take all file descriptors.

    Args:
        seconds: time after which a connection without a complete header is closed.
        max_waiting: maximum number of these connections; the oldest one is closed for a new one.
    """
    waiting: dict[H11Protocol, asyncio.TimerHandle] = {}

    class BoundedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop_waiting()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._stop_waiting()
            if len(waiting) >= max_waiting:
                oldest = next(iter(waiting))
                waiting.pop(oldest).cancel()
                oldest.transport.abort()
            waiting[self] = self.loop.call_later(seconds, self.transport.abort)

        def _stop_waiting(self) -> None:
            timer = waiting.pop(self, None)
            if timer is not None:
                timer.cancel()

    return BoundedProtocol
