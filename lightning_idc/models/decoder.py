"""CaptionDecoder: generates token ids of captions, by search or by sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_idc.images.types import PairFeatures
from lightning_idc.models.distributed import gathered
from lightning_idc.nn.decoding.beam_search import beam_search
from lightning_idc.nn.decoding.decoding import CaptionNet, Decoded, greedy
from lightning_idc.nn.decoding.sampling import sample
from lightning_idc.nn.vocabulary import SpecialIds
from lightning_idc.utils.errors import ConfigError


class CaptionDecoder:
    """Generates captions with a network.

    Args:
        net: network of a captioner, a :class:`~lightning_idc.nn.decoding.decoding.CaptionNet`.
        special: ids of its special tokens.
        hparams: hyper-parameters of the captioner; ``max_length`` and ``num_beams`` are the defaults.
    """

    def __init__(self, net: Any, special: SpecialIds, hparams: Mapping[str, Any]) -> None:
        self.net, self.special, self._hparams = net, special, hparams

    def search(self, features: PairFeatures, max_length: int | None = None, num_beams: int | None = None) -> Decoded:
        """One caption per pair, by greedy decoding or beam search.

        Args:
            features: B pairs.
            max_length: maximum number of tokens, the end token included.
            num_beams: 1 decodes greedily.
        """
        length, beams = self._max_length(max_length), num_beams or self._hparams["num_beams"]
        with gathered(self.net):  # processes stop after different numbers of steps, so none may wait for weights
            net = self.decoding_net(beams, length)
            if beams == 1:
                return greedy(net, features, length, self.special)
            return beam_search(net, features, length, beams, special=self.special)

    def sample(
        self,
        features: PairFeatures,
        samples: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        max_length: int | None = None,
        uniforms: Tensor | None = None,
    ) -> Decoded:
        """Sampled captions, ``samples`` per pair, with those of a pair next to each other.

        Args:
            features: B pairs.
            samples: captions per pair.
            temperature: divisor of the logits.
            top_p: total probability of the most probable tokens that are sampled from (nucleus sampling).
            generator: random number generator; torch's global one when None.
            max_length: maximum number of tokens, the end token included.
            uniforms: numbers in [0, 1) to use in place of the generator, ``(B * samples, max_length)``.
        """
        length = self._max_length(max_length)
        with gathered(self.net):  # as above
            return sample(
                self.decoding_net(samples, length),
                features,
                length=length,
                samples=samples,
                temperature=temperature,
                top_p=top_p,
                generator=generator,
                special=self.special,
                uniforms=uniforms,
            )

    def decoding_net(self, rows_per_pair: int, max_length: int) -> CaptionNet:
        """Network to decode with, which a subclass may wrap.

        Args:
            rows_per_pair: maximum number of hypotheses per pair.
            max_length: maximum number of generated tokens.
        """
        net: CaptionNet = self.net
        return net

    def _max_length(self, max_length: int | None) -> int:
        """Maximum number of tokens: the argument, or that of the hyper-parameters."""
        length: int | None = max_length or self._hparams["max_length"]
        if length is None:
            raise ConfigError(
                "max_length is not set, and the captioner has had no training captions to derive it from; set it, for "
                "example to 32"
            )
        return length
