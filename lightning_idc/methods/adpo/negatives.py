"""Where rejected captions come from."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import TYPE_CHECKING

import torch

from lightning_idc.core.types import PairBatch, PairError
from lightning_idc.methods.adpo.pool import CaptionPool, choose, same_words

if TYPE_CHECKING:
    from lightning_idc.core.addon import TrainingStep
    from lightning_idc.data.core.datamodule import PairDataModule


class NegativeSource(ABC):
    """Gives captions that are wrong for a pair; none of them equals a reference of that pair."""

    def connect(self, data: PairDataModule) -> None:  # noqa: B027 - not every source reads the data
        """Read what it draws from; called once, before training."""

    @abstractmethod
    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> list[list[str]]:
        """``count`` captions for every pair of the batch."""


def candidates_of(step: TrainingStep, pool: CaptionPool, size: int, generator: torch.Generator) -> torch.Tensor:
    """Places of the captions of the pool that this process draws negatives from in this step."""
    trainer = step.host.trainer
    return pool.draw(size, generator, trainer.global_rank, trainer.world_size)


class RandomCaption(NegativeSource):
    """Captions of other pairs, each as likely as any other: the paper's DPO.

    Args:
        candidates: captions drawn for a batch, of which each pair gets one. Any number is as random; the retriever
            chooses among as many, and the same ones for the same seed.
    """

    def __init__(self, candidates: int = 128) -> None:
        self.candidates = candidates

    def connect(self, data: PairDataModule) -> None:
        self.pool = CaptionPool(data.train_captions())

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> list[list[str]]:
        batch: PairBatch = step.batch
        places = candidates_of(step, self.pool, self.candidates, generator)
        allowed = self.pool.wrong(places, batch.references)
        columns, _ = choose(torch.zeros(allowed.shape), allowed, count, generator)
        return [[self.pool.texts[place] for place in row] for row in places[columns].tolist()]


class SameScene(NegativeSource):
    """Captions of other pairs of the same scene, and of any pair where a scene has only one.

    Args:
        scene: regular expression that finds the scene's name in the id of a pair, as its first group.

    Raises:
        PairError: the expression is none, or has no group.
    """

    def __init__(self, scene: str) -> None:
        try:
            self.scene = re.compile(scene)
        except re.error as error:
            raise PairError(f"scene {scene!r} is no regular expression: {error}") from error
        if self.scene.groups != 1:
            raise PairError(f"scene {scene!r} has {self.scene.groups} groups; expected one, around the scene's name")
        self.elsewhere = RandomCaption()

    def connect(self, data: PairDataModule) -> None:
        self.elsewhere.connect(data)
        source = data.pairs_of("train")
        self.captions: dict[str, list[str]] = defaultdict(list)
        for index, id in enumerate(source.ids):
            self.captions[self._name(id)] += source.captions(index)
        if max(map(len, self.captions.values())) == len(data.train_captions()) > 0 and len(source) > 1:
            raise PairError(f"scene {self.scene.pattern!r} puts all pairs into one scene; make its group more specific")

    def _name(self, id: str) -> str:
        found = self.scene.search(id)
        if found is None:
            raise PairError(f"scene {self.scene.pattern!r} is not found in the id {id!r}")
        return found.group(1)

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> list[list[str]]:
        batch: PairBatch = step.batch
        rows = self.elsewhere.draw(step, count, generator)
        for row, id, own in zip(rows, batch.ids, batch.references, strict=True):
            right = {same_words(caption) for caption in own}
            wrong = [caption for caption in self.captions[self._name(id)] if same_words(caption) not in right]
            if wrong:
                row[:] = [wrong[place] for place in torch.randint(len(wrong), (count,), generator=generator).tolist()]
        return rows


class Counterfactual(NegativeSource):
    """Planted sentences with one fact wrong, from the ground truth of rendered pairs."""

    def connect(self, data: PairDataModule) -> None:
        from lightning_idc.data.synthetic.source import SyntheticSource

        source = data.pairs_of("train")
        if not isinstance(source, SyntheticSource):
            raise PairError(
                f"Counterfactual needs the ground truth of SyntheticPairs; the training split is a "
                f"{type(source).__name__}"
            )
        self.source = source
        self.places = {id: index for index, id in enumerate(source.ids)}

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> list[list[str]]:
        from lightning_idc.data.synthetic.counterfactual import counterfactuals

        rows = []
        for id in step.batch.ids:
            found = counterfactuals(self.source.truth(self.places[id]), count, generator)
            if not found:
                raise PairError(f"no counterfactual can be planted in the pair {id!r}")
            rows.append([found[k % len(found)] for k in range(count)])
        return rows


class Retrieved(NegativeSource):
    """Captions that an adversarial retriever picks; :class:`AdversarialRetriever` puts it in place.

    Args:
        name: of the retriever among the host's add-ons.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> list[list[str]]:
        from lightning_idc.core.addon import addons_of
        from lightning_idc.methods.adpo.adversarial_retriever import Retriever

        retriever = addons_of(step.host)[self.name]
        assert isinstance(retriever, Retriever)
        return retriever.picked
