"""A server with the API of vLLM that runs a tiny captioner on loopback."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch
from PIL import Image

from lightning_idc.images.types import PairSample
from lightning_idc.models.captioner import PairCaptioner


def decoded(part: dict[str, Any]) -> torch.Tensor:
    """Decoded image of a message part, uint8 ``(3, H, W)``."""
    data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data)))).permute(2, 0, 1)


class PolicyServer:
    """Samples captions from the weights it has loaded, with the same random numbers as the policy in process.

    Args:
        opened: returns the captioner for a request to load weights.
    """

    def __init__(self, opened: Callable[[dict[str, Any]], PairCaptioner]) -> None:
        self.opened = opened
        self.net: PairCaptioner | None = None
        self.loaded: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.answers_left = self.loads_left = 10**9
        self.change: Callable[[dict[str, Any]], None] = lambda choice: None
        self.most = 10**9
        self.delay = 0.0
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.reply({"data": [{"id": "policy"}]})

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                threading.Event().wait(server.delay)
                if self.path == "/load":
                    server.loads_left -= 1
                    self.reply(server.load(request) if server.loads_left >= 0 else None)
                    return
                server.requests.append(request)
                server.answers_left -= 1
                self.reply(server.choices(request) if server.answers_left >= 0 else None)

            def reply(self, value: Any) -> None:
                data = json.dumps(value).encode()
                try:
                    self.send_response(503 if value is None else 200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # the client has closed the connection

        return Handler

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        self.net = self.opened(request).eval()
        self.loaded += [value for value in request.values() if "step-" in str(value)]
        return {}

    @torch.no_grad()
    def choices(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.net is not None
        parts = request["messages"][0]["content"]
        before, after = (decoded(part) for part in parts if part["type"] == "image_url")
        for part in parts:
            if part["type"] == "text":
                self.net.hparams["prompt"] = part["text"]
        batch = self.net.collate([PairSample("asked", before, after)])
        features = self.net.encode(batch)
        asked, count = request["n"], min(request["n"], self.most)
        chance = torch.rand(asked, request["max_tokens"], generator=torch.Generator().manual_seed(request["seed"]))
        drawn = self.net.decoder.sample(
            features, count, request["temperature"], request["top_p"], uniforms=chance[:count]
        )
        special, found = self.net.built_vocabulary.special, []
        for ids in drawn.ids:
            known = self.net.log_probs(features, torch.tensor([[[special.bos, *ids]]]))[0, 0, 1:].tolist()
            choice = {
                "message": {"content": self.net.built_vocabulary.decode(ids)},
                "finish_reason": "stop" if ids[-1] in special.ends else "length",
                "token_ids": ids,
                "logprobs": {"content": [{"token": str(i), "logprob": v} for i, v in zip(ids, known, strict=True)]},
            }
            self.change(choice)
            found.append(choice)
        return {"choices": found}
