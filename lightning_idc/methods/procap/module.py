"""ProCap, second stage: implicit procedure captioning (sections 3.2 and 3.3).

One training step:

1. the frozen image tokenizer embeds both images (:meth:`ProCapNet.features <.net.ProCapNet.features>`),
2. k frames of procedure queries, copies of the first stage's mask embedding, are inserted between them (Eq. 9,
   :meth:`ProcedureEncoder.queries <.net.ProcedureEncoder.queries>`),
3. the encoder, initialised by the first stage (:meth:`ProCap.start_from_procedure`), infers the procedure, and
4. the decoder predicts the caption (Eq. 10, the caption loss that all captioners have).

Shapes: B pairs, k frames of queries, n patches per frame, D channels of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_idc.checkpoints.reading import check_same_computation, plain_hparams, read_checkpoint
from lightning_idc.images.types import PairBatch, PairFeatures, PairSample
from lightning_idc.methods.procap.keyframes import Keyframes
from lightning_idc.methods.procap.net import ProCapNet, ProcedureEncoder
from lightning_idc.methods.procap.stages import frames_of_other_images, image_size_of, start_from_clip, tokenizer_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.schedules import Constant, Schedule
from lightning_idc.nn.image_tokenizer import ImageTokenizer
from lightning_idc.nn.transformer import Decoder
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, ShareBelowOne, check_arguments
from lightning_idc.utils.errors import CheckpointError, reads_file


class ProCap(PairCaptioner):
    """Captions a pair from its two images and k frames of procedure queries between them.

    The networks named by the class attributes are those of the paper;
    :class:`~lightning_idc.methods.procap.official.module.OfficialProCap` has those of the authors' code.

    Args:
        tokenizer: checkpoint of ``TokenizerTraining``, whose features are the input; the tokenizer of ``procedure``
            when None.
        procedure: checkpoint of ``ProcedureModel`` with the initial weights of the encoder; random weights when None.
        queries: k, number of frames of procedure queries; 0 encodes the two images only.
        explicit_frames: folder of procedures. If set, k evenly spaced frames are encoded instead of queries (Table 14),
            and the unused mask embedding is not trained.
        encoder_init: file of OpenAI's CLIP weights, whose first visual blocks initialise the encoder's layers.
        width: width of the encoder.
        layers: number of layers of the encoder.
        heads: number of attention heads of the encoder.
        decoder_width: width of the decoder.
        decoder_layers: number of layers of the decoder.
        decoder_heads: number of attention heads of the decoder.
        dropout: dropout probability of the decoder.
        relative_position_bias: whether attention has a learned bias by the relative position of two patches, as in
            `PairTransformer`; not in the paper. Must be equal in both stages.
        encoder_schedule: multiplier of the encoder's learning rate over the run; the decoder's is ``schedule``.
        options: further arguments of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    vision_modules = ("net.encoder",)
    computation_hparams = ("heads", "decoder_heads")
    not_stored = ("procedure", "encoder_init")
    variant: ClassVar[str] = "paper"
    """``paper`` or ``official``; must be equal in both stages."""
    encoder_class: ClassVar[type[ProcedureEncoder]] = ProcedureEncoder
    decoder_class: ClassVar[type[nn.Module]] = Decoder
    net_class: ClassVar[type[ProCapNet]] = ProCapNet

    def __init__(
        self,
        tokenizer: str | dict[str, Any] | None = None,
        procedure: str | None = None,
        queries: NonNegativeInt = 2,
        explicit_frames: str | None = None,
        encoder_init: str | None = None,
        width: PositiveInt = 768,
        layers: PositiveInt = 12,
        heads: PositiveInt = 12,
        decoder_width: PositiveInt = 512,
        decoder_layers: PositiveInt = 2,
        decoder_heads: PositiveInt = 8,
        dropout: ShareBelowOne = 0.1,
        encoder_schedule: Schedule = Constant(),  # noqa: B008 - frozen
        relative_position_bias: bool = False,
        **options: Any,
    ) -> None:
        check_arguments(ProCap.__init__, locals())
        super().__init__(**options)
        self._encoder_init, self._procedure, self.encoder_schedule = encoder_init, procedure, encoder_schedule
        self.store_hparams(tokenizer=tokenizer if tokenizer is not None else procedure)
        self._keyframes: Keyframes | None = None

    def build_net(self, vocabulary: Vocabulary) -> ProCapNet:
        options, source = self.hparams, self.hparams["tokenizer"]
        tokenizer = self.hparams_tokenizer()
        encoder = self.encoder_class(
            latent=tokenizer.latent,
            grid=tokenizer.grid(*image_size_of(options)),
            frames=options["queries"] + 2,
            width=options["width"],
            layers=options["layers"],
            heads=options["heads"],
            relative_position_bias=options["relative_position_bias"],
        )
        if self._encoder_init is not None:
            start_from_clip(encoder, self._encoder_init)
        if self._procedure is not None:
            named_tokenizer = tokenizer if isinstance(source, str) else None
            self.start_from_procedure(encoder, self._procedure, named_tokenizer)
        encoder.mask_embedding.requires_grad_(options["explicit_frames"] is None)
        width = options["decoder_width"]
        decoder = self.decoder_class(
            vocabulary=len(vocabulary),
            width=width,
            layers=options["decoder_layers"],
            heads=options["decoder_heads"],
            hidden=4 * width,
            dropout=options["dropout"],
        )
        return self.net_class(tokenizer, encoder, decoder, width)

    def hparams_tokenizer(self) -> ImageTokenizer:
        """Tokenizer of the hyper-parameters, which name a checkpoint or contain a configuration."""
        tokenizer, config = tokenizer_of(self.hparams["tokenizer"])
        self.store_hparams(tokenizer=config)
        return tokenizer

    def adopt_hparams(self, hparams: dict[str, Any]) -> None:
        super().adopt_hparams(hparams)
        self.store_hparams(tokenizer=hparams["tokenizer"])

    def encode(self, batch: PairBatch) -> PairFeatures:
        if self.hparams["explicit_frames"] is None:
            return super().encode(batch)
        return self.built_net.encode_frames(batch.model_inputs["frames"])

    def with_images(self, batch: PairBatch, images: Tensor) -> PairBatch:
        """Batch with other images. With explicit frames, both images of each pair must be equal.

        Raises:
            ConfigError: there are explicit frames, and the two images of a pair differ.
        """
        changed = super().with_images(batch, images)
        if self.hparams["explicit_frames"] is None:
            return changed
        if not torch.equal(images[:, 0], images[:, 1]):
            raise frames_of_other_images(type(self).__name__, self.hparams["explicit_frames"])
        # all frames between two equal images are equal to them
        frames = images[:, :1].expand_as(batch.model_inputs["frames"]).contiguous()
        return replace(changed, model_inputs={**changed.model_inputs, "frames": frames})

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        batch = super().collate(samples)
        if self.hparams["explicit_frames"] is not None:
            if self._keyframes is None:
                self._keyframes = Keyframes(self.hparams["explicit_frames"], self.hparams["queries"], even=True)
            batch.model_inputs["frames"] = torch.stack([self._keyframes.of(sample) for sample in samples])
        return batch

    @reads_file("checkpoint")
    def start_from_procedure(
        self, encoder: ProcedureEncoder, checkpoint: str, tokenizer: ImageTokenizer | None = None
    ) -> None:
        """Load the encoder of a first stage. Without queries, only its first and last frame embeddings are used.

        Args:
            encoder: encoder to load.
            checkpoint: checkpoint of the first stage.
            tokenizer: tokenizer that the user has named separately, to compare with the checkpoint's; None without one.

        Raises:
            CheckpointError: the checkpoint is missing, its encoder differs in shape or number of heads, its variant
                differs, or it was trained with another tokenizer.
        """
        stored = read_checkpoint(checkpoint)
        state, variant = stored["state_dict"], variant_of(stored)
        weights = {
            key.removeprefix("net.encoder."): value for key, value in state.items() if key.startswith("net.encoder.")
        }
        if not weights:
            raise CheckpointError(f"{checkpoint!r} holds no procedure encoder; expected a checkpoint of ProcedureModel")
        if variant != self.variant:
            raise CheckpointError(
                f"the first stage in {checkpoint!r} has the variant {variant!r}, {type(self).__name__} has "
                f"{self.variant!r}; use ProcedureModel with ProCap, or OfficialProcedureModel with OfficialProCap"
            )
        check_same_computation({"heads": self.hparams["heads"]}, plain_hparams(stored, checkpoint), checkpoint)
        if tokenizer is not None:
            check_tokenizer(tokenizer, state, checkpoint)
        weights |= self.extra_encoder_weights(state)
        if encoder.frames == 2:
            weights = first_and_last(weights)
        try:
            encoder.load_state_dict(weights)
        except RuntimeError as error:
            raise CheckpointError(
                f"the encoder in {checkpoint!r} has another shape ({error}); width, layers, heads, "
                f"relative_position_bias, image size and k must be equal in both stages"
            ) from error

    def extra_encoder_weights(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights of this encoder that are not part of the first stage's encoder."""
        return {}

    def schedule_of(self, group: str) -> Schedule:
        return self.encoder_schedule if group == "vision" else self.schedule


def first_and_last(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a procedure encoder for two frames: those of the first and the last frame of a longer one."""
    ends, frames = [0, -1], len(state["frame_embed"])
    weights = {**state, "frame_embed": state["frame_embed"][ends]}
    if "relative.table" in state:  # one table for each pair of frames
        table = state["relative.table"].unflatten(0, (frames, frames, -1))
        weights["relative.table"] = table[ends][:, ends].flatten(0, 2)
    return weights


def check_tokenizer(tokenizer: ImageTokenizer, state: Mapping[str, Tensor], checkpoint: str) -> None:
    """Check that a first stage was trained with a tokenizer.

    Args:
        tokenizer: tokenizer named by the user.
        state: state dict of the first stage.
        checkpoint: path of the first stage.

    Raises:
        CheckpointError: the first stage was trained with another tokenizer.
    """
    prefix, weights = "net.tokenizer.encoder.", tokenizer.encoder.state_dict()
    stored = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    is_same = weights.keys() == stored.keys() and all(torch.equal(weights[name], stored[name]) for name in weights)
    if stored and not is_same:
        raise CheckpointError(
            f"the first stage in {checkpoint!r} was trained with a different tokenizer than `tokenizer`; leave "
            "`tokenizer` out to use the one of the first stage"
        )


def variant_of(checkpoint: Mapping[str, Any]) -> str:
    """Variant of the first stage in a checkpoint, ``paper`` or ``official``."""
    return "official" if str(checkpoint.get("class_path")).endswith(".OfficialProcedureModel") else "paper"
