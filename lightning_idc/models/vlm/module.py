"""VLMCaptioner: a vision-language model that describes the change between two images."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_idc.checkpoints.resolve import is_hub_id, resolve
from lightning_idc.images.types import PairBatch, PairFeatures, PairSample, ProvidesCaptions
from lightning_idc.models.distributed import all_gather_object, full_state_dict, gathered, is_rank_zero
from lightning_idc.models.loss_check import check_weights
from lightning_idc.models.vlm.base_weights import FinetunedCaptioner
from lightning_idc.models.vlm.compiling import compile_layers
from lightning_idc.models.vlm.decoding import VLMDecoder
from lightning_idc.models.vlm.families import family_of
from lightning_idc.models.vlm.families.base import TOKEN_TYPES, Family, image_token, media_tokens
from lightning_idc.models.vlm.loading import (
    load_language_model,
    load_language_weights,
    make_model,
    text_config_of,
    train_tokenizer,
)
from lightning_idc.models.vlm.lora import LoraAdapter
from lightning_idc.models.vlm.net import CaptionSizes, VLMNet
from lightning_idc.models.vlm.peft_folder import is_peft_folder, read_peft_folder
from lightning_idc.models.vlm.precision import autocast_of, dtype_named, set_precision
from lightning_idc.models.vlm.prompting import PROMPT, pad_prompts, prompt_tokens, with_question
from lightning_idc.models.vlm.published import (
    SKELETON,
    Source,
    load_empty,
    load_model,
    load_skeleton,
    save_skeleton,
)
from lightning_idc.models.vlm.scoring import up_to_last
from lightning_idc.models.vlm.sharding import broadcast_dtypes, broadcast_weights, shard_net
from lightning_idc.models.vlm.sizes import SIZES, pad_to_largest, scale_to_pixels
from lightning_idc.models.vlm.static_cache import check_static_cache, compile_arguments
from lightning_idc.models.vlm.tokens import TokenizerVocabulary
from lightning_idc.models.vlm.tying import set_tie_config
from lightning_idc.nn.backbones import load_backbone
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.outputs import Output

MAX_CACHED_PROMPTS = 512
DEFAULT_MAX_LENGTH = 128
"""Default of ``max_length`` without training captions."""


class VLMCaptioner(FinetunedCaptioner):
    """Captions pairs with a vision-language model of the families in ``families/``.

    Args:
        model: folder or hub id of the model; None to make one from ``architecture``.
        architecture: transformers configuration of a random model, ``model_type`` included.
        prompt: instruction after the two images; ``{question}`` is replaced by the pair's ``meta["question"]``.
        prompts: instructions for the parts of a mixture of data sets, by ``meta["part"]``.
        scoring: method that scores several answers: ``packed``, ``cached`` or ``plain`` of ``scoring.py``; ``auto``
            selects the first one that agrees with the stock model, by a check before the first use.
        activation_checkpointing: recompute activations in the backward pass instead of storing them.
        compile: ``layers`` to compile the layers of the language model and of the tower with torch.compile when
            training begins, which pays off in long trainings on a GPU.
        cache_implementation: ``static`` to decode with keys and values of fixed shape, so that a GPU compiles one graph
            for all steps and replays it; ``dynamic`` to extend them with each token.
        compile_config: arguments of transformers' ``CompileConfig`` for the decoding step with a static cache, for
            example ``{mode: default}`` without CUDA graphs; transformers' defaults on a GPU, and no compilation
            elsewhere, when None.
        dtype: dtype of the frozen weights of ``model``, for example ``bfloat16``; trainable weights are float32.
            ``auto`` selects the dtype of the Trainer's mixed precision, that of the files on a GPU, or float32.
        revision: branch, tag or commit of ``model`` on the hub.
        device: device of ``model`` if there is no Trainer; ``auto`` selects a GPU if there is one.
        quantize: bits of the frozen weights of ``model``: ``4bit`` or ``8bit`` of bitsandbytes, ``int4`` or ``int8`` of
            torchao. All weights of the model are then frozen; adapters can be trained, except on ``int4``.
        attn: attention implementation of ``model``, by its name in transformers, for example ``flash_attention_2``.
        min_pixels: minimum number of pixels of an image; smaller images are scaled up with their aspect ratio.
        max_pixels: maximum number of pixels of an image; larger images are scaled down with their aspect ratio. The
            images of each pair are then prepared at that pair's size by the processor of the model.
        tokenizer: tokenizer of a random model, as JSON text; learned from the training captions when None.
        tokenizer_size: maximum vocabulary size of a learned tokenizer.
        language_model: pretrained weights and tokenizer of the language part of ``architecture``, in place of its
            ``text_config``: folder, hub id, ``.gguf`` file, or ``PACKAGE/FILE.gguf`` within an installed package.
        text_config: configuration of the language part; read from ``language_model`` when None.
        tower_weights: checkpoint of :class:`~lightning_idc.models.vlm.tower.TowerNaming` with the initial weights of
            the vision tower of ``architecture``.
        options: arguments of :class:`~lightning_idc.models.captioner.PairCaptioner`.

    Raises:
        ConfigError: neither or both of ``model`` and ``architecture`` are set, or ``cached`` scoring is combined with
            activation checkpointing.
    """

    token_hparams: tuple[str, ...] = ("tokenizer", "text_config")
    not_stored = ("language_model", "tower_weights")
    takes_prompt = True

    def __init__(
        self,
        model: str | None = None,
        architecture: dict[str, Any] | None = None,
        prompt: str = PROMPT,
        prompts: dict[str, str] | None = None,
        scoring: Literal["auto", "packed", "cached", "plain"] = "auto",
        activation_checkpointing: bool = False,
        compile: Literal["layers"] | None = None,
        cache_implementation: Literal["dynamic", "static"] = "dynamic",
        compile_config: dict[str, Any] | None = None,
        dtype: str = "auto",
        revision: str | None = None,
        device: str | None = None,
        quantize: Literal["4bit", "8bit", "int4", "int8"] | None = None,
        attn: str | None = None,
        min_pixels: PositiveInt | None = None,
        max_pixels: PositiveInt | None = None,
        tokenizer: str | None = None,
        tokenizer_size: PositiveInt = 2000,
        language_model: str | None = None,
        text_config: dict[str, Any] | None = None,
        tower_weights: str | None = None,
        **options: Any,
    ) -> None:
        check_arguments(VLMCaptioner.__init__, locals())
        super().__init__(**options)
        if (model is None) == (architecture is None):
            raise ConfigError("set either `model`, a folder or hub id, or `architecture`, a configuration; not both")
        if architecture is None and (language_model or tower_weights):
            raise ConfigError(
                "`language_model` and `tower_weights` initialize a random `architecture`; `model` has its own weights"
            )
        if scoring == "cached" and activation_checkpointing:
            raise ConfigError(
                "activation checkpointing discards the keys and values that `cached` shares; use `packed`"
            )
        if compile_config is not None and cache_implementation != "static":
            raise ConfigError("compile_config compiles decoding with a static cache; set cache_implementation: static")
        dtype_named(dtype)
        self._initial_weights = (language_model, tower_weights)
        self._folder: Path | None = None
        self._is_broadcast = False
        self._prompts: dict[tuple[str, int, int], dict[str, Tensor]] = {}

    # ---- construction -----------------------------------------------------------------------------------

    def make_net(self) -> nn.Module | None:
        options = self.hparams
        data = self._trainer.datamodule if self._trainer is not None else None  # type: ignore[attr-defined]
        if isinstance(data, ProvidesCaptions):
            self.store_hparams(
                no_change_captions=options["no_change_captions"] or data.no_change_captions(),
                image_size=options["image_size"] or data.image_size,
            )
        if self._folder is not None:
            model, processor, family = load_skeleton(self._folder)
        elif options["model"] is not None:
            source = self._source()
            # sharded weights are broadcast from rank 0, so that host memory holds them once
            self._is_broadcast = self.device_mesh is not None and source.quantize is None
            load = load_empty if self._is_broadcast and not is_rank_zero() else load_model
            model, processor, family = load(source)
            self.base_weights = {f"net.model.{name}" for name, _ in model.named_parameters(remove_duplicate=False)}
        else:
            random_model = self._make_random(data)
            if random_model is None:
                return None  # a checkpoint may still bring the tokenizer
            model, processor, family = random_model
        if options["activation_checkpointing"]:
            model.activation_checkpointing_enable()
        for path in [""] if options["quantize"] else family.unused(model):
            model.get_submodule(path).requires_grad_(False)
        if options["cache_implementation"] == "static":
            check_static_cache(model)
            compile_arguments(model, options["compile_config"])
        net = VLMNet(model, processor, family, options["scoring"])
        net.base_name = options["model"]
        self.vision_modules = tuple(f"net.model.{path}" for path in family.vision_parts(model))
        head_size = model.config.get_text_config().vocab_size
        vocabulary = TokenizerVocabulary(processor, model.generation_config, media_tokens(model.config), head_size)
        self.use_vocabulary(vocabulary)
        if options["max_length"] is None:
            captions = data.train_captions() if isinstance(data, ProvidesCaptions) else []
            lengths = (len(vocabulary.encode(text)) - 1 for text in captions)
            self.store_hparams(max_length=max(lengths, default=DEFAULT_MAX_LENGTH))
        return net.train(self.training)

    def _make_random(self, data: Any) -> tuple[Any, Any, Family] | None:
        options, (language_model, tower_weights) = self.hparams, self._initial_weights
        family = family_of(options["architecture"].get("model_type"))
        special_tokens = family.special_tokens.values()
        language = None
        if options["tokenizer"] is None and language_model is not None:
            language, tokenizer = load_language_model(language_model, special_tokens)
            self.store_hparams(tokenizer=tokenizer, text_config=text_config_of(language))
        elif options["tokenizer"] is None:
            if not isinstance(data, ProvidesCaptions):
                return None
            texts = [*data.train_captions(), options["prompt"], *(options["prompts"] or {}).values()]
            self.store_hparams(tokenizer=train_tokenizer(texts, options["tokenizer_size"], special_tokens))
        overrides = {"text_config": options["text_config"]} if options["text_config"] is not None else {}
        model, processor, family = make_model({**options["architecture"], **overrides}, options["tokenizer"])
        if language is not None:
            load_language_weights(model, family, language)
        if tower_weights is not None:
            load_backbone(nn.ModuleDict({"tower": model.get_submodule(family.vision[0])}), tower_weights)
        return model, processor, family

    def _source(self) -> Source:
        options = self.hparams
        device = None if self._trainer is not None else options["device"]
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else None
        if self._trainer is not None and self._trainer.state.fn == "fit" and options["quantize"] == "int4":
            raise ConfigError(
                "quantize is int4, whose product in torchao has no gradient, so it is for inference only; train with "
                "4bit, 8bit or int8"
            )
        if self._trainer is not None and options["quantize"]:
            # quantize on the target device: not every format can be moved afterwards
            device = str(self.trainer.strategy.root_device)
        dtype = dtype_named(options["dtype"])
        if options["dtype"] == "auto" and options["quantize"] != "int4":
            # mixed precision loads the dtype of the files: casting trainable weights to float32 later loses nothing
            takes_file_dtype = self._low_precision() is not None or (device is not None and device.startswith("cuda"))
            dtype = None if takes_file_dtype else torch.float32
        return Source(
            name=options["model"],
            revision=options["revision"],
            dtype=dtype,
            quantize=options["quantize"],
            attn=options["attn"],
            device=device,
        )

    def _low_precision(self) -> torch.dtype | None:
        """Dtype of the frozen weights if it is below float32, else None."""
        requested = dtype_named(self.hparams["dtype"])
        mixed = None if self._trainer is None else autocast_of(str(self._trainer.precision))
        dtype = mixed or requested
        return None if dtype in (None, torch.float32) else dtype

    def configure_model(self) -> None:
        self.build()
        is_broadcast, self._is_broadcast = self._is_broadcast, False
        if is_broadcast:
            broadcast_dtypes(self.built_net)
        if self.net is not None and self.hparams["model"] is not None:
            set_precision(self.built_net, self._low_precision())
        if self.hparams["compile"] and self.net is not None and self.trainer.training:
            compile_layers(self.built_net)
        if self.device_mesh is not None and self.hparams["cache_implementation"] == "static":
            raise ConfigError("cache_implementation is static, but the weights are sharded; use dynamic")
        if self.device_mesh is not None and self.net is not None:
            full_weights = (
                {name: p.detach() for name, p in self.net.state_dict().items()}
                if is_broadcast and is_rank_zero()
                else {}
            )
            shard_net(self.built_net, self.device_mesh, autocast_of(str(self.trainer.precision)))
            if is_broadcast:
                broadcast_weights(self.net, full_weights)
        super().configure_model()

    # ---- encoding and prompts ---------------------------------------------------------------------------

    @property
    def decoder(self) -> VLMDecoder:
        return VLMDecoder(self.built_net, self.built_vocabulary.special, self.hparams)

    def encode(self, batch: PairBatch) -> PairFeatures:
        inputs, images, sizes = batch.model_inputs, self._unpadded(batch), dict(batch.sizes)
        if batch.prepared is None:
            sizes.pop("tower", None)
        features = self.built_net.encode(
            images,
            prompt_ids=inputs["prompt_ids"],
            prompt_mask=inputs["prompt_mask"],
            token_types={name: inputs[name] for name in TOKEN_TYPES if name in inputs},
            pixels=batch.prepared,
            positions=inputs.get("positions"),
            sizes=sizes,
        )
        if sizes:
            features.sizes["captions"] = CaptionSizes(batch.tokens, batch.caption_mask, sizes["captions"])
        return features

    @staticmethod
    def _unpadded(batch: PairBatch) -> Tensor | list[Tensor]:
        """Images of a batch, each pair in its own size."""
        if SIZES not in batch.model_inputs:
            return batch.images
        sizes = batch.model_inputs[SIZES].tolist()
        return [pair[..., :height, :width] for pair, (height, width) in zip(batch.images, sizes, strict=True)]

    def images_and_prompts(self, batch: PairBatch) -> list[tuple[list[Tensor], str]]:
        net = self.built_net
        images = net.family.processor_images(net.processor, self._unpadded(batch))
        return list(zip(images, self._batch_prompts(batch), strict=True))

    def _batch_prompts(self, batch: PairBatch) -> list[str]:
        """Prompt of each pair: its own, else that of its part of a mixture, else the default."""
        by_part, default = self.hparams["prompts"] or {}, self.hparams["prompt"]
        prompts = [
            prompt or by_part.get(meta.get("part", ""), default)
            for prompt, meta in zip(batch.prompts, batch.meta, strict=True)
        ]
        return [
            with_question(prompt, id, meta) for prompt, id, meta in zip(prompts, batch.ids, batch.meta, strict=True)
        ]

    def log_probs(self, features: PairFeatures, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        net = self.built_net
        if tokens.shape[1] > 1 and net.scoring == "auto":
            with gathered(net):  # the check calls the stock model, not the methods that gather weights
                net.scoring = net.scoring_method
        return nn.functional.pad(net.log_probs(features, tokens, mask), (1, 0))

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        """Make a batch in a worker of the data loader; pairs may differ in size.

        The processor of the model prepares the images here.

        Raises:
            ConfigError: a prompt and its images exceed the context length of the model, or a pair has no
                ``meta["question"]`` for the prompt.
            DataError: a caption contains the image placeholder.
        """
        scaled = [self.resize_to_budget(sample) for sample in samples]
        sizes = [(sample.before.shape[1], sample.before.shape[2]) for sample in scaled]
        batch = super().collate(pad_to_largest(scaled))
        # a chat template may end a turn with a media token
        placeholders = self.built_net.media_tokens - set(self.built_vocabulary.special.ends)
        has_placeholder = (
            torch.isin(batch.tokens, torch.tensor(sorted(placeholders), dtype=torch.long)).flatten(1).any(1)
        )
        if has_placeholder.any():
            id = batch.ids[int(has_placeholder.int().argmax())]
            raise DataError(
                f"a caption of pair {id!r} contains the image placeholder of this model; remove it from the captions"
            )
        batch.model_inputs = self.prompt_inputs(self._batch_prompts(batch), sizes)
        images = list(batch.images)
        if len(set(sizes)) > 1:
            batch.model_inputs[SIZES] = torch.tensor(sizes)
            images = [torch.stack([sample.before, sample.after]) for sample in scaled]
        net = self.built_net
        pixels = net.family.pixels(net.model, net.processor, images)
        to_device, on_cpu = net.family.tower_arguments(net.model, pixels)
        batch.pixels, batch.pixels_of = {**pixels, **to_device}, batch.images
        prompt_ids = batch.model_inputs["prompt_ids"]
        batch.sizes = {
            "features": int((prompt_ids[0] == image_token(net.model.config)).sum()),
            "is_padded": not bool(batch.model_inputs["prompt_mask"].all()),
            "captions": int(up_to_last(batch.caption_mask[..., 1:]).flatten(1).sum(-1).max()),
            "tower": on_cpu,
        }
        return batch

    def batch_image_size(self, batch: PairBatch) -> list[int] | None:
        # the model takes any size, so images are never resized to the training size
        return None

    def resize_to_budget(self, sample: PairSample) -> PairSample:
        """Scale a pair with its aspect ratio to between ``min_pixels`` and ``max_pixels`` pixels per image."""
        return scale_to_pixels(sample, self.hparams["min_pixels"], self.hparams["max_pixels"])

    def prompt_inputs(self, prompts: Sequence[str], sizes: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
        """Prompt inputs of :meth:`VLMNet.encode`.

        Args:
            prompts: one per pair.
            sizes: height and width of the images of each pair.
        """
        tokenized = [self._prompt(prompt, *size) for prompt, size in zip(prompts, sizes, strict=True)]
        return pad_prompts(tokenized, self.built_vocabulary.special.pad)

    def prompt_ids(self, prompt: str, height: int, width: int) -> list[int]:
        """Token ids of a prompt about two images of one size, with a placeholder per image feature."""
        return self._prompt(prompt, height, width)["input_ids"].tolist()

    def _prompt(self, prompt: str, height: int, width: int) -> dict[str, Tensor]:
        key = (prompt, height, width)
        if key not in self._prompts:
            if len(self._prompts) >= MAX_CACHED_PROMPTS:  # each pair may have a different question
                self._prompts.clear()
            self._prompts[key] = prompt_tokens(self.built_net, prompt, (height, width), self.hparams["max_length"])
        return self._prompts[key]

    def load_adapters(self, folder: str | Path) -> None:
        """Install the adapters of :meth:`save_adapters`, or a LoRA in the layout of PEFT, with their weights.

        Args:
            folder: folder, or hub id.

        Raises:
            CheckpointError: the folder has neither, or does not fit the network.
        """
        path = resolve(str(folder)) if is_hub_id(str(folder)) else Path(folder)
        if not is_peft_folder(path):
            super().load_adapters(path)
            return
        self.build()
        source = read_peft_folder(path)
        net = self.built_net
        source.check_tokens(net.processor.tokenizer, net.model.get_input_embeddings().num_embeddings)
        weights = source.renamed(net.model)
        self.add_adapter("lora", LoraAdapter, **source.options(weights, self.built_net.language_modules))
        adapter = self.adapters.installed()["lora"]
        assert isinstance(adapter, LoraAdapter)
        adapter.load_weights(weights, path)

    def merge_adapters(self) -> None:
        super().merge_adapters()
        set_tie_config(self.built_net.model)

    # ---- saving -----------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write ``config.json`` and ``model.safetensors``, without add-ons, and return the folder.

        The configuration and processor of the model are saved as well, so that loading does not need ``model``.
        """
        written = super().save_pretrained(folder)
        if is_rank_zero():
            with Output(written / SKELETON, "configuration of a model") as draft:
                save_skeleton(self.built_net, draft)
        all_gather_object(None)  # barrier: other ranks may read the folder next
        return written

    def build_from(self, folder: Path) -> None:
        """Build the network from a folder of :meth:`save_pretrained`, without the published model."""
        skeleton = folder / SKELETON
        self._folder = skeleton if skeleton.is_dir() else None
        try:
            self.build()
        finally:
            self._folder = None

    def save_model(self, folder: str | Path, merge: bool = False, dtype: str | None = None) -> Path:
        """Write model and processor in the layout of transformers, for ``model:`` or for other programs.

        Args:
            folder: output folder.
            merge: whether to merge the adapters into the network first, permanently, by :meth:`merge_adapters`.
            dtype: dtype of the saved weights; unchanged when None.

        Raises:
            ConfigError: the network has an adapter, which that layout cannot represent, or the folder has other files
                with these names.
            CheckpointError: a weight is not finite.
        """
        check_weights(self)
        if merge:
            self.merge_adapters()
        if len(self.adapters):
            raise ConfigError(
                f"transformers cannot run the adapters {list(self.adapters)}: merge=True merges LoRA into the weights, "
                "MDP runs only in this library; save_pretrained writes both"
            )
        net, saved_dtype = self.built_net, None if dtype is None else dtype_named(dtype)
        state = full_state_dict(net.model.state_dict())
        if is_rank_zero():
            if saved_dtype is not None:
                state = {k: v.to(saved_dtype) if v.is_floating_point() else v for k, v in state.items()}
            with Output(folder, "model of transformers") as draft:
                net.model.save_pretrained(draft, state_dict=state)
                if saved_dtype is not None:
                    # save_pretrained wrote the dtype of the loaded model, which transformers would load with
                    config = copy.deepcopy(net.model.config)
                    config.dtype = saved_dtype
                    config.save_pretrained(draft)
                net.processor.save_pretrained(draft)
        all_gather_object(None)
        return Path(folder)
