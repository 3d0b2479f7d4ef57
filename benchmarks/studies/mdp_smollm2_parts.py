"""The captioner of ``mdp_smollm2.py``: tokens of both images as the prefix of a pretrained language model with LoRA.

1. ``StagesBackbone`` of ``mdp_parts.py``: frozen stages -> tokens of each image; what is added changes its output;
2. ``PrefixNet``: the tokens of both images, projected to the embeddings of the language model, then the captions.

The language model is frozen in bfloat16 and computes in it; LoRA and all else that is trained is float32. Nothing
subtracts or aligns the images.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from benchmarks.studies.mdp_parts import StagesBackbone
from lightning_idc.images.types import PairFeatures
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.vlm.loading import END, PAD, load_language_model, train_tokenizer
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.models.vlm.tokens import TokenizerVocabulary
from lightning_idc.nn.grid_captioner import GridCaptionNet
from lightning_idc.utils.files import atomic_write

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
"""Shape of the random language model of smoke runs."""


@cache
def pretrained(name: str) -> tuple[Any, str]:
    """Language model in bfloat16 and the JSON text of its tokenizer; read once per process."""
    model, tokenizer = load_language_model(name, ())
    return model.to(torch.bfloat16), tokenizer


def language_model(name: str | None, captions: list[str]) -> tuple[Any, Any]:
    """Frozen language model and its tokenizer; a tiny random one, with a tokenizer for the captions, when None."""
    from tokenizers import Tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    if name is None:
        text = train_tokenizer(captions, 300, ())
        model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=300, **TINY)).to(torch.bfloat16)
        special = {"pad_token": PAD, "eos_token": END}
    else:
        loaded, text = pretrained(name)
        model, backend = copy.deepcopy(loaded), Tokenizer.from_str(text)
        special = {
            f"{kind}_token": backend.id_to_token(getattr(model.config, f"{kind}_token_id")) for kind in ("pad", "eos")
        }
    # of the kernels in bfloat16 on a CPU, those of plain attention are the fastest at a hundred tokens
    model.set_attn_implementation("eager")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), **special)
    return model.requires_grad_(False), tokenizer


@dataclass
class PrefixState:
    """Keys and values of the prefix and of the tokens so far."""

    cache: Any

    def select(self, rows: Tensor) -> PrefixState:
        """State of selected rows; the others are dropped from the cache."""
        self.cache.batch_select_indices(rows)
        return self


class PrefixNet(GridCaptionNet):
    """Tokens of both images, ``(B, 2 cells^2, D)``, as the prefix of a language model.

    Args:
        backbone: tokens of one image.
        language: causal language model of width D.
    """

    def __init__(self, backbone: StagesBackbone, language: Any) -> None:
        cells, width, hidden = backbone.stages.cells, backbone.width, language.config.hidden_size
        super().__init__(backbone, (cells, cells), freeze_backbone=False)
        self.language, self.image = language, nn.Embedding(2, width)
        nn.init.normal_(self.image.weight, std=0.02)
        self.project = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden)
        )

    def encode(self, images: Tensor) -> PairFeatures:
        """Features of uint8 pairs ``(B, 2, 3, H, W)``."""
        tokens = self.grids(images) + self.image.weight[:, None]
        return PairFeatures(self.project(tokens).flatten(1, 2))  # (B, 2, cells, D) -> (B, 2 cells, D)

    def hidden(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Last hidden states ``(B, K, T, D)`` at ``tokens (B, K, T)``; K captions share one pass over the prefix."""
        length, (captions, size) = features.memory.shape[1], tokens.shape[1:]
        index = torch.arange(captions * size)
        caption, position = index // size, index % size
        # a token sees the prefix up to itself, or all of it and the earlier tokens of its own caption
        visible = torch.ones(length + len(index), length + len(index), dtype=torch.bool).tril()
        visible[length:, length:] &= caption[:, None] == caption
        output = self._run(
            torch.cat([features.memory, self.embedded(tokens.flatten(1))], 1),
            attention_mask=torch.zeros(visible.shape, dtype=torch.bfloat16).masked_fill(~visible, -1e9)[None, None],
            position_ids=torch.cat([torch.arange(length), length + position])[None],
            use_cache=False,
        )
        return output.last_hidden_state[:, length:].unflatten(1, (captions, size))

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``(N, V)`` of hidden states ``(N, D)``."""
        return self.language.lm_head(hidden.to(torch.bfloat16)).float()

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` of the token after each of ``tokens (B, K, T)``."""
        return self.head(self.hidden(features, tokens))

    def start(self, features: PairFeatures) -> Any:
        """State before the first token."""
        return PrefixState(self._run(features.memory, use_cache=True).past_key_values)

    def step(self, state: Any, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after tokens ``(N,)``; extends the cache of the state."""
        output = self._run(self.embedded(tokens[:, None]), past_key_values=state.cache, use_cache=True)
        return self.head(output.last_hidden_state[:, -1])

    def embedded(self, tokens: Tensor) -> Tensor:
        """Embeddings of token ids."""
        embeddings: Tensor = self.language.get_input_embeddings()(tokens)
        return embeddings

    def _run(self, inputs: Tensor, **options: Any) -> Any:
        from peft.helpers import disable_input_dtype_casting

        # autocast computes the float32 weights of LoRA in bfloat16 as well
        with torch.autocast("cpu", torch.bfloat16), disable_input_dtype_casting(self.language):
            return self.language.model(inputs_embeds=inputs.to(torch.bfloat16), **options)


class PrefixCaptioner(PairCaptioner):
    """Captioner with a :class:`PrefixNet`; the parameter group ``language`` is the LoRA.

    Args:
        language: see ``language_model`` of :class:`~lightning_idc.models.vlm.module.VLMCaptioner`; None for a tiny
            random one.
        weights: see :class:`~benchmarks.studies.mdp_parts.FrozenStages`.
        cells: see :class:`~benchmarks.studies.mdp_parts.FrozenStages`.
        width: channels of the tokens of the images.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    vision_modules = ("net.backbone", "net.image", "net.project")

    def __init__(
        self, language: str | None = None, weights: str | None = None, cells: int = 5, width: int = 64, **options: Any
    ) -> None:
        super().__init__(**options)

    def make_net(self) -> nn.Module:
        options, captions = self.hparams, self.data.train_captions()
        model, tokenizer = language_model(options["language"], captions)
        vocabulary = TokenizerVocabulary(SimpleNamespace(tokenizer=tokenizer, chat_template=None))
        self.use_vocabulary(vocabulary)
        longest = max(len(vocabulary.encode(text)) - 1 for text in captions)
        self.store_hparams(max_length=longest, image_size=self.data.image_size)
        return PrefixNet(StagesBackbone(options["width"], options["weights"], options["cells"]), model)

    def log_probs(self, features: PairFeatures, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        targets = tokens[..., 1:]
        scored = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask[..., 1:]
        logits = self.built_net.head(self.built_net.hidden(features, tokens[..., :-1])[scored])
        values = -nn.functional.cross_entropy(logits, targets[scored], reduction="none")
        scores = values.new_zeros(targets.shape).masked_scatter(scored, values)
        return nn.functional.pad(scores, (1, 0))


def lora(rank: int) -> LoRA:
    """Callback that adds LoRA to the attention of the language model."""
    return LoRA(rank=rank, alpha=2 * rank, freeze=["language"], targets=r".*\.[qkvo]_proj")


def save_between(captioner: PairCaptioner, file: Path) -> None:
    """Write the weights between encoder and captioner, for :class:`StartFrom`."""
    between = {
        name: value for name, value in captioner.state_dict().items() if name.startswith(("net.backbone.", "adapters."))
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, partial(torch.save, between))


class StartFrom(Callback):
    """Loads weights before the first step of a training that does not resume.

    Args:
        weights: state dict of some modules; the file may be missing.
    """

    def __init__(self, weights: Path) -> None:
        self.weights = weights

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.weights.is_file() and trainer.ckpt_path is None:
            state = torch.load(self.weights, weights_only=True)
            pl_module.load_state_dict({**pl_module.state_dict(), **state})


class Progress(Callback):
    """Counts the CPU seconds of a training over all its processes, and prints them with the mean loss.

    Args:
        name: name of the training.
        every: number of steps between two lines.
    """

    def __init__(self, name: str, every: int) -> None:
        self.name, self.every = name, every
        self.losses: list[float] = []
        self.seconds, self._begin = 0.0, 0.0

    @property
    def total(self) -> float:
        """CPU seconds so far."""
        return self.seconds + time.process_time() - self._begin

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.total}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.seconds = state_dict["seconds"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = time.process_time()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *unused: Any) -> None:
        self.losses.append(float(outputs["loss"]))
        if trainer.global_step % self.every == 0:
            mean, self.losses = sum(self.losses) / len(self.losses), []
            print(f"{self.name}  step {trainer.global_step}  loss {mean:.3f}  CPU {self.total:.0f} s", flush=True)
