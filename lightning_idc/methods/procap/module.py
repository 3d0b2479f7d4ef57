"""ProCap, second stage: infer the procedure that a pair implies, and say what changed (sections 3.2 and 3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_idc.checkpoints.reading import plain_hparams, read_checkpoint, refuse_other_computation
from lightning_idc.images.types import PairBatch, PairFeatures, PairSample
from lightning_idc.methods.procap.keyframes import Keyframes
from lightning_idc.methods.procap.net import ProCapNet, ProcedureEncoder
from lightning_idc.methods.procap.stages import frames_of_own_images, image_size_of, start_from_clip, tokenizer_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.schedules import Constant, Schedule
from lightning_idc.nn.image_tokenizer import ImageTokenizer
from lightning_idc.nn.transformer import Decoder
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.errors import CheckpointError, ConfigError, reads_file


class ProCap(PairCaptioner):
    """Captions a pair from its two images and k frames' worth of procedure queries between them.

    :class:`~lightning_idc.methods.procap.official.module.OfficialProCap` is what the authors' code computes.

    Args:
        tokenizer: checkpoint of ``TokenizerTraining``, whose features are the input; that of ``procedure`` when None.
        procedure: checkpoint of ``ProcedureModel``, whose encoder training starts from; fresh weights when None.
        queries: k, frames of procedure queries; 0 is the static pair.
        explicit: folder of procedures; when given, k evenly spaced frames of them are encoded instead of queries
            (Table 14), and the mask embedding, which then stands nowhere, is not trained.
        trunk: OpenAI's CLIP weights, a state dict with whose first visual blocks the encoder's layers begin; the code
            begins so without a first stage, too.
        width: of the encoder.
        layers: of the encoder.
        heads: of the encoder.
        decoder_width: of the decoder.
        decoder_layers: of the decoder.
        decoder_heads: of the decoder.
        dropout: share of activations dropped in the decoder.
        relative_places: learn in the attention how two patches stand to each other, as `PairTransformer` does, which
            the paper does not. Both stages must agree.
        encoder_schedule: multiplier of the encoder's learning rate over the run; the decoder's is ``schedule``.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    vision_modules = ("net.encoder",)
    computation_hparams = ("heads", "decoder_heads")
    edition: ClassVar[str] = "paper"
    """Whose ProCap it is; both stages must agree."""
    encoder_class: ClassVar[type[ProcedureEncoder]] = ProcedureEncoder
    decoder_class: ClassVar[type[nn.Module]] = Decoder
    net_class: ClassVar[type[ProCapNet]] = ProCapNet

    def __init__(
        self,
        tokenizer: str | dict[str, Any] | None = None,
        procedure: str | None = None,
        queries: int = 2,
        explicit: str | None = None,
        trunk: str | None = None,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        decoder_width: int = 512,
        decoder_layers: int = 2,
        decoder_heads: int = 8,
        dropout: float = 0.1,
        encoder_schedule: Schedule = Constant(),  # noqa: B008 - frozen
        relative_places: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if queries < 0:
            raise ConfigError(f"queries is {queries}; expected 0, which is the static pair, or more")
        # a checkpoint brings all weights, so it must not ask for the file again; the schedule is an object
        for name in ("procedure", "encoder_schedule", "trunk"):
            self.hparams.pop(name, None)
        self._trunk: str | None = trunk
        self._procedure, self.encoder_schedule = procedure, encoder_schedule
        self.hparams["tokenizer"] = tokenizer if tokenizer is not None else procedure
        self._keyframes: Keyframes | None = None

    def build_net(self, vocabulary: Vocabulary) -> ProCapNet:
        options, given = self.hparams, self.hparams["tokenizer"]
        tokenizer = self.hparams_tokenizer()
        encoder = self.encoder_class(
            tokenizer.latent,
            tokenizer.grid(*image_size_of(options)),
            options["queries"] + 2,
            options["width"],
            options["layers"],
            options["heads"],
            relative_places=options["relative_places"],
        )
        if self._trunk is not None:
            start_from_clip(encoder, self._trunk)
        if self._procedure is not None:
            beside = tokenizer if isinstance(given, str) else None
            self.start_from_procedure(encoder, self._procedure, beside)
        encoder.mask_embedding.requires_grad_(options["explicit"] is None)
        width, dropout = options["decoder_width"], options["dropout"]
        decoder = self.decoder_class(
            len(vocabulary), width, options["decoder_layers"], options["decoder_heads"], 4 * width, dropout
        )
        return self.net_class(tokenizer, encoder, decoder, width)

    def hparams_tokenizer(self) -> ImageTokenizer:
        """Tokenizer that the hyper-parameters name, or, with weights to come, describe."""
        tokenizer, described = tokenizer_of(self.hparams["tokenizer"])
        self.hparams["tokenizer"] = described
        return tokenizer

    def adopt(self, hparams: dict[str, Any]) -> None:
        super().adopt(hparams)
        self.hparams["tokenizer"] = hparams["tokenizer"]

    def encode(self, batch: PairBatch) -> PairFeatures:
        if self.hparams["explicit"] is None:
            return super().encode(batch)
        return self.built_net.encode_frames(batch.model_inputs["frames"])

    def with_images(self, batch: PairBatch, images: Tensor) -> PairBatch:
        """Batch whose pairs show other images; explicit frames can only be those between an image and itself.

        Raises:
            ConfigError: frames are read, and the two images of a pair differ.
        """
        shown = super().with_images(batch, images)
        if self.hparams["explicit"] is None:
            return shown
        if not torch.equal(images[:, 0], images[:, 1]):
            raise frames_of_own_images(type(self).__name__, self.hparams["explicit"])
        # halfway between an image and itself stands that image
        frames = images[:, :1].expand_as(batch.model_inputs["frames"]).contiguous()
        return replace(shown, model_inputs={**shown.model_inputs, "frames": frames})

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        batch = super().collate(samples)
        if self.hparams["explicit"] is not None:
            if self._keyframes is None:
                self._keyframes = Keyframes(self.hparams["explicit"], self.hparams["queries"], even=True)
            batch.model_inputs["frames"] = torch.stack([self._keyframes.of(sample) for sample in samples])
        return batch

    @reads_file("checkpoint")
    def start_from_procedure(
        self, encoder: ProcedureEncoder, checkpoint: str, tokenizer: ImageTokenizer | None = None
    ) -> None:
        """Load the encoder of a first stage. With no queries, the places of its first and last frame are taken.

        Args:
            encoder: to load.
            checkpoint: of the first stage.
            tokenizer: that was named beside it; None where it is the checkpoint's own, or has no weights yet.

        Raises:
            CheckpointError: there is no such checkpoint, its encoder has another shape or other heads, it is of the
                other edition, or it was trained on another tokenizer.
        """
        found = read_checkpoint(checkpoint)
        state, theirs = found["state_dict"], edition_of(found)
        own = {
            key.removeprefix("net.encoder."): value for key, value in state.items() if key.startswith("net.encoder.")
        }
        if not own:
            raise CheckpointError(f"{checkpoint!r} holds no procedure encoder; expected a checkpoint of ProcedureModel")
        if theirs != self.edition:
            raise CheckpointError(
                f"the first stage in {checkpoint!r} is of the edition {theirs!r} and {type(self).__name__} of "
                f"{self.edition!r}; both stages must agree: ProcedureModel with ProCap, OfficialProcedureModel with "
                "OfficialProCap"
            )
        refuse_other_computation({"heads": self.hparams["heads"]}, plain_hparams(found, checkpoint), checkpoint)
        if tokenizer is not None:
            refuse_other_tokenizer(tokenizer, state, checkpoint)
        own |= self.beside_encoder(state)
        if encoder.frames == 2:
            own = first_and_last(own)
        try:
            encoder.load_state_dict(own)
        except RuntimeError as error:
            raise CheckpointError(
                f"the encoder in {checkpoint!r} has another shape ({error}); width, layers, heads, relative_places, "
                "image size and k of both stages must agree"
            ) from error

    def beside_encoder(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights of the encoder that a first stage keeps elsewhere."""
        return {}

    def schedule_of(self, group: str) -> Schedule:
        return self.encoder_schedule if group == "vision" else self.schedule


def first_and_last(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a procedure encoder of two frames: those of the first and the last frame of one of more."""
    ends, frames = [0, -1], len(state["frame_place"])
    found = {**state, "frame_place": state["frame_place"][ends]}
    if "relative.table" in state:  # of each pair of frames
        table = state["relative.table"].unflatten(0, (frames, frames, -1))
        found["relative.table"] = table[ends][:, ends].flatten(0, 2)
    return found


def refuse_other_tokenizer(tokenizer: ImageTokenizer, state: Mapping[str, Tensor], checkpoint: str) -> None:
    """Refuse a tokenizer whose features the encoder of a first stage has never seen.

    Args:
        tokenizer: that was named.
        state: of the first stage.
        checkpoint: that it was read from.

    Raises:
        CheckpointError: the first stage was trained on another one.
    """
    prefix, own = "net.tokenizer.encoder.", tokenizer.encoder.state_dict()
    theirs = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if theirs and (own.keys() != theirs.keys() or not all(torch.equal(own[name], theirs[name]) for name in own)):
        raise CheckpointError(
            f"the first stage in {checkpoint!r} was trained on another tokenizer than the one that `tokenizer` names; "
            "leave it out, since a first stage brings its own"
        )


def edition_of(checkpoint: Mapping[str, Any]) -> str:
    """Whose first stage a checkpoint holds."""
    return "official" if str(checkpoint.get("class_path")).endswith(".OfficialProcedureModel") else "paper"
