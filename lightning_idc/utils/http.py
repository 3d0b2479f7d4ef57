"""The one HTTP client: a time and a size limit for whole answers, no redirects with a key, no key in any message."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit

from lightning_idc.utils.errors import ConfigError

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
MAX_BYTES = 64 << 20
"""Longest answer that is held in memory."""
_REDIRECTS = 5
_HIDDEN = "***"


class TransferError(OSError):
    """A server that cannot be reached, that is too slow, or that answers too much."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A key that is sent with requests and shown nowhere.

    Args:
        value: the key; surrounding white space is removed.
        name: of the environment variable it is from, for messages.

    Raises:
        ConfigError: it holds characters that no header can carry.
    """

    value: str = field(repr=False)
    name: str = "the key"

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", self.value.strip())
        if not all("!" <= sign <= "~" for sign in self.value):
            raise ConfigError(f"{self.name} holds spaces, line breaks or letters beyond ASCII; expected a key")

    @classmethod
    def of_environment(cls, name: str) -> Secret | None:
        """The key of an environment variable; None where it is not set or empty."""
        value = os.environ.get(name, "").strip()
        return cls(value, name) if value else None

    def hidden_in(self, text: str) -> str:
        """Text without the key."""
        return text.replace(self.value, _HIDDEN)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as a whole.

    Args:
        status: of HTTP.
        headers: by name in lower case.
        body: in bytes.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def check_url(name: str, url: str) -> None:
    """Refuse an address that is not one of HTTP, or that holds a password.

    Args:
        name: of the argument, for the message.
        url: the address.

    Raises:
        ConfigError: it is one of those; the message holds no password.
    """
    try:
        parts = urlsplit(url)
        port_is_number = parts.port is None or parts.port >= 0
    except ValueError:
        parts, port_is_number = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_number:
        raise ConfigError(f"{name} is {shown(url)!r}; expected http:// or https:// and a host")
    if "@" in parts.netloc:
        raise ConfigError(f"{name} {shown(url)!r} holds a name or password; put the key into an environment variable")


def shown(url: str) -> str:
    """An address for messages: without user, password, query and fragment, which may hold secrets."""
    return url.partition("?")[0].partition("#")[0].replace(_user_of(url), "")


def _user_of(url: str) -> str:
    authority = url.partition("://")[2].partition("/")[0]
    user, at, _ = authority.rpartition("@")
    return f"{user}{at}" if at else "\0"


def same_origin(first: str, second: str) -> bool:
    """Whether two addresses are of one scheme, host and port."""
    return _origin(first) == _origin(second)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def request(
    url: str, body: bytes | None = None, secret: Secret | None = None, *, timeout: float, max_bytes: int = MAX_BYTES
) -> Answer:
    """Send one request, POST with JSON or GET without a body, and return the answer, whatever its status.

    Args:
        url: of the request.
        body: JSON in UTF-8.
        secret: sent as a bearer token.
        timeout: seconds from the connection to the last byte.
        max_bytes: of the answer.

    Raises:
        ConfigError: the answer is a redirect.
        TransferError: there is no answer, or it is too late or too long.
    """
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret.value}"

    async def exchange() -> Answer:
        async with _opened("GET" if body is None else "POST", url, headers, body, timeout) as reply:
            if 300 <= reply.status_code < 400:
                target = shown(reply.headers.get("Location", "no address"))
                raise ConfigError(f"{shown(url)} answers with a redirect to {target}; name that address")
            parts: list[bytes] = []
            async for part in _read(reply, max_bytes):
                parts.append(part)
            return Answer(reply.status_code, dict(reply.headers), b"".join(parts))

    try:
        return _within(exchange, url, timeout)
    except (ConfigError, TransferError) as error:
        # what a server says may hold what it was sent; the chain of causes may, too
        raise type(error)(str(error) if secret is None else secret.hidden_in(str(error))) from None


def download(url: str, file: IO[bytes], *, max_bytes: int, silence: float, timeout: float) -> None:
    """Fetch a file without any key, through redirects that do not leave HTTPS.

    Args:
        url: of the file.
        file: open for writing.
        max_bytes: of the file.
        silence: seconds that the server may be silent.
        timeout: seconds for the whole file.

    Raises:
        TransferError: there is no answer, or it is too late, too long or cut short.
    """

    async def exchange() -> None:
        address = url
        for _ in range(_REDIRECTS + 1):
            headers = {"Accept-Encoding": "identity"}
            async with _opened("GET", address, headers, None, silence) as reply:
                if reply.has_redirect_location:
                    following = urljoin(address, reply.headers["Location"])
                    if urlsplit(following).scheme not in {"https", urlsplit(address).scheme}:
                        raise TransferError(f"{shown(address)} leads to {shown(following)}, which is less safe")
                    address = following
                    continue
                if reply.status_code != 200:
                    raise TransferError(f"status {reply.status_code} of {shown(address)}")
                async for part in _read(reply, max_bytes):
                    file.write(part)
                return
        raise TransferError(f"{shown(url)} leads from one address to another without end")

    _within(exchange, url, timeout)


@cache
def _certificates() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


@asynccontextmanager
async def _opened(
    method: str, url: str, headers: dict[str, str], body: bytes | None, timeout: float
) -> AsyncIterator[httpx2.Response]:
    import httpx2

    async with (
        httpx2.AsyncClient(verify=_certificates(), follow_redirects=False, timeout=timeout) as client,
        client.stream(method, url, headers=headers, content=body) as reply,
    ):
        yield reply


async def _read(reply: httpx2.Response, max_bytes: int) -> AsyncIterator[bytes]:
    """Parts of an answer as it was sent: unpacked it could be a thousand times as long."""
    if reply.headers.get("Content-Encoding", "identity") != "identity":
        raise TransferError(f"it answers in {reply.headers['Content-Encoding'][:20]!r}, which it was not asked for")
    count = 0
    async for part in reply.aiter_raw():
        count += len(part)
        if count > max_bytes:
            raise TransferError(f"it answers more than the {max_bytes:,} bytes that are expected")
        yield part


def _within(exchange: Callable[[], Coroutine[Any, Any, T]], url: str, timeout: float) -> T:
    """Run an exchange to its end, or to the end of its time, which no server can draw out byte by byte."""
    import anyio
    import httpx2

    async def timed() -> T:
        with anyio.fail_after(timeout):
            return await exchange()

    def run() -> T:
        try:
            return anyio.run(timed)
        except httpx2.TimeoutException as error:
            raise TransferError(f"{shown(url)} timed out: the server is silent") from error
        except TimeoutError as error:
            raise TransferError(f"{shown(url)} timed out: there is no whole answer after {timeout:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ssl.SSLError) as error:
            raise TransferError(f"{shown(url)}: {type(error).__name__}: {error}") from error

    # a notebook has a loop in its thread already, and a thread has room for one
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()
