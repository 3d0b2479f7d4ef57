"""Answers over HTTP: LitServe's workers behind a front that refuses what is malformed, too large or too slow."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import litserve
import litserve.server
from litserve.server import RegularRequestHandler

from lightning_idc.serve.front import Refused, add_routes
from lightning_idc.serve.limits import Limits
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.utils.children import end_with_parent
from lightning_idc.utils.errors import IDCError
from lightning_idc.utils.text import printable

if TYPE_CHECKING:
    from lightning_idc.images.types import PairSample
    from lightning_idc.models.captioner import PairCaptioner

# LitServe 0.2.19 starts an MCP server of its own wherever the package mcp is installed, with names that it only imports
# beside fastmcp, and fails; ours is `lightning-idc mcp`
litserve.server._MCP_AVAILABLE = False

PATH = "/pairs"
"""Name of the worker's queue; the front has the routes."""


class PairAPI(litserve.LitAPI):
    """Answers pairs in a process of its own; one that cannot be read is answered so, beside the others of its batch.

    Args:
        options: of the captioner.
        batch_size: most pairs that are answered at once.
    """

    def __init__(self, options: ModelOptions, batch_size: int = 8) -> None:
        super().__init__(max_batch_size=batch_size, batch_timeout=0.01, api_path=PATH)
        self.options = options
        self.captioner: PairCaptioner | None = None

    def setup(self, device: str) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the server, which then ends its workers
        end_with_parent()
        options = replace(self.options, device=device) if self.options.device == "auto" else self.options
        try:
            self.captioner = options.open()
        except IDCError as error:
            # one sentence instead of LitServe's traceback; LitServe has to see the error, or the server waits on
            print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
            logging.getLogger("litserve").setLevel(logging.CRITICAL + 1)
            raise

    def predict(self, x: Any, **kwargs: Any) -> Any:
        """Answers of a batch, as plain values; ``error`` or ``failed`` in place of one that could not be given."""
        requests = x if isinstance(x, list) else [x]
        assert self.captioner is not None
        found: list[dict[str, Any]] = [{} for _ in requests]
        groups: dict[tuple[Any, ...], list[tuple[int, PairSample]]] = {}
        for place, request in enumerate(requests):
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always", UserWarning)
                    sample = self.captioner.input_spec.read(request["before"], request["after"])
            except Exception as error:  # whatever a hostile file does concerns its own request alone
                text = str(error) if isinstance(error, IDCError) else f"{type(error).__name__} while reading an image"
                found[place] = {"error": text}
                continue
            found[place]["notes"] = [str(note.message) for note in caught]
            key = (*sample.before.shape, request["where"], request["prompt"])
            groups.setdefault(key, []).append((place, sample))
        for key, members in groups.items():
            answers = self._each_answered([sample for _, sample in members], key[-2], key[-1])
            for (place, _), answer in zip(members, answers, strict=True):
                found[place].update(answer)
        return found if isinstance(x, list) else found[0]

    def _each_answered(self, samples: Sequence[PairSample], where: bool, prompt: str | None) -> list[dict[str, Any]]:
        """Answers of a group; where it fails as one, each pair is answered alone, so that it fails alone."""
        try:
            return self._answers(samples, where, prompt)
        except Exception as error:
            if len(samples) > 1:
                return [self._each_answered([sample], where, prompt)[0] for sample in samples]
            if isinstance(error, IDCError):
                return [{"error": str(error)}]
            logging.getLogger(__name__).exception("a pair was not answered")
            return [{"failed": f"{type(error).__name__} while answering; the server's log says more"}]

    def _answers(self, samples: Sequence[PairSample], where: bool, prompt: str | None) -> list[dict[str, Any]]:
        from lightning_idc.models.vlm.module import VLMCaptioner
        from lightning_idc.serve.answers import answer_pairs
        from lightning_idc.utils.files import finite

        captioner = self.captioner
        assert captioner is not None
        own = captioner.hparams.get("prompt")
        if prompt and isinstance(captioner, VLMCaptioner):
            captioner.hparams["prompt"] = prompt
        try:
            return [finite(answer.as_dict()) for answer in answer_pairs(captioner, samples, where)]
        finally:
            if isinstance(captioner, VLMCaptioner):
                captioner.hparams["prompt"] = own


def make_server(
    options: ModelOptions,
    batch_size: int,
    queue: int,
    max_mb: float,
    timeout: float,
    answer_timeout: float,
    hosts: Sequence[str],
) -> litserve.LitServer:
    """A server that is ready to run.

    Args:
        options: of the captioner.
        batch_size: most pairs that are answered at once.
        queue: requests that may be under way; further ones are refused.
        max_mb: of a request.
        timeout: seconds that a request may take to arrive.
        answer_timeout: seconds that an answer may take.
        hosts: names by which the server may be called; others are those of a page that abuses a browser.
    """
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    api = PairAPI(options, batch_size)
    server = litserve.LitServer(
        api,
        accelerator="auto" if options.device == "auto" else "cpu",  # a device that is named is opened by the worker
        devices="auto" if options.device == "auto" else 1,
        timeout=answer_timeout,
        disable_openapi_url=True,
        middlewares=[
            (Limits, {"queue": queue, "max_bytes": int(max_mb * 1e6), "seconds": timeout}),
            (TrustedHostMiddleware, {"allowed_hosts": list(hosts)}),
        ],
    )
    handler = RegularRequestHandler(api, server)

    async def answer(before: bytes, after: bytes, where: bool, prompt: str | None) -> dict[str, Any]:
        request = {"before": before, "after": after, "where": where, "prompt": prompt}
        try:
            found: dict[str, Any] = await asyncio.wait_for(handler.handle_request(request, dict), answer_timeout)
        except asyncio.TimeoutError:
            raise Refused(503, f"no answer within {answer_timeout:g} seconds; try again later") from None
        if "error" in found:
            raise Refused(422, found["error"])
        if "failed" in found:
            raise Refused(500, found["failed"])
        return found

    # LitServe's own start page and the route of its queue make room for ours
    kept = [route for route in server.app.router.routes if getattr(route, "path", "") not in ("/", PATH)]
    server.app.router.routes[:] = kept
    add_routes(server.app, answer, options.model or "clevr")
    return server
