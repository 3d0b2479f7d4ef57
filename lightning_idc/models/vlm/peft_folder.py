"""LoRA folders of other programs (TRL, ms-swift, LLaMA-Factory) in the layout of PEFT."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.checkpoints.reading import check_no_pointers
from lightning_idc.checkpoints.resolve import is_hub_id
from lightning_idc.models.adapters import RECORDS
from lightning_idc.models.vlm.precision import is_quantized
from lightning_idc.utils.errors import CheckpointError

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
TOKENIZER = "tokenizer.json"
_PREFIX = "base_model.model."
_BASE_LAYER = ".base_layer."
"""Part of the names of weights of the base model, which PEFT saves for updates of the embeddings or the head."""
# beginnings of module paths: in transformers before 4.52, and now
_RENAMED = (
    ("model.", "model.language_model."),
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head", "lm_head"),
    ("visual.", "model.visual."),
    ("vision_tower.", "model.vision_tower."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
)
_DEFAULTS: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layer_replication": None,
    "lora_bias": False,
    "trainable_token_indices": None,
    "use_qalora": False,
    "alora_invocation_tokens": None,
    "target_parameters": None,
}
"""Options of PEFT that only have one supported value."""
_INITIALISATIONS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Initialisations that leave the weights of the base model as they are."""


@dataclass(frozen=True)
class PeftFolder:
    """Configuration and weights of a LoRA.

    Args:
        folder: folder of the files.
        config: configuration of PEFT.
        state: weights by the names of the file, without their common prefix.
    """

    folder: Path
    config: Mapping[str, Any]
    state: Mapping[str, Tensor]

    @property
    def base(self) -> str:
        """Folder or hub id of the base model.

        Raises:
            CheckpointError: the configuration does not name it, or names a folder of another machine.
        """
        name = self.config.get("base_model_name_or_path")
        if not isinstance(name, str) or not name:
            raise CheckpointError(f"{self.folder / CONFIG} names no base model; load the adapters onto a captioner")
        if not (is_hub_id(name) or Path(name).exists()):
            raise CheckpointError(
                f"{self.folder / CONFIG} names the base model {name!r}, a folder that is not on this machine; set "
                "base_model_name_or_path there to its folder or hub id here, or load the adapters onto a captioner"
            )
        return name

    def options(self, weights: Collection[str], language: tuple[str, ...]) -> dict[str, Any]:
        """Arguments of :class:`~lightning_idc.models.vlm.lora.LoraOptions` for these weights.

        Args:
            weights: names of the weights in the model, as :meth:`renamed` gives them.
            language: paths of the model's language modules.
        """
        targets = sorted({name.partition(".lora_")[0] for name in weights if ".lora_" in name})
        saved = sorted({name.rpartition(".")[0] for name in weights if ".lora_" not in name})
        inside = tuple(f"{path}." for path in language)
        roots = {target.split(".")[0] for target in targets if not target.startswith(inside) and target not in language}
        return {
            "rank": self.config["r"],
            "alpha": self.config["lora_alpha"],
            "dropout": self.config.get("lora_dropout") or 0.0,
            "targets": "|".join(map(re.escape, targets)),
            "freeze": [*(path for path in language if path.split(".")[0] not in roots), *sorted(roots)],
            "modules_to_save": saved or None,
            "use_dora": bool(self.config.get("use_dora")),
            "use_rslora": bool(self.config.get("use_rslora")),
        }

    def renamed(self, model: nn.Module) -> dict[str, Tensor]:
        """Weights by the names that the modules of a model have in this version of transformers.

        Args:
            model: model of transformers.

        Raises:
            CheckpointError: a weight belongs to no module of the model, or the LoRA was trained on other weights.
        """
        modules = {name for name, _ in model.named_modules()}
        names = {name: _renamed(name.replace(_BASE_LAYER, "."), modules) for name in self.state}
        if unknown := [name for name, new in names.items() if new is None]:
            raise CheckpointError(
                f"{str(self.folder)!r} holds a LoRA of another model: {len(unknown)} of its {len(names)} weights "
                f"belong to no module of this {type(model).__name__}, such as {unknown[0]!r}"
            )
        weights = {}
        for name, value in self.state.items():
            if _BASE_LAYER in name:
                self._check_base_weight(str(names[name]), value, model)
            else:
                weights[str(names[name])] = value
        return weights

    def _check_base_weight(self, name: str, value: Tensor, model: nn.Module) -> None:
        weight = model.get_parameter(name)
        if is_quantized(weight):
            return
        if value.shape != weight.shape:
            raise CheckpointError(misfit(self.folder, name, value.shape, weight.shape))
        value = value.to(weight.device)
        # the file may have either precision
        if not (torch.equal(value.to(weight.dtype), weight) or torch.equal(weight.to(value.dtype), value)):
            raise CheckpointError(
                f"{str(self.folder)!r} was trained on another base model: its {name} differs from the one of "
                f"{self.config.get('base_model_name_or_path')!r}; name the model that it was trained on in {CONFIG}"
            )

    def check_tokens(self, tokenizer: Any, rows: int) -> None:
        """Check that the tokenizer in the folder, if there is one, has the ids of the base model's.

        Args:
            tokenizer: tokenizer of the base model.
            rows: number of embeddings of the base model.

        Raises:
            CheckpointError: a token has another id, or no embedding in the base model.
        """
        from tokenizers import Tokenizer

        file = self.folder / TOKENIZER
        if not file.is_file():
            return
        try:
            stored = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
        except Exception as error:  # tokenizers raises plain exceptions
            raise CheckpointError(f"{str(file)!r} is damaged ({error}); fetch it again") from error
        vocabulary = tokenizer.get_vocab()
        changed = [token for token, index in vocabulary.items() if stored.get(token) != index]
        added = [token for token, index in stored.items() if index >= rows]
        if changed or added:
            raise CheckpointError(
                f"{str(file)!r} has {len(stored)} tokens, and the tokenizer of the base model has {len(vocabulary)} "
                f"and {rows} embeddings; {(changed or added)[0]!r} differs. Merge the LoRA with PEFT into the model "
                "that it was trained on, and open that"
            )


def misfit(folder: Path, name: str, stored: Sequence[int], expected: Sequence[int]) -> str:
    """Message for a weight of another size than the model's."""
    sizes = ["x".join(map(str, shape)) for shape in (stored, expected)]
    return (
        f"{str(folder)!r} does not fit the base model: {name} has the shape {sizes[0]}, and the model's {sizes[1]}; it "
        "was trained on another model, or with other tokens. Merge it with PEFT into that model, and open that"
    )


def _renamed(name: str, modules: set[str]) -> str | None:
    """Name of a weight for a model with these modules; None if it belongs to none of them."""
    path, mark, rest = name.partition(".lora_") if ".lora_" in name else name.rpartition(".")
    for old, new in (("", ""), *_RENAMED):
        candidate = new + path.removeprefix(old)
        if path.startswith(old) and candidate in modules:
            return f"{candidate}{mark}{rest}"
    return None


def is_peft_folder(folder: Path) -> bool:
    """Whether a folder has the layout of PEFT."""
    return (folder / CONFIG).is_file()


def lora_folder(folder: Path) -> Path | None:
    """Return the folder of a LoRA: the folder itself, or a folder in one of ``save_adapters``; None for other folders.

    Raises:
        CheckpointError: the folder of ``save_adapters`` has no LoRA.
    """
    if is_peft_folder(folder):
        return folder
    if not (folder / RECORDS).is_file():
        return None
    below = next(filter(is_peft_folder, sorted(folder.iterdir())), None)
    if below is None:
        raise CheckpointError(
            f"{str(folder)!r} has adapters but no LoRA, which would name their base model; open that, "
            "and put them onto it with load_adapters"
        )
    return below


def read_peft_folder(folder: Path) -> PeftFolder:
    """Read a LoRA in the layout of PEFT.

    Args:
        folder: folder with ``adapter_config.json`` and ``adapter_model.safetensors`` or ``adapter_model.bin``.

    Raises:
        CheckpointError: a file is missing or damaged, or the configuration has an option that is not supported.
    """
    from safetensors.torch import load_file

    check_no_pointers(folder)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(config, dict) or not isinstance(config["r"], int):
            raise ValueError("expected names with values, and the rank r")
        weights = folder / WEIGHTS
        if weights.is_file():
            state = load_file(weights)
        elif (folder / PICKLED).is_file():
            state = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
        else:
            raise CheckpointError(f"{str(folder)!r} has no {WEIGHTS}; expected the files that PEFT saves")
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file can raise any error
        raise CheckpointError(
            f"{str(folder)!r} is damaged ({type(error).__name__}: {error}); fetch it again"
        ) from error
    for name, default in _DEFAULTS.items():
        if config.get(name, default) not in (default, None):
            raise CheckpointError(
                f"{folder / CONFIG} has {name}: {str(config[name])[:80]}, which is not supported; expected {default}. "
                "Merge the LoRA into its base model with PEFT, and open that"
            )
    if config.get("init_lora_weights", True) not in _INITIALISATIONS:
        raise CheckpointError(
            f"{folder / CONFIG} has init_lora_weights: {config['init_lora_weights']}, which changes the weights of the "
            "base model; convert it with PEFT (path_initial_model_for_weight_conversion), or merge it there"
        )
    return PeftFolder(folder, config, {name.removeprefix(_PREFIX): value for name, value in state.items()})
