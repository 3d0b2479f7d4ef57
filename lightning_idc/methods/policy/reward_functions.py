"""Rewards in the signatures of other trainers: a function for TRL's GRPOTrainer, a class for ms-swift's ``orms``.

Both read the columns that ``lightning-idc data export`` writes: ``captions`` (references), ``facts``, ``boxes``,
``images`` and ``id``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_idc.data.tables.messages import last_text
from lightning_idc.images.read import read_image
from lightning_idc.images.types import PairBatch
from lightning_idc.methods.policy.rewards import Reward, compute_rewards
from lightning_idc.utils.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule


class RewardFunction:
    """A reward with TRL's signature: completions and the columns of their rows in, a list of floats out.

    Args:
        reward: reward of this library; already set up.
    """

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.__name__ = type(reward).__name__
        """Name of the reward in TRL's logs."""

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float]:
        """Rewards, one for each completion.

        Consecutive completions with the same ``id`` are the group of one pair.

        Args:
            completions: N generated texts, or N conversations whose last message is the answer.
            columns: ``captions`` (N lists of references), ``facts`` (N JSON texts), ``boxes``, ``id`` and ``images``
                (N lists of two images), each only where the reward reads it; other columns are ignored.

        Raises:
            DataError: a column that the reward reads is missing or malformed.
        """
        ids = [str(id) for id in columns.get("id") or range(len(completions))]
        sizes = [len(list(group)) for _, group in groupby(ids)]
        size = sizes[0] if len(set(sizes)) == 1 else 1
        first = slice(None, None, size)
        texts = [last_text(completion) for completion in completions]
        rows = [texts[start : start + size] for start in range(0, len(texts), size)]
        empty: list[list[str]] = [[] for _ in completions]
        pairs = PairBatch(
            images=self._images(columns.get("images"), first),
            tokens=torch.zeros(len(rows), 0, 0, dtype=torch.long),
            caption_mask=torch.zeros(len(rows), 0, 0, dtype=torch.bool),
            ids=ids[first],
            references=[list(captions or ()) for captions in (columns.get("captions") or empty)[first]],
            change_types=[None] * len(rows),
            meta=[_facts(facts) for facts in (columns.get("facts") or empty)[first]],
            boxes=[_boxes(boxes) for boxes in (columns.get("boxes") or [None] * len(texts))[first]],
        )
        rewards: list[float] = compute_rewards(self.reward, pairs, rows).flatten().tolist()
        return rewards

    def _images(self, images: Sequence[Any] | None, rows: slice) -> Tensor:
        """Images ``(B, 2, C, H, W)`` of the pairs; without pixels for a reward that does not read them."""
        if not self.reward.reads_images:
            return torch.zeros(0, 2, 3, 0, 0, dtype=torch.uint8)
        if images is None:
            raise DataError(
                f"{self.__name__} has reads_images True and there is no column images; expected two images a row"
            )
        pairs = [torch.stack([_image(image) for image in pair]) for pair in images[rows]]
        if len({pair.shape for pair in pairs}) > 1:
            raise DataError(f"{self.__name__} got images of different sizes; expected one size for a batch")
        return torch.stack(pairs)


def as_trl_reward(reward: Reward, data: PairDataModule | None = None) -> RewardFunction:
    """A reward as a function for ``reward_funcs`` of TRL's ``GRPOTrainer``.

    Args:
        reward: reward of this library.
        data: data module with the training captions; needed by CIDEr-D, whose document frequencies come from them.

    Raises:
        ConfigError: the reward reads training data and there are none.

    Example:
        >>> from lightning_idc.methods import LengthReward
        >>> as_trl_reward(LengthReward(2, 4))(["it moved", "it moved a little"])
        [0.0, -1.0]
    """
    if data is not None:
        reward.setup(data)
    elif reward.reads_data:
        raise ConfigError(f"{type(reward).__name__} reads the training captions; expected data=, a PairDataModule")
    return RewardFunction(reward)


def as_swift_orm(reward: Reward, data: PairDataModule | None = None) -> type:
    """A reward as a class for ``orms`` of ms-swift, which makes one object of it per run.

    In the file of ``--external_plugins``: ``orms["idc_facts"] = as_swift_orm(FactsReward())``.

    Args:
        reward: reward of this library.
        data: as in :func:`as_trl_reward`.

    Raises:
        ConfigError: the reward reads training data and there are none.

    Example:
        >>> from lightning_idc.methods import LengthReward
        >>> as_swift_orm(LengthReward(2, 4))(args=None)(["it moved", "it moved a little"], messages=[])
        [0.0, -1.0]
    """
    function = as_trl_reward(reward, data)

    class RewardORM:
        def __init__(self, args: Any = None, **options: Any) -> None:
            self.args = args

        def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float]:
            return function(completions, **columns)

    RewardORM.__name__ = RewardORM.__qualname__ = function.__name__
    return RewardORM


def _facts(value: Any) -> dict[str, Any]:
    """Facts of a pair from a JSON text or an object; {} where there are none.

    Raises:
        DataError: the text is not a JSON object.
    """
    try:
        facts = json.loads(value) if isinstance(value, str) else value or {}
    except ValueError:
        facts = None
    if not isinstance(facts, Mapping):
        raise DataError(f"facts is {value!r:.80}; expected the text of a JSON object, as `data export` writes it")
    return dict(facts)


def _boxes(value: Any) -> Tensor | None:
    """Boxes ``(M, 2, 4)`` of a pair, with NaN for None; None where there are none.

    Raises:
        DataError: the value has another form.
    """
    if value is None:
        return None
    try:
        numbers = [[[math.nan if edge is None else edge for edge in box] for box in sides] for sides in value]
        return torch.tensor(numbers, dtype=torch.float32).reshape(-1, 2, 4)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"boxes is {value!r:.80}; expected for each change two boxes of four numbers, as `data export` writes"
        raise DataError(message) from error


def _image(value: Any) -> Tensor:
    """Image as uint8 ``(C, H, W)``, from a Pillow image, a path, or an object with bytes or a path."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    return read_image(value)
