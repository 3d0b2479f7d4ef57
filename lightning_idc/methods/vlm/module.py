"""VLMCaptioner: a vision-language model that says what changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_idc.core.captioner import PairCaptioner
from lightning_idc.core.distributed import shard
from lightning_idc.core.module import ProvidesCaptions
from lightning_idc.core.types import PairBatch, PairError, PairFeatures, PairSample
from lightning_idc.methods.vlm.families import family_of
from lightning_idc.methods.vlm.families.base import Family
from lightning_idc.methods.vlm.loading import (
    TokenizerVocabulary,
    load_language_model,
    load_model,
    make_model,
    put_language_model,
    text_config_of,
    train_tokenizer,
)
from lightning_idc.methods.vlm.net import VLMNet
from lightning_idc.methods.vlm.scoring import Scoring, cached, packed
from lightning_idc.nn.backbones import load_backbone

PROMPT = "What changed from the first image to the second?"
LONGEST = 128  # tokens of a generated caption where nothing says how long they are


class VLMCaptioner(PairCaptioner):
    """Captions pairs with a vision-language model of the families in ``families/``.

    Args:
        model: folder or hub id of the model; None to make one from ``architecture``.
        architecture: transformers configuration of a random model, ``model_type`` included.
        prompt: what is asked after the two images.
        prompts: what is asked about pairs of the parts of a mixture, by ``meta["part"]``.
        scoring: ``packed`` or ``cached``, the two exact ways of ``scoring.py``.
        activation_checkpointing: compute activations twice instead of keeping them.
        dtype: of the loaded weights, for example ``bfloat16``; Lightning's precision may change it afterwards.
        tokenizer: of a random model, as JSON text; learned from the training captions when None.
        tokenizer_size: most tokens of a learned tokenizer.
        language_model: weights and tokenizer that the language part of ``architecture`` takes, in place of its
            ``text_config``: folder, hub id, ``.gguf`` file, or ``PACKAGE/FILE.gguf`` within an installed package.
        text_config: configuration of that language part; read from ``language_model`` when None.
        tower_weights: checkpoint of :class:`~lightning_idc.methods.vlm.tower.TowerNaming` that the vision tower of
            ``architecture`` starts from.
        options: of :class:`~lightning_idc.core.captioner.PairCaptioner`.

    Raises:
        PairError: neither or both of ``model`` and ``architecture`` are given, or ``cached`` scoring meets
            activation checkpointing.
    """

    word_hparams: tuple[str, ...] = ("tokenizer", "text_config")

    def __init__(
        self,
        model: str | None = None,
        architecture: dict[str, Any] | None = None,
        prompt: str = PROMPT,
        prompts: dict[str, str] | None = None,
        scoring: str = "packed",
        activation_checkpointing: bool = False,
        dtype: str = "float32",
        tokenizer: str | None = None,
        tokenizer_size: int = 2000,
        language_model: str | None = None,
        text_config: dict[str, Any] | None = None,
        tower_weights: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if (model is None) == (architecture is None):
            raise PairError("give either `model`, a folder or hub id, or `architecture`, a configuration; not both")
        if architecture is None and (language_model or tower_weights):
            raise PairError("`language_model` and `tower_weights` go into a random `architecture`; `model` has its own")
        ways: dict[str, Scoring] = {"packed": packed, "cached": cached}
        if scoring not in ways:
            raise PairError(f"scoring {scoring!r} is unknown; expected one of {', '.join(ways)}")
        if scoring == "cached" and activation_checkpointing:
            raise PairError("activation checkpointing drops the keys and values that `cached` shares; use `packed`")
        # a checkpoint brings all weights, so it must not ask for these again
        for name in ("language_model", "tower_weights"):
            self.hparams.pop(name, None)
        self._start = (language_model, tower_weights)
        self._scoring = ways[scoring]
        self._stock: set[str] = set()
        self.register_load_state_dict_pre_hook(take_stock)
        self._prompts: dict[tuple[str, int, int], list[int]] = {}

    # ---- making it --------------------------------------------------------------------------------------

    def make_net(self) -> nn.Module | None:
        options = self.hparams
        data = self._trainer.datamodule if self._trainer is not None else None  # type: ignore[attr-defined]
        if isinstance(data, ProvidesCaptions):
            options["no_change_captions"] = options["no_change_captions"] or data.no_change_captions()
            options["image_size"] = options["image_size"] or data.image_size
        if options["model"] is not None:
            model, processor, family = load_model(options["model"], getattr(torch, options["dtype"]))
            self._stock = {f"net.model.{name}" for name, _ in model.named_parameters(remove_duplicate=False)}
        else:
            made = self._make_random(data)
            if made is None:
                return None  # a checkpoint may still bring the tokenizer
            model, processor, family = made
        if options["activation_checkpointing"]:
            model.activation_checkpointing_enable()
        for path in family.unused(model):
            model.get_submodule(path).requires_grad_(False)
        net = VLMNet(model, processor, family, self._scoring)
        self.vision_modules = tuple(f"net.model.{path}" for path in family.vision)
        self.vocabulary = vocabulary = TokenizerVocabulary(processor.tokenizer)
        if options["max_length"] is None:
            captions = data.train_captions() if isinstance(data, ProvidesCaptions) else []
            options["max_length"] = max((len(vocabulary.encode(text)) - 1 for text in captions), default=LONGEST)
        return net.train(self.training)

    def _make_random(self, data: Any) -> tuple[Any, Any, Family] | None:
        options, (name, tower) = self.hparams, self._start
        family = family_of(options["architecture"].get("model_type"))
        special = family.special_tokens.values()
        language = None
        if options["tokenizer"] is None and name is not None:
            language, options["tokenizer"] = load_language_model(name, special)
            options["text_config"] = text_config_of(language)
        elif options["tokenizer"] is None:
            if not isinstance(data, ProvidesCaptions):
                return None
            texts = [*data.train_captions(), options["prompt"], *(options["prompts"] or {}).values()]
            options["tokenizer"] = train_tokenizer(texts, options["tokenizer_size"], special)
        told = {"text_config": options["text_config"]} if options["text_config"] is not None else {}
        model, processor, family = make_model({**options["architecture"], **told}, options["tokenizer"])
        if language is not None:
            put_language_model(model, family, language)
        if tower is not None:
            load_backbone(nn.ModuleDict({"tower": model.get_submodule(family.vision[0])}), tower)
        return model, processor, family

    def configure_model(self) -> None:
        self.build()
        if self.device_mesh is not None and self.net is not None:
            for unit in self.built_net.units():
                shard(unit, self.device_mesh, ())
        super().configure_model()

    # ---- seeing and saying ------------------------------------------------------------------------------

    def encode(self, batch: PairBatch) -> PairFeatures:
        inputs = batch.model_inputs
        return self.built_net.encode(batch.images, inputs["prompt_ids"], inputs["prompt_mask"])

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        batch = super().collate(samples)
        height, width = batch.images.shape[-2:]
        by_part = self.hparams["prompts"] or {}
        asked = [by_part.get(sample.meta.get("part", ""), self.hparams["prompt"]) for sample in samples]
        prompts = [self.prompt_ids(prompt, height, width) for prompt in asked]
        longest = max(map(len, prompts))
        padding = self.built_vocabulary.special.pad
        # padded on the left, so that every answer starts right behind its prompt
        ids = torch.tensor([[padding] * (longest - len(row)) + row for row in prompts])
        lengths = torch.tensor([len(row) for row in prompts])
        mask = torch.arange(longest) >= longest - lengths[:, None]
        batch.model_inputs = {"prompt_ids": ids, "prompt_mask": mask}
        return batch

    def prompt_ids(self, prompt: str, height: int, width: int) -> list[int]:
        """Token ids of a prompt about two images of a size, with a placeholder per feature of theirs."""
        key = (prompt, height, width)
        if key not in self._prompts:
            net = self.built_net
            family, processor = net.family, net.processor
            shown = family.shown(torch.zeros(1, 2, 3, height, width, dtype=torch.uint8))
            if processor.chat_template:
                parts = [{"type": "image"}] * family.images_per_pair + [{"type": "text", "text": prompt}]
                talk = [{"role": "user", "content": parts}]
                text = processor.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
            else:
                text = family.image_text * family.images_per_pair + f"\n{prompt}\n"
            # the processor itself puts in the placeholders: their number and framing differ between families
            found = processor(text=[text], images=shown, **family.image_options)
            self._prompts[key] = [int(i) for i in found["input_ids"][0]]
        return self._prompts[key]

    # ---- checkpoints ------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if self.device_mesh is not None:
            return  # Lightning reads sharded models weight by weight, past any hook that could fill one in
        # frozen weights that `model` brings again would make a checkpoint of a 7B model ten times as large
        for name, parameter in self.named_parameters(remove_duplicate=False):
            if not parameter.requires_grad and stock_name(name) in self._stock:
                checkpoint["state_dict"].pop(name, None)

    def merge_adapters(self) -> None:
        super().merge_adapters()
        self._stock.clear()  # merged weights are no longer those of `model`

    # ---- giving it away ---------------------------------------------------------------------------------

    def save_model(self, folder: str | Path) -> Path:
        """Write model and processor in the layout of transformers, for ``model:`` or for other programs.

        Raises:
            PairError: an adapter is on the network, which that layout cannot hold.
        """
        if len(self.adapters):
            raise PairError(f"adapters {list(self.adapters)} are on the network; save_pretrained keeps them")
        net = self.built_net
        net.model.save_pretrained(folder)
        net.processor.save_pretrained(folder)
        return Path(folder)


def stock_name(name: str) -> str:
    """Path that a parameter had before peft put its layer into another one."""
    return name.replace(".base_layer.", ".").replace(".original_module.", ".")


def take_stock(host: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Fill in weights that a checkpoint left to ``model``: a ``load_state_dict`` pre-hook.

    Only weights that still are those of ``model`` are filled in; what the checkpoint brings is none of them from then
    on, and everything else stays strict.
    """
    assert isinstance(host, VLMCaptioner)
    host._stock -= {stock_name(key.removeprefix(prefix)) for key in state_dict}
    if not host._stock:
        return
    for name, parameter in host.named_parameters(remove_duplicate=False):
        if stock_name(name) in host._stock:
            state_dict.setdefault(prefix + name, parameter)
