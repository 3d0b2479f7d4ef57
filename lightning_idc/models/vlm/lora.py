"""LoRA (Hu et al. 2022): PEFT layers injected into a network in place."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from lightning_idc.models.adapter import Adapter
from lightning_idc.models.adapter_callback import AdapterCallback
from lightning_idc.models.distributed import full_state_dict, is_rank_zero
from lightning_idc.models.vlm.peft_folder import misfit, read_peft_folder
from lightning_idc.models.vlm.precision import is_quantized
from lightning_idc.models.vlm.tying import untie
from lightning_idc.utils.bounds import PositiveFloat, PositiveInt, ShareBelowOne, check_fields
from lightning_idc.utils.errors import CheckpointError, ConfigError

ALL_LINEAR = "all-linear"
"""Targets: every linear layer, quantized ones and those of linear attention included."""
ADAPTER_NAME = "default"
"""Name of the adapter within PEFT; its files do not contain it."""
COPY_NAME = "reference"
"""Name of the adapter's copy for a reference policy."""
_SIZE_MISMATCH = re.compile(r"size mismatch for (\S+): .*?Size\(\[([\d, ]+)\]\).*?Size\(\[([\d, ]+)\]\)")
"""torch's message for a weight of another shape: name, shape in the file, shape in the model."""


@runtime_checkable
class HasLanguageModel(Protocol):
    """A network that contains a language model in its submodule ``model``.

    The submodule is not a protocol member: from Python 3.12, ``isinstance`` does not find submodules of ``nn.Module``.
    """

    base_name: str | None
    """Folder or hub id that the model came from."""

    @property
    def language_modules(self) -> tuple[str, ...]:
        """Paths within ``model``."""

    @property
    def unused_modules(self) -> tuple[str, ...]:
        """Paths within ``model`` of modules whose output is not used."""


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """Options of :class:`LoRA`.

    Args:
        rank: rank of the updates (peft's ``r``; M3Diff, table 10: 128).
        alpha: numerator of the scale ``alpha / rank`` of the updates (peft's ``lora_alpha``; M3Diff: 256).
        dropout: dropout of the input of the updates.
        targets: ``all-linear``, or a regular expression of layer paths within ``freeze`` (peft's ``target_modules``).
            Layers whose output is not used, such as those after the layer from which a vision tower's features are
            taken, are left out.
        freeze: paths of modules with updates, and of other modules and parameters, which are frozen; the language model
            when None. Modules outside stay trainable, as M3Diff fully trains all but the language model.
        modules_to_save: paths of modules that are trained as copies; disabling the adapter restores the originals.
        use_dora: train magnitudes and directions separately (DoRA, Liu et al. 2024).
        use_rslora: scale by ``alpha / sqrt(rank)`` (rsLoRA, Kalajdzievski 2023).

    Raises:
        ConfigError: rank, alpha or dropout is out of range.
    """

    rank: PositiveInt = 128
    alpha: PositiveFloat = 256
    dropout: ShareBelowOne = 0.0
    targets: str = ALL_LINEAR
    freeze: list[str] | None = None
    modules_to_save: list[str] | None = None
    use_dora: bool = False
    use_rslora: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


class LoraAdapter(Adapter):
    """Low-rank updates of linear layers; everything else in ``freeze`` is frozen.

    Args:
        options: arguments of :class:`LoraOptions`.

    Raises:
        ConfigError: an option is out of range; on installation, a path does not exist, no layer is targeted or the
            network already has a LoRA.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        settings = LoraOptions(**options)
        self.targets, self.freeze = settings.targets, settings.freeze
        self.modules_to_save = list(settings.modules_to_save or ())
        self.options: dict[str, Any] = {
            "r": settings.rank,
            "lora_alpha": settings.alpha,
            "lora_dropout": settings.dropout,
            "use_dora": settings.use_dora,
            "use_rslora": settings.use_rslora,
        }
        # a tuple hides the model from nn.Module: its layers belong to the network, which saves them
        self._model: tuple[Any, ...] = ()
        self._base_name: str | None = None

    def install(self, net: nn.Module) -> None:
        from peft import LoraConfig, inject_adapter_in_model

        from lightning_idc.models.vlm.lora_sum import fuse_sums

        model: Any = net
        language: tuple[str, ...] = ()
        unused: tuple[str, ...] = ()
        if isinstance(net, HasLanguageModel):
            model, language, self._base_name = net.get_submodule("model"), net.language_modules, net.base_name
            unused = net.unused_modules
        freeze = list(self.freeze or language)
        if not freeze:
            raise ConfigError(
                f"{type(net).__name__} has no language model, the default of LoRA's `freeze`; set it to module paths"
            )
        if next(_layers(model), None) is not None:
            raise ConfigError("the network already has a LoRA; call merge_adapters before adding another one")
        _check_paths(model, [*freeze, *self.modules_to_save])
        config = LoraConfig(
            target_modules=self._target_modules(model, freeze, unused),
            modules_to_save=self.modules_to_save or None,
            base_model_name_or_path=self._base_name,
            task_type="CAUSAL_LM" if language else None,
            **self.options,
        )
        flags = {name: p.requires_grad for name, p in model.named_parameters()}
        hooks = _remove_hooks(model, self.modules_to_save)
        try:
            # updates are float32, since small steps would round to nothing in the precision of the frozen weights
            inject_adapter_in_model(config, model, ADAPTER_NAME)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"LoRA cannot be added to {type(model).__name__}: {error}") from error
        finally:
            _restore_hooks(model, hooks)
        fuse_sums(model, ADAPTER_NAME)
        self._model = (model,)
        net.register_load_state_dict_pre_hook(_drop_copy)
        for parameter in self.trained_parameters(model):
            if parameter.is_floating_point():
                parameter.data = parameter.data.float()
        saved = tuple(f"{path}.original_module." for path in self.modules_to_save)
        frozen = tuple(f"{path}." for path in freeze)
        for name, parameter in model.named_parameters():
            # PEFT freezes the entire model; restore the parts outside of `freeze`
            if name in flags and name not in freeze and not name.startswith((*saved, *frozen)):
                parameter.requires_grad_(flags[name])

    def _target_modules(self, model: nn.Module, freeze: Sequence[str], unused: Sequence[str]) -> str | list[str]:
        if self.targets != ALL_LINEAR:
            roots = "|".join(path.replace(".", r"\.") for path in freeze)
            pattern = rf"(?=({roots})(\.|$))(?:{self.targets})"
            try:
                matches = [name for name, _ in model.named_modules() if re.fullmatch(pattern, name)]
            except re.error as error:
                raise ConfigError(
                    f"targets is {self.targets!r}, which is not a regular expression ({error.msg}); expected "
                    rf"{ALL_LINEAR} or a pattern of layer paths, for example '.*\.(q_proj|v_proj)'"
                ) from error
            without_effect = [name for name in matches if _is_within(name, (*unused, *_unreachable(model)))]
            if without_effect:
                raise ConfigError(
                    f"targets is {self.targets!r}, which matches {without_effect[0]!r}, whose output is not used; an "
                    "update of it would never be trained. Leave it out"
                )
            return pattern
        inside = tuple(f"{path}." for path in freeze)
        skipped = (*unused, *_unreachable(model))
        names = [
            name
            for name, part in model.named_modules()
            if isinstance(part, nn.Linear) and name.startswith(inside) and not _is_within(name, skipped)
        ]
        if not names:
            raise ConfigError(f"LoRA cannot be added to {type(model).__name__}: {list(freeze)} have no linear layers")
        return names

    @contextmanager
    def disabled(self) -> Iterator[None]:
        (model,) = self._model
        layers = list(_layers(model))
        # PEFT's switch also changes requires_grad, which must stay as it was for an existing autograd graph
        flags = [(p, p.requires_grad) for p in self.trained_parameters(model)]
        for layer in layers:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)
            for parameter, flag in flags:
                parameter.requires_grad_(flag)

    def save_copy(self) -> None:
        from peft import inject_adapter_in_model

        from lightning_idc.models.vlm.lora_sum import fuse_sums

        (model,) = self._model
        flags = {name: p.requires_grad for name, p in model.named_parameters()}
        active = [(layer, layer._active_adapter) for layer in _layers(model)]
        hooks = _remove_hooks(model, self.modules_to_save)
        try:
            inject_adapter_in_model(copy.deepcopy(model.peft_config[ADAPTER_NAME]), model, COPY_NAME)
        finally:
            _restore_hooks(model, hooks)
        fuse_sums(model, COPY_NAME)
        for layer, names in active:  # PEFT activates the newest adapter
            layer._active_adapter = names
        weights = dict(model.named_parameters())
        for name, parameter in weights.items():
            if name not in flags:
                original = weights[name.replace(f".{COPY_NAME}", f".{ADAPTER_NAME}")]
                parameter.data = original.detach().clone()
            parameter.requires_grad_(flags.get(name, False))

    @contextmanager
    def using_copy(self) -> Iterator[None]:
        (model,) = self._model
        layers = list(_layers(model))
        active = [layer._active_adapter for layer in layers]
        for layer in layers:
            # PEFT's setter also changes requires_grad, which must stay as it was for an existing autograd graph
            layer._active_adapter = [COPY_NAME]
        try:
            yield
        finally:
            for layer, names in zip(layers, active, strict=True):
                layer._active_adapter = names

    def trained_parameters(self, net: nn.Module) -> Iterator[nn.Parameter]:
        for layer in _layers(net):
            for layer_name in layer.adapter_layer_names:
                parameters = getattr(layer, layer_name).named_parameters()
                yield from (parameter for name, parameter in parameters if COPY_NAME not in name.split("."))

    def merge(self, net: nn.Module) -> bool:
        from peft.tuners.tuners_utils import BaseTunerLayer

        (model,) = self._model
        bases: list[Any] = [layer.get_base_layer() for layer in _layers(model) if isinstance(layer, BaseTunerLayer)]
        # formats such as GPTQ have no weight
        if any(getattr(base, "weight", None) is None or is_quantized(base.weight) for base in bases):
            raise ConfigError(
                "LoRA cannot be merged into quantized weights, which would round it; merge it into the base model "
                "without quantize (save_adapters, then load_adapters), or leave out merge_adapters"
            )
        flags = {id(p): p.requires_grad for p in model.parameters()}
        hooks = _remove_hooks(model, self.modules_to_save)
        for path, layer in [(name, part) for name, part in model.named_modules() if _is_layer(part)]:
            if isinstance(layer, BaseTunerLayer):
                untie(layer.get_base_layer(), model)
                layer.merge()
                model.set_submodule(path, layer.get_base_layer())
            else:
                model.set_submodule(path, layer.modules_to_save[ADAPTER_NAME])
        _restore_hooks(model, hooks)
        del model.peft_config
        for parameter in model.parameters():
            parameter.requires_grad_(flags.get(id(parameter), False))
        self._model = ()
        return True

    def save(self, net: nn.Module, folder: Path) -> None:
        """Write ``adapter_config.json``, which names the base model, and ``adapter_model.safetensors`` as PEFT does."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        (model,) = self._model
        state = full_state_dict(get_peft_model_state_dict(model, adapter_name=ADAPTER_NAME))
        if not is_rank_zero():
            return
        folder.mkdir(parents=True, exist_ok=True)
        weights = {f"base_model.model.{key}": value for key, value in state.items()}
        save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
        config = model.peft_config[ADAPTER_NAME]
        config.inference_mode = True
        config.save_pretrained(str(folder))
        config.inference_mode = False

    def load(self, net: nn.Module, folder: Path) -> None:
        self.load_weights(read_peft_folder(folder).state, folder)

    def load_weights(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        """Load weights by the paths of their modules.

        Args:
            weights: all weights of the LoRA.
            folder: their folder, for messages.

        Raises:
            CheckpointError: a weight is missing, or belongs to another model.
        """
        from peft import set_peft_model_state_dict

        (model,) = self._model
        try:
            result: Any = set_peft_model_state_dict(model, dict(weights), adapter_name=ADAPTER_NAME)
        except RuntimeError as error:
            mismatch = _SIZE_MISMATCH.search(str(error))
            if mismatch is None:
                raise
            name, *shapes = mismatch.groups()
            stored, expected = ([int(size) for size in shape.split(",")] for shape in shapes)
            raise CheckpointError(misfit(folder, name.replace(f".{ADAPTER_NAME}", ""), stored, expected)) from error
        if result.unexpected_keys:
            raise CheckpointError(
                f"{str(folder)!r} holds a LoRA of another model: {', '.join(result.unexpected_keys[:3])}"
            )
        # weights missing from the file would stay random
        missing = [key for key in result.missing_keys if ADAPTER_NAME in key.split(".")]
        if missing:
            raise CheckpointError(
                f"{str(folder)!r} lacks {len(missing)} of the {len(missing) + len(weights)} weights of the LoRA that "
                f"its configuration describes: {', '.join(missing[:3])}; use another copy, or save the adapters again"
            )


class LoRA(AdapterCallback):
    """Adds low-rank updates to the language model and freezes its other weights; untrained updates are zero.

    Args:
        name: name of the adapter in checkpoints.
        options: arguments of :class:`LoraOptions`.
    """

    options_class = LoraOptions

    def __init__(self, name: str = "lora", **options: Any) -> None:
        settings = LoraOptions(**options)
        super().__init__(name, LoraAdapter, **asdict(settings))


def _is_layer(part: nn.Module) -> bool:
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return isinstance(part, (BaseTunerLayer, AuxiliaryTrainingWrapper))


def _layers(model: nn.Module) -> Iterator[Any]:
    """PEFT layers of a model."""
    return (part for part in model.modules() if _is_layer(part))


def _drop_copy(net: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Drop the adapter copy from a checkpoint if the network has none: a ``load_state_dict`` pre-hook."""
    parameter_names = {prefix + name for name, _ in net.named_parameters()}
    for key in [
        key
        for key in state_dict
        if key.startswith(prefix) and COPY_NAME in key.split(".") and key not in parameter_names
    ]:
        del state_dict[key]


def _unreachable(model: nn.Module) -> list[str]:
    """Paths of linear layers that are never called: torch's MultiheadAttention reads the weight of its last one."""
    return [f"{name}.out_proj" for name, part in model.named_modules() if isinstance(part, nn.MultiheadAttention)]


def _is_within(name: str, paths: Sequence[str]) -> bool:
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def _check_paths(model: nn.Module, paths: Sequence[str]) -> None:
    """Check that paths name modules or parameters."""
    parameters = {name for name, _ in model.named_parameters()}
    for path in paths:
        if path in parameters:
            continue
        try:
            model.get_submodule(path)
        except AttributeError:
            parts = ", ".join(name for name, _ in model.named_children())
            raise ConfigError(f"{type(model).__name__} has no module {path!r} for LoRA; it has {parts}") from None


Hooks = dict[str, tuple[Any, Any]]


def _remove_hooks(model: nn.Module, paths: Sequence[str]) -> Hooks:
    """Remove the forward hooks of modules before PEFT copies them: a deep copy would also copy the hooks' owners."""
    hooks = {}
    for path in paths:
        module = model.get_submodule(path)
        hooks[path] = (dict(module._forward_pre_hooks), dict(module._forward_hooks))
        module._forward_pre_hooks.clear()
        module._forward_hooks.clear()
    return hooks


def _restore_hooks(model: nn.Module, hooks: Hooks) -> None:
    for path, (before, after) in hooks.items():
        module = model.get_submodule(path)
        module._forward_pre_hooks.update(before)
        module._forward_hooks.update(after)
