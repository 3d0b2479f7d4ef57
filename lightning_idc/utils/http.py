"""HTTP client with limits on time and size; it never sends keys to redirects or shows them in messages."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.text import hide_passwords

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
MAX_BYTES = 64 << 20
"""Largest response body that is held in memory, in bytes."""
_REDIRECTS = 5
_HIDDEN = "***"
_MIN_KEY = 12
"""Length from which the key is also removed from responses; shorter ones, such as EMPTY, may be words of an answer.
So long are parts of a path that may be keys."""


class TransferError(OSError):
    """The server cannot be reached, is too slow, or sends too much data."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Key that is sent with requests and never displayed.

    Args:
        value: the key; surrounding white space is removed.
        name: name of its environment variable, for messages.

    Raises:
        ConfigError: the key contains characters that are not allowed in HTTP headers.
    """

    value: str = field(repr=False)
    name: str = "the key"

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", self.value.strip())
        if not all("!" <= character <= "~" for character in self.value):
            raise ConfigError(f"{self.name} contains spaces, line breaks or characters beyond ASCII; expected a key")

    @classmethod
    def of_environment(cls, name: str) -> Secret | None:
        """Read a key from an environment variable; None if it is unset or empty."""
        value = os.environ.get(name, "").strip()
        return cls(value, name) if value else None

    def hidden_in(self, text: str) -> str:
        """Replace the key in a text with asterisks."""
        return text.replace(self.value, _HIDDEN)

    def hidden_in_body(self, body: bytes) -> bytes:
        """Replace the key in a response with asterisks, also where JSON escapes some of its characters."""
        body = body.replace(self.value.encode(), _HIDDEN.encode())
        if b"\\" in body:
            with suppress(ValueError, RecursionError):
                text, escaped = json.dumps(json.loads(body), ensure_ascii=False), json.dumps(self.value)[1:-1]
                if escaped in text:
                    return text.replace(escaped, _HIDDEN).encode(errors="surrogatepass")
        return body


@dataclass(frozen=True, slots=True)
class Response:
    """HTTP response.

    Args:
        status: status code.
        headers: headers by lower-case name.
        body: body as bytes.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def check_url(name: str, url: str) -> None:
    """Raise an error for a URL that is not HTTP or contains a password.

    Args:
        name: name of the argument, for the message.
        url: URL to check.

    Raises:
        ConfigError: the URL is invalid; the message does not contain the password.
    """
    try:
        parts = urlsplit(url)
        port_is_number = parts.port is None or parts.port >= 0
    except ValueError:
        parts, port_is_number = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_number:
        raise ConfigError(f"{name} is {redact_url(url)!r}; expected http:// or https:// and a host")
    if "@" in parts.netloc:
        raise ConfigError(f"{name} {redact_url(url)!r} contains a user or password; use an environment variable")


def redact_url(url: str) -> str:
    """Format a URL for messages, without user, password, query, fragment and parts of the path that may be keys."""
    text = url.partition("?")[0].partition("#")[0].replace(_user_of(url), "")
    head, separator, path = text.partition("://")
    host, *parts = path.split("/")
    text = head + separator + "/".join([host, *(_HIDDEN if _may_be_key(part) else part for part in parts)])
    return text if "://" in text or "@" not in text else f"***@{text.rpartition('@')[2]}"


def _may_be_key(part: str) -> bool:
    """Whether a part of a path holds at least twelve letters and digits in a row that are not a word."""
    return any(not run.islower() or not run.isalpha() for run in re.findall(rf"[A-Za-z0-9]{{{_MIN_KEY},}}", part))


def _user_of(url: str) -> str:
    authority = url.partition("://")[2].partition("/")[0]
    user, at, _ = authority.rpartition("@")
    return f"{user}{at}" if at else "\0"


def same_origin(first: str, second: str) -> bool:
    """Whether two URLs have the same scheme, host and port."""
    return _origin(first) == _origin(second)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def request(
    url: str, body: bytes | None = None, secret: Secret | None = None, *, timeout: float, max_bytes: int = MAX_BYTES
) -> Response:
    """Send a POST request with a JSON body, or a GET request without one, and return the response with any status.

    If the server repeats the key in its response, the key is removed, so that no file or message contains it.

    Args:
        url: URL of the request.
        body: JSON in UTF-8.
        secret: key to send as a bearer token.
        timeout: seconds from the connection to the last byte.
        max_bytes: largest accepted size of the response.

    Raises:
        ConfigError: the response is a redirect.
        TransferError: there is no response, or it is too late or too large.
    """
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret.value}"

    async def exchange() -> Response:
        async with _stream("GET" if body is None else "POST", url, headers, body, timeout) as reply:
            if 300 <= reply.status_code < 400:
                target = redact_url(reply.headers.get("Location", "no address"))
                raise ConfigError(f"{redact_url(url)} redirects to {target}; use that URL")
            parts: list[bytes] = []
            async for part in _read(reply, max_bytes):
                parts.append(part)
            content = b"".join(parts)
            if secret is not None and len(secret.value) >= _MIN_KEY:
                content = secret.hidden_in_body(content)
            return Response(reply.status_code, dict(reply.headers), content)

    try:
        return _run_with_timeout(exchange, url, timeout)
    except (ConfigError, TransferError) as error:
        # a server may echo the key; the chained exceptions may contain it, too
        raise type(error)(str(error) if secret is None else secret.hidden_in(str(error))) from None


def download(url: str, file: IO[bytes], *, max_bytes: int, silence: float, timeout: float) -> None:
    """Download a file without a key; follows redirects, but not from HTTPS to HTTP.

    Args:
        url: URL of the file.
        file: file open for writing.
        max_bytes: largest accepted size of the file.
        silence: maximum time in seconds without data from the server.
        timeout: maximum time in seconds for the complete file.

    Raises:
        TransferError: there is no response, or it is too late, too large or truncated.
    """

    async def exchange() -> None:
        address = url
        for _ in range(_REDIRECTS + 1):
            headers = {"Accept-Encoding": "identity"}
            async with _stream("GET", address, headers, None, silence) as reply:
                if reply.has_redirect_location:
                    following = urljoin(address, reply.headers["Location"])
                    if urlsplit(following).scheme not in {"https", urlsplit(address).scheme}:
                        raise TransferError(f"{redact_url(address)} redirects to {redact_url(following)} without TLS")
                    address = following
                    continue
                if reply.status_code != 200:
                    raise TransferError(f"status {reply.status_code} of {redact_url(address)}")
                async for part in _read(reply, max_bytes):
                    file.write(part)
                return
        raise TransferError(f"{redact_url(url)} has more than {_REDIRECTS} redirects")

    _run_with_timeout(exchange, url, timeout)


@cache
def _certificates() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


@asynccontextmanager
async def _stream(
    method: str, url: str, headers: dict[str, str], body: bytes | None, timeout: float
) -> AsyncIterator[httpx2.Response]:
    import httpx2

    async with (
        httpx2.AsyncClient(verify=_certificates(), follow_redirects=False, timeout=timeout) as client,
        client.stream(method, url, headers=headers, content=body) as reply,
    ):
        yield reply


async def _read(reply: httpx2.Response, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield chunks of a response without decompression, which could expand it a thousandfold."""
    if reply.headers.get("Content-Encoding", "identity") != "identity":
        encoding = reply.headers["Content-Encoding"][:20]
        raise TransferError(f"the response is encoded as {encoding!r}, which was not requested")
    count = 0
    async for part in reply.aiter_raw():
        count += len(part)
        if count > max_bytes:
            raise TransferError(f"the response exceeds {max_bytes:,} bytes")
        yield part


def _run_with_timeout(exchange: Callable[[], Coroutine[Any, Any, T]], url: str, timeout: float) -> T:
    """Run an exchange with a limit on its total time, which also stops servers that send a byte at a time."""
    import anyio
    import httpx2

    async def timed() -> T:
        with anyio.fail_after(timeout):
            return await exchange()

    def run() -> T:
        try:
            return anyio.run(timed)
        except httpx2.TimeoutException as error:
            raise TransferError(f"{redact_url(url)} timed out: the server sent no data") from error
        except TimeoutError as error:
            raise TransferError(f"{redact_url(url)} timed out: no complete response after {timeout:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ssl.SSLError) as error:
            raise TransferError(f"{redact_url(url)}: {type(error).__name__}: {error}") from error
        except ConfigError:
            raise
        except (ImportError, ValueError) as error:  # the proxy of HTTP_PROXY or ALL_PROXY cannot be used
            raise ConfigError(f"{redact_url(url)} cannot be opened: {hide_passwords(str(error))}") from error

    # the thread of a notebook already runs an event loop, and a thread can run only one
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()
