"""ServerWeights: brings the weights of a policy in training to the server that draws its captions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer

from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_object, is_rank_zero
from lightning_idc.synthesis.models.endpoint import Endpoint
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.http import check_url
from lightning_idc.utils.outputs import Output

PLACE = "{folder}"
_OUTPUT = "weights for a server"


class ServerWeights:
    """Writes the weights to a folder every so many optimizer steps, and asks the server to load them.

    The request is answered when the weights are loaded, and training waits for it. vLLM takes LoRA adapters (layout
    ``adapters``) at ``/v1/load_lora_adapter`` with ``VLLM_ALLOW_RUNTIME_LORA_UPDATING`` set; SGLang takes whole models
    (layout ``model``) at ``/update_weights_from_disk``.

    Args:
        folder: in which each set of weights gets a folder; the server reads it under the same path.
        url: of the request that makes the server load them.
        body: of that request; ``{folder}`` in its texts stands for the folder that was written.
        every: optimizer steps between two of them.
        layout: ``adapters`` as ``save_adapters`` writes them, LoRA as PEFT has it in the folder ``lora``; ``model`` for
            transformers; ``captioner`` for ``save_pretrained``.

    Raises:
        ConfigError: ``every`` is below 1, or the body does not name the folder.

    Example:
        >>> ServerWeights("weights", "http://localhost:8000/v1/load_lora_adapter", {"lora_path": "{folder}/lora"}).every
        1
    """

    def __init__(
        self,
        folder: str,
        url: str,
        body: Mapping[str, Any],
        every: int = 1,
        layout: Literal["adapters", "model", "captioner"] = "adapters",
    ) -> None:
        if every < 1:
            raise ConfigError(f"every is {every}; expected at least 1 optimizer step")
        if not any(isinstance(value, str) and PLACE in value for value in body.values()):
            raise ConfigError(f"the body {dict(body)} does not name the weights; put {PLACE} where the server reads it")
        check_url("url", url)
        self.folder, self.url, self.body = Path(folder).expanduser().absolute(), url, dict(body)
        self.every, self.layout = every, layout
        self.last: tuple[str, int] | None = None
        """Folder that the server has loaded last, and the step it is of."""

    def start(self, trainer: Trainer, host: LightningModule, endpoint: Endpoint, kept: Mapping[str, Any]) -> None:
        """Give the server the weights of now, or those that it had when a run was stopped.

        Raises:
            ConfigError: the layout does not go with the captioner, or the server does not load them.
        """
        assert isinstance(host, PairCaptioner)
        if self.layout == "model" and len(host.adapters):
            raise ConfigError("layout model would merge the adapters, which train on; use layout adapters")
        if self.layout == "adapters" and not len(host.adapters):
            raise ConfigError("there are no adapters to bring to the server; use layout model, or add LoRA")
        had = kept.get("server_weights")
        there = had is not None and (self.folder / had[0]).is_dir()
        if all(all_gather_object(there)):
            assert had is not None
            self.last = (had[0], had[1])
            self._load(endpoint)
        else:
            self.push(trainer, host, endpoint)

    def due(self, trainer: Trainer) -> bool:
        """Whether enough steps went by."""
        return self.last is None or trainer.global_step // self.every > self.last[1] // self.every

    def push(self, trainer: Trainer, host: LightningModule, endpoint: Endpoint) -> None:
        """Write the weights, have them loaded, and remove those before; all processes must call this."""
        assert isinstance(host, PairCaptioner)
        before, step = self.last, trainer.global_step
        name = all_gather_object(f"step-{step}-{uuid.uuid4().hex[:8]}")[0]
        with ExitStack() as stack:
            target = self.folder / name
            if is_rank_zero():  # which alone writes
                target = stack.enter_context(Output(target, _OUTPUT))
            if self.layout == "adapters":
                host.save_adapters(target)
            elif self.layout == "model":
                host.save_model(target)  # type: ignore[operator]
            else:
                host.save_pretrained(target)
        self.last = (name, step)
        self._load(endpoint)
        if before is not None and is_rank_zero():
            Output(self.folder / before[0], _OUTPUT).remove()

    def _load(self, endpoint: Endpoint) -> None:
        assert self.last is not None
        target = str(self.folder / self.last[0])
        if is_rank_zero():
            filled = {k: v.replace(PLACE, target) if isinstance(v, str) else v for k, v in self.body.items()}
            endpoint.load(self.url, filled)

    def kept(self) -> dict[str, Any]:
        """What :meth:`start` takes."""
        return {} if self.last is None else {"server_weights": list(self.last)}
