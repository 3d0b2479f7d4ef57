"""VLMCaptioner: a vision-language model that says what changed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairBatch, PairFeatures, PairSample, ProvidesCaptions
from lightning_idc.models.distributed import all_gather_object, full_state_dict, gathered, is_rank_zero
from lightning_idc.models.vlm.base_weights import FinetunedCaptioner
from lightning_idc.models.vlm.compiling import compile_layers
from lightning_idc.models.vlm.families import family_of
from lightning_idc.models.vlm.families.base import TOKEN_TYPES, Family, image_token, media_tokens
from lightning_idc.models.vlm.folding import VLMDecoder
from lightning_idc.models.vlm.loading import (
    load_language_model,
    make_model,
    put_language_model,
    text_config_of,
    train_tokenizer,
)
from lightning_idc.models.vlm.net import CaptionSizes, VLMNet
from lightning_idc.models.vlm.precision import autocast_of, dtype_named, refuse_low_precision, set_precision
from lightning_idc.models.vlm.prompting import PROMPT, padded_prompts, prompt_tokens, with_question
from lightning_idc.models.vlm.published import (
    SKELETON,
    Source,
    load_empty,
    load_model,
    load_skeleton,
    save_skeleton,
)
from lightning_idc.models.vlm.scoring import up_to_last
from lightning_idc.models.vlm.sharding import fill_from_first, shard_net, take_precision_of_first
from lightning_idc.models.vlm.sizes import SIZES, fitted, padded
from lightning_idc.models.vlm.tokens import TokenizerVocabulary
from lightning_idc.models.vlm.tying import set_tie_config
from lightning_idc.nn.backbones import load_backbone
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

MOST_PROMPTS = 512  # that are kept as tokens
LONGEST = 128  # tokens of a generated caption where nothing says how long they are


class VLMCaptioner(FinetunedCaptioner):
    """Captions pairs with a vision-language model of the families in ``families/``.

    Args:
        model: folder or hub id of the model; None to make one from ``architecture``.
        architecture: transformers configuration of a random model, ``model_type`` included.
        prompt: what is asked after the two images; ``{question}`` in it stands for the pair's own ``meta["question"]``.
        prompts: what is asked about pairs of the parts of a mixture, by ``meta["part"]``.
        scoring: how several answers are scored: ``packed``, ``cached`` or ``plain`` of ``scoring.py``; ``auto`` takes
            the first of them that gives what the stock model gives, found by a check when it is first needed.
        activation_checkpointing: compute activations twice instead of keeping them.
        compile: ``layers`` to compile the layers of the language model and of the tower with torch.compile when
            training begins; worth it for long trainings on a GPU.
        dtype: of the frozen weights of ``model``, for example ``bfloat16``; those that train are float32. ``auto``
            takes that of the Trainer's mixed precision, that of the files on a GPU, float32 otherwise.
        revision: branch, tag or commit of ``model`` on the hub.
        device: where ``model`` is put without a Trainer, which has its own; ``auto`` takes a GPU if there is one.
        quantize: bits of the frozen weights of ``model``: ``4bit`` or ``8bit`` of bitsandbytes, ``int4`` or ``int8`` of
            torchao. Nothing of the model trains then; train adapters on it, but not on ``int4``, which has no gradient.
        attn: implementation of attention of ``model``, as transformers calls it, for example ``flash_attention_2``.
        min_pixels: of an image; smaller ones are scaled up, with their aspect kept.
        max_pixels: of an image; larger ones are scaled down, with their aspect kept. Each pair is then shown in its
            own size, by the model's own processor.
        tokenizer: of a random model, as JSON text; learned from the training captions when None.
        tokenizer_size: most tokens of a learned tokenizer.
        language_model: weights and tokenizer that the language part of ``architecture`` takes, in place of its
            ``text_config``: folder, hub id, ``.gguf`` file, or ``PACKAGE/FILE.gguf`` within an installed package.
        text_config: configuration of that language part; read from ``language_model`` when None.
        tower_weights: checkpoint of :class:`~lightning_idc.models.vlm.tower.TowerNaming` that the vision tower of
            ``architecture`` starts from.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.

    Raises:
        ConfigError: neither or both of ``model`` and ``architecture`` are given, or ``cached`` scoring meets
            activation checkpointing.
    """

    word_hparams: tuple[str, ...] = ("tokenizer", "text_config")
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
            raise ConfigError("give either `model`, a folder or hub id, or `architecture`, a configuration; not both")
        if architecture is None and (language_model or tower_weights):
            raise ConfigError(
                "`language_model` and `tower_weights` go into a random `architecture`; `model` has its own"
            )
        if scoring == "cached" and activation_checkpointing:
            raise ConfigError("activation checkpointing drops the keys and values that `cached` shares; use `packed`")
        dtype_named(dtype)
        self._start = (language_model, tower_weights)
        self._folder: Path | None = None
        self._dealt = False
        self._prompts: dict[tuple[str, int, int], dict[str, Tensor]] = {}

    # ---- making it --------------------------------------------------------------------------------------

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
            # sharded weights are dealt out by the first process, so that the host holds them once
            self._dealt = self.device_mesh is not None and source.quantize is None
            load = load_empty if self._dealt and not is_rank_zero() else load_model
            model, processor, family = load(source)
            self.base_weights = {f"net.model.{name}" for name, _ in model.named_parameters(remove_duplicate=False)}
        else:
            made = self._make_random(data)
            if made is None:
                return None  # a checkpoint may still bring the tokenizer
            model, processor, family = made
        if options["activation_checkpointing"]:
            model.activation_checkpointing_enable()
        for path in [""] if options["quantize"] else family.unused(model):
            model.get_submodule(path).requires_grad_(False)
        net = VLMNet(model, processor, family, options["scoring"])
        net.base_name = options["model"]
        self.vision_modules = tuple(f"net.model.{path}" for path in family.vision_parts(model))
        vocabulary = TokenizerVocabulary(processor, model.generation_config, media_tokens(model.config))
        self.use_vocabulary(vocabulary)
        if options["max_length"] is None:
            captions = data.train_captions() if isinstance(data, ProvidesCaptions) else []
            lengths = (len(vocabulary.encode(text)) - 1 for text in captions)
            self.store_hparams(max_length=max(lengths, default=LONGEST))
        return net.train(self.training)

    def _make_random(self, data: Any) -> tuple[Any, Any, Family] | None:
        options, (name, tower) = self.hparams, self._start
        family = family_of(options["architecture"].get("model_type"))
        special = family.special_tokens.values()
        language = None
        if options["tokenizer"] is None and name is not None:
            language, tokenizer = load_language_model(name, special)
            self.store_hparams(tokenizer=tokenizer, text_config=text_config_of(language))
        elif options["tokenizer"] is None:
            if not isinstance(data, ProvidesCaptions):
                return None
            texts = [*data.train_captions(), options["prompt"], *(options["prompts"] or {}).values()]
            self.store_hparams(tokenizer=train_tokenizer(texts, options["tokenizer_size"], special))
        told = {"text_config": options["text_config"]} if options["text_config"] is not None else {}
        model, processor, family = make_model({**options["architecture"], **told}, options["tokenizer"])
        if language is not None:
            put_language_model(model, family, language)
        if tower is not None:
            load_backbone(nn.ModuleDict({"tower": model.get_submodule(family.vision[0])}), tower)
        return model, processor, family

    def _source(self) -> Source:
        options = self.hparams
        device = None if self._trainer is not None else options["device"]
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else None
        if self._trainer is not None and self._trainer.state.fn == "fit" and options["quantize"] == "int4":
            raise ConfigError(
                "quantize is int4, whose product in torchao has no gradient: it is for captions alone. Train with "
                "4bit, 8bit or int8"
            )
        if self._trainer is not None and options["quantize"]:
            # packed where they are used: not every format can be moved
            device = str(self.trainer.strategy.root_device)
        dtype = dtype_named(options["dtype"])
        if options["dtype"] == "auto" and options["quantize"] != "int4":
            # files' own precision where a mixed one follows, since what trains is raised from it without a loss
            low = self._low_precision() is not None or (device is not None and device.startswith("cuda"))
            dtype = None if low else torch.float32
        return Source(options["model"], options["revision"], dtype, options["quantize"], options["attn"], device)

    def _low_precision(self) -> torch.dtype | None:
        """Precision of the frozen weights where it is below float32."""
        given = dtype_named(self.hparams["dtype"])
        mixed = None if self._trainer is None else autocast_of(str(self._trainer.precision))
        low = mixed or given
        return None if low in (None, torch.float32) else low

    def configure_model(self) -> None:
        self.build()
        dealt, self._dealt = self._dealt, False
        if dealt:
            take_precision_of_first(self.built_net)
        if self.net is not None and self.hparams["model"] is not None:
            set_precision(self.built_net, self._low_precision())
        if self.hparams["compile"] and self.net is not None and self.trainer.training:
            compile_layers(self.built_net)
        if self.device_mesh is not None and self.net is not None:
            whole = {name: p.detach() for name, p in self.net.state_dict().items()} if dealt and is_rank_zero() else {}
            shard_net(self.built_net, self.device_mesh, autocast_of(str(self.trainer.precision)))
            if dealt:
                fill_from_first(self.net, whole)
        super().configure_model()

    def configure_optimizers(self) -> Any:
        found = super().configure_optimizers()
        refuse_low_precision(self, found["optimizer"] if isinstance(found, dict) else found)
        return found

    # ---- seeing and saying ------------------------------------------------------------------------------

    @property
    def decoder(self) -> VLMDecoder:
        return VLMDecoder(self.built_net, self.built_vocabulary.special, self.hparams)

    def encode(self, batch: PairBatch) -> PairFeatures:
        inputs, images, sizes = batch.model_inputs, self._unpadded(batch), dict(batch.sizes)
        types = {name: inputs[name] for name in TOKEN_TYPES if name in inputs}
        if batch.prepared is None:
            sizes.pop("tower", None)
        features = self.built_net.encode(
            images, inputs["prompt_ids"], inputs["prompt_mask"], types, batch.prepared, inputs.get("positions"), sizes
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
        shown = self.built_net.family.shown(self._unpadded(batch))
        return list(zip(shown, self._questions(batch), strict=True))

    def _questions(self, batch: PairBatch) -> list[str]:
        """Question about each pair: its own, else that of its part of a mixture, else the usual one."""
        by_part, usual = self.hparams["prompts"] or {}, self.hparams["prompt"]
        prompts = [
            prompt or by_part.get(meta.get("part", ""), usual)
            for prompt, meta in zip(batch.prompts, batch.meta, strict=True)
        ]
        return [with_question(*known) for known in zip(prompts, batch.ids, batch.meta, strict=True)]

    def log_probs(self, features: PairFeatures, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        net = self.built_net
        if tokens.shape[1] > 1 and net.scoring == "auto":
            with gathered(net):  # the stock model that is compared with runs past the methods that gather weights
                net.scoring = net.scoring_method
        return nn.functional.pad(net.log_probs(features, tokens, mask), (1, 0))

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        """Make a batch; pairs may differ in size, each is shown in its own; runs in the data loader's workers.

        The model's own processor scales and cuts the images here.

        Raises:
            ConfigError: a prompt and its images are longer than the model's context, or a pair has no question of its
                own where the prompt asks it.
            DataError: a caption holds the placeholder of an image.
        """
        shown = [self.fit(sample) for sample in samples]
        sizes = [(sample.before.shape[1], sample.before.shape[2]) for sample in shown]
        batch = super().collate(padded(shown))
        # a template may end a turn with one of them
        shows = self.built_net.media_tokens - set(self.built_vocabulary.special.ends)
        held = torch.isin(batch.tokens, torch.tensor(sorted(shows), dtype=torch.long)).flatten(1).any(1)
        if held.any():
            raise DataError(
                f"a caption of pair {batch.ids[int(held.int().argmax())]!r} holds what stands for an image in this "
                "model's prompts; take it out of the captions"
            )
        batch.model_inputs = self.prompt_inputs(self._questions(batch), sizes)
        images = list(batch.images)
        if len(set(sizes)) > 1:
            batch.model_inputs[SIZES] = torch.tensor(sizes)
            images = [torch.stack([sample.before, sample.after]) for sample in shown]
        net = self.built_net
        pixels = net.family.pixels(net.model, net.processor, images)
        moved, stays = net.family.tower_arguments(net.model, pixels)
        batch.pixels, batch.pixels_of = {**pixels, **moved}, batch.images
        prompt_ids = batch.model_inputs["prompt_ids"]
        batch.sizes = {
            "features": int((prompt_ids[0] == image_token(net.model.config)).sum()),
            "is_padded": not bool(batch.model_inputs["prompt_mask"].all()),
            "captions": int(up_to_last(batch.caption_mask[..., 1:]).flatten(1).sum(-1).max()),
            "tower": stays,
        }
        return batch

    def batch_image_size(self, batch: PairBatch) -> list[int] | None:
        # the model takes any size, so what it is asked about is never stretched to that of its training
        return None

    def fit(self, sample: PairSample) -> PairSample:
        """The pair scaled, with its aspect kept, to at most ``max_pixels`` and at least ``min_pixels`` per image."""
        return fitted(sample, self.hparams["min_pixels"], self.hparams["max_pixels"])

    def prompt_inputs(self, prompts: Sequence[str], sizes: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
        """Inputs of :meth:`VLMNet.encode` for prompts about pairs of sizes.

        Args:
            prompts: one per pair.
            sizes: height and width of the images of each.
        """
        asked = [self._prompt(prompt, *size) for prompt, size in zip(prompts, sizes, strict=True)]
        return padded_prompts(asked, self.built_vocabulary.special.pad)

    def prompt_ids(self, prompt: str, height: int, width: int) -> list[int]:
        """Token ids of a prompt about two images of a size, with a placeholder per feature of theirs."""
        return self._prompt(prompt, height, width)["input_ids"].tolist()

    def _prompt(self, prompt: str, height: int, width: int) -> dict[str, Tensor]:
        key = (prompt, height, width)
        if key not in self._prompts:
            if len(self._prompts) >= MOST_PROMPTS:  # questions may be as many as pairs
                self._prompts.clear()
            self._prompts[key] = prompt_tokens(self.built_net, prompt, (height, width), self.hparams["max_length"])
        return self._prompts[key]

    def merge_adapters(self) -> None:
        super().merge_adapters()
        set_tie_config(self.built_net.model)

    # ---- giving it away ---------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write ``config.json`` and ``model.safetensors``, without add-ons, and return the folder.

        What the model itself is made from lies beside them, so that the folder is read without ``model``.
        """
        written = super().save_pretrained(folder)
        if is_rank_zero():
            save_skeleton(self.built_net, written / SKELETON)
        all_gather_object(None)  # no process goes on to read what is not written yet
        return written

    def build_from(self, folder: Path) -> None:
        """Make the network of a folder of :meth:`save_pretrained`, which brings all weights."""
        skeleton = folder / SKELETON
        self._folder = skeleton if skeleton.is_dir() else None
        try:
            self.build()
        finally:
            self._folder = None

    def save_model(self, folder: str | Path, merge: bool = False, dtype: str | None = None) -> Path:
        """Write model and processor in the layout of transformers, for ``model:`` or for other programs.

        Args:
            folder: to write.
            merge: first make the adapters part of the network, as :meth:`merge_adapters` does, for good.
            dtype: of the written weights; as they are when None.

        Raises:
            ConfigError: an adapter is on the network, which that layout cannot hold.
        """
        if merge:
            self.merge_adapters()
        if len(self.adapters):
            raise ConfigError(
                f"adapters {list(self.adapters)} are on the network, which plain transformers cannot run: LoRA is made "
                "part of the weights with merge=True, MDP stays a part of this library; save_pretrained keeps both"
            )
        net, kind = self.built_net, None if dtype is None else dtype_named(dtype)
        state = full_state_dict(net.model.state_dict())
        if is_rank_zero():
            written = {k: v.to(kind) if kind and v.is_floating_point() else v for k, v in state.items()}
            net.model.save_pretrained(folder, state_dict=written)
            if kind is not None:
                # by which transformers opens them, and which it took from the model
                config = copy.deepcopy(net.model.config)
                config.dtype = kind
                config.save_pretrained(folder)
            net.processor.save_pretrained(folder)
        all_gather_object(None)
        return Path(folder)
