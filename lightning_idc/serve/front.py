"""The routes: two files, a chat with two images, the page and its samples. Nothing is ever fetched from elsewhere."""

from __future__ import annotations

import base64
import binascii
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

from lightning_idc.serve.limits import error_body
from lightning_idc.serve.opening import SAMPLES

PAGE = Path(__file__).parent / "page.html"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
Answer = Callable[[bytes, bytes, bool, str | None], Awaitable[dict[str, Any]]]
_YES_OR_NO = {"1": True, "true": True, "0": False, "false": False}


class Refused(Exception):
    """A request that is answered with a status and a sentence.

    Args:
        status: of HTTP.
        text: what was expected.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def add_routes(app: Any, answer: Answer, model: str) -> None:
    """Add everything that the server offers to an application of Starlette.

    Args:
        app: of Starlette or FastAPI.
        answer: answers two images in encoded form.
        model: name that clients are told.
    """

    async def describe(request: Request) -> Response:
        where = request.query_params.get("where", "1")
        if where.lower() not in _YES_OR_NO:
            raise Refused(422, f"where is {where!r}; expected 1 or 0, whether boxes and map are wanted")
        before, after = await _files(request)
        return JSONResponse(await answer(before, after, _YES_OR_NO[where.lower()], None))

    async def chat(request: Request) -> Response:
        before, after, prompt = chat_images(await _json(request))
        found = await answer(before, after, False, prompt)
        return JSONResponse(_completion(found, model))

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "lightning_idc"}]})

    async def page(request: Request) -> Response:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": POLICY})

    # once: a name of a request may be longer than a file system takes
    pictures = {path.relative_to(SAMPLES).as_posix(): path for path in SAMPLES.glob("*/*.png")}

    async def samples(request: Request) -> Response:
        names = sorted({picture.partition("/")[0] for picture in pictures})
        # a captioner that comes with the library knows its own kind of pictures only
        return JSONResponse([name for name in names if name.partition("-")[0] == model] or names)

    async def sample(request: Request) -> Response:
        path = pictures.get(f"{request.path_params['name']}/{request.path_params['side']}.png")
        return FileResponse(path) if path else JSONResponse(error_body("there is no such sample"), 404)

    async def refused(request: Request, error: Any) -> Response:
        return JSONResponse(error_body(str(error)), error.status)

    async def http(request: Request, error: Any) -> Response:
        return JSONResponse(error_body(str(error.detail)), error.status_code)

    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(HTTPException, http)
    add = app.router.add_route
    add("/describe", describe, methods=["POST"])
    add("/v1/chat/completions", chat, methods=["POST"])
    add("/v1/models", models, methods=["GET"])
    add("/samples", samples, methods=["GET"])
    add("/samples/{name}/{side}.png", sample, methods=["GET"])
    add("/", page, methods=["GET"])


async def _files(request: Request) -> tuple[bytes, bytes]:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise Refused(415, "expected multipart/form-data with the files before and after")
    async with request.form(max_files=2, max_fields=8) as form:
        found = [form.get(side) for side in ("before", "after")]
        if not all(isinstance(file, UploadFile) for file in found):
            raise Refused(422, f"expected the files before and after; found {', '.join(form) or 'none'}")
        before, after = [await file.read() for file in found if isinstance(file, UploadFile)]
    return before, after


async def _json(request: Request) -> dict[str, Any]:
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the request is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise Refused(400, "the request is not a JSON object")
    return found


def chat_images(request: dict[str, Any]) -> tuple[bytes, bytes, str | None]:
    """Both images of a chat's last message, and the text beside them.

    Args:
        request: of ``/v1/chat/completions``.

    Raises:
        Refused: there are not two images, or one is not a data URL; addresses are never fetched.
    """
    if request.get("stream"):
        raise Refused(400, "answers are not streamed; leave stream out")
    messages = request.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    urls = [part.get("image_url") for part in parts if part.get("type") == "image_url"]
    addresses = [url.get("url") if isinstance(url, dict) else url for url in urls]
    if len(addresses) != 2:
        raise Refused(422, f"expected two parts of type image_url in the last message; found {len(addresses)}")
    texts = [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]
    if any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
        # a tokenizer fails on it, and with it all requests of the batch
        raise Refused(422, "the text holds half of a character (a lone surrogate); send it as UTF-8")
    before, after = map(_data_url, addresses)
    return before, after, "\n".join(texts) or None


def _data_url(address: Any) -> bytes:
    head, comma, data = address.partition(",") if isinstance(address, str) else ("", "", "")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise Refused(422, "an image is not a data URL (data:image/png;base64,...); addresses are never fetched")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(422, "an image is not base64") from None


def _completion(found: dict[str, Any], model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": found["caption"]}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        "pair": {name: found[name] for name in ("change_score", "changed", "log_prob", "notes")},
    }
