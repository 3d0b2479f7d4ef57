"""ForcedChoice: the rate at which the true sentence is more likely than a counterfactual (two-alternative accuracy)."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from lightning_idc.images.types import PairBatch
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.captions import pad_captions
from lightning_idc.models.distributed import all_gather_dict
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError

NUM_TEMPLATES = 5
"""Number of sentence templates for each kind of change."""


class ForcedChoice(Callback):
    """Logs ``test/forced_choice``: percentage of comparisons in which the true sentence is more likely.

    The true sentence and its counterfactuals use the same template, so that wording has no effect, and are compared by
    summed log-probability. Needs the scene facts of `SyntheticPairs`; other data are skipped with a message.

    Args:
        num_counterfactuals: number of counterfactuals per pair.
    """

    def __init__(self, num_counterfactuals: PositiveInt = 4) -> None:
        check_arguments(ForcedChoice.__init__, locals())
        self.num_counterfactuals = num_counterfactuals
        self._wins: dict[str, tuple[int, int]] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        from lightning_idc.data.synthetic.datamodule import SyntheticPairs

        if not isinstance(pl_module, PairCaptioner):
            raise ConfigError(f"ForcedChoice needs a PairCaptioner, not a {type(pl_module).__name__}")
        data = getattr(trainer, "datamodule", None)  # absent if loaders were passed
        self.data = data if isinstance(data, SyntheticPairs) else None
        if self.data is None and stage == "test":
            rank_zero_info(f"ForcedChoice is skipped: {type(data).__name__} has no scene facts")

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._wins = {}

    @torch.no_grad()
    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: PairBatch, *unused: Any
    ) -> None:
        from lightning_idc.data.synthetic.counterfactual import counterfactuals, true_sentence

        if self.data is None:
            return
        assert isinstance(pl_module, PairCaptioner)
        source = self.data.source("test")
        rows = []
        for id in batch.ids:
            index = int(id.rpartition("-")[2])
            change, generator = source.ground_truth(index), torch.Generator().manual_seed(index)
            template = int(torch.randint(NUM_TEMPLATES, (), generator=generator))
            negatives = counterfactuals(change, self.num_counterfactuals, generator, template)
            rows.append(pl_module.tokenize([true_sentence(change, template), *negatives]))
        tokens, mask = (part.to(pl_module.device) for part in pad_captions(rows, 1 + self.num_counterfactuals))
        scores = pl_module.score(pl_module.encode(batch), tokens, mask)  # (B, 1 + counterfactuals)
        is_valid = mask[:, 1:].any(-1)
        num_won = ((scores[:, :1] > scores[:, 1:]) & is_valid).sum(1)
        self._wins |= dict(zip(batch.ids, zip(num_won.tolist(), is_valid.sum(1).tolist(), strict=True), strict=True))

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        wins = all_gather_dict(self._wins).values()
        won, compared = sum(won for won, _ in wins), sum(compared for _, compared in wins)
        if compared:
            pl_module.log("test/forced_choice", 100 * won / compared, sync_dist=True)
