"""Clip4IdcRetrieval adapts CLIP to pairs of images, Clip4Idc captions them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.checkpoints.reading import plain_hparams, read_checkpoint, refuse_other_computation
from lightning_idc.images.types import ProvidesCaptions
from lightning_idc.methods.clip4idc.net import Clip4IdcNet, PairClip, encoder_computation, tower_computation
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_dict, all_gather_object
from lightning_idc.models.module import PairModule
from lightning_idc.nn.clip import build_clip
from lightning_idc.nn.retrieval import also_right, recall_of_pairs, symmetric_cross_entropy
from lightning_idc.nn.vocabulary import CLIP, Vocabulary, load_vocabulary
from lightning_idc.utils.errors import CheckpointError, DataError, reads_file

VIT_B_32 = "ViT-B-32-quickgelu"
"""OpenAI's weights were trained with QuickGELU."""
JOINT = ("net.side", "net.joint_position", "net.ln_mid.")
"""What the adaptation adds to CLIP; the authors train it a thousand times as fast."""
MOST_TOKENS = 32
"""Of a caption, in the paper's code."""


class Clip4IdcRetrieval(PairModule):
    """Adaptation stage: pairs and their captions find each other. A PairTextEncoder.

    Batches are those of any PairDataModule: ``images``, ``ids``, ``captions``. The references of a pair take turns
    from epoch to epoch. Validation and test measure recall at 1, 5 and 10 in both directions over the whole split.
    What is new beside CLIP forms the parameter group ``joint``.

    Args:
        clip: name of a configuration of open_clip, or one such configuration written out.
        pretrained: tag or file of open_clip's weights; random weights when None.
        intra_layers: blocks of the image tower that see one image alone.
        stem: as of `PairClip`.
        tower_weights: checkpoint of PairNaming that the image tower starts from.
        vocabulary: ``clip``, or words with their special tokens; made from the training captions when None.
        mask_equal: a pair is not trained away from a caption of another pair that is one of its own references as well.
            For data in which many pairs have the same captions, such as pairs without a change.
        options: of :class:`~lightning_idc.models.module.PairModule`.
    """

    word_hparams = ("vocabulary",)
    vision_modules = ("net.clip.visual",)

    def __init__(
        self,
        clip: str | dict[str, Any] = VIT_B_32,
        pretrained: str | None = None,
        intra_layers: int = 9,
        stem: bool = False,
        tower_weights: str | None = None,
        vocabulary: list[str] | str | None = CLIP,
        mask_equal: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # a checkpoint brings all weights, so it must not ask for these files again
        for name in ("pretrained", "tower_weights"):
            self.hparams.pop(name, None)
        self._start = (pretrained, tower_weights)
        self._embedded: dict[str, tuple[Tensor, list[str]]] = {}

    # ---- a PairTextEncoder ------------------------------------------------------------------------------

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

    # ---- making and training ----------------------------------------------------------------------------

    def make_net(self) -> PairClip | None:
        if self.hparams["vocabulary"] is None:
            if not isinstance(self.data, ProvidesCaptions):
                return None  # a checkpoint may still bring the vocabulary
            self.hparams["vocabulary"] = Vocabulary.build(self.data.train_captions()).words
        vocabulary = load_vocabulary(self.hparams["vocabulary"])
        self.hparams["vocabulary"] = vocabulary.key
        pretrained, tower = self._start
        net = _pair_clip(self.hparams, vocabulary, pretrained)
        if tower is not None:
            theirs = load_tower(net, tower)
            refuse_other_computation(tower_computation(self.hparams), tower_computation(theirs), tower)
        return net

    def group_of(self, path: str) -> str:
        return "joint" if path.startswith(JOINT) else super().group_of(path)

    def rebuild(self) -> None:
        self._start = (None, None)
        super().rebuild()

    def _captions_of_epoch(self, ids: Sequence[str], captions: Sequence[Sequence[str]]) -> list[str]:
        empty = [name for name, own in zip(ids, captions, strict=True) if not own]
        if empty:
            raise DataError(f"no caption to train on for {', '.join(empty[:5])}; add captions or leave these pairs out")
        # by name and epoch alone, so that neither processes nor resuming change what is drawn
        turns = (zlib.crc32(name.encode()) + self.current_epoch for name in ids)
        return [own[turn % len(own)] for own, turn in zip(captions, turns, strict=True)]

    def _gathered(self, part: Tensor) -> Tensor:
        whole = self.all_gather(part, sync_grads=True)
        assert isinstance(whole, Tensor)
        return whole.flatten(0, 1)

    def encode(self, batch: Any) -> dict[str, Tensor]:
        """Unit vectors of the pairs and of one caption each."""
        return {
            "pairs": self.embed_pairs(batch["images"]),
            "captions": self.embed_captions(self._captions_of_epoch(batch["ids"], batch["captions"])),
        }

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        pairs, texts = features["pairs"], features["captions"]
        if self.trainer.world_size > 1:
            # every process scores all pairs against all captions; gradients flow back to where they came from
            pairs, texts = self._gathered(pairs), self._gathered(texts)
        logits = self._built.scale * pairs @ texts.T
        if self.hparams["mask_equal"]:
            own = (batch["captions"], self._captions_of_epoch(batch["ids"], batch["captions"]))
            parts = all_gather_object(own)
            references = [captions for part, _ in parts for captions in part]
            right = also_right(references, [caption for _, part in parts for caption in part])
            logits = logits.masked_fill(right.to(logits.device), float("-inf"))
        return symmetric_cross_entropy(logits)

    # ---- measuring --------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self._embedded = {}

    def on_test_epoch_start(self) -> None:
        self._embedded = {}

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        pairs = self.embed_pairs(batch["images"]).float().cpu()
        self._embedded |= {
            name: (row, own) for name, row, own in zip(batch["ids"], pairs, batch["captions"], strict=True)
        }

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self._measure("val")

    def on_test_epoch_end(self) -> None:
        self._measure("test")

    def _measure(self, split: str) -> None:
        """Recall over all pairs of the split that have captions, gathered from all processes."""
        seen = {name: entry for name, entry in all_gather_dict(self._embedded).items() if entry[1]}
        self._embedded = {}
        if not seen:
            return
        references = [seen[name][1] for name in sorted(seen)]
        texts = sorted({caption for own in references for caption in own})
        captions = torch.cat(
            [self.embed_captions(texts[start : start + 256]).float().cpu() for start in range(0, len(texts), 256)]
        )
        places = {text: place for place, text in enumerate(texts)}
        relevant = torch.zeros(len(seen), len(texts), dtype=torch.bool)
        for row, own in enumerate(references):
            relevant[row, [places[caption] for caption in own]] = True
        pairs = torch.stack([seen[name][0] for name in sorted(seen)])
        for direction, recalls in recall_of_pairs(pairs, captions, relevant).items():
            for name, value in recalls.items():
                self.log(f"{split}/{direction}/{name}", value, prog_bar=name == "R@5", sync_dist=True)


def _pair_clip(hparams: Mapping[str, Any], vocabulary: Vocabulary, pretrained: str | None) -> PairClip:
    return PairClip(
        build_clip(hparams["clip"], vocabulary, pretrained), vocabulary, hparams["intra_layers"], hparams["stem"]
    )


class Clip4Idc(PairCaptioner):
    """Captioning stage: a decoder on top of the adapted encoder.

    Args:
        clip: name of a configuration of open_clip, or one such configuration written out.
        pretrained: tag or file of open_clip's weights; random weights when None.
        encoder_weights: checkpoint of Clip4IdcRetrieval or Clip4Idc that the encoder, with its vocabulary, starts from.
        tower_weights: checkpoint of PairNaming that the image tower starts from, without any adaptation.
        intra_layers: blocks of the image tower that see one image alone.
        stem: as of `PairClip`.
        decoder_layers: layers that read the tokens, and as many that write.
        heads: attention heads of these layers.
        dropout: share of activations and attention weights dropped in them.
        vocabulary: ``clip``, or words with their special tokens; made from the training captions when None.
        max_length: most tokens of a generated caption; as many as CLIP's text tower takes when None and no captions
            were seen.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    vision_modules = ("net.encoder",)
    computation_hparams = ("heads",)

    def __init__(
        self,
        clip: str | dict[str, Any] = VIT_B_32,
        pretrained: str | None = None,
        encoder_weights: str | None = None,
        tower_weights: str | None = None,
        intra_layers: int = 9,
        stem: bool = False,
        decoder_layers: int = 3,
        heads: int = 8,
        dropout: float = 0.1,
        vocabulary: list[str] | str | None = CLIP,
        max_length: int | None = MOST_TOKENS,
        **options: Any,
    ) -> None:
        super().__init__(vocabulary=vocabulary, max_length=max_length, **options)
        # a checkpoint brings all weights, so it must not ask for these files again
        for name in ("encoder_weights", "tower_weights", "pretrained"):
            self.hparams.pop(name, None)
        self._start = (pretrained, encoder_weights, tower_weights)

    @classmethod
    def computation(cls, hparams: Mapping[str, Any]) -> dict[str, Any]:
        return encoder_computation(hparams) | super().computation(hparams)

    def load_start(self) -> dict[str, Tensor] | None:
        start = super().load_start()
        encoder = self._start[1]
        if start is None and encoder is not None:
            words = plain_hparams(read_checkpoint(encoder), encoder).get("vocabulary")
            if words is None:
                raise CheckpointError(
                    f"{encoder!r} names no vocabulary; expected a checkpoint of Clip4IdcRetrieval or Clip4Idc"
                )
            self.hparams["vocabulary"] = words
        return start

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        options = self.hparams
        pretrained, weights, tower = self._start
        encoder = _pair_clip(options, vocabulary, None if weights else pretrained)
        if tower is not None:
            theirs = load_tower(encoder, tower)
            refuse_other_computation(tower_computation(options), tower_computation(theirs), tower)
        if weights is not None:
            theirs = load_encoder(encoder, weights)
            refuse_other_computation(encoder_computation(options), encoder_computation(theirs), weights)
        options["image_size"] = options["image_size"] or tuple(encoder.clip.visual.image_size)
        # nothing longer can be written, whatever was asked for
        options["max_length"] = min(options["max_length"] or encoder.clip.context_length, encoder.clip.context_length)
        return Clip4IdcNet(encoder, options["decoder_layers"], options["heads"], options["dropout"])


@reads_file("checkpoint")
def load_tower(encoder: PairClip, checkpoint: str | Path) -> dict[str, Any]:
    """Load the image tower of a checkpoint of PairNaming; the text tower stays as it is.

    Returns:
        Hyper-parameters of the checkpoint.

    Raises:
        CheckpointError: the checkpoint is missing or holds another tower.
    """
    content = read_checkpoint(checkpoint)
    state, prefix = content["state_dict"], "net.backbone.tower."
    own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    seen = {key: value for key, value in own.items() if not key.startswith("clip.") or key.startswith("clip.visual.")}
    if not seen:
        raise CheckpointError(f"{str(checkpoint)!r} holds no image tower; expected a checkpoint of PairNaming")
    text = {key: value for key, value in encoder.state_dict().items() if key in own.keys() - seen.keys()}
    try:
        encoder.load_state_dict(seen | text)
    except RuntimeError as error:
        raise CheckpointError(f"{str(checkpoint)!r} holds another image tower: {error}") from error
    return plain_hparams(content, str(checkpoint))


@reads_file("checkpoint")
def load_encoder(encoder: PairClip, checkpoint: str | Path) -> dict[str, Any]:
    """Load the encoder of a checkpoint of Clip4IdcRetrieval or Clip4Idc, strictly.

    Returns:
        Hyper-parameters of the checkpoint.

    Raises:
        CheckpointError: the checkpoint is missing or holds another encoder.
    """
    content = read_checkpoint(checkpoint)
    state = content["state_dict"]
    prefix = "net.encoder." if "net.encoder.side" in state else "net."
    own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if "side" not in own:
        raise CheckpointError(
            f"{str(checkpoint)!r} holds no encoder; expected a checkpoint of Clip4IdcRetrieval or Clip4Idc"
        )
    try:
        encoder.load_state_dict(own)
    except RuntimeError as error:
        raise CheckpointError(f"{str(checkpoint)!r} holds another encoder: {error}") from error
    return plain_hparams(content, str(checkpoint))
