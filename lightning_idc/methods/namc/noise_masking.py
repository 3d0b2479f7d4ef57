"""NoiseMasking: find the words and patches that do not belong together, and train without them (NAMC's NIM)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_idc.core.addon import Addon, TrainingStep
from lightning_idc.core.addon_callback import AddonCallback
from lightning_idc.core.captioner import PairCaptioner
from lightning_idc.core.types import PairBatch, PairError
from lightning_idc.core.vocabulary import Vocabulary
from lightning_idc.data.benchmarks.implicit_change import component_spans
from lightning_idc.methods.namc.dual_encoder import MASK_WORD, DualEncoder, TextEmbeddings, load_dual_encoder
from lightning_idc.methods.namc.losses import sdm
from lightning_idc.methods.namc.noise import (
    DESCRIPTION,
    DESCRIPTION_VALID,
    NOISE_MASK,
    UNPAINTED,
    MaskProbabilities,
    bernoulli,
    fill_masked_patches,
    noise_probabilities,
    pool_subwords,
    relevance,
    token_similarity,
)

Matching = Callable[[Tensor, Tensor], Tensor]
"""A loss that matches whole images ``(B, D)`` with their texts ``(B, D)``."""


@dataclass(slots=True)
class _Caption:
    """Words of one caption, their tokens, and where the description of each image stands among the words."""

    words: list[str]
    places: list[range]
    spans: tuple[range, range]
    whole: bool

    def side(self, side: int) -> list[str]:
        span = self.spans[side]
        return self.words[span.start : span.stop]


class NoiseMaskingAddon(Addon):
    """See :class:`NoiseMasking`.

    Args:
        encoder: finds the noise and is trained along.
        vocabulary: of the host.
        image_share: of patches that are masked on average.
        word_share: of words that are masked on average.
        probabilities: of masking, from relevance.
        matching: loss that aligns the masked images with the masked descriptions.
        paint: hide masked patches from the host by painting them.
        align_masked: whether the matching loss sees the masked image, and the masked description.
    """

    # its gradient is up to a hundred times the captioner's, which one bound for both would scale by its noise
    clipped_apart = True

    def __init__(
        self,
        encoder: DualEncoder,
        vocabulary: Vocabulary,
        image_share: float,
        word_share: float,
        probabilities: MaskProbabilities,
        matching: Matching,
        paint: bool,
        align_masked: tuple[bool, bool] = (True, True),
    ) -> None:
        super().__init__()
        self.align_masked = align_masked
        self.encoder = encoder
        self.vocabulary = vocabulary
        self.image_share, self.word_share = image_share, word_share
        self.probabilities, self.matching, self.paint = probabilities, matching, paint
        self._kept: tuple[Tensor, Tensor, TextEmbeddings] | None = None

    def batch(self, step: TrainingStep) -> PairBatch:
        batch: PairBatch = step.batch
        captions = self._captions(batch)
        patches, words = self._masks(batch, captions)
        masked_texts = [
            [MASK_WORD if masked else word for word, masked in zip(row[0].side(side), words[b][0][side], strict=True)]
            for b, row in enumerate(captions)
            for side in range(2)
        ]
        read = self.encoder.encode_text(masked_texts)
        aligned = read
        if not self.align_masked[1]:
            aligned = self.encoder.encode_text([row[0].side(side) for row in captions for side in range(2)])
        self._kept = (batch.images, patches, aligned)
        hidden = torch.zeros_like(batch.caption_mask)
        for b, k, position in _positions(captions, words):
            hidden[b, k, position] = True
        grid = patches.unflatten(-1, self.encoder.grid)
        return replace(
            batch,
            images=fill_masked_patches(batch.images, grid) if self.paint else batch.images,
            # a token that the host never says, <unk> where it has words, stands for a masked one: no vocabulary grows
            tokens=batch.tokens.masked_fill(hidden, self.vocabulary.special.never_said[-1]),
            # a masked word is read by the host but not predicted: NAMC maximises the likelihood of the observed words
            caption_mask=batch.caption_mask & ~hidden,
            model_inputs={
                **batch.model_inputs,
                NOISE_MASK: grid,
                DESCRIPTION: read.tokens.unflatten(0, (-1, 2)),
                DESCRIPTION_VALID: (read.word_of >= 0).unflatten(0, (-1, 2)),
                # what rebuilds masked patches must not take the paint for the image, wherever it stands
                **({UNPAINTED: batch.images} if self.paint else {}),
            },
        )

    def losses(self, step: TrainingStep) -> dict[str, Tensor]:
        """L_NIM: the sum over both sides of the matching loss of masked images and masked descriptions.

        NAMC Eq. 16
        """
        kept, self._kept = self._kept, None
        if kept is None:
            return {}
        images, patches, read = kept
        hidden = patches.flatten(0, 1) if self.align_masked[0] else None
        whole = self.encoder.encode_image(images.flatten(0, 1), hidden).whole.unflatten(0, (-1, 2))
        texts = read.whole.unflatten(0, (-1, 2))
        return {"match": sum((self.matching(whole[:, i], texts[:, i]) for i in range(2)), whole.new_zeros(()))}

    def _captions(self, batch: PairBatch) -> list[list[_Caption]]:
        """Words of every caption. A caption that does not follow the template describes both images as a whole."""
        rows = []
        counts = batch.caption_mask.sum(-1).tolist()
        for tokens, lengths in zip(batch.tokens.tolist(), counts, strict=True):
            row = []
            for ids, length in zip(tokens, lengths, strict=True):
                grouped = self.vocabulary.grouped(ids[1 : max(length, 1)])  # between the begin and the end token
                words = [word for word, _ in grouped]
                ends = list(accumulate((count for _, count in grouped), initial=1))
                spans = component_spans(words)
                everything = range(len(words))
                places = [range(*place) for place in pairwise(ends)]
                row.append(_Caption(words, places, spans or (everything, everything), spans is None))
            rows.append(row)
        return rows

    @torch.no_grad()
    def _masks(self, batch: PairBatch, captions: list[list[_Caption]]) -> tuple[Tensor, list[list[list[list[bool]]]]]:
        """Masked patches, bool ``(B, 2, P)``, and masked words by pair, caption and side."""
        pairs, count = batch.tokens.shape[:2]
        texts = [caption.side(side) for row in captions for side in range(2) for caption in row]
        was_training = self.encoder.training
        self.encoder.eval()  # looking for noise must not move the statistics of a batch norm
        seen, read = self.encoder.encode_image(batch.images.flatten(0, 1)), self.encoder.encode_text(texts)
        self.encoder.train(was_training)
        # all captions of a pair speak for its patches: (2B, K * S)
        word_valid = (read.word_of >= 0).view(2 * pairs, -1)
        similarity = token_similarity(seen.patches, read.tokens.reshape(2 * pairs, -1, read.tokens.shape[-1]))
        of_patches, of_tokens = relevance(similarity, word_valid)
        everywhere = torch.ones_like(of_patches, dtype=torch.bool)
        patches = bernoulli(self.probabilities(of_patches, everywhere, self.image_share)).unflatten(0, (pairs, 2))

        most = max(map(len, texts))
        of_words = pool_subwords(of_tokens.view(len(texts), -1), read.word_of, most).view(pairs, 2, count, most)
        # a word that the encoder had no room for is not judged
        judged = pool_subwords(torch.ones_like(read.word_of, dtype=of_words.dtype), read.word_of, most) > 0
        whole = torch.tensor([[caption.whole for caption in row] for row in captions], device=of_words.device)
        # what describes both images at once is noise only where neither image shows it, and is masked once
        of_words = torch.where(whole[:, None, :, None], of_words.amax(1, keepdim=True), of_words)
        chances = self.probabilities(of_words, judged.view(of_words.shape), self.word_share)
        draws = torch.rand_like(chances)
        draws = torch.where(whole[:, None, :, None], draws[:, :1], draws)
        drawn = (draws < chances).transpose(1, 2).tolist()
        return patches, [
            [[drawn[b][k][side][: len(caption.side(side))] for side in range(2)] for k, caption in enumerate(row)]
            for b, row in enumerate(captions)
        ]


def _positions(captions: list[list[_Caption]], words: list[list[list[list[bool]]]]) -> list[tuple[int, int, int]]:
    """Pair, caption and position of every token of a masked word."""
    return [
        (b, k, position)
        for b, row in enumerate(captions)
        for k, caption in enumerate(row)
        for side, span in enumerate(caption.spans)
        for at, masked in zip(span, words[b][k][side], strict=True)
        if masked
        for position in caption.places[at]
    ]


class NoiseMasking(AddonCallback):
    """Masks words and patches that are irrelevant to each other, and trains what finds them (NAMC's NIM).

    Works on any captioner with words of its own, and on captions of any form: each image of a pair is judged against
    its part of an implicit-change description, or against the whole of any other caption. Masked words are not
    predicted; masked patches go to the host as ``model_inputs["noise_mask"]`` and, with ``paint``, are painted over.

    Args:
        encoder: a `DualEncoder`, such as `ClipDualEncoder`, or the path of a checkpoint of `RelevancePretraining`.
        image_share: of patches that are masked on average, p_I.
        word_share: of words that are masked on average, p_T.
        probabilities: ``noise_probabilities`` of ``methods.namc.noise``, or ``random_probabilities`` for the ablation.
        matching: ``lightning_idc.methods.namc.losses.sdm``, or ``info_nce`` for the ablation.
        paint: paint masked patches in the images; without it only a host that reads ``noise_mask`` is kept from them.
        align_masked: whether L_NIM aligns the masked image and the masked description (Table 8 varies both).
        name: as of `AddonCallback`.
        weight: of L_NIM.
    """

    def __init__(
        self,
        encoder: str | DualEncoder,
        image_share: float = 0.2,
        word_share: float = 0.15,
        probabilities: MaskProbabilities = noise_probabilities,
        matching: Matching = sdm,
        paint: bool = True,
        align_masked: tuple[bool, bool] = (True, True),
        name: str = "noise_masking",
        weight: float = 1.0,
    ) -> None:
        super().__init__(name, weight)
        for argument, share in (("image_share", image_share), ("word_share", word_share)):
            if not 0 <= share <= 1:
                raise PairError(f"NoiseMasking: {argument} is {share}; expected a share between 0 and 1")
        self.encoder = encoder
        self.image_share, self.word_share = image_share, word_share
        self.probabilities, self.matching, self.paint = probabilities, matching, paint
        self.align_masked = align_masked

    def build(self, host: LightningModule) -> Addon:
        if not isinstance(host, PairCaptioner) or host.vocabulary is None:
            raise PairError(
                f"NoiseMasking masks words, and {type(host).__name__} has no vocabulary; use it on a captioner with a "
                "Vocabulary"
            )
        encoder = self.encoder if isinstance(self.encoder, DualEncoder) else load_dual_encoder(self.encoder)
        return NoiseMaskingAddon(
            encoder,
            host.vocabulary,
            self.image_share,
            self.word_share,
            self.probabilities,
            self.matching,
            self.paint,
            self.align_masked,
        )
