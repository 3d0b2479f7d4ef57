"""Rejected captions of whole splits, drawn by any source of negatives outside of training, for exports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.export.rows import resized_pairs
from lightning_idc.data.loading import PairDataset
from lightning_idc.data.source import PairSource
from lightning_idc.data.splits import Split
from lightning_idc.images.types import PairBatch
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.methods.adpo.negatives import NegativeSource
from lightning_idc.models.addon import TrainingStep
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError


def draw_all(
    source: NegativeSource | AdversarialRetriever,
    data: PairDataModule,
    split: Split,
    count: PositiveInt = 1,
    captioner: PairCaptioner | None = None,
    seed: int = 0,
) -> list[list[str]]:
    """``count`` rejected captions of every pair of a split; none for a pair without captions.

    Args:
        source: source of negatives. An :class:`AdversarialRetriever` draws with the weights of its ``weights``.
        data: data module; captions are drawn from its training split.
        split: split to draw for.
        count: number of rejected captions per pair.
        captioner: captioner, in eval mode, for sources that read its features or sample from it.
        seed: seed of the draws.

    Raises:
        ConfigError: the source needs a captioner and there is none, or the retriever has no weights.
        DataError: a pair has no negative.

    Example:
        >>> from lightning_idc.methods import RandomCaption
        >>> draw_all(RandomCaption(), data, "val")[0]  # doctest: +SKIP
        ['the ball is gone']
    """
    check_arguments(draw_all, locals())
    module: LightningModule = LightningModule() if captioner is None else captioner
    if captioner is None and (isinstance(source, AdversarialRetriever) or source.reads_captioner):
        raise ConfigError(f"{type(source).__name__} reads a captioner; expected one, such as --model FILE")
    if isinstance(source, AdversarialRetriever):
        if source.weights is None:
            raise ConfigError("AdversarialRetriever has no weights; expected the checkpoint of its training")
        assert captioner is not None
        source = source.retriever(captioner, data).eval().to(captioner.device)
    else:
        source.setup(data)
    generator = torch.Generator().manual_seed(seed)
    pairs = resized_pairs(data, split)
    captioned = [index for index in range(len(pairs)) if pairs.source.captions(index)]
    rows: list[list[str]] = [[] for _ in range(len(pairs))]
    with torch.no_grad():
        for number, indices in enumerate(_batches(captioned, data.batch_size)):
            step = _step(module, captioner, pairs, indices, number)
            for index, texts in zip(indices, source.draw(step, count, generator).texts, strict=True):
                rows[index] = texts
    return rows


def _batches(indices: Sequence[int], size: int) -> Iterator[list[int]]:
    remaining = iter(indices)
    while batch := list(islice(remaining, size)):
        yield batch


def _step(
    module: LightningModule, captioner: PairCaptioner | None, pairs: PairDataset, indices: Sequence[int], number: int
) -> TrainingStep[PairCaptioner]:
    """The step that a source reads: a batch, and the captioner's features if there is one."""
    if captioner is None:
        return TrainingStep(module, _without_pixels(pairs.source, indices), number)  # type: ignore[arg-type]
    samples = [captioner.input_spec.resized(pairs[index]) for index in indices]
    batch = captioner.collate(samples).to(captioner.device)
    return TrainingStep(captioner, batch, number, features=captioner.encode(batch))


def _without_pixels(source: PairSource, indices: Sequence[int]) -> PairBatch:
    """Batch of ids, references and meta, for sources that read nothing else."""
    nothing: Tensor = torch.zeros(len(indices), 0, 0, dtype=torch.long)
    return PairBatch(
        images=torch.zeros(0, 2, 3, 0, 0, dtype=torch.uint8),
        tokens=nothing,
        caption_mask=nothing.bool(),
        ids=[source.ids[index] for index in indices],
        references=[source.captions(index) for index in indices],
        change_types=[source.change_type(index) for index in indices],
        meta=[source.meta(index) for index in indices],
    )
