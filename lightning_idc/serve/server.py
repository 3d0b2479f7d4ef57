"""make_app: the HTTP application with an endpoint for two files, a chat endpoint, a web page and samples.

URLs in requests are never fetched.
"""

from __future__ import annotations

import base64
import binascii
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from pydantic import AfterValidator, BaseModel, Field
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from lightning_idc import __version__
from lightning_idc.serve.batcher import Batcher, ImagePair
from lightning_idc.serve.describer import Describer
from lightning_idc.serve.limits import Limits, error_body
from lightning_idc.serve.opening import SAMPLES

PAGE = Path(__file__).parent / "page.html"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def _encodable(text: str) -> str:
    text.encode()  # an unpaired surrogate would make the tokenizer fail for the batch
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class ImageURL(BaseModel):
    """An image of a chat, as a data URL."""

    url: str


class Part(BaseModel):
    """A part of a chat message: a text or an image."""

    type: str
    text: Text = ""
    image_url: ImageURL | str | None = None


class ChatMessage(BaseModel):
    """A message of a chat."""

    content: str | list[Part] = ""


class Chat(BaseModel):
    """A chat completion request in OpenAI's format; further fields are ignored."""

    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False

    def pair(self) -> ImagePair:
        """Both images of the last message, and its text.

        Raises:
            HTTPException: the number of images is not two, or one is not a data URL.
        """
        content = self.messages[-1].content
        parts = content if isinstance(content, list) else []
        urls = [part.image_url for part in parts if part.type == "image_url"]
        if len(urls) != 2:
            raise HTTPException(422, f"the last message has {len(urls)} parts of type image_url; expected two")
        before, after = (_decoded(url.url if isinstance(url, ImageURL) else url or "") for url in urls)
        prompt = "\n".join(part.text for part in parts if part.type == "text")
        return ImagePair(before, after, where=False, prompt=prompt or None)


def make_app(
    describer: Describer,
    model: str,
    *,
    batch_size: int,
    max_bytes: int,
    timeout: float,
    answer_timeout: float,
    max_requests: int = 256,
    max_total: int = 256_000_000,
    hosts: Sequence[str],
) -> FastAPI:
    """Create the application.

    Args:
        describer: captioner or rules.
        model: name of the captioner for clients.
        batch_size: maximum number of pairs per batch.
        max_bytes: maximum size of a request.
        timeout: maximum seconds for receiving a request.
        answer_timeout: maximum seconds for an answer.
        max_requests: maximum number of concurrent requests.
        max_total: maximum size of all requests in memory; further ones wait.
        hosts: accepted host names; others indicate DNS rebinding by a web page.
    """
    batcher = Batcher(describer, batch_size, answer_timeout)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with batcher:
            yield

    # the documentation pages would load scripts from a CDN
    app = FastAPI(title="lightning_idc", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Limits, max_bytes=max_bytes, seconds=timeout, max_requests=max_requests, max_total=max_total)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))

    @app.exception_handler(AnyHTTPException)
    async def http_error(request: Request, error: AnyHTTPException) -> JSONResponse:
        return JSONResponse(error_body(str(error.detail)), error.status_code)

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        texts = [f"{'.'.join(map(str, item['loc'][1:])) or 'the request'}: {item['msg']}" for item in error.errors()]
        return JSONResponse(error_body("; ".join(texts)), 422)

    @app.post("/describe")
    async def describe(before: UploadFile, after: UploadFile, where: bool = True) -> dict[str, Any]:
        """Describe and locate the change between two image files."""
        return await batcher.answer(ImagePair(await before.read(), await after.read(), where, None))

    @app.post("/v1/chat/completions")
    async def chat(request: Chat) -> dict[str, Any]:
        """Answer a chat whose last message has two images."""
        if request.stream:
            raise HTTPException(400, "answers are not streamed; leave stream out")
        return _completion(await batcher.answer(request.pair()), model)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The name of the captioner."""
        return {"object": "list", "data": [{"id": model, "object": "model", "owned_by": "lightning_idc"}]}

    @app.get("/health", response_class=PlainTextResponse)
    async def health() -> str:
        """Whether the captioner is loaded."""
        return "ok"

    @app.get("/samples")
    async def samples() -> list[str]:
        """Names of sample pairs."""
        names = sorted(folder.name for folder in SAMPLES.iterdir() if folder.is_dir())
        # a shipped captioner only describes images of its domain
        return [name for name in names if name.partition("-")[0] == model] or names

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE, headers={"Content-Security-Policy": POLICY})

    app.mount("/samples", StaticFiles(directory=SAMPLES))
    return app


def _decoded(address: str) -> bytes:
    """Content of a data URL."""
    head, _, data = address.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise HTTPException(422, "an image is not a data URL (data:image/png;base64,...); URLs are never fetched")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise HTTPException(422, "an image is not base64") from None


def _completion(answer: dict[str, Any], model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer["caption"]}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        "pair": {name: answer[name] for name in ("change_score", "changed", "log_prob", "notes")},
    }
