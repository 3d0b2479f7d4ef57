"""Sources of rejected captions: a :class:`NegativeSource` draws them and receives the policy's loss on each."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairBatch
from lightning_idc.methods.adpo.pool import (
    CaptionPool,
    Weighting,
    sample_negatives,
)
from lightning_idc.models.distributed import get_rank_world_size, mean_over_processes
from lightning_idc.synthesis.models.base import TextEncoder
from lightning_idc.utils.bounds import PositiveFloat, PositiveShare, Share, TwoOrMore, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule
    from lightning_idc.data.splits import Split
    from lightning_idc.data.synthetic.source import SyntheticSource
    from lightning_idc.models.addon import TrainingStep
    from lightning_idc.models.captioner import PairCaptioner


@dataclass(slots=True)
class RejectedCaptions:
    """Rejected captions of a batch.

    Args:
        texts: K captions per pair, or S K from S sources, those of the first source first.
        margin: preference margin of the data, ``(B, K)``; None where the data has none.
        log_probs: log-probability of each caption under the source, with gradient, ``(B, K)``; None for a source
            without parameters.
        distribution: log-probabilities of all candidates, without gradient, ``(B, N)``; None for a source without
            parameters.
        source: in a :class:`Mixture`, index of the source of each caption, ``(B, K)``; None otherwise.
        parts: in a combination of sources, the captions that each source drew.
        weights: weight of each caption in the loss, ``(B, K)``, 1 on average; None for equal weights.
    """

    texts: list[list[str]]
    margin: Tensor | None = None
    log_probs: Tensor | None = None
    distribution: Tensor | None = None
    source: Tensor | None = None
    parts: tuple[RejectedCaptions, ...] = ()
    weights: Tensor | None = None


class NegativeSource(ABC):
    """Draws captions that are wrong for a pair; none of them equals a reference of that pair.

    A source with parameters is also an ``nn.Module``, or an add-on such as the adversarial retriever.
    """

    fraction: float = 1.0
    """Fraction of the negatives that this source draws when it is an add-on that replaces another source."""
    reads_captioner: bool = False
    """Whether :meth:`draw` reads the captioner's features or samples from it."""

    def setup(self, data: PairDataModule) -> None:  # noqa: B027 - not every source reads the data
        """Read the captions to draw from; called once, before training."""

    @abstractmethod
    def draw(self, step: TrainingStep[PairCaptioner], count: int, generator: torch.Generator) -> RejectedCaptions:
        """Draw K captions for each pair of the batch.

        Args:
            step: training step, with its batch and features.
            count: K, number of captions per pair.
            generator: random generator, on the CPU.
        """

    def update(self, negatives: RejectedCaptions, losses: Tensor, present: Tensor) -> None:  # noqa: B027 - optional
        """Learn from the policy's losses on the negatives of a step. Most sources do not learn.

        Args:
            negatives: return value of :meth:`draw`.
            losses: the policy's loss on each comparison, ``(B, K)``, without gradient.
            present: bool ``(B, K)``, False for comparisons that do not count.
        """


class RandomCaption(NegativeSource):
    """Captions of other pairs: the paper's DPO.

    Args:
        candidates: number of captions that are drawn from the pool for a batch. It does not change the distribution of
            the negatives; with the same number and seed, the retriever draws the same candidates.
        weighting: how candidates are drawn from the training captions, as in :class:`CaptionPool`.
        no_change_fraction: as in :class:`CaptionPool`.
        too_similar: as in :class:`CaptionPool`.
        threshold: as in :class:`CaptionPool`.
    """

    def __init__(
        self,
        candidates: TwoOrMore = 128,
        weighting: Weighting = "stratified",
        no_change_fraction: Share | None = None,
        too_similar: TextEncoder | None = None,
        threshold: PositiveShare | None = None,
    ) -> None:
        check_arguments(RandomCaption.__init__, locals())
        self.candidates, self.weighting, self.no_change_fraction = candidates, weighting, no_change_fraction
        self.too_similar, self.threshold = too_similar, threshold

    def setup(self, data: PairDataModule) -> None:
        self.pool = build_pool(data, self.weighting, self.no_change_fraction, self.too_similar, self.threshold)

    def draw(self, step: TrainingStep[PairCaptioner], count: int, generator: torch.Generator) -> RejectedCaptions:
        indices, allowed = sample_candidates(step, self.pool, self.candidates, generator)  # (N,), (B, N)
        columns, _ = sample_negatives(torch.zeros(allowed.shape), allowed, count, generator)  # (B, K)
        return RejectedCaptions([[self.pool.texts[index] for index in row] for row in indices[columns].tolist()])


def build_pool(
    data: PairDataModule,
    weighting: Weighting,
    no_change_fraction: float | None,
    too_similar: TextEncoder | None = None,
    threshold: float | None = None,
) -> CaptionPool:
    """Pool of the captions of a training split; the arguments are those of :class:`CaptionPool`."""
    if too_similar is not None:
        too_similar.load()
        if data.trainer is not None:
            too_similar.to(data.trainer.strategy.root_device)
    captions, no_change = data.train_captions(), data.no_change_captions()
    return CaptionPool(captions, weighting, no_change, no_change_fraction, too_similar, threshold)


def sample_candidates(
    step: TrainingStep[PairCaptioner], pool: CaptionPool, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """:meth:`CaptionPool.sample_candidates` for the batch of a step: indices ``(N,)`` and bool ``(B, N)``."""
    rank, num_processes = get_rank_world_size()
    indices, allowed = pool.sample_candidates(
        size, step.batch.references, generator, rank=rank, num_processes=num_processes
    )
    log_too_similar(step, pool)
    return indices, allowed


def log_too_similar(step: TrainingStep[PairCaptioner], pool: CaptionPool) -> None:
    """Log the fraction of candidates that were excluded because they are similar to a reference."""
    # negatives of an export are drawn without a trainer
    trainer = step.module._trainer
    if pool.too_similar is not None and trainer is not None and trainer.training:
        fraction = mean_over_processes(torch.tensor(pool.read_similar_fraction(), device=step.batch.tokens.device))
        step.module.log("train/negatives/too_similar", fraction, batch_size=len(step.batch))


class SameScene(NegativeSource):
    """Captions of other pairs of the same scene; of any other pair where the scene has no wrong caption.

    Args:
        scene: regular expression with one group, which matches the name of the scene in the id of a pair.
        too_similar: as in :class:`CaptionPool`.
        threshold: as in :class:`CaptionPool`.

    Raises:
        ConfigError: the expression is invalid, or does not have one group; or ``threshold`` is out of range.
    """

    def __init__(
        self, scene: str, too_similar: TextEncoder | None = None, threshold: PositiveShare | None = None
    ) -> None:
        check_arguments(SameScene.__init__, locals())
        try:
            self.scene = re.compile(scene)
        except re.error as error:
            raise ConfigError(f"scene {scene!r} is not a regular expression: {error}") from error
        if self.scene.groups != 1:
            raise ConfigError(f"scene {scene!r} has {self.scene.groups} groups; expected one, around the scene's name")
        self.fallback = RandomCaption(too_similar=too_similar, threshold=threshold)

    def setup(self, data: PairDataModule) -> None:
        self.fallback.setup(data)
        source = data.pairs_of("train")
        # captions by scene
        self.captions: dict[str, list[str]] = defaultdict(list)
        for index, id in enumerate(source.ids):
            self.captions[self._scene_name(id)] += source.captions(index)
        if len(self.captions) == 1 and len(source) > 1:
            raise ConfigError(
                f"scene {self.scene.pattern!r} puts all pairs into one scene; make its group more specific"
            )

    def _scene_name(self, id: str) -> str:
        match = self.scene.search(id)
        if match is None:
            raise DataError(f"scene {self.scene.pattern!r} does not match the id {id!r}")
        return match.group(1)

    def draw(self, step: TrainingStep[PairCaptioner], count: int, generator: torch.Generator) -> RejectedCaptions:
        batch: PairBatch = step.batch
        negatives = self.fallback.draw(step, count, generator)
        for row, id, references in zip(negatives.texts, batch.ids, batch.references, strict=True):
            captions = self.captions[self._scene_name(id)]
            is_negative = self.fallback.pool.is_negative_text(captions, references)
            wrong = [text for text, flag in zip(captions, is_negative, strict=True) if flag]
            if wrong:
                row[:] = [wrong[index] for index in torch.randint(len(wrong), (count,), generator=generator).tolist()]
        log_too_similar(step, self.fallback.pool)
        return negatives


class Counterfactual(NegativeSource):
    """Sentences with one wrong fact, generated from the ground truth of rendered pairs."""

    def setup(self, data: PairDataModule) -> None:
        self.ground_truth = ground_truth_lookup(data, "Counterfactual")

    def draw(self, step: TrainingStep[PairCaptioner], count: int, generator: torch.Generator) -> RejectedCaptions:
        from lightning_idc.data.synthetic.counterfactual import counterfactuals

        rows = []
        for id in step.batch.ids:
            texts = counterfactuals(self.ground_truth(id), count, generator)
            if not texts:
                raise DataError(f"pair {id!r}: no counterfactual can be made of its ground truth")
            rows.append([texts[k % len(texts)] for k in range(count)])
        return RejectedCaptions(rows)


def ground_truth_lookup(data: PairDataModule, user: str) -> Callable[[str], Any]:
    """Function that maps the id of a pair to its ground truth; splits after the training split are read on demand.

    Args:
        data: data module whose training split is rendered.
        user: name of the option that needs the ground truth, for the message.

    Raises:
        ConfigError: the training split is not rendered.
    """
    rendered: dict[str, tuple[SyntheticSource, int]] = {}
    remaining = [split for split in data.available_splits if split != "train"]

    def read(split: Split) -> None:
        source = _rendered(data, split, user)
        for index, id in enumerate(source.ids):
            rendered.setdefault(id, (source, index))

    def ground_truth(id: str) -> Any:
        while id not in rendered and remaining:
            read(remaining.pop(0))
        source, index = rendered[id]
        return source.ground_truth(index)

    read("train")
    return ground_truth


def _rendered(data: PairDataModule, split: Split, user: str) -> SyntheticSource:
    from lightning_idc.data.source import View
    from lightning_idc.data.synthetic.source import SyntheticSource

    source: Any = data.pairs_of(split)
    while isinstance(source, View):
        source = source.source
    if not isinstance(source, SyntheticSource):
        raise ConfigError(
            f"{user} needs the ground truth of SyntheticPairs; the {split} split is a {type(source).__name__}"
        )
    return source


class FromData(NegativeSource):
    """Rejected captions in ``PairSample.meta`` of each pair, such as those of a preference data set.

    Args:
        key: key of ``meta`` under which a caption or a list of captions is stored.
        margin: key of ``meta`` under which the preference margin is stored; None for no margins.
        error_margins: margin by ``meta["error_type"]`` (HAE-DPO), for pairs without a stored margin.
    """

    def __init__(
        self, key: str = "rejected", margin: str | None = None, error_margins: Mapping[str, float] | None = None
    ) -> None:
        self.key, self.margin, self.error_margins = key, margin, error_margins

    def draw(self, step: TrainingStep[PairCaptioner], count: int, generator: torch.Generator) -> RejectedCaptions:
        batch: PairBatch = step.batch
        rows, margins = [], []
        for id, meta in zip(batch.ids, batch.meta, strict=True):
            value = meta.get(self.key)
            texts = [value] if isinstance(value, str) else list(value or ())
            if not texts:
                raise DataError(f"pair {id!r} has no rejected caption: no {self.key!r} is in its meta {list(meta)}")
            start = int(torch.randint(len(texts), (), generator=generator))
            rows.append([texts[(start + k) % len(texts)] for k in range(count)])
            if self.margin is not None or self.error_margins is not None:
                margins.append([self._margin(id, meta)] * count)
        device = batch.tokens.device
        return RejectedCaptions(rows, margin=torch.tensor(margins, device=device) if margins else None)

    def _margin(self, id: str, meta: Mapping[str, Any]) -> float:
        margin = None if self.margin is None else meta.get(self.margin)
        if margin is None and self.error_margins is not None:
            error_type: Any = meta.get("error_type")
            if error_type not in self.error_margins:
                names = ", ".join(self.error_margins)
                raise DataError(f"pair {id!r}: error_type is {error_type!r}; error_margins has {names}")
            return float(self.error_margins[error_type])
        if not isinstance(margin, (int, float)):
            raise DataError(f"pair {id!r}: meta[{self.margin!r}] is {margin!r}; expected a number")
        return float(margin)


class SelfSampled(NegativeSource):
    """Captions sampled from the policy: the mistakes that it makes itself.

    A sample that equals a reference is replaced by a caption of another pair; with ``verify``, so is one that is true.

    Args:
        temperature: sampling temperature.
        top_p: probability mass of the tokens to sample from.
        verify: whether samples are checked against the ground truth of rendered pairs.
        too_similar: as in :class:`CaptionPool`.
        threshold: as in :class:`CaptionPool`.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        temperature: PositiveFloat = 1.0,
        top_p: PositiveShare = 1.0,
        verify: bool = False,
        too_similar: TextEncoder | None = None,
        threshold: PositiveShare | None = None,
    ) -> None:
        check_arguments(SelfSampled.__init__, locals())
        self.temperature, self.top_p, self.verify = temperature, top_p, verify
        self.reads_captioner = True
        self.fallback = RandomCaption(too_similar=too_similar, threshold=threshold)

    def setup(self, data: PairDataModule) -> None:
        self.fallback.setup(data)
        self.ground_truth = ground_truth_lookup(data, "SelfSampled with verify") if self.verify else None

    def draw(self, step: TrainingStep[PairCaptioner], count: int, generator: torch.Generator) -> RejectedCaptions:
        from lightning_idc.data.synthetic.counterfactual import is_false

        captioner = step.module
        batch, negatives = step.batch, self.fallback.draw(step, count, generator)
        samples = captioner.decoder.sample(
            step.features, count, temperature=self.temperature, top_p=self.top_p, generator=generator
        )
        texts = [captioner.built_vocabulary.decode(ids) for ids in samples.ids]
        for b, (row, id, references) in enumerate(zip(negatives.texts, batch.ids, batch.references, strict=True)):
            samples_of_pair = texts[b * count : (b + 1) * count]
            is_negative = self.fallback.pool.is_negative_text(samples_of_pair, references)
            for k, text in enumerate(samples_of_pair):
                if is_negative[k] and (self.ground_truth is None or is_false(text, self.ground_truth(id))):
                    row[k] = text
        log_too_similar(step, self.fallback.pool)
        return negatives


class _WeightedSources(NegativeSource, nn.Module):
    """Base class of combinations of sources with one weight per source."""

    def __init__(self, sources: Sequence[NegativeSource], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        if any(isinstance(source, SideBySide) for source in sources):
            raise ConfigError("SideBySide cannot be a source of another combination; list its sources there instead")
        weights = [1.0] * len(sources) if weights is None else list(weights)
        if len(weights) != len(sources) or not sources or min(weights) < 0 or not sum(weights):
            raise ConfigError(f"{len(sources)} sources have the weights {weights}; expected one per source, 0 or more")
        self.sources = tuple(sources)
        # an add-on is a sub-module of the captioner already; registered here too, checkpoints would hold it twice
        self.source_modules = nn.ModuleList(
            source for source in sources if isinstance(source, nn.Module) and not _is_addon(source)
        )
        self.weights = torch.tensor(weights)
        self.reads_captioner = any(source.reads_captioner for source in sources)

    def setup(self, data: PairDataModule) -> None:
        for source in self.sources:
            source.setup(data)


class SideBySide(_WeightedSources):
    """Compares each chosen caption with one rejected caption of every source (DNPO has two sources).

    Args:
        sources: S sources of negatives.
        weights: weight of each source in the loss; equal when None.

    Raises:
        ConfigError: the numbers of weights and sources differ, a weight is negative, or all are zero.
    """

    def draw(self, step: TrainingStep[PairCaptioner], count: int, generator: torch.Generator) -> RejectedCaptions:
        parts = tuple(source.draw(step, count, generator) for source in self.sources)
        texts = [[text for part in parts for text in part.texts[b]] for b in range(len(step.batch))]
        device = step.batch.tokens.device
        margin = None
        if any(part.margin is not None for part in parts):
            zero = torch.zeros(len(step.batch), count, device=device)
            margin = torch.cat([zero if part.margin is None else part.margin for part in parts], 1)
        weights = (self.weights * len(parts) / self.weights.sum()).to(device).repeat_interleave(count)
        return RejectedCaptions(texts, margin=margin, parts=parts, weights=weights.expand(len(texts), -1))

    def update(self, negatives: RejectedCaptions, losses: Tensor, present: Tensor) -> None:
        count = losses.shape[1] // len(self.sources)  # K
        slices = zip(losses.split(count, 1), present.split(count, 1), strict=True)  # S of (B, K)
        for source, part, (part_losses, part_present) in zip(self.sources, negatives.parts, slices, strict=True):
            source.update(part, part_losses, part_present)


class Mixture(_WeightedSources):
    """Takes each rejected caption from one of several sources, which is drawn at random.

    Args:
        sources: S sources of negatives.
        weights: relative frequency of each source; equal when None.

    Raises:
        ConfigError: the numbers of weights and sources differ, a weight is negative, or all are zero.
    """

    def draw(self, step: TrainingStep[PairCaptioner], count: int, generator: torch.Generator) -> RejectedCaptions:
        parts = tuple(source.draw(step, count, generator) for source in self.sources)
        weights = self.weights.expand(len(step.batch), -1)  # (B, S)
        source_indices = torch.multinomial(weights, count, replacement=True, generator=generator)  # (B, K)
        texts = [
            [parts[source].texts[b][k] for k, source in enumerate(row)] for b, row in enumerate(source_indices.tolist())
        ]
        margin = None
        if any(part.margin is not None for part in parts):
            device = step.batch.tokens.device
            zero = torch.zeros(source_indices.shape, device=device)
            margins = torch.stack([zero if part.margin is None else part.margin for part in parts])  # (S, B, K)
            margin = margins.gather(0, source_indices[None].to(device))[0]  # (B, K)
        return RejectedCaptions(texts, margin=margin, source=source_indices, parts=parts)

    def update(self, negatives: RejectedCaptions, losses: Tensor, present: Tensor) -> None:
        assert negatives.source is not None
        for index, (source, part) in enumerate(zip(self.sources, negatives.parts, strict=True)):
            source.update(part, losses, present & (negatives.source == index).to(present.device))


def _is_addon(source: object) -> bool:
    from lightning_idc.models.addon import Addon

    return isinstance(source, Addon)
