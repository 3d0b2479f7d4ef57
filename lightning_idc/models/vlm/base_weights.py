"""FinetunedCaptioner: a captioner whose checkpoints omit the frozen weights of the published model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.utils.errors import CheckpointError

SAVED_WEIGHTS = "weights"
"""Checkpoint key: names of the saved weights; the other weights come from the published model."""


class FinetunedCaptioner(PairCaptioner):
    """A captioner that starts from the weights of a published model, the base weights.

    Checkpoints omit frozen base weights, which would make the checkpoint of a 7B model ten times as large.

    Args:
        options: arguments of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.base_weights: set[str] = set()
        """Names of the parameters that were initialized from the published model."""
        self._saves_all = False
        self.register_load_state_dict_pre_hook(load_base_weights)
        self.register_state_dict_post_hook(drop_base_weights)

    def frozen_base_weights(self) -> list[str]:
        """Names of the parameters that a checkpoint leaves out."""
        parameters = self.named_parameters(remove_duplicate=False)
        return [name for name, p in parameters if not p.requires_grad and base_weight_name(name) in self.base_weights]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        state = checkpoint["state_dict"]
        frozen = set(self.frozen_base_weights())
        quantized = self.hparams.get("quantize")
        for name in list(state):
            if name in frozen or (quantized and is_quantization_state(name, frozen)):
                del state[name]
        if self.base_weights:
            checkpoint[SAVED_WEIGHTS] = list(state)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        saved = checkpoint.get(SAVED_WEIGHTS)
        if self.device_mesh is None or not self.base_weights or saved is None:
            return  # load_state_dict checks the names and fills in base weights
        self.base_weights -= {base_weight_name(name) for name in saved}
        missing = sorted(self.state_dict().keys() - set(saved))
        if missing:
            raise CheckpointError(
                f"the checkpoint lacks {len(missing)} weights that this model trains ({', '.join(missing[:2])}); use "
                "the model and the adapters of the run that wrote it"
            )

    @property
    def strict_loading(self) -> bool:
        # Lightning loads sharded models weight by weight and bypasses the hook that fills in base weights;
        # on_load_checkpoint checks the names instead
        return super().strict_loading and not (self.device_mesh is not None and self.base_weights)

    @strict_loading.setter
    def strict_loading(self, value: bool) -> None:
        self._strict_loading = value

    def merge_adapters(self) -> None:
        super().merge_adapters()
        self.base_weights.clear()  # merged weights are no longer those of the published model

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write ``config.json`` and ``model.safetensors`` with all weights, without add-ons, and return the folder."""
        self._saves_all = True
        try:
            return super().save_pretrained(folder)
        finally:
            self._saves_all = False


def drop_base_weights(captioner: FinetunedCaptioner, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Leave frozen base weights out of the ``state_dict`` of a sharded module, which strategies save: a post-hook."""
    if captioner.device_mesh is not None and not captioner._saves_all:
        for name in captioner.frozen_base_weights():
            state_dict.pop(prefix + name, None)


def load_base_weights(captioner: FinetunedCaptioner, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Fill in the base weights that a checkpoint left out: a ``load_state_dict`` pre-hook.

    Weights in the checkpoint stop being base weights; all other keys are checked strictly.
    """
    captioner.base_weights -= {base_weight_name(key.removeprefix(prefix)) for key in state_dict}
    if not captioner.base_weights:
        return
    for name, parameter in captioner.named_parameters(remove_duplicate=False):
        if base_weight_name(name) in captioner.base_weights:
            state_dict.setdefault(prefix + name, parameter)


def base_weight_name(name: str) -> str:
    """Path of a parameter before PEFT wrapped its layer."""
    return name.replace(".base_layer.", ".").replace(".original_module.", ".")


def is_quantization_state(name: str, weights: set[str]) -> bool:
    """Whether a state-dict entry is quantization state, such as scales, of one of the ``weights``."""
    parents = [name[:index] for index, letter in enumerate(name) if letter == "."]
    return any(parent in weights for parent in parents) or f"{parents[-1]}.weight" in weights
