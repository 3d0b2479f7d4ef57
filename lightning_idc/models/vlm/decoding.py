"""VLMDecoder: generates captions with a vision-language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_idc.models.decoder import CaptionDecoder
from lightning_idc.models.vlm.folding import folded
from lightning_idc.models.vlm.static_cache import StaticDecoding, compile_arguments
from lightning_idc.nn.decoding.decoding import CaptionNet, Decoded


class VLMDecoder(CaptionDecoder):
    """Decodes with a vision-language model whose active LoRA is temporarily merged into its weights."""

    def search(self, *arguments: Any, **options: Any) -> Decoded:
        with folded(self.net):
            return super().search(*arguments, **options)

    def sample(self, *arguments: Any, **options: Any) -> Decoded:
        with folded(self.net):
            return super().sample(*arguments, **options)

    def decoding_net(self, rows_per_pair: int, max_length: int) -> CaptionNet:
        if self._hparams["cache_implementation"] == "dynamic":
            return super().decoding_net(rows_per_pair, max_length)
        config: Mapping[str, Any] | None = self._hparams["compile_config"]
        return StaticDecoding(self.net, rows_per_pair, max_length, compile_arguments(self.net.model, config))
