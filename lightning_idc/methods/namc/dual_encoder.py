"""Dual encoders of images and texts, with patches and words in one space: CLIP, and a small one for other data.

Shapes: N images or texts, P patches per image, S tokens per text, D channels of the shared space.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.nn.backbones import build_backbone
from lightning_idc.nn.clip import CLIP_MEAN, CLIP_STD, build_clip, eot_pooling, text_tokens
from lightning_idc.nn.transformer import EncoderLayer
from lightning_idc.nn.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, ClipVocabulary
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, check_arguments
from lightning_idc.utils.errors import CheckpointError, reads_file

MASK_WORD = "[MASK]"


@dataclass(slots=True)
class ImageEmbeddings:
    """Images in the shared space.

    Args:
        patches: embeddings of the patches, row by row, ``(N, P, D)``.
        pooled: global embedding (CLIP's class token, or the mean), ``(N, D)``.
    """

    patches: Tensor
    pooled: Tensor


@dataclass(slots=True)
class TextEmbeddings:
    """Texts in the shared space.

    Args:
        tokens: embeddings of the tokens, ``(N, S, D)``.
        pooled: global embedding (CLIP's end token, or the mean), ``(N, D)``.
        word_of: int64 ``(N, S)``, index of the word of each token; -1 for special and padding tokens.
    """

    tokens: Tensor
    pooled: Tensor
    word_of: Tensor


class DualEncoder(nn.Module):
    """Base class: an image encoder and a text encoder with a shared space, by whose similarity noise is identified.

    Args:
        width: D, width of the shared space.
        grid: height and width of the grid of patches.
        size: height and width of the training images.
    """

    def __init__(self, width: int, grid: tuple[int, int], size: tuple[int, int]) -> None:
        super().__init__()
        self.width, self.grid, self.size = width, grid, size

    @abstractmethod
    def encode_image(self, images: Tensor, masked: Tensor | None = None) -> ImageEmbeddings:
        """Encode images.

        Args:
            images: uint8 ``(N, 3, H, W)``.
            masked: bool ``(N, P)``, True at patches that a learned vector e^msk replaces.
        """

    @abstractmethod
    def encode_text(self, texts: Sequence[Sequence[str]]) -> TextEmbeddings:
        """Encode N texts, each a list of words; ``[MASK]`` is a masked word."""


class SmallDualEncoder(DualEncoder):
    """A grid backbone and a word embedding, each with a small transformer. For data unlike CLIP's training data.

    Args:
        vocabulary: words, including special words and ``[MASK]`` (:func:`vocabulary_with_mask`).
        grid: height and width of the backbone's grid for images of ``size``.
        size: height and width of the training images.
        width: width of the shared space and of both transformers.
        layers: number of layers of each transformer.
        heads: number of attention heads.
        backbone: name of a backbone, as in `build_backbone`.
        freeze_backbone: whether the backbone is frozen.
        max_words: maximum number of words of a text.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        grid: tuple[PositiveInt, PositiveInt],
        size: tuple[PositiveInt, PositiveInt] = (64, 64),
        width: PositiveInt = 64,
        layers: NonNegativeInt = 1,
        heads: PositiveInt = 4,
        backbone: str = "cnn",
        freeze_backbone: bool = False,
        max_words: PositiveInt = 64,
    ) -> None:
        check_arguments(SmallDualEncoder.__init__, locals())
        super().__init__(width, grid, size)
        self._ids = {word: index for index, word in enumerate(vocabulary)}
        self.backbone, self.frozen = build_backbone(backbone), freeze_backbone
        if freeze_backbone:
            self.backbone.requires_grad_(False)
        self.mask_embedding = nn.Parameter(0.02 * torch.randn(width))
        self.project = nn.Linear(self.backbone.width, width)
        self.patch_position = nn.Parameter(0.02 * torch.randn(grid[0] * grid[1], width))
        self.words = nn.Embedding(len(vocabulary), width)
        self.word_position = nn.Parameter(0.02 * torch.randn(max_words + 2, width))

        def layer() -> EncoderLayer:
            return EncoderLayer(width, heads, 2 * width, 0.0)

        self.image_layers = nn.ModuleList(layer() for _ in range(layers))
        self.text_layers = nn.ModuleList(layer() for _ in range(layers))
        self.image_out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.text_out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))

    def train(self, mode: bool = True) -> SmallDualEncoder:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()  # its running statistics must not change
        return self

    def encode_image(self, images: Tensor, masked: Tensor | None = None) -> ImageEmbeddings:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            maps = self.backbone(images)
        if maps.shape[-2:] != self.grid:
            maps = nn.functional.adaptive_avg_pool2d(maps, self.grid)
        x = self.project(maps.flatten(2).mT)  # (N, P, D)
        if masked is None:
            masked = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        x = torch.where(masked[..., None], self.mask_embedding, x) + self.patch_position
        for layer in self.image_layers:
            x = layer(x)
        x = self.image_out(x)
        return ImageEmbeddings(x, x.mean(1))

    def encode_text(self, texts: Sequence[Sequence[str]]) -> TextEmbeddings:
        max_words = len(self.word_position) - 2
        rows = [[BOS, *(self._ids.get(word, UNK) for word in text[:max_words]), EOS] for text in texts]
        ids = torch.full((len(rows), max(map(len, rows))), PAD)
        word_of = torch.full(ids.shape, -1)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            word_of[i, 1 : len(row) - 1] = torch.arange(len(row) - 2)
        device = self.words.weight.device
        ids, word_of = ids.to(device), word_of.to(device)
        x = self.words(ids) + self.word_position[: ids.shape[1]]  # (N, S, D)
        allowed = (ids != PAD)[:, None, None]  # (N, 1, 1, S)
        for layer in self.text_layers:
            x = layer(x, allowed)
        x = self.text_out(x)
        is_token = (ids != PAD)[..., None]
        return TextEmbeddings(x, (x * is_token).sum(1) / is_token.sum(1), word_of)


def vocabulary_with_mask(words: Sequence[str]) -> list[str]:
    """The words of a `Vocabulary` with ``[MASK]`` added after its special words."""
    return [*words[: len(SPECIALS)], MASK_WORD, *words[len(SPECIALS) :]]


@reads_file("path")
def load_dual_encoder(path: str | Path) -> SmallDualEncoder:
    """Load the dual encoder of a checkpoint of `RelevancePretraining`.

    Raises:
        CheckpointError: the file is missing or is not such a checkpoint.
    """
    from lightning_idc.checkpoints.reading import read_checkpoint

    checkpoint = read_checkpoint(path)
    options: dict[str, Any] | None = checkpoint.get("dual_encoder")
    if options is None:
        raise CheckpointError(f"{str(path)!r} holds no dual encoder; expected a checkpoint of RelevancePretraining")
    encoder = SmallDualEncoder(**options)
    state, prefix = checkpoint["state_dict"], "net."
    encoder.load_state_dict({key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})
    return encoder.eval()


class ClipDualEncoder(DualEncoder):
    """CLIP's two towers with all of their tokens in the joint space (ViT-B/16 in NAMC section 3.2.1).

    CLIP applies its last norm and projection to the class token only. Here they are applied to every token, since
    otherwise patches (768 channels) and words (512 channels) could not be compared.

    Args:
        clip: model, as in `build_clip`, with CLIP's vocabulary. OpenAI's weights were trained with QuickGELU.
        pretrained: open_clip's name of the weights, or a file; random weights when None.

    Raises:
        ConfigError: open_clip does not have the model.
        CheckpointError: the weights are not available.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, clip: str | dict[str, Any] = "ViT-B-16-quickgelu", pretrained: str | None = "openai") -> None:
        vocabulary = ClipVocabulary()
        model = build_clip(clip, vocabulary, pretrained)
        visual = model.visual
        super().__init__(int(visual.output_dim), tuple(visual.grid_size), tuple(visual.image_size))
        self.model, self.vocabulary = model, vocabulary
        # CLIP's temperature is not used here, and distributed training raises an error for unused parameters
        model.logit_scale.requires_grad_(False)
        self.mask_embedding = nn.Parameter(0.02 * torch.randn(visual.conv1.out_channels))
        self.register_buffer("mean", torch.tensor(CLIP_MEAN).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(CLIP_STD).view(3, 1, 1) * 255, persistent=False)

    def encode_image(self, images: Tensor, masked: Tensor | None = None) -> ImageEmbeddings:
        visual = self.model.visual
        x = images.to(self.mask_embedding.dtype)
        if x.shape[-2:] != self.size:
            x = nn.functional.interpolate(x, self.size, mode="bicubic", antialias=True).clamp(0, 255)
        x = visual.conv1((x - self.mean) / self.std).flatten(2).mT  # (N, P, C)
        if masked is None:
            masked = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        x = torch.where(masked[..., None], self.mask_embedding, x)
        x = torch.cat([visual.class_embedding.expand(len(x), 1, -1), x], 1) + visual.positional_embedding
        x = visual.ln_post(visual.transformer(visual.ln_pre(x))) @ visual.proj  # (N, 1 + P, D)
        return ImageEmbeddings(x[:, 1:], x[:, 0])

    def encode_text(self, texts: Sequence[Sequence[str]]) -> TextEmbeddings:
        special, max_tokens = self.vocabulary.special, self.model.context_length
        # for each text, its sub-words with the indices of their words
        rows = [
            [(subword, index) for index, word in enumerate(text) for subword in self.vocabulary.encode(word)[1:-1]]
            for text in texts
        ]
        rows = [row[: max_tokens - 2] for row in rows]  # leaves room for begin and end token
        ids = torch.full((len(rows), max(map(len, rows)) + 2), special.pad)
        word_of = torch.full(ids.shape, -1)
        for i, row in enumerate(rows):
            ids[i, : len(row) + 2] = torch.tensor([special.bos, *(subword for subword, _ in row), special.eos])
            word_of[i, 1 : len(row) + 1] = torch.tensor([index for _, index in row])
        ids = ids.to(self.mask_embedding.device)
        x = text_tokens(self.model, ids)
        return TextEmbeddings(x, eot_pooling(x, ids, special.eos), word_of.to(ids.device))
