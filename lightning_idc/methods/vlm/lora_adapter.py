"""LoRA (Hu et al. 2022) over peft, put into the layers of a network that stay what they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import nn

from lightning_idc.core.adapter import Adapter
from lightning_idc.core.distributed import full_state_dict, is_rank_zero
from lightning_idc.core.types import PairError
from lightning_idc.files import atomic_write

LINEARS = r".*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
"""Linear layers of the language models of all families; which part of the model they lie in is asked separately."""


@runtime_checkable
class HasLanguageModel(Protocol):
    """A network with a language model inside."""

    model: Any

    @property
    def language_modules(self) -> tuple[str, ...]:
        """Paths within ``model``."""


class LowRank(Adapter):
    """Low-rank updates of linear layers; everything else in ``freeze`` stands still.

    Args:
        rank: of the updates.
        alpha: their scale is ``alpha / rank``.
        dropout: of their input.
        targets: regular expression of the paths of the linear layers, read within ``freeze``.
        freeze: paths of the parts that get the updates and are frozen; the language model when None. What lies
            outside keeps training, as the paper trains all but the language model fully.
        modules_to_save: paths of parts that are trained as copies, so that switching off gives the original back.
    """

    def __init__(
        self,
        rank: int = 128,
        alpha: float = 256,
        dropout: float = 0.0,
        targets: str = LINEARS,
        freeze: Sequence[str] | None = None,
        modules_to_save: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.rank, self.alpha, self.dropout, self.targets = rank, alpha, dropout, targets
        self.freeze, self.modules_to_save = freeze, list(modules_to_save)
        # kept out of the registered modules: the layers belong to the network, which holds and saves them
        self._tuner: tuple[Any, ...] = ()

    def install(self, net: nn.Module) -> None:
        from peft import LoraConfig
        from peft.tuners.lora import LoraModel
        from peft.tuners.tuners_utils import BaseTunerLayer

        model, language = (net.model, net.language_modules) if isinstance(net, HasLanguageModel) else (net, ())
        freeze = list(self.freeze or language)
        if not freeze:
            raise PairError(f"LoRA does not know which part of {type(net).__name__} to update; set `freeze` to paths")
        if any(isinstance(part, BaseTunerLayer) for part in model.modules()):
            raise PairError("the network has a LoRA already; merge_adapters makes it part of the network first")
        for path in [*freeze, *self.modules_to_save]:
            try:
                model.get_submodule(path)
            except AttributeError:
                parts = ", ".join(name for name, _ in model.named_children())
                raise PairError(f"LoRA finds no module {path!r} in {type(model).__name__}, which has {parts}") from None
        roots = "|".join(path.replace(".", r"\.") for path in freeze)
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,  # type: ignore[arg-type]
            lora_dropout=self.dropout,
            target_modules=rf"(?=({roots})(\.|$)){self.targets}",
            modules_to_save=self.modules_to_save or None,
        )
        flags = {name: p.requires_grad for name, p in model.named_parameters()}
        hooks = _take_hooks(model, self.modules_to_save)
        try:
            self._tuner = (LoraModel(model, config, "default"),)
        except ValueError as error:
            raise PairError(f"LoRA cannot be put into {type(model).__name__}: {error}") from error
        finally:
            _give_hooks(model, hooks)
        saved = tuple(f"{path}.original_module." for path in self.modules_to_save)
        frozen = tuple(f"{path}." for path in freeze)
        for name, parameter in model.named_parameters():
            # peft freezes the whole model; only the parts that were asked for shall be
            if name in flags and not name.startswith((*saved, *frozen)):
                parameter.requires_grad_(flags[name])

    def _layers(self, net: nn.Module) -> Iterator[Any]:
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        return (part for part in net.modules() if isinstance(part, (BaseTunerLayer, AuxiliaryTrainingWrapper)))

    @contextmanager
    def disabled(self) -> Iterator[None]:
        (tuner,) = self._tuner
        layers = list(self._layers(tuner.model))
        # switching freezes the weights, too, which a graph that is already built must not notice
        flags = [(p, p.requires_grad) for p in self.trained(tuner.model)]
        for layer in layers:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)
            for parameter, flag in flags:
                parameter.requires_grad_(flag)

    def trained(self, net: nn.Module) -> Iterator[nn.Parameter]:
        for layer in self._layers(net):
            for name in layer.adapter_layer_names:
                yield from getattr(layer, name).parameters()

    def merge(self, net: nn.Module) -> bool:
        (tuner,) = self._tuner
        flags = {id(p): p.requires_grad for p in tuner.model.parameters()}
        hooks = _take_hooks(tuner.model, self.modules_to_save)
        tuner.merge_and_unload()
        _give_hooks(tuner.model, hooks)
        for parameter in tuner.model.parameters():
            parameter.requires_grad_(flags.get(id(parameter), False))
        self._tuner = ()
        return True

    def save(self, net: nn.Module, folder: Path) -> None:
        """Write ``adapter_config.json`` and ``adapter_model.safetensors`` as peft does."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        (tuner,) = self._tuner
        state = full_state_dict(get_peft_model_state_dict(tuner.model))
        if not is_rank_zero():
            return
        folder.mkdir(parents=True, exist_ok=True)
        named = {f"base_model.model.{key}": value for key, value in state.items()}
        atomic_write(folder / "adapter_model.safetensors", lambda path: save_file(named, path))
        config = tuner.peft_config["default"]
        config.inference_mode = True
        config.save_pretrained(str(folder))
        config.inference_mode = False

    def load(self, net: nn.Module, folder: Path) -> None:
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        (tuner,) = self._tuner
        state = load_file(folder / "adapter_model.safetensors")
        result: Any = set_peft_model_state_dict(
            tuner.model, {key.removeprefix("base_model.model."): value for key, value in state.items()}
        )
        if result.unexpected_keys:
            raise PairError(f"{str(folder)!r} holds a LoRA of another model: {', '.join(result.unexpected_keys[:3])}")


Hooks = dict[str, tuple[Any, Any]]


def _take_hooks(model: nn.Module, paths: Sequence[str]) -> Hooks:
    """Take forward hooks off modules that are about to be wrapped: a copy of them would copy whom they call."""
    taken = {}
    for path in paths:
        module = model.get_submodule(path)
        taken[path] = (dict(module._forward_pre_hooks), dict(module._forward_hooks))
        module._forward_pre_hooks.clear()
        module._forward_hooks.clear()
    return taken


def _give_hooks(model: nn.Module, hooks: Hooks) -> None:
    for path, (before, after) in hooks.items():
        module = model.get_submodule(path)
        module._forward_pre_hooks.update(before)
        module._forward_hooks.update(after)
