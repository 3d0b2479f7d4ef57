"""Measures of the noise study for descriptions and masks, and a mask of exactly the wrong words."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule

from lightning_idc.data.benchmarks.implicit_change import component_spans, components
from lightning_idc.data.synthetic.descriptions import DescribedSource
from lightning_idc.data.synthetic.truth import ATTRIBUTE_WORDS
from lightning_idc.images.types import PairBatch
from lightning_idc.methods.namc.dual_encoder import DualEncoder
from lightning_idc.methods.namc.noise import noise_probabilities, pool_subwords, relevance, token_similarity
from lightning_idc.methods.namc.relevance import noise_auc
from lightning_idc.models.addon import Addon, TrainingStep
from lightning_idc.models.addon_callback import AddonCallback
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.nn.vocabulary import words_of

IMAGE_SHARE, WORD_SHARE = 0.2, 0.15
NAMES = {word for words in ATTRIBUTE_WORDS.values() for word in words}


class MaskPlanted(AddonCallback):
    """Masks exactly the words that are known to be wrong: an upper bound of noise masking for the decoder.

    Args:
        source: source of the planted noise.
    """

    def __init__(self, source: DescribedSource) -> None:
        super().__init__("planted")
        self.wrong = {id: described.wrong for id, described in zip(source.ids, source.described, strict=True)}

    def build(self, host: LightningModule) -> Addon:
        assert isinstance(host, PairCaptioner) and host.vocabulary is not None
        return MaskPlantedAddon(self.wrong, host.vocabulary.special.suppress_tokens[-1])


class MaskPlantedAddon(Addon):
    """See `MaskPlanted`."""

    def __init__(self, wrong: dict[str, tuple[bool, ...]], unknown: int) -> None:
        super().__init__()
        self.wrong, self.unknown = wrong, unknown

    def batch(self, step: TrainingStep) -> PairBatch:
        batch: PairBatch = step.batch
        hidden = torch.zeros_like(batch.caption_mask)
        for row, id in enumerate(batch.ids):
            wrong = torch.tensor(self.wrong[id])
            hidden[row, :, 1 : 1 + len(wrong)] = wrong  # behind the begin token
        tokens = batch.tokens.masked_fill(hidden, self.unknown)
        return replace(batch, tokens=tokens, caption_mask=batch.caption_mask & ~hidden)


def attributes_right(predictions: list[dict[str, Any]]) -> dict[str, float]:
    """Percentage of correct attribute words in descriptions of both images, and of images with too many."""
    right = total = invented = 0
    for record in predictions:
        truth = components(record["references"][0])
        captions = components(record["caption"]) or ("", "")
        assert truth is not None
        for args, true in zip(captions, truth, strict=True):
            wanted, named = ([word for word in text.split() if word in NAMES] for text in (true, args))
            total += len(wanted)
            invented += len(named) > len(wanted)
            right += sum(a == b for a, b in zip(named, wanted, strict=False))
    return {"described_right": 100 * right / total, "invented": 100 * invented / (2 * len(predictions))}


@torch.no_grad()
def planted(encoder: DualEncoder, source: DescribedSource) -> dict[str, float]:
    """How well relevance detects the planted noise, and what noise masking masks.

    ``auc`` is over the words of all descriptions, ``auc_within`` the mean over descriptions that have right and wrong
    words: the formula compares words of one description. ``wrong_share`` and ``wrong_share_left`` are the shares of
    wrong words among attribute words, and among those of them that are not masked.
    """
    scores: dict[str, list[tuple[float, bool]]] = {"all": [], "words": []}
    word_shares: list[float] = []
    image_shares: list[float] = []
    within: list[float] = []
    left: list[tuple[float, bool]] = []
    for index in range(len(source)):
        sample, described = source.load(index), source.described[index]
        words = words_of(described.text)
        spans = component_spans(words)
        assert spans is not None
        texts = [words[span.start : span.stop] for span in spans]
        seen, read = encoder.encode_image(torch.stack([sample.before, sample.after])), encoder.encode_text(texts)
        patches, tokens = relevance(token_similarity(seen.patches, read.tokens), read.word_of >= 0)
        results = pool_subwords(tokens, read.word_of, max(map(len, texts)))
        image_shares.append(float(noise_probabilities(patches, torch.ones_like(patches).bool(), IMAGE_SHARE).mean()))
        for side, span in enumerate(spans):
            of_words = results[side, : len(span)]
            everywhere = torch.ones_like(of_words, dtype=torch.bool)
            chances = noise_probabilities(of_words, everywhere, WORD_SHARE)
            word_shares.append(float(chances.mean()))
            named = [i for i, place in enumerate(span) if described.attribute[place]]
            wrong = [described.wrong[span[i]] for i in named]
            judged = of_words[named].tolist()
            left += zip((1 - chances[named]).tolist(), wrong, strict=True)
            if 0 < sum(wrong) < len(wrong):
                within.append(noise_auc(judged, wrong))
            known = list(zip(judged, wrong, strict=True))
            scores["all"] += known
            if not all(described.wrong[place] for place in span):
                scores["words"] += known
    auc, words_auc = (100 * noise_auc([s for s, _ in kept], [w for _, w in kept]) for kept in scores.values())
    return {
        "auc": auc,
        "auc_of_single_words": words_auc,
        "auc_within": 100 * statistics.fmean(within) if within else float("nan"),
        "wrong_share": 100 * statistics.fmean(wrong for _, wrong in left),
        "wrong_share_left": 100 * sum(kept for kept, wrong in left if wrong) / sum(kept for kept, _ in left),
        "image_share": statistics.fmean(image_shares),
        "word_share": statistics.fmean(word_shares),
    }


def ceiling(source: DescribedSource) -> dict[str, float]:
    """Score of a judge that knows all objects of an image: roughly the upper bound of relevance.

    He looks for the thing that has most attributes of a phrase, and doubts the words that are not true of it. A
    description of another pair counts as wrong in every word, though some are true of the image by chance.
    """
    judged: list[tuple[float, bool, bool]] = []
    for index in range(len(source)):
        described, truth = source.described[index], source.source.ground_truth(index)
        words = words_of(described.text)
        spans = component_spans(words)
        assert spans is not None
        for name, span in zip(("before", "after"), spans, strict=True):
            things = [[thing[kind] for kind in ATTRIBUTE_WORDS] for thing in truth[name]["things"]]
            whole = all(described.wrong[place] for place in span)
            places = [place for place in span if described.attribute[place]]
            for start in range(0, len(places), len(ATTRIBUTE_WORDS)):
                phrase = places[start : start + len(ATTRIBUTE_WORDS)]
                hits = [[has == words[place] for has, place in zip(thing, phrase, strict=True)] for thing in things]
                judged += [
                    (float(hit), described.wrong[place], whole)
                    for hit, place in zip(max(hits, key=sum), phrase, strict=True)
                ]
    single = [(score, wrong) for score, wrong, whole in judged if not whole]
    return {
        "ceiling": 100 * noise_auc([score for score, _, _ in judged], [wrong for _, wrong, _ in judged]),
        "ceiling_of_single_words": 100 * noise_auc([score for score, _ in single], [wrong for _, wrong in single]),
    }
