"""Batcher: answers concurrent requests as one batch, in a thread outside the event loop."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException

from lightning_idc.images.raw import MAX_PIXELS
from lightning_idc.images.types import PairSample
from lightning_idc.serve.describer import Describer
from lightning_idc.utils.errors import IDCError
from lightning_idc.utils.files import finite

WAIT = 0.01
"""Seconds to wait for further pairs of a batch."""


@dataclass(frozen=True)
class ImagePair:
    """Two image files of a request.

    Args:
        before: content of the first file.
        after: content of the second file.
        where: whether to locate the change.
        prompt: prompt about the pair; ignored by captioners without prompts.
    """

    before: bytes
    after: bytes
    where: bool
    prompt: str | None


Outcome = dict[str, Any] | HTTPException
"""Answer as plain values, or the error of a pair."""


class Batcher:
    """Collects pairs into batches; a context manager of the server's event loop.

    Args:
        describer: captioner or rules.
        batch_size: maximum number of pairs per batch.
        timeout: maximum seconds for an answer.
    """

    def __init__(self, describer: Describer, batch_size: int, timeout: float) -> None:
        self.describer, self.batch_size, self.timeout = describer, batch_size, timeout

    async def __aenter__(self) -> None:
        self._waiting: dict[asyncio.Future[Outcome], ImagePair] = {}
        self._arrived = asyncio.Event()
        self._worker = asyncio.create_task(self._work())

    async def __aexit__(self, *error: object) -> None:
        self._worker.cancel()

    async def answer(self, pair: ImagePair) -> dict[str, Any]:
        """Answer to one pair, as plain values.

        Raises:
            HTTPException: the pair cannot be read or answered, or the answer took too long.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[future] = pair
        self._arrived.set()
        try:
            outcome = await asyncio.wait_for(future, self.timeout)
        except asyncio.TimeoutError:
            raise HTTPException(503, f"no answer within {self.timeout:g} seconds; try again later") from None
        finally:
            self._waiting.pop(future, None)  # a client that left takes no more time and memory
        if isinstance(outcome, HTTPException):
            raise outcome
        return outcome

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(WAIT)
            futures = list(self._waiting)[: self.batch_size]
            batch = {future: self._waiting.pop(future) for future in futures}
            if not self._waiting:
                self._arrived.clear()
            if not batch:  # all clients have left
                continue
            outcomes = await asyncio.to_thread(self.answers, list(batch.values()))
            for future, outcome in zip(batch, outcomes, strict=True):
                if not future.done():
                    future.set_result(outcome)

    def answers(self, pairs: Sequence[ImagePair]) -> list[Outcome]:
        """Answers to a batch; errors of a pair do not affect the others."""
        outcomes: list[Outcome] = [{} for _ in pairs]
        groups: dict[tuple[Any, ...], list[tuple[int, PairSample]]] = {}
        pixels = 0
        for index, pair in enumerate(pairs):
            if pixels > MAX_PIXELS:  # large images are not held in memory together
                self._answer_groups(groups, outcomes)
                groups, pixels = {}, 0
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always", UserWarning)
                    sample = self.describer.input_spec.read(pair.before, pair.after)
            except Exception as error:  # a malicious file must only fail its own request
                text = str(error) if isinstance(error, IDCError) else f"{type(error).__name__} while reading an image"
                outcomes[index] = HTTPException(422, text)
                continue
            outcomes[index] = {"notes": [str(note.message) for note in caught]}
            pixels += sample.before[0].numel() + sample.after[0].numel()
            groups.setdefault((*sample.before.shape, pair.where, pair.prompt), []).append((index, sample))
        self._answer_groups(groups, outcomes)
        return outcomes

    def _answer_groups(
        self, groups: Mapping[tuple[Any, ...], Sequence[tuple[int, PairSample]]], outcomes: list[Outcome]
    ) -> None:
        """Fill in the answers to pairs, which are grouped by size, ``where`` and prompt."""
        for (*_, where, prompt), members in groups.items():
            group = self._answers_of_group([sample for _, sample in members], where, prompt)
            for (index, _), outcome in zip(members, group, strict=True):
                notes = outcomes[index]
                if isinstance(notes, dict) and isinstance(outcome, dict):
                    outcome = {**notes, **outcome}
                outcomes[index] = outcome

    def _answers_of_group(self, samples: Sequence[PairSample], where: bool, prompt: str | None) -> list[Outcome]:
        """Answers to pairs of one size; if the batch fails, each pair is answered separately."""
        try:
            return self._answers(samples, where, prompt)
        except Exception as error:
            if len(samples) > 1:
                return [self._answers_of_group([sample], where, prompt)[0] for sample in samples]
            if isinstance(error, IDCError):
                return [HTTPException(422, str(error))]
            logging.getLogger(__name__).exception("a pair was not answered")
            return [HTTPException(500, f"{type(error).__name__} while answering; see the log of the server")]

    def _answers(self, samples: Sequence[PairSample], where: bool, prompt: str | None) -> list[Outcome]:
        # chat clients always send text, also to captioners without prompts
        if prompt and self.describer.takes_prompt:
            samples = self.describer.with_prompt(samples, prompt)
        return [finite(answer.as_dict()) for answer in self.describer.answer(samples, where)]
