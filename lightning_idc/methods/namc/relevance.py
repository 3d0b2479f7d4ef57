"""RelevancePretraining: trains a small dual encoder on noisy descriptions, in place of CLIP.

NAMC identifies noise with CLIP. Without CLIP's weights, or for data unlike CLIP's training data, this stage trains an
encoder on the noisy descriptions themselves. It needs no labels of the noise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.data.benchmarks.implicit_change import component_spans
from lightning_idc.data.synthetic.descriptions import SyntheticDescriptions
from lightning_idc.images.types import ProvidesCaptions
from lightning_idc.methods.namc.dual_encoder import SmallDualEncoder, vocabulary_with_mask
from lightning_idc.methods.namc.losses import cosines, info_nce_of_similarity, late_interaction
from lightning_idc.methods.namc.noise import pool_subwords, relevance, token_similarity
from lightning_idc.models.distributed import all_gather_dict
from lightning_idc.models.module import PairModule
from lightning_idc.models.schedules import Schedule, WarmupCosine
from lightning_idc.nn.backbones import build_backbone, load_backbone
from lightning_idc.nn.vocabulary import Vocabulary, words_of
from lightning_idc.utils.bounds import NonNegativeInt, PositiveFloat, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError


class RelevancePretraining(PairModule):
    """Trains a `SmallDualEncoder` to match each image of a pair with its object description.

    A caption that does not follow the template of implicit-change descriptions is matched with both images together:
    each of its words is compared with the patches of both, as in `NoiseMasking`.

    The loss is InfoNCE on the global embeddings of images and texts, as in CLIP, plus InfoNCE on the late interaction
    of words and patches, which makes single words comparable with single patches. With `SyntheticDescriptions`,
    validation logs the area under the ROC curve, x100, with which relevance identifies synthetic noise:
    ``val/noise_auc`` over words of attributes, ``val/noise_auc_all`` over all words of the descriptions.

    Args:
        width: width of the shared space.
        layers: number of layers of each transformer.
        heads: number of attention heads.
        backbone: name of a backbone, as in `build_backbone`.
        backbone_weights: checkpoint with the initial weights of the backbone.
        freeze_backbone: whether the backbone is frozen.
        scale: 1 / temperature.
        schedule: multiplier of the learning rate over the run.
        options: further arguments of :class:`~lightning_idc.models.module.PairModule`.
    """

    vision_modules = ("net",)
    computation_hparams = ("heads",)
    not_stored = ("backbone_weights",)

    def __init__(
        self,
        width: PositiveInt = 64,
        layers: NonNegativeInt = 1,
        heads: PositiveInt = 4,
        backbone: str = "cnn",
        backbone_weights: str | None = None,
        freeze_backbone: bool = False,
        scale: PositiveFloat = 20.0,
        schedule: Schedule = WarmupCosine(),  # noqa: B008 - frozen
        **options: Any,
    ) -> None:
        check_arguments(RelevancePretraining.__init__, locals())
        super().__init__(schedule=schedule, **options)
        self._backbone_weights = backbone_weights
        self._encoder_options: dict[str, Any] = {}
        self._word_scores: dict[tuple[str, int], list[tuple[float, bool, bool]]] = {}

    def make_net(self) -> SmallDualEncoder | None:
        if not self._encoder_options and self.data is None:
            return None  # built later, from a checkpoint
        options = self._encoder_options = self._encoder_options or self._options_from_data()
        encoder = SmallDualEncoder(**options)
        if self._backbone_weights is not None:
            load_backbone(encoder.backbone, self._backbone_weights)
        return encoder

    def _options_from_data(self) -> dict[str, Any]:
        data = self.data
        if not isinstance(data, ProvidesCaptions):
            raise ConfigError(
                f"{type(self).__name__} builds its vocabulary from train_captions() of the data module, which has none"
            )
        size = data.image_size or (64, 64)
        with torch.no_grad():
            grid = build_backbone(self.hparams["backbone"]).eval()(torch.zeros(1, 3, *size, dtype=torch.uint8))
        return {
            "vocabulary": vocabulary_with_mask(Vocabulary.build(data.train_captions()).words),
            "grid": (int(grid.shape[-2]), int(grid.shape[-1])),
            "size": size,
            **{name: self.hparams[name] for name in ("width", "layers", "heads", "backbone", "freeze_backbone")},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["dual_encoder"] = self._encoder_options

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._encoder_options, self._backbone_weights, self.net = checkpoint["dual_encoder"], None, None
        super().on_load_checkpoint(checkpoint)

    @property
    def encoder(self) -> SmallDualEncoder:
        """The dual encoder in training."""
        encoder: SmallDualEncoder = self.built_net
        return encoder

    def _object_descriptions(self, captions: list[list[str]], ids: list[str]) -> tuple[list[list[list[str]]], Tensor]:
        """Words of the object descriptions, and which captions follow the template, bool ``(B,)``.

        The descriptions are B of the first images and B of the second images; both are the caption itself if it does
        not follow the template.
        """
        sides: list[list[list[str]]] = [[], []]
        follows_template = []
        for name, texts in zip(ids, captions, strict=True):
            if not texts:
                raise DataError(f"pair {name!r} has no caption; expected a description. Add one or leave the pair out")
            words = words_of(texts[0])
            spans = component_spans(words)
            follows_template.append(spans is not None)
            for side, span in zip(sides, spans or (range(len(words)),) * 2, strict=True):
                side.append(words[span.start : span.stop])
        return sides, torch.tensor(follows_template, device=self.device)

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        images: Tensor = batch["images"]
        texts, follows_template = self._object_descriptions(batch["captions"], batch["ids"])
        # all before images, then all after images: (2B, ...)
        image = self.encoder.encode_image(images.transpose(0, 1).flatten(0, 1))
        text = self.encoder.encode_text(texts[0] + texts[1])
        before, after = image.patches.chunk(2)
        loss = torch.zeros((), device=images.device)
        for side in range(2):
            rows = slice(side * len(images), (side + 1) * len(images))
            words, is_word = text.tokens[rows], text.word_of[rows] >= 0
            similarity = late_interaction(image.patches[rows], words, is_word)
            pooled = cosines(image.pooled[rows], text.pooled[rows])
            if not follows_template.all():
                # such a caption is about both images: either may show what a word names
                of_pair = late_interaction(torch.cat([before, after], 1), words, is_word)
                similarity = torch.where(follows_template, similarity, of_pair)
                pair_pooled = torch.stack([cosines(one, text.pooled[rows]) for one in image.pooled.chunk(2)]).mean(0)
                pooled = torch.where(follows_template, pooled, pair_pooled)
            loss = loss + info_nce_of_similarity(similarity, scale=self.hparams["scale"])
            loss = loss + info_nce_of_similarity(pooled, scale=self.hparams["scale"])
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        data = self.data
        if not isinstance(data, SyntheticDescriptions):
            return  # only of synthetic noise is it known where it is
        images: Tensor = batch["images"]
        texts, _ = self._object_descriptions(batch["captions"], batch["ids"])
        for side in range(2):
            scores = word_relevance(self.encoder, images[:, side], texts[side])
            for name, row in zip(batch["ids"], scores, strict=True):
                planted = data.planted("val", name)
                spans = component_spans(words_of(planted.text))
                assert spans is not None
                self._word_scores[name, side] = [
                    (score, planted.wrong[index], planted.attribute[index])
                    for index, score in zip(spans[side], row, strict=True)
                ]

    def on_validation_epoch_start(self) -> None:
        self._word_scores = {}

    def on_validation_epoch_end(self) -> None:
        # (relevance, is noise, is an attribute) of the words on all processes, so that all log the same value
        all_words = [word for words in all_gather_dict(self._word_scores).values() for word in words]
        for name, words in (("noise_auc", [word for word in all_words if word[2]]), ("noise_auc_all", all_words)):
            if any(wrong for _, wrong, _ in words) and not all(wrong for _, wrong, _ in words):
                auc = 100 * noise_auc([score for score, _, _ in words], [wrong for _, wrong, _ in words])
                self.log(f"val/{name}", auc, prog_bar=True, sync_dist=True)


@torch.no_grad()
def word_relevance(encoder: nn.Module, images: Tensor, texts: list[list[str]]) -> list[list[float]]:
    """Relevance of each word of N texts to the image of the text.

    Args:
        encoder: a `DualEncoder`.
        images: uint8 ``(N, 3, H, W)``.
        texts: N texts, each a list of words.
    """
    image, text = encoder.encode_image(images), encoder.encode_text(texts)  # type: ignore[operator]
    _, token_relevance = relevance(token_similarity(image.patches, text.tokens), text.word_of >= 0)
    rows = pool_subwords(token_relevance, text.word_of, max(map(len, texts))).tolist()
    return [row[: len(words)] for row, words in zip(rows, texts, strict=True)]


def noise_auc(relevances: list[float], wrong: list[bool]) -> float:
    """Area under the ROC curve, 0 to 1: the probability that a wrong word is less relevant than a correct word.

    Args:
        relevances: relevance of each word.
        wrong: whether each word is noise.
    """
    from torchmetrics.functional.classification import binary_auroc

    return float(binary_auroc(-torch.tensor(relevances), torch.tensor(wrong).long()))
