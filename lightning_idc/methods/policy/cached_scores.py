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

ScoreCache = dict[tuple[str, tuple[int, ...]], tuple[int, float]]
"""Checksum of pixels and prompt, and summed log-probability, by pair id and token ids."""
ScoreRow = tuple[str, list[int], int, float]
"""One entry of :data:`ScoreCache` in plain types: pair id, token ids, checksum, log-probability."""


class CachedScores(ReferencePolicy):
    """Scores of another reference policy, computed once per pair and caption and stored on disk.

    Similar to TRL's ``precompute_ref_log_probs``. An entry is identified by the pair's id and the caption's tokens. If
    the pixels have changed (a transform, another size, an edited file), or the prompt, the entry is stale and computed
    again. Stored scores of a policy with other weights raise an error. ``stale`` and ``computed`` count entries.

    Args:
        reference: reference policy that computes missing scores. When None, a missing score raises an error, and no
            memory is needed for a second policy.
        path: folder of stored scores, extended at every checkpoint and at the end of training. When None, scores are
            stored in memory and in checkpoints. In both cases a resumed run uses the same numbers; recomputed in
            another batch, they could differ in their last digits.
    """

    def __init__(self, reference: ReferencePolicy | None = None, path: str | None = None) -> None:
        super().__init__()
        if reference is None and path is None:
            raise ConfigError(
                "CachedScores has neither a reference nor a path; expected a reference that computes scores, or "
                "stored scores"
            )
        if isinstance(reference, MovingAverage):
            raise ConfigError("the scores of a MovingAverage change at every step and cannot be cached; use FrozenCopy")
        self.reference = reference
        self.path = None if path is None else Path(path)
        self.stale = self.computed = 0
        self._scores: ScoreCache = {}
        self._stored: ScoreCache = {}
        self._weights = ""
        self._read = False

    def setup(self, captioner: PairCaptioner) -> None:
        self._weights = fingerprint(captioner)
        if self.reference is not None:
            self.reference.setup(captioner)
        elif not (self.path is not None and self.path.exists()):
            raise ConfigError(
                f"there are no scores at {str(self.path)!r}; give CachedScores a reference that computes them"
            )

    def _read_once(self) -> None:
        # not in setup: a resumed run loads the fingerprint of the weights from its checkpoint later
        if not self._read and self.path is not None and self.path.exists():
            self._stored = read_scores(self.path, self._weights)
            self._scores = {**self._stored, **self._scores}
        self._read = True

    @torch.no_grad()
    def score(self, step: TrainingStep[PairCaptioner], tokens: Tensor, mask: Tensor) -> Tensor:
        self._read_once()
        batch: PairBatch = step.batch
        prompts = [prompt for _, prompt in step.module.images_and_prompts(batch)]
        input_checksums = [
            image_checksum ^ zlib.crc32(prompt.encode())
            for image_checksum, prompt in zip(checksums(batch.images), prompts, strict=True)
        ]
        # B rows of K keys: the pair's id and the caption's tokens, without padding
        keys = [
            [(id, tuple(ids[: 1 + int(ids_mask.sum())])) for ids, ids_mask in zip(rows, masks, strict=True)]
            for id, rows, masks in zip(batch.ids, tokens.tolist(), mask.cpu(), strict=True)
        ]
        stale = {
            key
            for row, checksum in zip(keys, input_checksums, strict=True)
            for key in row
            if self._is_stale(key, checksum)
        }
        is_cached = [all(key in self._scores and key not in stale for key in row) for row in keys]
        if not all(is_cached):
            self.stale += len(stale)
            self.computed += len({key for row in keys for key in row} - self._scores.keys())
            missing = [row for row, complete in enumerate(is_cached) if not complete]  # pairs
            if self.reference is None:
                raise DataError(
                    f"{len(missing)} pairs of the batch, such as {batch.ids[missing[0]]!r}, have no score in "
                    f"{str(self.path)!r} for these captions, pixels and prompts; give CachedScores a reference to "
                    "compute them"
                )
            scores = self.reference.score(step, tokens, mask).tolist()
            for row in missing:
                self._scores |= {
                    key: (input_checksums[row], value) for key, value in zip(keys[row], scores[row], strict=True)
                }
        values = [[self._scores[key][1] for key in row] for row in keys]
        return torch.tensor(values, device=tokens.device)

    def _is_stale(self, key: tuple[str, tuple[int, ...]], checksum: int) -> bool:
        return key in self._scores and self._scores[key][0] != checksum

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
                print(f"could not write scores to {self.path}: {error}; free space there, or use another folder")
            else:
                self._stored = dict(self._scores)

    def extra_state(self) -> dict[str, Any]:
        return {"scores": self._rows()} if self.path is None else {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self._scores = {(id, tuple(ids)): (checksum, value) for id, ids, checksum, value in state.get("scores", [])}

    def _gather(self) -> None:
        self._scores = all_gather_dict(self._scores)

    def _rows(self) -> list[ScoreRow]:
        self._gather()
        return [(id, list(ids), checksum, value) for (id, ids), (checksum, value) in self._scores.items()]


def append_scores(path: Path, weights: str, scores: ScoreCache) -> None:
    """Append scores to a folder; a later score of the same pair and caption replaces an earlier one.

    Args:
        path: folder of the store.
        weights: fingerprint of the reference policy.
        scores: new scores.

    Raises:
        OSError: the folder cannot be written.
    """
    (ids, tokens), (input_checksums, values) = zip(*scores, strict=True), zip(*scores.values(), strict=True)
    batch = tensor_batch(id=list(ids), tokens=list(tokens), pixels=list(input_checksums), value=list(values))
    GrowingStore(path, identity={"weights": weights}).append("scores", batch)


def read_scores(path: Path, weights: str) -> ScoreCache:
    """Read the scores that a :class:`CachedScores` has stored.

    Args:
        path: folder of the store.
        weights: fingerprint of the reference policy.

    Raises:
        StoreError: the folder holds no scores, its scores are damaged, or they come from other weights.
    """
    content, remedy = "scores of CachedScores", "remove it to recompute them, or use another folder"
    stored_weights = read_manifest(path, content, remedy).identity.get("weights", "")
    if stored_weights != weights:
        raise StoreError(
            f"the scores in {str(path)!r} are stale: they come from weights {stored_weights[:8]}, the reference policy "
            f"has {weights[:8]}; {remedy}"
        )
    batches = GrowingStore(path, content, remedy).table("scores").batches()
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
    """Checksum of each pair of images, uint8 ``(B, 2, 3, H, W)``.

    It is equal on every device, and a change of any single byte changes it.
    """
    indices = torch.arange(images[0].numel(), device=images.device)
    # integers overflow in the same way on every device; odd weights detect any change of a single byte
    weights = (indices * 2654435761 + 97531) ^ (indices << 7) | 1
    shape = images.shape[-2] * 1_000_003 + images.shape[-1] * 998_244_353
    return ((images.flatten(1).long() * weights).sum(1) + shape).tolist()
