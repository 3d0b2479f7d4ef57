"""CachedScores: the scores of a reference policy, computed once per pair and caption."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_idc.data.store.growing import GrowingStore
from lightning_idc.data.store.manifest import read_manifest
from lightning_idc.data.store.shards import tensor_batch
from lightning_idc.images.types import PairBatch
from lightning_idc.methods.policy.references import MovingAverage, ReferencePolicy
from lightning_idc.models.addon import AUX, TrainingStep
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_dict, is_rank_zero
from lightning_idc.utils.errors import ConfigError, DataError, StoreError
from lightning_idc.utils.files import digest_of_all

Scores = dict[tuple[str, tuple[int, ...]], tuple[int, float]]
"""Checksum of pixels and question, and summed log-probability, by pair and token ids."""
Row = tuple[str, list[int], int, float]
"""One entry of :data:`Scores` in plain types: pair, token ids, checksum, log-probability."""


class CachedScores(ReferencePolicy):
    """Scores of another reference policy, computed once per pair and caption and kept on disk.

    An entry belongs to the reference's weights, the pair's id, its pixels, the question about it and the caption's
    tokens. Scores of other weights are refused; other pixels (a transform, another size, an edited file) or another
    question make an entry stale: it is computed anew. ``stale`` and ``computed`` count entries.

    Args:
        reference: computes what is missing; None to refuse instead, which saves its memory.
        path: folder to start from and to keep the scores in, added to at every checkpoint and at the end; None keeps
            them in memory and in checkpoints. Either way a run that was killed goes on with the very numbers that it
            had: computed anew in another batch they could differ in their last digits.
    """

    def __init__(self, reference: ReferencePolicy | None = None, path: str | None = None) -> None:
        super().__init__()
        if reference is None and path is None:
            raise ConfigError(
                "CachedScores needs a reference that computes scores, or the path of scores computed before"
            )
        if isinstance(reference, MovingAverage):
            raise ConfigError("the scores of a MovingAverage change at every step and cannot be kept; use FrozenCopy")
        self.reference = reference
        self.path = None if path is None else Path(path)
        self.stale = self.computed = 0
        self._scores: Scores = {}
        self._stored: Scores = {}
        self._weights = ""
        self._read = False

    def connect(self, captioner: PairCaptioner) -> None:
        self._weights = fingerprint(captioner)
        if self.reference is not None:
            self.reference.connect(captioner)
        elif not (self.path is not None and self.path.exists()):
            raise ConfigError(
                f"there are no scores at {str(self.path)!r}; give CachedScores a reference, which computes them"
            )

    def _start(self) -> None:
        # not in connect: a checkpoint that a run resumes from says later whose scores they shall be
        if not self._read and self.path is not None and self.path.exists():
            self._stored = read_scores(self.path, self._weights)
            self._scores = {**self._stored, **self._scores}
        self._read = True

    @torch.no_grad()
    def score(self, step: TrainingStep[PairCaptioner], tokens: Tensor, mask: Tensor) -> Tensor:
        self._start()
        batch: PairBatch = step.batch
        questions = [question for _, question in step.module.asked(batch)]
        sums = [
            pixels ^ zlib.crc32(question.encode())
            for pixels, question in zip(checksums(batch.images), questions, strict=True)
        ]
        keys = [
            [(id, tuple(row[: 1 + int(words.sum())])) for row, words in zip(rows, masks, strict=True)]
            for id, rows, masks in zip(batch.ids, tokens.tolist(), mask.cpu(), strict=True)
        ]
        stale = {key for row, pixels in zip(keys, sums, strict=True) for key in row if self._differs(key, pixels)}
        fresh = [all(key in self._scores and key not in stale for key in row) for row in keys]
        if not all(fresh):
            self.stale += len(stale)
            self.computed += len({key for row in keys for key in row} - self._scores.keys())
            missing = [row for row, complete in enumerate(fresh) if not complete]
            if self.reference is None:
                raise DataError(
                    f"{len(missing)} pairs of the batch, such as {batch.ids[missing[0]]!r}, have no score in "
                    f"{str(self.path)!r} for these captions, pixels and questions; give CachedScores a reference to "
                    "compute them"
                )
            scores = self.reference.score(step, tokens, mask).tolist()
            for row in missing:
                self._scores |= {key: (sums[row], value) for key, value in zip(keys[row], scores[row], strict=True)}
        values = [[self._scores[key][1] for key in row] for row in keys]
        return torch.tensor(values, device=tokens.device)

    def _differs(self, key: tuple[str, tuple[int, ...]], pixels: int) -> bool:
        return key in self._scores and self._scores[key][0] != pixels

    def get_extra_state(self) -> dict[str, str]:
        return {"weights": self._weights}

    def set_extra_state(self, state: dict[str, str]) -> None:
        self._weights = state["weights"]

    def save(self) -> None:
        if self.path is None:
            return
        self._gather()
        fresh = {key: entry for key, entry in self._scores.items() if self._stored.get(key) != entry}
        if fresh and is_rank_zero():
            try:
                append_scores(self.path, self._weights, fresh)
            except OSError as error:
                print(f"could not write scores to {self.path}: {error}; make room there, or name another folder")
            else:
                self._stored = dict(self._scores)

    def beyond_weights(self) -> dict[str, Any]:
        return {"scores": self._rows()} if self.path is None else {}

    def restore(self, kept: dict[str, Any]) -> None:
        self._scores = {(id, tuple(ids)): (pixels, value) for id, ids, pixels, value in kept.get("scores", [])}

    def _gather(self) -> None:
        self._scores = all_gather_dict(self._scores)

    def _rows(self) -> list[Row]:
        self._gather()
        return [(id, list(ids), pixels, value) for (id, ids), (pixels, value) in self._scores.items()]


def append_scores(path: Path, weights: str, scores: Scores) -> None:
    """Add scores to a folder; a later one of the same pair and caption counts.

    Args:
        path: folder of the store.
        weights: fingerprint of the reference policy.
        scores: new scores.

    Raises:
        OSError: they cannot be written.
    """
    (ids, tokens), (pixels, values) = zip(*scores, strict=True), zip(*scores.values(), strict=True)
    batch = tensor_batch(id=list(ids), tokens=list(tokens), pixels=list(pixels), value=list(values))
    GrowingStore(path, identity={"weights": weights}).append("scores", batch)


def read_scores(path: Path, weights: str) -> Scores:
    """Scores that :class:`CachedScores` stored.

    Raises:
        StoreError: the folder holds no scores, damaged ones, or those of other weights.
    """
    what, remedy = "scores of CachedScores", "remove it to have them computed, or name another folder"
    stored = read_manifest(path, what, remedy).identity.get("weights", "")
    if stored != weights:
        raise StoreError(
            f"the scores in {str(path)!r} are stale: they come from weights {stored[:8]}, the reference policy has "
            f"{weights[:8]}; {remedy}"
        )
    batches = GrowingStore(path, what, remedy).table("scores").batches()
    rows = (row for batch in batches for row in batch.to_pylist())
    return {(row["id"], tuple(row["tokens"])): (row["pixels"], row["value"]) for row in rows}


def fingerprint(captioner: PairCaptioner) -> str:
    """Digest of the weights of a captioner, without its add-ons."""
    weights = ((name, tensor) for name, tensor in captioner.state_dict().items() if not name.startswith(f"{AUX}."))
    return digest_of_all(
        part
        for name, tensor in weights
        for part in (name, tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    )


def checksums(images: Tensor) -> list[int]:
    """One number per pair of uint8 ``(B, 2, 3, H, W)``, the same on every device; one changed byte changes it."""
    places = torch.arange(images[0].numel(), device=images.device)
    # integers wrap around alike everywhere, and odd weights let no change of a single byte vanish
    weights = (places * 2654435761 + 97531) ^ (places << 7) | 1
    shape = images.shape[-2] * 1_000_003 + images.shape[-1] * 998_244_353
    return ((images.flatten(1).long() * weights).sum(1) + shape).tolist()
