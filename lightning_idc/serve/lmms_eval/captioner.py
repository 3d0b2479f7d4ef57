"""LmmsCaptioner: a captioner of this library as a model of lmms-eval. Needs the package lmms-eval."""

from __future__ import annotations

from typing import Any

from lmms_eval.api.model import lmms

from lightning_idc.serve.opening import load
from lightning_idc.utils.errors import ConfigError


class LmmsCaptioner(lmms):  # type: ignore[misc]
    """Answers requests with two images by a captioner, with or without adapters.

    Args:
        pretrained: checkpoint, folder, hub id or name of a shipped captioner, as for :func:`lightning_idc.load`.
        device: device; ``auto`` takes a GPU if there is one.
        batch_size: accepted for compatibility; pairs are described one by one.
        options: further arguments of :func:`lightning_idc.load`, such as ``dtype`` or ``prompt``.
    """

    is_simple = True

    def __init__(self, pretrained: str, device: str | None = "auto", batch_size: int | str = 1, **options: Any) -> None:
        super().__init__()
        # lmms-eval passes its own limit, which the captioner's decoding has too
        options.pop("max_batch_size", None)
        self.captioner = load(pretrained, device or "auto", **options)

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Captions of the requests.

        Raises:
            ConfigError: a request has other than two images.
        """
        return [self._answer(*request.args) for request in requests]

    def _answer(self, context: str, _: Any, doc_to_visual: Any, doc_id: int, task: str, split: str) -> str:
        images = doc_to_visual(self.task_dict[task][split][doc_id])
        if len(images) != 2:
            raise ConfigError(f"{task}, document {doc_id}, has {len(images)} images; expected two: before and after")
        # a captioner without prompts knows its task
        options = {"prompt": context} if self.captioner.takes_prompt else {}
        return self.captioner.describe(*images, **options).text

    def generate_until_multi_round(self, requests: list[Any]) -> list[str]:
        """Not supported.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("captioners answer one question per pair; expected a task of type generate_until")

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Not supported.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("captioners generate texts; expected a task of type generate_until")
