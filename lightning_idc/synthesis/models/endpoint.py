"""Models behind an OpenAI-compatible endpoint, such as vLLM's or SGLang's: requests side by side, repeated and kept."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.synthesis.models.base import CutOff, ModelInterface, TextModel, VisionLanguageModel
from lightning_idc.synthesis.records import encode_image
from lightning_idc.utils import http
from lightning_idc.utils.errors import ConfigError, DataError, check_number, check_positive
from lightning_idc.utils.files import atomic_write, fingerprint, seal, unseal

_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}
"""Statuses after which a request is sent again."""
_LONGEST_WAIT = 60.0
_SETTING = {401, 403, 404, 405}
"""Statuses that no record is the cause of."""


class _Busy(OSError):
    """A server cannot answer now.

    Args:
        said: by it.
        wait: seconds after which it wants to be asked again; 0 where it names none.
    """

    def __init__(self, said: str, wait: int) -> None:
        super().__init__(said)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model answers, and how it is asked.

    Args:
        url: up to and with ``/v1``.
        model: its name there.
        max_tokens: of an answer.
        temperature: 0 for the most probable answer.
        stop: an answer ends before the first of these.
        concurrency: requests at once.
        retries: of a request that failed for a reason that may pass.
        timeout: seconds for one request and its whole answer.
        cache: folder in which answers are kept by request; None to ask anew.
        key: name of the environment variable that holds the key; the key itself stands in no file.
    """

    url: str
    model: str
    max_tokens: int = 128
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    concurrency: int = 16
    retries: int = 5
    timeout: float = 120.0
    cache: str | None = None
    key: str = "OPENAI_API_KEY"

    def __post_init__(self) -> None:
        http.check_url("url", self.url)
        if http.shown(self.url) != self.url:
            raise ConfigError(f"url {http.shown(self.url)!r} goes on with ? or #; expected an address up to /v1")
        check_number("concurrency", self.concurrency, minimum=1)
        check_number("retries", self.retries, minimum=0)
        check_positive("timeout", self.timeout)

    def settings(self) -> dict[str, Any]:
        """What decides an answer; not where the model runs."""
        drawn = {"max_tokens": self.max_tokens, "temperature": self.temperature, "stop": list(self.stop)}
        return {"model": self.model, "endpoint": "openai", **drawn}

    def problem(self) -> str | None:
        """Why the endpoint cannot be asked; None where it lists its models and this is one of them."""
        try:
            found = self._send("models", None)
        except (ConfigError, DataError, OSError) as error:
            return f"the endpoint {self.url} does not answer ({error}); start it, or name another url"
        listed = found.get("data") if isinstance(found, dict) else None
        if not isinstance(listed, list):
            return f"the endpoint {self.url} lists no models, but answered {self.shown(found)}; name another url"
        names = [entry.get("id") for entry in listed if isinstance(entry, dict)]
        if self.model in names:
            return None
        return f"the endpoint {self.url} has no model {self.model!r}; it has {self.shown(names)}"

    def ask(self, contents: Sequence[Any], seeds: Sequence[int] | None = None) -> list[str]:
        """One answer for each content, in order; answers that are kept are not asked for again.

        Args:
            contents: of user messages: texts, or lists of parts.
            seeds: of each request, for endpoints that take them.
        """
        own: Sequence[int | None] = seeds if seeds is not None else [None] * len(contents)
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(self._one, contents, own))

    def draws(
        self, contents: Sequence[Any], seeds: Sequence[int], count: int, options: Mapping[str, Any]
    ) -> list[list[dict[str, Any]]]:
        """``count`` choices for each content, as the server gives them, drawn anew whatever is kept.

        Args:
            contents: as of :meth:`ask`.
            seeds: of each request.
            count: choices for each content; a server that gives fewer is asked for those that are missing.
            options: further fields of each request, which win over those of the endpoint.

        Raises:
            DataError: an answer holds no choice.
        """
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(lambda content, seed: self._draw(content, seed, count, options), contents, seeds))

    def _draw(self, content: Any, seed: int, count: int, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            request = {**self._request(content, seed + len(found)), **options, "n": count - len(found)}
            reply = self._patiently(partial(self._send, "chat/completions", request))
            given = reply.get("choices") if isinstance(reply, dict) else None
            if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
                raise DataError(f"the endpoint {self.url} answered {self.shown(reply)!r}; expected choices")
            found += given
        return found[:count]

    def load(self, url: str, body: Mapping[str, Any]) -> None:
        """Ask the server to take over weights; another server than the endpoint's does not get its key.

        Args:
            url: of the request.
            body: of the request, as JSON.
        """
        self._patiently(lambda: self._post(url, body))

    def shown(self, answer: Any) -> str:
        """Start of an answer for messages, without the key, which a server may repeat."""
        text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
        secret = http.Secret.of_environment(self.key)
        return (text if secret is None else secret.hidden_in(text))[:200]

    def _request(self, content: Any, seed: int | None) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            **({"stop": list(self.stop)} if self.stop else {}),
            **({"seed": seed} if seed is not None else {}),
        }

    def _one(self, content: Any, seed: int | None) -> str:
        request = self._request(content, seed)
        file = None if self.cache is None else Path(self.cache).expanduser() / f"{fingerprint(request)}.json"
        if file is not None and (answer := _kept_answer(file)) is not None:
            return answer
        answer = self._answer(self._patiently(lambda: self._send("chat/completions", request)))
        if file is not None and answer:
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, seal({"answer": answer, "cut_off": isinstance(answer, CutOff)}))
        return answer

    def _answer(self, found: Any) -> str:
        try:
            choice = found["choices"][0]
            answer = choice["message"]["content"] or ""
        except (KeyError, IndexError, TypeError):
            answer = None
        if not isinstance(answer, str):
            raise DataError(f"the endpoint answered {self.shown(found)!r}; expected choices with a message of text")
        # half of a surrogate, as a limit of tokens leaves it of an emoji, cannot be written in UTF-8
        answer = answer.encode("utf-8", "replace").decode()
        return CutOff(answer) if choice.get("finish_reason") == "length" else answer

    def _patiently(self, send: Callable[[], Any]) -> Any:
        for trial in range(self.retries + 1):
            try:
                return send()
            except OSError as error:
                failure = error
            if trial < self.retries:
                wait = failure.wait if isinstance(failure, _Busy) else 0
                time.sleep(min(_LONGEST_WAIT, max(wait, 0.5 * 2**trial)))
        raise ConfigError(
            f"the endpoint {self.url} did not answer {self.retries + 1} requests in a row ({failure}); start it "
            "again, and continue"
        ) from failure

    def _send(self, path: str, request: dict[str, Any] | None) -> Any:
        """Send one request.

        Raises:
            ConfigError: a status that no record is the cause of.
            DataError: the request was refused.
            OSError: it may be sent again.
        """
        data = self._post(f"{self.url.rstrip('/')}/{path}", request).body
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            start = self.shown(data)
            raise OSError(f"it answered {start!r}, which is not JSON") from error

    def _post(self, url: str, body: Mapping[str, Any] | None) -> http.Answer:
        """Answer to a request; raises as :meth:`_send`."""
        secret = http.Secret.of_environment(self.key) if http.same_origin(url, self.url) else None
        data = None if body is None else json.dumps(body).encode()
        answer = http.request(url, data, secret, timeout=self.timeout)
        if answer.status < 300:
            return answer
        problem = f"status {answer.status}: {self.shown(answer.body)}"
        if answer.status in _AGAIN:
            wait = answer.headers.get("retry-after", "")  # seconds, or a date, which is not read
            raise _Busy(problem, int(wait[:6]) if wait.isdecimal() else 0)
        if answer.status in _SETTING:
            raise ConfigError(f"{http.shown(url)} answers with {problem}; check url and {self.key}")
        raise DataError(f"{http.shown(url)} refused a request with {problem}")


def _kept_answer(file: Path) -> str | None:
    """An answer as it was kept; None where there is none, or its file is damaged, so that it is asked for anew."""
    try:
        content = unseal(file.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError):
        return None
    answer, cut_off = content.get("answer"), content.get("cut_off")
    if not isinstance(answer, str) or not isinstance(cut_off, bool):
        return None
    return CutOff(answer) if cut_off else answer


class _Remote(ModelInterface):
    """A model behind an endpoint.

    Args:
        endpoint: where and how.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self.endpoint = endpoint

    def settings(self) -> dict[str, Any]:
        return self.endpoint.settings()

    def requirements(self) -> list[str]:
        problem = self.endpoint.problem()
        return [problem] if problem else []


class EndpointText(_Remote, TextModel):
    """A language model behind an endpoint."""

    def answer(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        return self.endpoint.ask(prompts, seeds)


class EndpointVision(_Remote, VisionLanguageModel):
    """A vision-language model behind an endpoint; pictures are sent as PNG."""

    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        return self.endpoint.ask(
            [
                [*map(image_part, shown), {"type": "text", "text": prompt}]
                for shown, prompt in zip(images, prompts, strict=True)
            ]
        )


def image_part(image: Tensor) -> dict[str, Any]:
    """Part of a user message that shows a picture, as PNG."""
    data = base64.b64encode(encode_image(image)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
