"""Models behind an OpenAI-compatible endpoint, such as vLLM or SGLang: concurrent requests with retries and a cache."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.synthesis.models.base import ModelInterface, TextModel, VisionLanguageModel
from lightning_idc.synthesis.records import encode_image
from lightning_idc.utils import http
from lightning_idc.utils.answers import CutOff, read_answer
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, check_fields
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.files import atomic_write, fingerprint, seal, unseal

_RETRIED_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504}
"""Status codes after which a request is retried."""
_MAX_WAIT = 60.0
_CONFIG_STATUSES = {401, 403, 404, 405}
"""Status codes that indicate a wrong configuration rather than a bad record."""


def text_of(choice: Mapping[str, Any]) -> str | None:
    """Text of a choice in a chat completion: empty for no content, as after a thought; None if it is not a text.

    Args:
        choice: entry of ``choices``.

    Raises:
        KeyError: there is no message.
        TypeError: the choice or its message has another form.
    """
    content = choice["message"]["content"]
    return "" if content is None else content if isinstance(content, str) else None


class _Busy(OSError):
    """The server is temporarily unavailable.

    Args:
        message: message with the response.
        wait: seconds to wait as requested by the server; 0 if unspecified.
    """

    def __init__(self, message: str, wait: int) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Client of a model behind an OpenAI-compatible endpoint.

    Args:
        url: base URL, including ``/v1``.
        model: name of the model at the endpoint.
        max_tokens: largest number of tokens of an answer.
        temperature: sampling temperature; 0 for greedy decoding.
        stop: strings that end an answer.
        concurrency: largest number of concurrent requests.
        retries: number of retries after temporary failures.
        timeout: seconds for one request and its complete response.
        cache: folder for cached answers; None to disable the cache.
        key: name of the environment variable with the API key; the key itself is never stored.
    """

    url: str
    model: str
    max_tokens: PositiveInt = 128
    temperature: NonNegativeFloat = 0.0
    stop: tuple[str, ...] = ()
    concurrency: PositiveInt = 16
    retries: NonNegativeInt = 5
    timeout: PositiveFloat = 120.0
    cache: str | None = None
    key: str = "OPENAI_API_KEY"

    def __post_init__(self) -> None:
        check_fields(self)
        if not re.fullmatch("[A-Z_][A-Z0-9_]*", self.key):
            raise ConfigError(
                "key is not the name of an environment variable, such as OPENAI_API_KEY; expected the name, and the "
                "key itself in that variable"
            )
        http.check_url("url", self.url)
        if "?" in self.url or "#" in self.url:
            raise ConfigError(
                f"url {http.redact_url(self.url)!r} has a query or a fragment; expected a base URL up to /v1"
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings that determine answers, without the location of the model."""
        sampling = {"max_tokens": self.max_tokens, "temperature": self.temperature, "stop": list(self.stop)}
        return {"model": self.model, "endpoint": "openai", **sampling}

    def problem(self) -> str | None:
        """Return the reason why the endpoint cannot be used; None if it lists this model."""
        try:
            response = self._send("models", None)
        except (ConfigError, DataError, OSError) as error:
            return f"the endpoint {self.url} does not respond ({error}); start it, or set another url"
        listed = response.get("data") if isinstance(response, dict) else None
        if not isinstance(listed, list):
            return f"the endpoint {self.url} does not list its models: {self.redacted(response)}; set another url"
        names = [entry.get("id") for entry in listed if isinstance(entry, dict)]
        if self.model in names:
            return None
        return f"the endpoint {self.url} has no model {self.model!r}; it has {self.redacted(names)}"

    def ask(self, contents: Sequence[Any], seeds: Sequence[int] | None = None) -> list[str]:
        """Generate one answer for each content, in order, from the cache if possible.

        Args:
            contents: contents of user messages, as texts or lists of parts.
            seeds: seed of each request, for endpoints that support seeds.
        """
        request_seeds: Sequence[int | None] = seeds if seeds is not None else [None] * len(contents)
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(self._cached_request, contents, request_seeds))

    def sample(
        self, contents: Sequence[Any], seeds: Sequence[int], count: int, options: Mapping[str, Any]
    ) -> list[list[dict[str, Any]]]:
        """Sample ``count`` choices for each content, in the format of the server and without the cache.

        Args:
            contents: contents of user messages, see :meth:`ask`.
            seeds: seed of each request.
            count: number of choices per content; if a response contains fewer, further requests follow.
            options: further fields of each request, which override those of the endpoint.

        Raises:
            DataError: a response contains no choices.
        """
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(
                pool.map(lambda content, seed: self._sample_one(content, seed, count, options), contents, seeds)
            )

    def _sample_one(self, content: Any, seed: int, count: int, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        choices: list[dict[str, Any]] = []
        while len(choices) < count:
            request = {**self._request(content, seed + len(choices)), **options, "n": count - len(choices)}
            reply = self._with_retries(partial(self._send, "chat/completions", request))
            new_choices = reply.get("choices") if isinstance(reply, dict) else None
            if (
                not isinstance(new_choices, list)
                or not new_choices
                or not all(isinstance(choice, dict) for choice in new_choices)
            ):
                raise DataError(f"the endpoint {self.url} responded {self.redacted(reply)!r}; expected choices")
            choices += new_choices
        return choices[:count]

    def load(self, url: str, body: Mapping[str, Any]) -> None:
        """Request the server to load weights; the key is sent only to the origin of the endpoint.

        Args:
            url: URL of the request.
            body: JSON body of the request.
        """
        self._with_retries(lambda: self._post(url, body))

    def redacted(self, answer: Any) -> str:
        """Format the start of a response for messages, without the key, which a server may echo."""
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

    def _cached_request(self, content: Any, seed: int | None) -> str:
        request = self._request(content, seed)
        file = None if self.cache is None else Path(self.cache).expanduser() / f"{fingerprint(request)}.json"
        if file is not None and (answer := _read_cached_answer(file)) is not None:
            return answer
        answer = self._answer(self._with_retries(lambda: self._send("chat/completions", request)))
        if file is not None and answer:
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, seal({"answer": answer, "cut_off": isinstance(answer, CutOff)}))
        return answer

    def _answer(self, response: Any) -> str:
        try:
            choice = response["choices"][0]
            text = text_of(choice)
        except (KeyError, IndexError, TypeError):
            text = None
        if text is None:
            raise DataError(f"the endpoint responded {self.redacted(response)!r}; expected choices with a text message")
        return read_answer(text, choice.get("finish_reason") == "length")

    def _with_retries(self, send: Callable[[], Any]) -> Any:
        for trial in range(self.retries + 1):
            try:
                return send()
            except OSError as error:
                failure = error
            if trial < self.retries:
                wait = failure.wait if isinstance(failure, _Busy) else 0
                time.sleep(min(_MAX_WAIT, max(wait, 0.5 * 2**trial)))
        raise ConfigError(
            f"the endpoint {self.url} did not respond to {self.retries + 1} requests in a row ({failure}); "
            "restart it, and resume the run"
        ) from failure

    def _send(self, path: str, request: dict[str, Any] | None) -> Any:
        """Send one request and parse the response.

        Raises:
            ConfigError: the status indicates a wrong configuration.
            DataError: the server rejected the request.
            OSError: the request failed temporarily and can be retried.
        """
        data = self._post(f"{self.url.rstrip('/')}/{path}", request).body
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            start = self.redacted(data)
            raise OSError(f"the response {start!r} is not JSON") from error

    def _post(self, url: str, body: Mapping[str, Any] | None) -> http.Response:
        """Send one request; raises the errors of :meth:`_send`."""
        secret = http.Secret.of_environment(self.key) if http.same_origin(url, self.url) else None
        data = None if body is None else json.dumps(body).encode()
        answer = http.request(url, data, secret, timeout=self.timeout)
        if answer.status < 300:
            return answer
        problem = f"status {answer.status}: {self.redacted(answer.body)}"
        if answer.status in _RETRIED_STATUSES:
            wait = answer.headers.get("retry-after", "")  # in seconds; a date is ignored
            raise _Busy(problem, int(wait[:6]) if wait.isdecimal() else 0)
        if answer.status in _CONFIG_STATUSES:
            raise ConfigError(f"{http.redact_url(url)} responds with {problem}; check url and {self.key}")
        raise DataError(f"{http.redact_url(url)} rejected a request with {problem}")


def _read_cached_answer(file: Path) -> str | None:
    """Read a cached answer; None if the file is missing or damaged."""
    try:
        content = unseal(file.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError):
        return None
    answer, cut_off = content.get("answer"), content.get("cut_off")
    if not isinstance(answer, str) or not isinstance(cut_off, bool):
        return None
    return CutOff(answer) if cut_off else answer


class _Remote(ModelInterface):
    """Base of models behind an endpoint.

    Args:
        endpoint: client of the endpoint.
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
    """Language model behind an endpoint."""

    def answer(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        return self.endpoint.ask(prompts, seeds)


class EndpointVision(_Remote, VisionLanguageModel):
    """Vision-language model behind an endpoint; images are sent as PNG."""

    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        return self.endpoint.ask(
            [
                [*map(image_part, prompt_images), {"type": "text", "text": prompt}]
                for prompt_images, prompt in zip(images, prompts, strict=True)
            ]
        )


def image_part(image: Tensor) -> dict[str, Any]:
    """Build the part of a user message with an image as PNG."""
    data = base64.b64encode(encode_image(image)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
