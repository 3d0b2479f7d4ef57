"""HTTP protocol of the server: bounds idle connections, and answers clients that stopped sending but still wait."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PROBES = (0.1, 0.1, 1.0, 10.0)
"""Seconds before each interim response to a client that has stopped sending. Few, since some clients limit them."""


def bounded_protocol(seconds: float, max_waiting: int) -> type[H11Protocol]:
    """Protocol class for ``uvicorn.Config(http=...)``.

    uvicorn waits without limit for the end of a header and for clients that do not read their answer, and counts such
    connections only when a request arrives, so that idle clients could take all file descriptors.

    It also takes the end of what a client sends for the end of the connection. A client may close its sending side
    after the request (``nc -N``, ``socket.shutdown``) and read the answer. TCP reports a client that has left in the
    same way, until something is sent to it: the interim response 100, which clients of HTTP/1.1 skip. Clients of
    HTTP/1.0 do not know it; their requests are always answered.

    Args:
        seconds: time after which a connection without a complete header, or whose client does not read, is closed.
        max_waiting: maximum number of connections without a header; the oldest one is closed for a new one.
    """
    waiting: dict[H11Protocol, asyncio.TimerHandle] = {}

    class BoundedProtocol(H11Protocol):
        _ended = False
        """Whether the client has closed its sending side."""
        _timer: asyncio.TimerHandle | None = None
        """Next interim response, or the end of a connection whose client does not read."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop_waiting()

        def eof_received(self) -> bool:  # type: ignore[override]
            if self.cycle is None or self.cycle.more_body or self.cycle.response_complete:
                return False  # the transport closes the connection
            self._ended = True
            if self.conn.their_http_version != b"1.0":
                self._timer = self.loop.call_later(PROBES[0], self._probe, PROBES[1:])
            return True

        def _probe(self, delays: tuple[float, ...]) -> None:
            """Send an interim response; the second one fails if the client has left, which ends the request."""
            if self.conn.our_state is not h11.SEND_RESPONSE:
                return
            event = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(event))
            if delays:
                self._timer = self.loop.call_later(delays[0], self._probe, delays[1:])

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stop_timer()
            self._timer = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_timer()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                return
            if self._ended and self.conn.their_state is not h11.DONE:  # no further complete request
                self.transport.close()
            elif self.conn.their_state is h11.IDLE:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            self._stop_timer()
            super().connection_lost(exc)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()

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
