"""CLIP4IDC in two stages: Clip4IdcRetrieval adapts CLIP to pairs of images, Clip4Idc captions them.

1. Adaptation: :meth:`Clip4IdcRetrieval.encode` embeds pairs and captions, and
   :meth:`Clip4IdcRetrieval.training_loss` is their contrastive loss over all processes.
2. Captioning: :class:`Clip4Idc` trains the decoder of ``net.py`` by the caption loss that all captioners have.

Shapes: B pairs, N captions, D channels of the joint space.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.checkpoints.reading import check_same_computation, plain_hparams, read_checkpoint
from lightning_idc.images.types import ProvidesCaptions
from lightning_idc.methods.clip4idc.net import Clip4IdcNet, PairClip, encoder_computation, tower_computation
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_dict, all_gather_object, all_gather_with_gradients
from lightning_idc.models.module import PairModule
from lightning_idc.nn.clip import build_clip
from lightning_idc.nn.retrieval import is_reference_of_other, recall_of_pairs, symmetric_cross_entropy
from lightning_idc.nn.vocabulary import CLIP, Vocabulary, load_vocabulary
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, ShareBelowOne, check_arguments
from lightning_idc.utils.errors import CheckpointError, DataError, reads_file

VIT_B_32 = "ViT-B-32-quickgelu"
"""OpenAI's weights were trained with QuickGELU."""
JOINT = ("net.side", "net.joint_position", "net.ln_mid.")
"""Parameters that the adaptation adds to CLIP; the authors train them at a thousand times the rate."""
MAX_TOKENS = 32
"""Maximum number of tokens of a caption, as in the paper's code."""


class Clip4IdcRetrieval(PairModule):
    """Adaptation stage: contrastive retrieval between pairs and captions. A PairTextEncoder.

    Batches are those of any PairDataModule: ``images``, ``ids``, ``captions``. The references of a pair take turns by
    epoch. Validation and test measure recall at 1, 5 and 10 in both directions over the split. Parameters that CLIP
    does not have form the parameter group ``joint``.

    Args:
        clip: name of a configuration of open_clip, or a configuration.
        pretrained: tag or file of open_clip's weights; random weights when None.
        intra_layers: number of blocks of the image tower that encode each image separately.
        stem: as in `PairClip`.
        tower_weights: checkpoint of PairNaming with initial weights of the image tower.
        vocabulary: ``clip``, or words with their special tokens; built from the training captions when None.
        mask_equal: whether captions of other pairs that are also references of a pair are left out of its negatives.
            For data in which many pairs have the same captions, such as pairs without a change.
        options: further arguments of :class:`~lightning_idc.models.module.PairModule`.
    """

    token_hparams = ("vocabulary",)
    vision_modules = ("net.clip.visual",)
    not_stored = ("pretrained", "tower_weights")

    def __init__(
        self,
        clip: str | dict[str, Any] = VIT_B_32,
        pretrained: str | None = None,
        intra_layers: NonNegativeInt = 9,
        stem: bool = False,
        tower_weights: str | None = None,
        vocabulary: list[str] | str | None = CLIP,
        mask_equal: bool = False,
        **options: Any,
    ) -> None:
        check_arguments(Clip4IdcRetrieval.__init__, locals())
        super().__init__(**options)
        self._init_weights = (pretrained, tower_weights)
        self._embedded: dict[str, tuple[Tensor, list[str]]] = {}

    # ---- interface of PairTextEncoder ---------------------------------------------------------------------

    def embed_pairs(self, images: Tensor) -> Tensor:
        """Unit vectors ``(B, D)`` of uint8 pairs ``(B, 2, 3, H, W)``."""
        return self._built.embed_pairs(images.to(self.device))

    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        """Unit vectors ``(N, D)`` of captions."""
        return self._built.embed_captions(captions)

    @property
    def _built(self) -> PairClip:
        net: PairClip = self.built_net
        return net

    @classmethod
    def computation(cls, hparams: Mapping[str, Any]) -> dict[str, Any]:
        return encoder_computation(hparams)

    # ---- building and training ----------------------------------------------------------------------------

    def make_net(self) -> PairClip | None:
        if self.hparams["vocabulary"] is None:
            if not isinstance(self.data, ProvidesCaptions):
                return None  # the vocabulary may come from a checkpoint later
            vocabulary = Vocabulary.build(self.data.train_captions())
        else:
            vocabulary = load_vocabulary(self.hparams["vocabulary"])
        self.store_hparams(vocabulary=vocabulary.key)
        pretrained, tower = self._init_weights
        net = _pair_clip(self.hparams, vocabulary, pretrained)
        if tower is not None:
            stored_hparams = load_tower(net, tower)
            check_same_computation(tower_computation(self.hparams), tower_computation(stored_hparams), tower)
        return net

    def group_of(self, path: str) -> str:
        return "joint" if path.startswith(JOINT) else super().group_of(path)

    def rebuild(self) -> None:
        self._init_weights = (None, None)
        super().rebuild()

    def _captions_of_epoch(self, ids: Sequence[str], captions: Sequence[Sequence[str]]) -> list[str]:
        """One reference per pair; the references take turns by epoch."""
        empty = [name for name, references in zip(ids, captions, strict=True) if not references]
        if empty:
            raise DataError(f"no caption to train on for {', '.join(empty[:5])}; add captions or leave these pairs out")
        # the offset depends only on id and epoch, and not on the number of processes or on resuming
        offsets = (zlib.crc32(name.encode()) + self.current_epoch for name in ids)
        return [references[offset % len(references)] for references, offset in zip(captions, offsets, strict=True)]

    def encode(self, batch: Any) -> dict[str, Tensor]:
        """Unit vectors of the pairs, ``(B, D)``, and of one caption per pair, ``(B, D)``."""
        return {
            "pairs": self.embed_pairs(batch["images"]),
            "captions": self.embed_captions(self._captions_of_epoch(batch["ids"], batch["captions"])),
        }

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        pairs, texts = features["pairs"], features["captions"]
        if self.trainer.world_size > 1:
            # each process compares all pairs with all captions; gradients flow to the process of each embedding
            pairs, texts = (all_gather_with_gradients(self, local) for local in (pairs, texts))
        logits = self._built.scale * pairs @ texts.T  # (B, B) over all processes
        if self.hparams["mask_equal"]:
            local = (batch["captions"], self._captions_of_epoch(batch["ids"], batch["captions"]))
            gathered = all_gather_object(local)
            references = [captions for all_captions, _ in gathered for captions in all_captions]
            captions = [caption for _, epoch_captions in gathered for caption in epoch_captions]
            is_false_negative = is_reference_of_other(references, captions)
            logits = logits.masked_fill(is_false_negative.to(logits.device), float("-inf"))
        return symmetric_cross_entropy(logits)

    # ---- validation -------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self._embedded = {}

    def on_test_epoch_start(self) -> None:
        self._embedded = {}

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        pairs = self.embed_pairs(batch["images"]).float().cpu()
        self._embedded |= {
            name: (row, references)
            for name, row, references in zip(batch["ids"], pairs, batch["captions"], strict=True)
        }

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self._log_recall("val")

    def on_test_epoch_end(self) -> None:
        self._log_recall("test")

    def _log_recall(self, split: str) -> None:
        """Log the recall over all pairs of the split that have captions, gathered from all processes."""
        embedded = {name: entry for name, entry in all_gather_dict(self._embedded).items() if entry[1]}
        self._embedded = {}
        if not embedded:
            return
        references = [embedded[name][1] for name in sorted(embedded)]
        texts = sorted({caption for captions_of_pair in references for caption in captions_of_pair})
        captions = torch.cat(
            [self.embed_captions(texts[start : start + 256]).float().cpu() for start in range(0, len(texts), 256)]
        )
        columns = {text: column for column, text in enumerate(texts)}
        relevant = torch.zeros(len(embedded), len(texts), dtype=torch.bool)
        for row, captions_of_pair in enumerate(references):
            relevant[row, [columns[caption] for caption in captions_of_pair]] = True
        pairs = torch.stack([embedded[name][0] for name in sorted(embedded)])
        for direction, recalls in recall_of_pairs(pairs, captions, relevant).items():
            for name, value in recalls.items():
                self.log(f"{split}/{direction}/{name}", value, prog_bar=name == "R@5", sync_dist=True)


def _pair_clip(hparams: Mapping[str, Any], vocabulary: Vocabulary, pretrained: str | None) -> PairClip:
    clip = build_clip(hparams["clip"], vocabulary, pretrained)
    return PairClip(clip, vocabulary, intra_layers=hparams["intra_layers"], stem=hparams["stem"])


class Clip4Idc(PairCaptioner):
    """Captioning stage: a decoder on top of the adapted encoder.

    Args:
        clip: name of a configuration of open_clip, or a configuration.
        pretrained: tag or file of open_clip's weights; random weights when None.
        encoder_weights: checkpoint of Clip4IdcRetrieval or Clip4Idc with initial weights and vocabulary of the encoder.
        tower_weights: checkpoint of PairNaming with initial weights of the image tower, in place of an adaptation.
        intra_layers: number of blocks of the image tower that encode each image separately.
        stem: as in `PairClip`.
        decoder_layers: number of decoder layers, and of encoder layers between the image tower and the decoder.
        heads: number of attention heads of these layers.
        dropout: dropout probability of activations and attention weights.
        vocabulary: ``clip``, or words with their special tokens; built from the training captions when None.
        max_length: maximum number of tokens of a generated caption; the context length of CLIP's text tower when None.
        options: further arguments of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    vision_modules = ("net.encoder",)
    computation_hparams = ("heads",)
    not_stored = ("pretrained", "encoder_weights", "tower_weights")

    def __init__(
        self,
        clip: str | dict[str, Any] = VIT_B_32,
        pretrained: str | None = None,
        encoder_weights: str | None = None,
        tower_weights: str | None = None,
        intra_layers: NonNegativeInt = 9,
        stem: bool = False,
        decoder_layers: PositiveInt = 3,
        heads: PositiveInt = 8,
        dropout: ShareBelowOne = 0.1,
        vocabulary: list[str] | str | None = CLIP,
        max_length: PositiveInt | None = MAX_TOKENS,
        **options: Any,
    ) -> None:
        check_arguments(Clip4Idc.__init__, locals())
        super().__init__(vocabulary=vocabulary, max_length=max_length, **options)
        self._init_weights = (pretrained, encoder_weights, tower_weights)

    @classmethod
    def computation(cls, hparams: Mapping[str, Any]) -> dict[str, Any]:
        return encoder_computation(hparams) | super().computation(hparams)

    def load_initial_weights(self) -> dict[str, Tensor] | None:
        start = super().load_initial_weights()
        encoder = self._init_weights[1]
        if start is None and encoder is not None:
            words = plain_hparams(read_checkpoint(encoder), encoder).get("vocabulary")
            if words is None:
                raise CheckpointError(
                    f"{encoder!r} has no vocabulary; expected a checkpoint of Clip4IdcRetrieval or Clip4Idc"
                )
            self.store_hparams(vocabulary=words)
        return start

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        options = self.hparams
        pretrained, weights, tower = self._init_weights
        encoder = _pair_clip(options, vocabulary, None if weights else pretrained)
        if tower is not None:
            stored_hparams = load_tower(encoder, tower)
            check_same_computation(tower_computation(options), tower_computation(stored_hparams), tower)
        if weights is not None:
            stored_hparams = load_encoder(encoder, weights)
            check_same_computation(encoder_computation(options), encoder_computation(stored_hparams), weights)
        max_tokens = encoder.clip.context_length
        self.store_hparams(
            image_size=options["image_size"] or tuple(encoder.clip.visual.image_size),
            max_length=min(options["max_length"] or max_tokens, max_tokens),
        )
        return Clip4IdcNet(encoder, options["decoder_layers"], options["heads"], options["dropout"])


@reads_file("checkpoint")
def load_tower(encoder: PairClip, checkpoint: str | Path) -> dict[str, Any]:
    """Load the image tower of a checkpoint of PairNaming. The text tower stays as it is.

    Returns:
        Hyper-parameters of the checkpoint.

    Raises:
        CheckpointError: the checkpoint is missing, or its tower differs in shape.
    """
    content = read_checkpoint(checkpoint)
    state, prefix = content["state_dict"], "net.backbone.tower."
    weights = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    text_keys = {key for key in weights if key.startswith("clip.") and not key.startswith("clip.visual.")}
    visual = {key: value for key, value in weights.items() if key not in text_keys}
    if not visual:
        raise CheckpointError(f"{str(checkpoint)!r} holds no image tower; expected a checkpoint of PairNaming")
    text = {key: value for key, value in encoder.state_dict().items() if key in text_keys}
    try:
        encoder.load_state_dict(visual | text)
    except RuntimeError as error:
        raise CheckpointError(f"{str(checkpoint)!r} holds another image tower: {error}") from error
    return plain_hparams(content, str(checkpoint))


@reads_file("checkpoint")
def load_encoder(encoder: PairClip, checkpoint: str | Path) -> dict[str, Any]:
    """Load the encoder of a checkpoint of Clip4IdcRetrieval or Clip4Idc, strictly.

    Returns:
        Hyper-parameters of the checkpoint.

    Raises:
        CheckpointError: the checkpoint is missing, or its encoder differs in shape.
    """
    content = read_checkpoint(checkpoint)
    state = content["state_dict"]
    prefix = "net.encoder." if "net.encoder.side" in state else "net."
    weights = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if "side" not in weights:
        raise CheckpointError(
            f"{str(checkpoint)!r} holds no encoder; expected a checkpoint of Clip4IdcRetrieval or Clip4Idc"
        )
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{str(checkpoint)!r} holds another encoder: {error}") from error
    return plain_hparams(content, str(checkpoint))
