"""SentenceDecoder: the most probable sentence of a closed language.

Greedy decoding takes the most probable first word, whose probability is the sum over all sentences that begin with it.
The most probable sentence may begin with another word, such as the only one that says that an element was removed.
"""

from __future__ import annotations

import torch

from lightning_idc.images.types import PairFeatures
from lightning_idc.models.decoder import CaptionDecoder
from lightning_idc.nn.decoding.decoding import Decoded, decoded


class SentenceDecoder(CaptionDecoder):
    """Chooses among all sentences of a ``WebNet``; beams search word by word, and rank by the mean of the words."""

    @torch.no_grad()
    def search(self, features: PairFeatures, max_length: int | None = None, num_beams: int | None = None) -> Decoded:
        """The most probable sentence of each pair, or beam search.

        Args:
            features: B pairs, with the log-probabilities of all sentences.
            max_length: maximum number of tokens, the end token included.
            num_beams: 1 takes the most probable sentence.
        """
        if (num_beams or self._hparams["num_beams"]) > 1:
            return super().search(features, max_length, num_beams)
        table = self.net.table  # (S, T)
        best = features.memory[:, 0, : len(table)].float().max(-1)
        ids = table[best.indices][:, : self._max_length(max_length)]  # (B, T)
        num_words = (ids != self.special.ends[0]).sum(1)
        return decoded(ids, (num_words + 1).clamp(max=ids.shape[1]), best.values)
