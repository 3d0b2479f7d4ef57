"""ForcedChoice: how often the true sentence has a higher likelihood than a counterfactual."""

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

WORDINGS = 5
"""Number of templates for each kind of change."""


class ForcedChoice(Callback):
    """Logs ``test/forced_choice``: percentage of comparisons in which the true sentence is more likely.

    The true sentence and its counterfactuals use the same template, so that wording has no effect, and are compared by
    summed log-probability. Needs the scene facts of `SyntheticPairs`; other data are skipped with a message.

    Args:
        rivals: number of counterfactuals per pair.
    """

    def __init__(self, rivals: PositiveInt = 4) -> None:
        check_arguments(ForcedChoice.__init__, locals())
        self.rivals = rivals
        self._wins: dict[str, tuple[int, int]] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        from lightning_idc.data.synthetic.datamodule import SyntheticPairs

        if not isinstance(pl_module, PairCaptioner):
            raise ConfigError(f"ForcedChoice needs a PairCaptioner; found a {type(pl_module).__name__}")
        data = getattr(trainer, "datamodule", None)  # absent where loaders were given
        self.data = data if isinstance(data, SyntheticPairs) else None
        if self.data is None and stage == "test":
            rank_zero_info(f"ForcedChoice is left out: {type(data).__name__} has no scene facts")

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
            wording = int(torch.randint(WORDINGS, (), generator=generator))
            rivals = counterfactuals(change, self.rivals, generator, wording)
            rows.append(pl_module.tokenize([true_sentence(change, wording), *rivals]))
        tokens, mask = (part.to(pl_module.device) for part in pad_captions(rows, 1 + self.rivals))
        scores = pl_module.score(pl_module.encode(batch), tokens, mask)
        is_valid = mask[:, 1:].any(-1)
        num_won = ((scores[:, :1] > scores[:, 1:]) & is_valid).sum(1)
        self._wins |= dict(zip(batch.ids, zip(num_won.tolist(), is_valid.sum(1).tolist(), strict=True), strict=True))

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        wins = all_gather_dict(self._wins).values()
        won, compared = sum(won for won, _ in wins), sum(compared for _, compared in wins)
        if compared:
            pl_module.log("test/forced_choice", 100 * won / compared, sync_dist=True)
