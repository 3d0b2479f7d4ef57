"""Where rejected captions come from: a :class:`NegativeSource` draws them and hears what they did to the policy."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairBatch
from lightning_idc.methods.adpo.pool import NO_CHANGE_SHARE, CaptionPool, Weighting, choose, same_words
from lightning_idc.nn.decoding.sampling import check_sampling
from lightning_idc.utils.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule
    from lightning_idc.models.addon import TrainingStep


@dataclass(slots=True)
class Draw:
    """Rejected captions of a batch.

    Args:
        texts: K per pair, or a multiple of K, first all of one source and then all of the next.
        margin: by how much the data says that the chosen caption is better, ``(B, K)``; None where it says nothing.
        log_probs: of each drawn caption under the source, with gradient, ``(B, K)``; None where nothing is trained.
        distribution: log-probabilities of all candidates, without gradient, ``(B, N)``; None where there are none.
        source: place of the source within a mixture that gave each caption, ``(B, K)``; None outside of mixtures.
        parts: what the sources of a mixture drew.
        weights: of each caption in the loss, ``(B, K)``, 1 on average; None counts all of them alike.
    """

    texts: list[list[str]]
    margin: Tensor | None = None
    log_probs: Tensor | None = None
    distribution: Tensor | None = None
    source: Tensor | None = None
    parts: tuple[Draw, ...] = ()
    weights: Tensor | None = None


class NegativeSource(ABC):
    """Gives captions that are wrong for a pair; none of them equals a reference of that pair.

    One that has parameters is an ``nn.Module`` as well, or an add-on of its own such as the adversarial retriever.
    """

    share: float = 1.0
    """Of the negatives that an add-on gives where it takes the place of another source."""

    def connect(self, data: PairDataModule) -> None:  # noqa: B027 - not every source reads the data
        """Read what it draws from; called once, before training."""

    @abstractmethod
    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> Draw:
        """``count`` captions for every pair of the batch.

        Args:
            step: with batch and features.
            count: K.
            generator: of all chance, on the processor.
        """

    def update(self, draw: Draw, losses: Tensor, present: Tensor) -> None:  # noqa: B027 - most sources do not learn
        """Hear what a draw did to the policy; called once per step.

        Args:
            draw: what :meth:`draw` gave.
            losses: of each comparison ``(B, K)``, without gradient.
            present: bool ``(B, K)``, False where a pair has fewer chosen captions.
        """


class RandomCaption(NegativeSource):
    """Captions of other pairs: the paper's DPO.

    Args:
        candidates: captions drawn for a batch, of which each pair gets one. Any number is as random; the retriever
            chooses among as many, and the same ones for the same seed.
        weighting: how they are drawn from the training captions, as of :class:`CaptionPool`.
        no_change_share: as of :class:`CaptionPool`.
    """

    def __init__(
        self, candidates: int = 128, weighting: Weighting = "stratified", no_change_share: float = NO_CHANGE_SHARE
    ) -> None:
        self.candidates, self.weighting, self.no_change_share = candidates, weighting, no_change_share

    def connect(self, data: PairDataModule) -> None:
        self.pool = pool_of(data, self.weighting, self.no_change_share)

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> Draw:
        places, allowed = offer(step, self.pool, self.candidates, generator)
        columns, _ = choose(torch.zeros(allowed.shape), allowed, count, generator)
        return Draw([[self.pool.texts[place] for place in row] for row in places[columns].tolist()])


def pool_of(data: PairDataModule, weighting: Weighting, no_change_share: float) -> CaptionPool:
    """Pool of the captions of a training split."""
    return CaptionPool(data.train_captions(), weighting, data.no_change_captions(), no_change_share)


def offer(step: TrainingStep, pool: CaptionPool, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Candidates that this process draws negatives from in this step, and who may be given which."""
    trainer = step.host.trainer
    return pool.offer(size, step.batch.references, generator, trainer.global_rank, trainer.world_size)


class SameScene(NegativeSource):
    """Captions of other pairs of the same scene, and of any pair where a scene has only one.

    Args:
        scene: regular expression that finds the scene's name in the id of a pair, as its first group.

    Raises:
        ConfigError: the expression is none, or has no group.
    """

    def __init__(self, scene: str) -> None:
        try:
            self.scene = re.compile(scene)
        except re.error as error:
            raise ConfigError(f"scene {scene!r} is not a regular expression: {error}") from error
        if self.scene.groups != 1:
            raise ConfigError(f"scene {scene!r} has {self.scene.groups} groups; expected one, around the scene's name")
        self.elsewhere = RandomCaption()

    def connect(self, data: PairDataModule) -> None:
        self.elsewhere.connect(data)
        source = data.pairs_of("train")
        # with the words of each, by which a pair's own captions are known
        self.captions: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for index, id in enumerate(source.ids):
            self.captions[self._name(id)] += [(same_words(text), text) for text in source.captions(index)]
        if len(self.captions) == 1 and len(source) > 1:
            raise ConfigError(
                f"scene {self.scene.pattern!r} puts all pairs into one scene; make its group more specific"
            )

    def _name(self, id: str) -> str:
        found = self.scene.search(id)
        if found is None:
            raise DataError(f"scene {self.scene.pattern!r} is not found in the id {id!r}")
        return found.group(1)

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> Draw:
        batch: PairBatch = step.batch
        found = self.elsewhere.draw(step, count, generator)
        for row, id, own in zip(found.texts, batch.ids, batch.references, strict=True):
            right = {same_words(caption) for caption in own}
            wrong = [text for words, text in self.captions[self._name(id)] if words not in right]
            if wrong:
                row[:] = [wrong[place] for place in torch.randint(len(wrong), (count,), generator=generator).tolist()]
        return found


class Counterfactual(NegativeSource):
    """Planted sentences with one fact wrong, from the ground truth of rendered pairs."""

    def connect(self, data: PairDataModule) -> None:
        self.truth = truths_of(data, "Counterfactual")

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> Draw:
        from lightning_idc.data.synthetic.counterfactual import counterfactuals

        rows = []
        for id in step.batch.ids:
            found = counterfactuals(self.truth(id), count, generator)
            if not found:
                raise DataError(f"no counterfactual can be planted in the pair {id!r}")
            rows.append([found[k % len(found)] for k in range(count)])
        return Draw(rows)


def truths_of(data: PairDataModule, who: str) -> Any:
    """Function that gives the ground truth of a training pair by its id.

    Raises:
        ConfigError: the training split is not rendered.
    """
    from lightning_idc.data.source import View
    from lightning_idc.data.synthetic.source import SyntheticSource

    source: Any = data.pairs_of("train")
    while isinstance(source, View):
        source = source.source
    if not isinstance(source, SyntheticSource):
        raise ConfigError(
            f"{who} needs the ground truth of SyntheticPairs; the training split is a {type(source).__name__}"
        )
    places = {id: index for index, id in enumerate(source.ids)}
    return lambda id: source.truth(places[id])


class FromData(NegativeSource):
    """Rejected captions that the data brings in ``PairSample.meta``, such as those of a data set of preferences.

    Args:
        key: of ``meta`` that holds a caption or a list of captions.
        margin: key of ``meta`` that says by how much the chosen caption is better; none when None.
        error_margins: margin by ``meta["error_type"]`` (HAE-DPO), for pairs without a number of their own.
    """

    def __init__(
        self, key: str = "rejected", margin: str | None = None, error_margins: Mapping[str, float] | None = None
    ) -> None:
        self.key, self.margin, self.error_margins = key, margin, error_margins

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> Draw:
        batch: PairBatch = step.batch
        rows, margins = [], []
        for id, meta in zip(batch.ids, batch.meta, strict=True):
            given = meta.get(self.key)
            texts = [given] if isinstance(given, str) else list(given or ())
            if not texts:
                raise DataError(f"pair {id!r} has no rejected caption: no {self.key!r} is in its meta {list(meta)}")
            start = int(torch.randint(len(texts), (), generator=generator))
            rows.append([texts[(start + k) % len(texts)] for k in range(count)])
            if self.margin is not None or self.error_margins is not None:
                margins.append([self._margin(id, meta)] * count)
        device = batch.tokens.device
        return Draw(rows, margin=torch.tensor(margins, device=device) if margins else None)

    def _margin(self, id: str, meta: Mapping[str, Any]) -> float:
        given = None if self.margin is None else meta.get(self.margin)
        if given is None and self.error_margins is not None:
            kind: Any = meta.get("error_type")
            if kind not in self.error_margins:
                known = ", ".join(self.error_margins)
                raise DataError(f"pair {id!r}: error_type is {kind!r}; error_margins has {known}")
            return float(self.error_margins[kind])
        if not isinstance(given, (int, float)):
            raise DataError(f"pair {id!r}: meta[{self.margin!r}] is {given!r}; expected a number")
        return float(given)


class SelfSampled(NegativeSource):
    """What the policy itself says at random, where that is none of the references: negatives that decoding meets.

    A sample that is a reference, or on rendered pairs is true, is replaced by a caption of another pair.

    Args:
        temperature: of the sampling.
        top_p: mass of the most likely tokens that are sampled from.
        verify: also ask the ground truth of rendered pairs whether a sample is false.

    Raises:
        ConfigError: temperature or ``top_p`` is out of range.
    """

    def __init__(self, temperature: float = 1.0, top_p: float = 1.0, verify: bool = False) -> None:
        check_sampling(temperature, top_p)
        self.temperature, self.top_p, self.verify = temperature, top_p, verify
        self.elsewhere = RandomCaption()

    def connect(self, data: PairDataModule) -> None:
        self.elsewhere.connect(data)
        self.truth = truths_of(data, "SelfSampled with verify") if self.verify else None

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> Draw:
        from lightning_idc.data.synthetic.counterfactual import is_false

        host: Any = step.host
        found = self.elsewhere.draw(step, count, generator)
        said = host.sample(step.features, count, self.temperature, self.top_p, generator)
        texts = [host.vocabulary.decode(ids) for ids in said.ids]
        for b, (row, id, own) in enumerate(zip(found.texts, step.batch.ids, step.batch.references, strict=True)):
            right = {same_words(caption) for caption in own}
            for k in range(count):
                text = texts[b * count + k]
                wrong = same_words(text) not in right and bool(text.strip())
                if wrong and (self.truth is None or is_false(text, self.truth(id))):
                    row[k] = text
        return found


class _Several(NegativeSource, nn.Module):
    """Several sources, each with a share."""

    def __init__(self, sources: Sequence[NegativeSource], shares: Sequence[float] | None = None) -> None:
        super().__init__()
        if any(isinstance(source, SideBySide) for source in sources):
            raise ConfigError("sources that stand side by side are not one of several; give their sources themselves")
        shares = [1.0] * len(sources) if shares is None else list(shares)
        if len(shares) != len(sources) or not sources or min(shares) < 0 or not sum(shares):
            raise ConfigError(f"{len(sources)} sources have the shares {shares}; give each source a share of 0 or more")
        # an add-on belongs to its host already; registered twice it would be in checkpoints twice
        self.sources = tuple(sources)
        self.own = nn.ModuleList(
            source for source in sources if isinstance(source, nn.Module) and not _is_addon(source)
        )
        self.shares = torch.tensor(shares)

    def connect(self, data: PairDataModule) -> None:
        for source in self.sources:
            source.connect(data)


class SideBySide(_Several):
    """Every chosen caption against one rejected caption of each source (DNPO has two sources).

    Args:
        sources: to draw from.
        shares: of the loss, one for each source; equal ones when None.

    Raises:
        ConfigError: there are not as many shares as sources, or a share is negative.
    """

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> Draw:
        parts = tuple(source.draw(step, count, generator) for source in self.sources)
        texts = [[text for part in parts for text in part.texts[b]] for b in range(len(step.batch))]
        device = step.batch.tokens.device
        margin = None
        if any(part.margin is not None for part in parts):
            zero = torch.zeros(len(step.batch), count, device=device)
            margin = torch.cat([zero if part.margin is None else part.margin for part in parts], 1)
        weights = (self.shares * len(parts) / self.shares.sum()).to(device).repeat_interleave(count)
        return Draw(texts, margin=margin, parts=parts, weights=weights.expand(len(texts), -1))

    def update(self, draw: Draw, losses: Tensor, present: Tensor) -> None:
        count = losses.shape[1] // len(self.sources)
        slices = zip(losses.split(count, 1), present.split(count, 1), strict=True)
        for source, part, (own, there) in zip(self.sources, draw.parts, slices, strict=True):
            source.update(part, own, there)


class Mixture(_Several):
    """Each rejected caption from one of several sources, drawn anew for each.

    Args:
        sources: to draw from.
        shares: of the captions, one for each source; equal ones when None.

    Raises:
        ConfigError: there are not as many shares as sources, or a share is negative.
    """

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> Draw:
        parts = tuple(source.draw(step, count, generator) for source in self.sources)
        chance = self.shares.expand(len(step.batch), -1)
        which = torch.multinomial(chance, count, replacement=True, generator=generator)
        texts = [[parts[source].texts[b][k] for k, source in enumerate(row)] for b, row in enumerate(which.tolist())]
        margin = None
        if any(part.margin is not None for part in parts):
            device = step.batch.tokens.device
            zero = torch.zeros(which.shape, device=device)
            margins = torch.stack([zero if part.margin is None else part.margin for part in parts])
            margin = margins.gather(0, which[None].to(device))[0]
        return Draw(texts, margin=margin, source=which, parts=parts)

    def update(self, draw: Draw, losses: Tensor, present: Tensor) -> None:
        assert draw.source is not None
        for place, (source, part) in enumerate(zip(self.sources, draw.parts, strict=True)):
            source.update(part, losses, present & (draw.source == place).to(present.device))


def _is_addon(source: object) -> bool:
    from lightning_idc.models.addon import Addon

    return isinstance(source, Addon)
