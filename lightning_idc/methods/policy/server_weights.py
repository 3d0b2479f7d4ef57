"""ServerWeights: transfers the weights of a policy in training to the server that samples its captions."""

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
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.http import check_url
from lightning_idc.utils.outputs import Output

FOLDER_FIELD = "{folder}"
_OUTPUT = "weights for a server"


class ServerWeights:
    """Writes the weights to a folder every few optimizer steps and sends the server a request to load them.

    Training waits for the answer, which comes when the weights are loaded. vLLM loads LoRA adapters (layout
    ``adapters``) at ``/v1/load_lora_adapter`` with ``VLLM_ALLOW_RUNTIME_LORA_UPDATING`` set; SGLang loads full models
    (layout ``model``) at ``/update_weights_from_disk``.

    Args:
        folder: folder in which each transfer gets a sub-folder; the server must read it under the same path.
        url: URL of the request that loads weights.
        body: JSON body of that request; ``{folder}`` in its strings is replaced by the sub-folder of the weights.
        every: number of optimizer steps between two transfers.
        layout: files of a transfer. ``adapters``: those of ``save_adapters`` (LoRA in PEFT's format in the folder
            ``lora``); ``model``: a model of transformers; ``captioner``: those of ``save_pretrained``.

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
        every: PositiveInt = 1,
        layout: Literal["adapters", "model", "captioner"] = "adapters",
    ) -> None:
        check_arguments(ServerWeights.__init__, locals())
        if not any(isinstance(value, str) and FOLDER_FIELD in value for value in body.values()):
            raise ConfigError(
                f"the body {dict(body)} does not name the weights; put {FOLDER_FIELD} where the server expects a path"
            )
        check_url("url", url)
        self.folder, self.url, self.body = Path(folder).expanduser().absolute(), url, dict(body)
        self.every, self.layout = every, layout
        self.last: tuple[str, int] | None = None
        """Sub-folder that the server has loaded last, and its optimizer step."""

    def start(self, trainer: Trainer, module: LightningModule, endpoint: Endpoint, state: Mapping[str, Any]) -> None:
        """Transfer the current weights; in a resumed run, load those that the server had when the run stopped.

        Raises:
            ConfigError: the captioner does not support the layout, or the server does not load the weights.
        """
        assert isinstance(module, PairCaptioner)
        if self.layout == "model" and len(module.adapters):
            raise ConfigError("layout model would merge the adapters, which are still trained; use layout adapters")
        if self.layout == "adapters" and not len(module.adapters):
            raise ConfigError("there are no adapters to transfer to the server; use layout model, or add LoRA")
        last = state.get("server_weights")
        exists = last is not None and (self.folder / last[0]).is_dir()
        if all(all_gather_object(exists)):
            assert last is not None
            self.last = (last[0], last[1])
            self._load(endpoint)
        else:
            self.push(trainer, module, endpoint)

    def is_due(self, trainer: Trainer) -> bool:
        """Whether ``every`` steps have passed since the last transfer."""
        return self.last is None or trainer.global_step // self.every > self.last[1] // self.every

    def push(self, trainer: Trainer, module: LightningModule, endpoint: Endpoint) -> None:
        """Write the weights, make the server load them, and remove the previous ones. All processes must call this."""
        assert isinstance(module, PairCaptioner)
        previous, step = self.last, trainer.global_step
        name = all_gather_object(f"step-{step}-{uuid.uuid4().hex[:8]}")[0]
        with ExitStack() as stack:
            target = self.folder / name
            if is_rank_zero():  # the only process that writes
                target = stack.enter_context(Output(target, _OUTPUT))
            if self.layout == "adapters":
                module.save_adapters(target)
            elif self.layout == "model":
                module.save_model(target)  # type: ignore[operator]
            else:
                module.save_pretrained(target)
        self.last = (name, step)
        self._load(endpoint)
        if previous is not None and is_rank_zero():
            Output(self.folder / previous[0], _OUTPUT).remove()

    def _load(self, endpoint: Endpoint) -> None:
        assert self.last is not None
        target = str(self.folder / self.last[0])
        if is_rank_zero():
            filled = {k: v.replace(FOLDER_FIELD, target) if isinstance(v, str) else v for k, v in self.body.items()}
            endpoint.load(self.url, filled)

    def state(self) -> dict[str, Any]:
        """State for :meth:`start` of a resumed run."""
        return {} if self.last is None else {"server_weights": list(self.last)}
